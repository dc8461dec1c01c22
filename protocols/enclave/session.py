"""Sessions of an epoch: opening its buffers as a host, and joining them as a client with keys, floors and a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.registry import Clock
from secagg.session.roles import LateUpdate, Subject

from .attestation import Collateral, Evidence, Policy, Verifier
from .client import Client, Judge, Judgement, SealLedger, VerifiedEnclave, stamp_of
from .floors import EnclaveFloors
from .plan import EnclaveSettings
from .remote_enclave import SimulatedEvidence, decode_attested_offer
from .server import EnclaveConnection, Server
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import EnclaveOffer
from .trusted.process import SIMULATED, encode_attested_offer

# --- The host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveHelpers:
    """An enclave whose epoch runs; it outlives the sessions, each of which is one of its buffers."""

    configuration: EnclaveConfiguration
    """From ``EnclaveSettings.plan``."""
    connection: EnclaveConnection
    offer: EnclaveOffer
    evidence: Evidence | SimulatedEvidence
    certificates: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Certificates of all that may take part, where the host has them; uploads then leave out what it knows."""


def open_session(
    subject: Subject, settings: EnclaveSettings, invited: frozenset[ClientId] | None, helpers: EnclaveHelpers
) -> Server:
    """Open a buffer of an epoch that runs, if it is for this subject and these settings."""
    configuration = helpers.configuration
    for name, planned, wanted in (
        ("task", configuration.task, subject.task),
        ("layout", configuration.layout, subject.layout),
        ("minimum_cohort", configuration.minimum_cohort, settings.minimum_cohort),
        ("maximum_weight", configuration.maximum_weight, settings.maximum_weight),
    ):
        if planned != wanted:
            raise InvalidParameters(f"the epoch that runs has another {name}; start one for this subject and settings")
    if invited is not None and len(invited) < configuration.minimum_cohort:
        raise InvalidParameters(
            f"{len(invited)} clients are invited, and nothing is released of fewer than {configuration.minimum_cohort}"
        )
    has_all = invited is None or invited <= helpers.certificates.keys()
    certificates = helpers.certificates if has_all else dict[ClientId, Certificate]()
    if isinstance(evidence := helpers.evidence, SimulatedEvidence):
        shown = SIMULATED, evidence.binding
    else:
        shown = evidence.format.value, evidence.document
    session = Server(
        configuration,
        helpers.connection,
        stamp_of(subject, subject.model_digest),
        attested=encode_attested_offer(helpers.offer, *shown),
        invited=invited,
        epoch=helpers.offer.epoch,
        certificates=certificates,
    )
    session.is_simulated = isinstance(evidence, SimulatedEvidence)
    return session


# --- The client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnclaveMember(Confined):
    """A client of enclaves."""

    certificate: Certificate
    """Of the signing key, by the authority; without one, by the client itself."""
    signing_key: SigningKey
    floors: EnclaveFloors
    judge: Judge
    ledger: Callable[[bytes], SealLedger]
    """Returns the ledger of a task, with ``SpentUpdates`` of a file in production."""
    clock: Clock
    coins: Coins
    """``SystemCoins()`` in production."""
    threads: int = 1

    def join(self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Begin; a session cannot be resumed."""
        return Client(self, subject, update, suspended)

    def verified(self, attested: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        offer, evidence = decode_attested_offer(attested)
        return VerifiedEnclave(offer, evidence, configuration=configuration, judge=self.judge, now=self.clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareJudge:
    """Accepts what a hardware vendor vouches for and the client's own policy pins."""

    policy: Policy
    verifier: Verifier
    collateral: Collateral = None

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        claims = self.verifier.verify(evidence, self.collateral, now)
        not_after = self.policy.check(claims, binding, now)
        registers = ", ".join(f"{name} {value.hex()[:16]}" for name, value in sorted(claims.measurement.items()))
        return Judgement(f"{claims.format}: {registers}", not_after)
