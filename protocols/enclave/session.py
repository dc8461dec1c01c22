"""One buffer of an enclave as a session: one stage; evidence is judged before anything is trained or sealed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Annotated, ClassVar, Final

from secagg.contract import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Reason, SecAggError
from secagg.fields import FLAG, Message, fixed, unsigned, variable
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.sensitivity import Adjacency
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.session.registry import Clock
from secagg.session.roles import LateUpdate, Released, Stage, Subject
from secagg.session.stages import Checked, OneStageClientSession, StagedServerSession
from secagg.wire import MessageKind

from .attestation import Evidence
from .client import Client
from .floors import EnclaveFloors
from .host import EnclaveConnection, Host, ReadUpload
from .ledger import SealLedger
from .plan import DEFAULT_LIFETIME, plan_enclave, require_held
from .remote_enclave import decode_attested_offer
from .short_upload import shortened
from .trusted.configuration import Accumulation, EnclaveConfiguration, ReleaseForm
from .trusted.messages import DIGEST_BYTES, EnclaveOffer, ModelStamp
from .trusted.service import SIMULATED, encode_attested_offer
from .unattested import SimulatedEvidence
from .verified_enclave import Judge, VerifiedEnclave

STAGE: Final = Stage(name="sealed upload", takes_update=True)
_VERSION_BYTES: Final = 8
_MOST_BYTES: Final = (1 << 32) - 1
_MOST_UPLOADS: Final = 1 << 20


# --- The host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveSettings:
    """What an epoch is configured for; ``plan_enclave`` says what each value means."""

    suite: Suite = Suite.HYBRID
    minimum_cohort: int = LEAST_COHORT
    maximum_cohort: int | None = None
    """By default as many as the codec's capacity allows."""
    maximum_weight: int = 1
    staleness_weights: tuple[int, ...] = (1,)
    form: ReleaseForm = ReleaseForm.DECODED_SUM
    accumulation: Accumulation = Accumulation.OBLIVIOUS
    noise_multiplier: Fraction | None = None
    noise_kind: NoiseKind = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: tuple[int, ...] = ()
    releases_per_client: int = 1
    adjacency: Adjacency = Adjacency.REPLACE
    codeword_bound: int = 0
    lifetime: timedelta = DEFAULT_LIFETIME

    def plan(self, subject: Subject, authority: Authority | None, now: datetime) -> EnclaveConfiguration:
        """Return the configuration of an epoch whose buffers are about a subject's task, layout and tables.

        Raises:
            InvalidParameters, CapacityExceeded: no enclave can; the message says what to change.
        """
        heaviest = self.maximum_weight * max(self.staleness_weights)
        has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
        maximum_cohort = self.maximum_cohort or min(subject.capacity // heaviest, _MOST_UPLOADS)
        counted = sum(map(len, subject.tables)) if self.form is ReleaseForm.DECODED_SUM else 0
        require_held(
            subject.layout,
            self.noise_multiplier,
            self.l2_bounds,
            self.adjacency,
            segments=len(subject.layout.ring_positions) + counted,
            total_weight=maximum_cohort * heaviest,
            capacity=subject.capacity,
        )
        return plan_enclave(
            task=subject.task,
            layout=subject.layout,
            tables=subject.tables if has_indices else (),
            capacity=subject.capacity,
            authority=authority,
            minimum_cohort=self.minimum_cohort,
            maximum_cohort=maximum_cohort,
            now=now,
            lifetime=self.lifetime,
            suite=self.suite,
            form=self.form,
            accumulation=self.accumulation,
            maximum_weight=self.maximum_weight,
            staleness_weights=self.staleness_weights,
            noise_multiplier=self.noise_multiplier,
            noise_kind=self.noise_kind,
            l2_bounds=self.l2_bounds,
            releases_per_client=self.releases_per_client,
            adjacency=self.adjacency,
            codeword_bound=self.codeword_bound,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveHelpers:
    """An enclave whose epoch runs; it outlives the sessions, each of which is one of its buffers."""

    configuration: EnclaveConfiguration
    """That of the epoch, from ``EnclaveSettings.plan``."""
    connection: EnclaveConnection
    offer: EnclaveOffer
    evidence: Evidence | SimulatedEvidence
    certificates: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Of all who may take part, where the host has them; uploads leave out then what it knows."""


def open_session(
    subject: Subject, settings: EnclaveSettings, invited: frozenset[ClientId] | None, helpers: EnclaveHelpers
) -> EnclaveServerSession:
    """Open a buffer of an epoch that runs.

    Raises:
        InvalidParameters: the epoch is for another task or layout, or for other cohorts and weights than the settings;
            or too few are invited.
    """
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
    host = Host(configuration, helpers.connection, epoch=helpers.offer.epoch, certificates=certificates)
    attested = encode_offer(helpers.offer, helpers.evidence)
    session = EnclaveServerSession(host, attested, subject, invited, is_short=bool(certificates))
    session.is_simulated = isinstance(helpers.evidence, SimulatedEvidence)
    return session


def encode_offer(offer: EnclaveOffer, evidence: Evidence | SimulatedEvidence) -> bytes:
    """Return an epoch's offer with its evidence, as clients are shown it."""
    if isinstance(evidence, SimulatedEvidence):
        return encode_attested_offer(offer, SIMULATED, evidence.binding)
    return encode_attested_offer(offer, evidence.format.value, evidence.document)


def stamp_of(subject: Subject, model_digest: bytes | None) -> ModelStamp:
    """Return what all uploads of a buffer have in common: the round, the model, and what else clients are told."""
    bound = bind(
        Label.SESSION_MODEL, subject.capacity.to_bytes(8, "big"), model_digest or bytes(DIGEST_BYTES), subject.terms
    )
    return ModelStamp(version=subject.round_number, digest=hashlib.sha256(bound).digest())


class EnclaveServerSession(StagedServerSession[ReadUpload]):
    """The host's side of one buffer."""

    def __init__(
        self,
        host: Host,
        attested: bytes,
        subject: Subject,
        invited: frozenset[ClientId] | None,
        *,
        is_short: bool = False,
    ) -> None:
        """Open the buffer.

        Args:
            attested: the epoch's offer with its evidence.
            is_short: whether the host has every client's certificate, so that uploads may leave them out.
        """
        configuration, model, self._attested = host.configuration, stamp_of(subject, subject.model_digest), attested
        invitation = Invitation(configuration.encode(), attested, model.version, model.digest, is_short)
        super().__init__(STAGE, invitation.encode(), invited, configuration.minimum_cohort)
        self._host = host
        self._is_released = False
        self.is_simulated = False
        """Whether the evidence is nobody's; clients see it themselves."""
        host.open_buffer(model.version, model.digest)

    @property
    def configuration(self) -> EnclaveConfiguration:
        """That of the epoch."""
        return self._host.configuration

    @property
    def deviations(self) -> tuple[float, ...]:
        """Of the noise that the enclave adds to each released segment, in steps; nothing where it adds none."""
        noise = self.configuration.noise
        return () if noise is None else tuple(math.sqrt(variance) for variance in noise.variances)

    def invitation_for(self, subject: Subject) -> bytes:
        """Announce the model that an asynchronous client started from, and return the client's invitation.

        Raises:
            PeerMisbehaved: no update of this model counts here, or it was announced with another number or digest.
        """
        model = stamp_of(subject, subject.model_digest)
        self._host.announce_model(model.version, model.digest)
        # The model may not be that of the buffer, which is what the host would put back.
        return Invitation(self.configuration.encode(), self._attested, model.version, model.digest, False).encode()  # noqa: FBT003 -- is_short

    def _check(self, sender: ClientId, message: bytes) -> Checked[ReadUpload]:
        upload = self._host.read(message, sender)
        return Checked(upload, upload.digest)

    def _take(self, sender: ClientId, content: ReadUpload) -> None:
        del sender  # The enclave has it from the client's certificate.
        self._host.add(content)

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # One step.
        aggregate, receipt = self._host.release()
        self._is_released = True
        counted = frozenset(self._said)
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            # Indices are in range, one for each block; ring elements are summed under masks, and nobody sees them.
            unbounded=self.configuration.layout.ring_positions,
            receipt=receipt.encode(),
        )

    def _wipe(self) -> None:
        if self._is_released:
            return
        try:
            self._host.give_up_buffer()
        except (SecAggError, ConnectionError):
            # An enclave that is lost, or that gave the buffer up itself, holds nothing more of it.
            return


# --- The client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnclaveMember(Confined):
    """A client of enclaves; the fields are the arguments of ``Client``, with a judge of evidence and a clock."""

    certificate: Certificate
    signing_key: SigningKey
    floors: EnclaveFloors
    judge: Judge
    ledger: Callable[[bytes], SealLedger]
    """Returns what this client has sealed for a task, restored from where it is stored."""
    clock: Clock
    coins: Coins
    threads: int = 1

    def join(
        self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None
    ) -> EnclaveClientSession:
        """Begin; there is nothing to go on with."""
        return EnclaveClientSession(self, subject, update, suspended)


class EnclaveClientSession(OneStageClientSession):
    """A client's side of one buffer."""

    def __init__(
        self, member: EnclaveMember, subject: Subject, update: LateUpdate | None, suspended: Secret | None
    ) -> None:
        super().__init__(member.certificate.client, subject, update, suspended)
        self._member = member

    def _upload(self, message: bytes, update: LateUpdate) -> bytes:
        member, subject = self._member, self._subject
        invited = Invitation.decode(message)
        configuration = EnclaveConfiguration.decode(invited.configuration, subject.tables)
        named = ModelStamp(version=invited.version, digest=invited.model_digest)
        offer, evidence = decode_attested_offer(invited.attested)
        if configuration.task != subject.task:
            raise InvalidParameters("the enclave counts for another task than this client's", reason=Reason.BELOW_FLOOR)
        if named.version != subject.round_number:
            raise InvalidParameters("the buffer is of another round than this client's", reason=Reason.BELOW_FLOOR)
        _require_same(named, stamp_of(subject, model := update.model_for(subject)))
        enclave = VerifiedEnclave(offer, evidence, configuration=configuration, judge=member.judge, now=member.clock())
        tables, ledger = subject.tables if configuration.index_segments else (), member.ledger(subject.task)
        client = Client(
            certificate=member.certificate,
            signing_key=member.signing_key,
            floors=member.floors,
            layout=subject.layout,
            tables=tables,
            capacity=subject.capacity,
            ledger=ledger,
            coins=member.coins,
            threads=member.threads,
        )
        client.charge(enclave, named, member.clock(), model)
        made = update.take(configuration.layout, range(1, configuration.maximum_weight + 1))
        upload = client.sealed(made.payload, enclave=enclave, model=named, now=member.clock(), weight=made.weight)
        return shortened(upload) if invited.is_short else upload.encode()


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The one message of a buffer to its clients."""

    kind: ClassVar = MessageKind.ENCLAVE_INVITATION
    configuration: Annotated[bytes, variable(_MOST_BYTES)]
    """Without tables, which a client of the same codec has, and which can be a thousand times as long as its upload."""
    attested: Annotated[bytes, variable(_MOST_BYTES)]
    version: Annotated[int, unsigned(_VERSION_BYTES)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    is_short: Annotated[bool, FLAG]


def _require_same(named: ModelStamp, own: ModelStamp) -> None:
    if named != own:
        raise InvalidParameters(
            "the buffer is about another model, capacity or terms than this client's", reason=Reason.BELOW_FLOOR
        )
