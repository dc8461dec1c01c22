"""Layouts and payloads: the segments of an update, in order, and one client's values for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, cast

import numpy as np

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, RingVector, low_bits, round_off, subtract
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.parameters import LEAST_COHORT, require_integer
from secagg.wire import MessageKind, Reader, Writer

VERSION_BYTES: Final = 32
UNVERSIONED: Final = bytes(VERSION_BYTES)
MAXIMUM_SEGMENTS: Final = 1 << 16
MAXIMUM_LENGTH: Final = 1 << 40
LEAST_CODEWORDS: Final = 2
MAXIMUM_CODEWORDS: Final = 1 << 16
MAXIMUM_CONTRIBUTORS: Final = 1 << 47
"""Contributors of an aggregate; a histogram of MAXIMUM_CODEWORDS counters must add up without wrapping."""
DIGEST_BYTES: Final = 32
LARGEST_MASK_NOISE: Final = 64
"""Maximum error, in fine steps, from a mask that is not exactly uniform, such as a lattice mask."""


class _Tag(IntEnum):
    RING = 1
    INDEX = 2
    FINE_RING = 3
    ROWS = 4


@dataclass(frozen=True, slots=True)
class RingSegment:
    """A run of elements of Z_{2^modulus_bits}; the aggregate is their sum, coordinate by coordinate.

    With ``fine_bits`` f the elements are of Z_{2^(modulus_bits + f)}, and 2^f fine steps make a step. A client masks
    them in that ring, rounds the masked values to whole steps, and sends ``modulus_bits`` of each. Because the mask is
    uniform, so is the rounding error: between -1/2 and 1/2 step for every value. Only protocols with masks do this.
    """

    modulus_bits: int
    length: int
    fine_bits: int = 0
    ring: Ring = field(init=False, repr=False, compare=False)
    """Ring of the elements with their fine bits: in payloads, masks and aggregates."""
    sent_ring: Ring = field(init=False, repr=False, compare=False)
    """Ring of the uploaded values."""

    def __post_init__(self) -> None:
        sent, fine = Ring(self.modulus_bits), self.fine_bits
        if type(fine) is not int or not 0 <= fine <= MAXIMUM_MODULUS_BITS - self.modulus_bits:
            raise InvalidParameters(
                f"fine_bits must be in 0..{MAXIMUM_MODULUS_BITS - self.modulus_bits} with {self.modulus_bits} "
                f"modulus bits; got {fine!r}"
            )
        object.__setattr__(self, "sent_ring", sent)
        object.__setattr__(self, "ring", Ring(self.modulus_bits + fine) if fine else sent)
        _require_length("length", self.length)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one client's values in an upload."""
        return self.sent_ring.packed_bytes(self.length)

    @property
    def head_room(self) -> int:
        """Maximum error of rounding one masked value, in fine steps: half a step, and the error of the mask.

        A sum of N uploads stays in the ring if N (bound + head_room) does.
        """
        half = (1 << self.fine_bits) >> 1
        return half + min(half, LARGEST_MASK_NOISE)

    def rounded(self, masked: RingVector) -> RingVector:
        """Return masked values rounded to multiples of a step, in ``ring``."""
        nearest: RingVector = round_off(masked, self.ring.modulus_bits, self.fine_bits)
        return nearest

    def pack_sent(self, masked: RingVector) -> bytes | memoryview:
        """Return the wire bytes of masked values, rounded; without fine bits this may be a view of the vector."""
        if not self.fine_bits:
            return self.ring.pack_view(masked)
        return self.sent_ring.pack((self.rounded(masked) >> self.fine_bits).astype(self.sent_ring.word))

    def unpack_sent(self, data: bytes | bytearray | memoryview) -> RingVector:
        """Read what ``pack_sent`` wrote: rounded values, in ``ring``."""
        sent = self.sent_ring.unpack(data, self.length)
        if not self.fine_bits:
            return sent
        wide: Any = sent.astype(self.ring.word)
        shifted: RingVector = wide << self.fine_bits
        return shifted

    def unbiased(self, total: RingVector, roundings: int) -> RingVector:
        """Subtract from an unmasked sum the mean error of its roundings: half a fine step each."""
        if not self.fine_bits:
            return total
        bias = self.ring.word.type(roundings // 2 & low_bits(self.ring.modulus_bits))
        corrected: RingVector = subtract(total, bias, self.ring.modulus_bits)
        return corrected


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """A run of blocks, each an index into ``codewords``; the aggregate is a histogram for each block."""

    codewords: int
    blocks: int
    ring: Ring = field(init=False, repr=False, compare=False)
    """Ring with exactly the bits of one index; only packing uses it."""

    def __post_init__(self) -> None:
        if type(self.codewords) is not int or not LEAST_CODEWORDS <= self.codewords <= MAXIMUM_CODEWORDS:
            raise InvalidParameters(
                f"codewords must be an integer in {LEAST_CODEWORDS}..{MAXIMUM_CODEWORDS}; got {self.codewords!r}"
            )
        object.__setattr__(self, "ring", Ring((self.codewords - 1).bit_length()))
        _require_length("blocks", self.blocks)

    @property
    def length(self) -> int:
        """Number of indices of one client."""
        return self.blocks

    @property
    def payload_bytes(self) -> int:
        """Bytes of one client's indices on the wire."""
        return self.ring.packed_bytes(self.blocks)


@dataclass(frozen=True, slots=True)
class RowSegment(IndexSegment):
    """For each row of the preceding ring segment, 1 if the client touched it: it has a nonzero value.

    Rows that fewer than ``least`` clients touched are withheld; the aggregate marks the released ones. Only an enclave
    can withhold rows: in other protocols the server sees their sum, so those refuse this segment.
    """

    codewords: int = field(default=LEAST_CODEWORDS, init=False, repr=False)
    least: int = field(kw_only=True)

    def __post_init__(self) -> None:
        IndexSegment.__post_init__(self)
        require_integer("least", self.least, LEAST_COHORT, (1 << 32) - 1)


Segment = RingSegment | IndexSegment


@dataclass(frozen=True, slots=True)
class Layout:
    """The segments of an update, in order, and the version of its encoding; part of a session's configuration.

    The digest covers both, so everything bound to the layout (payloads, aggregates, a session's keys) is also bound to
    the scales, codebooks and seeds: values encoded under others cannot be summed or decoded with these.
    """

    segments: tuple[Segment, ...]
    version: bytes = UNVERSIONED
    """The digest of the public parameters under which values are encoded."""

    def __post_init__(self) -> None:
        kinds = (RingSegment, IndexSegment, RowSegment)
        if type(self.segments) is not tuple or any(type(segment) not in kinds for segment in self.segments):
            raise Misuse("a layout needs a tuple of RingSegment, IndexSegment and RowSegment")
        if type(self.version) is not bytes or len(self.version) != VERSION_BYTES:
            raise Misuse(f"a version must be {VERSION_BYTES} bytes; create it with public_parameters_digest")
        if not 1 <= len(self.segments) <= MAXIMUM_SEGMENTS:
            raise InvalidParameters(f"a layout must have 1 to {MAXIMUM_SEGMENTS} segments; got {len(self.segments)}")

    @property
    def payload_bytes(self) -> int:
        """Bytes of one client's values on the wire, without headers."""
        return sum(segment.payload_bytes for segment in self.segments)

    @property
    def digest(self) -> bytes:
        """The digest that sessions and payloads are bound to."""
        return hashlib.sha256(bind(Label.LAYOUT_DIGEST, self.encode())).digest()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer(MessageKind.LAYOUT).integer(len(self.segments), 4)
        for segment in self.segments:
            match segment:
                case RingSegment():
                    writer.integer(_Tag.FINE_RING if segment.fine_bits else _Tag.RING, 1)
                    writer.integer(segment.modulus_bits, 4).integer(segment.length, 8)
                    if segment.fine_bits:
                        writer.integer(segment.fine_bits, 1)
                case RowSegment():
                    writer.integer(_Tag.ROWS, 1).integer(segment.least, 4).integer(segment.blocks, 8)
                case IndexSegment():
                    writer.integer(_Tag.INDEX, 1).integer(segment.codewords, 4).integer(segment.blocks, 8)
        return writer.fixed(self.version, VERSION_BYTES).finish()

    @classmethod
    def decode(cls, message: bytes) -> Layout:
        """Decode the canonical encoding."""
        reader = Reader(message, MessageKind.LAYOUT)
        count = reader.integer(4)
        if count > MAXIMUM_SEGMENTS:
            raise MalformedMessage(
                f"a layout declares {count} segments, but the limit is {MAXIMUM_SEGMENTS}",
                reason=Reason.LENGTH_OVER_LIMIT,
            )
        try:
            segments = tuple(_decode_segment(reader) for _ in range(count))
            layout = cls(segments, reader.fixed(VERSION_BYTES))
        except InvalidParameters as error:
            raise MalformedMessage(f"the layout is invalid: {error}", reason=Reason.NOT_CANONICAL) from None
        reader.finish()
        return layout

    @property
    def ring_positions(self) -> tuple[int, ...]:
        """Positions of ring segments, whose values are not verified."""
        return tuple(place for place, segment in enumerate(self.segments) if isinstance(segment, RingSegment))

    def require_rings(self) -> tuple[RingSegment, ...]:
        """Return the segments if all are rings, for a protocol that can sum but not count."""
        for position, segment in enumerate(self.segments):
            if isinstance(segment, IndexSegment):
                raise InvalidParameters(
                    f"segment {position} contains indices, which this protocol cannot sum; choose a scheme without "
                    "codebooks, or a protocol with secure indexing"
                )
        return cast("tuple[RingSegment, ...]", self.segments)

    def require_whole_steps(self) -> None:
        """Refuse fine bits, for a protocol that does not round masked values."""
        for position, segment in enumerate(self.segments):
            if isinstance(segment, RingSegment) and segment.fine_bits:
                raise InvalidParameters(
                    f"segment {position} has {segment.fine_bits} fine bits, but this protocol does not round masked "
                    "values; choose a scheme without fine bits, or a protocol with masks: pairwise, enclave or "
                    "one-message"
                )


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """One client's values for each segment of a layout: ring elements, or indices."""

    layout: Layout
    values: tuple[RingVector, ...] = field(repr=False)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check every value against its segment; ``encode`` checks again, because arrays can change."""
        if len(self.values) != len(self.layout.segments):
            raise Misuse(f"a layout of {len(self.layout.segments)} segments got {len(self.values)} vectors")
        for segment, vector in zip(self.layout.segments, self.values, strict=True):
            segment.ring.require_vector(vector, segment.length)
            if not _indices_are_below(segment, vector):
                raise CapacityExceeded(
                    "an index is not below the number of codewords", reason=Reason.INPUT_OUT_OF_RANGE
                )

    def within(self, bounds: Sequence[tuple[int, int] | None]) -> Payload:
        """Return these values clamped to the bounds of each segment that has bounds."""
        values = list(self.values)
        for position, (segment, bound) in enumerate(zip(self.layout.segments, bounds, strict=False)):
            if bound is not None:
                clamped = np.clip(segment.ring.lift(values[position]), *bound)
                values[position] = segment.ring.from_integers(clamped)
        return Payload(self.layout, tuple(values))

    def encode(self) -> bytes:
        """Return the canonical encoding: the layout's digest, and each segment packed at its bits per value."""
        self.check()
        writer = Writer(MessageKind.PAYLOAD).fixed(self.layout.digest, DIGEST_BYTES)
        for segment, vector in zip(self.layout.segments, self.values, strict=True):
            writer.borrowed(segment.ring.pack_view(vector))
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes, layout: Layout) -> Payload:
        """Decode a payload of a known layout."""
        reader = Reader(message, MessageKind.PAYLOAD)
        require_digest(reader.fixed(DIGEST_BYTES), layout)
        packed = [reader.fixed(segment.ring.packed_bytes(segment.length)) for segment in layout.segments]
        reader.finish()
        values = list[RingVector]()
        for segment, data in zip(layout.segments, packed, strict=True):
            vector = segment.ring.unpack(data, segment.length)
            if not _indices_are_below(segment, vector):
                raise MalformedMessage("an index is not below the number of codewords", reason=Reason.NOT_CANONICAL)
            values.append(vector)
        return cls(layout, tuple(values))


