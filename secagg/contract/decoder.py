"""Aggregates, and the linear-decoder contract between compression and protocols.

A scheme encodes a model update as a ``Payload`` of a declared ``Layout``; a protocol sums many payloads to one
``Aggregate`` of the same layout; the scheme decodes the aggregate. Protocols do not depend on the scheme of a payload,
nor schemes on the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring, RingVector, low_bits
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.wire import MessageKind, Reader, Writer

from .layout import (
    DIGEST_BYTES,
    MAXIMUM_CONTRIBUTORS,
    IndexSegment,
    Layout,
    Payload,
    RingSegment,
    Segment,
    require_digest,
)

if TYPE_CHECKING:
    from .codewords import Tables

Histogram = npt.NDArray[np.uint64]
Update = TypeVar("Update")


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """The sum of a layout: ring sums and histograms, and the number of contributors."""

    layout: Layout
    values: tuple[RingVector | Histogram, ...] = field(repr=False)
    contributors: int

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the shapes, and that every histogram counts every contributor once."""
        if len(self.values) != len(self.layout.segments):
            raise Misuse(f"a layout of {len(self.layout.segments)} segments got {len(self.values)} sums")
        if type(self.contributors) is not int:
            raise Misuse("the number of contributors must be an integer")
        if not 1 <= self.contributors <= MAXIMUM_CONTRIBUTORS:
            raise InvalidParameters(f"contributors must be in 1..{MAXIMUM_CONTRIBUTORS}; got {self.contributors}")
        for segment, value in zip(self.layout.segments, self.values, strict=True):
            match segment:
                case RingSegment():
                    segment.ring.require_vector(value, segment.length)
                case IndexSegment():
                    _require_histogram(value, segment, self.contributors)

    def encode(self) -> bytes:
        """Return the canonical encoding; a histogram's counters have the bits of the number of contributors."""
        self.check()
        writer = Writer(MessageKind.AGGREGATE).fixed(self.layout.digest, DIGEST_BYTES).integer(self.contributors, 8)
        for segment, value in zip(self.layout.segments, self.values, strict=True):
            ring = _aggregate_ring(segment, self.contributors)
            writer.borrowed(ring.pack_view(value.reshape(-1).astype(ring.word, copy=False)))
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes, layout: Layout) -> Aggregate:
        """Decode an aggregate of a known layout."""
        reader = Reader(message, MessageKind.AGGREGATE)
        require_digest(reader.fixed(DIGEST_BYTES), layout)
        contributors = reader.integer(8)
        if not 1 <= contributors <= MAXIMUM_CONTRIBUTORS:
            raise MalformedMessage(f"an aggregate cannot have {contributors} contributors", reason=Reason.NOT_CANONICAL)
        rings = [_aggregate_ring(segment, contributors) for segment in layout.segments]
        lengths = [_aggregate_length(segment) for segment in layout.segments]
        packed = [reader.fixed(ring.packed_bytes(length)) for ring, length in zip(rings, lengths, strict=True)]
        reader.finish()
        values = list[RingVector | Histogram]()
        for segment, ring, length, data in zip(layout.segments, rings, lengths, packed, strict=True):
            flat = ring.unpack(data, length)
            values.append(flat if isinstance(segment, RingSegment) else _histogram(flat, segment))
        try:
            return cls(layout, tuple(values), contributors)
        except CapacityExceeded as error:
            raise MalformedMessage(f"the aggregate is invalid: {error}", reason=Reason.NOT_CANONICAL) from None


class LinearDecoder(Protocol[Update]):
    """Contract of a compression scheme: decoding the sum of payloads gives the sum of the decoded payloads.

    The law holds exactly in the integers, before the one multiplication by a float. An object is one scheme with one
    set of public parameters (scales, codebook, mask seed). Other parameters need another object, with another layout
    version, so an update encoded under old parameters cannot be decoded under new ones.
    """

    @property
    def layout(self) -> Layout:
        """Segments that ``encode`` produces, and the version, a digest of the public parameters."""
        ...

    @property
    def capacity(self) -> int:
        """Largest number of contributors whose sum cannot overflow any ring of the layout."""
        ...

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Compress one client's update; no value is refused. The coins only drive stochastic rounding."""
        ...

    def decode(self, aggregate: Aggregate) -> Update:
        """Return the sum of the contributors' updates.

        Raises:
            Misuse: the aggregate belongs to another layout.
            CapacityExceeded: there are more contributors than the capacity, so the sum may have overflowed a ring.
        """
        ...


class IndexedDecoder(LinearDecoder[Update], Protocol[Update]):
    """A linear decoder with tables for its indices, so that no histogram has to be released.

    A protocol sums the codewords that clients chose, and returns an aggregate in the layout that ``summed_layout``
    makes from ``layout`` and ``tables``.
    """

    @property
    def tables(self) -> Tables:
        """Codewords of each index segment as integers; the layout's version covers them."""
        ...

    def decode_summed(self, aggregate: Aggregate) -> Update:
        """Return the result of ``decode`` from sums of codewords instead of histograms."""
        ...


def encode_update(decoder: LinearDecoder[Update], update: Update, coins: Coins) -> Payload:
    """Encode an update by a scheme; refuse a payload whose layout the scheme did not declare."""
    payload = decoder.encode(update, coins)
    if payload.layout != decoder.layout:
        raise ContractViolation("a scheme's encode() returned a different layout from the declared one; fix it")
    return payload


