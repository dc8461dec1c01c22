"""Kinds of noise, their variances and deltas, and the norm of a client's own values, for which noise is chosen."""

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
"""About 10^-15. Noise that is drawn is within 2^-60 of its distribution, which no accountant counts."""


class NoiseKind(Enum):
    """Which noise is drawn; both are of mean zero and on the integers."""

    DISCRETE_GAUSSIAN = 1
    SKELLAM = 2


GREATEST_VARIANCE: Final = {NoiseKind.DISCRETE_GAUSSIAN: (1 << 80) - 1, NoiseKind.SKELLAM: 1 << 30}


def require_variance(variance: Fraction, kind: NoiseKind) -> None:
    """Refuse a variance that this kind of noise is not drawn with.

    Raises:
        InvalidParameters: it is below 1/16, above 2^80 - 1 (discrete Gaussian) or 2^30 (Skellam), or a fraction of
            terms that have more than 128 bits.
    """
    if type(variance) is not Fraction or type(kind) is not NoiseKind:
        raise Misuse(f"a variance is a Fraction, for a NoiseKind; got {type(variance).__name__}")
    if not LEAST_VARIANCE <= variance <= GREATEST_VARIANCE[kind]:
        raise InvalidParameters(
            f"the variance of {kind.name} noise is in {LEAST_VARIANCE}..{GREATEST_VARIANCE[kind]}, in integer steps "
            "squared; change the noise multiplier or the scale, or take DISCRETE_GAUSSIAN where more is needed"
        )
    if max(variance.numerator, variance.denominator) >> _TERM_BITS:
        raise InvalidParameters(
            f"a variance is a fraction of two integers below 2^{_TERM_BITS}; round the noise multiplier to fewer digits"
        )


def require_delta(delta: object) -> None:
    """Refuse a delta that bounds nothing, or that is finer than the noise."""
    # Written so that NaN is refused too.
    if type(delta) not in {float, int} or not LEAST_DELTA <= delta < 1:  # type: ignore[operator]
        raise InvalidParameters(f"a delta is a number from {LEAST_DELTA:.3g} (2^-50) and below 1; got {delta!r}")


# --- The norm, which only the client itself can bound -----------------------------------------------------------------

_PIECE = 1 << 14
_LOW_BITS = 24
_SIGNED_BITS = 63
_EXACT_BITS = 2 * _LOW_BITS
"""Up to this width, products of halves of 24 bits, added up over a piece, stay below 2^63."""


def squared_norm(ring: Ring, vector: RingVector) -> int:
    """Return the sum of the squares of the integers that the elements stand for, exactly."""
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
    """Scale a vector down to the bound, in integers and towards zero; one within the bound stays as it is.

    The same work is done in both cases, piece by piece: each value times the bound, divided by the larger of bound and
    norm. Values are whole steps, so that a direction can change by less than a step in each coordinate.
    """
    # No smaller than the root.
    norm = isqrt(max(0, squared_norm(ring, vector) - 1)) + 1
    divisor = max(norm, l2_bound)
    is_narrow = max(ring.modulus_bits - 1 + l2_bound.bit_length(), divisor.bit_length()) < _SIGNED_BITS
    for start in range(0, vector.size, _PIECE):
        values = ring.lift(vector[start : start + _PIECE])
        wide = values.astype(np.int64 if is_narrow else np.object_)
        scaled = np.sign(wide) * (np.abs(wide) * l2_bound // divisor)
        vector[start : start + _PIECE] = scaled.astype(np.int64).astype(ring.word)
    reduce_into(vector, ring.modulus_bits)
