"""Losses compared with divergences and tail sums, computed here from the distributions."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from functools import cache
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from math import exp, lgamma, log, pi, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.privacy import accounting
from secagg.privacy.accounting import ReleasePart, epsilon, gap_of_sum, loss_of, rho_of_part
from secagg.privacy.kinds import LEAST_DELTA, NoiseKind, require_delta

Pmf = npt.NDArray[np.float64]
GAUSSIAN, SKELLAM = NoiseKind.DISCRETE_GAUSSIAN, NoiseKind.SKELLAM
KINDS = pytest.mark.parametrize("kind", list(NoiseKind), ids=lambda kind: kind.name.lower())


@pytest.fixture(autouse=True)
def dp_accounting() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")


def part(l2_squared: int, variance: Fraction | int, l1: int | None = None) -> ReleasePart:
    return ReleasePart(l2_squared=l2_squared, l1=l1, variance=Fraction(variance))


@cache
def pmf(kind: NoiseKind, variance: float) -> tuple[int, Pmf]:
    """Return the reach of a table of probabilities to either side, and the table."""
    reach = int(60 + 30 * sqrt(variance))
    k = np.arange(-reach, reach + 1)
    if kind is GAUSSIAN:
        weights = np.exp(-(k**2) / (2 * variance))
        return reach, weights / weights.sum()
    logs = np.array([-variance / 2 + j * log(variance / 2) - lgamma(j + 1) for j in range(2 * reach + 1)])
    poisson = np.exp(logs)
    middle = poisson.size - 1
    return reach, np.convolve(poisson, poisson[::-1])[middle - reach : middle + reach + 1]


def shifted(kind: NoiseKind, variance: float, shift: int) -> tuple[Pmf, Pmf]:
    """Return the distributions of noise and of noise shifted by ``shift``, where both tables reach."""
    _, table = pmf(kind, variance)
    return (table[shift:], table[: table.size - shift]) if shift else (table, table)


def renyi(kind: NoiseKind, variance: float, shift: int, order: int) -> float:
    left, right = shifted(kind, variance, shift)
    # A value with probability zero in one table is too unlikely to matter at these orders.
    both = (left > 1e-290) & (right > 1e-290)
    return float(np.log(np.exp(order * np.log(left[both]) - (order - 1) * np.log(right[both])).sum()) / (order - 1))


def least_delta(kind: NoiseKind, variance: float, shifts: list[int], bound: float) -> float:
    """Return the exact delta at an epsilon, for a vector that moves by ``shifts``: the hockey-stick divergence."""
    left, right = np.ones(1), np.ones(1)
    for shift in shifts:
        one, other = shifted(kind, variance, shift)
        left, right = np.outer(left, one).ravel(), np.outer(right, other).ravel()
    return float(np.maximum(left - exp(bound) * right, 0).sum())


def skellam_loss(order: int, one: ReleasePart) -> float:
    return loss_of(NoiseKind.SKELLAM, [one]).at(order)


def test_skellam_loss_is_the_formula_of_the_paper() -> None:
    # a D2^2 / (2 v), and the lesser of ((2 a - 1) D2^2 + 6 D1) / (4 v^2) and 3 D1 / (2 v).
    assert skellam_loss(3, part(8, 10, l1=4)) == pytest.approx(3 * 8 / 20 + (5 * 8 + 24) / 400, rel=1e-12)
    assert skellam_loss(50, part(8, 10, l1=4)) == pytest.approx(50 * 8 / 20 + 12 / 20, rel=1e-12)
    assert skellam_loss(2, part(9, Fraction(1, 4), l1=3)) == pytest.approx(2 * 9 * 2 + 9 * 2, rel=1e-12)


@pytest.mark.parametrize("variance", [1, 4, 25, 400])
@pytest.mark.parametrize("order", [2, 3, 8, 20])
def test_skellam_loss_bounds_the_divergence_and_is_near_it(variance: int, order: int) -> None:
    for shift in (1, 2, 5):
        exact = renyi(SKELLAM, variance, shift, order)
        bound = skellam_loss(order, part(shift**2, variance, l1=shift))
        assert exact <= bound
        if variance >= 25 and order * shift <= 16:
            assert bound <= 1.15 * exact


@pytest.mark.parametrize("shifts", [[1, 1, 1], [1, 2], [3, 1, 1, 1]])
def test_skellam_loss_bounds_the_divergence_of_vectors(shifts: list[int]) -> None:
    for order in (2, 5, 12):
        exact = sum(renyi(SKELLAM, 9, shift, order) for shift in shifts)
        squared, absolute = sum(shift**2 for shift in shifts), sum(shifts)
        known, unknown = (skellam_loss(order, part(squared, 9, l1=l1)) for l1 in (absolute, None))
        assert exact <= known <= unknown


def test_an_l1_sensitivity_is_at_most_the_square_of_that_in_l2() -> None:
    assert part(5, 1).l1_bound == 5
    assert part(5, 1, l1=3).l1_bound == 3
    assert part(5, 1, l1=70).l1_bound == 5
    assert part(0, 1, l1=0).l1_bound == 0


def test_skellam_tends_to_the_gaussian() -> None:
    """With a multiplier of 2 throughout, the correction vanishes like the inverse of the variance."""
    excess = list[float]()
    for squared in (1, 10, 100, 10_000, 10**8):
        gaussian, skellam = (epsilon(kind, [part(squared, 4 * squared)], 10, 1e-6) for kind in (GAUSSIAN, SKELLAM))
        excess.append(skellam / gaussian - 1)
    assert excess == sorted(excess, reverse=True)
    assert 0 <= excess[-1] < 1e-3
    assert excess[0] > 0.01


TABLE: dict[Fraction, tuple[float, float, float, float]] = {
    Fraction(1, 2): (11.7, 51.8, 302.7, 2329.0),
    Fraction(1): (5.23, 20.6, 100.7, 663.4),
    Fraction(2): (2.42, 8.85, 37.5, 205.9),
    Fraction(4): (1.15, 4.02, 15.4, 71.2),
    Fraction(8): (0.55, 1.88, 6.74, 27.4),
}
"""Epsilon at delta 10^-6 after 1, 10, 100 and 1000 releases, for noise multipliers; rounded up."""


@pytest.mark.parametrize("multiplier", TABLE)
def test_epsilon_of_the_discrete_gaussian_is_that_of_the_published_table(multiplier: Fraction) -> None:
    squared = 123_456
    for releases, published in zip((1, 10, 100, 1000), TABLE[multiplier], strict=True):
        found = epsilon(GAUSSIAN, [part(squared, multiplier**2 * squared)], releases, 1e-6)
        assert 0.985 * published <= found <= published


@KINDS
@pytest.mark.parametrize("shifts", [[1], [2], [3], [1, 1], [2, 1]])
@pytest.mark.parametrize("variance", [1, 4, 9])
def test_epsilon_holds_exactly_for_small_releases(kind: NoiseKind, shifts: list[int], variance: int) -> None:
    squared = sum(shift**2 for shift in shifts)
    for delta in (1e-3, 1e-6):
        bound = epsilon(kind, [part(squared, variance, l1=sum(shifts))], 1, delta)
        assert least_delta(kind, variance, shifts, bound) <= delta
        if (kind, variance) != (SKELLAM, 1):
            # The bound is not vacuous: at half of it, delta does not hold.
            assert least_delta(kind, variance, shifts, bound / 2) > delta


@KINDS
def test_releases_are_charged_each(kind: NoiseKind) -> None:
    """Two releases cost the same as one with two parts, and as one with twice the squared sensitivity."""
    once, twice = part(100, 400), part(200, 400)
    two = epsilon(kind, [once], 2, 1e-6)
    assert two == pytest.approx(epsilon(kind, [once, once], 1, 1e-6), rel=1e-9)
    assert two == pytest.approx(epsilon(kind, [twice], 1, 1e-6), rel=1e-9)
    costs = [epsilon(kind, [once], releases, 1e-6) for releases in (1, 2, 10, 100, 1000)]
    assert all(less < more for less, more in pairwise(costs))


@KINDS
def test_more_noise_and_more_delta_cost_less(kind: NoiseKind) -> None:
    by_noise = [epsilon(kind, [part(100, variance)], 5, 1e-6) for variance in (50, 100, 10**4, 10**6)]
    by_delta = [epsilon(kind, [part(100, 100)], 5, delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3)]
    for costs in (by_noise, by_delta):
        assert all(more > less for more, less in pairwise(costs))


def test_parts_with_their_own_noise_cost_what_the_sum_of_their_losses_does() -> None:
    parts = [part(100, 200), part(9, 18), part(0, 5)]
    assert epsilon(GAUSSIAN, parts, 3, 1e-6) == pytest.approx(epsilon(GAUSSIAN, [part(1, 1)], 3, 1e-6), rel=1e-9)
    assert epsilon(SKELLAM, parts, 3, 1e-6) > epsilon(SKELLAM, parts[:1], 3, 1e-6)


def test_tiny_and_huge_losses_are_converted_at_orders_that_suit_them() -> None:
    # The conversion without its last terms, at its best order: rho + 2 sqrt(rho log(1 / delta)).
    for variance, releases in ((10**9, 1), (1, 10**5)):
        rho = releases / (2 * variance)
        found = epsilon(GAUSSIAN, [part(1, variance)], releases, 1e-6)
        assert 0.3 * (rho + 2 * sqrt(rho * log(1e6))) < found < rho + 2 * sqrt(rho * log(1e6))


@KINDS
def test_nothing_that_depends_on_a_client_costs_nothing(kind: NoiseKind) -> None:
    assert epsilon(kind, [part(0, 1)], 10, 1e-6) == pytest.approx(0, abs=1e-6)


@KINDS
@pytest.mark.parametrize(
    ("releases", "delta"),
    [(0, 1e-6), (1.0, 1e-6), (True, 1e-6), (1, 0), (1, 1), (1, -1e-6), (1, 1e-60), (1, float("nan"))],
)
def test_numbers_out_of_range_are_refused(kind: NoiseKind, releases: Any, delta: Any) -> None:
    with pytest.raises(InvalidParameters):
        epsilon(kind, [part(1, 1)], releases, delta)


def test_noise_that_cannot_be_drawn_is_not_accounted_for() -> None:
    with pytest.raises(InvalidParameters, match="SKELLAM"):
        epsilon(SKELLAM, [part(1, 1 << 40)], 1, 1e-6)
    with pytest.raises(InvalidParameters, match="DISCRETE_GAUSSIAN"):
        epsilon(GAUSSIAN, [part(1, Fraction(1, 17))], 1, 1e-6)
    with pytest.raises(InvalidParameters, match="at least one part"):
        epsilon(GAUSSIAN, [], 1, 1e-6)
    kind: Any = 2
    with pytest.raises(Misuse):
        epsilon(kind, [part(1, 1)], 1, 1e-6)


@pytest.mark.parametrize(("l2_squared", "l1"), [(-1, None), (1.0, None), (4, 1), (4, -2), (4, 2.0)])
def test_sensitivities_that_cannot_be_are_refused(l2_squared: Any, l1: Any) -> None:
    with pytest.raises(InvalidParameters):
        ReleasePart(l2_squared=l2_squared, l1=l1, variance=Fraction(1))


@KINDS
@pytest.mark.parametrize("missing", ["dp_accounting", "dp_accounting.rdp"])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, kind: NoiseKind, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "dp_accounting":
        monkeypatch.delitem(sys.modules, "dp_accounting.rdp", raising=False)
    with pytest.raises(InvalidParameters, match=r"pip install '\.\[dp\]'") as caught:
        epsilon(kind, [part(1, 1)], 1, 1e-6)
    assert caught.value.reason is Reason.BACKEND_MISSING


def test_the_extra_is_not_needed_to_import_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    spec = find_spec(accounting.__name__)
    assert spec is not None
    assert spec.loader is not None
    another = module_from_spec(spec)
    spec.loader.exec_module(another)
    assert another.epsilon is not accounting.epsilon


def exact_delta(sensitivity: float, bound: float) -> float:
    """Return the delta of one Gaussian of deviation 1 at an epsilon, in closed form."""
    half, ratio = sensitivity / 2, bound / sensitivity
    return NormalDist().cdf(half - ratio) - exp(bound) * NormalDist().cdf(-half - ratio)


@pytest.mark.parametrize("multiplier", [Fraction(1, 2), Fraction(1), Fraction(2), Fraction(5), Fraction(20)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-6, 1e-9])
def test_epsilon_is_between_the_exact_one_and_the_best_conversion_of_the_closed_form(
    multiplier: Fraction, delta: float
) -> None:
    """20 points; the loss is rho = 1 / (2 z^2), and the noise is wide enough to be a Gaussian."""
    scale = 10**6
    found = epsilon(GAUSSIAN, [part(scale**2, (multiplier * scale) ** 2)], 1, delta)
    rho = float(1 / (2 * multiplier**2))
    orders = 1 + np.logspace(-2, 6, 20_000)
    by_conversion = orders * rho + np.log1p(-1 / orders) - (log(delta) + np.log(orders)) / (orders - 1)
    assert found == pytest.approx(float(by_conversion.min()), rel=5e-3)
    assert exact_delta(float(1 / multiplier), found) <= delta


def test_the_gap_of_sums_is_that_of_the_paper() -> None:
    """At 10^6 values, tau sqrt(d): 0.5 with clients' variance 1, 3e-5 with 2, 7e-14 with 4."""
    found = [gap_of_sum(Fraction(variance), 100) * 1e3 for variance in (1, 2, 4)]
    assert found == pytest.approx([0.548, 2.7e-5, 7.2e-14], rel=0.05)
    due = 10 * sum(exp(-2 * pi**2 * 0.3 * k / (k + 1)) for k in range(1, 50))
    assert gap_of_sum(Fraction(3, 10), 50) == pytest.approx(due, rel=1e-12)
    assert gap_of_sum(Fraction(3, 10), 1) == 0
    exact = 10 * sum(exp(-2 * pi**2 * 0.3 * k / (k + 1)) for k in range(1, 5000))
    assert exact <= gap_of_sum(Fraction(3, 10), 5000) <= 1.01 * exact


