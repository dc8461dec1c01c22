"""Figures for people: a line that shows progress, and numbers with their units."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Final

_SHOWN: Final = 8
_BAR_CELLS: Final = 30
_BAR_PAUSE: Final = 0.1


class Bar:
    """One line on standard error that shows how far a round has come, where somebody is there to see it."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty()
        self._label = ""
        self._drawn = 0.0

    def update(self, label: str, done: int, count: int) -> None:
        """Draw the line anew, unless that was just done."""
        now = perf_counter()
        if not self._is_seen or (label == self._label and done < count and now - self._drawn < _BAR_PAUSE):
            return
        self._label, self._drawn = label, now
        filled = _BAR_CELLS * done // max(done, count, 1)
        cells = "#" * filled + "." * (_BAR_CELLS - filled)
        print(f"\r{label:<20} [{cells}] {done} of {count}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line for what is printed next."""
        if self._is_seen:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def some(numbers: Sequence[int]) -> str:
    """List a few numbers, and how many more there are."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"


def in_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def in_seconds(value: float) -> str:
    """Write a duration for people."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def peak_mib() -> int | None:
    """Return the largest size that the process had, where the system says so."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> 20 if sys.platform == "darwin" else peak >> 10
