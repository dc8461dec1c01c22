"""Measurements: a figure, its target, and comparative timing."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import cryptography
import numpy as np

usual_clock: Callable[[], float] = perf_counter
"""Default clock of measurements."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value; the target, if any, is a lower or upper bound."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met, in one word."""
        if self.at_least is None and self.at_most is None:
            return ""
        above = self.at_least is None or self.value >= self.at_least
        below = self.at_most is None or self.value <= self.at_most
        return "met" if above and below else "MISSED"

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
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
    }
