"""Thresholds compared with exact fractions, a table, an exhaustive search on small rings, and refusals."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial
from itertools import accumulate, combinations, product
from math import comb, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.errors import InvalidParameters
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.graph import (
    MAXIMUM_BITS,
    MAXIMUM_POPULATION,
    Graph,
    corrupted_in_window,
    corrupted_neighbours,
    least_privacy_bits,
    least_threshold,
    log_tail,
    require_committee,
    threshold_in,
)
from secagg.protocols.pairwise_mask.plan import (
    LARGEST_SEARCHED,
    LARGEST_WHOLE_COMMITTEE,
    Assumptions,
    Committee,
    Neighbourhood,
    PairwiseOptions,
    find_committee,
    find_neighbourhood,
    graph_parameters,
)

FULL, SPARSE = Topology.FULL, Topology.SPARSE
SEMI_HONEST, ACTIVE = SecurityMode.SEMI_HONEST, SecurityMode.ACTIVE


# --- Exact probabilities ----------------------------------------------------------------------------------------------


def exact_tail(least: int, total: int, marked: int, drawn: int) -> Fraction:
    ways = sum(comb(marked, x) * comb(total - marked, drawn - x) for x in range(max(least, 0), min(marked, drawn) + 1))
    return Fraction(ways, comb(total, drawn))


def exact_cut(population: int, absent: int, degree: int) -> Fraction:
    """Bound the probability that two runs of half a degree are absent, as B!/(B-k)! (n-k)!/n! over pairs of gaps."""
    bound = Fraction(population * (population - degree - 1), 2)
    for step in range(degree):
        bound *= Fraction(absent - step, population - step)
    return bound


def exact_corrupted(population: int, corrupted: int, degree: int, bits: int) -> int:
    allowed = Fraction(1, 2 ** (bits + 1) * population)
    return next(c for c in range(degree + 1) if exact_tail(c + 1, population - 1, corrupted, degree) <= allowed)


def exact_window(population: int, corrupted: int, degree: int, bits: int) -> int:
    pairs, allowed = Fraction(population * (population - degree + 1), 2), Fraction(1, 2 ** (bits + 1))
    return next(
        h
        for h in range(degree // 2 + 1)
        if 2 * (h + 1) > min(corrupted, population)
        or pairs * exact_tail(h + 1, population - 1, min(corrupted, population - 1), degree // 2) ** 2 <= allowed
    )


def exact_neighbourhood(assumed: Assumptions, mode: SecurityMode) -> tuple[int, int, int, int] | None:
    n, privacy = assumed.population, assumed.privacy_bits
    for k in range(2, n, 2):
        c, h = exact_corrupted(n, assumed.corrupted, k, privacy), exact_window(n, assumed.corrupted, k, privacy)
        t = max(k // 2 + h + 1, (k + c) // 2 + 1) if mode is ACTIVE else c + 1
        t = max(2, t)
        connected = exact_cut(n, assumed.corrupted + assumed.dropped, k) <= Fraction(1, 2 ** (privacy + 1))
        lost = 1 - exact_tail(t, n - 1, n - 1 - assumed.dropped, k)
        if connected and t <= k and n * lost <= Fraction(1, 2**assumed.correctness_bits):
            return k, t, c, h
    return None


def exact_committee(assumed: Assumptions) -> tuple[int, int, int] | None:
    n, allowed = assumed.population, Fraction(1, 2 ** (assumed.privacy_bits + 1))
    for q in range(n if n <= LARGEST_WHOLE_COMMITTEE else 3, n + 1):
        c = next(c for c in range(q + 1) if exact_tail(c + 1, n, assumed.corrupted, q) <= allowed)
        quorum = next(t for t in range(q + 2) if 2 * t > q + c)
        lost = 1 - exact_tail(quorum, n, n - assumed.dropped, q)
        if quorum <= q and lost <= Fraction(1, 2**assumed.correctness_bits):
            return q, quorum, c
    return None


@st.composite
def assumptions(draw: st.DrawFn, most: int = 300, fraction: float = 0.4) -> Assumptions:
    population = draw(st.integers(2, most))
    counts = st.integers(0, int((population - 1) * fraction))
    bits = st.integers(1, 60)
    return Assumptions(
        population=population,
        corrupted=draw(counts),
        dropped=draw(counts),
        privacy_bits=draw(bits),
        correctness_bits=draw(bits),
    )


# --- The finders ------------------------------------------------------------------------------------------------------

# Degree and threshold: in semi_honest mode, and in active mode at 40 and at 100 bits.
TABLE = [
    (100, "0.05", "0.05", (12, 6), (16, 11), (16, 11)),
    (300, "0.05", "0.05", (26, 14), (42, 29), (42, 29)),
    (1000, "0.05", "0.05", (34, 18), (64, 45), (88, 66)),
    (1000, "0.1", "0.1", (52, 28), (124, 86), (162, 118)),
    (10**4, "0.05", "0.05", (38, 21), (80, 56), (108, 80)),
    (10**4, "0.1", "0.1", (60, 32), (154, 106), (210, 152)),
    (10**4, "0.2", "0.1", (90, 55), (232, 170), (320, 244)),
    (10**4, "0.1", "0.3", (126, 48), (1002, 598), (1254, 764)),
    (10**5, "0.05", "0.05", (40, 22), (86, 60), (118, 87)),
    (10**6, "0.05", "0.05", (44, 24), (96, 67), (126, 93)),
]
Row = tuple[int, str, str, tuple[int, int], tuple[int, int], tuple[int, int]]


def assumed_of(population: int, corrupted: str, dropped: str, privacy_bits: int = 100) -> Assumptions:
    """Take the fractions of a population, rounded down."""
    assumed, gone = (int(Fraction(part) * population) for part in (corrupted, dropped))
    return Assumptions(population=population, corrupted=assumed, dropped=gone, privacy_bits=privacy_bits)


def assumed_in(row: Row, bits: int) -> Assumptions:
    return assumed_of(*row[:3], privacy_bits=bits)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(map(str, row[:3])))
def test_the_table_of_the_design_is_reproduced(row: Row) -> None:
    found = [find_neighbourhood(assumed_in(row, 40), mode) for mode in (SEMI_HONEST, ACTIVE)]
    found.append(find_neighbourhood(assumed_in(row, 100), ACTIVE))
    assert [(one.degree, one.threshold) for one in found] == list(row[3:])


@pytest.mark.parametrize(
    ("population", "corrupted", "dropped", "bits", "expected"),
    [
        (100, "0.05", "0.05", 40, (100, 53, 5)),
        (300, "0.05", "0.05", 40, (36, 25, 13)),
        (1000, "0.05", "0.05", 40, (46, 32, 17)),
        (10**4, "0.05", "0.05", 40, (52, 36, 19)),
        (10**4, "0.1", "0.1", 40, (99, 68, 36)),
        (10**4, "0.2", "0.1", 40, (152, 111, 69)),
        (10**4, "0.1", "0.3", 40, (661, 393, 124)),
        (10**4, "0.05", "0.05", 100, (78, 59, 39)),
        (10**6, "0.05", "0.05", 40, (52, 36, 19)),
    ],
)
def test_committees_are_pinned(
    population: int, corrupted: str, dropped: str, bits: int, expected: tuple[int, int, int]
) -> None:
    assumed = assumed_of(population, corrupted, dropped, privacy_bits=bits)
    assert find_committee(assumed) == Committee(*expected)


@given(assumptions(most=60), st.sampled_from(SecurityMode))
def test_the_found_neighbourhood_is_the_first_that_exact_fractions_admit(
    assumed: Assumptions, mode: SecurityMode
) -> None:
    expected = exact_neighbourhood(assumed, mode)
    if expected is None:
        with pytest.raises(InvalidParameters, match="no sparse graph"):
            find_neighbourhood(assumed, mode)
    else:
        assert find_neighbourhood(assumed, mode) == Neighbourhood(*expected)


@given(assumptions(most=200))
def test_the_found_committee_is_the_first_that_exact_fractions_admit(assumed: Assumptions) -> None:
    expected = exact_committee(assumed)
    if expected is None:
        with pytest.raises(InvalidParameters, match="must certify"):
            find_committee(assumed)
    else:
        assert find_committee(assumed) == Committee(*expected)


def test_finders_end_where_no_graph_exists_in_a_large_population() -> None:
    hopeless = Assumptions(population=MAXIMUM_POPULATION, corrupted=300_000, dropped=500_000)
    with pytest.raises(InvalidParameters, match=f"degree up to {LARGEST_SEARCHED}"):
        find_neighbourhood(hopeless, ACTIVE)
    with pytest.raises(InvalidParameters, match="must certify"):
        find_committee(hopeless)


@pytest.mark.parametrize(
    ("assumed", "advice"),
    [
        (Assumptions(population=2, corrupted=0, dropped=0), "use a full graph"),
        (Assumptions(population=20, corrupted=0, dropped=19), "fewer corrupted or dropped"),
        (Assumptions(population=41, corrupted=40, dropped=0), "lower corrupted or privacy"),
        (Assumptions(population=40, corrupted=8, dropped=15), "fewer dropped or corrupted"),
    ],
)
def test_a_refusal_says_what_to_relax(assumed: Assumptions, advice: str) -> None:
    with pytest.raises(InvalidParameters, match=advice):
        find_neighbourhood(assumed, ACTIVE)


# --- The rules --------------------------------------------------------------------------------------------------------


@cache
def splits(population: int, degree: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the largest threshold at which a server can split the survivors, for each bound on the corrupted clients.

    The bounds are those on all neighbours of an honest client, and then those that one of any two disjoint half-windows
    keeps. The server chooses who is alive (0), dropped (1) or corrupted (2). It opens a part of the honest survivors if
    no mask joins the part to the others, and each member has as many holders, alive or corrupted, as the threshold.
    """
    graph = Graph(SPARSE, population, degree, bytes(32))
    neighbours = [graph.neighbours(position) for position in range(population)]
    after = [{v for v in neighbours[u] if graph.sends_edge_seed(u, v)} for u in range(population)]
    before = [{v for v in neighbours[u] if graph.sends_edge_seed(v, u)} for u in range(population)]
    disjoint = [(u, v) for u in range(population) for v in range(population) if not after[u] & before[v]]
    by_corrupted, by_window = [0] * (degree + 1), [0] * (degree + 1)
    for labels in product((0, 1, 2), repeat=population - 1):
        label = (0, *labels)
        alive = {position for position in range(population) if label[position] == 0}
        bad = {position for position in range(population) if label[position] == 2}
        parts = list(parts_of(alive, neighbours))
        if len(parts) > 1:
            corrupted = max(len(bad & {*neighbours[position]}) for position in {*range(population)} - bad)
            window = max(min(len(after[u] & bad), len(before[v] & bad)) for u, v in disjoint if not {u, v} & bad)
            opened = max(min(sum(label[other] != 1 for other in neighbours[one]) for one in part) for part in parts)
            by_corrupted[corrupted] = max(by_corrupted[corrupted], opened)
            by_window[window] = max(by_window[window], opened)
    return tuple(accumulate(by_corrupted, max)), tuple(accumulate(by_window, max))


