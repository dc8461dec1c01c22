"""Attestation: verifies hardware vendors' evidence and checks it against a client's policy."""

from __future__ import annotations

from .claims import PINNED_ROOTS, Claims, Evidence, EvidenceFormat, IntelTcb, Roots, SnpTcb, TcbStatus
from .intel import IntelCollateral
from .policy import Collateral, PinnedEndorser, PinnedMeasurement, Policy, Verifier
from .snp import SnpCollateral

__all__ = [
    "PINNED_ROOTS",
    "Claims",
    "Collateral",
    "Evidence",
    "EvidenceFormat",
    "IntelCollateral",
    "IntelTcb",
    "PinnedEndorser",
    "PinnedMeasurement",
    "Policy",
    "Roots",
    "SnpCollateral",
    "SnpTcb",
    "TcbStatus",
    "Verifier",
]
