"""Noise compared with its distributions, computed here from their definitions, and bad coins."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal, localcontext
from fractions import Fraction
from importlib import import_module
from math import isqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.privacy import noise
from secagg.privacy.kinds import GREATEST_VARIANCE, NoiseKind, require_variance
from secagg.privacy.noise import sample
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.distributions import PMFS, WORST_DEVIATION, deviation, deviation_from, gaussian_pmf, skellam_pmf
from tests.harness.recorded_coins import InsecureRecordedCoins, WatchedCoins

Vector = npt.NDArray[np.int64]

below = noise._below  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
is_less = noise._is_less  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
skellam_table = noise._skellam_table  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
with_probability_exp = noise._with_probability_exp  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

KINDS = pytest.mark.parametrize("kind", list(NoiseKind), ids=lambda kind: kind.name.lower())


def drawn(kind: NoiseKind, variance: Fraction | int, length: int, seed: str = "noise") -> Vector:
    return sample(kind, Fraction(variance), length, InsecureSeededCoins(f"{seed} {kind} {variance}".encode()))


@KINDS
@pytest.mark.parametrize(
    "variance", [Fraction(1, 16), Fraction(1, 4), Fraction(1), Fraction(5, 2), Fraction(22, 7), Fraction(12345, 100)]
)
def test_small_noise_has_its_distribution(kind: NoiseKind, variance: Fraction) -> None:
    values = drawn(kind, variance, 200_000)
    assert abs(deviation_from(values, PMFS[kind](variance))) < WORST_DEVIATION


@KINDS
def test_the_two_kinds_are_told_apart(kind: NoiseKind) -> None:
    """The chi-square test would detect a wrong distribution with the same variance."""
    other = next(pmf for name, pmf in PMFS.items() if name is not kind)
    assert deviation_from(drawn(kind, 1, 200_000), other(Fraction(1))) > 20


@pytest.mark.parametrize("sigma", [100, 1 << 14, (1 << 20) - 1, (1 << 40) - 1])
def test_large_discrete_gaussian_is_normal_in_its_high_bits_and_uniform_in_its_low_ones(sigma: int) -> None:
    values = drawn(NoiseKind.DISCRETE_GAUSSIAN, sigma**2, 200_000)
    bins = 50
    # An integer is the interval of half a unit around it, with an error of the order of 1 / sigma^2.
    edges = [NormalDist(0, sigma).inv_cdf(part / bins) for part in range(1, bins)]
    probabilities = np.diff([0.0, *(NormalDist(0, sigma).cdf(np.floor(edge) + 0.5) for edge in edges), 1.0])
    observed = np.bincount(np.searchsorted(np.floor(edges), values), minlength=bins)
    assert abs(deviation(observed.tolist(), (probabilities * values.size).tolist())) < WORST_DEVIATION
    low = np.bincount(values % 16, minlength=16)
    assert abs(deviation(low.tolist(), [values.size / 16] * 16)) < WORST_DEVIATION


@KINDS
@pytest.mark.parametrize("variance", [10**4, 10**8, 1 << 30])
def test_large_noise_has_its_variance_and_tails(kind: NoiseKind, variance: int) -> None:
    values = drawn(kind, variance, 400_000) / variance**0.5
    assert abs(values.mean()) < 4 / values.size**0.5
    assert abs((values**2).mean() - 1) < 4 * (2 / values.size) ** 0.5
    for limit in (2, 3, 4):
        # The half accounts for the unit's width, which only matters for the minimum variance.
        due = 2 * NormalDist().cdf(-limit - 0.5 / variance**0.5) * values.size
        for tail in (values > limit, values < -limit):
            assert abs(np.count_nonzero(tail) - due / 2) < 4 * due**0.5 + 1


@pytest.mark.parametrize("variance", [Fraction(1, 16), Fraction(5, 2), Fraction(100), Fraction(1000, 3)])
def test_skellam_table_is_the_distribution_function_to_112_bits(variance: Fraction) -> None:
    high, low = skellam_table(variance)
    table = [(int(upper) << 64) + int(lower) for upper, lower in zip(high, low, strict=True)]
    with localcontext(prec=80):
        due = Decimal(0)
        for k, probability in enumerate(skellam_pmf(variance)[: len(table)]):
            due += probability * (1 if k == 0 else 2)
            assert abs(table[k] - due * (1 << 128)) < 1 << 16
    assert table[-1] > (1 << 128) - (1 << 16), "the table ends in the tail"
    assert table == sorted(table)


@pytest.mark.parametrize("variance", [Fraction(10**6), Fraction(10**9 + 1, 3), Fraction(1 << 30)])
def test_large_skellam_table_has_the_moments_of_the_distribution(variance: Fraction) -> None:
    high, low = skellam_table(variance)
    above = 1 - (high.astype(np.longdouble) / 2.0**64 + low.astype(np.longdouble) / 2.0**128)
    k = np.arange(high.size, dtype=np.longdouble)
    v = float(variance)
    # Sums of P(|X| > k) by parts: k^2 and k^4 grow by 2 k + 1 and by 4 k^3 + 6 k^2 + 4 k + 1.
    assert float(((2 * k + 1) * above).sum()) == pytest.approx(v, rel=1e-9)
    fourth = ((4 * k**3 + 6 * k**2 + 4 * k + 1) * above).sum()
    assert float(fourth) == pytest.approx(3 * v**2 + v, rel=1e-8)


@pytest.mark.parametrize("sigma", [1.5, 100.0])
def test_discrete_gaussian_agrees_with_opendp(sigma: float) -> None:
    """OpenDP draws its own coins, so only this test is not repeatable; it fails by chance once in 10^9 runs."""
    opendp: Any = pytest.importorskip("opendp.prelude", reason="compares with OpenDP, of the extra `dev`")
    opendp.enable_features("contrib")
    size = 40_000
    space = opendp.vector_domain(opendp.atom_domain(T=int), size=size), opendp.l2_distance(T=int)
    theirs = np.array(import_module("opendp.measurements").make_gaussian(*space, scale=sigma)([0] * size))
    ours = drawn(NoiseKind.DISCRETE_GAUSSIAN, Fraction(sigma) ** 2, size)
    edges = np.unique(np.quantile(ours, np.linspace(0, 1, 41)[1:-1]))
    left, right = (np.bincount(np.searchsorted(edges, side), minlength=edges.size + 1) for side in (ours, theirs))
    statistic = float(((left - right) ** 2 / (left + right)).sum())
    freedom = edges.size
    assert ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5 < 6


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(5, 2), Fraction(99, 2)])
def test_coarse_bounds_leave_more_to_rational_arithmetic_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch, variance: Fraction
) -> None:
    monkeypatch.setattr(noise, "_FRACTION_BITS", 2)
    values = drawn(NoiseKind.DISCRETE_GAUSSIAN, variance, 8_000)
    assert abs(deviation_from(values, gaussian_pmf(variance))) < WORST_DEVIATION


def test_fine_and_coarse_bounds_decide_the_same_trials_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    exponents = [Fraction(k, 977) for k in range(978)]

    def outcomes() -> list[bool]:
        unit = 1 << noise._FRACTION_BITS  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        low = np.array([int(exponent * unit) for exponent in exponents])
        high = np.minimum(low + 1, unit)
        coins = InsecureSeededCoins(b"trials")
        decided: list[bool] = with_probability_exp(low, high, lambda at: exponents[at], coins).tolist()
        return decided

    fine = outcomes()
    monkeypatch.setattr(noise, "_FRACTION_BITS", 1)
    assert outcomes() == fine


def test_open_comparisons_draw_more_coins_until_they_are_decided() -> None:
    third = (1 << 32) // 3
    for word, expected in ((third - 1, True), (third + 1, False)):
        assert is_less(third, Fraction(1, 3), words("<u4", word)) is expected
    assert is_less(third, Fraction(1, 3), words("<u4", third, third, 0))
    # A dyadic probability is exact, and a real that begins with its bits is not below it.
    half = 1 << 31
    assert not is_less(half, Fraction(1, 2), words("<u4"))
    assert is_less(half - 1, Fraction(1, 2), words("<u4"))


def test_equal_high_words_are_decided_by_low_ones() -> None:
    high = np.array([5, 9, 9, 9, 20], dtype=np.uint64)
    low = np.array([3, 0, 4, 8, 1], dtype=np.uint64)

    def place_of(first: int, coins: InsecureRecordedCoins) -> list[int]:
        place: list[int] = noise.place_in((high, low), np.array([first], dtype=np.uint64), coins).tolist()
        return place

    for first, second, expected in [(5, 2, 0), (5, 3, 1), (9, 0, 2), (9, 3, 2), (9, 4, 3), (9, 9, 4), (20, 1, 5)]:
        coins = words("<u8", second)
        assert place_of(first, coins) == [expected]
        assert coins.is_exhausted
    for first, expected in [(0, 0), (4, 0), (6, 1), (19, 4), (21, 5), ((1 << 64) - 1, 5)]:
        assert place_of(first, words("<u8")) == [expected]


def words(form: str, *values: int) -> InsecureRecordedCoins:
    return InsecureRecordedCoins(np.array(values, dtype=form).tobytes())


@pytest.mark.parametrize("bound", [2, 3, 5, 7, 1000, 1 << 20, (1 << 40) - 1, (1 << 40) + 1])
def test_words_beyond_the_last_multiple_of_a_bound_are_drawn_again(bound: int) -> None:
    last = (1 << 64) // bound * bound - 1
    assert below(bound, 1, words("<u8", last)).tolist() == [bound - 1]
    if last < (1 << 64) - 1:
        assert below(bound, 2, words("<u8", last + 1, 1, (1 << 64) - 1, 4)).tolist() == [4 % bound, 1]


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 33])
def test_integers_below_a_bound_are_uniform(bound: int) -> None:
    counts = np.bincount(below(bound, 60_000, InsecureSeededCoins(b"uniform")), minlength=bound)
    assert counts.size == bound
    assert bound == 1 or abs(deviation(counts.tolist(), [60_000 / bound] * bound)) < WORST_DEVIATION


class Constant:
    """Coins with all bytes equal."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def draw(self, count: int) -> bytearray:
        return bytearray([self._byte]) * count


