"""Groups with a session each: their released sums are added exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.contract.decoder import ideal_aggregate
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.scale.tree import MOST_IN_A_GROUP, divided, joined
from secagg.session.roles import Released

LAYOUT = Layout((RingSegment(8, 3), IndexSegment(4, 2)))
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
    ("clients", "groups"),
    [(10, 0), (10, -1), (10, 6), (MOST_IN_A_GROUP + 1, 1), (3 * MOST_IN_A_GROUP + 1, 3), (1, 1)],
)
def test_a_group_too_small_or_too_large_for_a_session_is_refused(clients: int, groups: int) -> None:
    with pytest.raises(InvalidParameters, match=f"got {groups}"):
        divided(clients, groups)


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_the_sum_of_groups_is_that_of_all_and_what_was_revealed_is_each(sizes: list[int]) -> None:
    first, groups = 1, list[Released]()
    for size in sizes:
        groups.append(released(*range(first, first + size)))
        first += size
    total, due = joined(groups, LAYOUT, CAPACITY), ideal_aggregate(LAYOUT, [payload_of(c) for c in range(1, first)])
    assert all(np.array_equal(*pair) for pair in zip(total.aggregate.values, due.values, strict=True))
    assert (total.aggregate.contributors, total.aggregate.total_weight) == (first - 1, first - 1)
    assert total.counted == {ClientId(number) for number in range(1, first)}
    assert total.revealed == {group.counted for group in groups}
    assert total.unbounded == (0,)


def test_a_client_of_two_groups_would_count_twice() -> None:
    with pytest.raises(InvalidParameters, match="client/2 was counted in two groups"):
        joined([released(1, 2), released(2, 3)], LAYOUT, CAPACITY)


def test_a_total_that_may_have_wrapped_is_refused() -> None:
    groups = [released(*range(1, 6)), released(*range(6, 10))]
    assert joined(groups, LAYOUT, 9).aggregate.total_weight == 9
    with pytest.raises(CapacityExceeded, match="a total weight of 9 do not fit into a ring for 8"):
        joined(groups, LAYOUT, 8)


def test_sums_that_were_encoded_under_other_scales_are_not_added() -> None:
    other = Layout(LAYOUT.segments, bytes(31) + b"\1")
    with pytest.raises(InvalidParameters, match="not in the layout of the updates"):
        joined([released(1, 2), released(3, layout=other)], LAYOUT, CAPACITY)
