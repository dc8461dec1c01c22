"""A tree of sums: what adds up, whom each sum protects, and every sum that is refused.

| attack or mistake | defence |
|---|---|
| a session of few clients among large ones shows these few | minimum cohort of every sum and every set that was shown |
| a client in two sums, which counts twice and is protected less | refused, naming it |
| one session without noise among sessions with noise | refused: its clients would not be protected |
| sums that leave 64 bits wrap around | refused before anything is added |
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import pytest

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.session.added_sums import MOST_CLIENTS, AddedSums, deal_out
from secagg.session.measured import Measured
from secagg.session.registry import find
from secagg.session.roles import LateUpdate, Released, Subject, Update
from secagg.session.run import run

LAYOUT = Layout((RingSegment(16, 3),))


def people(numbers: Iterable[int]) -> frozenset[ClientId]:
    return frozenset(map(ClientId, numbers))


def released(
    numbers: Iterable[int], values: list[int], layout: Layout = LAYOUT, shown: Iterable[Iterable[int]] | None = None
) -> Released:
    """Return what a session of these clients would release."""
    counted, ring = people(numbers), layout.require_rings()[0].ring
    vector = ring.from_integers(np.array(values))
    revealed = frozenset({counted}) if shown is None else frozenset(map(people, shown))
    return Released(
        aggregate=Aggregate(layout, (vector,), len(counted), len(counted)),
        counted=counted,
        left_out={},
        revealed=revealed,
        unbounded=(),
    )


def test_sums_are_added_as_integers_beyond_the_ring_of_one_session() -> None:
    added = AddedSums(LAYOUT, minimum_cohort=3)
    added.add(released(range(1, 4), [32_000, -5, 0]))
    added.add(released(range(4, 8), [32_000, -6, 1]))
    total = added.total()
    assert [value.tolist() for value in total.values] == [[64_000, -11, 1]]
    assert (total.sums, total.contributors, total.total_weight) == (2, 7, 7)
    assert (total.deviations, total.least_deviations) == ((), ())


def test_counts_of_indices_are_added() -> None:
    layout = Layout((IndexSegment(2, 1),))
    added = AddedSums(layout, minimum_cohort=2)
    for first, counts in ((1, [1, 1]), (3, [0, 2])):
        counted = people(range(first, first + 2))
        aggregate = Aggregate(layout, (np.array([counts], dtype=np.uint64),), 2, 2)
        added.add(
            Released(aggregate=aggregate, counted=counted, left_out={}, revealed=frozenset({counted}), unbounded=())
        )
    assert added.total().values[0].tolist() == [[1, 3]]


def test_noise_adds_up_in_the_total_and_protects_by_the_least_of_one_sum() -> None:
    added = AddedSums(LAYOUT, minimum_cohort=2)
    added.add(released((1, 2), [1, 1, 1]), (3.0,))
    added.add(released((3, 4), [1, 1, 1]), (4.0,))
    total = added.total()
    assert total.deviations == pytest.approx((sqrt(3.0**2 + 4.0**2),))
    assert total.least_deviations == (3.0,)


BAD: dict[str, tuple[Released, tuple[float, ...], type[Exception], str]] = {
    "too few": (released((8, 9), [0, 0, 0]), (), InvalidParameters, "of 2 clients, and 3 are insisted on"),
    "few shown": (
        released((8, 9, 10, 11), [0, 0, 0], shown=[(8, 9), (10, 11)]),
        (),
        InvalidParameters,
        "of 2 clients, and 3 are insisted on",
    ),
    "twice": (released((3, 8, 9), [0, 0, 0]), (), InvalidParameters, "client/3 is in two sums"),
    "noise in one": (released((7, 8, 9), [0, 0, 0]), (1.0,), InvalidParameters, "same noise in every session"),
    "more noise than segments": (released((7, 8, 9), [0, 0, 0]), (1.0, 1.0), Misuse, "one for each"),
    "another layout": (released((7, 8, 9), [0], Layout((RingSegment(16, 1),))), (), Misuse, "another layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_sum_that_does_not_belong_is_refused_and_changes_nothing(name: str) -> None:
    bad, noise, error, sentence = BAD[name]
    added = AddedSums(LAYOUT, minimum_cohort=3)
    added.add(released((1, 2, 3), [1, 2, 3]))
    with pytest.raises(error, match=sentence):
        added.add(bad, noise)
    total = added.total()
    assert (total.sums, total.contributors, total.values[0].tolist()) == (1, 3, [1, 2, 3])


def test_sums_that_leave_64_bits_are_refused() -> None:
    layout = Layout((RingSegment(63, 1),))
    added = AddedSums(layout, minimum_cohort=2)
    added.add(released((1, 2), [1], layout))
    added.add(released((3, 4), [1], layout))
    with pytest.raises(CapacityExceeded, match="narrower ring"):
        added.add(released((5, 6), [1], layout))
    assert added.total().values[0].tolist() == [2]


def test_nothing_comes_to_no_total_and_a_cohort_of_one_is_no_cohort() -> None:
    with pytest.raises(InvalidParameters, match="add one"):
        AddedSums(LAYOUT, minimum_cohort=2).total()
    with pytest.raises(InvalidParameters, match="at least 2"):
        AddedSums(LAYOUT, minimum_cohort=1)


@pytest.mark.parametrize(("clients", "most", "sizes"), [(10, 10, [10]), (11, 10, [6, 5]), (25, 10, [9, 8, 8])])
def test_clients_are_dealt_out_to_as_few_sessions_as_take_them(clients: int, most: int, sizes: list[int]) -> None:
    everybody = [ClientId(number) for number in range(clients)]
    dealt = deal_out(everybody, minimum_cohort=5, most=most)
    assert [len(session) for session in dealt] == sizes
    assert sorted(client for session in dealt for client in session) == everybody


@pytest.mark.parametrize("clients", [0, 3, 11])
def test_sessions_below_the_minimum_cohort_are_not_dealt(clients: int) -> None:
    with pytest.raises(InvalidParameters, match="invite more"):
        deal_out([ClientId(number) for number in range(clients)], minimum_cohort=6, most=10)


def test_one_client_too_many_for_two_sessions_makes_three() -> None:
    dealt = deal_out([ClientId(number) for number in range(20_001)], minimum_cohort=1_000)
    assert [len(session) for session in dealt] == [6_667, 6_667, 6_667]
    assert MOST_CLIENTS == 10_000


def sum_of(entry: Any, clients: list[ClientId]) -> Released:
    """Run one real session, in which everybody contributes its number."""
    subject = Subject(task=b"tree", round_number=1, layout=LAYOUT, capacity=100, model_digest=bytes(32))
    world = entry.simulate(entry.settings(), coins=SystemCoins(), clock=lambda: datetime.now(UTC))

    def update_of(client: ClientId) -> Update:
        vector = LAYOUT.require_rings()[0].ring.from_integers(np.array([client.value, 1, -1]))
        return Update(Payload(LAYOUT, (vector,)), bytes(32))

    session = Measured(world.open(subject, frozenset(clients)))
    members = [world.member(client).join(subject, LateUpdate(partial(update_of, client))) for client in clients]
    try:
        return run(session, members)
    finally:
        world.close()


@pytest.mark.parametrize("protocol", ["one-message", "pairwise"])
def test_real_sessions_add_up_to_the_sum_over_all_clients(protocol: str) -> None:
    everybody = [ClientId(number) for number in range(1, 13)]
    added = AddedSums(LAYOUT, minimum_cohort=6)
    for clients in deal_out(everybody, minimum_cohort=6, most=6):
        added.add(sum_of(find(protocol), clients))
    total = added.total()
    assert total.values[0].tolist() == [sum(range(1, 13)), 12, -12]
    assert total.contributors == 12
