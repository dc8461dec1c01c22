"""The processor time of what is done, free of what else this process or the machine does."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def quickest(done: Callable[[], object], tries: int = 5) -> float:
    """Return the least processor time, in seconds, of several tries.

    After thousands of tests a collection of garbage alone takes half a second, and a neighbour slows a try; neither
    makes the least of them longer.
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
