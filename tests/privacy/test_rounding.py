"""Exact norms, and random rounding under a bound, compared with computations here and with their tails."""

from __future__ import annotations

import math
from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.privacy.kinds import clip_into, squared_norm
from secagg.privacy.rounding import (
    ROTATED_DEVIATIONS,
    WORST_DEVIATIONS,
    bound_for_ring,
    rounded,
    rounded_norm,
    summed_deviation,
    unrounded_norm,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.recorded_coins import WatchedCoins

LENGTHS = pytest.mark.parametrize("length", [1, 100, 19_456, 32_768])


@LENGTHS
@pytest.mark.parametrize("over", [1.01, 2, 50])
def test_a_bound_is_met_whatever_is_rounded(length: int, over: float) -> None:
    bound = math.ceil(over * (rounded_norm(0, length) + 1))
    generator = np.random.default_rng(length)
    for direction in (generator.standard_normal(length), np.full(length, 0.5), np.eye(1, length)[0]):
        vector: npt.NDArray[np.float64] = direction * float(unrounded_norm(bound, length) / np.linalg.norm(direction))
        values = rounded(vector, bound, InsecureSeededCoins(b"rounding"))
        assert int(values @ values) <= bound**2
        assert (np.abs(values - vector) < 1).all()


@LENGTHS
def test_the_two_norms_are_each_others_inverses(length: int) -> None:
    for bound in (10**4, 10**6):
        assert rounded_norm(unrounded_norm(bound, length), length) == pytest.approx(bound, rel=1e-9)


def test_the_norm_of_what_is_rounded_counts_the_padding() -> None:
    """19,338 values are padded to 32,768 or, in blocks, to 19,456: the padding is also rounded."""
    assert [round(rounded_norm(0, length), 1) for length in (19_338, 19_456, 32_768)] == [70.0, 70.2, 91.0]


def test_rounding_is_unbiased() -> None:
    vector = np.random.default_rng(1).standard_normal(200) * 3
    coins = InsecureSeededCoins(b"mean")
    bound = math.ceil(rounded_norm(float(np.linalg.norm(vector)), vector.size)) + 1
    mean = np.mean([rounded(vector, bound, coins) for _ in range(4000)], axis=0)
    assert np.abs(mean - vector).max() < 5 * 0.5 / 4000**0.5 + 0.01


class LongCoins:
    """Coins that round everything up."""

    def draw(self, count: int) -> bytearray:
        return bytearray(count)


def test_whole_values_stay_and_others_may_reach_the_bound() -> None:
    assert rounded(np.array([3.0, 2.0]), 5, LongCoins()).tolist() == [3, 2]
    assert rounded(np.array([2.5, 3.5]), 5, LongCoins()).tolist() == [3, 4]


def test_coins_are_overwritten() -> None:
    coins = WatchedCoins()
    rounded(np.full(100, 0.5), 100, coins)
    assert coins.handed_out
    assert not any(any(buffer) for buffer in coins.handed_out)


def test_what_cannot_be_short_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="the minimum is 51"):
        unrounded_norm(50, 10_000)
    assert unrounded_norm(51, 10_000) > 0
    with pytest.raises(CapacityExceeded, match="clip it"):
        rounded(np.full(100, 3.0), 20, InsecureSeededCoins(b""))
    with pytest.raises(CapacityExceeded, match="clip it"):
        rounded(np.full(100, np.nan), 200, InsecureSeededCoins(b""))
    with pytest.raises(Misuse, match="coins are not uniform"):
        rounded(np.full(10_000, 0.001), 52, LongCoins())


@pytest.mark.parametrize(("bits", "inflation"), [(12, 1.48), (14, 1.034)])
def test_extra_noise_of_narrow_rings_is_that_of_the_law(bits: int, inflation: float) -> None:
    """100,000 values, 1,000 equal clients, noise multiplier 1."""
    bound = bound_for_ring(bits, 100_000, 1_000, 1.0)
    assert bound / unrounded_norm(bound, 100_000) == pytest.approx(inflation, abs=0.02)


@pytest.mark.parametrize(("bits", "length", "clients", "share"), [(12, 10_000, 20, 0.5), (16, 19_456, 1000, 4.0)])
def test_the_bound_for_a_ring_is_the_largest_that_fits(bits: int, length: int, clients: int, share: float) -> None:
    bound = bound_for_ring(bits, length, clients, share)

    def reach(of: int) -> float:
        return ROTATED_DEVIATIONS * summed_deviation(unrounded_norm(of, length), length, clients, share * of**2)

    assert reach(bound) <= Ring(bits).greatest < reach(bound + 1)


