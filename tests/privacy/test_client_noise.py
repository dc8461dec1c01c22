"""Noise shared among clients: the honest clients' part of the smallest sum, refusals, and the accounted values."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.privacy.accounting import Adjacency, ReleasePart, epsilon
from secagg.privacy.client_noise import (
    MOST_NOISE,
    ClientNoise,
    NoiseSettings,
    clients_for,
    deviations_in,
    is_near,
    noise_in,
    said_epsilon,
)
from secagg.privacy.kinds import NoiseKind, squared_norm
from secagg.simulation.insecure_coins import InsecureSeededCoins

LAYOUT = Layout((RingSegment(20, 20_000),))
SETTINGS = NoiseSettings(
    noise_multiplier=Fraction(1), l2_bounds=(200,), adjacency=Adjacency.ZERO_OUT, noise_kind=NoiseKind.SKELLAM
)
KINDS = pytest.mark.parametrize("kind", list(NoiseKind), ids=lambda kind: kind.name.lower())


def planned(
    settings: NoiseSettings = SETTINGS,
    layout: Layout = LAYOUT,
    *,
    minimum_cohort: int = 60,
    capacity: int = 100,
    corrupted: int = 20,
) -> ClientNoise:
    noise = settings.noise_for(layout, minimum_cohort=minimum_cohort, capacity=capacity, corrupted=corrupted)
    assert noise is not None
    return noise


def part_of(noise: ClientNoise) -> ReleasePart:
    return noise.parts_for(noise.settings.adjacency)[0]


def zeros(layout: Layout = LAYOUT) -> Payload:
    return Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.require_rings()))


def lifted(payload: Payload) -> npt.NDArray[np.int64]:
    (segment,) = payload.layout.require_rings()
    return segment.ring.lift(payload.values[0]).astype(np.int64)


@KINDS
def test_exactly_the_least_number_of_honest_survivors_add_the_noise_that_is_accounted(kind: NoiseKind) -> None:
    """100 are invited, 60 must contribute, 20 of those are corrupted: 40 add V, not the 48 that 20 % suggest."""
    noise = planned(replace(SETTINGS, noise_kind=kind))
    assert noise.honest == 40
    total = sum(
        (lifted(noise.add_to(zeros(), InsecureSeededCoins(f"{client}".encode()))) for client in range(noise.honest)),
        np.zeros(20_000, np.int64),
    )
    found = float((total.astype(float) ** 2).mean())
    assert found == pytest.approx(float(noise.variances[0]), rel=5 * sqrt(2 / 20_000))
    assert part_of(noise).variance == noise.variances[0] == 200**2


def test_fewer_honest_clients_each_add_more() -> None:
    shares = [planned(corrupted=corrupted).variances[0] / planned(corrupted=corrupted).honest for corrupted in (0, 20)]
    assert shares == [Fraction(40_000, 60), Fraction(40_000, 40)]


def test_replacing_an_update_takes_twice_the_noise_and_segments_share_the_loss() -> None:
    replaced = planned(replace(SETTINGS, adjacency=Adjacency.REPLACE))
    assert replaced.variances[0] == 4 * planned().variances[0]
    two = Layout((RingSegment(20, 100), RingSegment(24, 5)))
    both = planned(replace(SETTINGS, l2_bounds=(200, 300)), two)
    assert list(map(float, both.variances)) == [2 * 200**2, 2 * 300**2]
    assert both.epsilon(1e-6) == pytest.approx(planned().epsilon(1e-6), rel=0.01)


def test_epsilon_is_that_of_the_variance_at_the_minimum_and_the_gap_at_the_capacity() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    gaussian = replace(SETTINGS, noise_kind=NoiseKind.DISCRETE_GAUSSIAN, l2_bounds=(13,))
    noise = planned(gaussian)
    assert part_of(noise).gap >= part_of(planned(gaussian, capacity=61)).gap > 0
    without = [replace(part_of(noise), gap=0.0)]
    assert noise.epsilon(1e-6) >= epsilon(NoiseKind.DISCRETE_GAUSSIAN, without, 1, 1e-6)
    assert noise.epsilon(1e-6, releases=10) > 3 * noise.epsilon(1e-6)
    narrow = planned(replace(SETTINGS, l2_bounds=(3,)))
    assert part_of(narrow).gap == 0, "a sum of Skellam variables is one"


def test_a_client_is_clipped_before_its_noise_whatever_its_codec_did() -> None:
    ring = LAYOUT.require_rings()[0].ring
    long = Payload(LAYOUT, (ring.from_integers(np.full(20_000, 50)),))
    noise = planned(replace(SETTINGS, l2_bounds=(2000,)))
    coins = [InsecureSeededCoins(b"same"), InsecureSeededCoins(b"same")]
    alone, added = noise.add_to(zeros(), coins[0]), noise.add_to(long, coins[1])
    inner = ring.subtract(added.values[0], alone.values[0])
    assert 0 < squared_norm(ring, inner) <= 2000**2
    assert lifted(long).max() == 50, "the update itself is not changed"


def test_noise_is_for_one_layout_and_for_payloads_that_are_in_their_rings() -> None:
    other = Layout((RingSegment(20, 5),))
    with pytest.raises(Misuse, match="differs from the one that the noise was planned for"):
        planned().add_to(zeros(other), SystemCoins())
    changed = zeros()
    changed.values[0][:] = 1 << 20
    with pytest.raises(CapacityExceeded):
        planned().add_to(changed, SystemCoins())


@pytest.mark.parametrize(
    ("settings", "session", "message"),
    [
        ({}, {"corrupted": 60}, "raise minimum_cohort above the number of corrupted"),
        ({"noise_multiplier": Fraction(-1)}, {}, "must be positive"),
        ({"noise_multiplier": Fraction(0)}, {}, "must be positive"),
        ({"l2_bounds": ()}, {}, "1 positive integers"),
        ({"l2_bounds": (0,)}, {}, "1 positive integers"),
        ({"l2_bounds": (12,), "noise_kind": NoiseKind.DISCRETE_GAUSSIAN}, {}, "share as DISCRETE_GAUSSIAN noise"),
        ({"l2_bounds": (1,)}, {}, "share as SKELLAM noise"),
        ({"noise_multiplier": Fraction(10**30)}, {}, "or use a wider ring"),
        ({"noise_multiplier": Fraction(1, 10**30)}, {}, "or more, or use a finer step"),
        ({"noise_multiplier": Fraction(10**45 + 1, 10**45)}, {}, "round the noise multiplier"),
        ({"l2_bounds": (71,), "is_rotated": True}, {}, "the minimum is 72"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    settings: dict[str, object], session: dict[str, int], message: str
) -> None:
    with pytest.raises((InvalidParameters, CapacityExceeded), match=re.escape(message)):
        planned(replace(SETTINGS, **settings), **session)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_rotated", [True, False])
def test_a_ring_that_does_not_hold_the_noise_names_the_multiplier_that_it_holds(*, is_rotated: bool) -> None:
    settings = replace(SETTINGS, l2_bounds=(300,), is_rotated=is_rotated)
    layout = Layout((RingSegment(17 if not is_rotated else 14, 20_000),))
    planned(settings, layout)
    with pytest.raises(CapacityExceeded, match="rings are too narrow") as refused:
        planned(replace(settings, noise_multiplier=Fraction(100)), layout)
    found = re.search(r"noise_multiplier = ([\d.]+) or less", str(refused.value))
    assert found is not None
    planned(replace(settings, noise_multiplier=Fraction(found[1])), layout)
    with pytest.raises(CapacityExceeded):
        planned(replace(settings, noise_multiplier=Fraction(found[1]) * Fraction(101, 100)), layout)


def test_a_discrete_gaussian_that_is_too_narrow_names_the_multiplier_that_is_not() -> None:
    settings = replace(SETTINGS, noise_kind=NoiseKind.DISCRETE_GAUSSIAN, l2_bounds=(12,))
    with pytest.raises(InvalidParameters) as refused:
        planned(settings)
    found = re.search(r"noise_multiplier = ([\d.]+)", str(refused.value))
    assert found is not None
    planned(replace(settings, noise_multiplier=Fraction(found[1])))
    with pytest.raises(InvalidParameters):
        planned(replace(settings, noise_multiplier=Fraction(found[1]) * Fraction(99, 100)))


def test_one_honest_contributor_is_enough_for_noise() -> None:
    assert planned(corrupted=59).honest == 1


def test_the_greatest_and_the_least_multiplier_are_taken() -> None:
    """One client: the square roots of the maximum and minimum variance, over the bound."""
    for multiplier in (Fraction(1 << 15, 200), Fraction(1, 4 * 200)):
        taken = replace(SETTINGS, noise_multiplier=multiplier)
        planned(taken, minimum_cohort=1, corrupted=0, capacity=1)


def test_a_multiplier_that_is_the_only_one_is_named() -> None:
    settings = replace(SETTINGS, noise_multiplier=Fraction(1, 10**9), l2_bounds=(1,))
    with pytest.raises(InvalidParameters, match=r"set noise_multiplier = 0\.25 or more"):
        planned(settings, Layout((RingSegment(17, 4),)), minimum_cohort=1, corrupted=0, capacity=64_955)


@KINDS
def test_skellam_is_proposed_to_those_who_do_not_have_it(kind: NoiseKind) -> None:
    with pytest.raises(InvalidParameters) as refused:
        planned(replace(SETTINGS, noise_kind=kind, noise_multiplier=Fraction(1, 10**9)))
    assert ("or noise_kind = skellam" in str(refused.value)) is (kind is NoiseKind.DISCRETE_GAUSSIAN)


@given(data=st.data())
def test_whatever_a_refusal_names_is_taken(data: st.DataObject) -> None:
    """Over configurations: a named multiplier is rounded to the safe side, and suits all segments."""
    segments = st.builds(RingSegment, st.integers(1, 64), st.sampled_from([1, 7, 100, 19_456]))
    layout = Layout(tuple(data.draw(st.lists(segments, min_size=1, max_size=3))))
    bounds = tuple(data.draw(st.integers(1, 1 << 20)) for _ in layout.segments)
    power = Fraction(10) ** data.draw(st.integers(-40, 400))
    settings = NoiseSettings(
        noise_multiplier=data.draw(st.sampled_from([power, Fraction(1), Fraction(1, 3), Fraction(355, 113)])),
        noise_kind=data.draw(st.sampled_from(NoiseKind)),
        l2_bounds=bounds,
        adjacency=data.draw(st.sampled_from(Adjacency)),
        is_rotated=data.draw(st.booleans()),
    )
    least, corrupted, more = (data.draw(st.integers(0, 50)) for _ in range(3))

    def plan(chosen: NoiseSettings) -> ClientNoise:
        return planned(
            chosen, layout, minimum_cohort=least + corrupted, corrupted=corrupted, capacity=least + corrupted + more
        )

    try:
        plan(settings)
    except (InvalidParameters, CapacityExceeded) as refused:
        if found := re.search(r"set noise_multiplier = ([\d.]+) or", str(refused)):
            plan(replace(settings, noise_multiplier=Fraction(found[1])))


def test_a_ring_that_holds_no_sum_at_all_says_so() -> None:
    with pytest.raises(CapacityExceeded, match="without noise they would not fit either"):
        planned(layout=Layout((RingSegment(12, 20_000),)))


def test_without_noise_a_session_binds_its_terms_alone() -> None:
    assert NoiseSettings().bound_to(b"terms", 1) == b"terms"


def test_the_line_where_noise_drowns_is_180_clients_for_each_unit_of_noise_on_a_net_of_19456_values() -> None:
    layout = Layout((RingSegment(32, 19_456),))
    energies = {
        clients: planned(layout=layout, minimum_cohort=clients, capacity=clients, corrupted=0).energy(clients)
        for clients in (20, 180, 363)
    }
    assert energies[180] == pytest.approx(MOST_NOISE, rel=0.01)
    doubled = planned(
        replace(SETTINGS, noise_multiplier=Fraction(2)), layout, minimum_cohort=363, capacity=363, corrupted=0
    )
    assert doubled.energy(363) == pytest.approx(MOST_NOISE, rel=0.02)
    assert clients_for(20, energies[20]) == pytest.approx(180, abs=2)


def test_a_cohort_that_noise_drowns_is_warned_with_the_figure() -> None:
    layout = Layout((RingSegment(32, 19_456),))
    lines = planned(layout=layout, minimum_cohort=20, capacity=20, corrupted=0).sentences()
    assert "warning" in lines[-1]
    assert "181 clients" in lines[-1]
    calm = planned(layout=layout, minimum_cohort=1000, capacity=1000, corrupted=0).sentences(1e-5)
    assert not any("warning" in line for line in calm)
    assert "replaced by zeros" in calm[0]
    assert "after 1 sum with one client" in calm[0]


def test_no_warning_is_given_on_the_line_itself() -> None:
    noise = planned(layout=Layout((RingSegment(32, 15),)), minimum_cohort=5, capacity=5, corrupted=0)
    assert noise.energy(5) == MOST_NOISE
    assert not any("warning" in line for line in noise.sentences())


def test_an_epsilon_is_said_to_be_unknown_where_the_accountant_is_missing_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidParameters, match="delta must be at least"):
        said_epsilon(planned(), delta=0)
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    assert said_epsilon(planned()).startswith("epsilon unknown (")


def test_the_deviations_of_a_session_are_its_noises_or_its_own() -> None:
    class Session:
        deviations = (2.0,)

    assert deviations_in(planned()) == planned().deviations
    assert deviations_in(Session()) == (2.0,)
    assert deviations_in(object()) == ()


def test_a_sum_is_near_another_up_to_ten_deviations_and_modulo_the_ring() -> None:
    layout = Layout((RingSegment(8, 2),))

    def aggregate(*values: int, count: int = 3) -> Aggregate:
        return Aggregate(layout, (np.array(values, np.uint8),), count)

    assert is_near(aggregate(250, 5), aggregate(5, 5), (1.0,))
    assert not is_near(aggregate(30, 5), aggregate(5, 5), (1.0,))
    assert not is_near(aggregate(5, 5, count=2), aggregate(5, 5), (1.0,))


def test_what_is_no_noise_is_not_taken_for_it() -> None:
    class Session:
        noise = "loud"

    assert noise_in(Session()) is None
    assert noise_in(object()) is None
