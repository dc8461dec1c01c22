"""Groups with a session each: their released sums are added exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.conformance.sums import summed_aggregate
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import MAXIMUM_ENTRY, CodewordTable, Tables, require_summed
from secagg.contract.decoder import ideal_aggregate
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.scale.tree import MOST_IN_A_GROUP, divided, joined
from secagg.session.roles import Released

LAYOUT_CODEWORDS = 4
LAYOUT = Layout((RingSegment(8, 3), IndexSegment(LAYOUT_CODEWORDS, 2)))
CAPACITY = 9


def payload_of(client: int) -> Payload:
    generator = np.random.default_rng(client)
    return Payload(LAYOUT, (generator.integers(0, 256, 3, np.uint8), generator.integers(0, 4, 2, np.uint8)))


def released(*clients: int, layout: Layout = LAYOUT) -> Released:
    members = frozenset(map(ClientId, clients))
    aggregate = ideal_aggregate(LAYOUT, [payload_of(client) for client in clients])
    return Released(
        aggregate=replace(aggregate, layout=layout),
        counted=members,
        left_out={},
        revealed=frozenset({members}),
        unbounded=(0,),
    )


@given(clients=st.integers(2, 10**6), data=st.data())
def test_everybody_is_in_one_group_that_a_session_can_hold(clients: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(-(-clients // MOST_IN_A_GROUP), min(clients // LEAST_COHORT, 500)))
    parts = divided(clients, groups)
    assert len(parts) == groups
    assert (parts[0].start, parts[-1].stop) == (1, clients + 1)
    assert all(before.stop == after.start for before, after in pairwise(parts))
    sizes = [*map(len, parts)]
    assert LEAST_COHORT <= min(sizes) <= max(sizes) <= min(min(sizes) + 1, MOST_IN_A_GROUP)


@pytest.mark.parametrize(
    ("clients", "groups"), [(10, 0), (10, -1), (10, 6), (MOST_IN_A_GROUP + 1, 1), (3 * MOST_IN_A_GROUP + 1, 3), (1, 1)]
)
def test_a_group_too_small_or_too_large_for_a_session_is_refused(clients: int, groups: int) -> None:
    with pytest.raises(InvalidParameters, match=f"got {groups}"):
        divided(clients, groups)


@given(sizes=st.lists(st.integers(2, 3), min_size=1, max_size=3))
def test_the_sum_of_groups_is_that_of_all_and_what_was_revealed_is_each(sizes: list[int]) -> None:
    first, groups = 1, list[Released]()
    for size in sizes:
        groups.append(released(*range(first, first + size)))
        first += size
    total, due = joined(groups, LAYOUT, CAPACITY), ideal_aggregate(LAYOUT, [payload_of(c) for c in range(1, first)])
    assert all(np.array_equal(*pair) for pair in zip(total.aggregate.values, due.values, strict=True))
    assert (total.aggregate.contributors, total.aggregate.contributors) == (first - 1, first - 1)
    assert total.counted == {ClientId(number) for number in range(1, first)}
    assert total.revealed == {group.counted for group in groups}
    assert total.unbounded == (0,)


def test_a_client_of_two_groups_would_count_twice() -> None:
    with pytest.raises(InvalidParameters, match="client/2 is counted in two groups"):
        joined([released(1, 2), released(2, 3)], LAYOUT, CAPACITY)


def test_a_total_that_may_have_wrapped_is_refused() -> None:
    groups = [released(*range(1, 6)), released(*range(6, 10))]
    assert joined(groups, LAYOUT, 9).aggregate.contributors == 9
    with pytest.raises(CapacityExceeded, match="groups of 9 clients do not fit into a ring for 8"):
        joined(groups, LAYOUT, 8)


def test_sums_that_were_encoded_under_other_scales_are_not_added() -> None:
    other = Layout(LAYOUT.segments, bytes(31) + b"\1")
    with pytest.raises(InvalidParameters, match="has neither the layout of the updates"):
        joined([released(1, 2), released(3, layout=other)], LAYOUT, CAPACITY)


def table_of(data: st.DataObject, blocks: int) -> CodewordTable:
    width, least = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([-MAXIMUM_ENTRY, -8, -1, 0]))
    entries = data.draw(
        st.lists(st.integers(least, -least or 1), min_size=LAYOUT_CODEWORDS * width, max_size=LAYOUT_CODEWORDS * width)
    )
    return CodewordTable(blocks, np.array(entries, dtype=np.int64).reshape(LAYOUT_CODEWORDS, width))


def summed(group: Released, tables: Tables, heaviest: int) -> Released:
    """Return a group's release instead of histograms, in rings that just fit its heaviest sum."""
    return replace(group, aggregate=summed_aggregate(group.aggregate, tables, heaviest))


