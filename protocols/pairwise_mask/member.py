"""A client's state across sessions, and the messages that it waits for within one."""

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
    from secagg.session.ledger import PrivacyLedger, Spent

State = TypeVar("State", bound=StrEnum)
Transitions = Mapping[State, tuple[MessageKind, frozenset[State]]]
"""The message that each state accepts, and the states that may follow."""


def advance(table: Transitions[State], state: State, message: MessageKind, chosen: State | None = None) -> State:
    """Return the state that follows a message: the only one that the table allows, or the chosen one of several.

    Every state change uses this function. For a server, the message is the one that it no longer waits for.

    Raises:
        InternalError: the table has no such transition.
    """
    due, following = table.get(state, (None, frozenset[State]()))
    if chosen is None and len(following) == 1:
        (chosen,) = following
    if message is not due or chosen is None or chosen not in following:
        raise InternalError(f"{message.name} does not lead from {state} to {chosen or 'one state'}")
    return chosen


class ClientState(StrEnum):
    """The message that a client waits for."""

    AWAITING_OFFER = "awaiting_offer"
    AWAITING_ADVERTISED_KEYS = "awaiting_advertised_keys"
    AWAITING_DELIVERED_SHARES = "awaiting_delivered_shares"
    AWAITING_SURVIVOR_SET = "awaiting_survivor_set"
    """Only for committee members of an active session."""
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
        # A client that cannot use an edge answers with a complaint, and leaves.
        frozenset({ClientState.AWAITING_SURVIVOR_SET, ClientState.AWAITING_UNMASKING_REQUEST, ClientState.ABORTED}),
    ),
    ClientState.AWAITING_SURVIVOR_SET: (MessageKind.SURVIVOR_SET, frozenset({ClientState.AWAITING_UNMASKING_REQUEST})),
    ClientState.AWAITING_UNMASKING_REQUEST: (MessageKind.UNMASKING_REQUEST, frozenset({ClientState.COMPLETED})),
}
"""Any failure leads to ``ABORTED`` as well."""


@dataclass(slots=True, eq=False, repr=False)
class MemberParts(Confined):
    """A client's identity, policy, coins and ledgers; ``PairwiseMember`` opens sessions with them."""

    client: ClientId
    _: KW_ONLY
    policy: ClientPolicy
    """The weakest session that the client accepts."""
    coins: Coins
    """``SystemCoins()`` in production."""
    authority: Authority | None = None
    """Certifies identities; only in active mode, together with the client's own key and certificate."""
    signing_key: SigningKey | None = None
    certificate: Certificate | None = None
    charge: Callable[[Spent], None]
    """Called with an upload before its update is made; raises to refuse. The charge must be durable on return, as in
    ``SpentUpdates.charge``.
    """
    threads: int = 1
    """Number of threads that expand masks and verify signatures."""
    noise: NoiseSettings | None = None
    """Noise that this client adds to every update; it refuses an offer with other noise."""
    privacy: PrivacyLedger | None = None
    """Privacy budget spent in all its tasks; the client refuses an upload beyond it."""
    standings: Standings = field(default_factory=SeenStandings)
    """Remembers the newest standing of the authority, in a ``Store`` or in this process only."""
    clock: Clock = system_clock
    """Used to judge the age of a standing."""

    def __post_init__(self) -> None:
        require_number("threads", self.threads, 1)
        if self.authority is not None:
            self.policy = self.policy.with_keys()
        certificate, key = self.certificate, self.signing_key
        if certificate is not None and certificate.client != self.client:
            raise InvalidParameters(f"the certificate belongs to {certificate.client}, not to {self.client}")
        if certificate is not None and key is not None and certificate.public_key != key.public_key:
            raise InvalidParameters("the certificate does not match the signing key; configure the pair")

    def require_signing(self) -> None:
        """Refuse an identity key that was wiped, if there is one."""
        if self.signing_key is not None:
            self.signing_key.require_usable()

    def sign(self, label: Label, *parts: bytes) -> bytes:
        """Sign with the identity key; without one, as in ``semi_honest`` mode, the signature is empty."""
        return self.signing_key.sign(label, *parts) if self.signing_key is not None else b""
