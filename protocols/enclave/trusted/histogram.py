"""Histograms of index segments: for each block, how many clients chose each codeword.

There are two ways to count, with equal results. They differ in what their memory accesses reveal to an observer of
cache lines or pages, such as the machine's owner.

- Direct: reads and writes one counter per block. A block's counters are contiguous, so an access reveals the cache line
  or page of the counter; it reveals nothing if all counters of the block share one.
- Oblivious: reads and writes every counter of every block, in an order that does not depend on the indices.

Neither branches on an index. An error says that some index is out of range, but not which one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.choices import Accumulation
from secagg.contract.layout import IndexSegment, RowSegment
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Confined
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason, require_length

Counters = npt.NDArray[np.unsignedinteger[Any]]

_CHUNK_BLOCKS: Final = 1 << 16
"""Blocks that are counted at a time: a whole number of bytes at every width, and indices that fit into the L2 cache."""
_SCRATCH_COUNTERS: Final = 1 << 18
"""Counters per step of the oblivious form: large enough that the overhead of numpy calls is small."""


class HistogramAccumulator(Confined):
    """Counters of one index segment: for each block and codeword, the number of clients that chose it."""

    __slots__ = ("_accumulation", "_clients", "_counters", "_maximum_cohort", "_segment", "_wiped")

    def __init__(self, segment: IndexSegment, maximum_cohort: int, accumulation: Accumulation) -> None:
        """Start from zeros; a counter is the smallest word that holds ``maximum_cohort``."""
        if type(segment) not in (IndexSegment, RowSegment) or type(accumulation) is not Accumulation:
            raise Misuse("HistogramAccumulator takes an IndexSegment or RowSegment, and an Accumulation")
        if type(maximum_cohort) is not int or not 1 <= maximum_cohort < 1 << 64:
            raise InvalidParameters(f"maximum_cohort must be between 1 and 2^64 - 1; got {maximum_cohort!r}")
        self._segment = segment
        self._accumulation = accumulation
        self._maximum_cohort = maximum_cohort
        self._clients = 0
        self._wiped = False
        # A counter holds maximum_cohort, so it cannot wrap. A chunk of blocks has contiguous counters: one row per
        # block in the direct form, so that an addition touches few cache lines and pages; one row per codeword in the
        # oblivious form, so that each step compares and adds long runs.
        self._counters = Ring(maximum_cohort.bit_length()).zeros(segment.blocks * segment.codewords)

    def check(self, packed: memoryview) -> None:
        """Check one client's packed indices, all of them before raising an error; nothing is counted."""
        self._require_unwiped()
        if packed.itemsize != 1:
            raise Misuse("packed indices must be a memoryview of bytes; cast it")
        require_length("the packed indices of a client", packed.nbytes, self._segment.payload_bytes)
        greatest = self._segment.ring.zeros(1)
        for chunk in self._chunks(0, self._segment.blocks):
            with self._unpacked(packed, chunk) as indices:
                raise_to(greatest, indices)
        in_range = bool(greatest[0] < self._segment.codewords)
        greatest[:] = 0
        if not in_range:
            raise MalformedMessage(
                f"an index is out of range; the segment has {self._segment.codewords} codewords",
                reason=Reason.INPUT_OUT_OF_RANGE,
            )

    def add(self, packed: memoryview, *, is_checked: bool = False) -> None:
        """Count one client's indices; nothing is counted if one of them is invalid.

        Args:
            is_checked: whether ``check`` already accepted these bytes.
        Security: the bytes are read twice, so they must be in memory that nobody else can write. If counting fails, the
            counters are wiped, so that no histogram with part of a client remains.
        """
        self._require_unwiped()
        if self._clients >= self._maximum_cohort:
            raise CapacityExceeded(
                f"this histogram is full with {self._clients} clients; release it first, or raise maximum_cohort"
            )
        if not is_checked:
            self.check(packed)
        count = _count_direct if self._accumulation is Accumulation.DIRECT else _count_oblivious
        try:
            for chunk in self._chunks(0, self._segment.blocks):
                with self._unpacked(packed, chunk) as indices:
                    count(self._part(chunk), indices)
        except BaseException:
            self.wipe()
            raise
        self._clients += 1

    def histogram(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """Return the counters of blocks [start, stop), one row per block.

        Security: the rows are a copy, which the caller must overwrite.
        """
        self._require_unwiped()
        if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= self._segment.blocks:
            raise Misuse(f"blocks must be between 0 and {self._segment.blocks}; got {start!r} to {stop!r}")
        rows = np.empty((stop - start, self._segment.codewords), dtype=np.uint64)
        for chunk in self._chunks(start, stop):
            part = self._part(chunk)
            by_block = part if self._accumulation is Accumulation.DIRECT else part.T
            first, last = max(start, chunk.start), min(stop, chunk.stop)
            rows[first - start : last - start] = by_block[first - chunk.start : last - chunk.start]
        return rows

    def wipe(self) -> None:
        """Overwrite the counters with zeros; every later use is refused."""
        self._counters[:] = 0
        self._wiped = True

    def _require_unwiped(self) -> None:
        if self._wiped:
            raise Misuse("this histogram was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)

    def _chunks(self, start: int, stop: int) -> Iterator[slice]:
        for first in range(start - start % _CHUNK_BLOCKS, stop, _CHUNK_BLOCKS):
            yield slice(first, min(first + _CHUNK_BLOCKS, self._segment.blocks))

    @contextmanager
    def _unpacked(self, packed: memoryview, chunk: slice) -> Generator[RingVector]:
        """Lend the indices of a chunk and then overwrite them; temporary copies of unpacking are not overwritten."""
        ring = self._segment.ring
        piece = packed[ring.packed_bytes(chunk.start) : ring.packed_bytes(chunk.stop)]
        indices = ring.unpack(piece, chunk.stop - chunk.start)
        try:
            yield indices
        finally:
            indices[:] = 0

    def _part(self, chunk: slice) -> Counters:
        codewords, blocks = self._segment.codewords, chunk.stop - chunk.start
        part = self._counters[chunk.start * codewords : chunk.stop * codewords]
        direct = self._accumulation is Accumulation.DIRECT
        return part.reshape((blocks, codewords) if direct else (codewords, blocks))


def _count_direct(part: Counters, indices: RingVector) -> None:
    places = np.arange(0, part.size, part.shape[1], dtype=np.intp)
    try:
        # Not constant time: for what the addresses reveal, see the module's docstring.
        add_at(part.reshape(-1), places, indices, part.dtype.type(1))
    finally:
        places[:] = 0


def _count_oblivious(part: Counters, indices: RingVector) -> None:
    codewords, blocks = part.shape
    step = min(codewords, max(1, _SCRATCH_COUNTERS // blocks))
    numbers = np.arange(codewords, dtype=indices.dtype).reshape(-1, 1)
    hits = np.empty((step, blocks), dtype=np.bool_)
    try:
        for first in range(0, codewords, step):
            counters = part[first : first + step]
            hit = hits[: len(counters)]
            compare_into(hit, indices, numbers[first : first + step])
            add_hits_into(counters, hit.view(np.uint8))
    finally:
        hits[:] = 0


# --- Kernels ----------------------------------------------------------------------------------------------------------

Words = Any
"""Arrays of unsigned words, or one such word; only ``add_at`` uses data as addresses."""


def raise_to(greatest: Words, indices: Words) -> None:
    """Raise the word ``greatest`` to the maximum of the indices."""
    np.maximum(greatest, np.max(indices), out=greatest)


def add_at(counters: Words, rows: Words, indices: Words, one: Words) -> None:
    """Add one to one counter of each row; ``rows`` is overwritten with the positions of these counters."""
    np.add(rows, indices, out=rows)
    np.add.at(counters, rows, one)


def compare_into(hits: Words, indices: Words, numbers: Words) -> None:
    """Write whether each number equals each index."""
    np.equal(indices, numbers, out=hits)


def add_hits_into(counters: Words, hits: Words) -> None:
    """Add the hits, zeros and ones, to the counters."""
    np.add(counters, hits, out=counters)