@given(sizes=st.lists(st.integers(2, 3), min_size=1, max_size=3), data=st.data())
def test_sums_of_codewords_of_groups_are_those_of_all(sizes: list[int], data: st.DataObject) -> None:
    tables: Tables = ((table_of(data, 1), table_of(data, 1)),)
    first, groups = 1, list[Released]()
    for size in sizes:
        group = released(*range(first, first + size))
        groups.append(summed(group, tables, data.draw(st.integers(size, 9))))
        first += size
    total = joined(groups, LAYOUT, CAPACITY, tables).aggregate
    require_summed(total.layout, LAYOUT, tables, total.contributors)
    plain = ideal_aggregate(LAYOUT, [payload_of(client) for client in range(1, first)])
    due = summed_aggregate(plain, tables, total.contributors)
    for mine, segment, right, other in zip(
        total.values, total.layout.require_rings(), due.values, due.layout.require_rings(), strict=True
    ):
        assert np.array_equal(segment.ring.lift(mine), other.ring.lift(right))


def test_a_sum_of_codewords_that_is_too_long_for_a_group_is_added_whole() -> None:
    """All clients chose the longest codeword, so that each group's ring is full."""
    one_index = Layout((IndexSegment(2, 1),))
    tables: Tables = ((CodewordTable(1, np.array([[0], [127]])),),)
    groups = list[Released]()
    for first in range(0, 9, 3):
        members = frozenset(map(ClientId, range(first, first + 3)))
        total = ideal_aggregate(one_index, [Payload(one_index, (np.array([1], np.uint8),))] * 3)
        group = Released(
            aggregate=total, counted=members, left_out={}, revealed=frozenset({members}), unbounded=tuple[int, ...]()
        )
        groups.append(summed(group, tables, 3))
    added = joined(groups, one_index, CAPACITY, tables).aggregate
    (segment,) = added.layout.require_rings()
    assert segment.ring.lift(added.values[0]).tolist() == [9 * 127]


def test_sums_of_other_codewords_and_of_counts_are_not_added_to_these() -> None:
    tables, others = (
        ((CodewordTable(2, np.arange(LAYOUT_CODEWORDS * 2).reshape(-1, 2) + shift),),) for shift in (0, 1)
    )
    plain, mine = released(1, 2), summed(released(3, 4), tables, 9)
    for stranger in (plain, summed(released(1, 2), others, 9)):
        with pytest.raises(InvalidParameters, match="nor that of sums of codewords"):
            joined([mine, stranger], LAYOUT, CAPACITY, tables)
    with pytest.raises(InvalidParameters, match="nor that of sums of codewords"):
        joined([mine], LAYOUT, CAPACITY)


def test_a_group_that_shows_one_client_is_not_added() -> None:
    alone, others = released(9), released(1, 2)
    for groups in ([others, alone], [replace(others, revealed=frozenset({frozenset({ClientId(1)})}))]):
        with pytest.raises(InvalidParameters, match="of 1 clients"):
            joined(groups, LAYOUT, CAPACITY)
