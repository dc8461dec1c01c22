"""Distributions of noise, computed from their definitions, and statistical tests of samples against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import count, takewhile
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.privacy.kinds import NoiseKind

Vector = npt.NDArray[np.signedinteger[Any]]
WORST_DEVIATION = 4.5
"""Limit for a standard normal variable: seeds are fixed, and a correct sampler fails with one in 150,000 of them."""


def normalised(weights: Iterator[Decimal]) -> list[Decimal]:
    """Return weights of 0, 1, 2, ... as probabilities, up to the first that is far below a test's resolution."""
    first = next(weights)
    tail = list(takewhile(lambda weight: weight > first * Decimal("1e-60"), weights))
    total = first + 2 * sum(tail)
    return [weight / total for weight in (first, *tail)]


def gaussian_pmf(variance: Fraction) -> list[Decimal]:
    with localcontext(prec=80):
        exponent = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
        return normalised((-exponent * k * k).exp() for k in count())


def skellam_pmf(variance: Fraction) -> list[Decimal]:
    """Return the distribution of the difference of two Poisson variables, each of mean v / 2."""
    with localcontext(prec=80):
        half = Decimal(variance.numerator) / Decimal(2 * variance.denominator)
        terms = 200 + 10 * (isqrt(int(half)) + int(half))
        poisson = [(-half).exp()]
        for k in range(1, terms):
            poisson.append(poisson[-1] * half / k)
        return normalised(
            sum((left * right for left, right in zip(poisson, poisson[k:], strict=False)), Decimal(0))
            for k in range(terms)
        )


PMFS: dict[NoiseKind, Callable[[Fraction], list[Decimal]]] = {
    NoiseKind.DISCRETE_GAUSSIAN: gaussian_pmf,
    NoiseKind.SKELLAM: skellam_pmf,
}


def deviation(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Return the chi-square statistic as a standard normal variable, by Wilson and Hilferty's cube root."""
    statistic = sum((seen - due) ** 2 / due for seen, due in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def deviation_from(values: Vector, pmf: Sequence[Decimal]) -> float:
    """Compare with a distribution, value by value; both tails with fewer than 10 expected values are merged."""
    edge = max((k for k, probability in enumerate(pmf) if float(probability) * values.size > 10), default=0)
    inner = [float(pmf[abs(k)]) * values.size for k in range(-edge, edge + 1)]
    observed = [float(np.count_nonzero(values == k)) for k in range(-edge, edge + 1)]
    rest = 2 * float(sum(pmf[edge + 1 :])) * values.size
    if rest < 10:
        inner[0] += rest
        observed[0] += values.size - sum(observed)
        return deviation(observed, inner)
    return deviation([*observed, values.size - sum(observed)], [*inner, rest])
