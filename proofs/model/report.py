"""The result of a search, for all models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

State = TypeVar("State")
Done = TypeVar("Done")


@dataclass(slots=True)
class Report:
    """The result of a case."""

    schedules: int = 0
    """Number of schedules or reached states."""
    calls: int = 0
    """Number of calls to the library."""
    refused: int = 0
    """Number of refused calls."""
    revealing: int = 0
    """Number of times that a sum was revealed; if zero, the search tested nothing."""
    fault: str | None = None
    trace: tuple[str, ...] = ()
    """The steps that led to the fault."""


class Case(Protocol):
    """A case to search."""

    @property
    def name(self) -> str:
        """Its name, here and in ``cases.toml``."""

    @property
    def attacked(self) -> bool:
        """Whether a fault must be found."""

    def explore(self) -> Report:
        """Run it."""


def steps_to(came_from: Mapping[State, tuple[State, Done] | None], state: State) -> tuple[Done, ...]:
    """Return the steps to a state, given the predecessor of each state."""
    steps = list[Done]()
    while (before := came_from[state]) is not None:
        state, done = before
        steps.append(done)
    return tuple(reversed(steps))
