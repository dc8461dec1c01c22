"""The masked vector of a session in pieces: a piece is added, and its masks taken off, from any coordinate on.

A piece is a run of the packed bytes, so a vector is the same whether it is cut or not. Pieces meet where the streams of
masks have a new segment, so that no part of a stream is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from secagg.contract import RingSegment
from secagg.contract.pieces import Sums
from secagg.crypto.mask_expansion import SEGMENT_BYTES, accumulate, segment_count
from secagg.crypto.ring import add_into, reduce_into
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Misuse, Reason

from .configuration import SessionConfiguration
from .masking import MaskedVector, SignedKey


@dataclass(frozen=True, slots=True)
class Part:
    """Coordinates of one segment, check words included, that stand in a piece; rounded values are packed apart."""

    segment: int
    start: int
    count: int
    first: int
    """Where the segment begins in every mask's stream."""
    is_rounded: bool
    bytes_sent: int


@dataclass(frozen=True)
class PairwiseCut:
    """A ``Cut``: public values alone, until it is given the keys of the masks that are left."""

    context: bytes
    configuration: SessionConfiguration

    @cached_property
    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each piece; neighbours share a piece while they fit into one segment of a mask's stream."""
        pieces, room = list[list[Part]](), 0
        for part in self._all_parts():
            size = part.count * self._segment(part).ring.word_bytes
            if size > room:
                pieces.append([])
                room = SEGMENT_BYTES
            pieces[-1].append(part)
            room -= size
        return tuple(map(tuple, pieces))

    def _all_parts(self) -> Iterable[Part]:
        first = 0
        for index, segment in enumerate(self.configuration.segments):
            words = self.configuration.check_words_of(segment)
            framed, step = segment.length + words, SEGMENT_BYTES // segment.ring.word_bytes
            # Check words of rounded values are packed by themselves, and are few.
            end = segment.length if segment.fine_bits else framed
            for start in range(0, end, step):
                count = min(step, end - start)
                yield Part(index, start, count, first, bool(segment.fine_bits), -(-count * segment.modulus_bits // 8))
            if segment.fine_bits:
                yield Part(index, end, words, first, is_rounded=False, bytes_sent=segment.ring.packed_bytes(words))
            first += segment_count(segment.ring, framed)

    def _segment(self, part: Part) -> RingSegment:
        return self.configuration.segments[part.segment]

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
        return [self._segment(part).ring.zeros(part.count) for part in self.parts[number]]

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
            reduce_into(vector, self._segment(part).ring.modulus_bits)

    def _unpacked(self, number: int, piece: bytes) -> Sums:
        if len(piece) != self.lengths[number]:
            reason = Reason.TRUNCATED if len(piece) < self.lengths[number] else Reason.TRAILING_BYTES
            raise MalformedMessage(f"a piece has {self.lengths[number]} bytes; got {len(piece)}", reason=reason)
        data, at, unpacked = memoryview(piece), 0, Sums()
        for part in self.parts[number]:
            packed, segment = data[at : at + part.bytes_sent], self._segment(part)
            if part.is_rounded:
                unpacked.append(RingSegment(segment.modulus_bits, part.count, segment.fine_bits).unpack_sent(packed))
            else:
                unpacked.append(segment.ring.unpack(packed, part.count))
            at += part.bytes_sent
        return unpacked

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Take the masks of some keys off a piece.

        Args:
            key: the keys, as ``keys_of`` writes them.
        """
        signed = _keys_in(key, self.configuration.suite.mask_key_bytes)
        try:
            for part, vector in zip(self.parts[number], total, strict=True):
                ring = self._segment(part).ring
                # What others added up has wrapped at a word and not at the modulus.
                reduce_into(vector, ring.modulus_bits)
                accumulate(
                    vector,
                    ring,
                    add=[secret for is_added, secret in signed if is_added],
                    subtract=[secret for is_added, secret in signed if not is_added],
                    start=part.start,
                    first_segment=part.first,
                )
        finally:
            for _, secret in signed:
                secret.wipe()
        return total

    def joined(self, pieces: Sequence[Sums]) -> MaskedVector:
        """Put all pieces together, for the checks of a whole sum."""
        whole = MaskedVector(self.configuration)
        for parts, sums in zip(self.parts, pieces, strict=True):
            for part, vector in zip(parts, sums, strict=True):
                whole.vectors[part.segment][part.start : part.start + part.count] = vector
        return whole


def keys_of(keys: Iterable[SignedKey]) -> bytearray:
    """Return keys as bytes: for each whether its mask is added, and itself; the caller overwrites them.

    Security: whoever has them can unmask the sum of the uploads, as the server can that recovered them.
    """
    written = bytearray()
    for is_added, key in keys:
        written.append(is_added)
        written += key.expose()
        key.wipe()
    return written


def _keys_in(written: bytes, size: int) -> list[SignedKey]:
    if len(written) % (size + 1):
        raise Misuse(f"a key has {size} bytes behind its sign")
    starts = range(0, len(written), size + 1)
    return [(bool(written[at]), Secret("mask_key", written[at + 1 : at + 1 + size])) for at in starts]