def test_a_ring_that_holds_nothing_names_one_that_does() -> None:
    with pytest.raises(InvalidParameters, match="use 14 bits"):
        bound_for_ring(9, 1_000_000, 100, 4.0)
    assert bound_for_ring(14, 1_000_000, 100, 4.0)


def test_a_bound_is_in_the_ring_even_where_a_sum_behind_a_rotation_would_be() -> None:
    with pytest.raises(InvalidParameters, match="too few for a sum of 1 updates"):
        bound_for_ring(4, 10_000, 1, 0.0)
    assert bound_for_ring(4, 150, 1, 0.0) == Ring(4).greatest == int(rounded_norm(0, 150)) + 1


def test_sums_wrap_as_often_as_the_tail_says() -> None:
    """Four deviations: 63 coordinates in a million, each by 8 deviations, which is 0.41 % of the energy."""
    ring, size = Ring(16), 4_000_000
    deviation = ring.greatest / ROTATED_DEVIATIONS
    sums = np.random.default_rng(2).standard_normal(size) * deviation
    wrapped = ring.lift(np.rint(sums).astype(np.int64).astype(np.uint16))
    apart = wrapped - sums
    share = np.count_nonzero(np.abs(apart) > 1) / size
    assert share == pytest.approx(math.erfc(ROTATED_DEVIATIONS / math.sqrt(2)), rel=0.2)
    assert float(apart @ apart) / float(sums @ sums) == pytest.approx(0.0041, rel=0.2)
    assert math.erfc(WORST_DEVIATIONS / math.sqrt(2)) * 10**7 < 2**-40


@given(data=st.data(), bits=st.integers(1, 64))
def test_the_squared_norm_is_that_of_plain_integers(data: st.DataObject, bits: int) -> None:
    ring = Ring(bits)
    edges = st.sampled_from([ring.least, ring.greatest, 0, min(1, ring.greatest), -1])
    values = data.draw(st.lists(st.one_of(st.integers(ring.least, ring.greatest), edges), min_size=1, max_size=40))
    vector = ring.from_integers(np.array(values, dtype=np.int64))
    assert squared_norm(ring, vector) == sum(value * value for value in values)


@pytest.mark.parametrize("bits", [1, 8, 24, 25, 32, 47, 48, 49, 63, 64])
@pytest.mark.parametrize("end", ["least", "greatest"])
@pytest.mark.parametrize("length", [1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_000])
def test_it_does_not_wrap_at_the_ends_of_a_range_over_whole_pieces(bits: int, end: str, length: int) -> None:
    ring = Ring(bits)
    value: int = getattr(ring, end)
    vector = ring.from_integers(np.full(length, value, dtype=np.int64))
    assert squared_norm(ring, vector) == length * value * value


@given(data=st.data(), bits=st.integers(2, 64), bound=st.integers(1, (1 << 40) - 1))
def test_a_vector_is_scaled_down_to_its_bound_and_never_beyond(data: st.DataObject, bits: int, bound: int) -> None:
    ring = Ring(bits)
    edges = st.sampled_from([ring.least, ring.greatest, 0, min(1, ring.greatest), -1])
    values = data.draw(st.lists(st.one_of(st.integers(ring.least, ring.greatest), edges), min_size=1, max_size=40))
    vector = ring.from_integers(np.array(values, dtype=np.int64))
    squared = sum(value * value for value in values)
    norm = isqrt(squared - 1) + 1 if squared else 0
    clip_into(ring, vector, bound)
    ring.require_vector(vector)
    clipped: list[int] = ring.lift(vector).tolist()
    assert squared_norm(ring, vector) <= bound * bound
    if squared <= bound * bound:
        assert clipped == values
        return
    for value, scaled in zip(values, clipped, strict=True):
        exact = Fraction(value * bound, norm)
        assert abs(exact - scaled) < 1, "rounded towards zero, by less than a step"
        assert abs(scaled) <= abs(exact)


@pytest.mark.parametrize("bits", [20, 32, 48, 64])
def test_pieces_of_one_vector_are_scaled_by_one_factor(bits: int) -> None:
    ring = Ring(bits)
    vector = ring.from_integers(np.full(40_000, -(1 << 18), dtype=np.int64))
    clip_into(ring, vector, 200 * 1000)
    assert set(ring.lift(vector).tolist()) == {-1000}


def test_an_empty_vector_and_zeros_have_none() -> None:
    ring = Ring(20)
    assert squared_norm(ring, ring.zeros(0)) == 0
    zeros = ring.zeros(100)
    clip_into(ring, zeros, 1)
    assert not zeros.any()


def test_a_vector_whose_norm_has_more_than_63_bits_is_clipped_too() -> None:
    ring = Ring(61)
    vector = ring.from_integers(np.full(20_000, ring.least, dtype=np.int64))
    clip_into(ring, vector, 3)
    assert squared_norm(ring, vector) <= 3**2
