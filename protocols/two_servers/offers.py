"""Rules of a round: which uploads are summed, and when the sum may be released; a state machine without cryptography.

Each server has one instance per round. Uploads are received, checked once, and accepted or rejected. Then the server
closes the round by signing one list, and never another. It releases its share only after the other server has signed
the same list. A failed round stays failed, and nothing of it is ever released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from secagg.blame import Evidence, answered_twice, any_of, unverified
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label
from secagg.declared import (
    CONTEXT,
    FLAG,
    SERVER,
    At,
    Field,
    Message,
    MessageIn,
    encoded,
    fixed,
    listed,
    sized,
    unsigned,
    variable,
    write_fields,
)
from secagg.errors import NOBODY, UNDECIDED, Misuse, PeerMisbehaved, Reason, ThresholdNotMet, blaming
from secagg.identifiers import CONTEXT_BYTES, AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.upload import ROUND_BYTES
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader

# --- Rules of rounds --------------------------------------------------------------------------------------------------


class RoundState(Enum):
    """State of a round."""

    COLLECTING = "collecting"
    SIGNED = "signed"
    AGREED = "agreed"
    FAILED = "failed"


class Standing(Enum):
    """State of one upload."""

    RECEIVED = "received"
    ASKED = "asked"
    TAKEN = "taken"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One upload of a round."""

    client: ClientId
    upload_id: bytes


class RoundRules:
    """Rules of one round at one server; a call that raises changes nothing."""

    def __init__(self, *, minimum_cohort: int, maximum_cohort: int, maximum_rejections: int) -> None:
        self.minimum_cohort = minimum_cohort
        self.maximum_cohort = maximum_cohort
        self.maximum_rejections = maximum_rejections
        self.state = RoundState.COLLECTING
        self.counted: tuple[Entry, ...] = ()
        """Uploads in the released sum, once the round is closed."""
        self._entries = dict[bytes, Entry]()
        self._standing = dict[bytes, Standing]()
        self._clients = dict[ClientId, bytes]()
        self._numbers = Counter[Standing]()
        self._waiting = dict[bytes, None]()

    def standing(self, upload_id: bytes) -> Standing | None:
        return self._standing.get(upload_id)

    def entry(self, upload_id: bytes) -> Entry:
        return self._entries[upload_id]

    def waiting(self) -> tuple[bytes, ...]:
        return tuple(self._waiting)

    def taken(self) -> tuple[Entry, ...]:
        return tuple(entry for upload_id, entry in self._entries.items() if self._standing[upload_id] is Standing.TAKEN)

    def number_of(self, standing: Standing) -> int:
        return self._numbers[standing]

    def require_new(self, entry: Entry) -> bool:
        """Return whether an upload is new rather than a repetition.

        Raises:
            PeerMisbehaved: the client sent a different upload before, or the round is full.
        """
        self.require(RoundState.COLLECTING)
        known = self._clients.get(entry.client)
        if known == entry.upload_id:
            return False
        if known is not None:
            raise PeerMisbehaved(
                f"{entry.client} uploaded twice in one round; a second upload would be a second vote",
                reason=Reason.ALREADY_ANSWERED,
                culprits=answered_twice(entry.client, is_signed=True),
            )
        if len(self._entries) - self.number_of(Standing.REJECTED) >= self.maximum_cohort:
            raise PeerMisbehaved(
                f"the round already has its maximum of {self.maximum_cohort} uploads",
                reason=Reason.BUFFER_FULL,
                culprits=NOBODY,
            )
        return True

    def receive(self, entry: Entry) -> None:
        if self.require_new(entry):
            self._clients[entry.client] = entry.upload_id
            self._entries[entry.upload_id] = entry
            self._standing[entry.upload_id] = Standing.RECEIVED
            self._numbers[Standing.RECEIVED] += 1
            self._waiting[entry.upload_id] = None

    def require_asked(self, upload_id: bytes) -> None:
        if self._standing.get(upload_id) is not Standing.ASKED:
            raise Misuse("only an upload that was asked about can be accepted, and only once")

    def ask(self, upload_id: bytes) -> None:
        """Record that this server is about to send something about an upload."""
        self._move(upload_id, {Standing.RECEIVED, Standing.ASKED}, Standing.ASKED)

    def take(self, upload_id: bytes) -> None:
        self._move(upload_id, {Standing.ASKED}, Standing.TAKEN)

    def reject(self, upload_id: bytes) -> None:
        self._move(upload_id, {Standing.RECEIVED, Standing.ASKED}, Standing.REJECTED)

    def list_to_sign(self) -> tuple[Entry, ...]:
        """Return the uploads in the sum, in ascending order.

        Raises:
            ThresholdNotMet: there are too few.
            PeerMisbehaved: more uploads were rejected than the configuration tolerates.
        """
        self.require(RoundState.COLLECTING)
        rejected = self.number_of(Standing.REJECTED)
        if rejected > self.maximum_rejections:
            entries = ((self._entries[upload], standing) for upload, standing in self._standing.items())
            refused = [entry.client for entry, standing in entries if standing is Standing.REJECTED]
            raise PeerMisbehaved(
                f"{rejected} uploads were rejected; maximum_rejections is {self.maximum_rejections}. Their clients "
                "or one of the servers attack the round, so it is aborted",
                reason=Reason.ONE_HOT_REFUTED,
                culprits=any_of(Evidence.REFUSED_HALF, refused),
            )
        counted = tuple(sorted(self.taken()))
        if len(counted) < self.minimum_cohort:
            raise ThresholdNotMet(needed=self.minimum_cohort, present=len(counted), what="uploads")
        return counted

    def sign(self) -> tuple[Entry, ...]:
        """Close the round with the current list, and return it."""
        self.counted = self.list_to_sign()
        self.state = RoundState.SIGNED
        return self.counted

    def agree(self) -> None:
        self.require(RoundState.SIGNED, RoundState.AGREED)
        self.state = RoundState.AGREED

    def fail(self) -> None:
        self.state = RoundState.FAILED

    def require(self, *states: RoundState) -> None:
        if self.state not in states:
            due = " or ".join(state.value for state in states)
            raise Misuse(f"the round is {self.state.value}; this step needs one that is {due}")

    def _move(self, upload_id: bytes, earlier: set[Standing], standing: Standing) -> None:
        self.require(RoundState.COLLECTING)
        now = self._standing.get(upload_id)
        if now is None or now not in earlier:
            raise Misuse(f"an upload is {now.value if now else 'unknown'} and cannot become {standing.value}")
        self._standing[upload_id] = standing
        self._numbers[now] -= 1
        self._numbers[standing] += 1
        if standing in (Standing.TAKEN, Standing.REJECTED):
            del self._waiting[upload_id]

    def __repr__(self) -> str:
        numbers = ", ".join(f"{self.number_of(standing)} {standing.value}" for standing in Standing)
        return f"<RoundRules {self.state.value}: {numbers}>"


