"""A random rotation before an inner scheme: it spreads large coordinates, so that one scale fits every client.

The rotation is R = H D / sqrt(B), block by block: D flips signs that a public seed says, and H is the Walsh-Hadamard
matrix of B rows, a power of two. R is orthonormal and the same for all clients, so the sum of rotated updates is the
rotated sum, and the server turns it back once.

The update, in row-major order, is filled with zeros to a multiple of B and read as a matrix of B rows; each column is
a block. The sign of element i of that matrix, in row-major order, is negative where bit i of the stream of the tensor
(``secagg.compression.public_stream``, label ROTATION_SIGNS) is set, the lowest bit of each byte first.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, LinearDecoder, Payload, encode_update, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters

from .checks import LARGEST, finite, inner_decoded, require_floats
from .public_stream import PublicStream

Tensor = npt.NDArray[np.floating[Any]]
MAXIMUM_BLOCK_SIZE: Final = 1 << 16
_FACTOR_BITS: Final = 5
_ELEMENTS: Final = 1 << 16
"""Elements that are transformed together: with their copy they stay in the second-level cache."""


@dataclass(frozen=True, kw_only=True)
class RandomRotation:
    """A tensor, turned by a common randomised Hadamard transform, as a vector that an inner scheme encodes.

    Implements: [SYK+17] §3, in blocks.

    A coordinate's value is spread over the ``block_size`` coordinates of its block, so a single large one becomes
    smaller by sqrt(block_size). The error of a decoded sum has the norm of the inner scheme's error.
    """

    stream: PublicStream
    """Gives the signs: the public seed, the round, the tensor's name and its shape."""
    block_size: int
    """A power of two; the tensor is filled with zeros to a multiple of it."""
    inner: LinearDecoder[Any]
    """Encodes a vector of ``padded_size(stream.size, block_size)`` floats."""

    def __post_init__(self) -> None:
        require_block_size(self.block_size)

    @property
    def padded(self) -> int:
        return padded_size(self.stream.size, self.block_size)

    @cached_property
    def negative(self) -> npt.NDArray[np.bool_]:
        """Coordinates whose signs are flipped, as the matrix of the blocks; drawn with the first update."""
        drawn = np.frombuffer(self.stream.read(Label.ROTATION_SIGNS, -(-self.padded // 8)), dtype=np.uint8)
        bits = np.unpackbits(drawn, count=self.padded, bitorder="little")
        return bits.view(np.bool_).reshape(self.block_size, -1)

    @property
    def layout(self) -> Layout:
        """The inner segments; the version covers the stream, the size of the blocks and the inner version."""
        encoded = self.stream.encode() + struct.pack(">I", self.block_size) + self.inner.layout.version
        return Layout(self.inner.layout.segments, public_parameters_digest("rotation", encoded))

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def encode(self, update: Tensor, coins: Coins) -> Payload:
        """Rotate the update, in float64 if it has more than 32 bits and in float32 otherwise, and encode the result."""
        return Payload(self.layout, encode_update(self.inner, self.rotate(update), coins).values)

    def decode(self, aggregate: Aggregate) -> Tensor:
        return self.rotate_back(inner_decoded(aggregate, self.layout, self.inner, self.padded))

    def rotate(self, update: Tensor) -> Tensor:
        """Return the rotated update as a vector; scales are calibrated on a sample that went through here."""
        require_floats(update, self.stream.shape)
        blocks = np.zeros(self.negative.shape, np.promote_types(update.dtype, np.float32))
        blocks.reshape(-1)[: update.size] = finite(update, LARGEST).reshape(-1)
        self._flip(blocks)
        transform(blocks)
        return blocks.reshape(-1)

    def rotate_back(self, rotated: Tensor) -> Tensor:
        """Return the tensor whose rotation is this vector; zeros that filled it are dropped."""
        blocks = rotated.reshape(self.negative.shape).copy()
        transform(blocks)
        self._flip(blocks)
        return blocks.reshape(-1)[: self.stream.size].reshape(self.stream.shape)

    def _flip(self, blocks: Tensor) -> None:
        np.negative(blocks, out=blocks, where=self.negative)


def padded_size(size: int, block_size: int) -> int:
    """Return how many coordinates the rotation of a tensor has: its size, rounded up to whole blocks."""
    require_block_size(block_size)
    return -(-size // block_size) * block_size


def require_block_size(block_size: int) -> None:
    """Require a size of the blocks of a rotation."""
    if type(block_size) is not int or block_size.bit_count() != 1 or not 1 < block_size <= MAXIMUM_BLOCK_SIZE:
        raise InvalidParameters(f"block_size is a power of two in 2..2^16; got {block_size!r}")


def transform(blocks: Tensor) -> None:
    """Multiply each column by H / sqrt(B) in place, B the number of rows, a power of two.

    A matrix of 1,024 rows is the Kronecker product of two of 32: two products of matrices that stay in the cache take
    the place of ten passes of butterflies.

    H is symmetric, so doing it twice changes nothing but the rounding. A value that is not finite, or overflows because
    it is near the end of the floats' range, makes its column hold NaN or infinity.
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
