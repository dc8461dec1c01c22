"""The open round counts: whether answers are enough is what a look at everybody says, and is asked for at no cost."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask.graph import Graph, Topology
from secagg.protocols.pairwise_mask.session import OpenRound


def message(position: int) -> bytes:
    return bytes([position % 256])


def members(*positions: int) -> dict[ClientId, int]:
    return {ClientId(1 + position): position for position in positions}


@given(st.data())
def test_counting_says_what_looking_says(data: st.DataObject) -> None:
    population = data.draw(st.integers(4, 14))
    topology = data.draw(st.sampled_from(Topology))
    degree = population - 1 if topology is Topology.FULL else 2 * data.draw(st.integers(1, (population - 1) // 2))
    graph = Graph(topology, population, degree, bytes(31) + bytes([data.draw(st.integers(0, 255))]))
    positions = st.lists(st.integers(0, population - 1), unique=True)
    present = tuple(sorted(data.draw(positions)))
    some = tuple(sorted({*present, *data.draw(positions)}))
    due: tuple[int, ...] | None = data.draw(st.sampled_from([(), None, some]))
    needed, threshold = data.draw(st.integers(0, population)), data.draw(st.integers(1, degree))
    opened = OpenRound(members(*present), message, needed=needed, due=due, threshold=threshold, graph=graph)
    assert dict(opened) == {client: message(position) for client, position in members(*present).items()}
    answered = set[int]()
    for position in data.draw(st.permutations(present)):
        answered.add(position)
        opened.count(ClientId(1 + position))
        around = answered if due is None else set(due)
        is_covered = all(len(answered.intersection(graph.neighbours(one))) >= threshold for one in around)
        if topology is Topology.FULL and due != ():
            # Of a full graph a number is asked for: whoever shows shares is somebody whose shares are shown.
            is_covered = len(answered) > threshold
        is_enough = len(answered) >= needed and is_covered
        assert opened.is_enough == is_enough


@pytest.mark.parametrize(("topology", "due"), [(Topology.FULL, None), (Topology.FULL, (1,)), (Topology.SPARSE, ())])
def test_nobodys_neighbours_are_looked_at_where_a_number_says_it_all(
    topology: Topology, due: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(topology, 5, 4 if topology is Topology.FULL else 2, bytes(32))
    opened = OpenRound(members(0, 1, 2, 3, 4), message, needed=2, due=due, threshold=2, graph=graph)
    monkeypatch.delattr(Graph, "neighbours")
    for position in range(5):
        opened.count(ClientId(1 + position))
    assert opened.is_enough


@pytest.mark.parametrize("due", [None, (0, 1, 2, 3, 4)])
def test_the_last_answer_around_a_client_may_come_before_or_after_its_own(due: tuple[int, ...] | None) -> None:
    graph = Graph(Topology.SPARSE, 5, 2, bytes(32))
    opened = OpenRound(members(0, 1, 2, 3, 4), message, needed=0, due=due, threshold=2, graph=graph)
    enough = list[bool]()
    for position in range(5):
        opened.count(ClientId(1 + position))
        enough.append(opened.is_enough)
    assert enough == [False, False, False, False, True]


@pytest.mark.parametrize("topology", Topology)
def test_ten_thousand_clients_ask_after_each_answer(topology: Topology) -> None:
    count = 10_000
    degree = count - 1 if topology is Topology.FULL else 120
    graph = Graph(topology, count, degree, bytes(32))
    everybody = tuple(range(count))
    opened = OpenRound(members(*everybody), message, needed=5_000, due=everybody, threshold=60, graph=graph)
    started = perf_counter()
    for position in everybody:
        opened.count(ClientId(1 + position))
        assert opened.is_enough in {True, False}
    assert opened.is_enough
    # A loop over all clients for each question takes minutes here.
    assert perf_counter() - started < 20
