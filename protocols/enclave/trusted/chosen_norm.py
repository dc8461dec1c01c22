"""Norms of the codewords that a client chose, and the least codewords in the place of those that are too long.

Nobody is told: a refusal would tell the host on which side of a bound its client is, and a sequence of bounds tells a
norm. An upload over the bound counts with the least codeword of every block, which moves the sum as little as possible.
The same work is done for every upload, and no address depends on an index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secagg.contract.codewords import CodewordTable, Tables
from secagg.contract.layout import IndexSegment


def least_squared(tables: Tables) -> int:
    """Return the square of the least norm that a client can choose."""
    return sum(table.blocks * int(_squares(table).min()) for some in tables for table in some)


def bounded_choices(
    parts: Sequence[memoryview], segments: Sequence[IndexSegment], tables: Tables, bound: int
) -> list[bytearray]:
    """Return the packed indices of each segment: those that were chosen, or the least ones where their norm is larger.

    Security: the result is as secret as the choices, and the caller's to overwrite.
    """
    chosen = [segment.ring.unpack(part, segment.blocks) for part, segment in zip(parts, segments, strict=True)]
    squared = sum(_chosen_squared(indices, some) for indices, some in zip(chosen, tables, strict=True))
    is_over = int(squared > bound**2)
    packed = list[bytearray]()
    for indices, segment, some in zip(chosen, segments, tables, strict=True):
        least = np.concatenate([np.full(table.blocks, _squares(table).argmin(), indices.dtype) for table in some])
        # Both are computed, and one is taken by arithmetic.
        taken = indices * indices.dtype.type(1 - is_over) + least * least.dtype.type(is_over)
        packed.append(bytearray(segment.ring.pack(taken)))
        indices[:], taken[:] = 0, 0
    return packed


def _chosen_squared(indices: npt.NDArray[np.unsignedinteger], tables: Sequence[CodewordTable]) -> int:
    total, first = 0, 0
    for table in tables:
        run = indices[first : first + table.blocks]
        for number, square in enumerate(_squares(table).tolist()):
            total += square * int(np.count_nonzero(run == number))
        first += table.blocks
    return total


def _squares(table: CodewordTable) -> npt.NDArray[np.object_]:
    """Return the squared norm of each codeword, as integers of any size."""
    squares: npt.NDArray[np.object_] = np.square(table.entries.astype(np.object_)).sum(axis=1)
    return squares
