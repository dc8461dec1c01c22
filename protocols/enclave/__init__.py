"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

A module is imported when one of its names is asked for: whatever was imported here before would be loaded with the
trusted part. README.md says which module has which name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attestation import EvidenceFormat, PinnedMeasurement, Policy, Verifier
    from .budget import epsilon_of
    from .floors import EnclaveFloors
    from .ledger import SealLedger
    from .remote_enclave import RemoteEnclave
    from .session import EnclaveHelpers, EnclaveMember, EnclaveServerSession, EnclaveSettings, open_session
    from .trusted.__main__ import serve_simulated
    from .unattested import SimulatedEnclave, SimulatedEvidence, SimulatedJudge
    from .verified_enclave import HardwareJudge, Judge, Judgement

_MODULES = {
    "EnclaveFloors": "floors",
    "EnclaveHelpers": "session",
    "EnclaveMember": "session",
    "EnclaveServerSession": "session",
    "EnclaveSettings": "session",
    "EvidenceFormat": "attestation",
    "HardwareJudge": "verified_enclave",
    "Judge": "verified_enclave",
    "Judgement": "verified_enclave",
    "PinnedMeasurement": "attestation",
    "Policy": "attestation",
    "RemoteEnclave": "remote_enclave",
    "SealLedger": "ledger",
    "SimulatedEnclave": "unattested",
    "SimulatedEvidence": "unattested",
    "SimulatedJudge": "unattested",
    "Verifier": "attestation",
    "epsilon_of": "budget",
    "open_session": "session",
    "serve_simulated": "trusted.__main__",
}

__all__ = [
    "EnclaveFloors",
    "EnclaveHelpers",
    "EnclaveMember",
    "EnclaveServerSession",
    "EnclaveSettings",
    "EvidenceFormat",
    "HardwareJudge",
    "Judge",
    "Judgement",
    "PinnedMeasurement",
    "Policy",
    "RemoteEnclave",
    "SealLedger",
    "SimulatedEnclave",
    "SimulatedEvidence",
    "SimulatedJudge",
    "Verifier",
    "epsilon_of",
    "open_session",
    "serve_simulated",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
