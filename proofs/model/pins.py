"""Expected outcome of each case: a minimum number of schedules, or a kind of fault.

``cases.toml`` has one line per case, written by its author: for a clean case, the minimum numbers of schedules and of
schedules that reveal a sum; for a planted defect, the claim that it is planted against and the fault that is found,
with ``#`` for each number. A search that lost schedules, or that finds another fault, does not match its pin.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PINNED = Path(__file__).with_name("cases.toml")
_NAMES = re.compile(r"\[.*\]|\b\d+\w*(?: \d+\w*)*")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case."""

    name: str
    schedules: int
    revealing: int
    fault: str | None
    planted: bool
    """Whether a fault must be found."""

    @property
    def line(self) -> str:
        """The line of this outcome in ``cases.toml``."""
        if self.fault:
            return f'"{self.name}" = {{ claim = "?", fault = "{kind_of(self.fault)}" }}'
        return f'"{self.name}" = {{ schedules = {self.schedules}, revealing = {self.revealing} }}'

    def complaint(self) -> str:
        """Return how the outcome differs from its pin, or nothing."""
        pin = pinned().get(self.name)
        if pin is None:
            return f"not in cases.toml; add `{self.line}`"
        if self.planted != ("fault" in pin):
            return "planted, but pinned as clean" if self.planted else "clean, but pinned with a fault"
        if self.planted:
            found = kind_of(self.fault) if self.fault else "nothing"
            return "" if found == pin["fault"] else f"found `{found}`, but pinned is `{pin['fault']}`"
        for what, number in (("schedules", self.schedules), ("revealing", self.revealing)):
            if number < max(1, int(pin[what])):
                return f"{what}: {number}, but at least {pin[what]} are pinned"
        return "a fault" if self.fault else ""


@dataclass(slots=True)
class Tally:
    """Totals, separately for clean cases and planted defects."""

    clean: int = 0
    schedules: int = 0
    planted: int = 0
    spent: int = 0
    """Number of schedules until the planted defects were found."""
    wrong: int = 0

    def judged(self, outcome: Outcome) -> str:
        """Count a case, and return a complaint if it does not match its pin."""
        if outcome.planted:
            self.planted, self.spent = self.planted + bool(outcome.fault), self.spent + outcome.schedules
        else:
            self.clean, self.schedules = self.clean + (not outcome.fault), self.schedules + outcome.schedules
        complaint = outcome.complaint()
        self.wrong += bool(complaint)
        return f"  NOT EXPECTED: {complaint}" if complaint else ""

    def __str__(self) -> str:
        searched = f"{self.clean} clean cases searched in {self.schedules:,} schedules and states"
        return f"{searched}, {self.planted} planted defects found in {self.spent:,} more"


def kind_of(fault: str) -> str:
    """Return a fault without its clients and numbers."""
    return _NAMES.sub("#", fault)


@cache
def pinned() -> dict[str, dict[str, str | int]]:
    """Return the line of each case."""
    return tomllib.loads(PINNED.read_text(encoding="utf-8"))
