"""Scalar quantization against exact fractions: codes, sums, common parameters, and everything refused."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression import scalar_quantization
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization, calibrate, modulus_bits_for
from secagg.conformance import Candidate, Law, cases
from secagg.contract import encode_update, ideal_aggregate
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.recorded_coins import InsecureRecordedCoins

Tensor = npt.NDArray[np.floating[Any]]
COINS = InsecureSeededCoins(b"what rounding draws")
FLOATS = (np.float16, np.float32, np.float64)
STEP = float(np.float32(0.1))


def scheme(**changes: Any) -> ScalarQuantization:
    parameters: dict[str, Any] = {"shape": (3,), "bits": 4, "modulus_bits": 12, "scales": (STEP,)}
    return ScalarQuantization(**(parameters | changes))


def codes_of(decoder: ScalarQuantization, update: Tensor) -> list[int]:
    return [int(code) for code in Ring(decoder.modulus_bits).lift(decoder.encode(update, COINS).values[0])]


def decoded_sum(
    decoder: ScalarQuantization, clients: Sequence[Tensor], weights: Sequence[int] | None = None
) -> npt.NDArray[np.float32]:
    payloads = [encode_update(decoder, client, COINS) for client in clients]
    return decoder.decode(ideal_aggregate(decoder.layout, payloads, weights))


def by_row(decoder: ScalarQuantization, parameters: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return a scheme's parameters in a form that broadcasts against its tensor."""
    return np.array(parameters, dtype=np.float64).reshape((-1, *[1] * (len(decoder.shape) - 1))[: len(decoder.shape)])


def candidate(name: str, decoder: ScalarQuantization, **changes: Any) -> Candidate:
    scales = by_row(decoder, decoder.scales)
    ends = [scales * (code - by_row(decoder, decoder.zero_points)) for code in (decoder.least, decoder.greatest)]

    def clipped(update: Tensor) -> Tensor:
        return np.clip(update.astype(np.float64), *ends)

    def error(update: Tensor) -> npt.NDArray[np.float64]:
        half_steps = 2 if decoder.rounding is Rounding.STOCHASTIC else 1
        return half_steps * scales / 2 + np.abs(clipped(update)) * 2.0**-22

    reach = int(1.5 * max(float(np.abs(end).max()) for end in ends)) + 1
    values = {"min_value": -reach, "max_value": reach}

    def another(**changed: Any) -> Any:
        fields = ("shape", "bits", "modulus_bits", "scales", "zero_points", "rounding", "wrapping_weight")
        parameters = {name: getattr(decoder, name) for name in fields} | changed
        return lambda: ScalarQuantization(**parameters)

    described: dict[str, Any] = {
        "name": name,
        "make": another(),
        "updates": st.one_of([arrays(kind, decoder.shape, elements=values) for kind in FLOATS]),
        "error": error,
        "expected": clipped,
        "extremes": [np.broadcast_to(2 * end, decoder.shape).copy() for end in ends],
        "bad_updates": {
            "integers": np.zeros(decoder.shape, dtype=np.int32),
            "long doubles": np.zeros(decoder.shape, dtype=np.longdouble),
        },
        "others": {
            "another scale": another(scales=tuple(1.001 * scale for scale in decoder.scales)),
            "another zero point": another(zero_points=tuple(z + 1 for z in decoder.zero_points)),
            "another ring": another(modulus_bits=decoder.modulus_bits - 1),
            "fewer bits": another(bits=decoder.bits - 1, zero_points=()),
            "another shape": another(shape=(*decoder.shape, 1)),
            "a sum that may wrap": another(wrapping_weight=decoder.margin + 1),
            "another rounding": another(
                rounding=next(rounding for rounding in Rounding if rounding is not decoder.rounding)
            ),
        },
        "stochastic": decoder.rounding is Rounding.STOCHASTIC,
        "payload_bytes": (int(np.prod(decoder.shape)) * decoder.modulus_bits + 7) // 8,
    }
    return Candidate(**(described | changes))


CANDIDATES = (
    candidate("symmetric", scheme()),
    candidate("affine", scheme(bits=8, modulus_bits=16, scales=(0.01,), zero_points=(-77,))),
    candidate(
        "affine_by_channel", scheme(shape=(2, 2, 2), bits=5, modulus_bits=10, scales=(0.5, 3.0), zero_points=(3, -8))
    ),
    candidate("stochastic", scheme(shape=(2, 3), rounding=Rounding.STOCHASTIC, zero_points=(2,)), ulps=16.0),
    candidate("most_bits", scheme(shape=(), bits=16, modulus_bits=40, scales=(2.0**-11,), zero_points=(-9,))),
)


