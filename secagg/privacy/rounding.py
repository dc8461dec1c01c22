"""Random rounding to integers with a bounded norm, and rings that fit sums with their noise.

A vector of length x, rounded at random in d coordinates, has a length of at most

    sqrt(x^2 + d/4 + sqrt(2 ln(1/beta)) (x + sqrt(d)/2))

except with probability beta, which is exp(-1/2) here ([KLS21] Theorem 1). A client repeats the rounding until this
holds, so it is a bound, at the cost of at most 2.5 expected tries. d counts the rounded coordinates: the padded length,
after a rotation.

A rotation spreads a vector over its coordinates. After it, the coordinates of a sum of n updates of length x have a
standard deviation of at most n x / sqrt(d), reached if all are equal; rounding adds n/4 to the variance, and noise adds
its own. A ring of 4 deviations wraps 63 coordinates in a million, each by 8: 0.41 % of the energy, which costs accuracy
but no privacy. Without a rotation the ring holds the worst sum and 9.1 deviations of the noise, which 10^7 coordinates
exceed with probability 2^-40.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import isfinite, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.contract.layout import RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring
from secagg.crypto.secret import draw_exactly, overwrite
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse

ROTATED_DEVIATIONS: Final = 4.0
WORST_DEVIATIONS: Final = 9.1
_TAIL: Final = 1.0
"""sqrt(2 ln(1 / beta)) for beta = exp(-1/2), which sessions agree on as part of their bound."""
_MAXIMUM_TRIALS: Final = 128
"""A rounding is too long with probability at most 0.61; after this many attempts the coins are refused."""
_COIN_BITS: Final = 32
_ROOT_DIGITS: Final = 60


def rounded_norm(norm: float, length: int) -> float:
    """Return the norm bound of a rounded vector with this norm, in steps."""
    likely = sqrt(norm**2 + length / 4 + _TAIL * (norm + sqrt(length) / 2))
    return min(likely, norm + sqrt(length))


def unrounded_norm(l2_bound: int, length: int) -> float:
    """Return the maximum norm whose rounding can satisfy a bound; refuse a bound that none satisfies."""
    if type(l2_bound) is not int or l2_bound <= rounded_norm(0, length):
        raise InvalidParameters(
            f"{length} rounded values cannot meet a bound of {l2_bound} steps: the minimum is "
            f"{int(rounded_norm(0, length)) + 1}, a useful bound several times that; use more bits or fewer values"
        )
    inner = l2_bound**2 - length / 4 - _TAIL * sqrt(length) / 2
    likely = sqrt(max(0.0, inner + _TAIL**2 / 4)) - _TAIL / 2
    return max(likely, l2_bound - sqrt(length))


def rounded(vector: npt.NDArray[np.float64], l2_bound: int, coins: Coins) -> npt.NDArray[np.int64]:
    """Return random integers whose norm is within the bound; their mean is the vector, up to the bound's effect.

    Implements: [KLS21] Algorithm 1, conditional rounding.
    """
    squared = float(vector @ vector)
    limit = unrounded_norm(l2_bound, vector.size)
    if not isfinite(squared) or sqrt(squared) > limit * (1 + 2**-20):
        raise CapacityExceeded(
            f"a vector to round has length {sqrt(squared):.6g}, above the limit of {limit:.6g}; clip it"
        )
    floors = np.floor(vector)
    excess = (vector - floors) * (1 << _COIN_BITS)
    least = floors.astype(np.int64)
    for _ in range(_MAXIMUM_TRIALS):
        drawn = draw_exactly(_COIN_BITS // 8 * vector.size, coins)
        values = least + (np.frombuffer(drawn, dtype="<u4") < excess)
        overwrite(drawn)
        if int(values @ values) <= l2_bound**2:
            return values
    raise Misuse("no attempted rounding was short enough, so the coins are not uniform; repair their draw()")


def summed_deviation(norm: float, length: int, clients: int, noise_variance: float) -> float:
    """Return the standard deviation of a rotated sum's coordinate, if all updates are equal."""
    return sqrt(clients**2 * norm**2 / length + clients / 4 + noise_variance)


def room_for_noise(segment: RingSegment, l2_bound: int, clients: int, *, is_rotated: bool) -> Fraction:
    """Return the noise variance that a ring holds in addition to the largest sum, as in this module's docstring."""
    greatest = max(0, segment.ring.greatest - clients * segment.head_room)
    if not is_rotated:
        return (max(0, greatest - clients * l2_bound) / Fraction(WORST_DEVIATIONS)) ** 2
    plain = summed_deviation(unrounded_norm(l2_bound, segment.length), segment.length, clients, 0)
    return Fraction(max(0.0, (greatest / ROTATED_DEVIATIONS) ** 2 - plain**2))


def rounded_root(square: Fraction, rounding: str) -> Decimal:
    """Return the root of a number to four digits, with a rounding mode of ``decimal``, for suggestions in messages."""
    with localcontext(prec=_ROOT_DIGITS):
        root = (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()
    return Context(prec=4, rounding=rounding).plus(root)


def bound_for_ring(modulus_bits: int, length: int, clients: int, noise_share: float) -> int:
    """Return the largest bound (the finest steps) whose rotated sums with noise fit a ring.

    Args:
        noise_share: the variance of the sum's noise over the square of the bound.
    Raises:
        InvalidParameters: no bound fits; the message names a ring that has one.
    """

    def fits(bound: int, greatest: int) -> bool:
        norm = unrounded_norm(bound, length)
        return ROTATED_DEVIATIONS * summed_deviation(norm, length, clients, noise_share * bound**2) <= greatest

    least = int(rounded_norm(0, length)) + 1
    low, high = least, Ring(modulus_bits).greatest
    if high < least or not fits(least, high):
        wider = (bits for bits in range(modulus_bits + 1, 64) if fits(2 * least, Ring(bits).greatest))
        raise InvalidParameters(
            f"{modulus_bits} bits are too few for a sum of {clients} updates of {length} values with this noise; use "
            f"{next(wider, 64)} bits, fewer clients or less noise"
        )
    greatest = high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle, greatest) else (low, middle - 1)
    return low
