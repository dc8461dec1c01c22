"""Bits per value that a cohort needs, from the noise of the decoded mean.

Suppose that a code keeps the share r of a client's update, and the sum is divided by r. Then the mean over N clients
with nearly orthogonal updates has noise of energy nu = (1 - r) / (r N), in units of one client's energy. The best code
of R bits per value keeps 1 - 2^(-2R); a peak code keeps as much as the best code with 0.74 R bits.
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
"""Bits per value that a cohort needs, summed over its clients."""
MOST_NOISE: Final = 1.0
"""Above this noise the code costs accuracy even with a lower server learning rate."""
CAREFUL_BITS: Final = 6.4
"""Bits per value in the first rounds of a run with ``AutoRate``."""
CAREFUL_ROUNDS: Final = 20
FIRST_PROBE: Final = 5
PROBE_EVERY: Final = 10
MOST_OF_A_MATRIX: Final = 0.03
"""Maximum noise of a round, relative to a matrix's squared length; more cost accuracy in tests."""
_LEAST: Final = 1e-30
_LEVELS: Final = (4, 8, 16)
_NEARLY: Final = 1.5
"""The next coarser code is used up to this multiple of the allowed noise; it saves a whole bit per value."""
_EFFICIENCY: Final = 0.74
"""Efficiency of peak codes: the best possible code has the same noise with this share of the bits."""


def law(cohort: int, bits: float) -> float:
    """Return the noise of a peak code with ``bits`` bits per value: 0.97 / (N R) for few bits."""
    return 1 / (_clients(cohort) * math.expm1(2 * _EFFICIENCY * math.log(2) * _bits(bits)))


def peak_noise(places: int, cohort: int) -> float:
    """Return the exact noise of a peak code, for orthogonal updates."""
    share = kept_share(places)
    return (1 - share) / (share * _clients(cohort))


def sketch_noise(kept: float, bits: int, cohort: int) -> float:
    """Return the noise of a sketch that sends this share of the coordinates, for orthogonal updates.

    All clients omit the same coordinates, so this error does not average out over clients as rounding does.
    """
    return (1 / kept * (1 + rounding_noise(bits)) - 1) / _clients(cohort)


def places_for(cohort: int, cohort_bits: float = COHORT_BITS) -> int:
    """Return the largest block whose peak has at least ``cohort_bits / cohort`` bits per value."""
    wanted = _bits(cohort_bits) / _clients(cohort)
    return _most_places(lambda places: math.log2(2 * places) / places >= wanted)


def places_within(cohort: int, noise: float) -> int:
    """Return the largest block whose peaks have at most this noise; 1 if there is none."""
    return _most_places(lambda places: peak_noise(places, cohort) <= noise)


def _most_places(are_fine: Callable[[int], bool]) -> int:
    low, high = 1, MAXIMUM_PLACES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if are_fine(middle) else (low, middle - 1)
    return low


def levels_within(cohort: int, noise: float) -> int:
    """Return the number of levels for about this noise; 0 if peaks, with at most one bit per value, are enough."""
    if peak_noise(1, cohort) <= _NEARLY * noise:
        return 0
    return next((levels for levels in _LEVELS[:-1] if level_noise(levels, cohort) <= _NEARLY * noise), _LEVELS[-1])


def code_within(rotation: JoinedRotation, cohort: int, noise: float) -> PeakCode | LevelCode:
    """Return the shortest code with at most about this noise."""
    if levels := levels_within(cohort, noise):
        return LevelCode(rotation=rotation, levels=levels)
    return PeakCode(rotation=rotation, places=min(places_within(cohort, noise), MOST_SUMMED_PLACES))


def code_noise(code: PeakCode | LevelCode, cohort: int) -> float:
    """Return the noise of a code, for orthogonal updates."""
    return peak_noise(code.places, cohort) if isinstance(code, PeakCode) else level_noise(code.levels, cohort)


def deviations(code: PeakCode | LevelCode, cohort: int, length: float) -> tuple[float, ...]:
    """Return the deviation of the noise in each tensor, for scaled updates of this length."""
    unit = length * math.sqrt(code_noise(code, cohort) / code.rotation.padded)
    return tuple(scale * unit for scale in code.rotation.scales)


def noisiest_matrix(model: Mapping[str, npt.NDArray[Any]], deviations: Mapping[str, float]) -> tuple[str, float]:
    """Return the matrix with the largest noise over its squared length, and this ratio."""
    shares = {"": 0.0}
    for name, deviation in deviations.items():
        if (value := model[name]).ndim > 1:
            shares[name] = deviation**2 * value.size / max(float(np.square(value, dtype=np.float64).sum()), _LEAST)
    name = max(shares, key=lambda one: shares[one])
    return name, shares[name]


@dataclass(frozen=True, slots=True)
class AutoRate:
    """The noise that a run tolerates, based on its effect on clients' losses so far.

    Clients report three losses: at the model, and at the model plus and minus public noise of the code. The mean of the
    last two minus the first is the noise's harm, which is proportional to the noise. A run's final loss exceeds that of
    an uncompressed run by about 11 times the harm of a round.
    """

    cohort: int
    allowed: float
    """The permitted harm of a round."""
    slope: float | None = None
    """Moving mean of harm over noise, capped where it needs the finest code; false reports fade. None at first."""

    def noise(self, round_number: int) -> float:
        """Return the permitted noise of a round's code; early harm measures about zero but does lasting damage."""
        bits = COHORT_BITS if round_number >= CAREFUL_ROUNDS else CAREFUL_BITS
        most = peak_noise(places_for(self.cohort, bits), self.cohort)
        return most if self.slope is None or self.slope <= 0 else min(most, self.allowed / self.slope)

    def after(self, losses: tuple[float, float, float], noise: float) -> AutoRate:
        """Return the state updated by the clients' mean losses: at the model, and with noise added and subtracted."""
        harm = (losses[1] + losses[2]) / 2 - losses[0]
        told = min(harm / noise, self.allowed / level_noise(_LEVELS[-1], self.cohort))
        slope = told if self.slope is None or self.slope <= 0 else (self.slope + told) / 2
        return AutoRate(self.cohort, self.allowed, slope)

    @staticmethod
    def is_probed(round_number: int) -> bool:
        """Whether clients report their losses in a round."""
        return round_number == FIRST_PROBE or (round_number > 0 and round_number % PROBE_EVERY == 0)


def kept_for(values: int, cohort: int, cohort_bits: float = COHORT_BITS, bits: int = 1) -> int:
    """Return how many coordinates a sketch sends for the noise of a peak code with ``bits`` bits per value."""
    noise = law(cohort, _bits(cohort_bits) / _clients(cohort))
    share = (1 + rounding_noise(bits)) / (1 + noise * cohort)
    return max(1, min(values, math.ceil(values * share)))


def _clients(cohort: int) -> int:
    require_integer("a cohort", cohort, 1)
    return cohort


def _bits(cohort_bits: float) -> float:
    if not 0 < cohort_bits < math.inf:
        raise InvalidParameters(f"cohort_bits must be a positive number; got {cohort_bits!r}")
    return cohort_bits
