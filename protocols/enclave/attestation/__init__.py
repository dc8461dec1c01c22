"""Attestation: what hardware vendors vouch for, and which of it a client accepts."""

from __future__ import annotations

from secagg.protocols.enclave.attestation.claims import (
    Claims,
    Evidence,
    EvidenceFormat,
    IntelTcb,
    SnpTcb,
    TcbStatus,
)
from secagg.protocols.enclave.attestation.intel_collateral import IntelCollateral
from secagg.protocols.enclave.attestation.policy import PinnedMeasurement, Policy
from secagg.protocols.enclave.attestation.roots import PINNED_ROOTS, Roots
from secagg.protocols.enclave.attestation.snp import SnpCollateral
from secagg.protocols.enclave.attestation.verifier import Collateral, Verifier

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
