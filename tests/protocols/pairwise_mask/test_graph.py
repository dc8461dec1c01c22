"""The graph compared with a second implementation, the uniformity of its draws, and all refusals."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, Misuse
from secagg.protocols.pairwise_mask.graph import MAXIMUM_POPULATION, Graph

SEED = bytes(range(32))


def full(population: int, seed: bytes = SEED) -> Graph:
    return Graph(Topology.FULL, population, population - 1, seed)


def sparse(population: int, degree: int, seed: bytes = SEED) -> Graph:
    return Graph(Topology.SPARSE, population, degree, seed)


seeds = st.binary(min_size=32, max_size=32)
sparse_graphs = st.integers(3, 60).flatmap(
    lambda population: st.builds(
        sparse, st.just(population), st.integers(1, (population - 1) // 2).map(lambda half: 2 * half), seeds
    )
)
graphs = sparse_graphs | st.builds(full, st.integers(2, 40), seeds)


# --- The definition, a second time ------------------------------------------------------------------------------------


def documented_words(label: Label, seed: bytes) -> Iterator[int]:
    stream = hashlib.shake_256(label.value + len(seed).to_bytes(4, "big") + seed).digest(1 << 20)
    return (int.from_bytes(stream[at : at + 4], "big") for at in range(0, len(stream), 4))


def documented_draw(words: Iterator[int], greatest: int) -> int:
    candidates = (word % (1 << len(f"{greatest:b}")) for word in words)
    return next(candidate for candidate in candidates if candidate <= greatest)


def documented_ring(population: int, seed: bytes) -> list[int]:
    words = documented_words(Label.GRAPH_PERMUTATION, seed)
    entries = list(range(population))
    for i in reversed(range(1, population)):
        j = documented_draw(words, i)
        entries[i], entries[j] = entries[j], entries[i]
    return entries


@given(sparse_graphs)
def test_a_sparse_graph_is_the_documented_ring_lattice(graph: Graph) -> None:
    ring = documented_ring(graph.population, graph.seed)
    for place, position in enumerate(ring):
        after = [ring[(place + step) % graph.population] for step in range(1, graph.degree // 2 + 1)]
        before = [ring[place - step] for step in range(1, graph.degree // 2 + 1)]
        assert graph.neighbours(position) == tuple(sorted(after + before))
        assert all(graph.sends_edge_seed(position, neighbour) for neighbour in after)
        assert not any(graph.sends_edge_seed(position, neighbour) for neighbour in before)


def test_a_stream_longer_than_its_first_piece_is_the_documented_one() -> None:
    graph = sparse(5000, 2)
    ring = documented_ring(5000, SEED)
    for place, position in enumerate(ring):
        assert graph.neighbours(position) == tuple(sorted((ring[place - 1], ring[(place + 1) % 5000])))


@given(st.integers(2, 200), seeds, st.data())
def test_a_committee_is_the_documented_draw(population: int, seed: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population - 1))
    words = documented_words(Label.COMMITTEE, seed)
    members: list[int] = []
    while len(members) < size:
        drawn = documented_draw(words, population - 1)
        members += [drawn] if drawn not in members else []
    assert full(population, seed).committee(size) == tuple(sorted(members))


# --- Neighbours and orientation ---------------------------------------------------------------------------------------


@given(graphs)
def test_neighbourhood_is_mutual_without_loops_and_has_the_degree(graph: Graph) -> None:
    lists = [graph.neighbours(position) for position in range(graph.population)]
    for position, neighbours in enumerate(lists):
        assert len(neighbours) == graph.degree
        assert list(neighbours) == sorted(set(neighbours) - {position})
        assert all(position in lists[neighbour] for neighbour in neighbours)


@given(graphs)
def test_of_two_neighbours_exactly_one_sends_and_everybody_sends_half(graph: Graph) -> None:
    for position in range(graph.population):
        neighbours = graph.neighbours(position)
        sent = [neighbour for neighbour in neighbours if graph.sends_edge_seed(position, neighbour)]
        received = [neighbour for neighbour in neighbours if graph.sends_edge_seed(neighbour, position)]
        assert sorted(sent + received) == list(neighbours)
        assert abs(len(sent) - len(received)) <= graph.degree % 2


@pytest.mark.parametrize("population", [2, 3, 4, 5, 8, 9])
def test_in_a_full_graph_the_positions_are_the_ring_and_the_lower_one_sends_across_it(population: int) -> None:
    graph = full(population)
    for position in range(population):
        for step in range(1, population):
            neighbour = (position + step) % population
            expected = position < neighbour if 2 * step == population else 2 * step < population
            assert graph.sends_edge_seed(position, neighbour) is expected


@given(graphs)
def test_a_holder_stands_at_its_place_among_the_dealers_neighbours(graph: Graph) -> None:
    for dealer in range(graph.population):
        points = [graph.point_of(holder, dealer) for holder in graph.neighbours(dealer)]
        assert points == list(range(1, graph.degree + 1))


@pytest.mark.parametrize("graph", [full(8), sparse(8, 2)], ids=["full", "sparse"])
def test_who_is_no_neighbour_holds_no_share(graph: Graph) -> None:
    strangers = set(range(8)) - set(graph.neighbours(0))
    for stranger in strangers:
        with pytest.raises(Misuse, match="are not neighbours"):
            graph.point_of(stranger, 0)


@pytest.mark.parametrize("graph", [sparse(24, 2), sparse(24, 4), sparse(24, 10), full(24)])
def test_members_that_masks_connect_are_in_one_part(graph: Graph) -> None:
    pairs = ({0, other} for other in range(1, 24))
    for members in ({*range(0, 24, 2)}, {*range(12)}, {*range(3)}, {*range(24)}, *pairs):
        parts = list[set[int]]()
        for member in members:
            reached = {member}.union(*(part for part in parts if part & {*graph.neighbours(member)}))
            parts = [*(part for part in parts if not part & reached), reached]
        assert sorted(map(sorted, graph.parts(members))) == sorted(map(sorted, parts))


def test_strangers_and_oneself_have_no_edge_to_send_on() -> None:
    graph = sparse(9, 4)
    for stranger in set(range(9)) - set(graph.neighbours(2)):
        with pytest.raises(Misuse, match="not neighbours"):
            graph.sends_edge_seed(2, stranger)
    with pytest.raises(Misuse, match="not neighbours"):
        full(4).sends_edge_seed(3, 3)


# --- The committee ----------------------------------------------------------------------------------------------------


def test_neighbourhoods_share_their_numbers() -> None:
    """Each of them would take four times the memory with numbers of its own, and many are kept."""
    graph = Graph(Topology.SPARSE, 2000, 64, SEED)
    first, second = graph.neighbours(1000), graph.neighbours(graph.neighbours(1000)[0])
    common = {*first} & {*second}
    assert common
    for number in common:
        assert first[first.index(number)] is second[second.index(number)]


def test_a_committee_of_the_population_is_everyone() -> None:
    assert full(7).committee(7) == sparse(7, 4).committee(7) == tuple(range(7))


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "population", "degree", "seed", "sentence"),
    [
        ("sparse", 10, 4, SEED, "topology"),
        (Topology.FULL, 1, 0, SEED, "population"),
        (Topology.FULL, True, 0, SEED, "population"),
        (Topology.FULL, 2.0, 1, SEED, "population"),
        (Topology.SPARSE, MAXIMUM_POPULATION + 1, 4, SEED, "population"),
        (Topology.FULL, 10, 8, SEED, "degree 9"),
        (Topology.FULL, 10, 10, SEED, "degree 9"),
        (Topology.SPARSE, 10, 5, SEED, "even degree"),
        (Topology.SPARSE, 10, 0, SEED, "even degree"),
        (Topology.SPARSE, 10, -2, SEED, "even degree"),
        (Topology.SPARSE, 10, 10, SEED, "even degree"),
        (Topology.SPARSE, 2, 2, SEED, "even degree"),
        (Topology.SPARSE, 10, 4.0, SEED, "degree must be an integer"),
        (Topology.FULL, 2, True, SEED, "degree must be an integer"),
        (Topology.SPARSE, 10, 4, SEED[:31], "32 bytes"),
        (Topology.SPARSE, 10, 4, SEED + b"\0", "32 bytes"),
        (Topology.SPARSE, 10, 4, bytearray(SEED), "32 bytes"),
        (Topology.FULL, 2, 1, b"", "32 bytes"),
    ],
)
def test_a_graph_that_is_none_is_refused(topology: Any, population: Any, degree: Any, seed: Any, sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        Graph(topology, population, degree, seed)


@pytest.mark.parametrize("position", [-1, 10, True, 1.0, None])
def test_a_position_outside_the_population_is_refused(position: Any) -> None:
    for graph in (sparse(10, 4), full(10)):
        with pytest.raises(Misuse, match=r"a position must be in 0\.\.9"):
            graph.neighbours(position)
        with pytest.raises(Misuse, match=r"a position must be in 0\.\.9"):
            graph.sends_edge_seed(position, 1)
        with pytest.raises(Misuse, match=r"a position must be in 0\.\.9"):
            graph.sends_edge_seed(1, position)


@pytest.mark.parametrize("size", [0, -1, 11, True, 3.0])
def test_a_committee_of_nobody_or_of_more_than_everyone_is_refused(size: Any) -> None:
    with pytest.raises(InvalidParameters, match=r"1\.\.10"):
        sparse(10, 4).committee(size)


def test_the_largest_population_is_accepted() -> None:
    assert len(full(MAXIMUM_POPULATION).committee(5)) == 5


@pytest.mark.parametrize("position", [-1, 10, True, 1.0])
def test_nobody_outside_the_population_holds_a_share_or_deals_one(position: Any) -> None:
    for graph in (sparse(10, 4), full(10)):
        for holder, dealer in ((position, 1), (1, position)):
            with pytest.raises(Misuse, match=r"a position must be in 0\.\.9"):
                graph.point_of(holder, dealer)
