"""The rate that a cohort needs: how noisy the decoded mean is, and how many bits a value are enough.

Where a code keeps the share r of a client's update and the sum is divided by r, the mean over N clients whose updates
are nearly orthogonal has noise of the energy nu = (1 - r) / (r N), in units of one client's. The best code of R bits a
value keeps 1 - 2^(-2R), and peak codes come as far as one of 0.74 R: only the bits of the whole cohort count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .peak import MAXIMUM_PLACES, MOST_SUMMED_PLACES, LevelCode, PeakCode, kept_share, level_noise
from .rotation import JoinedRotation, rounding_noise

COHORT_BITS: Final = 1.6
"""Bits that a cohort needs for a value, all clients together."""
MOST_NOISE: Final = 1.0
"""Above, the noise of the code costs accuracy even where the server's rate falls."""
CAREFUL_BITS: Final = 6.4
"""Bits of a value in the first rounds of a run that finds its own."""
CAREFUL_ROUNDS: Final = 20
FIRST_PROBE: Final = 5
PROBE_EVERY: Final = 10
MOST_OF_A_MATRIX: Final = 0.03
"""Noise of a round over the squared length of a matrix of the model, from which on it was seen to cost accuracy."""
_LEAST: Final = 1e-30
_LEVELS: Final = (4, 8, 16)
_NEARLY: Final = 1.5
"""Noise of the next coarser code, over what is allowed, that saves a whole bit a value."""
_EFFICIENCY: Final = 0.74
"""Efficiency of peak codes: the share of their bits with which the best possible code has as much noise."""


def law(cohort: int, bits: float) -> float:
    """Return the noise of a peak code with ``bits`` bits a value: 0.97 / (N R) where they are few."""
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
    return _most_places(lambda places: math.log2(2 * places) / places >= wanted)


def places_within(cohort: int, noise: float) -> int:
    """Return the largest block whose peaks have at most this noise; 1 where none has."""
    return _most_places(lambda places: peak_noise(places, cohort) <= noise)


def _most_places(are_fine: Callable[[int], bool]) -> int:
    low, high = 1, MAXIMUM_PLACES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if are_fine(middle) else (low, middle - 1)
    return low


def levels_within(cohort: int, noise: float) -> int:
    """Return how many levels a value needs for about this noise; 0 where peaks, of at most one bit a value, will do."""
    if peak_noise(1, cohort) <= _NEARLY * noise:
        return 0
    return next((levels for levels in _LEVELS[:-1] if level_noise(levels, cohort) <= _NEARLY * noise), _LEVELS[-1])


def code_within(rotation: JoinedRotation, cohort: int, noise: float) -> PeakCode | LevelCode:
    """Return the shortest code that has about this noise at most."""
    if levels := levels_within(cohort, noise):
        return LevelCode(rotation=rotation, levels=levels)
    return PeakCode(rotation=rotation, places=min(places_within(cohort, noise), MOST_SUMMED_PLACES))


def code_noise(code: PeakCode | LevelCode, cohort: int) -> float:
    """Return the noise of a code, for updates that are orthogonal."""
    return peak_noise(code.places, cohort) if isinstance(code, PeakCode) else level_noise(code.levels, cohort)


def deviations(code: PeakCode | LevelCode, cohort: int, length: float) -> tuple[float, ...]:
    """Return the deviation of the noise in each tensor, for scaled updates of this length."""
    unit = length * math.sqrt(code_noise(code, cohort) / code.rotation.padded)
    return tuple(scale * unit for scale in code.rotation.scales)


def noisiest_matrix(model: Mapping[str, npt.NDArray[Any]], deviations: Mapping[str, float]) -> tuple[str, float]:
    """Return the matrix that the noise of a round falls on hardest, and the noise over its squared length."""
    shares = {"": 0.0}
    for name, deviation in deviations.items():
        if (value := model[name]).ndim > 1:
            shares[name] = deviation**2 * value.size / max(float(np.square(value, dtype=np.float64).sum()), _LEAST)
    name = max(shares, key=lambda one: shares[one])
    return name, shares[name]


@dataclass(frozen=True, slots=True)
class AutoRate:
    """The noise that a run bears, from what noise did to its clients' losses so far.

    Clients tell their loss at the model, and at the model with public noise of the code added and taken away. The mean
    of the last two less the first is the noise's harm, and in proportion to the noise; the final loss of a run exceeds
    that of an uncompressed one by about 11 times the harm of a round.
    """

    cohort: int
    allowed: float
    """The harm that a round may do."""
    slope: float | None = None
    """Harm over noise, at most what takes the finest code, a moving mean: a lie fades. None before anybody told."""

    def noise(self, round_number: int) -> float:
        """Return the noise that the code of a round may have; early harm reads about zero and its damage stays."""
        bits = COHORT_BITS if round_number >= CAREFUL_ROUNDS else CAREFUL_BITS
        most = peak_noise(places_for(self.cohort, bits), self.cohort)
        return most if self.slope is None or self.slope <= 0 else min(most, self.allowed / self.slope)

    def after(self, losses: tuple[float, float, float], noise: float) -> AutoRate:
        """Return what is known once clients told their mean losses: at the model, with noise, and with its opposite."""
        harm = (losses[1] + losses[2]) / 2 - losses[0]
        told = min(harm / noise, self.allowed / level_noise(_LEVELS[-1], self.cohort))
        slope = told if self.slope is None or self.slope <= 0 else (self.slope + told) / 2
        return AutoRate(self.cohort, self.allowed, slope)

    @staticmethod
    def is_probed(round_number: int) -> bool:
        """Whether clients tell their losses in a round."""
        return round_number == FIRST_PROBE or (round_number > 0 and round_number % PROBE_EVERY == 0)


def kept_for(values: int, cohort: int, cohort_bits: float = COHORT_BITS, bits: int = 1) -> int:
    """Return how many coordinates a sketch sends for the noise of a peak code with ``bits`` bits a value."""
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
