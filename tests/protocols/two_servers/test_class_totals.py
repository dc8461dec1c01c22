"""One server's sums: one for each weight, multiplied when they are released, and wiped at the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.opened_upload import ClassTotals
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.indexing_rounds import indexing_configuration

ZERO, ONE = ServerId(0), ServerId(1)
LAYOUT = Layout((RingSegment(7, 4), IndexSegment(5, 3), RingSegment(64, 2), IndexSegment(6, 2)))
WEIGHTS = (1, 3, 64)


configuration = partial(indexing_configuration, layout=LAYOUT, maximum_cohort=20, weights=WEIGHTS)


MODES = {
    mode: configuration(mode=mode)
    for mode in (SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS)
}
CHECKED = MODES[SharingMode.CHECKED_POINT_FUNCTIONS]


def shares_of(made: IndexingConfiguration, number: int, seed: int) -> tuple[ServerShare, ServerShare]:
    """Share the indices (seed + block) modulo k of one segment."""
    segment = made.layout.segments[number]
    assert isinstance(segment, IndexSegment)
    indices = ((np.arange(segment.blocks) + seed) % segment.codewords).astype(segment.ring.word)
    return generate_shares(
        made.shape(segment), indices, context=bytes(32), client=ClientId(seed), coins=InsecureSeededCoins(bytes([seed]))
    )


def key(seed: int) -> Secret:
    return Secret("ring mask key", bytes([seed] * 16))


def vectors(seed: int) -> list[RingVector]:
    return [np.full(4, (seed * 50) % 128, dtype=np.uint8), np.full(2, (1 << 63) + seed, dtype=np.uint64)]


def added(
    made: IndexingConfiguration, uploads: Sequence[tuple[int, int]], *, threads: int = 1
) -> tuple[ClassTotals, ClassTotals]:
    """Return both servers' sums of uploads, each a seed and a weight; the rings of server 0 are masks."""
    totals = ClassTotals(made, ZERO, threads=threads), ClassTotals(made, ONE, threads=threads)
    for seed, weight in uploads:
        pairs = {number: shares_of(made, number, seed) for number, _ in made.index_segments}
        for index, total in enumerate(totals):
            total.add_shares(weight, {number: pair[index] for number, pair in pairs.items()})
        totals[0].add_masks(weight, key(seed))
        totals[1].add_vectors(weight, vectors(seed))
    return totals


def summed(made: IndexingConfiguration, totals: tuple[ClassTotals, ClassTotals], weights: Sequence[int]) -> list[Any]:
    """Add what both servers release, index segments as rows."""
    both = zip(made.layout.segments, totals[0].weighted(weights), totals[1].weighted(weights), strict=True)
    sums = list[Any]()
    for segment, left, right in both:
        if isinstance(segment, IndexSegment):
            made.group.add_into(left, right)
            made.group.reduce_into(left)
            sums.append(left.reshape(segment.blocks, segment.codewords).astype(int).tolist())
        else:
            sums.append([(int(a) + int(b)) % (1 << segment.modulus_bits) for a, b in zip(left, right, strict=True)])
    return sums


def expected(made: IndexingConfiguration, uploads: Sequence[tuple[int, int]], weights: Sequence[int]) -> list[Any]:
    """Compute the same with Python's integers, masks included."""
    masks = {seed: ClassTotals(made, ZERO) for seed, _ in uploads}
    for seed, one in masks.items():
        one.add_masks(1, key(seed))
    sums, place = list[Any](), 0
    for number, segment in enumerate(made.layout.segments):
        if isinstance(segment, IndexSegment):
            rows = [[0] * segment.codewords for _ in range(segment.blocks)]
            for seed, weight in uploads:
                for block, row in enumerate(rows):
                    row[(seed + block) % segment.codewords] += weight * (weight in weights)
            sums.append(rows)
            continue
        total = [0] * segment.length
        for seed, weight in uploads:
            mask = masks[seed].weighted([1])[number]
            for position in range(segment.length):
                part = int(vectors(seed)[place][position]) + int(mask[position])
                total[position] += weight * part * (weight in weights)
        sums.append([value % (1 << segment.modulus_bits) for value in total])
        place += 1
    return sums


uploads = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(WEIGHTS)), min_size=1, max_size=6)


@given(made=uploads, mode=st.sampled_from(sorted(MODES)), weights=st.sets(st.sampled_from(WEIGHTS), min_size=1))
@settings(max_examples=25, deadline=None)
def test_a_sum_is_over_the_classes_that_are_named_each_as_often_as_it_weighs(
    made: list[tuple[int, int]], mode: SharingMode, weights: set[int]
) -> None:
    chosen = MODES[mode]
    totals = added(chosen, made)
    assert summed(chosen, totals, sorted(weights)) == expected(chosen, made, sorted(weights))
    assert summed(chosen, totals, WEIGHTS) == expected(chosen, made, WEIGHTS), "asking changes nothing"


def test_what_is_left_out_is_nowhere_in_the_sum() -> None:
    """One client of another weight than all others would be in the remainders."""
    many = [(seed, 64) for seed in range(1, 5)]
    with_one = added(CHECKED, [*many, (9, 1)])
    without = added(CHECKED, many)
    for index in (0, 1):
        for value, other in zip(with_one[index].weighted([64]), without[index].weighted([64]), strict=True):
            np.testing.assert_array_equal(value, other)
    assert summed(CHECKED, with_one, [1, 64]) != summed(CHECKED, without, [64])


def test_what_is_released_is_nobodys_memory() -> None:
    totals = added(CHECKED, [(1, 1), (2, 1)])
    for value in totals[0].weighted([1]):
        value[:] = 0
    assert summed(CHECKED, totals, [1]) == expected(CHECKED, [(1, 1), (2, 1)], [1])


def test_vectors_are_as_many_as_ring_segments() -> None:
    totals = ClassTotals(CHECKED, ONE)
    for wrong in (vectors(1)[:1], [*vectors(1), *vectors(1)]):
        with pytest.raises(ValueError, match="zip"):
            totals.add_vectors(1, wrong)
