"""Revealed sets compared with all that an observer can compute: masks over tiny groups, linear algebra, attacks."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.protocols.pairwise_mask.recovery import Transcript, revealed_sets

Clients = frozenset[ClientId]
LARGEST_ENUMERATION = 1 << 14


def clients(*values: int) -> Clients:
    return frozenset(map(ClientId, values))


def transcript(
    masked_with: dict[int, set[int]],
    *,
    self_mask_seeds: set[int] | None = None,
    mask_roots: set[int] | None = None,
    edge_seeds: set[tuple[int, int]] | None = None,
    corrupted: set[int] | None = None,
) -> Transcript:
    """Write a transcript in numbers; the observer knows every self mask unless told otherwise."""
    return Transcript(
        masked_with={ClientId(client): clients(*peers) for client, peers in masked_with.items()},
        self_mask_seeds=clients(*(masked_with if self_mask_seeds is None else self_mask_seeds)),
        mask_roots=clients(*(mask_roots or ())),
        edge_seeds=frozenset(clients(*edge) for edge in edge_seeds or ()),
        corrupted=clients(*(corrupted or ())),
    )


def sets(*members: set[int]) -> frozenset[Clients]:
    return frozenset(clients(*values) for values in members)


@st.composite
def transcripts(draw: st.DrawFn, most: int) -> Transcript:
    """Draw a transcript in which any mask may be missing at one end, and any value may be known."""
    everyone = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=most, unique=True).map(sorted))
    subset = st.sets(st.sampled_from(everyone))
    mostly_nobody = st.just(set[int]()) | subset
    mostly_everyone = st.just(set(everyone)) | subset
    masked_with = {client: draw(mostly_everyone) - {client} for client in sorted(draw(mostly_everyone))}
    edges: list[tuple[int, int]] = list(combinations(everyone, 2))
    return transcript(
        masked_with,
        self_mask_seeds=draw(mostly_everyone),
        mask_roots=draw(mostly_nobody),
        edge_seeds=draw(st.sets(st.sampled_from(edges))) if edges else None,
        corrupted=draw(mostly_nobody),
    )


def unions(parts: frozenset[Clients]) -> set[Clients]:
    return {
        frozenset[ClientId]().union(*chosen)
        for size in range(1, len(parts) + 1)
        for chosen in combinations(sorted(parts, key=sorted), size)
    }


# --- Against every mask over tiny groups ------------------------------------------------------------------------------


def sums_that_every_view_determines(seen: Transcript) -> set[Clients]:
    """Enumerate all inputs and masks over the integers modulo 4, 3 or 2, and find the sums that the view determines."""
    contributors = sorted(seen.masked_with)
    pairs = sorted({tuple(sorted((client, peer))) for client in contributors for peer in seen.masked_with[client]})
    unknowns = 2 * len(contributors) + len(pairs)
    modulus = next(q for q in (4, 3, 2) if q**unknowns <= LARGEST_ENUMERATION or q == 2)
    values = np.indices((modulus,) * unknowns, dtype=np.int64).reshape(unknowns, modulus**unknowns)
    inputs = dict(zip(contributors, values, strict=False))
    self_masks = dict(zip(contributors, values[len(contributors) :], strict=False))
    pairwise = dict(zip(pairs, values[2 * len(contributors) :], strict=True))

    view = [inputs[client] for client in contributors if client in seen.corrupted]
    view += [self_masks[client] for client in contributors if client in seen.self_mask_seeds | seen.corrupted]
    view += [
        pairwise[pair]
        for pair in pairs
        if not (seen.mask_roots | seen.corrupted).isdisjoint(pair) or frozenset(pair) in seen.edge_seeds
    ]
    for client in contributors:
        upload = inputs[client] + self_masks[client]
        for peer in seen.masked_with[client]:
            upload = upload + pairwise[min(client, peer), max(client, peer)] * (1 if client < peer else -1)
        view.append(upload % modulus)
    code = np.zeros(values.shape[1], dtype=np.int64)
    for coordinate in view:
        code = code * modulus + coordinate
    different_views = len(np.unique(code))

    honest = [client for client in contributors if client not in seen.corrupted]
    revealed = set[Clients]()
    for size in range(1, len(honest) + 1):
        for chosen in combinations(honest, size):
            total = sum(inputs[client] for client in chosen) % modulus
            if len(np.unique(code * modulus + total)) == different_views:
                revealed.add(frozenset(chosen))
    return revealed


@given(transcripts(most=4).filter(lambda seen: 2 ** unknown_count(seen) <= LARGEST_ENUMERATION))
def test_exactly_the_unions_of_revealed_sets_have_sums_that_a_view_determines(seen: Transcript) -> None:
    assert unions(revealed_sets(seen)) == sums_that_every_view_determines(seen)


def unknown_count(seen: Transcript) -> int:
    pairs = {frozenset((client, peer)) for client, peers in seen.masked_with.items() for peer in peers}
    return 2 * len(seen.masked_with) + len(pairs)


# --- Against linear algebra -------------------------------------------------------------------------------------------


def unknown_masks(seen: Transcript) -> Iterator[Clients]:
    """Yield, for each mask unknown to the observer, the honest uploads that contain it."""
    honest = [client for client in seen.masked_with if client not in seen.corrupted]
    for client in honest:
        if client not in seen.self_mask_seeds:
            yield frozenset((client,))
    ends = {frozenset((client, peer)) for client in honest for peer in seen.masked_with[client]}
    for pair in ends - seen.edge_seeds:
        if pair.isdisjoint(seen.mask_roots | seen.corrupted):
            yield frozenset(client for client in pair & set(honest) if pair - {client} <= seen.masked_with[client])


def rank_modulo_2(rows: list[int]) -> int:
    pivots = dict[int, int]()
    for vector in rows:
        rest = vector
        while rest and rest.bit_length() in pivots:
            rest ^= pivots[rest.bit_length()]
        if rest:
            pivots[rest.bit_length()] = rest
    return len(pivots)


@given(transcripts(most=14))
def test_revealed_sets_span_all_that_cancels_the_unknown_masks(seen: Transcript) -> None:
    honest = [client for client in seen.masked_with if client not in seen.corrupted]
    rows = [sum(1 << honest.index(client) for client in stands_in) for stands_in in unknown_masks(seen)]
    revealed = revealed_sets(seen)
    assert sum(map(len, revealed)) == len(frozenset[ClientId]().union(*revealed)) <= len(honest)
    assert all(len(stands_in & members) in {0, 2} for members in revealed for stands_in in unknown_masks(seen))
    assert len(revealed) == len(honest) - rank_modulo_2(rows)


# --- Single cases -----------------------------------------------------------------------------------------------------


def test_a_client_that_masks_with_itself_is_refused() -> None:
    with pytest.raises(Misuse, match="client/2 is among its own peers"):
        transcript({1: {2}, 2: {1, 2}})


def test_an_edge_of_one_client_is_refused() -> None:
    with pytest.raises(Misuse, match="two clients"):
        Transcript(masked_with={}, edge_seeds=frozenset({clients(1)}))


def test_an_upload_of_which_every_mask_is_known_is_revealed_alone() -> None:
    """As by a server that recovers the root of a client whose upload it has."""
    uploads = {1: {2, 3}, 2: {1, 3}, 3: {1, 2}}
    assert revealed_sets(transcript(uploads, mask_roots={1})) == sets({1}, {2, 3})
    assert revealed_sets(transcript(uploads, mask_roots={1}, self_mask_seeds={2, 3})) == sets({2, 3})


@given(st.data())
def test_the_parts_of_a_graph_are_the_sets_whose_sums_its_contributors_reveal(data: st.DataObject) -> None:
    population = data.draw(st.integers(4, 16))
    topology = data.draw(st.sampled_from(Topology))
    degree = population - 1 if topology is Topology.FULL else 2 * data.draw(st.integers(1, (population - 1) // 2))
    graph = Graph(topology, population, degree, data.draw(st.binary(min_size=32, max_size=32)))
    members = data.draw(st.sets(st.integers(0, population - 1)))
    uploads = {position: set(graph.neighbours(position)) for position in members}
    revealed = revealed_sets(transcript(uploads, mask_roots=set(range(population)) - members))
    assert sets(*map(set, graph.parts(members))) == revealed | (set() if members else sets(set()))


# --- A large graph ----------------------------------------------------------------------------------------------------


def test_a_large_sparse_graph_with_dropouts_reveals_one_sum() -> None:
    graph = Graph(Topology.SPARSE, 2000, 60, bytes(32))
    dropped = set(range(0, 2000, 20))
    uploads = {position: set(graph.neighbours(position)) for position in range(2000) if position not in dropped}
    assert revealed_sets(transcript(uploads, mask_roots=dropped)) == sets(set(uploads))
    hiding = min(uploads)
    assert revealed_sets(transcript(uploads, self_mask_seeds=set(uploads) - {hiding}, mask_roots=dropped)) == sets()