def test_the_loss_of_one_discrete_gaussian_is_exact() -> None:
    assert rho_of_part(part(3, 7)) == Fraction(3, 14)


@pytest.mark.parametrize("kind", list(NoiseKind))
def test_a_loss_is_of_noise_with_a_variance(kind: NoiseKind) -> None:
    """A ledger sums losses: a negative one would pay for others."""
    with pytest.raises(InvalidParameters, match="variance"):
        loss_of(kind, [part(3, 7), part(3, -7)])


def summed(variance: float, summands: int) -> Pmf:
    _, one = pmf(GAUSSIAN, variance)
    total = one
    for _ in range(summands - 1):
        total = np.convolve(total, one)
    return total


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4)])
@pytest.mark.parametrize("summands", [2, 3, 6])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_loss_of_a_sum_bounds_its_divergence_by_brute_force(variance: Fraction, summands: int, shift: int) -> None:
    total = summed(float(variance), summands)
    left, right = total[shift:], total[:-shift]
    both = (left > 1e-250) & (right > 1e-250)
    left, right = np.log(left[both]), np.log(right[both])
    one = replace(part(shift**2, variance * summands), gap=gap_of_sum(variance, summands))
    for order in (1.25, 2, 4, 8):
        found = float(np.log(np.exp(order * left - (order - 1) * right).sum()) / (order - 1))
        assert found <= order * float(rho_of_part(one)) * (1 + 1e-9)


def test_without_the_gap_the_loss_of_a_sum_of_narrow_noise_would_be_too_small() -> None:
    variance, summands, shift = Fraction(1, 4), 2, 1
    total = summed(float(variance), summands)
    left, right = total[shift:], total[:-shift]
    both = (left > 1e-250) & (right > 1e-250)
    left, right = np.log(left[both]), np.log(right[both])
    found = max(
        float(np.log(np.exp(order * left - (order - 1) * right).sum()) / (order - 1)) / order for order in (2, 4, 8)
    )
    assert found > float(rho_of_part(part(shift**2, variance * summands)))


def test_the_least_delta_is_taken_and_no_finer_one() -> None:
    require_delta(LEAST_DELTA)
    with pytest.raises(InvalidParameters, match="delta must be at least"):
        require_delta(LEAST_DELTA / 2)
