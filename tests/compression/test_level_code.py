"""The code of levels: its laws, its noise, and what one client can do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis.extra.numpy import arrays

from secagg.compression.cohort_bits import AutoRate, levels_within, peak_noise, places_for, places_within
from secagg.compression.joined_rotation import JoinedRotation
from secagg.compression.peak import LevelCode, level_noise
from secagg.compression.public_stream import PublicStream
from secagg.conformance import Candidate, Law, cases
from secagg.errors import InvalidParameters
from secagg.simulation.insecure_coins import InsecureSeededCoins

Floats = npt.NDArray[np.float32]
COINS = InsecureSeededCoins(b"for updates of zeros alone")
SCALES: dict[str, Any] = {"sizes": (4, 15), "scales": (0.5, 3.0)}


def code(levels: int = 8, size: int = 19, block_size: int = 8, number: int = 5, **changes: Any) -> LevelCode:
    stream = PublicStream(seed=bytes(range(32)), round_number=number, tensor_name="update", shape=(size,))
    return LevelCode(rotation=JoinedRotation(stream=stream, block_size=block_size, **changes), levels=levels)


LEVELS = Candidate(
    name="levels",
    make=lambda: code(**SCALES),
    updates=arrays(np.float32, 19, elements={"min_value": -8.0, "max_value": 8.0}),
    # What a decoded direction is instead is for the tests below; none is farther away than both are long.
    error=lambda update: float(np.linalg.norm(update.astype(np.float64))) + code(**SCALES).largest_norm,
    bad_updates={"two dimensions": np.zeros((19, 1)), "integers": np.zeros(19, dtype=np.int64)},
    others={
        "another round": lambda: code(number=6, **SCALES),
        "more levels": lambda: code(16, **SCALES),
        "one tensor": code,
    },
    stochastic=True,
    payload_bytes=9,
    ulps=64.0,
)


@pytest.mark.parametrize(("candidate", "law"), cases(LEVELS), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@pytest.mark.parametrize("levels", [0, 1, 3, 512])
def test_a_number_of_levels_that_is_no_power_of_two_is_refused(levels: int) -> None:
    with pytest.raises(InvalidParameters, match="levels"):
        code(levels)


# --- Rates that are found ---------------------------------------------------------------------------------------------


def test_noise_that_is_allowed_chooses_the_code() -> None:
    assert places_within(20, peak_noise(places_for(20), 20)) == places_for(20)
    assert places_within(20, 1e-9) == 1
    assert levels_within(20, peak_noise(1, 20)) == 0
    assert levels_within(20, level_noise(4, 20)) == 4
    assert levels_within(20, level_noise(8, 20)) == 8
    assert levels_within(20, 1e-9) == 16


def test_a_run_begins_carefully_and_then_bears_what_the_losses_say() -> None:
    unknown = AutoRate(20, 0.001)
    assert unknown.noise(0) < unknown.noise(20) == peak_noise(places_for(20), 20)
    told = unknown.after((1.0, 1.03, 1.01), 0.5)
    assert told.noise(20) == pytest.approx(0.001 / 0.04)
    assert told.after((1.0, 1.0, 1.0), 0.5).noise(20) == pytest.approx(2 * 0.001 / 0.04)
    assert unknown.after((1.0, 0.9, 1.0), 0.5).noise(20) == peak_noise(places_for(20), 20)


def test_one_lie_holds_the_rate_between_its_bounds_and_for_a_few_probes() -> None:
    honest = AutoRate(20, 0.001).after((1.0, 1.02, 1.02), 0.5)
    lied = honest.after((0.0, 1024.0, 1024.0), 0.5)
    assert levels_within(20, lied.noise(20)) == 16
    for _ in range(6):
        lied = lied.after((1.0, 1.02, 1.02), 0.5)
    assert lied.noise(20) > honest.noise(20) / 3
    # A lie the other way lasts until somebody tells the truth.
    lied = honest.after((1024.0, 0.0, 0.0), 0.5)
    assert lied.noise(20) == peak_noise(places_for(20), 20)
    assert lied.after((1.0, 1.02, 1.02), 0.5).noise(20) == honest.noise(20)
