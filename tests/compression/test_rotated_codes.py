"""Codes of rotated values: unbiased over the rotations, with the declared noise, and without a direction for zeros."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.cohort_bits import law, peak_noise, sketch_noise
from secagg.compression.peak import LevelCode, PeakCode, level_noise
from secagg.compression.rotation import JoinedRotation, Sketch, sketch_ring
from secagg.contract import ideal_aggregate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.rotations import normal, rotation

Floats = npt.NDArray[np.float32]
COINS = InsecureSeededCoins(b"for zeros alone")


@dataclass(frozen=True)
class Code:
    """A code for updates of length 1, and its declared noise of a mean."""

    make: Callable[[JoinedRotation], Any]
    noise: Callable[[int], float]
    size: int = 16_384

    def mean(self, updates: Floats, number: int = 0, block_size: int = 1024) -> npt.NDArray[np.float64]:
        """Return the decoded mean under one rotation."""
        made = self.make(rotation(updates.shape[1], block_size, round_number=number))
        total = ideal_aggregate(made.layout, [made.encode(update, COINS) for update in updates])
        decoded: npt.NDArray[np.float64] = made.decode(total).astype(np.float64) / len(updates)
        return decoded


def peaks(places: int) -> Code:
    return Code(
        lambda turned: PeakCode(rotation=turned, places=places),
        lambda cohort: peak_noise(places, cohort),
        16_384 if places < 1024 else 32_768,
    )


def sketch(share: float, bits: int) -> Code:
    def make(turned: JoinedRotation) -> Sketch:
        kept = round(share * turned.padded)
        return Sketch(rotation=turned, kept=kept, bits=bits, modulus_bits=sketch_ring(bits, 2000))

    return Code(make, lambda cohort: sketch_noise(share, bits, cohort))


def levels(count: int) -> Code:
    return Code(lambda turned: LevelCode(rotation=turned, levels=count), lambda cohort: level_noise(count, cohort))


CODES = {
    **{f"peak {places}": peaks(places) for places in (1, 8, 16, 64, 100, 256, 1024)},
    **{f"{bits} bits of {share}": sketch(share, bits) for share, bits in ((1.0, 1), (0.12, 1), (0.12, 2), (0.25, 4))},
    **{f"{count} levels": levels(count) for count in (2, 4, 8, 16)},
}


def directions(count: int, size: int, number: int = 0) -> Floats:
    drawn = normal(size, count, number)
    lengths: Floats = np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn / lengths


@pytest.mark.parametrize("name", ["peak 1", "peak 8", "peak 100", "1 bits of 0.12", "2 bits of 0.12", "4 levels"])
def test_it_is_unbiased_over_the_rotations(name: str) -> None:
    (update,), rounds = directions(1, 512), 400
    update[:5] = 0.2  # A few large values, which the rotation spreads.
    update /= np.float32(np.linalg.norm(update))
    found = np.mean([CODES[name].mean(update[np.newaxis], number, 512) for number in range(rounds)], axis=0)
    # Along the update, an estimate's error is below its noise, which averaging over rotations reduces.
    assert found @ update == pytest.approx(1, abs=0.03)
    assert float(np.square(found - update).sum()) < 2 * CODES[name].noise(1) / rounds + 4e-4


@pytest.mark.parametrize(
    ("name", "cohort"),
    [(name, cohort) for name in CODES for cohort in (5, 20, 100) if cohort < 100 or name.startswith("peak")],
)
def test_the_noise_is_what_is_said(name: str, cohort: int) -> None:
    code = CODES[name]
    updates = directions(cohort, code.size, cohort)
    off = code.mean(updates) - updates.mean(axis=0, dtype=np.float64)
    assert float(off @ off) == pytest.approx(code.noise(cohort), rel=0.05 if name.startswith("peak") else 0.1)


@pytest.mark.parametrize("cohort", [5, 20, 100])
@pytest.mark.parametrize("places", [8, 16, 64, 256, 1024])
def test_the_law_of_few_bits_is_near_the_noise_of_peaks(places: int, cohort: int) -> None:
    """R is 0.5, 0.31, 0.11, 0.035 and 0.011 bits per value."""
    assert law(cohort, math.log2(2 * places) / places) == pytest.approx(peak_noise(places, cohort), rel=0.1)


@pytest.mark.parametrize("name", ["peak 8", "1 bits of 1.0", "4 levels"])
def test_updates_of_zeros_have_no_direction(name: str) -> None:
    zeros, alone = np.zeros((2000, 16), np.float32), CODES[name].mean(np.zeros((1, 16), np.float32), block_size=8)
    assert float(np.linalg.norm(CODES[name].mean(zeros, block_size=8))) < 0.1 * float(np.linalg.norm(alone))
