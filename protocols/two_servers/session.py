"""Two servers as a session of the one that clients reach: one stage, and a helper behind a connection."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from secagg.blame import Evidence, culprits
from secagg.contract import Aggregate, IndexSegment, Layout, Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.fields import Message, encoded, unsigned
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.registry import Clock
from secagg.session.roles import LateUpdate, Released, Stage, Subject
from secagg.session.sockets.connection import Ask
from secagg.session.stages import Checked, OneStageClientSession, StagedServerSession
from secagg.wire import MessageKind

from .client import Client
from .configuration import IndexingConfiguration, SharingMode
from .floors import IndexingFloors
from .ledger import UploadLedger
from .noise import clipped
from .operators.relay_messages import RoundOffers, decode_halves, encode_halves
from .operators.relaying_server import RelayingServer
from .operators.server_keys import OperatorKeys, ServerKeys
from .release import ReleasedNoise, RoundResult, require_held, server_noise, sums_of_counts
from .server import IndexingServer
from .upload import ROUND_BYTES

STAGE: Final = Stage(name="shared upload", takes_update=True)
_MOST_BYTES: Final = (1 << 32) - 1
_MOST_UPLOADS: Final = 1 << 20


# --- Server 0 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServersSettings(NoiseSettings):
    """What a round is configured for; ``IndexingConfiguration`` says what each value means."""

    suite: Suite = Suite.CLASSIC
    is_checked: bool = True
    """Whether clients prove that each of their indices is one vote."""
    depth: int | None = None
    minimum_cohort: int = LEAST_COHORT
    maximum_cohort: int | None = None
    """By default all who are invited, or as many as the codec's capacity allows where anybody may come."""
    maximum_rejections: int = 0
    weights: tuple[int, ...] = (1,)
    lifetime: timedelta = timedelta(hours=12)

    @property
    def mode(self) -> SharingMode:
        """How indices are shared."""
        return SharingMode.CHECKED_POINT_FUNCTIONS if self.is_checked else SharingMode.UNCHECKED_POINT_FUNCTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServersHelpers:
    """Server 0's keys, and how it reaches server 1."""

    keys: ServerKeys
    """Server 0's own; whoever loaded them wipes them, after the last session."""
    server_one: OperatorKeys
    """What the operator of server 1 has given away of its keys."""
    authority: bytes
    """The public key of who certifies clients."""
    ask: Ask
    coins: Coins
    clock: Clock
    is_simulated: bool = False
    """Whether server 1 is in this process, which protects nobody from it; clients are told."""
    threads: int = 1


def open_session(
    subject: Subject, settings: TwoServersSettings, invited: frozenset[ClientId] | None, helpers: TwoServersHelpers
) -> TwoServersSession:
    """Begin a round with server 1.

    Raises:
        InvalidParameters, PeerMisbehaved: the settings do not fit, or server 1 takes no part.
        CapacityExceeded: so many clients could weigh more than the codec can decode.
        AuthenticationFailed: what answers is not server 1.
        ConnectionError: server 1 cannot be reached.
    """
    configuration = configure(subject, settings, invited, helpers)
    with helpers.keys.pair_key(helpers.server_one) as pair_key:
        zero = IndexingServer(
            configuration,
            ServerId(0),
            round_number=subject.round_number,
            signing_key=helpers.keys.signing_key(),
            pair_key=pair_key,
            coins=helpers.coins,
            threads=helpers.threads,
        )
    try:
        return TwoServersSession(
            subject, zero, helpers.ask, invited, is_simulated=helpers.is_simulated, settings=settings
        )
    except BaseException:
        zero.wipe()
        raise