class Short:
    """Coins that return one byte too few."""

    def draw(self, count: int) -> bytearray:
        return SystemCoins().draw(count - 1)


class Immutable:
    """Coins that cannot be overwritten."""

    def draw(self, count: int) -> Any:
        return bytes(count)


@KINDS
def test_equal_coins_give_equal_noise_and_others_give_other_noise(kind: NoiseKind) -> None:
    first, again, other = (drawn(kind, 100, 50, seed) for seed in ("one", "one", "other"))
    assert first.tolist() == again.tolist() != other.tolist()


@KINDS
def test_coins_are_overwritten(kind: NoiseKind) -> None:
    coins = WatchedCoins()
    sample(kind, Fraction(100), 1000, coins)
    assert sum(len(buffer) for buffer in coins.handed_out) >= 1000
    assert not any(any(buffer) for buffer in coins.handed_out)


@KINDS
@pytest.mark.parametrize("coins", [Short(), Immutable()], ids=["short", "immutable"])
def test_coins_that_are_no_coins_are_refused(kind: NoiseKind, coins: Any) -> None:
    with pytest.raises(Misuse):
        sample(kind, Fraction(100), 10, coins)


@pytest.mark.parametrize("byte", [0x00, 0x03, 0x06, 0x09, 0xFF])
def test_coins_that_end_no_trial_are_refused(byte: int) -> None:
    """Each of these bytes, repeated, would make a different loop run forever."""
    with pytest.raises(Misuse, match="repair their draw"):
        sample(NoiseKind.DISCRETE_GAUSSIAN, Fraction(100), 100, Constant(byte))


