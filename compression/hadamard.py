"""The Walsh-Hadamard transform of many columns at once, as products with small matrices.

A matrix of 1,024 rows is the Kronecker product of two of 32: two products of matrices that stay in the cache take the
place of ten passes of butterflies.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[np.floating[Any]]
_FACTOR_BITS: Final = 5
_ELEMENTS: Final = 1 << 16
"""Elements that are transformed together: with their copy they stay in the second-level cache."""


def transform(blocks: Tensor) -> None:
    """Multiply each column by H / sqrt(B) in place, B the number of rows, a power of two.

    H is symmetric, so doing it twice changes nothing but the rounding. What is not finite, or overflows because it is
    near the end of the floats' range, makes its column hold NaN or infinity.
    """
    size, width = blocks.shape
    factors = _factors(size, blocks.dtype)
    step = min(width, max(1, _ELEMENTS // size))
    buffers = np.empty((2, size * step), blocks.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, width, step):
            columns = blocks[:, first : first + step]
            source, target = (buffer[: columns.size] for buffer in buffers)
            source.reshape(columns.shape)[...] = columns
            before = 1
            for factor in factors:
                shape = (before, len(factor), columns.size // (before * len(factor)))
                np.matmul(factor, source.reshape(shape), out=target.reshape(shape))
                source, target, before = target, source, before * len(factor)
            columns[...] = source.reshape(columns.shape)


@lru_cache(maxsize=64)
def _factors(size: int, dtype: np.dtype[Any]) -> tuple[Tensor, ...]:
    """Return small Hadamard matrices whose Kronecker product is that of ``size``; the first holds 1 / sqrt(size)."""
    bits = size.bit_length() - 1
    count = max(1, -(-bits // _FACTOR_BITS))
    sizes = [1 << ((bits + number) // count) for number in range(count)]
    matrices = [_hadamard(some).astype(dtype) for some in sizes]
    matrices[0] = np.asarray(matrices[0] / math.sqrt(size), dtype=dtype)
    for matrix in matrices:
        matrix.flags.writeable = False
    return tuple(matrices)


def _hadamard(size: int) -> npt.NDArray[np.float64]:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
