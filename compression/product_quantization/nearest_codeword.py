"""Which codeword is nearest to each block: the client's hot path, in chunks that stay near the processor.

A codeword c is nearer to a block x than s, the shortest of all codewords, by

    |x - s|² - |x - c|²  =  2 (c - s)·x + |s|² - |c|²,

which for all codewords and blocks is one product of matrices. The greatest of these gains is not negative, since that
of s itself is zero, and floats that are not negative are in the same order as their bits, read as integers. The lowest
bits make way for the index of the codeword, and one maximum over integers finds the nearest codeword and names it.

Two approximations follow. The index displaces six bits or fewer, so another codeword may be chosen whose gain is less
by no more than a 2^-17th: the squared error of a block exceeds the least by at most a 2^-17th of |x - s|², which is
|x|² in a codebook with a zero. And gains are float32 sums of d + 1 terms. Where these are exact, the lower of two
equally near codewords is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.checks import finite
from secagg.crypto.ring import Ring, RingVector

Floats = npt.NDArray[np.floating[Any]]
FloatMatrix = npt.NDArray[np.float32]
CHUNK_BLOCKS: Final = 5184
"""Enough for one row of gains to fill more than half of numpy's buffer of 8192 elements; otherwise two rows go through
the buffer together, and are copied for that. A row is no multiple of a page: the rows of a tile would share a few sets
of the first-level cache, and encoding took a half more on one kind of processor."""
TILE_CODEWORDS: Final = 1 << 6
"""Codewords compared at once; more would take more bits from the gains, and more memory for them."""
SQUARES_LIMIT: Final = 2.0**120
"""What the squares of a chunk add up to, at most; the products with weights below 2^60 are then float32 numbers."""
_WEIGHT_EXPONENTS: Final = (-60, 60)


def nearest_codewords(blocks: Floats, stages: Sequence[Floats]) -> list[RingVector]:
    """Return the index of the codeword nearest to each row of ``blocks``, and so on for what each stage leaves over.

    Args:
        blocks: one block in each row, in any float type and memory order.
        stages: the codewords of each stage, one in each row; one stage is plain product quantization.

    NaN counts as 0, and values beyond some 2^50 as that.
    """
    return search(blocks, [Search(codewords) for codewords in stages])


def search(blocks: Floats, searches: Sequence[Search]) -> list[RingVector]:
    """Do the same with codewords that were prepared before, as they are for every client of a round."""
    found = [np.empty(len(blocks), dtype=stage.word) for stage in searches]
    size = blocks.shape[1]
    columns = np.ones((size + 1, min(CHUNK_BLOCKS, len(blocks))), dtype=np.float32)
    memory = np.empty((max(stage.rows for stage in searches), columns.shape[1]), dtype=np.float32)
    for start in range(0, len(blocks), CHUNK_BLOCKS):
        chunk = blocks[start : start + CHUNK_BLOCKS]
        filled = columns[:, : len(chunk)]
        values = filled[:size]
        # What overflows, here or in the squares, is clamped in the next line.
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(values, chunk.T, casting="same_kind")
            squares = float(np.vdot(values, values))
        if not squares < SQUARES_LIMIT:
            values[:] = finite(values, math.sqrt(SQUARES_LIMIT / values.size) / 2)
        for stage, indices in zip(searches, found, strict=True):
            nearest = stage.nearest(filled, memory[: stage.rows, : len(chunk)])
            indices[start : start + len(chunk)] = nearest
            if stage is not searches[-1]:
                values -= stage.codewords[nearest].T
    return found


class Search:
    """The codewords of one stage, as the rows of weights that give the gains of blocks."""

    def __init__(self, codewords: Floats) -> None:
        """Compute the weights."""
        self.codewords = codewords.astype(np.float32)
        self.word = Ring(max(1, (len(codewords) - 1).bit_length())).word
        self._tiles = _tiles(self.codewords.astype(np.float64))
        self._index_mask = (1 << (len(self._tiles[0]) - 1).bit_length()) - 1
        # Inverted, so that of equal gains the one with the lower index is the greatest.
        self._order = np.arange(self._index_mask, self._index_mask - len(self._tiles[0]), -1, dtype=np.int32)[:, None]

    @property
    def rows(self) -> int:
        """How many rows of memory the gains take."""
        return len(self._tiles[0])

    def nearest(self, columns: FloatMatrix, memory: FloatMatrix) -> npt.NDArray[np.int32]:
        """Return the index of the codeword nearest to the block in each column, whose last number is 1."""
        gains, indices = self._nearest_in_tile(self._tiles[0], columns, memory)
        for number, tile in enumerate(self._tiles[1:], start=1):
            others, other_indices = self._nearest_in_tile(tile, columns, memory)
            is_nearer = others > gains
            np.copyto(gains, others, where=is_nearer)
            np.copyto(indices, other_indices + number * TILE_CODEWORDS, where=is_nearer)
        return indices

    def _nearest_in_tile(
        self, tile: FloatMatrix, columns: FloatMatrix, memory: FloatMatrix
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the greatest gains, as integers without the bits of the index, and the indices in the tile.

        Gains below zero are integers below zero in the wrong order; the gain of the shortest codeword is above them.
        """
        gains = memory[: len(tile)]
        np.matmul(tile, columns, out=gains)
        ordered = gains.view(np.int32)
        np.bitwise_and(ordered, ~self._index_mask, out=ordered)
        np.bitwise_or(ordered, self._order[: len(tile)], out=ordered)
        greatest = np.maximum.reduce(ordered, axis=0)
        return greatest & ~self._index_mask, ~greatest & self._index_mask


def _tiles(codewords: npt.NDArray[np.float64]) -> list[FloatMatrix]:
    """Return the rows (2 (c - s), |s|² - |c|²), times a power of two, which brings gains near 1."""
    squares = np.square(codewords).sum(axis=1, keepdims=True)
    shortest = squares.argmin()
    rows = np.hstack([2 * (codewords - codewords[shortest]), squares[shortest] - squares])
    exponent = int(np.frexp(np.abs(codewords).max())[1])
    least, greatest = _WEIGHT_EXPONENTS
    weights = np.ldexp(rows, min(max(-2 * exponent, least - exponent), greatest - exponent)).astype(np.float32)
    return [weights[first : first + TILE_CODEWORDS] for first in range(0, len(weights), TILE_CODEWORDS)]
