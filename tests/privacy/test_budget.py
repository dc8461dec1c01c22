"""A budget: the releases it allows, those it refuses, and its errors."""

from __future__ import annotations

import re
from fractions import Fraction
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.privacy.accounting import NO_LOSS, Adjacency, Loss, PrivacyBudget, epsilon, loss_of
from secagg.privacy.client_noise import BudgetedNoise, ClientNoise, NoiseSettings
from secagg.privacy.kinds import GREATEST_VARIANCE, NoiseKind

DELTA = 1e-6


@pytest.fixture(autouse=True, scope="module")
def dp_accounting() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")


def planned(settings: NoiseSettings, **changes: Any) -> ClientNoise:
    facts = {"minimum_cohort": 8, "capacity": 10, "corrupted": 1, **changes}
    layout = Layout(tuple(RingSegment(40, 100) for _ in settings.l2_bounds))
    noise = settings.noise_for(layout, **facts)
    assert noise is not None
    return noise


def noise_of(multiplier: Fraction, kind: NoiseKind, adjacency: Adjacency, bounds: tuple[int, ...]) -> ClientNoise:
    return planned(NoiseSettings(noise_multiplier=multiplier, noise_kind=kind, adjacency=adjacency, l2_bounds=bounds))


noises = st.builds(
    noise_of,
    st.fractions(Fraction(1, 2), 8, max_denominator=16),
    st.sampled_from(NoiseKind),
    st.sampled_from(Adjacency),
    st.lists(st.integers(20, 500), min_size=1, max_size=3).map(tuple),
)


@searched(max_examples=20, deadline=None)
@given(noise=noises, releases=st.integers(1, 50))
def test_losses_add_up_to_what_as_many_releases_cost(noise: ClientNoise, releases: int) -> None:
    own = noise.loss(noise.settings.adjacency)
    together = sum([own] * releases, NO_LOSS)
    due = noise.epsilon(DELTA, releases)
    assert together.epsilon(DELTA) == pytest.approx(due, rel=1e-9)
    assert together.epsilon(DELTA) >= due * (1 - 1e-12)
    assert own.times(releases).epsilon(DELTA) == due


@searched(max_examples=20, deadline=None)
@given(one=noises, other=noises)
def test_two_releases_cost_more_than_either_and_no_more_than_their_epsilons_added(
    one: ClientNoise, other: ClientNoise
) -> None:
    first, second = (noise.loss(Adjacency.REPLACE) for noise in (one, other))
    both = (first + second).epsilon(DELTA)
    assert both == (second + first).epsilon(DELTA)
    assert max(first.epsilon(DELTA), second.epsilon(DELTA)) <= both
    assert both <= (first.epsilon(DELTA / 2) + second.epsilon(DELTA / 2)) * (1 + 1e-9)


@searched(max_examples=20, deadline=None)
@given(noise=noises)
def test_an_update_that_is_replaced_costs_more_than_one_that_is_zeros(noise: ClientNoise) -> None:
    """The noise does not depend on the neighbours it was planned for; a client may account with others."""
    replaced, zeros = (noise.loss(adjacency).epsilon(DELTA) for adjacency in (Adjacency.REPLACE, Adjacency.ZERO_OUT))
    assert replaced > zeros
    assert {Adjacency.REPLACE: replaced, Adjacency.ZERO_OUT: zeros}[noise.settings.adjacency] == noise.epsilon(DELTA)


def test_a_loss_of_parts_is_no_less_than_those_of_each() -> None:
    """One line and one remainder for all Skellam parts: never below the sum of their bounds."""
    noise = planned(
        NoiseSettings(noise_multiplier=Fraction(1, 2), noise_kind=NoiseKind.SKELLAM, l2_bounds=(3, 5_000, 1))
    )
    parts = noise.parts_for(noise.settings.adjacency)
    loss = loss_of(NoiseKind.SKELLAM, parts)
    for order in (2, 3, 10, 1000, 10**6):
        assert loss.at(order) >= sum(loss_of(NoiseKind.SKELLAM, [part]).at(order) for part in parts) * (1 - 1e-15)
    assert epsilon(NoiseKind.SKELLAM, parts, 3, DELTA) == loss.times(3).epsilon(DELTA)


