"""Measurements: a figure, its target, and comparative timing."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import ClassVar, Final

import cryptography
import numpy as np

usual_clock: Callable[[], float] = perf_counter
"""Default clock of measurements."""
EXPLAINED: Final = 1.5
"""Maximum ratio of a figure to its floor for which the floor explains a missed target."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value; the target, if any, is a lower or upper bound."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    limit: float | None = None
    """Bound up to which the floor, measured in the same run, explains a missed target."""
    why: str = ""
    """The parts of the floor, if there is a limit."""

    @property
    def verdict(self) -> str:
        """Whether the target is met; if not, whether the floor explains it."""
        if self.at_least is None and self.at_most is None:
            return ""
        if self._is_within(self.at_least, self.at_most):
            return "met"
        is_understood = self.limit is not None and (
            self._is_within(self.limit, None) if self.at_most is None else self._is_within(None, self.limit)
        )
        return f"limit {self.limit:.2f}" if is_understood else "MISSED"

    def _is_within(self, at_least: float | None, at_most: float | None) -> bool:
        return (at_least is None or self.value >= at_least) and (at_most is None or self.value <= at_most)

    def line(self, width: int = 62) -> str:
        """Return the figure as a row of a table."""
        why = f" [{self.why}]" if self.verdict.startswith("limit") else ""
        row = f"{self.name:<{width}} {self.value:>9.3f} {self.unit:<6} {self.target:<8} {self.verdict}"
        return f"{row} {self.note}{why}".rstrip()

    @property
    def target(self) -> str:
        """The target as text."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""


class Rounds:
    """Maximum rounds of a timing: one to only run the code."""

    most: ClassVar = 1 << 20


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] | None = None
) -> dict[str, float]:
    """Return each contender's shortest time, measured in turns so that other load affects all equally.

    Contenders of one thread may be timed by ``process_time``: on a busy machine the longer one is interrupted more.
    """
    best, clock = dict.fromkeys(contenders, float("inf")), clock or usual_clock
    for _ in range(min(rounds, Rounds.most)):
        for name, contender in contenders.items():
            started = clock()
            contender()
            best[name] = min(best[name], clock() - started)
    return best


def machine() -> dict[str, str]:
    """Return the hardware and software that figures depend on."""
    model = "unknown processor"
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        fields = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        named = {key.strip(): value.strip() for key, value in fields.items()}
        model = f"{named.get('model name', model)}, family {named.get('cpu family', '?')}"
        wide = [name for name in ("vaes", "avx512f") if name in named.get("flags", "").split()]
        model += f" with {' and '.join(wide)}" if wide else ""
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
    }
