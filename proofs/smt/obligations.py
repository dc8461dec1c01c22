"""Obligations that must be proved for the library's functions, and altered functions that must be refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from terms import Answer, Question


@dataclass(frozen=True, slots=True)
class Obligation:
    """A question with one acceptable answer."""

    family: str
    name: str
    ask: Callable[[], Question]
    """Runs the functions on terms; only called when the obligation is decided."""
    due: Answer = Answer.PROVED

    def decide(self) -> Answer:
        """Return the solver's answer."""
        return self.ask().decide()


def altered_module(module: ModuleType, original: str = "", altered: str = "") -> dict[str, Any]:
    """Return the names of a module that is executed again, with tokens of its source replaced."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    if original not in source:
        raise LookupError(f"`{original}` is not in {module.__name__}; update MUTANTS")
    names: dict[str, Any] = {"__name__": module.__name__, "__package__": module.__package__}
    exec(source.replace(original, altered) if original else source, names)  # noqa: S102 -- the library's own source
    return names