def configure(
    subject: Subject, settings: TwoServersSettings, invited: frozenset[ClientId] | None, helpers: TwoServersHelpers
) -> IndexingConfiguration:
    """Return what server 0 offers server 1; nobody is asked.

    Raises:
        InvalidParameters, CapacityExceeded: the settings do not fit.
    """
    most = min(subject.capacity // max(settings.weights), _MOST_UPLOADS) if invited is None else len(invited)
    maximum_cohort = settings.maximum_cohort or most
    noise = require_held(settings, subject.layout, maximum_cohort * max(settings.weights))
    configuration = IndexingConfiguration(
        task=subject.task,
        suite=settings.suite,
        authority=helpers.authority,
        server_keys=(helpers.keys.public.signing_key, helpers.server_one.signing_key),
        layout=bound_layout(subject, subject.model_digest),
        mode=settings.mode,
        depth=settings.depth,
        minimum_cohort=settings.minimum_cohort,
        maximum_cohort=maximum_cohort,
        maximum_rejections=settings.maximum_rejections,
        weights=settings.weights,
        expiry=int((helpers.clock() + settings.lifetime).timestamp()),
        noise=noise,
    )
    has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
    if configuration.noise is not None and has_indices and not subject.tables:
        raise InvalidParameters("of counts with noise sums of codewords are released: hand the codec's tables over")
    # Every client refuses more; nobody is invited to that.
    require_capacity(configuration.maximum_total_weight, subject.capacity)
    return configuration


def bound_layout(subject: Subject, model_digest: bytes | None) -> Layout:
    """Return a layout whose version is of model, capacity and terms too: two servers know nothing of these."""
    bound = bind(
        Label.SESSION_LAYOUT,
        subject.layout.version,
        subject.capacity.to_bytes(8, "big"),
        model_digest or bytes(hashlib.sha256().digest_size),
        subject.terms,
    )
    return Layout(subject.layout.segments, hashlib.sha256(bound).digest())


class TwoServersSession(StagedServerSession[bytes]):
    """Server 0's side of one round."""

    def __init__(  # noqa: PLR0913 -- what a round is made of
        self,
        subject: Subject,
        zero: IndexingServer,
        ask: Ask,
        invited: frozenset[ClientId] | None,
        *,
        is_simulated: bool,
        settings: NoiseSettings = NO_NOISE,
    ) -> None:
        """Begin the round at server 1, and open the stage."""
        self._settings = settings
        self._subject, self._zero, self._relaying = subject, zero, RelayingServer(zero, ask)
        shown = RoundOffers(is_simulated=is_simulated, offers=self._relaying.begin())
        invitation = Invitation(subject.round_number, zero.configuration, shown).encode()
        super().__init__(STAGE, invitation, invited, zero.configuration.minimum_cohort)

    @property
    def configuration(self) -> IndexingConfiguration:
        """What both servers agreed on."""
        return self._zero.configuration

    @property
    def noise(self) -> ReleasedNoise | None:
        """What the servers add."""
        noise, subject = self.configuration.noise, self._subject
        return None if noise is None else ReleasedNoise(noise, self._settings, subject.layout, subject.tables)

    @property
    def is_signed(self) -> bool:
        """True."""
        return True

    def _check(self, sender: ClientId, message: bytes) -> Checked[bytes]:
        return Checked(message, self._zero.verify(decode_halves(message)[0], sender))

    def _take(self, sender: ClientId, content: bytes) -> None:
        self._relaying.receive(content, sender)

    def _next(self) -> None:
        self._relaying.settle()

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # The servers say three things each, whatever the size.
        found = self._relaying.finish()
        left_out = _left_out(found, self._minimum)
        self._record(*(error for error in left_out.values() if isinstance(error, PeerMisbehaved)))
        sums, counted, subject = found.aggregate, frozenset(found.counted), self._subject
        if self.configuration.noise is not None and subject.tables:
            aggregate = sums_of_counts(sums, subject.layout, subject.tables)
        else:
            aggregate = Aggregate(subject.layout, sums.values, sums.contributors, sums.total_weight)
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out=left_out,
            revealed=frozenset({counted}),
            # A client that is not checked votes as often as it likes.
            unbounded=subject.layout.ring_positions
            if self.configuration.is_checked
            else tuple(range(len(subject.layout.segments))),
        )

    def _wipe(self) -> None:
        self._zero.wipe()


def _left_out(found: RoundResult, minimum: int) -> dict[ClientId, SecAggError]:
    errors: dict[ClientId, SecAggError] = {
        client: ThresholdNotMet(needed=minimum, present=present, what="uploads of this client's weight")
        for client, present in found.left_out.items()
    }
    for client, sentence in found.rejected.items():
        named = culprits(Evidence.REFUSED_HALF, sender=client)
        errors[client] = PeerMisbehaved(sentence, reason=Reason.ONE_HOT_REFUTED, culprits=named)
    return errors


# --- The client -------------------------------------------------------------------------------------------------------


