"""Graph of a session, and the neighbours, thresholds and committees that tolerate corrupted and dropped clients.

A position is a client's index in the strictly increasing list of advertisers. Assumptions are counts, not fractions: a
server that drops honest clients raises the fraction of corrupted ones, and a client that assumes a fraction would not
notice. The corrupted clients are fixed before the graph seed is known. Every probability is over one drawn graph; the
README says what a server gains by trying many.

Neighbours and committee members are drawn without replacement, so all tails are hypergeometric; they are computed in
logarithms. Every computed tail is raised by more than its rounding error: rounding can cost a larger degree but never
accepts an unsafe one.

Notation: n, C, D, sigma, eta are ``population``, ``corrupted``, ``dropped``, ``privacy_bits``, ``correctness_bits``; k,
t, c, h a neighbourhood's ``degree``, ``threshold``, ``corrupted``, ``window``; q, tau a committee's ``size``,
``quorum``.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf, lgamma, log
from typing import Final

from secagg.choices import Topology
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import LEAST_THRESHOLD, SecurityMode

GRAPH_SEED_BYTES: Final = 32
LEAST_POPULATION: Final = 2
LEAST_DEGREE: Final = 2
MAXIMUM_POPULATION: Final = 1 << 20
"""Every client shuffles the whole population, so a larger one would let a server exhaust its clients' memory."""

