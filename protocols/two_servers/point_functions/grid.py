"""Lanes of a range of blocks in the order in which they are computed, and as rows of codewords.

Shares are made and added up in the order that vector units like: long runs of blocks for one lane, or for one piece of
a leaf, next to each other in memory. Rows are what a histogram is; the order is turned once for an aggregate and not
for every client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.groups import Lanes

from .shape import MAXIMUM_BLOCKS, RUN_BLOCKS, PointFunctionShape

_PIECE: Any = np.complex128
"""A type of 16 bytes, the size of a piece; values of it are moved and never looked at."""


class LaneGrid(Confined):
    """One server's lanes for blocks [first, stop), in arrays of a run of blocks each.

    An array has, at depth 0, the axes (codeword, block, 1). For a tree they are (piece and leaf, block, lane): the
    pieces of all leaves come one after another, and among the leaves the lowest bit of their number is the slowest.
    """

    def __init__(self, shape: PointFunctionShape, first: int, arrays: tuple[Lanes, ...]) -> None:
        """Take arrays of the right form; ``zeros`` makes them."""
        self.shape = shape
        self.first = first
        self.arrays = arrays
        self.blocks = sum(array.shape[1] for array in arrays)
        self.stop = first + self.blocks

    @classmethod
    def zeros(cls, shape: PointFunctionShape, blocks: int, first: int = 0) -> LaneGrid:
        """Return lanes that are zero, for so many blocks from ``first`` on."""
        if type(shape) is not PointFunctionShape:
            raise Misuse(f"a shape is a PointFunctionShape; got {type(shape).__name__}")
        require_blocks(blocks)
        width, height = (shape.lanes_per_piece, shape.pieces * shape.leaves) if shape.depth else (1, shape.codewords)
        flat = np.zeros(height * blocks * width, dtype=shape.group.word)
        arrays = list[Lanes]()
        for start, stop in runs(first, first + blocks):
            low, high = ((edge - first) * height * width for edge in (start, stop))
            arrays.append(flat[low:high].reshape(height, stop - start, width))
        return cls(shape, first, tuple(arrays))

    def located(self) -> Iterator[tuple[int, int, Lanes]]:
        """Return each array with its first block and the one after its last."""
        start = self.first
        for array in self.arrays:
            yield start, start + array.shape[1], array
            start += array.shape[1]

    def part(self, first: int, stop: int) -> LaneGrid:
        """Return blocks [first, stop) of this grid; changes to the part are changes to the whole."""
        require_range(first, stop, self.first, self.stop)
        arrays = tuple(
            array[:, max(first, low) - low : min(stop, high) - low]
            for low, high, array in self.located()
            if low < stop and first < high
        )
        return LaneGrid(self.shape, first, arrays)

    def wipe(self) -> None:
        """Overwrite the lanes with zeros."""
        for array in self.arrays:
            array[...] = 0

    def rows(self) -> Lanes:
        """Return the lanes as one row of ``codewords`` for each block, reduced."""
        rows = np.empty((self.blocks, self.shape.codewords), dtype=self.shape.group.word)
        for start, stop, array in self.located():
            part = rows[start - self.first : stop - self.first]
            if self.shape.depth:
                part[...] = self._tree_rows(array)
            else:
                # Column by column, which is several times faster than assigning the transposed array.
                for codeword, lanes in enumerate(array[:, :, 0]):
                    part[:, codeword] = lanes
        self.shape.group.reduce_into(rows)
        return rows

    def _tree_rows(self, array: Lanes) -> Lanes:
        shape, depth, blocks = self.shape, self.shape.depth, array.shape[1]
        pieces: Any = array.view(_PIECE).reshape(shape.pieces, *(2,) * depth, blocks)
        # From (piece, bits of the leaf from the lowest up, block) to (block, bits from the highest down, piece).
        turned = np.ascontiguousarray(pieces.transpose(depth + 1, *range(depth, 0, -1), 0))
        lanes = turned.view(shape.group.word).reshape(blocks, shape.leaves, -1)[:, :, : shape.leaf_lanes]
        rows: Lanes = lanes.reshape(blocks, -1)[:, : shape.codewords]
        return rows


def runs(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut a range of blocks where runs meet; return each piece as its first block and the one after its last."""
    while first < stop:
        edge = min(stop, (first // RUN_BLOCKS + 1) * RUN_BLOCKS)
        yield first, edge
        first = edge


def require_blocks(blocks: int) -> None:
    """Refuse a number of blocks that is none."""
    require_integer("blocks", blocks, 1, MAXIMUM_BLOCKS)


def require_range(first: int, stop: int, least: int, greatest: int) -> None:
    """Refuse a range of blocks that is not within another."""
    if type(first) is not int or type(stop) is not int or not least <= first < stop <= greatest:
        raise InvalidParameters(
            f"a range of blocks lies within {least}..{greatest} and is not empty; got {first!r}..{stop!r}"
        )
