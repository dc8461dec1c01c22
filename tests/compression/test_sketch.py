"""The linear sketch: codes of a few rotated values, unbiased, with the computed noise, in rings without overflow."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis.extra.numpy import arrays

from secagg.compression.cohort_bits import kept_for, sketch_noise
from secagg.compression.rotation import MOST_BITS, Sketch, normal_step, rounding_noise, sketch_ring
from secagg.conformance import Candidate, Law, cases
from secagg.contract import ideal_aggregate
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.rotations import normal, rotation

COINS = InsecureSeededCoins(b"for updates of zeros alone")


def sketch(  # noqa: PLR0913 -- the parameters of what it makes
    kept: int = 12,
    *,
    bits: int = 1,
    modulus_bits: int = 5,
    unit: float = 2.0,
    size: int = 19,
    block_size: int = 8,
    scales: tuple[float, ...] = (),
    **changes: Any,
) -> Sketch:
    turned = rotation(size, block_size, scales=scales, **changes)
    return Sketch(rotation=turned, kept=kept, bits=bits, modulus_bits=modulus_bits, unit=unit)


def candidate(bits: int, modulus_bits: int) -> Candidate:
    def make(**changes: Any) -> Sketch:
        parameters: dict[str, Any] = {"bits": bits, "modulus_bits": modulus_bits}
        return sketch(**(parameters | changes))

    def farthest(update: Any) -> float:
        return float(np.linalg.norm(update.astype(np.float64))) + make().largest_norm

    return Candidate(
        name=f"sketch_of_{bits}_bits",
        make=make,
        updates=arrays(np.float32, 19, elements={"min_value": -8.0, "max_value": 8.0}),
        error=farthest,
        extremes=[np.full(19, 1.0), np.full(19, -1.0)],
        bad_updates={"two dimensions": np.zeros((19, 1))},
        others={
            "another seed": lambda: make(seed=bytes(32)),
            "another round": lambda: make(round_number=6),
            "another block": lambda: make(block_size=4),
            "fewer coordinates": lambda: make(kept=11),
            "another ring": lambda: make(modulus_bits=modulus_bits + 1),
            "other codes": lambda: make(bits=bits + 1),
            "another length": lambda: make(unit=2.5),
            "another scale": lambda: make(scales=(2.0,)),
        },
        stochastic=True,
        # Sums of codes are never negative, and the conformance kit fills rings from their middle.
        tight_capacity=False,
        payload_bytes=-(-12 * modulus_bits // 8),
        ulps=64.0,
    )


@pytest.mark.parametrize(("scheme", "law"), cases(candidate(1, 5), candidate(3, 9)), ids=str)
def test_the_scheme_keeps_the_law(scheme: Candidate, law: Law) -> None:
    law.check(scheme)


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_codes_are_the_values_rounded(bits: int) -> None:
    made = sketch(kept=64, bits=bits, modulus_bits=16, size=64, block_size=64)
    (update,) = normal(64)
    step, _ = normal_step(bits)
    values = made.rotation.turned(update) / np.linalg.norm(update) * 8
    expected = [min(max(math.floor(value / step) + 2 ** (bits - 1), 0), 2**bits - 1) for value in values.tolist()]
    assert made.encode(update, COINS).values[0].tolist() == expected
    # The length of an update changes nothing.
    assert made.encode(update * np.float32(0.125), COINS).values[0].tolist() == expected


def test_rounding_keeps_what_it_is_said_to() -> None:
    """Compare with a large sample of normal values."""
    (values,) = np.random.default_rng(3).standard_normal((1, 400_000))
    for bits in range(1, 5):
        step, keeps = normal_step(bits)
        half = 1 << (bits - 1)
        rounded = (np.clip(np.floor(values / step), -half, half - 1) + 0.5) * step
        assert float((values * rounded).mean()) == pytest.approx(keeps, rel=0.01)
        assert float(np.square(rounded / keeps).mean()) - 1 == pytest.approx(rounding_noise(bits), abs=0.01)
    assert normal_step(1)[1] == 2 / math.pi


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_a_ring_is_as_narrow_as_the_cohort_permits(bits: int) -> None:
    for cohort in (2, 20, 31, 32, 500):
        width = sketch_ring(bits, cohort)
        made, (update,) = sketch(bits=bits, modulus_bits=width, size=64, block_size=64), normal(64)
        assert made.capacity >= cohort
        assert width == bits or sketch(bits=bits, modulus_bits=width - 1).capacity < cohort
        payload = made.encode(update, COINS)
        full = made.decode(ideal_aggregate(made.layout, [payload], [made.capacity]))
        alone = made.decode(ideal_aggregate(made.layout, [payload]))
        assert np.allclose(full, alone * made.capacity, rtol=1e-4, atol=1e-4 * made.capacity)
        with pytest.raises(CapacityExceeded):
            made.decode(ideal_aggregate(made.layout, [payload], [made.capacity + 1]))


def test_the_size_follows_from_the_cohort() -> None:
    kept = kept_for(19_338, 20)
    assert kept == 2394
    assert 19_338 * 32 / (kept * sketch_ring(1, 20)) > 50
    assert sketch_noise(kept / 19_338, 1, 20) == pytest.approx(0.58, abs=0.01)


@pytest.mark.parametrize("bits", [1, 2])
def test_what_no_client_moves_is_moved_by_nobody(bits: int) -> None:
    """Each client changes the same eight values of 4,096: most blocks of the rotation have only zeros."""
    cohort, size = 20, 4096
    made = sketch(size // 4, bits=bits, modulus_bits=12, unit=1.0, size=size, block_size=64)
    coins = [InsecureSeededCoins(number.to_bytes(2, "big")) for number in range(cohort)]
    updates, few = normal(size, cohort), np.zeros((cohort, size), np.float32)
    few[:, :8] = updates[:, :8]
    norms = [
        float(np.linalg.norm(made.decode(ideal_aggregate(made.layout, list(map(made.encode, some, coins))))))
        for some in (few, updates)
    ]
    assert norms[0] < 1.5 * norms[1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kept": 0}, "kept must be an integer"),
        ({"kept": 25}, "kept must be an integer"),
        ({"bits": 0}, "bits must be an integer"),
        ({"bits": 9, "modulus_bits": 12}, "bits must be an integer"),
        ({"bits": 4, "modulus_bits": 3}, "modulus_bits must be an integer"),
        ({"unit": -1.0}, "unit must be a float"),
    ],
)
def test_parameters_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidParameters, match=match):
        sketch(**changes)