_WORD: Final = struct.Struct(">I")
_FIRST_STREAM_BYTES: Final = 1 << 12
_CACHED_RINGS: Final = 4
_CACHED_NEIGHBOURHOODS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbours of each client, over positions 0..population-1 in the sorted list of clients.

    A sparse graph connects each client to the ``degree`` / 2 clients before it and after it on a ring. A Fisher-Yates
    shuffle driven by the seed gives the order of the ring.

    Implements: [BIK+17] (full); [BBG+20] (sparse), with a Harary graph in a random order.
    Security: the seed must stay unknown until the advertisers are fixed; otherwise an attacker can choose a victim and
        surround it with corrupted neighbours. If the seed can be ground, use a larger privacy parameter
        (``least_privacy_bits``).
    """

    topology: Topology
    population: int
    degree: int
    seed: bytes

    def __post_init__(self) -> None:
        if type(self.topology) is not Topology:
            raise InvalidParameters(f"topology must be a Topology; got {self.topology!r}")
        if type(self.population) is not int or not LEAST_POPULATION <= self.population <= MAXIMUM_POPULATION:
            raise InvalidParameters(
                f"population must be in {LEAST_POPULATION}..{MAXIMUM_POPULATION}; got {self.population!r}; "
                "split a larger population into several sessions"
            )
        if type(self.degree) is not int:
            raise InvalidParameters(f"degree must be an integer; got {self.degree!r}")
        if self.topology is Topology.FULL and self.degree != self.population - 1:
            raise InvalidParameters(
                f"a full graph of {self.population} clients has degree {self.population - 1}; got {self.degree}"
            )
        if self.topology is Topology.SPARSE and (
            not LEAST_DEGREE <= self.degree < self.population or self.degree % 2 != 0
        ):
            raise InvalidParameters(
                f"a sparse graph of {self.population} clients must have an even degree from {LEAST_DEGREE} to "
                f"{self.population - 1}; got {self.degree}"
            )
        if type(self.seed) is not bytes or len(self.seed) != GRAPH_SEED_BYTES:
            raise InvalidParameters(f"the graph seed must be {GRAPH_SEED_BYTES} bytes")

    def neighbours(self, position: int) -> tuple[int, ...]:
        """Return the positions that share a mask with ``position``, ascending."""
        self._require_positions(position)
        if self.topology is Topology.FULL:
            return (*range(position), *range(position + 1, self.population))
        return _on_ring(self.seed, self.population, self.degree, position)

    def point_of(self, holder: int, dealer: int) -> int:
        """Return the evaluation point of a holder's shares: its place among the dealer's neighbours, counted from 1."""
        self._require_positions(holder, dealer)
        if self.topology is Topology.FULL and holder != dealer:
            return holder + (holder < dealer)
        neighbours = self.neighbours(dealer)
        place = bisect_left(neighbours, holder)
        if place == len(neighbours) or neighbours[place] != holder:
            raise Misuse(f"positions {holder} and {dealer} are not neighbours")
        return place + 1

    def sends_edge_seed(self, position: int, neighbour: int) -> bool:
        """Whether ``position``, rather than ``neighbour``, sends the seed of their edge.

        On a ring a client sends to the neighbours after it. In a full graph the positions form the ring, and of two
        clients half a ring apart the lower position sends.
        """
        self._require_positions(position, neighbour)
        if self.topology is Topology.FULL:
            after, reach = (neighbour - position) % self.population, self.population // 2
        else:
            _, places = _ring(self.seed, self.population)
            after, reach = (places[neighbour] - places[position]) % self.population, self.degree // 2
        if not 1 <= min(after, self.population - after) <= reach:
            raise Misuse(f"positions {position} and {neighbour} are not neighbours")
        if 2 * after == self.population:
            return position < neighbour
        return after <= reach

    def parts(self, members: Iterable[int]) -> list[list[int]]:
        """Split the members into parts that no mask connects; unmasking reveals the sum of each part.

        On the ring a part ends where ``degree`` / 2 consecutive clients are missing.
        """
        if self.topology is Topology.FULL:
            return [list(members)]
        _, places = _ring(self.seed, self.population)
        around = sorted(members, key=places.__getitem__)
        gaps = (places[position] - places[around[index - 1]] for index, position in enumerate(around))
        starts = [index for index, gap in enumerate(gaps) if gap % self.population > self.degree // 2]
        if len(starts) <= 1:
            # A single gap opens the ring but leaves it in one part.
            return [around]
        around = around[starts[0] :] + around[: starts[0]]
        ends = [*(start - starts[0] for start in starts), len(around)]
        return [around[start:end] for start, end in pairwise(ends)]

    def committee(self, size: int) -> tuple[int, ...]:
        """Return the positions of a random committee, ascending; a committee of ``population`` contains everyone."""
        if type(size) is not int or not 1 <= size <= self.population:
            raise InvalidParameters(f"a committee must have 1..{self.population} members; got {size!r}")
        if size == self.population:
            return tuple(range(self.population))
        words = _words(Label.COMMITTEE, self.seed)
        members = set[int]()
        while len(members) < size:
            members.add(_draw(words, self.population - 1))
        return tuple(sorted(members))

    def _require_positions(self, *positions: int) -> None:
        for position in positions:
            if type(position) is not int or not 0 <= position < self.population:
                raise Misuse(f"a position must be in 0..{self.population - 1}; got {position!r}")


@lru_cache(maxsize=_CACHED_NEIGHBOURHOODS)
def _on_ring(seed: bytes, population: int, degree: int, position: int) -> tuple[int, ...]:
    """Return the neighbours on the ring, ascending; cached because both ends of every edge look them up repeatedly."""
    order, places = _ring(seed, population)
    reach = degree // 2
    first = (places[position] - reach) % population
    around = [*order[first : first + degree + 1]]
    # The ring wraps around at the end of the list.
    around += order[: degree + 1 - len(around)]
    del around[reach]
    return tuple(sorted(around))


@lru_cache(maxsize=_CACHED_RINGS)
def _ring(seed: bytes, population: int) -> tuple[tuple[int, ...], array[int]]:
    """Return the positions in ring order, and the place of each position on the ring; cached by seed.

    Neighbourhoods share the integers of the tuple; reading an array would create new ones for each.
    """
    words = _words(Label.GRAPH_PERMUTATION, seed)
    order = [*range(population)]
    for i in range(population - 1, 0, -1):
        j = _draw(words, i)
        order[i], order[j] = order[j], order[i]
    places = array("I", [0]) * population
    for place, position in enumerate(order):
        places[position] = place
    return tuple(order), places


def _draw(words: Iterator[int], greatest: int) -> int:
    """Return a uniform integer from 0 to ``greatest``."""
    mask = (1 << greatest.bit_length()) - 1
    while True:
        drawn = next(words) & mask
        if drawn <= greatest:
            return drawn


def _words(label: Label, seed: bytes) -> Iterator[int]:
    """Yield the words of the seed's stream, without end."""
    stream = hashlib.shake_256(bind(label, seed))
    # hashlib has no incremental output, but a longer digest begins with the shorter one.
    start, end = 0, _FIRST_STREAM_BYTES
    while True:
        for (word,) in _WORD.iter_unpack(stream.digest(end)[start:]):
            yield word
        start, end = end, 2 * end


PRIVACY_BITS: Final = 100
CURIOUS_PRIVACY_BITS: Final = 40
"""Enough against a server that follows the protocol, and therefore draws only one graph."""
MAXIMUM_BITS: Final = 256

