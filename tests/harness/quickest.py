"""Processor time of an operation, without other work of this process or machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def quickest(done: Callable[[], object], tries: int = 5) -> float:
    """Return the minimum processor time of several tries, in seconds.

    After thousands of tests a garbage collection takes half a second, and other processes slow down a try; neither
    affects
    the minimum.
    """
    taken = list[float]()
    gc.disable()
    try:
        for _ in range(tries):
            started = time.process_time()
            done()
            taken.append(time.process_time() - started)
    finally:
        gc.enable()
    return min(taken)
