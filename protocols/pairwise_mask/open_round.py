"""The round that is open: who takes part, what each is sent, and how many are still awaited, counted as they answer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache

from secagg.crypto.secret import Confined
from secagg.session.roles import Turnout

from .graph import Graph, Topology

_CACHED_MESSAGES = 8


class OpenRound(Confined):
    """One round of a server after the first; it counts, so that asking it costs nothing however many clients there are.

    In the last round enough is not a number alone: around each client whose secret is to be recovered, enough of its
    neighbours have to answer. In a sparse graph it matters who does.
    """

    def __init__(  # noqa: PLR0913 -- what a round is
        self,
        members: tuple[int, ...],
        message: Callable[[int], bytes],
        *,
        needed: int,
        due: Collection[int],
        threshold: int,
        graph: Graph,
    ) -> None:
        """Open a round that nobody has answered.

        Args:
            members: the positions that take part.
            message: makes the message for one of them, always the same bytes.
            needed: how many answers closing takes.
            due: the positions whose secrets the answers recover, each from ``threshold`` neighbours.
        """
        self.members = members
        self.message = lru_cache(maxsize=_CACHED_MESSAGES)(message)
        """Of one position, always the same bytes; a few are kept for transports that ask twice."""
        self._needed, self._threshold, self._graph = needed, threshold, graph
        self._awaited = set(members)
        self._members = frozenset(members)
        self._answers = 0
        is_sparse = graph.topology is Topology.SPARSE
        self._missing = dict.fromkeys(due, threshold) if is_sparse else dict[int, int]()
        """In a sparse graph: how many neighbours have still to answer for each position that is due."""
        self._full_needed = threshold + 1 if due and not is_sparse else 0
        """In a full graph everybody is a neighbour of everybody but itself."""

    def __contains__(self, position: int) -> bool:
        return position in self._members

    @property
    def awaited(self) -> frozenset[int]:
        """The positions that may still answer."""
        return frozenset(self._awaited)

    def settle(self, position: int, *, has_answered: bool) -> None:
        """Count a position out; doing so again changes nothing."""
        if position not in self._awaited:
            return
        self._awaited.remove(position)
        if not has_answered:
            return
        self._answers += 1
        for neighbour in self._graph.neighbours(position) if self._missing else ():
            if neighbour in self._missing:
                self._missing[neighbour] -= 1
                if not self._missing[neighbour]:
                    del self._missing[neighbour]

    @property
    def turnout(self) -> Turnout:
        """Whether closing now can succeed."""
        if not self._awaited:
            return Turnout.COMPLETE
        is_enough = self._answers >= max(self._needed, self._full_needed) and not self._missing
        return Turnout.ENOUGH if is_enough else Turnout.TOO_FEW
