"""Configuration of one sum, shared by its parties, and the encoding of values as elements of the field."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import require_capacity
from secagg.errors import InvalidParameters, Reason
from secagg.fields import Message, choice, encoded, fixed, unsigned, variable
from secagg.identifiers import AttemptContext
from secagg.parameters import LEAST_COHORT, Suite
from secagg.wire import MessageKind

from .field import FIELD

if TYPE_CHECKING:
    from secagg.session.roles import Subject

DIGEST_BYTES: Final = 32
NONCE_BYTES: Final = 16
MAXIMUM_CLIENTS: Final = 1 << 10
_MAXIMUM_TASK_BYTES: Final = 256
_MAXIMUM_LAYOUT_BYTES: Final = 1 << 21


@dataclass(frozen=True, kw_only=True)
class Configuration(Message):
    """One sum: its subject, its clients, and how many may drop out or collude; the server's offer."""

    kind: ClassVar = MessageKind.CODED_MASK_OFFER
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    round_number: Annotated[int, unsigned(8)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    """Drawn by the server, so that nothing said in one attempt at a round is taken in another."""
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    application_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """As ``Subject.terms_digest`` has it."""
    suite: Annotated[Suite, choice(tuple(Suite))]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_LAYOUT_BYTES)]
    population: Annotated[int, unsigned(4)]
    """N: how many clients there are."""
    privacy: Annotated[int, unsigned(4)]
    """T: so many clients and the server learn nothing but the sum."""
    target: Annotated[int, unsigned(4)]
    """U: so many clients must stay to the end; N - U may drop out."""
    maximum_weight: Annotated[int, unsigned(4)] = 1

    def __post_init__(self) -> None:
        """Refuse thresholds that open nothing or protect nobody, and sums that leave the field."""
        for is_wrong, sentence in (
            (not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES, "a task has a name of 1 to 256 bytes"),
            (
                (len(self.nonce), len(self.model_digest), len(self.application_digest))
                != (NONCE_BYTES, DIGEST_BYTES, DIGEST_BYTES),
                "a nonce has 16 bytes, and a digest 32",
            ),
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