def test_a_comparison_that_coins_never_decide_is_given_up() -> None:
    with pytest.raises(Misuse, match="repair their draw"):
        is_less((1 << 32) // 3, Fraction(1, 3), Constant(0x55))
    with pytest.raises(Misuse, match="repair their draw"):
        below(3, 1, Constant(0xFF))


@KINDS
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 1000])
def test_length_is_the_one_asked_for(kind: NoiseKind, length: int) -> None:
    values = drawn(kind, 3, length)
    assert values.shape == (length,)
    assert values.dtype == np.int64


@KINDS
def test_pieces_do_not_change_the_distribution(monkeypatch: pytest.MonkeyPatch, kind: NoiseKind) -> None:
    monkeypatch.setattr(noise, "_PIECE", 97)
    values = drawn(kind, Fraction(5, 2), 40_000)
    assert abs(deviation_from(values, PMFS[kind](Fraction(5, 2)))) < WORST_DEVIATION
    ends = np.concatenate([values[start - 1 : start + 1] for start in range(97, values.size, 97)])
    assert abs(deviation_from(ends, PMFS[kind](Fraction(5, 2)))) < WORST_DEVIATION


@KINDS
def test_neighbouring_values_are_not_correlated(kind: NoiseKind) -> None:
    values = drawn(kind, 10**4, 200_000).astype(np.float64) / 100
    for lag in (1, 2, 8, 64):
        assert abs(float((values[lag:] * values[:-lag]).mean())) < 4.5 / values.size**0.5


