"""The rate that a cohort needs: how noisy the decoded mean is, and how many bits a value are enough.

Where a code keeps the share r of a client's update and the sum is divided by r, the mean over N clients whose updates
are nearly orthogonal has noise of the energy

    nu = (1 - r) / (r N)

in units of one client's energy. The best code of R bits a value keeps 1 - 2^(-2R), and peak codes come as far as one of
0.74 R. At few bits that is 0.97 / (N R): only the bits of the whole cohort count. Accuracy follows nu: up to 0.6 it is
hardly seen, and up to 1.1 where the server's rate falls.
"""

from __future__ import annotations

import math
from typing import Final

from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .peak import MAXIMUM_PLACES, kept_share
from .sketch import rounding_noise

COHORT_BITS: Final = 1.6
"""Bits that a cohort needs for a value, all clients together."""
MOST_NOISE: Final = 1.0
"""Above, the noise of the code costs accuracy even where the server's rate falls."""
_EFFICIENCY: Final = 0.74
"""Efficiency of peak codes: the share of their bits with which the best possible code has as much noise."""


def law(cohort: int, bits: float) -> float:
    """Return the noise of a peak code of so many bits a value: 0.97 / (N R) where they are few."""
    return 1 / (_clients(cohort) * math.expm1(2 * _EFFICIENCY * math.log(2) * _bits(bits)))


def peak_noise(places: int, cohort: int) -> float:
    """Return the noise of a peak code exactly, for updates that are orthogonal."""
    share = kept_share(places)
    return (1 - share) / (share * _clients(cohort))


def sketch_noise(kept: float, bits: int, cohort: int) -> float:
    """Return the noise of a sketch that sends this share of the coordinates, for updates that are orthogonal.

    What is left out is left out by everybody, so it does not average over clients as rounding does.
    """
    return (1 / kept * (1 + rounding_noise(bits)) - 1) / _clients(cohort)


def places_for(cohort: int, cohort_bits: float = COHORT_BITS) -> int:
    """Return the largest block where the peak's place has at least ``cohort_bits / cohort`` bits a value."""
    wanted = _bits(cohort_bits) / _clients(cohort)
    low, high = 1, MAXIMUM_PLACES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if math.log2(2 * middle) / middle >= wanted else (low, middle - 1)
    return low


def kept_for(values: int, cohort: int, cohort_bits: float = COHORT_BITS, bits: int = 1) -> int:
    """Return how many coordinates a sketch sends for the noise that a peak code has with so many bits."""
    noise = law(cohort, _bits(cohort_bits) / _clients(cohort))
    share = (1 + rounding_noise(bits)) / (1 + noise * cohort)
    return max(1, min(values, math.ceil(values * share)))


def _clients(cohort: int) -> int:
    require_integer("a cohort", cohort, 1)
    return cohort


def _bits(cohort_bits: float) -> float:
    if not 0 < cohort_bits < math.inf:
        raise InvalidParameters(f"cohort_bits is a positive number; got {cohort_bits!r}")
    return cohort_bits
