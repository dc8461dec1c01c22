"""External test suites, read from the folder SECAGG_VECTORS, because we may not publish them.

A case has its source's verdict and ours. If they differ, ours must be stricter, for a documented reason with its number
of cases.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secagg.errors import Reason, SecAggError

VARIABLE: Final = "SECAGG_VECTORS"
TALLIES: Final = dict[str, str]()
"""By suite, a line for the end of a run."""


def folder() -> Path | None:
    """Return the folder of the suites; None if it is not set.

    Raises:
        FileNotFoundError: the variable names no folder.
    """
    if (named := os.environ.get(VARIABLE)) is None:
        return None
    place = Path(named)
    if not place.is_dir():
        raise FileNotFoundError(f"{VARIABLE} names {place}, which is not a folder")
    return place


def read(name: str) -> Any:
    """Return a suite in JSON."""
    place = folder()
    assert place is not None
    return json.loads((place / name).read_text(encoding="utf-8"))


def groups(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the cases of a suite of Wycheproof, each with its group."""
    return [(group, case) for group in read(f"wycheproof/{name}.json")["testGroups"] for case in group["tests"]]


class Judged:
    """The verdicts of one suite."""

    def __init__(self, name: str, stricter: Mapping[Reason, tuple[int, str]] | None = None) -> None:
        """Begin.

        Args:
            stricter: by the reason of our refusal, the number of cases that the source accepts, and why we refuse.
        """
        self._name, self._stricter = name, stricter or {}
        self._cases, self._differences = 0, Counter[Reason]()
        self._wrong = list[str]()

    def add(self, number: object, *, is_accepted: bool, ours: Callable[[], bool]) -> None:
        """Judge a case.

        Args:
            is_accepted: the source's verdict.
            ours: computes the case; returns whether the result is right, or raises an error of the library.
        """
        self._cases += 1
        try:
            accepted = ours()
        except SecAggError as error:
            if is_accepted and error.reason not in self._stricter:
                self._wrong.append(f"{number} is refused: {error}")
            elif is_accepted:
                self._differences[error.reason] += 1
            return
        if accepted != is_accepted:
            self._wrong.append(f"{number} is {'accepted' if accepted else 'computed wrong'}")

    def close(self, cases: int) -> None:
        """Compare with the expectation of the whole suite, and store its tally."""
        assert not self._wrong, self._wrong
        assert self._cases == cases, f"{self._cases} cases, not {cases}"
        expected = {why: count for why, (count, _) in self._stricter.items()}
        assert self._differences == expected, f"{dict(self._differences)}, and {expected} was expected"
        differences = "".join(f"; {count} stricter: {text}" for count, text in self._stricter.values())
        TALLIES[self._name] = f"{cases} cases{differences}"
