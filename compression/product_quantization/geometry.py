"""How a tensor is cut into blocks, and how many codewords it may have: integer functions of its shape.

A tensor is read as rows: the first dimension counts them, and the others are flattened in order. A row is an output
neuron of a linear layer or an output channel of a convolution. Rows are cut into consecutive blocks of one size, which
divides the row, so a block never reaches into the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

LEAST_ELEMENTS: Final = 10
LEAST_CODEWORDS: Final = 2
BLOCKS_PER_CODEWORD: Final = 4
LEAST_BLOCKS: Final = LEAST_CODEWORDS * BLOCKS_PER_CODEWORD
"""With fewer blocks the cap leaves one codeword, and an index among one says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGeometry:
    """What is left of a request for a block size and a number of codewords once a tensor's shape has capped both."""

    block_size: int
    blocks: int
    codewords: int


def block_geometry(shape: Sequence[int], requested_block_size: int, requested_codewords: int) -> BlockGeometry:
    """Return how a tensor of this shape is quantized; ``is_quantizable`` says beforehand whether it is.

    Raises:
        InvalidParameters: as for ``block_size`` and ``codeword_count``.
    """
    size = block_size(shape, requested_block_size)
    blocks = prod(shape) // size
    return BlockGeometry(block_size=size, blocks=blocks, codewords=codeword_count(blocks, requested_codewords))


def block_size(shape: Sequence[int], requested: int) -> int:
    """Return the largest size up to ``requested`` that divides a row of the tensor.

    Raises:
        InvalidParameters: a shape of fewer than two dimensions, or a number that is no positive integer.
    """
    if len(shape) <= 1 or any(type(size) is not int or size < 1 for size in shape):
        raise InvalidParameters(f"blocks are cut from two or more dimensions of at least 1; got {tuple(shape)}")
    require_integer("a block size", requested, 1)
    row = prod(shape[1:])
    return next(size for size in range(min(requested, row), 0, -1) if row % size == 0)


def codeword_count(blocks: int, requested: int) -> int:
    """Return ``requested``, or the greatest power of two for which each codeword has four blocks, if that is less.

    Raises:
        InvalidParameters: fewer than eight blocks, or fewer than two codewords.
    """
    if type(requested) is not int or requested < LEAST_CODEWORDS:
        raise InvalidParameters(f"a codebook has {LEAST_CODEWORDS} codewords or more; got {requested!r}")
    if type(blocks) is not int or blocks < LEAST_BLOCKS:
        raise InvalidParameters(
            f"a codebook needs {LEAST_BLOCKS} blocks; got {blocks!r}; ask for smaller blocks, or send the tensor in "
            "fixed point"
        )
    return min(requested, 1 << ((blocks // BLOCKS_PER_CODEWORD).bit_length() - 1))


def is_quantizable(shape: Sequence[int], requested_block_size: int) -> bool:
    """Return whether a tensor is large enough for a codebook; if not, it is sent in fixed point."""
    if len(shape) <= 1 or prod(shape) < LEAST_ELEMENTS:
        return False
    return prod(shape) // block_size(shape, requested_block_size) >= LEAST_BLOCKS
