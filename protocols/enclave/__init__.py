"""Enclave protocol: a small attested program computes sums and histograms, and clients verify which program runs.

Names are imported lazily, because the trusted part loads this package too: an import here would become part of the
measured program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from secagg.choices import Accumulation as Accumulation
    from secagg.choices import ReleaseForm as ReleaseForm

    from .attestation import EvidenceFormat as EvidenceFormat
    from .attestation import PinnedEndorser as PinnedEndorser
    from .attestation import PinnedMeasurement as PinnedMeasurement
    from .attestation import Policy as Policy
    from .attestation import Verifier as Verifier
    from .collateral import read_collateral as read_collateral
    from .collateral import read_endorsement as read_endorsement
    from .judge import HardwareJudge as HardwareJudge
    from .judge import endorse as endorse
    from .judge import read_policy as read_policy
    from .machine.listeners import is_port as is_port
    from .machine.serving import serve_at as serve_at
    from .release_privacy import epsilon_of as epsilon_of
    from .remote_enclave import RemoteEnclave as RemoteEnclave
    from .remote_enclave import SimulatedEnclave as SimulatedEnclave
    from .remote_enclave import SimulatedEvidence as SimulatedEvidence
    from .remote_enclave import SimulatedJudge as SimulatedJudge
    from .seal_ledger import SealLedger as SealLedger
    from .server import Server as Server
    from .session import EnclaveHelpers as EnclaveHelpers
    from .session import EnclaveMember as EnclaveMember
    from .session import EnclaveOptions as EnclaveOptions
    from .session import open_session as open_session
    from .trusted.enclave import DEFAULT_MEMORY_BYTES as DEFAULT_MEMORY_BYTES
    from .verified_enclave import Judge as Judge
    from .verified_enclave import Judgement as Judgement
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attestation": "EvidenceFormat PinnedEndorser PinnedMeasurement Policy Verifier",
            "collateral": "read_collateral read_endorsement",
            "judge": "HardwareJudge endorse read_policy",
            "machine.listeners": "is_port",
            "machine.serving": "serve_at",
            "release_privacy": "epsilon_of",
            "remote_enclave": "RemoteEnclave SimulatedEnclave SimulatedEvidence SimulatedJudge",
            "seal_ledger": "SealLedger",
            "server": "Server",
            "session": "EnclaveHelpers EnclaveMember EnclaveOptions open_session",
            "trusted.configuration": "Accumulation ReleaseForm",
            "trusted.enclave": "DEFAULT_MEMORY_BYTES",
            "verified_enclave": "Judge Judgement",
        },
    )
