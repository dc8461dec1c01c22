"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

A module is imported when one of its names is asked for: whatever was imported here before would be loaded with the
trusted part. README.md says which module has which name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attestation import EvidenceFormat as EvidenceFormat
    from .attestation import PinnedMeasurement as PinnedMeasurement
    from .attestation import Policy as Policy
    from .attestation import Verifier as Verifier
    from .budget import epsilon_of as epsilon_of
    from .floors import EnclaveFloors as EnclaveFloors
    from .ledger import SealLedger as SealLedger
    from .remote_enclave import RemoteEnclave as RemoteEnclave
    from .session import EnclaveHelpers as EnclaveHelpers
    from .session import EnclaveMember as EnclaveMember
    from .session import EnclaveServerSession as EnclaveServerSession
    from .session import EnclaveSettings as EnclaveSettings
    from .session import open_session as open_session
    from .trusted.__main__ import serve_simulated as serve_simulated
    from .trusted.enclave import DEFAULT_MEMORY_BYTES as DEFAULT_MEMORY_BYTES
    from .unattested import SimulatedEnclave as SimulatedEnclave
    from .unattested import SimulatedEvidence as SimulatedEvidence
    from .unattested import SimulatedJudge as SimulatedJudge
    from .verified_enclave import HardwareJudge as HardwareJudge
    from .verified_enclave import Judge as Judge
    from .verified_enclave import Judgement as Judgement

_NAMES = {
    "attestation": "EvidenceFormat PinnedMeasurement Policy Verifier",
    "budget": "epsilon_of",
    "floors": "EnclaveFloors",
    "ledger": "SealLedger",
    "remote_enclave": "RemoteEnclave",
    "session": "EnclaveHelpers EnclaveMember EnclaveServerSession EnclaveSettings open_session",
    "trusted.__main__": "serve_simulated",
    "trusted.enclave": "DEFAULT_MEMORY_BYTES",
    "unattested": "SimulatedEnclave SimulatedEvidence SimulatedJudge",
    "verified_enclave": "HardwareJudge Judge Judgement",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
