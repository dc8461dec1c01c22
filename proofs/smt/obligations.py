"""What is to be shown of the library's functions, and what must be refuted of altered ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from terms import Answer, Question


@dataclass(frozen=True, slots=True)
class Obligation:
    """A question that has one acceptable answer."""

    family: str
    name: str
    ask: Callable[[], Question]
    """Runs the functions in question on terms; done only when the obligation is decided."""
    due: Answer = Answer.PROVED

    def decide(self) -> Answer:
        """Return the solver's answer."""
        return self.ask().decide()
