"""Samples integer noise: discrete Gaussian and Skellam, from uniform coins in integer arithmetic.

No floating point is used. A vector is drawn in pieces, so the additional memory is constant: a few megabytes, and for
Skellam a table of up to 8 MB, or twelve times that while it is computed.

The discrete Gaussian is exact. Its decisions compare a uniform real with a rational. 32 bits of the real and two bounds
of the rational decide nearly all of them; rational arithmetic and more coins decide the rest. 128 unfinished trials in
a row raise an error; with uniform coins their probability is below 2^-180.

Deviation: Skellam noise is drawn from a table of its distribution function, not from two Poisson variables; a drawn
value is within 2^-100 of Skellam in total variation. A release of 2^40 values is then within 2^-60 of an exact one,
which adds at most (1 + e^epsilon) 2^-60 to its delta.

Not constant time: the time of a piece depends on its rejected candidates, and the path of a table search on the value.
An observer of a release's time or memory accesses learns something about the noise, though only over thousands of
values at once.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from math import ceil, isqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly, overwrite
from secagg.errors import InvalidParameters, Misuse

from .kinds import NoiseKind, require_variance

_PIECE: Final = 1 << 15
"""Number of values at a time: the arrays of a piece fit the second-level cache."""
_FRACTION_BITS: Final = 23
"""Bounds of an exponent are multiples of 2^-23: a remainder below 2^40, shifted by 23 bits, fits an int64."""
_COIN_BITS: Final = 32
_MAXIMUM_TRIALS: Final = 128
"""After this many failed trials the coins are refused; it also keeps values below 2^48."""
_TABLE_BITS: Final = 128

Vector = npt.NDArray[np.int64]
Boundaries = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""The high and low words of numbers of 128 bits, in order."""
Exponent = Callable[[int], Fraction]
"""Returns the exact exponent of the element at a position."""


def sample(kind: NoiseKind, variance: Fraction, length: int, coins: Coins) -> Vector:
    """Return ``length`` independent values.

    Implements: [CKS20] Algorithm 3 for the discrete Gaussian; the Skellam distribution of [AKL21] for Skellam.
    Args:
        variance: for Skellam, twice the mean of each of its two Poisson variables; for the discrete Gaussian sigma^2,
        on which privacy depends. The true variance is lower if sigma^2 is below 1: 0.215 for 1/4.
    Security: add each value once; noise used twice cancels in the difference. The coins are overwritten, but not the
    result, which the caller must forget, nor numpy's temporaries.
    """
    require_variance(variance, kind)
    if type(length) is not int or length < 0:
        raise InvalidParameters(f"length must be an integer of at least 0; got {length!r}")
    values = np.empty(length, dtype=np.int64)
    words = _skellam_table(variance) if kind is NoiseKind.SKELLAM else None
    for start in range(0, length, _PIECE):
        piece = values[start : start + _PIECE]
        if words is None:
            _fill_with_gaussian(piece, variance, coins)
        else:
            magnitudes = place_in(words, _words("<u8", piece.size, coins), coins)
            piece[:] = np.where(_bits(piece.size, coins), -magnitudes, magnitudes)
    return values


# --- The discrete Gaussian --------------------------------------------------------------------------------------------


