"""Random pruning: all clients send the same few coordinates of a tensor, and an inner scheme encodes them.

A public seed selects the coordinates. For a tensor of n elements and a sparsity of s, an exact fraction, the mask keeps

    k = n - floor(s n)

coordinates, in row-major order. The stream of the tensor (``secagg.compression.common``, label PRUNING_MASK,
attempt 0) is read as n little-endian words of 32 bits, one for each coordinate, and the k coordinates with the smallest
words are kept. If the k-th smallest word equals the next smallest, the draw is repeated with the next attempt, so every
set of k coordinates is equally likely. ``tests/vectors/compression/random_pruning.json`` contains test vectors.
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
    """Keeps the coordinates of a tensor in a common mask; an inner scheme encodes them as a vector.

    Implements: [PGC+22] §4.2.2.

    Kept coordinates have the inner scheme's error. Elsewhere the decoded sum is zero; kept values are not scaled up to
    compensate.
    """

    stream: PublicStream
    """Source of the mask: public seed, round, and the tensor's name and shape."""
    sparsity: Fraction | str
    """Share of removed coordinates: a fraction, or a decimal number as text, such as "0.9"."""
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
        """Mask of the kept coordinates, in the tensor's shape; drawn with the first update."""
        return pruning_mask(self.stream, self.sparsity)

    def _layout(self) -> Layout:
        # The mask depends on the sparsity only through the number of kept coordinates.
        encoded = self.stream.encode() + struct.pack(">Q", self.kept) + self.inner.layout.version
        return Layout(self.inner.layout.segments, public_parameters_digest("random_pruning", encoded))

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def encode(self, update: Tensor, coins: Coins) -> Payload:
        require_floats(update, self.stream.shape)
        return Payload(self.layout, encode_update(self.inner, update[self.mask], coins).values)

    def decode(self, aggregate: Aggregate) -> Tensor:
        """Return the sum of the contributors' pruned updates, with zeros at removed coordinates."""
        values: Tensor = inner_decoded(aggregate, self.layout, self.inner, self.kept)
        total = np.zeros(self.stream.shape, dtype=values.dtype)
        total[self.mask] = values
        return total


def exact_sparsity(sparsity: Fraction | str) -> Fraction:
    """Return the sparsity as an exact fraction.

    Raises:
        Misuse: it is a float, which seldom equals the decimal as written: 0.29 * 100 is below 29.
        InvalidParameters: it is not a number in [0, 1).
    """
    if type(sparsity) not in (Fraction, str):
        raise Misuse(f"a sparsity must be a Fraction, or a number as text; got {type(sparsity).__name__}")
    try:
        exact = Fraction(sparsity)
    except (ValueError, ZeroDivisionError):
        raise InvalidParameters(f'{sparsity!r} is not a number; write "0.9" or "9/10"') from None
    if not 0 <= exact < 1:
        raise InvalidParameters(f"a sparsity must be in [0, 1); got {exact}, which would keep nothing")
    return exact


def kept_count(size: int, sparsity: Fraction | str) -> int:
    """Return the number of kept coordinates: size - floor(sparsity * size), in exact arithmetic."""
    require_integer("a size", size, 1)
    return size - int(exact_sparsity(sparsity) * size)


def pruning_mask(stream: PublicStream, sparsity: Fraction | str) -> Mask:
    """Return the read-only mask of kept coordinates, in the tensor's shape."""
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