@pytest.mark.parametrize(("subject", "law"), cases(*CANDIDATES), ids=str)
def test_the_scheme_keeps_the_law(subject: Candidate, law: Law) -> None:
    law.check(subject)


@given(
    st.integers(2, 16),
    st.floats(2.0**-100, 2.0**100, width=32),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.sampled_from(["<f4", "<f8"]),
    st.data(),
)
def test_a_code_is_the_nearest_one_up_to_one_rounding_of_a_float(
    bits: int, scale: float, zero_point: int, dtype: str, data: st.DataObject
) -> None:
    decoder = scheme(bits=bits, modulus_bits=16, scales=(scale,), zero_points=(zero_point >> (16 - bits),))
    reach = 1.2 * (1 << bits)
    steps = data.draw(st.lists(st.floats(-reach, reach), min_size=3, max_size=3))
    update = (np.array(steps) * scale).astype(dtype)
    for value, code in zip(update.tolist(), codes_of(decoder, update), strict=True):
        exact = Fraction(value) / Fraction(scale)
        assert decoder.least <= code <= decoder.greatest
        clamped = min(max(exact + decoder.zero_points[0], Fraction(decoder.least)), Fraction(decoder.greatest))
        assert abs(code - clamped) <= Fraction(1, 2) + abs(exact) / (1 << 24)


@pytest.mark.parametrize("scale", [91 / 128, 115 / 2**20, 77.0])
def test_every_tie_of_the_most_bits_goes_to_the_even_code(scale: float) -> None:
    # Products with a scale of seven bits fit float32, so these are ties; a reciprocal would break some.
    whole = np.arange(-(1 << 15), (1 << 15) - 1)
    update = ((whole + 0.5) * scale).astype(np.float32)
    decoder = scheme(shape=whole.shape, bits=16, modulus_bits=16, scales=(scale,))
    assert codes_of(decoder, update) == (whole + whole % 2).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_extremes_of_every_float_are_encoded_under_every_scale(dtype: Any) -> None:
    extremes = np.finfo(dtype)
    update = np.array([extremes.max, extremes.min, extremes.smallest_subnormal, extremes.tiny], dtype=dtype)
    for scale in (2.0**-126, 1.0, 2.0**124):
        steps = [round(Fraction(float(value)) / Fraction(scale)) for value in update]
        decoder = scheme(shape=(4,), scales=(scale,))
        assert codes_of(decoder, update) == [min(max(step, -8), 7) for step in steps]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quotients_beyond_every_float_are_clamped_by_stochastic_rounding_too(dtype: Any) -> None:
    extremes = np.finfo(dtype)
    update = np.array([extremes.max, extremes.min, 0.0], dtype=dtype)
    assert codes_of(scheme(scales=(2.0**-126,), rounding=Rounding.STOCHASTIC), update) == [7, -8, 0]


def test_a_strided_update_is_encoded_as_its_copy() -> None:
    whole = np.linspace(-1.0, 1.0, 36, dtype=np.float32).reshape(6, 6)
    for view in (whole[::2, 1::2], whole.T[:3, :3], whole[2::-1, ::-2]):
        decoder = scheme(shape=(3, 3))
        assert codes_of(decoder, view) == codes_of(decoder, view.copy())


