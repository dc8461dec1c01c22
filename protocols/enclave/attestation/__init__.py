"""Attestation: what hardware vendors vouch for, and which of it a client accepts."""

from __future__ import annotations

from .claims import PINNED_ROOTS, Claims, Evidence, EvidenceFormat, IntelTcb, Roots, SnpTcb, TcbStatus
from .intel import IntelCollateral
from .policy import PinnedMeasurement, Policy
from .snp import SnpCollateral
from .verifier import Collateral, Verifier

__all__ = [
    "PINNED_ROOTS",
    "Claims",
    "Collateral",
    "Evidence",
    "EvidenceFormat",
    "IntelCollateral",
    "IntelTcb",
    "PinnedMeasurement",
    "Policy",
    "Roots",
    "SnpCollateral",
    "SnpTcb",
    "TcbStatus",
    "Verifier",
]
