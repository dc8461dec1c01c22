"""An enclave without hardware, for simulations and tests: the trusted part in the process of its host.

It protects nobody from that host. Its evidence is of a type that no production policy judges, and a client accepts it
only by choosing ``SimulatedJudge``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from secagg.crypto.entropy import Coins

from .attestation.claims import refused
from .trusted.configuration import EnclaveConfiguration
from .trusted.enclave import DEFAULT_MEMORY_BYTES, Enclave
from .verified_enclave import Judgement


@dataclass(frozen=True, slots=True)
class SimulatedEvidence:
    """Evidence of a simulated enclave; nobody vouches for it."""

    binding: bytes


class SimulatedEnclave(Enclave):
    """The trusted part in this process, with evidence that nobody vouches for."""

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        *,
        coins: Coins,
        threads: int = 1,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        super().__init__(
            configuration, coins=coins, quote=SimulatedEvidence, threads=threads, memory_bytes=memory_bytes
        )


class SimulatedJudge:
    """Accepts simulated evidence for the binding that it holds, and nothing else; for simulations and tests."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401, ARG002 -- the protocol's
        if type(evidence) is not SimulatedEvidence:
            raise refused(f"{type(evidence).__name__} is judged by a HardwareJudge, not by a simulation's")
        if evidence.binding != binding:
            raise refused("it is bound to other keys, another epoch or another configuration")
        return Judgement("simulated enclave, which protects nobody", datetime.max.replace(tzinfo=UTC))
