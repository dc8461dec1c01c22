"""Products against schoolbook multiplication of integers, and the bound that makes them exact."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import InternalError, InvalidParameters
from secagg.protocols.one_message import lattice
from secagg.protocols.one_message.lattice import (
    GREATEST_ERROR,
    error_bound,
    limb_bits,
    limb_count,
    products,
    require_short,
    secret_norm_bound,
    spectra,
    sum_limb_bits,
)
from secagg.protocols.one_message.opening import split_sum
from secagg.protocols.one_message.parameters import DEGREES, MAXIMUM_MODULUS_BITS
from secagg.protocols.one_message.session import greatest_modulus_bits
from secagg.simulation.insecure_coins import InsecureSeededCoins


def schoolbook(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> list[int]:
    """Return the product modulo X^n + 1 in integers, which stay below 2^50 here."""
    degree = left.size
    total = np.zeros(degree, np.int64)
    for index, factor in enumerate(right.tolist()):
        total += np.concatenate([-left[degree - index :], left[: degree - index]]) * factor
    values: list[int] = total.tolist()
    return values


def product(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> list[int]:
    values: list[int] = products(spectra(left), spectra(right)).reshape(-1).tolist()
    return values


def uniform(name: bytes, count: int, low: int, high: int) -> npt.NDArray[np.int64]:
    words = np.frombuffer(InsecureSeededCoins(name).draw(8 * count), "<u8")
    return (words % np.uint64(high - low + 1)).astype(np.int64) + low


@given(seed=st.binary(min_size=1, max_size=8), bits=st.integers(2, 28), exponent=st.integers(2, 7))
@settings(max_examples=40)
def test_small_products_are_schoolbook(seed: bytes, bits: int, exponent: int) -> None:
    degree = 1 << exponent
    left = uniform(seed + b"l", degree, -(1 << bits - 1), (1 << bits - 1) - 1)
    right = uniform(seed + b"r", degree, -20, 20)
    assert product(left, right) == schoolbook(left, right)


@pytest.mark.parametrize("degree", DEGREES)
def test_the_worst_products_are_schoolbook(degree: int) -> None:
    bits = limb_bits(greatest_modulus_bits(degree, 128))
    edge = np.full(degree, -(1 << bits - 1))
    alternating = np.where(np.arange(degree) % 2, edge, -edge - 1)
    widest = sum_limb_bits(degree, greatest_modulus_bits(degree, 128))
    for left in (edge, alternating):
        for right in (np.full(degree, -(1 << widest - 1)), uniform(b"r", degree, -20, 20)):
            assert product(left, right) == schoolbook(left, right)


@pytest.mark.parametrize("degree", DEGREES)
def test_every_product_that_parameters_allow_is_exact(degree: int) -> None:
    for modulus_bits in range(2, MAXIMUM_MODULUS_BITS + 1):
        limb = limb_bits(modulus_bits)
        assert limb * limb_count(modulus_bits) >= modulus_bits
        assert error_bound(degree, limb, secret_norm_bound(degree)) < GREATEST_ERROR
        widest = sum_limb_bits(degree, modulus_bits)
        assert error_bound(degree, limb, math.sqrt(degree) * 2 ** (widest - 1)) < GREATEST_ERROR
        # Rounding by an addition beside 2^52 asks for products below 2^51.
        longest = max(secret_norm_bound(degree), math.sqrt(degree) * 2**widest)
        assert 2 ** (limb - 1) * math.sqrt(degree) * longest < 2**51


def test_limbs_that_are_too_wide_have_no_bound_below_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_bound(2048, 32, secret_norm_bound(2048)) > GREATEST_ERROR
    monkeypatch.setattr(lattice, "LIMB_BITS", 36)
    with pytest.raises(InvalidParameters, match="not exact"):
        sum_limb_bits(2048, 36)


@pytest.mark.parametrize("limb", [20, 28])
def test_measured_errors_stay_below_the_bound(limb: int) -> None:
    degree = 2048
    left, right = uniform(b"a", degree, -(1 << limb - 1), (1 << limb - 1) - 1), uniform(b"s", degree, -9, 9)
    scaled = np.fft.ifft(spectra(left) * spectra(right)) * lattice.unscaling(degree // 2)
    exact = np.array(schoolbook(left, right), np.float64).reshape(2, -1)
    error = max(np.abs(scaled.real - exact[0]).max(), np.abs(scaled.imag - exact[1]).max())
    assert 0 < error < error_bound(degree, limb, float(np.linalg.norm(right)))


@given(bits=st.integers(2, 9), values=st.lists(st.integers(-32_760, 32_760), min_size=1, max_size=20))
def test_limbs_of_a_sum_add_up_and_stay_within_theirs(bits: int, values: list[int]) -> None:
    limbs = split_sum(np.array(values, np.int32), bits)
    assert sum(limb << bits * index for index, limb in enumerate(limbs)).tolist() == values  # type: ignore[union-attr]
    assert all(-(1 << bits - 1) <= int(limb.min()) and int(limb.max()) < 1 << bits - 1 for limb in limbs)


def test_a_secret_that_is_too_long_is_refused() -> None:
    require_short(np.full(1024, 5, np.int8))
    with pytest.raises(InternalError, match="not uniform"):
        require_short(np.full(1024, 6, np.int8))
