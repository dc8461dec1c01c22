"""Revealed sets against everything an observer could compute: all masks over tiny groups, linear algebra, attacks."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.graph import Graph, Topology, threshold_in
from secagg.protocols.pairwise_mask.recovery import Transcript, revealed_sets

Clients = frozenset[ClientId]
LARGEST_ENUMERATION = 1 << 14
KINDS = ("alive", "dropped", "corrupted")


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


def complete(*values: int) -> dict[int, set[int]]:
    return {value: set(values) - {value} for value in values}


def sets(*members: set[int]) -> frozenset[Clients]:
    return frozenset(clients(*values) for values in members)


@st.composite
def transcripts(draw: st.DrawFn, most: int) -> Transcript:
    """Draw a transcript in which any mask may be missing at one end and anything may be known."""
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
    """Enumerate all inputs and masks over the integers modulo 4, 3 or 2, and see which sums the view determines."""
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
    """Yield for each mask that the observer does not know the honest uploads that it stands in."""
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


def test_without_dropouts_only_the_sum_of_everyone_is_revealed() -> None:
    assert revealed_sets(transcript(complete(1, 2, 3, 4))) == sets({1, 2, 3, 4})


def test_after_recovery_of_the_dropped_only_the_sum_of_the_rest_is_revealed() -> None:
    everyone = complete(1, 2, 3, 4)
    uploads = {client: everyone[client] for client in (1, 2, 3)}
    assert revealed_sets(transcript(uploads, mask_roots={4})) == sets({1, 2, 3})
    assert revealed_sets(transcript(uploads)) == frozenset()


def test_a_late_upload_of_a_client_declared_dropped_is_hidden_by_its_self_mask() -> None:
    late = transcript(complete(1, 2, 3, 4), self_mask_seeds={1, 2, 3}, mask_roots={4})
    assert revealed_sets(late) == sets({1, 2, 3})


def test_both_secrets_of_one_client_reveal_its_input() -> None:
    both = transcript(complete(1, 2, 3, 4), mask_roots={4})
    assert revealed_sets(both) == sets({4}, {1, 2, 3})


def test_before_any_unmasking_nothing_is_revealed() -> None:
    assert revealed_sets(transcript(complete(1, 2, 3), self_mask_seeds=set())) == frozenset()
    assert revealed_sets(transcript({})) == frozenset()


def test_corrupted_clients_are_in_no_set_and_hold_nothing_together() -> None:
    path = {1: {2}, 2: {1, 3}, 3: {2, 4}, 4: {3}}
    assert revealed_sets(transcript(path)) == sets({1, 2, 3, 4})
    assert revealed_sets(transcript(path, corrupted={2})) == sets({1}, {3, 4})


def test_survivors_on_both_sides_of_a_gap_are_revealed_apart() -> None:
    ring = {place: {(place - 1) % 6, (place + 1) % 6} for place in range(6)}
    for place in (0, 3):
        del ring[place]
    assert revealed_sets(transcript(ring, mask_roots={0, 3})) == sets({1, 2}, {4, 5})


def test_known_seeds_of_single_edges_take_an_upload_apart() -> None:
    known = transcript(complete(1, 2, 3), edge_seeds={(1, 2), (1, 3)})
    assert revealed_sets(known) == sets({1}, {2, 3})


def test_a_mask_that_one_end_left_out_hides_the_other_end_and_joins_nobody() -> None:
    one_sided = transcript({1: {2}, 2: set(), 3: {4}, 4: {3}})
    assert revealed_sets(one_sided) == sets({2}, {3, 4})


def test_equal_ids_from_different_messages_are_one_client() -> None:
    seen = Transcript(
        masked_with={ClientId(1): clients(2), ClientId(2): clients(1)}, self_mask_seeds=clients(1) | clients(2)
    )
    assert revealed_sets(seen) == sets({1, 2})


def test_a_client_that_masks_with_itself_is_refused() -> None:
    with pytest.raises(Misuse, match="client/2 masks with itself"):
        transcript({1: {2}, 2: {1, 2}})


def test_an_edge_of_one_client_is_refused() -> None:
    with pytest.raises(Misuse, match="two clients"):
        Transcript(masked_with={}, edge_seeds=frozenset({clients(1)}))


# --- The split-proof threshold, from the server's side ----------------------------------------------------------------


def what_servers_learn(graph: Graph, window: int, threshold: int) -> Iterator[tuple[Clients, frozenset[Clients]]]:
    """Yield the honest survivors and what is revealed, for each choice of survivors and of corrupted clients.

    Everybody uploads, also those whom the server declares dropped. Holders who are not declared dropped give the one
    share that the survivors call for; corrupted holders give all that they hold. Of a half-window after an honest
    client and a disjoint one before an honest client, one has no more than ``window`` corrupted clients.
    """
    positions = range(graph.population)
    neighbours = [graph.neighbours(position) for position in positions]
    masked_with = {position: set(peers) for position, peers in enumerate(neighbours)}
    after = [{v for v in neighbours[u] if graph.sends_edge_seed(u, v)} for u in positions]
    before = [{v for v in neighbours[u] if graph.sends_edge_seed(v, u)} for u in positions]
    disjoint = [(u, v) for u in positions for v in positions if not after[u] & before[v]]
    for rest in product(KINDS, repeat=graph.population - 1):
        label = ("alive", *rest)
        bad = {position for position in positions if label[position] == "corrupted"}
        if any(min(len(after[u] & bad), len(before[v] & bad)) > window for u, v in disjoint if not {u, v} & bad):
            continue
        around = [len(bad & {*peers}) for peers in neighbours]
        giving = [sum(label[peer] != "dropped" for peer in peers) for peers in neighbours]
        opened = {position for position in positions if giving[position] >= threshold}
        taken = {position for position in positions if around[position] >= threshold}
        alive, dropped = ({position for position in positions if label[position] == kind} for kind in KINDS[:2])
        seen = transcript(
            masked_with,
            self_mask_seeds=opened & alive | taken,
            mask_roots=opened & dropped | taken,
            corrupted=bad,
        )
        yield clients(*alive), revealed_sets(seen)


@pytest.mark.parametrize("window", [0, 1])
def test_no_choice_of_survivors_reveals_less_than_the_sum_of_all_honest_ones(window: int) -> None:
    graph = Graph(Topology.SPARSE, 10, 4, bytes(32))
    threshold = threshold_in(SecurityMode.ACTIVE, 4, 0, window)
    learned = list(what_servers_learn(graph, window, threshold))
    assert all(revealed <= {survivors} for survivors, revealed in learned)
    assert any(revealed == {survivors} for survivors, revealed in learned if len(survivors) < 9)


def test_a_threshold_against_double_reveals_lets_a_server_choose_survivors_whose_sum_falls_apart() -> None:
    graph = Graph(Topology.SPARSE, 10, 4, bytes(32))
    # At t > (k + c) / 2 nobody's two secrets are both reconstructed.
    assert any(len(revealed) > 1 for _, revealed in what_servers_learn(graph, 1, threshold=3))


# --- A large graph ----------------------------------------------------------------------------------------------------


def test_a_large_sparse_graph_with_dropouts_reveals_one_sum() -> None:
    graph = Graph(Topology.SPARSE, 2000, 60, bytes(32))
    dropped = set(range(0, 2000, 20))
    uploads = {position: set(graph.neighbours(position)) for position in range(2000) if position not in dropped}
    assert revealed_sets(transcript(uploads, mask_roots=dropped)) == sets(set(uploads))
    hiding = min(uploads)
    assert revealed_sets(transcript(uploads, self_mask_seeds=set(uploads) - {hiding}, mask_roots=dropped)) == sets()
