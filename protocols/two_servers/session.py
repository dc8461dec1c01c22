"""Sessions of two servers: plan of a round, its start at server 0, and its clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from secagg.choices import SharingMode
from secagg.contract import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId, ServerId
from secagg.options import option
from secagg.privacy.client_noise import NoiseSettings
from secagg.session.certificates import NO_STANDING, Standing
from secagg.session.client_policy import require_policy
from secagg.session.registry import Clock, ProtocolOptions
from secagg.session.roles import LazyUpdate, Subject
from secagg.session.sockets import Ask

from .client import Client
from .configuration import IndexingConfiguration
from .member import MemberParts, bound_layout
from .release import require_held
from .server import IndexingServer, Server
from .server_keys import OperatorKeys, ServerKeys

_MOST_UPLOADS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServersOptions(NoiseSettings, ProtocolOptions):
    """Plan of a round; ``IndexingConfiguration`` explains each value."""

    protocol: ClassVar = "two-servers"
    is_checked: Annotated[bool, option("whether to reject clients that vote more than once")] = True
    depth: Annotated[int | None, option("depth of the share trees (default: the cheapest)")] = None
    maximum_cohort: Annotated[int | None, option("clients of one round")] = None
    """Default: all invited clients, or the codec's capacity if anyone may take part."""
    maximum_rejections: Annotated[int | None, option("maximum number of rejected clients; more abort the round")] = None
    """Default: a tenth of ``maximum_cohort``, at least one, so that one cheating client does not end the round."""
    lifetime: Annotated[timedelta, option("lifetime of a round")] = timedelta(hours=12)

    @property
    def mode(self) -> SharingMode:
        return SharingMode.CHECKED_POINT_FUNCTIONS if self.is_checked else SharingMode.UNCHECKED_POINT_FUNCTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServersHelpers:
    """Server 0's keys, and its connection to server 1."""

    keys: ServerKeys
    """Server 0's private keys; the code that loaded them wipes them after the last session."""
    server_one: OperatorKeys
    """Public keys of the operator of server 1."""
    authority: bytes
    """Public key of the authority that certifies clients."""
    standing: Standing = NO_STANDING
    """The authority's revocations, from the head of its roster."""
    ask: Ask
    coins: Coins
    clock: Clock
    is_simulated: bool = False
    """Whether server 1 runs in this process, which can then read all updates; the offer says so."""
    threads: int = 1


def open_session(
    subject: Subject, settings: TwoServersOptions, invited: frozenset[ClientId] | None, helpers: TwoServersHelpers
) -> Server:
    """Start a round with server 1.

    Raises:
        InvalidParameters, CapacityExceeded, PeerMisbehaved: the settings do not fit, or server 1 refuses the round.
        ConnectionError: server 1 cannot be reached, or a different server answers.
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
        return Server(subject, zero, helpers.ask, invited, is_simulated=helpers.is_simulated, settings=settings)
    except BaseException:
        zero.wipe()
        raise


def configure(
    subject: Subject, settings: TwoServersOptions, invited: frozenset[ClientId] | None, helpers: TwoServersHelpers
) -> IndexingConfiguration:
    """Return the configuration that server 0 offers server 1, without sending it."""
    most = min(subject.capacity, _MOST_UPLOADS) if invited is None else len(invited)
    maximum_cohort = settings.maximum_cohort or most
    rejections = settings.maximum_rejections
    noise = require_held(settings, subject.layout, maximum_cohort)
    configuration = IndexingConfiguration(
        message_form=settings.message_form,
        task=subject.task,
        suite=settings.suite,
        authority=helpers.authority,
        server_keys=(helpers.keys.public.signing_key, helpers.server_one.signing_key),
        layout=bound_layout(subject, subject.model_digest),
        mode=settings.mode,
        depth=settings.depth,
        minimum_cohort=settings.least_cohort,
        maximum_cohort=maximum_cohort,
        maximum_rejections=max(1, maximum_cohort // 10) if rejections is None else rejections,
        expiry=int((helpers.clock() + settings.lifetime).timestamp()),
        standing=helpers.standing,
        noise=noise,
    )
    has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
    if configuration.noise is not None and has_indices and not subject.tables:
        raise InvalidParameters("noised counts are released as sums of codewords; pass the codec's tables")
    # Every client would refuse larger cohorts, so do not invite any.
    require_capacity(configuration.maximum_cohort, subject.capacity)
    return configuration


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TwoServersMember(MemberParts):
    """A client of two servers."""

    kind: type[Client] = Client

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        require_policy(self.policy)
        return self.kind(self, subject, update, suspended)