@searched(max_examples=20, deadline=None)
@given(noise=noises, limit=st.floats(0.5, 60), uploads=st.integers(0, 5))
def test_a_budget_pays_for_as_many_as_it_says_and_for_the_noise_that_it_names(
    noise: ClientNoise, limit: float, uploads: int
) -> None:
    budget = PrivacyBudget(epsilon=limit, delta=DELTA, adjacency=noise.settings.adjacency)
    cost = noise.loss(budget.adjacency)
    count = budget.releases(cost)
    assert noise.epsilon(DELTA, count + 1) > limit
    assert count == 0 or noise.epsilon(DELTA, count) <= limit
    assert budget.sentence(cost).endswith(f"pays for {count:,} {'sum' if count == 1 else 'sums'} like this one")
    spent = cost.times(min(uploads, count))
    if uploads < count:
        budget.require_room(spent, uploads, cost, noise.multiplier)
        return
    with pytest.raises(InvalidParameters) as caught:
        budget.require_room(spent, min(uploads, count), cost, noise.multiplier)
    assert caught.value.reason is Reason.BUDGET_SPENT
    assert f"its {min(uploads, count)} uploads so far have spent" in str(caught.value)
    if (named := re.search(r"a noise multiplier of ([0-9.]+) would fit", str(caught.value))) is None:
        assert "no noise would suffice" in str(caught.value)
        return
    settings = NoiseSettings(
        noise_multiplier=Fraction(named[1]),
        noise_kind=noise.settings.noise_kind,
        adjacency=noise.settings.adjacency,
        l2_bounds=noise.settings.l2_bounds,
    )
    layout = Layout(tuple(RingSegment(64, 100) for _ in settings.l2_bounds))
    more = settings.noise_for(layout, minimum_cohort=8, capacity=10, corrupted=1)
    assert more is not None
    if max(part.variance for part in more.parts_for(budget.adjacency)) > GREATEST_VARIANCE[noise.settings.noise_kind]:
        # The budget does not know the scale; this kind of noise has a limit of its own.
        with pytest.raises(InvalidParameters, match="use DISCRETE_GAUSSIAN for more noise"):
            more.loss(budget.adjacency)
        return
    budget.require_room(spent, min(uploads, count), more.loss(budget.adjacency), more.multiplier)


def test_what_is_refused_says_what_was_spent_what_remains_and_what_to_change() -> None:
    noise = planned(NoiseSettings(noise_multiplier=Fraction(2), l2_bounds=(1000,)))
    budget = PrivacyBudget(epsilon=8.0, delta=DELTA)
    cost = noise.loss(budget.adjacency)
    count = budget.releases(cost)
    with pytest.raises(InvalidParameters) as caught:
        budget.require_room(cost.times(count), count, cost, noise.multiplier)
    before, after = noise.epsilon(DELTA, count), noise.epsilon(DELTA, count + 1)
    said = str(caught.value)
    assert f"would have spent epsilon {after:.6g} at delta 1e-06, its update replaced by another" in said
    assert f"its budget is 8: its {count} uploads so far have spent {before:.6g}, which leaves {8 - before:.6g}" in said
    assert said.endswith("; this one is 2: use more noise, exclude this client, or raise its budget")
    smaller = PrivacyBudget(epsilon=1.0, delta=DELTA)
    with pytest.raises(InvalidParameters, match=r"which leaves 0; no noise would suffice"):
        smaller.require_room(cost.times(count), count, cost, noise.multiplier)


def test_nothing_was_spent_before_the_first_upload() -> None:
    budget = PrivacyBudget(epsilon=1e-3, delta=DELTA)
    assert budget.spent(NO_LOSS) == 0
    assert budget.holds(NO_LOSS)


def test_a_budget_pays_for_what_spends_all_of_it() -> None:
    cost = planned(NoiseSettings(noise_multiplier=Fraction(2), l2_bounds=(1000,))).loss(Adjacency.REPLACE)
    budget = PrivacyBudget(epsilon=cost.times(3).epsilon(DELTA), delta=DELTA)
    assert budget.releases(cost) == 3


