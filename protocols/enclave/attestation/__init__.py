"""Attestation: what hardware vendors vouch for, and which of it a client accepts."""

from __future__ import annotations

from .claims import Claims, Evidence, EvidenceFormat, IntelTcb, SnpTcb, TcbStatus
from .intel_collateral import IntelCollateral
from .policy import PinnedMeasurement, Policy
from .roots import PINNED_ROOTS, Roots
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
