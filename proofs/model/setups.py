"""A session's size and parameters, and the rosters that a server can show in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from secagg.contract import Layout, RingSegment
from secagg.parameters import SecurityMode, Suite

LAYOUT = Layout((RingSegment(8, 1),))
Set = frozenset[int]
GENUINE, REPLAYED, IMPOSTOR, TRANSPLANTED = "genuine", "replayed", "impostor", "transplanted"
Party = tuple[int, str]
"""A client, or an impostor that the server uses in its place."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A session's size and parameters, and the corrupted clients."""

    population: int
    threshold: int
    quorum: int = 0
    cohort: int = 2
    committee: int = 0
    corrupted: Set = frozenset()
    attempts: int = 1
    rounds: bool = False
    """Whether the attempts are two rounds at the same time, each with its own update."""
    restarts: bool = False
    """Whether every client's process ends after each message; its records can be copied and resumed again."""
    suite: Suite = Suite.CLASSIC

    @property
    def everyone(self) -> Set:
        """All clients, by number."""
        return frozenset(range(self.population))

    @property
    def honest(self) -> tuple[int, ...]:
        """The honest clients."""
        return tuple(sorted(self.everyone - self.corrupted))

    @property
    def mode(self) -> SecurityMode:
        """The mode; only one has a quorum."""
        return SecurityMode.ACTIVE if self.quorum else SecurityMode.SEMI_HONEST


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A roster as shown by the server: its attempt, its clients, and whose keys are listed for each name."""

    attempt: int
    keys: tuple[tuple[int, str], ...]

    clients: Set = field(init=False)
    """The clients on it."""
    genuine: Set = field(init=False)
    """The clients that are listed with their own keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", frozenset(client for client, _ in self.keys))
        object.__setattr__(self, "genuine", frozenset(client for client, kind in self.keys if kind == GENUINE))

    def kind(self, client: int) -> str:
        """Return whose keys are listed for a client's name."""
        return GENUINE if client in self.genuine else dict(self.keys)[client]

    def place(self, client: int) -> int:
        """Return a client's position."""
        return sorted(self.clients).index(client)


@cache
def shown_as(attempt: int, keys: tuple[tuple[int, str], ...]) -> Shown:
    """Return the one object for a roster."""
    return Shown(attempt, keys)
