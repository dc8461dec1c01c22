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

    Enough is not a number alone: around each client that shared its secrets, enough of its neighbours have to answer,
    because they hold the shares. In a sparse graph it matters who does.
    """

    def __init__(  # noqa: PLR0913 -- what a round is
        self,
        members: tuple[int, ...],
        message: Callable[[int], bytes],
        *,
        needed: int,
        due: Collection[int] | None,
        threshold: int,
        graph: Graph,
    ) -> None:
        """Open a round that nobody has answered.

        Args:
            members: the positions that take part.
            message: makes the message for one of them, always the same bytes.
            needed: how many answers closing takes.
            due: the positions around which ``threshold`` neighbours have to answer; None for all who answer.
        """
        self.members = members
        self.message = lru_cache(maxsize=_CACHED_MESSAGES)(message)
        """Of one position, always the same bytes; a few are kept for transports that ask twice."""
        self._members, self._awaited, self._answers = frozenset(members), set(members), 0
        self._graph, self._threshold, self._is_mutual = graph, threshold, due is None
        # In a full graph everybody is a neighbour of everybody but itself, so that a number says it all.
        is_sparse = graph.topology is Topology.SPARSE
        self._needed = needed if is_sparse or due == () else max(needed, threshold + 1)
        self._around = dict.fromkeys(range(graph.population), 0) if is_sparse and due != () else dict[int, int]()
        """In a sparse graph: how many neighbours of each position have answered."""
        self._due = set[int](due or ())
        self._short = len(self._due) if self._around else 0
        """Around how many positions that are due too few have answered."""

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
        if not self._around:
            return
        if self._is_mutual:
            self._due.add(position)
            self._short += self._around[position] < self._threshold
        for neighbour in self._graph.neighbours(position):
            self._around[neighbour] += 1
            self._short -= neighbour in self._due and self._around[neighbour] == self._threshold

    @property
    def turnout(self) -> Turnout:
        """Whether closing now can succeed."""
        if not self._awaited:
            return Turnout.COMPLETE
        return Turnout.ENOUGH if self._answers >= self._needed and not self._short else Turnout.TOO_FEW
