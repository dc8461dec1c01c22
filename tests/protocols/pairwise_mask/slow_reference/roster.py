"""The participants, their neighbours, and the context that everything is bound to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .encoding import client_id, encode_list, number, root_of
from .primitives import bind, digest


class Roster:
    """Values derived from a configuration and the advertisements, in increasing order of clients."""

    def __init__(
        self, parameters: Mapping[str, Any], attempt: bytes, opening: bytes, entries: Mapping[int, bytes]
    ) -> None:
        self.clients = sorted(entries)
        self.leaves = [digest("roster-entry", client_id(client), entries[client]) for client in self.clients]
        self.root = root_of(self.leaves)
        count = len(self.clients)
        listed = digest("client-list", encode_list(self.clients))
        rho = digest("roster-root", number(count, 4), listed, self.root)
        seed = digest("graph-seed", attempt, rho, opening)
        self.context = digest("session-context", attempt, rho, seed)
        self._is_full = parameters["topology"] == "full"
        self._degree: int = count - 1 if self._is_full else parameters["degree"]
        self._places = list(range(count)) if self._is_full else _places_on_ring(seed, count)
        self.committee = _committee(seed, count, parameters["committee_size"] or count)

    def position_of(self, client: int) -> int:
        """Return a client's position in the list."""
        return self.clients.index(client)

    def neighbours(self, client: int) -> list[int]:
        """Return the neighbours of a client, increasing."""
        count = len(self.clients)
        reach = count if self._is_full else self._degree // 2
        return [
            other
            for other in self.clients
            if other != client and min(self._steps(client, other), count - self._steps(client, other)) <= reach
        ]

    def point_of(self, holder: int, dealer: int) -> int:
        """Return the point of a holder's shares from a dealer."""
        return self.neighbours(dealer).index(holder) + 1

    def sends_edge(self, sender: int, receiver: int) -> bool:
        """Return whether the first of two neighbours sends the seed of the edge (hybrid suite)."""
        steps, count = self._steps(sender, receiver), len(self.clients)
        return sender < receiver if 2 * steps == count else 2 * steps < count

    def _steps(self, client: int, other: int) -> int:
        """Return the distance from one client to another on the ring."""
        places = self._places
        return (places[self.position_of(other)] - places[self.position_of(client)]) % len(self.clients)


def _places_on_ring(seed: bytes, count: int) -> list[int]:
    order, words = list(range(count)), _words("graph-permutation", seed)
    for last in range(count - 1, 0, -1):
        drawn = _draw(words, last)
        order[last], order[drawn] = order[drawn], order[last]
    return [order.index(position) for position in range(count)]


def _committee(seed: bytes, count: int, size: int) -> Sequence[int]:
    members, words = set[int](range(count) if size == count else ()), _words("committee", seed)
    while len(members) < size:
        members.add(_draw(words, count - 1))
    return sorted(members)


def _draw(words: Iterator[int], greatest: int) -> int:
    while (drawn := next(words) % (1 << greatest.bit_length())) > greatest:
        pass
    return drawn


def _words(label: str, seed: bytes) -> Iterator[int]:
    stream = hashlib.shake_256(bind(label, seed)).digest(1 << 14)
    return (int.from_bytes(stream[start : start + 4], "big") for start in range(0, len(stream), 4))
