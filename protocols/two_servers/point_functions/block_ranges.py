"""Ranges of blocks, and threads that divide them among themselves.

The ciphers and the passes over arrays release the interpreter's lock, so threads share the work. Each has its own
ciphers and its own part of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from secagg.parameters import require_integer

from .shape import RUN_BLOCKS, PointFunctionShape

CHUNK_BLOCKS: Final = 1 << 12
"""Blocks whose trees are generated at a time; it divides both a run and a group of blocks."""


def over_threads(shape: PointFunctionShape, blocks: int, threads: int, job: Callable[[int, int], None]) -> None:
    """Call ``job(first, stop)`` for ranges that make up all blocks, on at most so many threads.

    Without a tree, ranges meet where runs do, so that no run is made by two threads; with one, where chunks do.
    """
    require_integer("threads", threads, 1)
    parts = _cut(blocks, threads, CHUNK_BLOCKS if shape.depth else RUN_BLOCKS)
    if len(parts) == 1:
        job(0, blocks)
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        for finished in [pool.submit(job, first, stop) for first, stop in parts]:
            finished.result()


def _cut(blocks: int, parts: int, edge: int) -> list[tuple[int, int]]:
    edges = -(-blocks // edge)
    cuts = sorted({min(blocks, edges * index // parts * edge) for index in range(parts + 1)})
    return list(pairwise(cuts))
