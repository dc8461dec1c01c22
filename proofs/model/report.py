"""What a search comes out with, whichever model it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

State = TypeVar("State")
Done = TypeVar("Done")


@dataclass(slots=True)
class Report:
    """What came out of a case."""

    schedules: int = 0
    """Schedules that were played, or states that were reached; each by at least one sequence of calls."""
    calls: int = 0
    """How often the library was called."""
    refused: int = 0
    """How many of these calls it refused."""
    revealing: int = 0
    """How often some sum came out; if it never did, nothing was tried."""
    fault: str | None = None
    trace: tuple[str, ...] = ()
    """How the fault was come by, step by step."""


class Case(Protocol):
    """Something to explore."""

    @property
    def name(self) -> str:
        """What it is called, here and in ``cases.toml``."""

    @property
    def attacked(self) -> bool:
        """Whether a fault has to be found."""

    def explore(self) -> Report:
        """Run it."""


def steps_to(came_from: Mapping[State, tuple[State, Done] | None], state: State) -> tuple[Done, ...]:
    """Return how a state was come to, from what each state was come to from."""
    steps = list[Done]()
    while (before := came_from[state]) is not None:
        state, done = before
        steps.append(done)
    return tuple(reversed(steps))
