"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

A module is imported when one of its names is asked for: whatever was imported here before would be loaded with the
trusted part. README.md says which module has which name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.faces import lazy

if TYPE_CHECKING:
    from .attestation import EvidenceFormat as EvidenceFormat
    from .attestation import PinnedMeasurement as PinnedMeasurement
    from .attestation import Policy as Policy
    from .attestation import Verifier as Verifier
    from .budget import epsilon_of as epsilon_of
    from .floors import EnclaveFloors as EnclaveFloors
    from .ledger import SealLedger as SealLedger
    from .plan import EnclaveSettings as EnclaveSettings
    from .remote_enclave import RemoteEnclave as RemoteEnclave
    from .server import Server as Server
    from .session import EnclaveHelpers as EnclaveHelpers
    from .session import EnclaveMember as EnclaveMember
    from .session import HardwareJudge as HardwareJudge
    from .session import open_session as open_session
    from .trusted.__main__ import serve_simulated as serve_simulated
    from .trusted.configuration import Accumulation as Accumulation
    from .trusted.configuration import ReleaseForm as ReleaseForm
    from .trusted.enclave import DEFAULT_MEMORY_BYTES as DEFAULT_MEMORY_BYTES
    from .unattested import SimulatedEnclave as SimulatedEnclave
    from .unattested import SimulatedEvidence as SimulatedEvidence
    from .unattested import SimulatedJudge as SimulatedJudge
    from .verified_enclave import Judge as Judge
    from .verified_enclave import Judgement as Judgement
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "attestation": "EvidenceFormat PinnedMeasurement Policy Verifier",
            "budget": "epsilon_of",
            "floors": "EnclaveFloors",
            "ledger": "SealLedger",
            "plan": "EnclaveSettings",
            "remote_enclave": "RemoteEnclave",
            "server": "Server",
            "session": "EnclaveHelpers EnclaveMember HardwareJudge open_session",
            "trusted.__main__": "serve_simulated",
            "trusted.configuration": "Accumulation ReleaseForm",
            "trusted.enclave": "DEFAULT_MEMORY_BYTES",
            "unattested": "SimulatedEnclave SimulatedEvidence SimulatedJudge",
            "verified_enclave": "Judge Judgement",
        },
    )