class TwoServersMember(Confined):
    """A client of two servers."""

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        *,
        certificate: Certificate,
        signing_key: SigningKey,
        floors: IndexingFloors,
        ledger: Callable[[bytes], UploadLedger],
        clock: Clock,
        coins: Coins,
        accepts_simulated: bool = False,
        threads: int = 1,
        noise: NoiseSettings = NO_NOISE,
        kind: type[Client] = Client,
    ) -> None:
        """Prepare to join sessions; the arguments are those of ``Client``, with a clock.

        Args:
            ledger: returns what this client has uploaded for a task, restored from where it is stored.
            accepts_simulated: whether a second server that the first one simulates is good enough; for rehearsals.
            noise: what the servers are to add; a round that says otherwise is refused.
        """
        self.certificate, self.signing_key, self.floors, self.ledger_of = certificate, signing_key, floors, ledger
        self.clock, self.coins, self.accepts_simulated, self.threads = clock, coins, accepts_simulated, threads
        self.kind, self.noise = kind, noise

    def join(
        self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None
    ) -> TwoServersClientSession:
        """Begin; there is nothing to go on with."""
        return TwoServersClientSession(self, subject, update, suspended)


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The one message of a round to its clients."""

    kind: ClassVar = MessageKind.TWO_SERVERS_INVITATION
    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    configuration: Annotated[IndexingConfiguration, encoded(IndexingConfiguration, _MOST_BYTES)]
    shown: Annotated[RoundOffers, encoded(RoundOffers, _MOST_BYTES)]


def simulated_servers(invitation: bytes) -> tuple[bytes, bytes] | None:
    """Return the keys in an invitation that says itself that the second server is simulated; nothing of others.

    Only for a member that ``accepts_simulated``: whoever made the invitation holds both keys.
    """
    invited = Invitation.decode(invitation)
    return invited.configuration.server_keys if invited.shown.is_simulated else None


class TwoServersClientSession(OneStageClientSession):
    """A client's side of one round."""

    def __init__(
        self, member: TwoServersMember, subject: Subject, update: LateUpdate | None, suspended: Secret | None
    ) -> None:
        super().__init__(member.certificate.client, subject, update, suspended)
        self._member = member

    def _upload(self, message: bytes, update: LateUpdate) -> bytes:
        member, subject = self._member, self._subject
        invited = Invitation.decode(message)
        round_number, configuration, shown = invited.round_number, invited.configuration, invited.shown
        if round_number != subject.round_number:
            raise InvalidParameters("the servers count for another round than this client's", reason=Reason.BELOW_FLOOR)
        self._require_subject(configuration, shown)
        model = update.model_for(subject)
        layout = bound_layout(subject, model)
        _require_same(configuration.layout, layout)
        client = member.kind(
            certificate=member.certificate,
            signing_key=member.signing_key,
            floors=member.floors,
            layout=layout,
            capacity=subject.capacity,
            ledger=member.ledger_of(subject.task),
            coins=member.coins,
            threads=member.threads,
        )
        keys = client.charge(configuration, round_number, shown.offers, member.clock(), model)
        made = update.take(subject.layout, configuration.weights)
        halves = client.shared(
            Payload(layout, clipped(made.payload, configuration.noise).values),
            configuration=configuration,
            round_number=round_number,
            keys=keys,
            weight=made.weight,
        )
        return encode_halves(*halves)

    def _require_subject(self, configuration: IndexingConfiguration, shown: RoundOffers) -> None:
        subject = self._subject
        if configuration.task != subject.task:
            raise InvalidParameters("the servers count for another task than this client's", reason=Reason.BELOW_FLOOR)
        if configuration.layout.segments != subject.layout.segments:
            raise InvalidParameters("the servers count another layout than this client's", reason=Reason.BELOW_FLOOR)
        if configuration.noise != server_noise(self._member.noise, subject.layout):
            raise InvalidParameters(
                "the servers add other noise than this client insists on; offer what it asks for",
                reason=Reason.BELOW_FLOOR,
            )
        if shown.is_simulated and not self._member.accepts_simulated:
            raise InvalidParameters(
                "the second server is simulated by the first, which protects nobody from it", reason=Reason.BELOW_FLOOR
            )


def _require_same(named: Layout, own: Layout) -> None:
    if named != own:
        raise InvalidParameters(
            "the round is about another codec, model, capacity or terms than this client's", reason=Reason.BELOW_FLOOR
        )
