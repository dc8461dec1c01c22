"""Samples clients' noise from a table: the distributions of ``noise``, in a few nanoseconds per value.

The first 16 bits of a uniform number decide nearly every value: a table has the value if all numbers with these bits
give the same one. Otherwise 112 more bits are drawn and compared with the distribution function. A value is within
2^-100 of its distribution in total variation.

Deviation: the discrete Gaussian comes from the table too, not from [CKS20] Algorithm 3, which takes a hundred times as
long. 2^40 values are then within 2^-60 of exact ones, which adds at most (1 + e^epsilon) 2^-60 to a delta.

Not constant time: the table's cache lines that are touched depend on the noise of thousands of values at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.mask_expansion import Generator, expand
from secagg.crypto.ring import Ring, RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite

from .kinds import NoiseKind, require_variance
from .noise import distribution_function, place_in, sample, skellam_weights

GREATEST_TABLED: Final = 1 << 24
"""Above this variance a table is too large, and ``noise.sample`` draws instead."""
_KEY_BYTES: Final = 16
_PREFIX_BITS: Final = 16
_PIECE: Final = 1 << 15
_KEY_VALUES: Final = 1 << 24
"""Drawn from one key: 32 MB of its stream."""
_SCALE_BITS: Final = 256
_LEAST_BITS: Final = 160
_DIGITS: Final = 90

Values = npt.NDArray[np.signedinteger[Any]]


def add_noise_into(vector: RingVector, ring: Ring, kind: NoiseKind, variance: Fraction, coins: Coins) -> None:
    """Add a fresh value to each element, modulo 2^p; refused arguments change nothing."""
    ring.require_form(vector)
    require_variance(variance, kind)
    position = 0
    for piece in pieces(kind, variance, vector.size, coins):
        part = vector[position : position + piece.size]
        add_into(part, piece.astype(ring.word))
        reduce_into(part, ring.modulus_bits)
        position += piece.size


def pieces(kind: NoiseKind, variance: Fraction, length: int, coins: Coins) -> Iterator[Values]:
    """Yield ``length`` independent values in pieces of some thousands; the next piece overwrites the last.

    Security: keys of the streams are drawn from the coins, used once and overwritten.
    """
    if variance > GREATEST_TABLED:
        for start in range(0, length, _PIECE):
            drawn = sample(kind, variance, min(_PIECE, length - start), coins)
            yield drawn
            drawn[:] = 0
        return
    table = _Table.of(kind, variance)
    for start in range(0, length, _KEY_VALUES):
        with Secret.random("noise key", _KEY_BYTES, coins) as key:
            prefixes = expand(key, Ring(_PREFIX_BITS), min(_KEY_VALUES, length - start))
        try:
            for first in range(0, prefixes.size, _PIECE):
                piece = table.values_of(prefixes[first : first + _PIECE], coins)
                yield piece
                piece[:] = 0
        finally:
            prefixes[:] = 0


class _Table:
    """The distribution function of one kind and variance, and the values decided by 16 bits."""

    def __init__(self, kind: NoiseKind, variance: Fraction) -> None:
        weights = skellam_weights(variance) if kind is NoiseKind.SKELLAM else _gaussian_weights(variance)
        self._least = 1 - len(weights)
        self._boundaries = distribution_function([*weights[:0:-1], *weights])
        begins_at = self._boundaries[0] >> np.uint64(64 - _PREFIX_BITS)
        is_open = np.zeros(1 << _PREFIX_BITS, dtype=np.bool_)
        is_open[begins_at.astype(np.intp)] = True
        places = np.searchsorted(begins_at, np.arange(1 << _PREFIX_BITS), side="left") + self._least
        form = np.int16 if -self._least < np.iinfo(np.int16).max else np.int32
        self._decided: Values = places.astype(form)
        self._open = int(np.iinfo(form).min)
        self._decided[is_open] = self._open

    @staticmethod
    @lru_cache(maxsize=8)
    def of(kind: NoiseKind, variance: Fraction) -> _Table:
        return _Table(kind, variance)

    def values_of(self, prefixes: npt.NDArray[Any], coins: Coins) -> Values:
        """Return the values of uniform numbers that start with these 16 bits."""
        values = np.take(self._decided, prefixes, mode="clip")
        left = np.flatnonzero(values == self._open)
        if left.size:
            # 48 more bits make the high word; the low 64 bits are drawn only at a boundary.
            rest = draw_exactly(8 * left.size, coins)
            high = np.frombuffer(rest, dtype="<u8") >> np.uint64(_PREFIX_BITS)
            high |= prefixes[left].astype(np.uint64) << np.uint64(64 - _PREFIX_BITS)
            overwrite(rest)
            values[left] = place_in(self._boundaries, high, coins) + self._least
        return values


def _gaussian_weights(variance: Fraction) -> list[int]:
    """Return exp(-k^2 / (2 v)) for k = 0, 1, 2, ... down to 2^-160, as multiples of 2^-256, off by less than 2^-220."""
    with localcontext(prec=_DIGITS):
        exponent = Decimal(variance.denominator) / (2 * Decimal(variance.numerator))
        factor = int((-exponent).exp() * (1 << _SCALE_BITS))
    square, weight, weights = factor * factor >> _SCALE_BITS, 1 << _SCALE_BITS, list[int]()
    # Each weight is the previous one times exp(-(2 k - 1) / (2 v)).
    while weight >> _SCALE_BITS - _LEAST_BITS:
        weights.append(weight)
        weight = weight * factor >> _SCALE_BITS
        factor = factor * square >> _SCALE_BITS
    return weights


_BYTES = Ring(8)


class SeededCoins(Confined):
    """Coins from a key's stream, for noise that must be equal when it is drawn again.

    Security: the coins are as secret as the seed, which must have no other use; equal seeds give equal coins.
    """

    def __init__(self, seed: Secret) -> None:
        """Start the stream of a seed of 16 or 32 bytes; the caller wipes the seed."""
        self._seed, self._drawn = seed, 0

    def draw(self, count: int) -> bytearray:
        stream = expand(self._seed, _BYTES, count, start=self._drawn, generator=Generator.CTR)
        self._drawn += count
        drawn = bytearray(stream.tobytes())
        stream[:] = 0
        return drawn

    def __repr__(self) -> str:
        return f"<SeededCoins, {self._drawn} bytes drawn>"