@KINDS
def test_memory_beside_the_result_is_that_of_a_piece(kind: NoiseKind) -> None:
    tracemalloc.start()
    try:
        values = sample(kind, Fraction(10**4), 1 << 19, InsecureSeededCoins(b"memory"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes + (8 << 20)


@KINDS
def test_variances_out_of_range_are_refused(kind: NoiseKind) -> None:
    greatest = Fraction(GREATEST_VARIANCE[kind])
    for variance in (Fraction(1, 16), greatest):
        require_variance(variance, kind)
    for variance in (Fraction(0), Fraction(-1), Fraction(1, 16) - Fraction(1, 1000), greatest + Fraction(1, 1000)):
        with pytest.raises(InvalidParameters, match="the variance of"):
            sample(kind, variance, 1, SystemCoins())


def test_greatest_variance_stays_far_from_the_ends_of_a_word() -> None:
    values = drawn(NoiseKind.DISCRETE_GAUSSIAN, GREATEST_VARIANCE[NoiseKind.DISCRETE_GAUSSIAN], 100_000)
    assert np.abs(values).max() < 1 << 43


def test_the_largest_offset_of_the_largest_scale_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform coins draw it once in 2^40 times; wrapped, it would always be kept, not once in e times."""
    scale = isqrt(GREATEST_VARIANCE[NoiseKind.DISCRETE_GAUSSIAN]) + 1
    assert (scale - 1) << 23 < 1 << 63

    def largest(bound: int, size: int, _: Any) -> Vector:
        return np.full(size, bound - 1, dtype=np.int64)

    monkeypatch.setattr(noise, "_below", largest)
    laplace = noise._laplace  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    kept = laplace(scale, 20_000, InsecureSeededCoins(b"offsets"))
    assert 0.34 < kept.size / 20_000 < 0.4
    assert (np.abs(kept) % scale == scale - 1).all()


def test_long_fractions_are_refused_and_those_that_fit_are_drawn_with() -> None:
    fits = Fraction((1 << 128) - 1, 1 << 127)
    assert sample(NoiseKind.DISCRETE_GAUSSIAN, fits, 3, SystemCoins()).size == 3
    assert sample(NoiseKind.SKELLAM, fits, 3, SystemCoins()).size == 3
    for variance in (fits + Fraction(1, 1 << 128), Fraction((1 << 129) - 1, 1 << 128)):
        with pytest.raises(InvalidParameters, match="round the noise multiplier"):
            require_variance(variance, NoiseKind.DISCRETE_GAUSSIAN)


@pytest.mark.parametrize("variance", [1, 1.0, "1", None, True])
def test_variances_that_are_no_fractions_are_refused(variance: Any) -> None:
    with pytest.raises(Misuse):
        require_variance(variance, NoiseKind.DISCRETE_GAUSSIAN)


def test_kinds_and_lengths_of_other_types_are_refused() -> None:
    kind: Any = 1
    with pytest.raises(Misuse):
        sample(kind, Fraction(1), 1, SystemCoins())
    length: Any
    for length in (-1, 1.0, True):
        with pytest.raises(InvalidParameters, match="length must be"):
            sample(NoiseKind.SKELLAM, Fraction(1), length, SystemCoins())
