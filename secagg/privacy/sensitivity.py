"""Squared L2 sensitivities of a release to one client, as exact integers.

Each depends on the definition of neighbouring sets of clients. In both cases a client counts with one weight, which its
data does not change: a weight that a client chooses itself is released as a sum of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Misuse

_EXACT_FLOAT: Final = 1 << 53
_EXACT_INTEGER: Final = 1 << 63
_PAIRS_AT_A_TIME: Final = 1 << 20
"""Distances that are held at once: 8 MB."""


class Adjacency(Enum):
    """Neighbours of a set of clients: one client's values are zeros, or are any others that are allowed."""

    ZERO_OUT = 1
    REPLACE = 2


def of_vector(l2_bound: int, weight: int, adjacency: Adjacency) -> int:
    """Return the squared sensitivity of a weighted sum of vectors whose L2 norm is at most ``l2_bound``.

    (w D)^2 where the neighbour has zeros, (2 w D)^2 where it has another vector, which may be the opposite one.
    """
    return (_spread(adjacency) * _at_least_zero("weight", weight) * _at_least_zero("l2_bound", l2_bound)) ** 2


def of_histogram(blocks: int, weight: int, adjacency: Adjacency) -> int:
    """Return the squared sensitivity of the histograms of all blocks: w^2 R, and 2 w^2 R with another choice."""
    return _spread(adjacency) * _at_least_zero("weight", weight) ** 2 * _at_least_zero("blocks", blocks)


def of_decoded_sum(tables: Sequence[tuple[int, npt.NDArray[np.int64]]], weight: int, adjacency: Adjacency) -> int:
    """Return the squared sensitivity of a weighted sum of codewords, one from the table of each block.

    w^2 times the sum over the blocks of the largest |C_j|^2 where the neighbour has zeros, and of the largest
    |C_j - C_l|^2 where it chose other codewords.

    Args:
        tables: a number of blocks and their table, one codeword in each row, in integer steps.
    Raises:
        InvalidParameters: width times (2 largest entry)^2 reaches 2^63; put the codebook on a coarser grid.
    """
    total = 0
    for blocks, entries in tables:
        _require_table(entries)
        diameter = _largest_norm(entries) if _spread(adjacency) == 1 else _largest_distance(entries)
        total += _at_least_zero("blocks", blocks) * diameter
    return _at_least_zero("weight", weight) ** 2 * total


def _spread(adjacency: Adjacency) -> int:
    match adjacency:
        case Adjacency.ZERO_OUT:
            return 1
        case Adjacency.REPLACE:
            return 2
        case _:
            raise Misuse(f"expected an Adjacency; got {type(adjacency).__name__}")


def _largest_norm(entries: npt.NDArray[np.int64]) -> int:
    return int(np.einsum("jd,jd->j", entries, entries).max())


def _largest_distance(entries: npt.NDArray[np.int64]) -> int:
    """Return the greatest squared distance of two rows, |C_j|^2 + |C_l|^2 - 2 C_j C_l."""
    norms = np.einsum("jd,jd->j", entries, entries)
    largest = int(norms.max())
    # A product of floats of integers is exact where no partial sum of it leaves the significand, and much faster.
    factors = entries.astype(np.float64) if largest < _EXACT_FLOAT else entries
    rows = max(1, _PAIRS_AT_A_TIME // len(entries))
    greatest = 0
    for start in range(0, len(entries), rows):
        products = (factors[start : start + rows] @ factors[start:].T).astype(np.int64)
        distances = norms[start : start + rows, np.newaxis] + norms[start:] - 2 * products
        greatest = max(greatest, int(distances.max()))
    return greatest


def _require_table(entries: npt.NDArray[np.int64]) -> None:
    if type(entries) is not np.ndarray or entries.dtype != np.int64 or entries.ndim != 2 or not entries.size:  # noqa: PLR2004 -- a matrix
        raise Misuse("a table is a plain array of int64 in two dimensions, one codeword in each row")
    largest = max(int(entries.max()), -int(entries.min()))
    if entries.shape[1] * (2 * largest) ** 2 >= _EXACT_INTEGER:
        raise InvalidParameters(
            f"{entries.shape[1]} entries of up to {largest} have distances whose squares reach 2^63; put the codebook "
            "on a coarser grid"
        )


def _at_least_zero(name: str, value: int) -> int:
    if type(value) is not int or value < 0:
        raise InvalidParameters(f"{name} is an integer from 0 on; got {value!r}")
    return value
