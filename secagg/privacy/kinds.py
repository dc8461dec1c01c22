"""Kinds of noise with their limits, and clipping of a client's values to the norm that the noise hides."""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from math import isqrt
from typing import Final

import numpy as np

from secagg.crypto.ring import Ring, RingVector, low_bits, reduce_into
from secagg.errors import InvalidParameters, Misuse

LEAST_VARIANCE: Final = Fraction(1, 16)
_TERM_BITS: Final = 128
LEAST_DELTA: Final = 2.0**-50
"""About 10^-15. Drawn noise is within 2^-60 of its distribution, an error that accountants ignore."""


class NoiseKind(Enum):
    """Distribution of the noise; both are on the integers with mean zero."""

    DISCRETE_GAUSSIAN = 1
    SKELLAM = 2


GREATEST_VARIANCE: Final = {NoiseKind.DISCRETE_GAUSSIAN: (1 << 80) - 1, NoiseKind.SKELLAM: 1 << 30}


def require_variance(variance: Fraction, kind: NoiseKind) -> None:
    """Refuse a variance that this kind of noise does not support.

    Raises:
        InvalidParameters: it is below 1/16, above 2^80 - 1 (discrete Gaussian) or 2^30 (Skellam), or a fraction of
            terms that have more than 128 bits.
    """
    if type(variance) is not Fraction or type(kind) is not NoiseKind:
        raise Misuse(f"a variance must be a Fraction, its kind a NoiseKind; got {type(variance).__name__}")
    if not LEAST_VARIANCE <= variance <= GREATEST_VARIANCE[kind]:
        raise InvalidParameters(
            f"the variance of {kind.name} noise must be between {LEAST_VARIANCE} and {GREATEST_VARIANCE[kind]} squared "
            "steps; change the noise multiplier or the scale, or use DISCRETE_GAUSSIAN for more noise"
        )
    if max(variance.numerator, variance.denominator) >> _TERM_BITS:
        raise InvalidParameters(
            f"a variance must be a fraction of integers below 2^{_TERM_BITS}; round the noise multiplier"
        )


def require_delta(delta: object) -> None:
    """Refuse a delta of 1 or more, or one that is finer than the noise."""
    # This form refuses NaN too.
    if type(delta) not in {float, int} or not LEAST_DELTA <= delta < 1:  # type: ignore[operator]
        raise InvalidParameters(f"delta must be at least {LEAST_DELTA:.3g} (2^-50) and below 1; got {delta!r}")


# --- The norm, which only the client itself can bound -----------------------------------------------------------------

_PIECE = 1 << 14
_LOW_BITS = 24
_SIGNED_BITS = 63
_EXACT_BITS = 2 * _LOW_BITS
"""Up to this width, sums over a piece of products of 24-bit halves stay below 2^63."""


def squared_norm(ring: Ring, vector: RingVector) -> int:
    """Return the exact sum of squares of the integers that the elements represent."""
    total = 0
    for start in range(0, vector.size, _PIECE):
        values = ring.lift(vector[start : start + _PIECE])
        if ring.modulus_bits > _EXACT_BITS:
            total += sum(value * value for value in values.tolist())
            continue
        wide = values.astype(np.int64)
        high, low = wide >> _LOW_BITS, wide & low_bits(_LOW_BITS)
        squares = int(np.dot(high, high)), int(np.dot(high, low)), int(np.dot(low, low))
        total += (squares[0] << 2 * _LOW_BITS) + (squares[1] << _LOW_BITS + 1) + squares[2]
    return total


def clip_into(ring: Ring, vector: RingVector, l2_bound: int) -> None:
    """Scale a vector down to the bound, in integers and towards zero; a vector within the bound does not change.

    Both cases do the same work, piece by piece: each value times the bound, divided by the larger of bound and norm.
    Values are whole steps, so each coordinate can be off by less than a step.
    """
    # Rounded up.
    norm = isqrt(max(0, squared_norm(ring, vector) - 1)) + 1
    divisor = max(norm, l2_bound)
    is_narrow = max(ring.modulus_bits - 1 + l2_bound.bit_length(), divisor.bit_length()) < _SIGNED_BITS
    for start in range(0, vector.size, _PIECE):
        values = ring.lift(vector[start : start + _PIECE])
        wide = values.astype(np.int64 if is_narrow else np.object_)
        scaled = np.sign(wide) * (np.abs(wide) * l2_bound // divisor)
        vector[start : start + _PIECE] = scaled.astype(np.int64).astype(ring.word)
    reduce_into(vector, ring.modulus_bits)
