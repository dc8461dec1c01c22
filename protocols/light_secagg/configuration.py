"""Configuration of one sum, and its messages; each message begins with T0, which binds it to the sum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import require_capacity
from secagg.errors import UNDECIDED, InvalidParameters, MalformedMessage, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import CLIENT_ID_BYTES, CONTEXT_BYTES, AttemptContext, ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.wire import FORMS, MessageKind, Reader, Writer, require_spoken

from .field import FIELD

if TYPE_CHECKING:
    from secagg.session.roles import Subject

DIGEST_BYTES: Final = 32
NONCE_BYTES: Final = 16
MAXIMUM_CLIENTS: Final = 1 << 10
_MAXIMUM_TASK_BYTES: Final = 256
_MAXIMUM_LAYOUT_BYTES: Final = 1 << 21


@dataclass(frozen=True)
class Configuration:
    """The server's offer of one sum: its subject, its clients, and how many may drop out or collude."""

    task: bytes
    round_number: int
    nonce: bytes
    """Drawn by the server; distinguishes attempts at the same round."""
    model_digest: bytes
    application_digest: bytes
    suite: Suite
    layout: Layout
    population: int
    """N: number of clients."""
    privacy: int
    """T: the server and up to T colluding clients learn only the sum."""
    target: int
    """U: clients that must stay to the end; N - U may drop out."""
    message_form: int = FORMS[0]

    def __post_init__(self) -> None:
        for is_wrong, sentence in (
            (not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES, "the task's name must have 1 to 256 bytes"),
            (not LEAST_COHORT <= self.population <= MAXIMUM_CLIENTS, f"clients must be 2 to {MAXIMUM_CLIENTS}"),
            (
                self.privacy < 1 or not self.privacy + LEAST_COHORT <= self.target <= self.population,
                "1 <= privacy <= target - 2 < population",
            ),
        ):
            if is_wrong:
                raise InvalidParameters(f"the configuration is refused: {sentence}")
        self.layout.require_rings()
        self.layout.require_whole_steps()

    def encode(self) -> bytes:
        writer = Writer(MessageKind.LIGHT_SECAGG_OFFER).integer(require_spoken(self.message_form, InvalidParameters), 1)
        writer.variable(self.task, _MAXIMUM_TASK_BYTES)
        writer.integer(self.round_number, 8).fixed(self.nonce, NONCE_BYTES)
        writer.fixed(self.model_digest, DIGEST_BYTES).fixed(self.application_digest, DIGEST_BYTES)
        writer.integer(list(Suite).index(self.suite), 1).variable(self.layout.encode(), _MAXIMUM_LAYOUT_BYTES)
        for number in (self.population, self.privacy, self.target):
            writer.integer(number, 4)
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes) -> Configuration:
        reader = Reader(message, MessageKind.LIGHT_SECAGG_OFFER)
        form = require_spoken(reader.integer(1))
        task, number, nonce = reader.variable(_MAXIMUM_TASK_BYTES), reader.integer(8), reader.fixed(NONCE_BYTES)
        model, application, suite = reader.fixed(DIGEST_BYTES), reader.fixed(DIGEST_BYTES), reader.integer(1)
        layout, (n, t, u) = reader.variable(_MAXIMUM_LAYOUT_BYTES), (reader.integer(4) for _ in range(3))
        reader.finish()
        try:
            suited = list(Suite)[suite], Layout.decode(layout)
            return cls(task, number, nonce, model, application, *suited, n, t, u, form)
        except (InvalidParameters, IndexError, UnexpectedMessage) as error:
            raise MalformedMessage(f"the offer is invalid: {error}", reason=Reason.NOT_CANONICAL) from None

    @cached_property
    def context(self) -> AttemptContext:
        """Digest of the whole configuration (T0)."""
        return AttemptContext(hashlib.sha256(bind(Label.CODED_MASK_CONFIGURATION, self.encode())).digest())

    @property
    def limb_bits(self) -> int:
        """Bits of a value in one element; sums over all clients stay in the field."""
        return (FIELD // self.population).bit_length() - 1

    @property
    def limbs(self) -> tuple[tuple[RingSegment, int], ...]:
        """Each segment, with the number of elements of one of its values."""
        rings = self.layout.require_rings()
        return tuple((segment, -(-segment.modulus_bits // self.limb_bits)) for segment in rings)

    def offset(self, segment: RingSegment, limbs: int) -> int:
        """Return the offset of each value: half of every limb, so that small values of either sign cause no carry."""
        middles = sum(1 << (self.limb_bits * limb - 1) for limb in range(1, limbs))
        return middles + (1 << (segment.modulus_bits - 1))

    @property
    def length(self) -> int:
        """Number of elements that one client masks: those of its values, and a 1 that counts it."""
        return sum(segment.length * count for segment, count in self.limbs) + 1

    @property
    def piece_length(self) -> int:
        return -(-self.length // (self.target - self.privacy))

    def require_subject(self, subject: Subject) -> None:
        """Refuse a sum with another subject. A model that arrives later is compared with the update's."""
        for name, mine, offered in (
            ("task", subject.task, self.task),
            ("round", subject.round_number, self.round_number),
            ("layout", subject.layout, self.layout),
            ("capacity or set of terms", subject.terms_digest, self.application_digest),
            ("model", subject.model_digest or self.model_digest, self.model_digest),
        ):
            if mine != offered:
                raise InvalidParameters(
                    f"the offer's {name} differs from this client's; offer what it trains for",
                    reason=Reason.BELOW_FLOOR,
                )
        require_capacity(self.population, subject.capacity)


# --- Messages ---------------------------------------------------------------------------------------------------------

_MAXIMUM_BYTES: Final = (1 << 32) - 1
Entries = Mapping[ClientId, bytes]


def encode_body(kind: MessageKind, configuration: Configuration, body: bytes) -> bytes:
    """Return a message of one field: a key, a masked input, or the sum of pieces."""
    return Writer(kind).fixed(configuration.context.digest, CONTEXT_BYTES).variable(body, _MAXIMUM_BYTES).finish()


def decode_body(kind: MessageKind, configuration: Configuration, message: bytes) -> bytes:
    """Decode a message of one field."""
    reader = _begun(kind, configuration, message)
    body = reader.variable(_MAXIMUM_BYTES)
    reader.finish()
    return body


def encode_entries(kind: MessageKind, configuration: Configuration, entries: Entries) -> bytes:
    """Return a message of one field per client: keys or sealed pieces; a set has only the clients."""
    writer = Writer(kind).fixed(configuration.context.digest, CONTEXT_BYTES).integer(len(entries), 4)
    for client in sorted(entries):
        writer.fixed(client.encode(), CLIENT_ID_BYTES).variable(entries[client], _MAXIMUM_BYTES)
    return writer.finish()


def decode_entries(kind: MessageKind, configuration: Configuration, message: bytes) -> dict[ClientId, bytes]:
    """Decode a message of entries, by increasing client."""
    reader = _begun(kind, configuration, message)
    count = reader.integer(4)
    if count > configuration.population:
        raise MalformedMessage("the message has more entries than there are clients", reason=Reason.LENGTH_OVER_LIMIT)
    entries, clients = dict[ClientId, bytes](), list[ClientId]()
    for _ in range(count):
        clients.append(ClientId(reader.integer(CLIENT_ID_BYTES)))
        entries[clients[-1]] = reader.variable(_MAXIMUM_BYTES)
    reader.finish()
    if clients != sorted(set(clients)):
        raise MalformedMessage("the entries' client ids must increase", reason=Reason.NOT_CANONICAL)
    return entries


def _begun(kind: MessageKind, configuration: Configuration, message: bytes) -> Reader:
    reader = Reader(message, kind)
    if reader.fixed(CONTEXT_BYTES) != configuration.context.digest:
        raise PeerMisbehaved("the message was made for another sum", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)
    return reader


def roster_digest(configuration: Configuration, keys: Entries) -> bytes:
    """Return the digest under which pieces are sealed: every client's key, in order."""
    parts = [part for client in sorted(keys) for part in (client.encode(), keys[client])]
    return hashlib.sha256(bind(Label.CODED_MASK_ROSTER, configuration.context.digest, *parts)).digest()


def sealing_info(roster: bytes, sender: ClientId, receiver: ClientId) -> bytes:
    """Return the context under which one piece is sealed."""
    return bind(Label.CODED_MASK_SEALING, roster, sender.encode(), receiver.encode())