def test_a_budget_of_any_size_counts_no_more_than_a_million_releases() -> None:
    assert PrivacyBudget(epsilon=1e300, delta=DELTA).releases(Loss(1e-12)) == 1 << 20


@pytest.mark.parametrize("wrong", [0.0, -1.0, nan, inf, "8", None, True])
def test_an_epsilon_that_bounds_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidParameters, match="a budget's epsilon"):
        PrivacyBudget(epsilon=wrong, delta=DELTA)


@pytest.mark.parametrize("wrong", [0.0, 1e-60, 1.0, -1e-9, nan, 0, "1e-6"])
def test_a_delta_that_is_no_probability_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidParameters, match="delta must be at least"):
        PrivacyBudget(epsilon=1.0, delta=wrong)


def test_a_budget_has_an_adjacency() -> None:
    with pytest.raises(Misuse, match="Adjacency"):
        PrivacyBudget(epsilon=1.0, delta=DELTA, adjacency=1)  # type: ignore[arg-type]


def test_settings_have_a_budget_where_they_say_so() -> None:
    noise: dict[str, Any] = {"noise_multiplier": Fraction(2), "l2_bounds": (1000,), "adjacency": Adjacency.ZERO_OUT}
    assert NoiseSettings(**noise).budget is None
    assert BudgetedNoise(**noise).budget is None
    settings = BudgetedNoise(**noise, budget_epsilon=Fraction(8))
    assert settings.budget == PrivacyBudget(epsilon=8.0, delta=DELTA, adjacency=Adjacency.ZERO_OUT)
    assert planned(settings).sentences()[-1].startswith("the budget of a client, epsilon 8 at delta 1e-06, its update")
    assert len(planned(settings).sentences()) == len(planned(NoiseSettings(**noise)).sentences()) + 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"budget_epsilon": Fraction(0)}, "budget_epsilon must be above 0"),
        ({"budget_epsilon": Fraction(-1)}, "budget_epsilon must be above 0"),
        ({"budget_epsilon": Fraction(10**9 + 1)}, "at most 1,000,000,000"),
        ({"budget_epsilon": Fraction(10**400)}, "at most 1,000,000,000"),
        ({"budget_epsilon": Fraction(8), "budget_delta": Fraction(0)}, "budget_delta above 0 and below 1"),
        ({"budget_epsilon": Fraction(8), "budget_delta": Fraction(1)}, "budget_delta above 0 and below 1"),
        ({"budget_epsilon": Fraction(1, 10**400)}, "a budget's epsilon"),
        ({"budget_epsilon": Fraction(8), "budget_delta": Fraction(1, 10**400)}, "delta must be at least"),
    ],
)
def test_settings_whose_budget_is_none_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameters, match=named):
        planned(BudgetedNoise(noise_multiplier=Fraction(2), l2_bounds=(1000,), **wrong))
    assert BudgetedNoise(budget_epsilon=Fraction(10**9)).budget is not None, "the most that is permitted"


def test_settings_with_a_budget_and_without_noise_are_refused() -> None:
    """A sum without noise would spend all of it."""
    facts = {"minimum_cohort": 8, "capacity": 10, "corrupted": 1}
    layout = Layout((RingSegment(40, 100),))
    with pytest.raises(InvalidParameters, match="never uploads without noise"):
        BudgetedNoise(budget_epsilon=Fraction(8)).noise_for(layout, **facts)
    assert BudgetedNoise().noise_for(layout, **facts) is None


def test_settings_whose_budget_pays_for_no_sum_are_refused() -> None:
    with pytest.raises(InvalidParameters, match=r"its 0 uploads so far have spent 0, which leaves 0\.5") as caught:
        planned(BudgetedNoise(noise_multiplier=Fraction(2), l2_bounds=(1000,), budget_epsilon=Fraction(1, 2)))
    assert caught.value.reason is Reason.BUDGET_SPENT