def ideal_aggregate(layout: Layout, payloads: Sequence[Payload], times: Sequence[int] | None = None) -> Aggregate:
    """Return the aggregate that every protocol must compute, from payloads in the clear: the reference for tests.

    Args:
        times: number of clients that have each payload; by default one.
    """
    try:
        used = [1] * len(payloads) if times is None else [index(count) for count in times]
    except TypeError:
        raise Misuse("numbers of clients must be integers") from None
    if len(used) != len(payloads) or not payloads or min(used) < 1 or sum(used) > MAXIMUM_CONTRIBUTORS:
        raise InvalidParameters("pass at least one payload, each of at least one client, at most 2^47 clients")
    for payload in payloads:
        if payload.layout != layout:
            raise Misuse("a payload has a different layout; encode all payloads with one decoder object")
    values = tuple(
        _ideal_segment(segment, [payload.values[position] for payload in payloads], used)
        for position, segment in enumerate(layout.segments)
    )
    return Aggregate(layout, values, sum(used))


def public_parameters_digest(scheme: str, parameters: bytes) -> bytes:
    """Return the version of a layout: the digest of a scheme's name and canonically encoded parameters."""
    return hashlib.sha256(bind(Label.PUBLIC_PARAMETERS_DIGEST, scheme.encode(), parameters)).digest()


def _ideal_segment(segment: Segment, vectors: list[RingVector], times: list[int]) -> RingVector | Histogram:
    match segment:
        case RingSegment():
            modulus_mask, word = low_bits(segment.ring.modulus_bits), segment.ring.word.type
            repeated = (vector * word(count & modulus_mask) for vector, count in zip(vectors, times, strict=True))
            return segment.ring.sum(repeated, segment.length)
        case IndexSegment():
            histogram = np.zeros((segment.blocks, segment.codewords), dtype=np.uint64)
            rows = np.arange(segment.blocks)
            for vector, count in zip(vectors, times, strict=True):
                histogram[rows, vector] += np.uint64(count)
            return histogram


def _aggregate_ring(segment: Segment, contributors: int) -> Ring:
    return segment.ring if isinstance(segment, RingSegment) else Ring(contributors.bit_length())


def _aggregate_length(segment: Segment) -> int:
    return segment.length if isinstance(segment, RingSegment) else segment.blocks * segment.codewords


def _histogram(flat: RingVector, segment: IndexSegment) -> Histogram:
    return flat.astype(np.uint64).reshape(segment.blocks, segment.codewords)


def _require_histogram(value: npt.NDArray[Any], segment: IndexSegment, contributors: int) -> None:
    shape = (segment.blocks, segment.codewords)
    if type(value) is not np.ndarray or value.dtype != np.uint64 or value.shape != shape:
        raise Misuse(f"a histogram must be uint64 of shape {shape}; got a different {type(value).__name__}")
    if int(value.max()) > contributors or (value.sum(axis=1) != contributors).any():
        raise CapacityExceeded(
            f"a block's histogram does not add up to {contributors} contributors", reason=Reason.INPUT_OUT_OF_RANGE
        )


# --- Masked rounding in the clear -------------------------------------------------------------------------------------


def has_fine_bits(segment: Segment) -> bool:
    """Whether a segment's masked values are rounded."""
    return isinstance(segment, RingSegment) and bool(segment.fine_bits)


def rounded_payload(payload: Payload, coins: Coins) -> Payload:
    """Return a payload after masked rounding: values with fine bits are masked, rounded and unmasked.

    The reference for comparing protocols and schemes; it protects nothing.
    """
    pairs = zip(payload.layout.segments, payload.values, strict=True)
    return Payload(payload.layout, tuple(_rounded(segment, vector, coins) for segment, vector in pairs))


def unbiased_aggregate(total: Aggregate) -> Aggregate:
    """Subtract the mean rounding error of all contributors from a sum of rounded payloads."""
    values = tuple(
        segment.unbiased(vector, total.contributors) if isinstance(segment, RingSegment) else vector
        for segment, vector in zip(total.layout.segments, total.values, strict=True)
    )
    return Aggregate(total.layout, values, total.contributors)


def rounded_values(segment: RingSegment, vector: RingVector, coins: Coins) -> RingVector:
    """Return values after rounding under a mask from these coins; without fine bits, unchanged."""
    if not segment.fine_bits:
        return vector
    ring = segment.ring
    mask = np.frombuffer(coins.draw(segment.length * ring.word_bytes), ring.word)
    return ring.subtract(segment.rounded(ring.add(vector, mask)), mask)


def _rounded(segment: Segment, vector: RingVector, coins: Coins) -> RingVector:
    return rounded_values(segment, vector, coins) if isinstance(segment, RingSegment) else vector


# --- Capacity ---------------------------------------------------------------------------------------------------------


def capacity(bits: int, modulus_bits: int) -> int:
    """Return the largest number of ``bits``-bit codes whose sum cannot overflow the ring.

    A code is any integer in [-2^(bits-1), 2^(bits-1) - 1]. The bound is tight: with one more client and all at the
    lower end, the sum overflows.
    """
    Ring(modulus_bits)
    if type(bits) is not int or not 1 <= bits <= modulus_bits:
        raise InvalidParameters(f"codes of {bits} bits do not fit a ring of {modulus_bits}; choose a wider ring")
    return 1 << (modulus_bits - bits)


def capacity_between(least: int, greatest: int, modulus_bits: int) -> int:
    """Return the largest number of codes in [least, greatest] whose sum cannot overflow the ring; tight.

    Claim RI-4: within this number a lifted sum is exact.
    """
    ring = Ring(modulus_bits)
    if type(least) is not int or type(greatest) is not int or not least <= 0 <= greatest or least == greatest:
        raise InvalidParameters(f"codes must be from a range of integers with zero; got {least}..{greatest}")
    bounds = [limit // bound for limit, bound in ((ring.least, least), (ring.greatest, greatest)) if bound]
    return min(bounds)
