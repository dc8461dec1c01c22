"""Neighbours and committee of each client: drawn from a public seed, recomputed by every client.

Everything here is public. A position is a client's index in the strictly increasing list of advertisers. A graph
therefore says nothing about identities, and nobody has to be told its neighbours.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse

GRAPH_SEED_BYTES: Final = 32
LEAST_POPULATION: Final = 2
LEAST_DEGREE: Final = 2
MAXIMUM_POPULATION: Final = 1 << 20
"""Every client shuffles the whole population, so a server that names a larger one would spend its clients' memory."""

_WORD: Final = struct.Struct(">I")
_FIRST_STREAM_BYTES: Final = 1 << 12
_CACHED_RINGS: Final = 4
_CACHED_NEIGHBOURHOODS: Final = 1 << 14


class Topology(StrEnum):
    """Which pairs of clients share a mask."""

    FULL = "full"
    """Every pair ([BIK+17])."""
    SPARSE = "sparse"
    """Neighbours on a ring lattice in a random order ([BBG+20])."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbours of each client, over positions 0..population-1 in the sorted list of clients.

    A sparse graph joins each client to the ``degree`` / 2 clients before it and after it on a ring. The order of the
    clients on the ring is a Fisher-Yates shuffle: begin with 0, 1, ..., population-1; for i from population-1 down to 1
    draw j from 0..i and exchange the entries at i and j. To draw from 0..i, take the next word of the stream, keep its
    lowest b bits, where b is the bit length of i, and start over while that exceeds i; every value is equally likely.
    The stream is SHAKE-256 of ``bind(Label.GRAPH_PERMUTATION, seed)``, cut into words of 4 bytes, big-endian.

    Implements: [BIK+17] (full); [BBG+20] (sparse), with a Harary graph in a random order.
    Security: the seed must not be known before the advertisers are fixed; otherwise somebody can choose a victim and
        surround it with corrupted neighbours. A seed that can be ground needs a larger privacy parameter in
        ``thresholds``.
    """

    topology: Topology
    population: int
    degree: int
    seed: bytes

    def __post_init__(self) -> None:
        if type(self.topology) is not Topology:
            raise InvalidParameters(f"topology is a Topology; got {self.topology!r}")
        if type(self.population) is not int or not LEAST_POPULATION <= self.population <= MAXIMUM_POPULATION:
            raise InvalidParameters(
                f"population is in {LEAST_POPULATION}..{MAXIMUM_POPULATION}; got {self.population!r}; "
                "split larger populations into sessions of their own"
            )
        if type(self.degree) is not int:
            raise InvalidParameters(f"degree is an integer; got {self.degree!r}")
        if self.topology is Topology.FULL and self.degree != self.population - 1:
            raise InvalidParameters(
                f"a full graph of {self.population} clients has degree {self.population - 1}; got {self.degree}"
            )
        if self.topology is Topology.SPARSE and (
            not LEAST_DEGREE <= self.degree < self.population or self.degree % 2 != 0
        ):
            raise InvalidParameters(
                f"a sparse graph of {self.population} clients has an even degree from {LEAST_DEGREE} to "
                f"{self.population - 1}; got {self.degree}"
            )
        if type(self.seed) is not bytes or len(self.seed) != GRAPH_SEED_BYTES:
            raise InvalidParameters(f"the graph seed is {GRAPH_SEED_BYTES} bytes")

    def neighbours(self, position: int) -> tuple[int, ...]:
        """Return the positions that ``position`` shares a mask with, ascending and without itself."""
        self._require_positions(position)
        if self.topology is Topology.FULL:
            return (*range(position), *range(position + 1, self.population))
        return _on_ring(self.seed, self.population, self.degree, position)

    def point_of(self, holder: int, dealer: int) -> int:
        """Return the point at which ``holder`` keeps the shares of its neighbour ``dealer``.

        It is the place of the holder among the dealer's neighbours, counted from 1.

        Raises:
            Misuse: the two are not neighbours.
        """
        self._require_positions(holder, dealer)
        if self.topology is Topology.FULL and holder != dealer:
            return holder + (holder < dealer)
        neighbours = self.neighbours(dealer)
        place = bisect_left(neighbours, holder)
        if place == len(neighbours) or neighbours[place] != holder:
            raise Misuse(f"positions {holder} and {dealer} are not neighbours")
        return place + 1

    def sends_edge_seed(self, position: int, neighbour: int) -> bool:
        """Say whether ``position``, and not ``neighbour``, sends the seed of the edge between the two.

        On a ring a client sends to the neighbours after it and receives from those before it. In a full graph the ring
        is that of the positions, and of two clients half a ring apart the one at the lower position sends. So nobody
        sends more than half of its edges, but for that one.

        Raises:
            Misuse: the two are not neighbours.
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

    def committee(self, size: int) -> tuple[int, ...]:
        """Return the positions of a random committee, ascending; a committee of ``population`` is everyone.

        Members are drawn from 0..population-1 as the shuffle draws, from SHAKE-256 of ``bind(Label.COMMITTEE, seed)``;
        a position that is a member already is skipped, until there are ``size`` members.
        """
        if type(size) is not int or not 1 <= size <= self.population:
            raise InvalidParameters(f"a committee of {self.population} clients has 1..{self.population}; got {size!r}")
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
                raise Misuse(f"a position is in 0..{self.population - 1}; got {position!r}")


@lru_cache(maxsize=_CACHED_NEIGHBOURHOODS)
def _on_ring(seed: bytes, population: int, degree: int, position: int) -> tuple[int, ...]:
    """Return the neighbours on the ring, ascending; both ends of every edge look them up again and again."""
    order, places = _ring(seed, population)
    reach = degree // 2
    first = (places[position] - reach) % population
    around = order[first : first + degree + 1]
    # At the end of the list the ring continues at its beginning.
    around += order[: degree + 1 - len(around)]
    del around[reach]
    return tuple(sorted(around))


@lru_cache(maxsize=_CACHED_RINGS)
def _ring(seed: bytes, population: int) -> tuple[array[int], array[int]]:
    """Return the positions in the order of the ring, and the place of each position on it.

    Both are public. They are shared by all graphs of one seed, since a simulation holds thousands of clients.
    """
    words = _words(Label.GRAPH_PERMUTATION, seed)
    order = array("I", range(population))
    for i in range(population - 1, 0, -1):
        j = _draw(words, i)
        order[i], order[j] = order[j], order[i]
    places = array("I", bytes(order.itemsize * population))
    for place, position in enumerate(order):
        places[position] = place
    return order, places


def _draw(words: Iterator[int], greatest: int) -> int:
    """Return an integer from 0 to ``greatest``, each as likely as the others."""
    mask = (1 << greatest.bit_length()) - 1
    while True:
        drawn = next(words) & mask
        if drawn <= greatest:
            return drawn


def _words(label: Label, seed: bytes) -> Iterator[int]:
    """Cut the stream of the seed into words, without end."""
    stream = hashlib.shake_256(bind(label, seed))
    # The standard library has no incremental output, but a longer digest begins with the shorter one.
    start, end = 0, _FIRST_STREAM_BYTES
    while True:
        for (word,) in _WORD.iter_unpack(stream.digest(end)[start:]):
            yield word
        start, end = end, 2 * end