# --- Offers -----------------------------------------------------------------------------------------------------------

_MAXIMUM_OFFER_BYTES: Final = 1 << 14
_MOST_BYTES: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStamp:
    """Task, round and server of a message."""

    context: Annotated[AttemptContext, CONTEXT]
    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    server: Annotated[ServerId, SERVER]

    def parts(self) -> tuple[bytes, ...]:
        return self.context.digest, self.round_number.to_bytes(ROUND_BYTES, "big"), bytes([self.server.index])


class Due(NamedTuple):
    """Expected stamp of a message, and the configuration for decoding it."""

    stamp: RoundStamp
    configuration: IndexingConfiguration


def stamped(due: Callable[[Any], RoundStamp]) -> Field:
    """Return the field of a stamp; decoding refuses any stamp except the expected one."""

    def read(reader: Reader, at: At) -> RoundStamp:
        if (reader.fixed(CONTEXT_BYTES), reader.fixed(ROUND_BYTES), reader.fixed(1)) != due(at.place).parts():
            raise PeerMisbehaved(
                "a message belongs to another configuration, round or server",
                reason=Reason.WRONG_SESSION,
                culprits=UNDECIDED,
            )
        return due(at.place)

    return Field(write_fields, read, "32, 8, 1: the round's stamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOffer(MessageIn[Due]):
    """One server's key for one round, signed with the key that the configuration names."""

    kind: ClassVar = MessageKind.INDEXING_OFFER
    stamp: Annotated[RoundStamp, stamped(lambda due: due.stamp)]
    sealing_key: Annotated[
        bytes, sized(lambda due: sealing_sizes(due.configuration.suite)[0], "32 classic, 1216 hybrid")
    ]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    @classmethod
    def signed(cls, stamp: RoundStamp, sealing_key: bytes, signing_key: SigningKey) -> ServerOffer:
        signature = signing_key.sign(Label.INDEXING_OFFER, *stamp.parts(), sealing_key)
        return cls(stamp=stamp, sealing_key=sealing_key, signature=signature)

    @classmethod
    def verified(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> ServerOffer:
        """Decode one server's offer for one round, and verify its signature."""
        with blaming(*unverified(stamp.server)):
            offer = cls.decode(message, Due(stamp, configuration))
        key = configuration.server_keys[stamp.server.index]
        parts = (*stamp.parts(), offer.sealing_key)
        verify_signature(key, offer.signature, Label.INDEXING_OFFER, *parts, culprits=unverified(stamp.server))
        return offer


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOffers(Message):
    """Both servers' offers as server 0 sends them to a client."""

    kind: ClassVar = MessageKind.ROUND_OFFERS
    is_simulated: Annotated[bool, FLAG]
    offers: Annotated[
        tuple[bytes, bytes], listed(variable(_MAXIMUM_OFFER_BYTES), lambda _: range(2), "twice 4 + an offer")
    ]


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The only message that clients receive in a round."""

    kind: ClassVar = MessageKind.TWO_SERVERS_INVITATION
    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    configuration: Annotated[IndexingConfiguration, encoded(IndexingConfiguration, _MOST_BYTES)]
    shown: Annotated[RoundOffers, encoded(RoundOffers, _MOST_BYTES)]


def simulated_servers(invitation: bytes) -> tuple[bytes, bytes] | None:
    """Return the keys in an invitation if it declares that the second server is simulated; otherwise None."""
    invited = Invitation.decode(invitation)
    return invited.configuration.server_keys if invited.shown.is_simulated else None


@dataclass(frozen=True, slots=True)
class UploadHalves(Message):
    """Both halves of an upload, in one message from a client to server 0; decoding inspects neither half."""

    kind: ClassVar = MessageKind.UPLOAD_HALVES
    zero: Annotated[bytes, variable(_MOST_BYTES)]
    one: Annotated[bytes, variable(_MOST_BYTES)]

    @property
    def both(self) -> tuple[bytes, bytes]:
        return self.zero, self.one