LN2: Final = log(2)
"""Converts bits to the natural logarithms used for the tails."""
_ROUNDING: Final = 1e-6
"""Margin added to a computed logarithm. It covers nine log-gammas below 1.4e7, each accurate to a few units in the
last place (1.9e-9), and the omitted terms of a sum, which are below 1e-9 of it."""


def threshold_in(mode: SecurityMode, degree: int, corrupted: int, window: int) -> int:
    """Return the threshold of a sparse graph of a given degree.

    In ``semi_honest`` mode t = c + 1: corrupted neighbours cannot reconstruct by themselves. In ``active`` mode t = k /
    2 + h + 1: whichever survivors the server chooses, every revealed sum covers all honest ones; the README says why.

    Args:
        corrupted: bound on the corrupted neighbours of any client.
        window: of any two disjoint half-windows, one has at most this many corrupted clients.
    """
    if mode is SecurityMode.SEMI_HONEST:
        return max(LEAST_THRESHOLD, corrupted + 1)
    return max(LEAST_THRESHOLD, degree // 2 + window + 1, (degree + corrupted) // 2 + 1)


# --- What a client requires -------------------------------------------------------------------------------------------


def least_privacy_bits(mode: SecurityMode) -> int:
    """Return the minimum ``privacy_bits`` for which a session of this mode is planned, and that a client accepts."""
    return PRIVACY_BITS if mode is SecurityMode.ACTIVE else CURIOUS_PRIVACY_BITS


def least_threshold(  # noqa: PLR0913 -- the offer, and the client's own assumptions
    topology: Topology,
    mode: SecurityMode,
    *,
    population: int,
    degree: int,
    corrupted: int,
    dropped: int = 0,
    privacy_bits: int = PRIVACY_BITS,
) -> int:
    """Return the lowest threshold that protects an honest client's input, for the actual population.

    Args:
        corrupted: the client's own absolute bound; in a smaller population, all other clients count as corrupted.
        dropped: number of clients that may drop out, independently of the graph. It matters only to a sparse
            ``semi_honest`` session, which dropouts can split; for that session it is checked here.

    Implements: [BIK+17] section 6 (full); the split-proof rule (sparse, ``active``). Claim PM-5.
    Raises:
        InvalidParameters: no threshold up to the degree protects the client.
    """
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("dropped", dropped, 0)
    require_number("privacy_bits", privacy_bits, 1, MAXIMUM_BITS)
    corrupted, dropped = min(corrupted, population), min(dropped, population)
    relies_on_server = mode is SecurityMode.SEMI_HONEST
    if topology is Topology.FULL:
        require_number("degree of a full graph", degree, population - 1, population - 1)
        threshold = max(LEAST_THRESHOLD, 1 + (corrupted if relies_on_server else (population + corrupted) // 2))
    else:
        threshold = threshold_in(
            mode,
            degree,
            corrupted_neighbours(population, corrupted, degree, privacy_bits),
            corrupted_in_window(population, corrupted, degree, privacy_bits),
        )
        if relies_on_server and not stays_connected(population, corrupted + dropped, degree, privacy_bits):
            raise InvalidParameters(
                f"with {corrupted} corrupted and {dropped} dropped of {population} clients, a sparse graph of degree "
                f"{degree} could isolate honest clients; plan for these numbers, or use a full graph"
            )
    if threshold > degree:
        raise InvalidParameters(
            f"with {corrupted} corrupted of {population} clients the threshold would have to be {threshold}, but a "
            f"client of degree {degree} has only {degree} share holders; plan the session for {corrupted} corrupted "
            "clients, or assume fewer (assumed_corrupted of the policy)"
        )
    return threshold


def require_committee(population: int, corrupted: int, size: int, quorum: int, bits: int = PRIVACY_BITS) -> None:
    """Refuse a committee in which two quorums could overlap only in corrupted members.

    Raises:
        InvalidParameters: states the smallest quorum that would suffice.
    """
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("size of the committee", size, 1, population)
    require_number("quorum", quorum, 1, size)
    require_number("bits", bits, 1, MAXIMUM_BITS)
    corrupted = min(corrupted, population)
    least = (size + corrupted_members(population, corrupted, size, bits)) // 2 + 1
    if quorum < least:
        raise InvalidParameters(
            f"a quorum of {quorum} from a committee of {size} is too small with {corrupted} corrupted of {population} "
            f"clients: it must be {least}" + (", so require a larger committee" if least > size else "")
        )


# --- Tails ------------------------------------------------------------------------------------------------------------


def corrupted_neighbours(population: int, corrupted: int, degree: int, bits: int = PRIVACY_BITS) -> int:
    """Return a bound on each client's corrupted neighbours; it fails with probability at most 2^-(bits + 1)."""
    _require_lattice(population, corrupted, degree, bits)
    # An honest client is counting, so all corrupted clients are among the others.
    return _most_drawn(population - 1, min(corrupted, population - 1), degree, -(bits + 1) * LN2 - log(population))


def corrupted_in_window(population: int, corrupted: int, degree: int, bits: int = PRIVACY_BITS) -> int:
    """Return h: of any two disjoint half-windows, one has at most h corrupted clients, except with 2^-(bits + 1).

    There are n (n - k + 1) / 2 pairs of disjoint runs of k / 2 clients. Corrupted clients in one run make those in the
    other less likely, so both have more than h with probability at most Pr[Hyp(n - 1, C, k / 2) > h]^2. Both cannot
    have more than h if 2 (h + 1) exceeds the number of corrupted clients.
    """
    _require_lattice(population, corrupted, degree, bits)
    pairs = population * (population - degree + 1) // 2
    both = -(bits + 1) * LN2 - log(pairs)
    # Counted among the clients other than an honest one, as for neighbours.
    drawn = _most_drawn(population - 1, min(corrupted, population - 1), degree // 2, both / 2)
    return min(drawn, min(corrupted, population) // 2)


def _require_lattice(population: int, corrupted: int, degree: int, bits: int) -> None:
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("degree", degree, LEAST_DEGREE, population - 1)
    if degree % 2 != 0:
        raise InvalidParameters(f"the degree of a sparse graph must be even; got {degree}")
    require_number("bits", bits, 1, MAXIMUM_BITS)


def corrupted_members(population: int, corrupted: int, size: int, bits: int) -> int:
    """Return a bound on a committee's corrupted members; it fails with probability at most 2^-(bits + 1)."""
    return _most_drawn(population, corrupted, size, -(bits + 1) * LN2)


@lru_cache(maxsize=1024)
def _most_drawn(total: int, marked: int, drawn: int, log_probability: float) -> int:
    """Return the smallest bound that the number of marked items drawn exceeds with at most this probability.

    Cached for simulations of thousands of clients.
    """
    return bisect_left(
        range(min(marked, drawn)), -log_probability, key=lambda bound: -log_tail(bound + 1, total, marked, drawn)
    )


def log_tail(least: int, total: int, marked: int, drawn: int) -> float:
    """Return ln Pr[at least ``least`` are marked], or slightly more, when ``drawn`` of ``total`` are drawn."""
    if least <= max(0, drawn - (total - marked)):
        return 0.0
    most = min(marked, drawn)
    if least > most:
        return -inf
    first = _log_choose(marked, least) + _log_choose(total - marked, drawn - least) - _log_choose(total, drawn)
    # Each term is relative to the first one and computed from the one before it.
    term = summed = 1.0
    for x in range(least, most):
        term *= (marked - x) * (drawn - x) / ((x + 1) * (total - marked - drawn + x + 1))
        summed += term
        # Terms rise to the mode and then fall, so once one is this small, the rest are smaller still.
        if term * (most - x) < 1e-9 * summed:
            break
    return min(0.0, first + log(summed) + _ROUNDING)


def stays_connected(population: int, absent: int, degree: int, bits: int) -> bool:
    """Whether the ring lattice stays connected without the ``absent``, except with probability 2^-(bits + 1).

    It is disconnected only if two disjoint runs of degree / 2 clients are all absent: a union bound over pairs of runs.
    """
    pairs = population * (population - degree - 1) // 2
    if degree > absent or pairs == 0:
        return True
    log_all_absent = _log_choose(absent, degree) - _log_choose(population, degree)
    return log(pairs) + log_all_absent + _ROUNDING <= -(bits + 1) * LN2


def _log_choose(a: int, b: int) -> float:
    return lgamma(a + 1) - lgamma(b + 1) - lgamma(a - b + 1)


# --- Arguments --------------------------------------------------------------------------------------------------------


def require_number(name: str, value: object, least: int, greatest: int | None = None) -> None:
    """Require an integer in a range."""
    if type(value) is not int or value < least or (greatest is not None and value > greatest):
        within = f"must be at least {least}" if greatest is None else f"must be an integer in {least}..{greatest}"
        raise InvalidParameters(f"{name} {within}; got {value!r}")
