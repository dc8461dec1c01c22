"""What a client has from one session to the next, and the messages that it waits for in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import InternalError, InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.session.standings import Clock, SeenStandings, Standings, system_clock
from secagg.wire import MessageKind

from .graph import require_number

if TYPE_CHECKING:
    from secagg.privacy.client_noise import NoiseSettings
    from secagg.session.client_policy import ClientPolicy
    from secagg.session.ledger import Spent
    from secagg.session.privacy_ledger import PrivacyLedger

State = TypeVar("State", bound=StrEnum)
Transitions = Mapping[State, tuple[MessageKind, frozenset[State]]]
"""The one message that each state accepts, and the states that follow."""


def advance(table: Transitions[State], state: State, message: MessageKind, chosen: State | None = None) -> State:
    """Return the state that follows on a message: the only one that the table allows, or the chosen one of several.

    This is the only way from one state to the next. To a server the message is the one that it waits for no longer.

    Raises:
        InternalError: the table knows no such step.
    """
    due, following = table.get(state, (None, frozenset[State]()))
    if chosen is None and len(following) == 1:
        (chosen,) = following
    if message is not due or chosen is None or chosen not in following:
        raise InternalError(f"no {message.name} leads from {state} to {chosen or 'one state'}")
    return chosen


class ClientState(StrEnum):
    """The message that a client waits for."""

    AWAITING_OFFER = "awaiting_offer"
    AWAITING_ADVERTISED_KEYS = "awaiting_advertised_keys"
    AWAITING_DELIVERED_SHARES = "awaiting_delivered_shares"
    AWAITING_SURVIVOR_SET = "awaiting_survivor_set"
    """Only on the committee of an active session."""
    AWAITING_UNMASKING_REQUEST = "awaiting_unmasking_request"
    COMPLETED = "completed"
    ABORTED = "aborted"


CLIENT_TRANSITIONS: Final[Transitions[ClientState]] = {
    ClientState.AWAITING_OFFER: (MessageKind.SESSION_OFFER, frozenset({ClientState.AWAITING_ADVERTISED_KEYS})),
    ClientState.AWAITING_ADVERTISED_KEYS: (
        MessageKind.ADVERTISED_KEYS,
        frozenset({ClientState.AWAITING_DELIVERED_SHARES}),
    ),
    ClientState.AWAITING_DELIVERED_SHARES: (
        MessageKind.DELIVERED_SHARES,
        # A client that cannot use an edge answers with a complaint, and is out.
        frozenset({ClientState.AWAITING_SURVIVOR_SET, ClientState.AWAITING_UNMASKING_REQUEST, ClientState.ABORTED}),
    ),
    ClientState.AWAITING_SURVIVOR_SET: (MessageKind.SURVIVOR_SET, frozenset({ClientState.AWAITING_UNMASKING_REQUEST})),
    ClientState.AWAITING_UNMASKING_REQUEST: (MessageKind.UNMASKING_REQUEST, frozenset({ClientState.COMPLETED})),
}
"""Any failure leads to ``ABORTED`` as well."""


@dataclass(slots=True, eq=False, repr=False)
class MemberParts(Confined):
    """Identity, policy, coins and ledgers of a client; ``PairwiseMember`` begins sessions with them."""

    client: ClientId
    _: KW_ONLY
    policy: ClientPolicy
    """The weakest session that the client accepts."""
    coins: Coins
    """``SystemCoins()`` in production."""
    authority: Authority | None = None
    """Who certifies identities; for active mode, with the client's own key and certificate."""
    signing_key: SigningKey | None = None
    certificate: Certificate | None = None
    charge: Callable[[Spent], None]
    """Told of an upload before its update is made; raises to refuse, and is durable when it returns, as
    ``SpentUpdates.charge`` is.
    """
    threads: int = 1
    """How many threads expand masks and verify signatures."""
    noise: NoiseSettings | None = None
    """What this client adds to every update; an offer that says otherwise is refused."""
    privacy: PrivacyLedger | None = None
    """What it has spent in all its tasks; an upload beyond its budget is refused."""
    standings: Standings = field(default_factory=SeenStandings)
    """Memory of the newest standing of the authority: a ``Store``, or of this process only."""
    clock: Clock = system_clock
    """Judges how old a standing is."""

    def __post_init__(self) -> None:
        require_number("threads", self.threads, 1)
        if self.authority is not None:
            self.policy = self.policy.with_keys()
        certificate, key = self.certificate, self.signing_key
        if certificate is not None and certificate.client != self.client:
            raise InvalidParameters(f"the certificate is that of {certificate.client} and not of {self.client}")
        if certificate is not None and key is not None and certificate.public_key != key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")

    def require_signing(self) -> None:
        """Refuse an identity key that was wiped, where there is one."""
        if self.signing_key is not None:
            self.signing_key.require_usable()

    def sign(self, label: Label, *parts: bytes) -> bytes:
        """Sign with the identity key; nothing in semi-honest mode, where there is none."""
        return self.signing_key.sign(label, *parts) if self.signing_key is not None else b""
