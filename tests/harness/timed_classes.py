"""Tests whether code's time depends on its input: a fixed input against random ones, interleaved, by Welch's t-test.

Implements: [RBV17] dudect, with thread time in place of cycles. Both classes are drawn beforehand, and each input is
loaded into the same memory, so that addresses and caches are equal; a public hash decides the order. Slow measurements
are interruptions: t is also computed for the fastest parts of all measurements, and the largest one counts.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from time import perf_counter, thread_time_ns
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

LEAKS_ABOVE: Final = 10.0
"""Above this, dudect reports that time depends on the input; below 4.5 it reports nothing."""
SUSPICIOUS_ABOVE: Final = 4.5
COPIES: Final = 1024
"""Number of inputs of each class: many, so that an input's address does not correlate with its class."""
_WARM_UP: Final = 64
_FEWEST: Final = 100
"""Minimum number in each class for computing t."""
_CROPS: Final = 20
_BATCH: Final = 4096

Input = TypeVar("Input")
Loaded = TypeVar("Loaded")
Nanoseconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timed:
    """Result of the measurements."""

    t: float
    """Largest t in magnitude: positive if the fixed input takes longer."""
    share: float
    """Share of the measurements behind t: the fastest."""
    measurements: int
    median: float
    """Nanoseconds, over both classes."""
    difference: float
    """Nanoseconds, between the means of the classes in that share."""

    @property
    def verdict(self) -> str:
        """The verdict of dudect."""
        if abs(self.t) > LEAKS_ABOVE:
            return "depends on the input"
        return "perhaps" if abs(self.t) > SUSPICIOUS_ABOVE else "nothing seen"


def timed(  # noqa: PLR0913 -- three have defaults
    run: Callable[[Loaded], object],
    fixed: Sequence[Input],
    random: Sequence[Input],
    *,
    load: Callable[[Input], Loaded],
    seconds: float = inf,
    most: int = 1_000_000,
    clock: Callable[[], int] = thread_time_ns,
) -> Timed:
    """Time one call after another for ``seconds`` seconds or ``most`` calls; loading is not timed."""
    started, taken = perf_counter(), list[int]()
    classes, inputs = (fixed, random), len(fixed)
    if inputs != len(random):
        raise ValueError("both classes need the same number of inputs")
    for index in range(_WARM_UP):
        run(load(classes[index % 2][index // 2 % inputs]))
    order = bytearray()
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        while len(taken) < most and perf_counter() - started < seconds:
            if len(order) == len(taken):
                order += hashlib.shake_256(len(order).to_bytes(8, "big")).digest(_BATCH)
            coin = order[len(taken)]
            chosen = load(classes[coin & 1][(coin >> 1) % inputs])
            before = clock()
            run(chosen)
            taken.append(clock() - before)
    finally:
        if gc_was_on:
            gc.enable()
    times = np.array(taken, np.float64)
    is_random = np.frombuffer(order, np.uint8)[: times.size] & 1 == 1
    return judged(times[~is_random], times[is_random])


def judged(fixed: Nanoseconds, random: Nanoseconds) -> Timed:
    """Return the largest t of all measurements and of their fastest parts."""
    whole = np.concatenate([fixed, random])
    best = Timed(0.0, 1.0, whole.size, float(np.median(whole)), 0.0)
    # The thresholds are spaced like dudect's: densely where most measurements are.
    for crop in range(_CROPS + 1):
        share = 1.0 if crop == _CROPS else 1 - 0.5 ** (10 * (crop + 1) / _CROPS)
        limit = np.quantile(whole, share)
        quick = fixed[fixed <= limit], random[random <= limit]
        if min(part.size for part in quick) < _FEWEST:
            continue
        t = welch(*quick)
        if abs(t) > abs(best.t):
            difference = float(quick[0].mean() - quick[1].mean())
            best = Timed(t, share, whole.size, best.median, difference)
    return best


def welch(left: Nanoseconds, right: Nanoseconds) -> float:
    """Return Welch's t: the difference of the means in units of its standard error."""
    difference = float(left.mean() - right.mean())
    error = sqrt(float(left.var(ddof=1)) / left.size + float(right.var(ddof=1)) / right.size)
    if error:
        return difference / error
    return 0.0 if not difference else inf if difference > 0 else -inf
