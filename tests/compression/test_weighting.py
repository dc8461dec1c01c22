"""Weights that multiply before rounding: counted examples, denominators, and updates that do not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, Quantized, Rotated, TensorScheme
from secagg.compression.model_update.weighting import (
    COUNTS,
    clamped_examples,
    count_scheme,
    require_weighable,
    rounded_examples,
    weighted,
)
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.rotation import RandomRotation
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import Aggregate, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, ThresholdNotMet
from secagg.platforms.schemes import SchemeChoice
from secagg.platforms.settings import SecAggSettings
from secagg.session.roles import LazyUpdate, Update

FULL, CLIENTS, LENGTH = 100, 8, 50
MODEL = bytes(32)


def codec(zero_point: int = 0, rounding: Rounding = Rounding.STOCHASTIC, *, has_trained: bool = False) -> ModelUpdate:
    scheme = ScalarQuantization(
        shape=(LENGTH,), bits=8, modulus_bits=12, scales=(0.01,), zero_points=(zero_point,), rounding=rounding
    )
    counts = count_scheme(FULL, CLIENTS, has_trained=has_trained)
    told = FixedPoint(length=1, clip=4.0, fraction_bits=20, modulus_bits=40)
    return ModelUpdate(
        tensors=(
            TensorScheme(name="w", shape=(LENGTH,), scheme=scheme),
            TensorScheme(name="secagg/metrics", shape=(1,), scheme=told),
            TensorScheme(name=COUNTS, shape=(counts.length,), scheme=counts),
        )
    )


def encoded(made: ModelUpdate, value: float, examples: int, metric: float = 0.0) -> Any:
    values = {"w": np.full(LENGTH, value, np.float32), "secagg/metrics": np.array([metric])}
    return made.encode(weighted(made.schemes, values, examples, SystemCoins()), SystemCoins())


@pytest.mark.parametrize("zero_point", [0, 37])
def test_a_mean_is_weighted_and_an_update_without_examples_counts_nowhere(zero_point: int) -> None:
    made = codec(zero_point, has_trained=True)
    clients = [(0.3, 100, 1.0), (0.1, 50, 2.0), (0.9, 0, 3.0)]
    total = ideal_aggregate(made.layout, [encoded(made, *one) for one in clients])
    mean, counted = made.mean(total), made.counted(total)
    assert (counted.examples, counted.trained, counted.trained_at_least) == (150, 2, 2)
    assert np.abs(mean["w"] - (0.3 * 100 + 0.1 * 50) / 150).max() <= 3 * 0.01 / 1.5
    assert mean["secagg/metrics"] == pytest.approx(1.5, abs=1e-5)
    assert COUNTS not in mean


def test_a_failed_training_uploads_the_codes_of_zeros_and_not_ring_elements_of_zero() -> None:
    """With a zero point of 37 a ring element of 0 represents -0.37."""
    made = codec(37)

    def fail() -> Update:
        raise RuntimeError

    late = LazyUpdate(fail, MODEL, zero=lambda: encoded(made, 0.0, 0))
    payloads = [encoded(made, 0.3, 100), encoded(made, 0.3, 100), late.take(made.layout).payload]
    total = ideal_aggregate(made.layout, payloads)
    assert np.abs(made.mean(total)["w"] - 0.3).max() <= 0.02
    raw = LazyUpdate(fail, MODEL).take(made.layout).payload
    off = made.mean(ideal_aggregate(made.layout, [*payloads[:2], raw]))["w"]
    assert np.abs(off - 0.3).min() > 0.1, "what ring elements of zero do"


def test_a_client_that_cannot_encode_zeros_uploads_all_the_same() -> None:
    def fail() -> Any:
        raise RuntimeError

    made = codec()
    assert LazyUpdate(fail, MODEL, zero=fail).take(made.layout).payload.layout == made.layout


def test_a_sum_without_examples_has_no_mean() -> None:
    made = codec()
    with pytest.raises(ThresholdNotMet, match="clients that trained"):
        made.mean(ideal_aggregate(made.layout, [encoded(made, 0.5, 0)] * 3))


def test_counts_that_a_client_made_negative_are_no_denominator() -> None:
    made = codec()
    total = ideal_aggregate(made.layout, [encoded(made, 0.5, 100)] * 2)
    at = made.layout.segments.index(
        next(one for one in made.layout.segments if one.length == 1 and one.ring.modulus_bits < 12)
    )
    values = list(total.values)
    values[at] = made.layout.require_rings()[at].ring.from_integers(np.array([-300]))
    with pytest.raises(ThresholdNotMet):
        made.mean(Aggregate(made.layout, tuple(values), 2))


@pytest.mark.parametrize(
    ("examples", "due"), [(0, 0), (-3, 0), (float("nan"), 0), (0.5, 25), (1, 25), (25, 25), (60, 60), (1e9, 100)]
)
def test_examples_count_between_a_quarter_of_full_and_full(examples: float, due: int) -> None:
    assert clamped_examples(examples, FULL) == due


def test_examples_are_rounded_to_sixteenths_without_bias() -> None:
    words = (np.arange(4096) << 20).tolist()
    for examples in (256, 300, 777, 1023, 1024):
        found = [rounded_examples(examples, 1024, word) for word in words]
        assert not any(one % 64 for one in found)
        assert abs(np.mean(found) - examples) < 0.1
    assert {rounded_examples(7, 10, word) for word in words} == {7}, "a full number below 16 has steps of one"


@pytest.mark.parametrize("full", [16, 31, 47, 100, 320])
def test_examples_have_no_more_sixteenths_than_sixteen_whatever_full_is(full: int) -> None:
    """Regression: a server that chose 31 had steps of one; with 100, a client with 100 counted as 96 or 100."""
    words = (np.arange(4096) << 20).tolist()
    found = {examples: [rounded_examples(examples, full, word) for word in words] for examples in range(1, full + 1)}
    assert len({one for some in found.values() for one in some}) <= 17
    assert {*found[full]} == {full}
    assert all(abs(np.mean(some) - examples) < 0.02 for examples, some in found.items())


def outside(**_: Any) -> Any:
    return ProductQuantization(shape=(LENGTH // 2, 2), codebooks=(Codebook(np.eye(2, dtype=np.float32)),))


def test_weights_need_random_rounding_and_no_indices() -> None:
    """With rounding to nearest, a sum of 0.0071 became 0; the check also looks inside custom schemes and rotations."""
    require_weighable(codec().schemes)
    nearest = codec(rounding=Rounding.NEAREST_EVEN).schemes
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="w", shape=(LENGTH,))
    whole = Rotated(block_size=64, inner=Quantized(bits=6, modulus_bits=12)).make(stream, np.ones(LENGTH), None)
    for schemes in (nearest, {"w": whole}):
        with pytest.raises(InvalidParameters, match=r"w rounds to the nearest code.*; round at random"):
            require_weighable(schemes)
    settings = SecAggSettings(compression="custom:Scheme", protocol="enclave", roster="any")
    choice = SchemeChoice(settings, CLIENTS, outside)
    with pytest.raises(InvalidParameters, match="secagg/update sends indices, which are votes that all count once"):
        choice.parameters({"w": np.zeros((5, 10), np.float32)}, seed=bytes(32), epoch=0)


STEP = 2.0**-16
SIGNS = np.random.default_rng(1).choice([-0.01, 0.0, 0.01], 4000)


def products(given: Any, examples: int = 70) -> Any:
    """Return weighted values before the codec, in steps of the minimum distance between levels."""
    scheme = FixedPoint(length=len(given), clip=4.0, fraction_bits=16, modulus_bits=40)
    return weighted({"w": scheme, COUNTS: count_scheme(FULL, CLIENTS)}, {"w": given}, examples, SystemCoins())["w"]


@pytest.mark.parametrize("base", [0.0, 1.0])
def test_values_of_few_levels_stay_on_them_without_bias(base: float, caplog: pytest.LogCaptureFixture) -> None:
    """Differences of float32 tensors straddle two steps, but are one level."""
    start = base * np.random.default_rng(2).normal(size=4000).astype(np.float32)
    given = (start + SIGNS.astype(np.float32)) - start
    found = products(given) / 0.01
    assert np.abs(found - np.rint(found)).max() < 1e-3
    assert abs(found[SIGNS > 0].mean() - 0.7) < 0.05
    assert not found[SIGNS == 0].round().any()
    assert "few different values in w (0.00999): times a weight below 1" in caplog.text
    assert np.array_equal(products(given, FULL), given), "a weight of 1 changes nothing"


@pytest.mark.parametrize(
    "given",
    [
        np.random.default_rng(3).normal(0, 1e-3, 4000),
        np.where(SIGNS != 0, 0, np.random.default_rng(4).normal(0, 0.1, 4000)),
        np.full(4000, 0.3),
        np.repeat([0.25, 0.5], 20),
        np.array([np.nan, np.inf, 1.0, 1.0]),
    ],
    ids=["fine", "mostly zeros", "constant", "few values", "not finite"],
)
def test_other_values_are_multiplied_exactly(given: Any) -> None:
    assert np.array_equal(products(given), given * 0.7, equal_nan=True)


@pytest.mark.parametrize("fraction_bits", [16, 30, 40])
def test_levels_are_found_whatever_steps_a_server_chooses(fraction_bits: int) -> None:
    """In finer steps training's rounding made all values differ: all of four clients were identified in 0.62."""
    start = np.random.default_rng(2).normal(size=4000).astype(np.float32)
    given = (start + SIGNS.astype(np.float32)) - start
    scheme = FixedPoint(length=4000, clip=4.0, fraction_bits=fraction_bits, modulus_bits=64)
    found = weighted({"w": scheme, COUNTS: count_scheme(FULL, CLIENTS)}, {"w": given}, 70, SystemCoins())["w"] / 0.01
    assert np.abs(found - np.rint(found)).max() < 1e-3
    assert abs(found[SIGNS > 0].mean() - 0.7) < 0.05


