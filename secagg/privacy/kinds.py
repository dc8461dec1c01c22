"""Kinds of noise, the variances that each is drawn with, and the deltas that drawn noise supports."""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from typing import Final

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