def parts_of(alive: set[int], neighbours: list[tuple[int, ...]]) -> Iterator[set[int]]:
    left = set(alive)
    while left:
        part, reached = set[int](), {left.pop()}
        while reached:
            part |= reached
            reached = {other for one in reached for other in neighbours[one] if other in alive} - part
        left -= part
        yield part


@pytest.mark.parametrize(("population", "degree"), [(8, 4), (9, 4), (10, 4), (10, 6)])
def test_the_split_proof_threshold_never_splits_the_survivors(population: int, degree: int) -> None:
    for window, greatest in enumerate(splits(population, degree)[1][: degree // 2 + 1]):
        assert threshold_in(ACTIVE, degree, 0, window) > greatest


def test_one_share_less_splits_the_survivors() -> None:
    assert threshold_in(ACTIVE, 4, 0, 0) - 1 == splits(8, 4)[1][0]
    assert threshold_in(ACTIVE, 4, 0, 1) - 1 == splits(10, 4)[1][1]


def test_thresholds_are_ordered_and_never_below_two() -> None:
    for degree in range(2, 40, 2):
        for corrupted in range(degree // 2):
            for window in range(corrupted + 1):
                weak, strong = (threshold_in(mode, degree, corrupted, window) for mode in (SEMI_HONEST, ACTIVE))
                assert 2 <= weak <= (degree + corrupted) // 2 + 1 <= strong


# --- What a client insists on -----------------------------------------------------------------------------------------


def test_a_server_that_drops_honest_advertisers_is_refused() -> None:
    # 500 corrupted are five in a hundred of 10,000. Of 2,000 that a server kept they are a quarter, and of 1,000 half:
    # a half-window has more than the 25 counted on with probability 0.7, and no threshold within the degree is safe.
    offer: dict[str, int] = {"degree": 108, "corrupted": 500}
    assert least_threshold(SPARSE, ACTIVE, population=10**4, **offer) == 80
    assert (corrupted_neighbours(10**4, 500, 108), corrupted_in_window(10**4, 500, 108)) == (48, 25)
    assert round(float(exact_tail(26, 999, 500, 54)), 1) == 0.7
    kept = [corrupted_in_window(population, 500, 108) for population in range(10_000, 1_000, -1000)]
    assert kept == sorted(set(kept))
    assert corrupted_in_window(2000, 500, 108) == 44 == exact_window(2000, 500, 108, 100)
    assert least_threshold(SPARSE, ACTIVE, population=2000, **offer) == 99
    with pytest.raises(InvalidParameters, match="500 corrupted of 1000"):
        least_threshold(SPARSE, ACTIVE, population=1000, **offer)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(map(str, row[:3])))
@pytest.mark.parametrize(("mode", "bits", "column"), [(SEMI_HONEST, 40, 0), (ACTIVE, 40, 1), (ACTIVE, 100, 2)])
def test_a_client_insists_on_what_the_finder_found(row: Row, mode: SecurityMode, bits: int, column: int) -> None:
    assumed, (degree, threshold) = assumed_in(row, bits), row[3:][column]
    insisted = least_threshold(
        SPARSE,
        mode,
        population=assumed.population,
        degree=degree,
        corrupted=assumed.corrupted,
        dropped=assumed.dropped,
        privacy_bits=bits,
    )
    assert insisted == threshold


def test_a_client_insists_on_100_bits_against_a_server_that_may_deviate() -> None:
    assert (least_privacy_bits(SEMI_HONEST), least_privacy_bits(ACTIVE)) == (40, 100)


@given(st.integers(3, 200), st.integers(0, 250))
def test_in_a_full_graph_the_thresholds_are_those_of_the_paper(population: int, corrupted: int) -> None:
    bound = min(population, corrupted)
    for mode, expected in (
        (SEMI_HONEST, next(t for t in range(2, 500) if t > bound)),
        (ACTIVE, next(t for t in range(2, 500) if 2 * t > population + bound)),
    ):
        if expected > population - 1:
            with pytest.raises(InvalidParameters, match="the threshold would have to be"):
                least_threshold(FULL, mode, population=population, degree=population - 1, corrupted=corrupted)
        else:
            least = least_threshold(FULL, mode, population=population, degree=population - 1, corrupted=corrupted)
            assert least == expected


def test_a_bound_beyond_the_population_counts_everybody_else() -> None:
    assert corrupted_neighbours(50, 10**9, 6) == corrupted_neighbours(50, 49, 6) == 6
    for topology, degree in ((FULL, 49), (SPARSE, 6)):
        for mode in SecurityMode:
            with pytest.raises(InvalidParameters, match="50 corrupted"):
                least_threshold(topology, mode, population=50, degree=degree, corrupted=10**9)


def test_dropouts_that_may_cut_a_sparse_graph_apart_are_refused_where_the_server_is_relied_upon() -> None:
    offer: dict[str, int] = {"population": 1000, "degree": 34, "corrupted": 50, "privacy_bits": 40}
    assert least_threshold(SPARSE, SEMI_HONEST, **offer, dropped=50) == 18
    with pytest.raises(InvalidParameters, match="300 dropped"):
        least_threshold(SPARSE, SEMI_HONEST, **offer, dropped=300)
    with pytest.raises(InvalidParameters, match="1000 dropped"):
        least_threshold(SPARSE, SEMI_HONEST, **offer, dropped=10**5000)
    assert least_threshold(SPARSE, ACTIVE, population=1000, degree=88, corrupted=50, dropped=900) == 66


@given(st.integers(4, 80), st.data())
def test_connectivity_is_refused_exactly_where_the_bound_fails(population: int, data: st.DataObject) -> None:
    degree = 2 * data.draw(st.integers(1, (population - 1) // 2))
    dropped = data.draw(st.integers(0, population))
    cut = exact_cut(population, dropped, degree)
    admitted = [bits for bits in range(1, MAXIMUM_BITS + 1) if cut <= Fraction(1, 2 ** (bits + 1))]
    offer: dict[str, int] = {"population": population, "degree": degree, "corrupted": 0, "dropped": dropped}
    if admitted:
        assert least_threshold(SPARSE, SEMI_HONEST, **offer, privacy_bits=admitted[-1]) == 2
    if len(admitted) < MAXIMUM_BITS:
        with pytest.raises(InvalidParameters, match="could isolate honest clients"):
            least_threshold(SPARSE, SEMI_HONEST, **offer, privacy_bits=len(admitted) + 1)


def test_where_everybody_is_a_neighbour_nobody_can_be_cut_off() -> None:
    assert least_threshold(SPARSE, SEMI_HONEST, population=9, degree=8, corrupted=2, dropped=9) == 3
    with pytest.raises(InvalidParameters, match="could isolate honest clients"):
        least_threshold(SPARSE, SEMI_HONEST, population=9, degree=6, corrupted=2, dropped=9)


def test_as_many_dropouts_as_a_client_has_neighbours_can_cut_it_off() -> None:
    offer: dict[str, int] = {"population": 20, "degree": 2, "corrupted": 0}
    assert least_threshold(SPARSE, SEMI_HONEST, **offer, dropped=1) == 2
    with pytest.raises(InvalidParameters, match=r"0 corrupted and 2 dropped of 20 clients.*could isolate"):
        least_threshold(SPARSE, SEMI_HONEST, **offer, dropped=2)


# --- Committees that are offered --------------------------------------------------------------------------------------


@given(assumptions(most=200))
def test_a_found_committee_is_admitted_and_one_signature_fewer_is_not(assumed: Assumptions) -> None:
    try:
        found = find_committee(assumed)
    except InvalidParameters:
        return
    rest = (assumed.population, assumed.corrupted, found.size)
    require_committee(*rest, found.quorum, assumed.privacy_bits)
    if found.quorum > 1:
        with pytest.raises(InvalidParameters, match=f"it must be {found.quorum}"):
            require_committee(*rest, found.quorum - 1, assumed.privacy_bits)


def test_a_committee_that_the_corrupted_may_fill_is_refused() -> None:
    require_committee(10**4, 500, 78, 59)
    with pytest.raises(InvalidParameters, match="require a larger committee"):
        require_committee(10**4, 500, 9, 9)
    with pytest.raises(InvalidParameters, match="it must be 59"):
        require_committee(10**4, 500, 78, 58)
    with pytest.raises(InvalidParameters, match="500 corrupted of 600"):
        require_committee(600, 500, 78, 59)
    with pytest.raises(InvalidParameters, match="50 corrupted of 50"):
        require_committee(50, 10**9, 50, 50)


# --- Tails ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.data())
def test_a_tail_is_never_below_the_exact_one_and_hardly_above(total: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    least = data.draw(st.integers(0, drawn + 1))
    check_tail(least, total, marked, drawn)


def check_tail(least: int, total: int, marked: int, drawn: int) -> None:
    computed = log_tail(least, total, marked, drawn)
    exact = exact_tail(least, total, marked, drawn)
    if exact == 0:
        assert computed == float("-inf")
    else:
        logarithm = log(exact.numerator) - log(exact.denominator)
        assert min(logarithm, 0.0) - 1e-12 <= computed <= logarithm + 2e-6 + 1e-12 * abs(logarithm)


@given(st.integers(3, 300), st.data())
def test_the_bound_on_corrupted_neighbours_is_exact(population: int, data: st.DataObject) -> None:
    degree = 2 * data.draw(st.integers(1, (population - 1) // 2))
    corrupted, bits = data.draw(st.integers(0, population - 1)), data.draw(st.integers(1, 200))
    assert corrupted_neighbours(population, corrupted, degree, bits) == exact_corrupted(
        population, corrupted, degree, bits
    )


@given(st.integers(3, 300), st.data())
def test_the_bound_on_two_half_windows_is_exact(population: int, data: st.DataObject) -> None:
    degree = 2 * data.draw(st.integers(1, (population - 1) // 2))
    corrupted, bits = data.draw(st.integers(0, population)), data.draw(st.integers(1, 200))
    assert corrupted_in_window(population, corrupted, degree, bits) == exact_window(population, corrupted, degree, bits)


@pytest.mark.parametrize(("population", "degree"), [(9, 4), (11, 4), (11, 6)])
def test_no_more_sets_of_corrupted_clients_break_the_premise_than_the_union_bound_says(
    population: int, degree: int
) -> None:
    width, pairs = degree // 2, population * (population - degree + 1) // 2
    runs = [frozenset((first + step) % population for step in range(width)) for first in range(population)]
    disjoint = [(one, other) for one, other in combinations(runs, 2) if not one & other]
    assert len(disjoint) == pairs
    for corrupted in range(1, population):
        chosen = [frozenset(places) for places in combinations(range(population), corrupted)]
        for bound in range(width):
            broken = sum(
                any(min(len(one & bad), len(other & bad)) > bound for one, other in disjoint) for bad in chosen
            )
            tail = exact_tail(bound + 1, population, corrupted, width)
            assert Fraction(broken, len(chosen)) <= pairs * tail**2


# --- Fractions, and what is refused -----------------------------------------------------------------------------------


ASSUMED: dict[str, Any] = {"population": 100, "corrupted": 5, "dropped": 5}
OFFERED: dict[str, Any] = {"population": 100, "degree": 22, "corrupted": 5}
LATTICE: dict[str, Any] = {"population": 100, "corrupted": 5, "degree": 22, "bits": 40}
COMMITTEE: dict[str, Any] = {"population": 100, "corrupted": 5, "size": 50, "quorum": 40, "bits": 40}
FULL_GRAPH: dict[str, Any] = {"population": 100, "degree": 99, "corrupted": 5}
IN_BOTH_MODES = [partial(least_threshold, SPARSE, mode) for mode in SecurityMode]
FULL_IN_BOTH_MODES = [partial(least_threshold, FULL, mode) for mode in SecurityMode]


@pytest.mark.parametrize(
    ("made", "good", "bad"),
    [
        (
            [Assumptions],
            ASSUMED,
            {
                "population": (1, MAXIMUM_POPULATION + 1, 100.0, "100"),
                "corrupted": (-1, 100, True),
                "dropped": (-1, 100),
                "privacy_bits": (0, 257),
                "correctness_bits": (0, 257),
            },
        ),
        (
            IN_BOTH_MODES,
            OFFERED,
            {
                "population": (1, "100"),
                "corrupted": (-1, 0.05),
                "dropped": (-1,),
                "degree": (21, 0, 100, 22.0),
                "privacy_bits": (0, None),
            },
        ),
        (
            [corrupted_neighbours, corrupted_in_window],
            LATTICE,
            {"population": (1, 22, 100.0), "corrupted": (-1, True), "degree": (21, 100), "bits": (0, MAXIMUM_BITS + 1)},
        ),
        (
            [require_committee],
            COMMITTEE,
            {"population": (1,), "corrupted": (-1,), "size": (0, 101), "quorum": (51, 0, True), "bits": (0,)},
        ),
        (FULL_IN_BOTH_MODES, FULL_GRAPH, {"corrupted": (-1, -100, True, 5.0), "degree": (98, 100, 99.0)}),
    ],
    ids=["assumptions", "offer", "lattice", "committee", "full graph"],
)
def test_a_number_out_of_range_is_refused_by_name(
    made: list[Callable[..., object]], good: dict[str, Any], bad: dict[str, tuple[Any, ...]]
) -> None:
    """With fewer corrupted clients than none, a threshold would fall below half of the clients."""
    for call in made:
        call(**good)
        for name, values in bad.items():
            for value in values:
                with pytest.raises(InvalidParameters, match=rf"^(the )?({name}|degree)"):
                    call(**good | {name: value})


def test_a_threshold_may_be_the_degree() -> None:
    assert least_threshold(FULL, ACTIVE, population=100, degree=99, corrupted=97) == 99
    assert least_threshold(SPARSE, SEMI_HONEST, population=9, degree=8, corrupted=7) == 8


def test_only_a_committee_that_is_too_small_is_advised_to_grow() -> None:
    with pytest.raises(InvalidParameters, match=r"it must be 5$"):
        require_committee(5, 3, 5, 4)
    with pytest.raises(InvalidParameters, match=r"it must be 6, so require a larger committee$"):
        require_committee(6, 5, 5, 4)


def test_the_committee_is_everyone_up_to_the_largest_population_whose_committee_is_whole() -> None:
    for population, is_whole in ((LARGEST_WHOLE_COMMITTEE, True), (LARGEST_WHOLE_COMMITTEE + 1, False)):
        found = find_committee(Assumptions(population=population, corrupted=1, dropped=1))
        assert (found.size == population) is is_whole


# --- Planned graphs ---------------------------------------------------------------------------------------------------

# Topology, mode, invited, corrupted, dropped, late: degree, threshold, committee size and quorum.
PLANNED = [
    (SPARSE, ACTIVE, (3, 1, 0, 0), (2, 2, 0, 3)),
    (SPARSE, ACTIVE, (13, 4, 1, 0), (8, 7, 0, 9)),
    (SPARSE, ACTIVE, (135, 1, 2, 0), (6, 4, 6, 4)),
    (SPARSE, SEMI_HONEST, (11, 0, 0, 1), (2, 2, 0, 0)),
    (FULL, ACTIVE, (9, 3, 0, 1), (0, 7, 0, 7)),
    (FULL, SEMI_HONEST, (4, 2, 0, 0), (0, 3, 0, 0)),
]


@pytest.mark.parametrize(("topology", "mode", "asked", "planned"), PLANNED)
def test_graphs_that_stand_all_dropouts_before_they_are_drawn_are_pinned(
    topology: Topology, mode: SecurityMode, asked: tuple[int, ...], planned: tuple[int, ...]
) -> None:
    invited, corrupted, dropped, late = asked
    assumed = Assumptions(
        population=invited - late, corrupted=corrupted, dropped=dropped, privacy_bits=least_privacy_bits(mode)
    )
    assert graph_parameters(topology, mode, assumed, invited, is_early=True) == planned


# For four or more clients: no graph, a full one, or the requested sparse one.
GIVEN = [(SEMI_HONEST, 1, 1, "FFS"), (SEMI_HONEST, 0, 2, "-FFS"), (ACTIVE, 0, 2, "---FFSS"), (ACTIVE, 2, 1, "---FSS")]


@pytest.mark.parametrize(("mode", "corrupted", "dropped", "given_to"), GIVEN)
def test_few_clients_have_a_full_graph_where_no_sparse_one_stands_the_dropouts(
    mode: SecurityMode, corrupted: int, dropped: int, given_to: str
) -> None:
    settings = PairwiseOptions(mode=mode, corrupted=corrupted, dropped=dropped)
    for population, letter in enumerate(given_to, 4):
        assert settings.takes(population) is (letter != "-"), population
        assert topology_of(settings, population) is (FULL if letter == "F" else SPARSE), population


def test_many_clients_have_the_graph_that_they_ask_for() -> None:
    settings = PairwiseOptions(mode=ACTIVE, corrupted=10, dropped=50)
    assert topology_of(settings, LARGEST_WHOLE_COMMITTEE) is FULL
    assert topology_of(settings, LARGEST_WHOLE_COMMITTEE + 1) is SPARSE


def test_a_plan_takes_no_cohort_that_its_dropouts_undercut() -> None:
    for cohort, is_taken in ((8, True), (9, False)):
        settings = PairwiseOptions(mode=SEMI_HONEST, dropped=1, late=1, minimum_cohort=cohort)
        assert settings.takes(10) is is_taken


def topology_of(settings: PairwiseOptions, population: int) -> Topology:
    return settings._topology_for(settings.assumed(population), population)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("invited", "corrupted", "late"), [(6, 0, 3), (7, 1, 3), (8, 0, 4)])
def test_late_clients_that_a_certificate_needs_are_too_many(invited: int, corrupted: int, late: int) -> None:
    """The quorum counts all invited clients, and so few cannot reach it."""
    assumed = Assumptions(population=invited - late, corrupted=corrupted, dropped=0)
    with pytest.raises(InvalidParameters):
        graph_parameters(SPARSE, ACTIVE, assumed, invited, is_early=True)