def test_levels_of_several_sizes_have_no_finer_steps_than_the_next_one() -> None:
    """A server that sends a model of many magnitudes controls the rounding of 32-bit differences."""
    sizes = np.ldexp(1.0, -np.random.default_rng(6).integers(3, 15, 4000))
    given = sizes * np.sign(SIGNS)
    found = products(given) / sizes
    assert {*np.abs(found).tolist()} <= {0.0, 0.5, 1.0}
    assert abs(found[SIGNS > 0].mean() - 0.7) < 0.05


def test_levels_behind_a_rotation_stay_on_them() -> None:
    """Decoding rotates the sum back: all of four clients were identified in 0.53, with equal weights in 0.11.

    For a scheme without its own step, the search for levels uses steps relative to the largest value.
    """
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="w", shape=(4000,))
    inner = FixedPoint(length=4096, clip=4.0, fraction_bits=16, modulus_bits=40)
    for scheme in (RandomRotation(stream=stream, block_size=1024, inner=inner), object()):
        schemes = {"w": scheme, COUNTS: count_scheme(FULL, CLIENTS)}
        found = weighted(schemes, {"w": SIGNS}, 70, SystemCoins())["w"] / 0.01
        assert np.abs(found - np.rint(found)).max() < 1e-3
        assert abs(found[SIGNS > 0].mean() - 0.7) < 0.05


