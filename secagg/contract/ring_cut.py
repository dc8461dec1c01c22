"""Vectors of ring elements in pieces, which meet where the streams of masks have a new segment.

A piece is a run of the packed bytes, so a vector is the same whether it is cut or not, and no part of a mask's stream
is made that is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from secagg.crypto.mask_expansion import SEGMENT_BYTES, segment_count
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.errors import MalformedMessage, Reason

from .layout import RingSegment
from .pieces import Sums


@dataclass(frozen=True, slots=True)
class Part:
    """Coordinates of one vector, check words included, that stand in a piece; rounded values are packed apart."""

    vector: int
    start: int
    count: int
    first: int
    """Where the vector begins in every mask's stream."""
    is_rounded: bool
    bytes_sent: int


@dataclass(frozen=True)
class RingCut:
    """A ``Cut`` of vectors whose masks are taken off elsewhere; public values alone."""

    context: bytes
    vectors: tuple[tuple[RingSegment, int], ...]
    """The segment of each vector, and how many check words stand behind its values."""

    @cached_property
    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each piece; neighbours share a piece while they fit into one segment of a mask's stream."""
        pieces, room = list[list[Part]](), 0
        for part in self._all_parts():
            size = part.count * self.segment_of(part).ring.word_bytes
            if size > room:
                pieces.append([])
                room = SEGMENT_BYTES
            pieces[-1].append(part)
            room -= size
        return tuple(map(tuple, pieces))

    def _all_parts(self) -> Iterable[Part]:
        first = 0
        for index, (segment, words) in enumerate(self.vectors):
            framed, step = segment.length + words, SEGMENT_BYTES // segment.ring.word_bytes
            # Check words of rounded values are packed by themselves, and are few.
            end = segment.length if segment.fine_bits else framed
            for start in range(0, end, step):
                count = min(step, end - start)
                yield Part(index, start, count, first, bool(segment.fine_bits), -(-count * segment.modulus_bits // 8))
            if segment.fine_bits and words:
                yield Part(index, end, words, first, is_rounded=False, bytes_sent=segment.ring.packed_bytes(words))
            first += segment_count(segment.ring, framed)

    def segment_of(self, part: Part) -> RingSegment:
        """Return the segment whose elements a part has."""
        return self.vectors[part.vector][0]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bytes of each piece."""
        return self._lengths

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sum(part.bytes_sent for part in piece) for piece in self.parts)

    def zeros(self, number: int, *, is_open: bool = False) -> Sums:
        """Return the empty sums of a piece; masked or not, they are of one form."""
        del is_open
        return [self.segment_of(part).ring.zeros(part.count) for part in self.parts[number]]

    def check(self, number: int, piece: bytes) -> None:
        """Refuse a piece that does not decode.

        Raises:
            MalformedMessage: the length differs, or filling bits are set.
        """
        self._unpacked(number, piece)

    def add(self, total: Sums, number: int, piece: bytes) -> None:
        """Add one client's coordinates.

        Raises:
            MalformedMessage: the length differs, or filling bits are set; nothing was added.
        """
        unpacked = self._unpacked(number, piece)
        for part, vector, summand in zip(self.parts[number], total, unpacked, strict=True):
            add_into(vector, summand)
            reduce_into(vector, self.segment_of(part).ring.modulus_bits)

    def _unpacked(self, number: int, piece: bytes) -> Sums:
        if len(piece) != self.lengths[number]:
            reason = Reason.TRUNCATED if len(piece) < self.lengths[number] else Reason.TRAILING_BYTES
            raise MalformedMessage(f"a piece has {self.lengths[number]} bytes; got {len(piece)}", reason=reason)
        data, at, unpacked = memoryview(piece), 0, Sums()
        for part in self.parts[number]:
            packed, segment = data[at : at + part.bytes_sent], self.segment_of(part)
            if part.is_rounded:
                unpacked.append(RingSegment(segment.modulus_bits, part.count, segment.fine_bits).unpack_sent(packed))
            else:
                unpacked.append(segment.ring.unpack(packed, part.count))
            at += part.bytes_sent
        return unpacked

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Return the sums of a piece under their masks; others have added them, and they wrapped at a word."""
        del key
        for part, vector in zip(self.parts[number], total, strict=True):
            reduce_into(vector, self.segment_of(part).ring.modulus_bits)
        return total

    def whole(self, pieces: Sequence[Sums]) -> list[RingVector]:
        """Put all pieces together."""
        vectors = [segment.ring.zeros(segment.length + words) for segment, words in self.vectors]
        for parts, sums in zip(self.parts, pieces, strict=True):
            for part, summed in zip(parts, sums, strict=True):
                vectors[part.vector][part.start : part.start + part.count] = summed
        return vectors
