"""Vectors in pieces: whatever widths and lengths are, pieces that are added and joined are the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import ring_cut
from secagg.contract.layout import RingSegment
from secagg.contract.pieces import Sums, pieces_of
from secagg.contract.ring_cut import RingCut
from secagg.crypto import mask_expansion
from secagg.crypto.mask_expansion import SEGMENT_BYTES, accumulate, segment_count
from secagg.crypto.ring import RingVector, add_into, low_bits, reduce_into
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage

SHORT = 64
"""Bytes of a stream's segment in most tests; of eight elements at least, as a real one."""
Framed = tuple[RingSegment, int]


@st.composite
def framed(draw: st.DrawFn) -> Framed:
    """Draw a segment that ends around the edge of a stream's segment, and how many check words follow it."""
    bits = draw(st.integers(1, 64))
    fine = draw(st.sampled_from((0, 0, 1, 4, 64 - bits)).filter(lambda fine: fine <= 64 - bits))
    step = SHORT // RingSegment(bits, 1, fine).ring.word_bytes
    length = step * draw(st.integers(0, 3)) + draw(st.integers(-9, 9))
    return RingSegment(bits, max(1, length), fine), draw(st.integers(0, 3))


def drawn(vectors: tuple[Framed, ...], seed: int) -> list[RingVector]:
    """Return what one client has masked: uniform elements."""
    generator = np.random.default_rng(seed)
    values = list[RingVector]()
    for segment, words in vectors:
        bits, count = segment.ring.modulus_bits, segment.length + words
        wide = generator.integers(0, low_bits(bits), count, dtype=np.uint64, endpoint=True)
        values.append(wide.astype(segment.ring.word))
    return values


def packed(vectors: tuple[Framed, ...], values: list[RingVector]) -> bytes:
    """Return what travels, in one run of bytes; check words behind rounded values are not rounded."""
    runs = list[bytes | memoryview]()
    for (segment, _), vector in zip(vectors, values, strict=True):
        if segment.fine_bits:
            runs += [segment.pack_sent(vector[: segment.length]), segment.ring.pack(vector[segment.length :])]
        else:
            runs.append(segment.ring.pack(vector))
    return b"".join(runs)


def counted(segment: RingSegment, vector: RingVector) -> RingVector:
    """Return what of a client's vector is added."""
    if not segment.fine_bits:
        return vector
    return np.concatenate([segment.rounded(vector[: segment.length]), vector[segment.length :]])


def merged(cut: RingCut, clients: list[bytes]) -> list[Sums]:
    """Add every other client apart, as two workers do, and open the sum of both, piece by piece."""
    opened = list[Sums]()
    for number in range(len(cut.lengths)):
        halves = [cut.zeros(number), cut.zeros(number)]
        for place, data in enumerate(clients):
            cut.add(halves[place % 2], number, pieces_of(data, cut.lengths)[number])
        for total, summand in zip(*halves, strict=True):
            add_into(total, summand)
        opened.append(cut.open(halves[0], number, b""))
    return opened


def is_whole(vectors: tuple[Framed, ...], joined: list[RingVector], clients: list[list[RingVector]]) -> bool:
    for index, (segment, _) in enumerate(vectors):
        due = segment.ring.sum((counted(segment, values[index]) for values in clients), joined[index].size)
        if not np.array_equal(joined[index], due) or joined[index].dtype != segment.ring.word:
            return False
    return True


@given(vectors=st.lists(framed(), min_size=1, max_size=4).map(tuple), clients=st.integers(1, 4))
def test_pieces_that_are_added_and_joined_are_the_whole(vectors: tuple[Framed, ...], clients: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ring_cut, "SEGMENT_BYTES", SHORT)
        patched.setattr(mask_expansion, "SEGMENT_BYTES", SHORT)
        cut = RingCut(bytes(32), vectors)
        values = [drawn(vectors, seed) for seed in range(clients)]
        sent = [packed(vectors, each) for each in values]
        # Every byte is in one piece: pieces are runs, one behind the other, to the end.
        assert sum(cut.lengths) == len(sent[0])
        assert min(cut.lengths) > 0
        assert is_whole(vectors, cut.whole(merged(cut, sent)), values)
        for parts in cut.parts:
            sizes = [part.count * cut.segment_of(part).ring.word_bytes for part in parts]
            assert sum(sizes) <= SHORT, "a worker would expand a second segment of each stream"
            for part, size in zip(parts, sizes, strict=True):
                start = part.start * cut.segment_of(part).ring.word_bytes
                assert start // SHORT == (start + size - 1) // SHORT or part.start >= cut.segment_of(part).length


@given(vectors=st.lists(framed(), min_size=1, max_size=3).map(tuple), data=st.data())
def test_a_piece_that_does_not_decode_is_refused_and_not_added(
    vectors: tuple[Framed, ...], data: st.DataObject
) -> None:
    """Any bytes of a piece's length: bits that fill a part's last byte are set, or it is added."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ring_cut, "SEGMENT_BYTES", SHORT)
        cut = RingCut(bytes(32), vectors)
        number = data.draw(st.integers(0, len(cut.lengths) - 1))
        length = cut.lengths[number]
        piece, total, at, is_filled = data.draw(st.binary(min_size=length, max_size=length)), cut.zeros(number), 0, True
        for part in cut.parts[number]:
            segment = cut.segment_of(part)
            bits = part.count * (segment if part.is_rounded else segment.ring).modulus_bits
            at += part.bytes_sent
            is_filled = is_filled and not piece[at - 1] >> 8 - (part.bytes_sent * 8 - bits)
        wrong = [piece[:-1], piece + b"\0", *([] if is_filled else [piece])]
        for each in wrong:
            with pytest.raises(MalformedMessage):
                cut.check(number, each)
            with pytest.raises(MalformedMessage):
                cut.add(total, number, each)
            assert not any(vector.any() for vector in total)
        if is_filled:
            cut.check(number, piece)
            cut.add(total, number, piece)


def test_a_piece_finds_its_masks_in_the_streams() -> None:
    """Real segments: masks that are taken off piece by piece are those of the whole vectors."""
    vectors = tuple(
        (segment, words)
        for segment, words in (
            (RingSegment(17, (SEGMENT_BYTES >> 2) - 1), 3),
            (RingSegment(5, SEGMENT_BYTES + 9), 0),
            (RingSegment(12, (SEGMENT_BYTES >> 1), 4), 2),
            (RingSegment(7, 3), 1),
        )
    )
    cut, first = RingCut(bytes(32), vectors), 0
    with Secret("mask_key", bytes(range(16))) as key:
        apart = [cut.zeros(number) for number in range(len(cut.lengths))]
        for parts, sums in zip(cut.parts, apart, strict=True):
            for part, vector in zip(parts, sums, strict=True):
                ring = cut.segment_of(part).ring
                accumulate(vector, ring, add=[key], subtract=[], start=part.start, first_segment=part.first)
        for (segment, words), joined in zip(vectors, cut.whole(apart), strict=True):
            due = segment.ring.zeros(segment.length + words)
            accumulate(due, segment.ring, add=[key], subtract=[], first_segment=first)
            first += segment_count(segment.ring, due.size)
            reduce_into(due, segment.ring.modulus_bits)
            assert np.array_equal(joined, due)
    starts = [part.start for parts in cut.parts for part in parts if part.vector == 1]
    assert [later - sooner for sooner, later in pairwise(starts)] == [SEGMENT_BYTES]
