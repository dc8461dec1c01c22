"""Configuration of one sum, shared by its parties, and the encoding of values as elements of the field."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import require_capacity
from secagg.errors import InvalidParameters, MalformedMessage, Reason, UnexpectedMessage
from secagg.identifiers import AttemptContext
from secagg.parameters import LEAST_COHORT, Suite
from secagg.wire import MessageKind, Reader, Writer

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
    """One sum: its subject, its clients, and how many may drop out or collude; the server's offer."""

    task: bytes
    round_number: int
    nonce: bytes
    """Drawn by the server, so that nothing said in one attempt at a round is taken in another."""
    model_digest: bytes
    application_digest: bytes
    """As ``Subject.terms_digest`` has it."""
    suite: Suite
    layout: Layout
    population: int
    """N: how many clients there are."""
    privacy: int
    """T: so many clients and the server learn nothing but the sum."""
    target: int
    """U: so many clients must stay to the end; N - U may drop out."""
    maximum_weight: int = 1

    def __post_init__(self) -> None:
        """Refuse thresholds that open nothing or protect nobody, and sums that leave the field."""
        for is_wrong, sentence in (
            (not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES, "a task has a name of 1 to 256 bytes"),
            (not LEAST_COHORT <= self.population <= MAXIMUM_CLIENTS, f"there are 2 to {MAXIMUM_CLIENTS} clients"),
            (
                self.privacy < 1 or not self.privacy + LEAST_COHORT <= self.target <= self.population,
                "1 <= privacy <= target - 2 < population",
            ),
            (not 1 <= self.maximum_weight < 1 << 20, "a weight is 1 to 2^20 - 1"),
        ):
            if is_wrong:
                raise InvalidParameters(f"the configuration is refused: {sentence}")
        self.layout.require_rings()
        self.layout.require_whole_steps()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer(MessageKind.CODED_MASK_OFFER).variable(self.task, _MAXIMUM_TASK_BYTES)
        writer.integer(self.round_number, 8).fixed(self.nonce, NONCE_BYTES)
        writer.fixed(self.model_digest, DIGEST_BYTES).fixed(self.application_digest, DIGEST_BYTES)
        writer.integer(list(Suite).index(self.suite), 1).variable(self.layout.encode(), _MAXIMUM_LAYOUT_BYTES)
        for number in (self.population, self.privacy, self.target, self.maximum_weight):
            writer.integer(number, 4)
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes) -> Configuration:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage, UnexpectedMessage: anything that ``encode`` would not have written.
        """
        reader = Reader(message, MessageKind.CODED_MASK_OFFER)
        task, number, nonce = reader.variable(_MAXIMUM_TASK_BYTES), reader.integer(8), reader.fixed(NONCE_BYTES)
        model, application, suite = reader.fixed(DIGEST_BYTES), reader.fixed(DIGEST_BYTES), reader.integer(1)
        layout, numbers = reader.variable(_MAXIMUM_LAYOUT_BYTES), [reader.integer(4) for _ in range(4)]
        reader.finish()
        try:
            return cls(task, number, nonce, model, application, list(Suite)[suite], Layout.decode(layout), *numbers)
        except (InvalidParameters, IndexError, UnexpectedMessage) as error:
            raise MalformedMessage(f"the offer is invalid: {error}", reason=Reason.NOT_CANONICAL) from None

    @cached_property
    def context(self) -> AttemptContext:
        """The digest of all this (T0)."""
        return AttemptContext(hashlib.sha256(bind(Label.CODED_MASK_CONFIGURATION, self.encode())).digest())

    @property
    def limb_bits(self) -> int:
        """Bits of a value that one element holds, so that the sum of the clients' stays in the field."""
        return (FIELD // self.population).bit_length() - 1

    @property
    def limbs(self) -> tuple[tuple[RingSegment, int], ...]:
        """Each segment, and how many elements one of its values takes."""
        rings = self.layout.require_rings()
        return tuple((segment, -(-segment.modulus_bits // self.limb_bits)) for segment in rings)

    def offset(self, segment: RingSegment, limbs: int) -> int:
        """Return the offset of each value: half of every limb, so that small values of either sign carry nowhere."""
        middles = sum(1 << (self.limb_bits * limb - 1) for limb in range(1, limbs))
        return middles + (1 << (segment.modulus_bits - 1))

    @property
    def length(self) -> int:
        """Number of elements that one client masks: those of its values, and its weight."""
        return sum(segment.length * count for segment, count in self.limbs) + 1

    @property
    def piece_length(self) -> int:
        """Number of elements of a piece."""
        return -(-self.length // (self.target - self.privacy))

    def require_subject(self, subject: Subject) -> None:
        """Refuse a sum about something else; a model that the client is sent later is compared with its update.

        Raises:
            InvalidParameters, CapacityExceeded: naming what differs.
        """
        for name, mine, offered in (
            ("task", subject.task, self.task),
            ("round", subject.round_number, self.round_number),
            ("layout", subject.layout, self.layout),
            ("capacity or set of terms", subject.terms_digest, self.application_digest),
            ("model", subject.model_digest or self.model_digest, self.model_digest),
        ):
            if mine != offered:
                raise InvalidParameters(
                    f"the offer is about another {name} than this client's; offer what it trains for",
                    reason=Reason.BELOW_FLOOR,
                )
        require_capacity(self.population * self.maximum_weight, subject.capacity)
