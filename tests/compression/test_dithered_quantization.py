"""Dithered quantization against exact fractions: the laws, the margin for rounding, and everything refused."""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.scalar_quantization import DitheredQuantization, calibrate_dithered, dithered_ring
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, ideal_aggregate
from secagg.contract.decoder import rounded_payload, unbiased_aggregate
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"encoding draws none of them")


def scheme(**changed: Any) -> DitheredQuantization:
    chosen: dict[str, Any] = {"shape": (3,), "bits": 3, "modulus_bits": 10, "scale": 0.25, "fine_bits": 8, **changed}
    return DitheredQuantization(**chosen)


def candidate(name: str, payload_bytes: int, **changed: Any) -> Candidate:
    decoder = scheme(**changed)
    end = decoder.scale * (1 << (decoder.bits - 1))
    return Candidate(
        name=name,
        make=lambda: scheme(**changed),
        updates=st.one_of(
            [
                arrays(np.dtype(kind), decoder.shape, elements=st.floats(-2.0, 2.0, width=16))
                for kind in ("<f8", "<f4", "<f2")
            ]
        ),
        expected=lambda update: np.clip(update.astype(np.float64), -end, end),
        error=decoder.scale * 2.0 ** -(decoder.fine_bits + 1),
        extremes=[np.full(decoder.shape, 1e300), np.full(decoder.shape, -1e300), np.zeros(decoder.shape)],
        bad_updates={"integers": np.zeros(decoder.shape, dtype=np.int64)},
        others={
            "another shape": lambda: scheme(**{**changed, "shape": (4,)}),
            "other bits": lambda: scheme(**{**changed, "bits": 2}),
            "another ring": lambda: scheme(**{**changed, "modulus_bits": 12}),
            "another scale": lambda: scheme(**{**changed, "scale": 0.75}),
            "other fine bits": lambda: scheme(**{**changed, "fine_bits": 9}),
        },
        payload_bytes=payload_bytes,
    )


CANDIDATES = [
    candidate("dithered quantization", 4),
    candidate(
        "dithered quantization of a matrix, one bit and few fine bits",
        6,
        shape=(2, 3),
        bits=1,
        fine_bits=2,
        modulus_bits=8,
    ),
    candidate("dithered quantization with a wide ring", 11, bits=6, modulus_bits=29, fine_bits=12),
]


@pytest.mark.parametrize(("candidate", "law"), cases(*CANDIDATES), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@given(
    value=st.floats(-3.0, 3.0),
    bits=st.integers(1, 8),
    fine_bits=st.integers(1, 16),
    scale=st.sampled_from([0.25, 0.3, 1.0]),
)
def test_a_value_becomes_the_nearest_fine_step(value: float, bits: int, fine_bits: int, scale: float) -> None:
    decoder = scheme(shape=(1,), bits=bits, fine_bits=fine_bits, scale=scale, modulus_bits=12)
    code = int(decoder.layout.require_rings()[0].ring.lift(decoder.encode(np.array([value]), COINS).values[0])[0])
    exact = Fraction(value) / Fraction(scale) * (1 << fine_bits)
    clamped = min(max(exact, Fraction(-decoder.bound)), Fraction(decoder.bound))
    # The quotient is a float, whose own error is far below a fine step.
    assert abs(code - clamped) <= Fraction(1, 2) + Fraction(1, 1 << 20)


def rounded_sum(decoder: DitheredQuantization, update: npt.NDArray[np.float64], clients: int, seed: bytes) -> Aggregate:
    coins, payload = InsecureSeededCoins(seed), decoder.encode(update, COINS)
    rounded = [rounded_payload(payload, coins) for _ in range(clients)]
    return unbiased_aggregate(ideal_aggregate(decoder.layout, rounded))


@pytest.mark.parametrize("place", [0.0, 0.25, 0.5, 0.9375])
@pytest.mark.parametrize("clients", [2, 25])
def test_the_error_of_a_sum_is_that_of_uniform_dither_wherever_values_lie_between_steps(
    clients: int, place: float
) -> None:
    size = 1 << 14
    decoder = scheme(shape=(size,), scale=1.0, fine_bits=8, modulus_bits=12)
    update = np.full(size, place)
    error = decoder.decode(rounded_sum(decoder, update, clients, b"between")).astype(np.float64) - clients * place
    # Six standard deviations of the mean of this many errors, and of their squares.
    assert abs(error.mean()) < 6 * (clients / 12 / size) ** 0.5
    assert error.std() == pytest.approx((clients / 12) ** 0.5, rel=0.03)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("fine_bits", [1, 4, 8, 12])
def test_no_rounding_moves_a_full_sum_out_of_the_ring(fine_bits: int, sign: int) -> None:
    """Rule D18: a ring without a margin for rounding decodes half of all full sums with the wrong sign."""
    decoder = scheme(bits=2, fine_bits=fine_bits, modulus_bits=5)
    clients = decoder.capacity
    total = rounded_sum(decoder, np.full(3, sign * 1e9), clients, b"full")
    assert np.abs(decoder.decode(total) - sign * clients * 0.5).max() <= clients * 0.25


def test_the_narrowest_ring_holds_its_weight_and_one_bit_less_does_not() -> None:
    for bits in (1, 2, 5, 8):
        for fine_bits in (1, 6, 8, 16):
            for weight in (1, 3, 100, 10_000):
                width = dithered_ring(bits, weight, fine_bits)
                assert scheme(bits=bits, fine_bits=fine_bits, modulus_bits=width).capacity >= weight
                if width > 2:
                    with pytest.raises(InvalidParameters) if weight == 1 else pytest.raises(AssertionError):
                        assert scheme(bits=bits, fine_bits=fine_bits, modulus_bits=width - 1).capacity >= weight


@pytest.mark.parametrize(
    "changed",
    [
        {"bits": 0},
        {"bits": 17},
        {"fine_bits": 0},
        {"fine_bits": 25},
        {"modulus_bits": 30},
        {"modulus_bits": 3},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": 1},
        {"shape": (0,)},
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((InvalidParameters, Misuse)):
        scheme(**changed)


def test_a_scale_comes_from_the_largest_value_of_a_sample() -> None:
    decoder = calibrate_dithered(np.array([[0.5, -2.0]]), bits=3, modulus_bits=8)
    assert (decoder.scale, decoder.shape) == (0.5, (1, 2))
    for spoilt in (np.zeros(2), np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(InvalidParameters, match="another sample"):
            calibrate_dithered(spoilt, bits=3, modulus_bits=8)