@pytest.mark.parametrize("shape", [(40,), (4, 10), (20, 2), (7, 5), (3, 2, 4), (1, 23)])
@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("which", ["one scale", "a scale for each channel"])
def test_the_size_of_the_blocks_changes_nothing(
    shape: tuple[int, ...], rounding: Rounding, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = np.sin(np.arange(np.prod(shape), dtype=np.float32) ** 2).reshape(shape)
    decoder = calibrate(
        update,
        bits=7,
        modulus_bits=11,
        affine=True,
        per_channel=which != "one scale",
        rounding=rounding,
        least_scale=0.001,
    )
    whole = decoder.encode(update, InsecureSeededCoins(b""))
    scales, zero_points = by_row(decoder, decoder.scales), by_row(decoder, decoder.zero_points)
    alone = decoder.decode(ideal_aggregate(decoder.layout, [whole]))
    assert (np.abs(alone - update) <= scales * 1.01).all()
    if rounding is Rounding.NEAREST_EVEN:
        expected = np.clip(np.rint(update / scales) + zero_points, -64, 63)
        assert Ring(11).lift(whole.values[0]).tolist() == expected.reshape(-1).tolist()
    for block in (1, 2, 7, 10, 11):
        monkeypatch.setattr(scalar_quantization, "_BLOCK", block)
        assert decoder.encode(update, InsecureSeededCoins(b"")).encode() == whole.encode()
        assert (decoder.decode(ideal_aggregate(decoder.layout, [whole])) == alone).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_coin_below_the_fraction_rounds_up(dtype: Any) -> None:
    seed = bytes(range(32))
    decoder = scheme(shape=(5, 200), rounding=Rounding.STOCHASTIC, scales=(0.25,), zero_points=(1,))
    update = np.linspace(-2.2, 1.7, 1000).astype(dtype).reshape(5, 200)
    drawn = expand(Secret("rounding_key", seed), Ring(24), 1000).tolist()
    expected = list[int]()
    for value, coin in zip(update.reshape(-1).tolist(), drawn, strict=True):
        exact = Fraction(value) * 4
        below = exact.__floor__()
        rounded = below + (coin < (exact - below) * (1 << 24))
        expected.append(min(max(rounded + 1, -8), 7))
    coins = InsecureRecordedCoins(seed)
    assert Ring(12).lift(decoder.encode(update, coins).values[0]).tolist() == expected
    assert coins.is_exhausted


def test_a_coin_equal_to_the_fraction_rounds_down() -> None:
    seed = bytes(range(32))
    fractions = expand(Secret("rounding_key", seed), Ring(24), 100).astype(np.float32) * np.float32(2.0**-24)
    decoder = scheme(shape=(100,), rounding=Rounding.STOCHASTIC, scales=(1.0,))
    for update, code in ((fractions, 0), (fractions + np.float32(2.0**-24), 1)):
        assert decoder.encode(update, InsecureRecordedCoins(seed)).values[0].tolist() == [code] * 100


@given(st.data(), st.sampled_from([(4, 9), (4, 24), (5, 25), (5, 30), (12, 40), (16, 64)]))
def test_a_decoded_sum_is_the_scale_times_the_exact_integer(data: st.DataObject, widths: tuple[int, int]) -> None:
    bits, modulus_bits = widths
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    zero_point = data.draw(st.just(0) | st.integers(least, greatest))
    scale = data.draw(st.floats(2.0**-40, 2.0**40, width=32))
    decoder = scheme(shape=(2,), bits=bits, modulus_bits=modulus_bits, scales=(scale,), zero_points=(zero_point,))
    code = st.sampled_from([least, greatest]) | st.integers(least, greatest)
    clients = data.draw(st.lists(st.tuples(code, code), min_size=1, max_size=4))
    weights = data.draw(
        st.lists(st.integers(1, decoder.margin // len(clients)), min_size=len(clients), max_size=len(clients))
    )
    updates = [(np.array(client, dtype=np.float64) - zero_point) * scale for client in clients]
    total = decoded_sum(decoder, updates, weights)
    assert total.dtype == np.float32
    for position in (0, 1):
        summed = sum(weight * client[position] for weight, client in zip(weights, clients, strict=True))
        exact = Fraction(scale) * (summed - zero_point * sum(weights))
        # One rounding of the product, and a second from float64 to float32 if the ring is wide.
        assert abs(Fraction(float(total[position])) - exact) <= abs(exact) * Fraction(1 + 2**-20) / (1 << 24)


@pytest.mark.parametrize("zero_point", [0, 5])
@pytest.mark.parametrize("weight", [(1 << 18) + 1, (1 << 24) + 43])
def test_integers_that_no_float32_holds_are_multiplied_as_they_are(zero_point: int, weight: int) -> None:
    codes = np.arange(-16, 16)
    decoder = scheme(shape=(32,), bits=5, modulus_bits=30, zero_points=(zero_point,))
    total = decoded_sum(decoder, [(codes - zero_point) * STEP], [weight])
    assert total.tolist() == (np.float64(STEP) * ((codes - zero_point) * weight)).astype(np.float32).tolist()


def test_the_capacity_is_what_fits_the_ring_and_a_float() -> None:
    for bits, modulus_bits, capacity in ((4, 11, 128), (8, 53, 1 << 45), (16, 64, 1 << 37)):
        decoder = scheme(bits=bits, modulus_bits=modulus_bits, scales=(1.0,))
        assert decoder.capacity == decoder.margin == capacity


def test_a_sum_beyond_the_margin_is_decoded_on_request_alone() -> None:
    decoder = scheme(modulus_bits=6, scales=(1.0,), wrapping_weight=9)
    assert (decoder.margin, decoder.capacity) == (4, 9)
    update = np.array([-8.0, 7.0, 1.0])
    # -72 and 63 overflow a ring of 6 bits and are wrong by 64 steps; 9 does not overflow.
    assert decoded_sum(decoder, [update] * 9).tolist() == [-8.0, -1.0, 9.0]
    with pytest.raises(CapacityExceeded):
        decoded_sum(decoder, [update] * 10)
    assert scheme(modulus_bits=6, wrapping_weight=2).capacity == 4


def test_the_narrowest_ring_is_the_bits_and_the_logarithm_of_the_cohort() -> None:
    assert [modulus_bits_for(4, cohort) for cohort in (1, 2, 3, 4, 5, 100, 128, 129)] == [4, 5, 6, 6, 7, 11, 11, 12]
    for cohort in (1, 2, 3, 7, 8, 9, 100):
        narrowest = modulus_bits_for(4, cohort)
        assert scheme(modulus_bits=narrowest).capacity >= cohort
        assert narrowest == 4 or scheme(modulus_bits=narrowest - 1).capacity < cohort
    bad: Any
    for bad in (0, -1, 2.0, True):
        with pytest.raises(InvalidParameters, match="number of uploads"):
            modulus_bits_for(4, bad)


OWN_RANGE = np.array([[0.5, -0.40625, 0.28125, -0.15625], [0.09375, -0.046875, 0.015625, 0.0]], dtype=np.float32)


@pytest.mark.parametrize(("least", "zero_point"), [(0.0, -8), (-0.4, -8), (-0.6, -7), (-1.4, -7), (-15.0, 7)])
def test_a_zero_point_is_the_nearest_code(least: float, zero_point: int) -> None:
    decoder = calibrate(np.array([least, least + 15.0]), bits=4, modulus_bits=8, affine=True)
    assert (decoder.scales, decoder.zero_points) == ((1.0,), (zero_point,))


@pytest.mark.parametrize("sample", [[1.0, 2.0, 5.0], [-1.0, -2.0, -5.0], [0.0, 0.0, 0.0], [-3.0, 0.1, 40.0]])
def test_zero_is_always_decoded_exactly(sample: list[float]) -> None:
    decoder = calibrate(np.array(sample), bits=4, modulus_bits=8, affine=True)
    assert decoded_sum(decoder, [np.zeros(3)] * 3).tolist() == [0.0] * 3


def test_each_channel_has_a_scale_of_its_own() -> None:
    sample = np.array([[1.0, -2.0], [0.01, 0.02], [0.0, 0.0]], dtype=np.float32).reshape(3, 2, 1)
    decoder = calibrate(sample, bits=8, modulus_bits=16, per_channel=True)
    assert decoder.scales == (
        float(np.float32(2 / 127.5)),
        float(np.float32(sample.max(axis=(1, 2))[1] / 127.5)),
        2**-23,
    )
    affine = calibrate(sample, bits=8, modulus_bits=16, per_channel=True, affine=True)
    assert affine.zero_points == (42, -128, -128)
    for made in (decoder, affine):
        assert made.shape == (3, 2, 1)
        assert (np.abs(decoded_sum(made, [sample]) - sample) <= by_row(made, made.scales) / 2 * 1.001).all()


def test_the_least_scale_is_the_callers_choice() -> None:
    zeros = np.zeros(3, dtype=np.float32)
    assert calibrate(zeros, bits=8, modulus_bits=16).scales == (2.0**-23,)
    assert calibrate(zeros, bits=8, modulus_bits=16, least_scale=0.25).scales == (0.25,)
    assert calibrate(zeros, bits=8, modulus_bits=16, affine=True, least_scale=0.25).scales == (0.25,)
    assert calibrate(np.full(3, 255.0), bits=8, modulus_bits=16, least_scale=0.25).scales == (2.0,)


def test_calibration_passes_every_other_parameter_on() -> None:
    decoder = calibrate(
        OWN_RANGE, bits=3, modulus_bits=5, rounding=Rounding.STOCHASTIC, wrapping_weight=9, per_channel=True
    )
    assert decoder == ScalarQuantization(
        shape=(2, 4), bits=3, modulus_bits=5, scales=decoder.scales, rounding=Rounding.STOCHASTIC, wrapping_weight=9
    )


def test_ranges_of_the_widest_floats_are_calibrated() -> None:
    most = 2.0**125
    sample = np.array([most, -most], dtype=np.float32)
    assert calibrate(sample, bits=2, modulus_bits=4).scales == (float(np.float32(most / 1.5)),)
    assert calibrate(sample, bits=2, modulus_bits=4, affine=True).scales == (float(np.float32(most / 1.5)),)
    for affine in (False, True):
        with pytest.raises(InvalidParameters, match="float32"):
            calibrate(np.array([1e300, -1e308]), bits=2, modulus_bits=4, affine=affine)


def test_what_cannot_be_a_sample_is_refused() -> None:
    bad: Any
    for bad in ([0.5], np.zeros(3, dtype=np.int32), None):
        with pytest.raises(Misuse, match="floats"):
            calibrate(bad, bits=8, modulus_bits=16)
    with pytest.raises(Misuse, match="axis 0"):
        calibrate(np.array(0.5), bits=8, modulus_bits=16, per_channel=True)
    for bad in (np.array([]), np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(InvalidParameters, match="sample"):
            calibrate(bad, bits=8, modulus_bits=16)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"shape": (0,)}, "shape"),
        ({"shape": [3]}, "shape"),
        ({"shape": (3.0,)}, "shape"),
        ({"shape": (True,)}, "shape"),
        ({"shape": (1 << 40, 2)}, "2\\^40"),
        ({"bits": 1}, "bits"),
        ({"bits": 17, "modulus_bits": 32}, "bits"),
        ({"bits": 8.0}, "bits"),
        ({"bits": 13}, "wider ring"),
        ({"modulus_bits": 65}, "modulus_bits"),
        ({"scales": ()}, "scales"),
        ({"scales": (1.0, 1.0)}, "scales"),
        ({"scales": [1.0]}, "scales"),
        ({"scales": (1.0,) * 3, "shape": (2, 3)}, "scales"),
        ({"scales": (1.0,) * 2, "shape": ()}, "scales"),
        ({"scales": (0.0,)}, "scale"),
        ({"scales": (-1.0,)}, "scale"),
        ({"scales": (float("nan"),)}, "scale"),
        ({"scales": (float("inf"),)}, "scale"),
        ({"scales": (1e39,)}, "scale"),
        ({"scales": (1e-39,)}, "scale"),
        ({"scales": (1,)}, "scale"),
        ({"zero_points": (0, 0)}, "zero_points"),
        ({"zero_points": [0]}, "zero_points"),
        ({"zero_points": (8,)}, "zero point"),
        ({"zero_points": (-9,)}, "zero point"),
        ({"zero_points": (1.0,)}, "zero point"),
        ({"wrapping_weight": 0}, "wrapping_weight"),
        ({"wrapping_weight": 1.5}, "wrapping_weight"),
        ({"wrapping_weight": (1 << 49) + 1}, "wrapping_weight"),
    ],
    ids=repr,
)
def test_a_bad_parameter_is_named_when_the_scheme_is_made(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameters, match=named):
        scheme(**bad)


def test_a_rounding_of_another_kind_is_misuse() -> None:
    with pytest.raises(Misuse, match="Rounding"):
        scheme(rounding="nearest")


def test_scales_are_the_float32_that_travels() -> None:
    assert scheme(scales=(0.1,)) == scheme(scales=(float(np.float32(0.1)),))
    assert scheme(scales=(0.1,)).layout == scheme(scales=(float(np.float32(0.1)),)).layout


def test_the_version_is_pinned() -> None:
    pinned = scheme(shape=(2, 3), scales=(0.5, 0.25), zero_points=(1, -2), wrapping_weight=300)
    assert pinned.layout.version.hex() == "bf0a5cd303bfd88fa42b57ad3de981960cdb42122e463c7aa2a00c086a43d547"