def _fill_with_gaussian(values: Vector, variance: Fraction, coins: Coins) -> None:
    """Draw by rejection from discrete Laplace candidates, with an integer scale above sigma."""
    scale = isqrt(variance.numerator // variance.denominator) + 1
    for _ in range(_MAXIMUM_TRIALS):
        if not values.size:
            return
        candidates = _laplace(scale, min(_PIECE, 3 * values.size + 16), coins)
        accepted = candidates[_accept(candidates, scale, variance, coins)][: values.size]
        values[: accepted.size] = accepted
        values = values[accepted.size :]
    raise _not_uniform()


def _laplace(scale: int, size: int, coins: Coins) -> Vector:
    """Return at most ``size`` values y, with probabilities proportional to exp(-|y| / scale); [CKS20] Algorithm 2."""
    offsets = _below(scale, size, coins)
    low = (offsets << _FRACTION_BITS) // scale
    kept = offsets[_with_probability_exp(low, low + 1, lambda at: Fraction(int(offsets[at]), scale), coins)]
    magnitudes = kept + scale * _successes(kept.size, coins)
    negative = _bits(kept.size, coins)
    # Reject one sign of zero, or zero would be drawn twice as often.
    kept_signs: Vector = np.where(negative, -magnitudes, magnitudes)[~(negative & (magnitudes == 0))]
    return kept_signs


def _accept(candidates: Vector, scale: int, variance: Fraction, coins: Coins) -> npt.NDArray[np.intp]:
    """Return the positions of the accepted candidates; [CKS20] Algorithm 3.

    It accepts y with probability exp(-(|y| - variance / scale)^2 / (2 variance)). With x = |y| / scale and
    c = variance / scale^2, which is between 1/16 and 1, the exponent is (x - c)^2 / (2 c).
    """
    magnitudes = np.abs(candidates)
    periods, rest = np.divmod(magnitudes, scale)
    centre = int(variance / scale**2 * (1 << _FRACTION_BITS))
    distance = np.abs((periods << _FRACTION_BITS) + (rest << _FRACTION_BITS) // scale - centre)
    # x and c are both rounded down by less than a unit, so their distance is off by less than one.
    low = np.maximum(distance - 1, 0) ** 2 // (2 * (centre + 1))
    high = (distance + 1) ** 2 // (2 * centre) + 1
    whole = low >> _FRACTION_BITS

    def exponent(at: int) -> Fraction:
        return (int(magnitudes[at]) - variance / scale) ** 2 / (2 * variance)

    for at in np.flatnonzero(whole != (high - 1) >> _FRACTION_BITS).tolist():
        low[at] = int(exponent(at) * (1 << _FRACTION_BITS))
        high[at] = low[at] + 1
        whole[at] = low[at] >> _FRACTION_BITS
    # exp(-exponent) is the product of the probabilities of its integer and fractional parts.
    left = np.flatnonzero(_successes(candidates.size, coins) >= whole)
    low, high = low - (whole << _FRACTION_BITS), high - (whole << _FRACTION_BITS)
    is_accepted = _with_probability_exp(
        low[left], high[left], lambda at: exponent(int(left[at])) - int(whole[left[at]]), coins
    )
    return left[is_accepted]


def _successes(size: int, coins: Coins) -> Vector:
    """Return the number of successes with probability 1/e before the first failure."""
    successes = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    for _ in range(_MAXIMUM_TRIALS):
        if not going.size:
            return successes
        one = np.full(going.size, 1 << _FRACTION_BITS)
        going = going[_with_probability_exp(one, one, lambda _: Fraction(1), coins)]
        successes[going] += 1
    raise _not_uniform()


def _with_probability_exp(low: Vector, high: Vector, exact: Exponent, coins: Coins) -> npt.NDArray[np.bool_]:
    """Return true with probability exp(-exponent) for exponents in [0, 1]; [CKS20] Algorithm 1.

    Args:
        low, high: bounds of the exponents, in units of 2^-23.
        exact: the exact exponents, for comparisons that the bounds do not decide.
    """
    outcome = np.zeros(low.size, dtype=np.bool_)
    going = np.arange(low.size)
    for trial in range(1, _MAXIMUM_TRIALS):
        # The uniform real starts with the drawn bits: it is in [drawn, drawn + 1) 2^-32.
        drawn = _words("<u4", going.size, coins).astype(np.int64)
        shift = _COIN_BITS - _FRACTION_BITS
        is_less = (drawn + 1) * trial <= low[going] << shift
        is_open = ~is_less & (drawn * trial < high[going] << shift)
        for at in np.flatnonzero(is_open).tolist():
            is_less[at] = _is_less(int(drawn[at]), exact(int(going[at])) / trial, coins)
        outcome[going[~is_less]] = trial % 2
        going = going[is_less]
        if not going.size:
            return outcome
    raise _not_uniform()


def _is_less(drawn: int, probability: Fraction, coins: Coins) -> bool:
    """Compare the uniform real that starts with the drawn bits with a probability, drawing more bits as needed."""
    for more in range(_MAXIMUM_TRIALS):
        scaled = probability * (1 << (_COIN_BITS * (more + 1)))
        if drawn + 1 <= scaled or drawn >= scaled:
            return drawn < scaled
        drawn = drawn << _COIN_BITS | int(_words("<u4", 1, coins)[0])
    raise _not_uniform()


# --- Skellam ----------------------------------------------------------------------------------------------------------


def _skellam_table(variance: Fraction) -> Boundaries:
    """Return the distribution function of the magnitude, P(|X| <= 0), P(|X| <= 1), ..., as high and low 64-bit words.

    P(X = k) is exp(-v) I_k(v) for a variance v, and the Bessel functions obey I_(k-1) = I_(k+1) + (2 k / v) I_k. Run
    downwards from far in the tail, the recurrence adds only positive terms, so its start has no effect and relative
    errors stay small: each division truncates less than 2^-160 of a term. Normalization needs no exponential.
    """
    first, *others = skellam_weights(variance)
    return distribution_function([first, *(2 * weight for weight in others)])


def skellam_weights(variance: Fraction) -> list[int]:
    """Return numbers proportional to the probabilities of 0, 1, 2, ..., up to far in the tail."""
    # Beyond this P(|X| > k) <= 2 exp(-k^2 / (2 v + 2 k / 3)) is below 2^-150.
    last = 80 + isqrt(230 * ceil(variance))
    outer, inner = 0, 1 << 160
    weights = [inner]
    for order in range(last, 0, -1):
        outer, inner = inner, outer + 2 * order * variance.denominator * inner // variance.numerator
        weights.append(inner)
    return weights[::-1]


def distribution_function(weights: list[int]) -> Boundaries:
    """Return the sums of weights from the first on, over that of all, as high and low 64-bit words; the last is 1."""
    total = sum(weights)
    sums = [(below << _TABLE_BITS) // total for below in accumulate(weights[:-1])]
    high = np.array([entry >> 64 for entry in sums], dtype=np.uint64)
    return high, np.array([entry & (1 << 64) - 1 for entry in sums], dtype=np.uint64)


def place_in(boundaries: Boundaries, drawn: npt.NDArray[Any], coins: Coins) -> Vector:
    """Return the number of entries that a uniform number, given its high words, is not below."""
    high, low = boundaries
    values = np.searchsorted(high, drawn, side="right").astype(np.int64)
    # The high words decide unless they are equal; only then are low words drawn.
    for at in np.flatnonzero(high[np.maximum(values - 1, 0)] == drawn).tolist():
        first = np.count_nonzero(high < drawn[at])
        values[at] = first + np.count_nonzero(low[first : values[at]] <= _words("<u8", 1, coins))
    return values


# --- Coins ------------------------------------------------------------------------------------------------------------


def _below(bound: int, size: int, coins: Coins) -> Vector:
    """Return uniform integers in [0, bound): words of 64 bits beyond the last multiple of the bound are drawn again."""
    values = np.zeros(size, dtype=np.int64)
    pending = np.arange(size if bound > 1 else 0)
    greatest = np.uint64((1 << 64) - (1 << 64) % bound - 1)
    for _ in range(_MAXIMUM_TRIALS):
        if not pending.size:
            return values
        drawn = _words("<u8", pending.size, coins)
        values[pending] = drawn % np.uint64(bound)
        pending = pending[drawn > greatest]
    raise _not_uniform()


def _bits(size: int, coins: Coins) -> npt.NDArray[np.bool_]:
    return np.unpackbits(_words("u1", -(-size // 8), coins))[:size].astype(np.bool_)


def _words(form: str, size: int, coins: Coins) -> npt.NDArray[np.unsignedinteger[Any]]:
    drawn = draw_exactly(np.dtype(form).itemsize * size, coins)
    words = np.frombuffer(drawn, dtype=form).copy()
    overwrite(drawn)
    return words


def _not_uniform() -> Misuse:
    return Misuse("too many trials failed, so the coins are not uniform; repair their draw()")