def test_no_level_is_rounded_beyond_the_clip() -> None:
    """Regression: a mean of 0.9 became 0.85, because multiples of 0.4 end at 1.2, which is clipped."""
    found = np.clip(products(np.tile([0.4, 1.0, 0.0, -1.0, -0.4], 4000), 90).reshape(-1, 5), -1, 1).mean(axis=0)
    assert np.abs(found - [0.36, 0.9, 0, -0.9, -0.36]).max() < 0.02


@pytest.mark.parametrize("given", [np.zeros(0), np.zeros(100)], ids=["nothing", "zeros"])
def test_values_without_levels_are_as_they_were(given: Any) -> None:
    schemes = {"w": object(), COUNTS: count_scheme(FULL, CLIENTS)}
    assert np.array_equal(weighted(schemes, {"w": given}, 70, SystemCoins())["w"], given)


def test_an_array_in_the_order_of_fortran_is_rounded_as_well() -> None:
    scheme = FixedPoint(length=4000, clip=4.0, fraction_bits=16, modulus_bits=40)
    schemes, flags = {"w": scheme, COUNTS: count_scheme(FULL, CLIENTS)}, np.sign(SIGNS).reshape(40, 100).T
    found = weighted(schemes, {"w": flags}, 70, SystemCoins())["w"]
    assert {*found.ravel().tolist()} == {-1.0, 0.0, 1.0}
    assert not found[flags == 0].any()


def test_flags_among_fine_values_are_rounded_and_the_others_are_not() -> None:
    fine = np.random.default_rng(5).normal(0, 1e-3, 4000)
    found = products(np.concatenate([fine, np.repeat([0.0, 1.0], 200)]))
    assert np.array_equal(found[:4000], fine * 0.7)
    assert {*found[4000:].tolist()} == {0.0, 1.0}


@pytest.mark.parametrize(("full", "clients"), [(1, 3), (1024, 3), (1024, 10**6), (1 << 30, 1000)])
def test_the_counts_have_a_ring_that_no_sum_leaves(full: int, clients: int) -> None:
    scheme = count_scheme(full, clients, has_trained=True)
    assert scheme.capacity >= clients
    assert scheme.length == (1 if full == 1 else 2)
