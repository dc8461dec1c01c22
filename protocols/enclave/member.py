"""A client of enclaves from one session to the next: its keys, what it insists on, and whom it believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.registry import Clock
from secagg.session.roles import LateUpdate, Subject

from .attestation import Collateral, Policy, Verifier
from .client import Client
from .floors import EnclaveFloors
from .ledger import SealLedger
from .remote_enclave import decode_attested_offer
from .trusted.configuration import EnclaveConfiguration
from .verified_enclave import Judge, Judgement, VerifiedEnclave


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnclaveMember(Confined):
    """A client of enclaves."""

    certificate: Certificate
    """The authority's word for the signing key; without an authority, the client's own."""
    signing_key: SigningKey
    floors: EnclaveFloors
    judge: Judge
    ledger: Callable[[bytes], SealLedger]
    """Returns what this client has sealed for a task, with ``SpentUpdates`` of a file in production."""
    clock: Clock
    coins: Coins
    """``SystemCoins()`` in production."""
    threads: int = 1
    """How many expand masks."""

    def join(self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Begin; there is nothing to go on with."""
        return Client(self, subject, update, suspended)

    def verified(self, attested: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        """Return the enclave of an offer, if its evidence passes.

        Raises:
            MalformedMessage, PeerMisbehaved: as for ``VerifiedEnclave``.
        """
        offer, evidence = decode_attested_offer(attested)
        return VerifiedEnclave(offer, evidence, configuration=configuration, judge=self.judge, now=self.clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareJudge:
    """Accepts what a hardware vendor vouches for and the client's own policy pins."""

    policy: Policy
    verifier: Verifier
    collateral: Collateral = None

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        """Verify that a vendor vouches for the evidence, and hold it to the policy.

        Raises:
            MalformedMessage, PeerMisbehaved, InvalidParameters: as for ``Verifier.verify`` and ``Policy.check``.
        """
        claims = self.verifier.verify(evidence, self.collateral, now)
        not_after = self.policy.check(claims, binding, now)
        registers = ", ".join(f"{name} {value.hex()[:16]}" for name, value in sorted(claims.measurement.items()))
        return Judgement(f"{claims.format}: {registers}", not_after)
