"""Random pruning: all clients send the same few coordinates of a tensor, and an inner scheme encodes them.

Which ones a public seed says. For a tensor of n elements and a sparsity of s, an exact fraction, the mask keeps

    k = n - floor(s n)

of them, in row-major order. The stream of the tensor (``secagg.compression.common``, label PRUNING_MASK,
attempt 0) is read as n little-endian words of 32 bits, one for each coordinate, and the k coordinates with the smallest
words are kept. If the k-th smallest word equals the next smallest, the next attempt decides in the same way; so every
set of k coordinates is equally likely. ``tests/vectors/compression/random_pruning.json`` holds masks to compare with.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, LinearDecoder, Payload, encode_update, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer

from .common import PublicStream, inner_decoded, require_floats

Tensor = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
_WORD = np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class RandomPruning:
    """The coordinates of a tensor that a common mask keeps, as a vector that an inner scheme encodes.

    Implements: [PGC+22] §4.2.2.

    The error is the inner scheme's where the mask keeps a coordinate. Elsewhere the decoded sum is zero, and nothing is
    scaled up to make amends.
    """

    stream: PublicStream
    """Gives the mask: the public seed, the round, the tensor's name and its shape."""
    sparsity: Fraction | str
    """The share of coordinates that are left out: a fraction, or a decimal number as text, such as "0.9"."""
    inner: LinearDecoder[Any]
    """Encodes a vector of ``kept`` floats."""
    kept: int = field(init=False, repr=False, compare=False)
    """Number of kept coordinates."""
    layout: Layout = field(init=False, repr=False, compare=False)
    """The inner segments; the version covers the stream, the sparsity and the inner version."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", exact_sparsity(self.sparsity))
        object.__setattr__(self, "kept", kept_count(self.stream.size, self.sparsity))
        object.__setattr__(self, "layout", self._layout())

    @cached_property
    def mask(self) -> Mask:
        """Which coordinates are kept, in the tensor's shape; drawn with the first update."""
        return pruning_mask(self.stream, self.sparsity)

    def _layout(self) -> Layout:
        # The mask depends on the sparsity through the number of kept coordinates alone.
        encoded = self.stream.encode() + struct.pack(">Q", self.kept) + self.inner.layout.version
        return Layout(self.inner.layout.segments, public_parameters_digest("random_pruning", encoded))

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def encode(self, update: Tensor, coins: Coins) -> Payload:
        require_floats(update, self.stream.shape)
        return Payload(self.layout, encode_update(self.inner, update[self.mask], coins).values)

    def decode(self, aggregate: Aggregate) -> Tensor:
        """Return the sum of the contributors' pruned updates, with zeros where the mask removes a coordinate."""
        values: Tensor = inner_decoded(aggregate, self.layout, self.inner, self.kept)
        total = np.zeros(self.stream.shape, dtype=values.dtype)
        total[self.mask] = values
        return total


def exact_sparsity(sparsity: Fraction | str) -> Fraction:
    """Return the sparsity as an exact fraction.

    Raises:
        Misuse: it is a float, which is seldom the number that was written: 0.29 * 100 is below 29.
        InvalidParameters: it is not a number in [0, 1).
    """
    if type(sparsity) not in (Fraction, str):
        raise Misuse(f"a sparsity is a Fraction, or a number as text; got {type(sparsity).__name__}")
    try:
        exact = Fraction(sparsity)
    except (ValueError, ZeroDivisionError):
        raise InvalidParameters(f'{sparsity!r} is not a number; write "0.9" or "9/10"') from None
    if not 0 <= exact < 1:
        raise InvalidParameters(f"a sparsity lies in [0, 1); got {exact}, and nothing would be kept")
    return exact


def kept_count(size: int, sparsity: Fraction | str) -> int:
    """Return how many of ``size`` coordinates are kept: size - floor(sparsity * size), in exact arithmetic."""
    require_integer("a size", size, 1)
    return size - int(exact_sparsity(sparsity) * size)


def pruning_mask(stream: PublicStream, sparsity: Fraction | str) -> Mask:
    """Return which coordinates are kept, in the tensor's shape and read-only."""
    kept = kept_count(stream.size, sparsity)
    mask = np.ones(stream.size, dtype=np.bool_)
    for attempt in count():
        if kept == stream.size:
            break
        words = np.frombuffer(stream.read(Label.PRUNING_MASK, stream.size * _WORD.itemsize, attempt), dtype=_WORD)
        ordered = np.partition(words, (kept - 1, kept))
        if ordered[kept - 1] < ordered[kept]:
            mask = words <= ordered[kept - 1]
            break
    mask = mask.reshape(stream.shape)
    mask.flags.writeable = False
    return mask
