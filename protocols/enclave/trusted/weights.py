"""Whether the arithmetic of weights singles somebody out: of a sum that is known, the remainder is known too.

Where all weights but a few are multiples of a number, the sum's remainder by it is that of those few, whatever the
others sent. Of 64, 64, 64 and 1, the remainder modulo 64 is the fourth client's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Final

from secagg.parameters import LEAST_COHORT

_TELLING_MODULUS: Final = 16
"""A remainder by this or more is of at least the minimum cohort; by less, it is of no single client."""


def single_somebody_out(weights: Mapping[int, int], minimum_cohort: int) -> bool:
    """Tell whether some remainder of a sum with these weights is that of too few clients.

    What a product of prime powers does not divide, one of them does not. So prime powers are enough, and those that few
    weights lack are multiplied. A factor that all weights have in common tells nobody apart, and is taken out.

    Args:
        weights: how many clients there are of each weight.

    Not constant time: it takes longer the larger the weights are.
    """
    common = gcd(*weights)
    reduced = {weight // common: count for weight, count in weights.items()}
    telling = 1
    for prime in {prime for weight in reduced for prime in _primes_of(weight)}:
        power = prime
        while (lacking := sum(count for weight, count in reduced.items() if weight % power)) < minimum_cohort:
            if lacking < LEAST_COHORT:
                return True
            telling *= prime
            power *= prime
            if telling >= _TELLING_MODULUS:
                return True
    return False


def _primes_of(number: int) -> Iterator[int]:
    """Go through the primes that divide a number, by trial division up to its root."""
    divisor = 2
    while divisor * divisor <= number:
        if not number % divisor:
            yield divisor
            while not number % divisor:
                number //= divisor
        divisor += 1 + (divisor > 2)  # noqa: PLR2004 -- two, then the odd ones
    if number > 1:
        yield number