def require_digest(digest: bytes, layout: Layout) -> None:
    """Refuse a message that was made for another layout."""
    if digest != layout.digest:
        raise MalformedMessage("the message has a different layout", reason=Reason.LAYOUT_MISMATCH)


def _decode_segment(reader: Reader) -> Segment:
    tag, first, second = reader.integer(1), reader.integer(4), reader.integer(8)
    match tag:
        case _Tag.RING:
            return RingSegment(first, second)
        case _Tag.FINE_RING:
            if not (fine_bits := reader.integer(1)):
                raise MalformedMessage("a segment of a fine ring must have fine bits", reason=Reason.NOT_CANONICAL)
            return RingSegment(first, second, fine_bits)
        case _Tag.INDEX:
            return IndexSegment(first, second)
        case _Tag.ROWS:
            return RowSegment(second, least=first)
        case _:
            raise MalformedMessage(f"{tag} is not the tag of a segment", reason=Reason.NOT_CANONICAL)


def _require_length(name: str, value: int) -> None:
    if type(value) is not int or not 1 <= value <= MAXIMUM_LENGTH:
        raise InvalidParameters(f"{name} must be an integer in 1..2^40; got {value!r}")


def _indices_are_below(segment: Segment, vector: RingVector) -> bool:
    if not isinstance(segment, IndexSegment) or segment.codewords >> segment.ring.word_bits:
        return True
    return int(vector.max()) < segment.codewords
