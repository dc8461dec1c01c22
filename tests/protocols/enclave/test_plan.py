"""From what a platform wants to a configuration whose numbers fit, with noise in proportion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract import Layout, RingSegment
from secagg.errors import CapacityExceeded, InvalidParameters, Reason
from secagg.parameters import Suite
from secagg.privacy.accounting import Adjacency
from secagg.protocols.enclave.release_privacy import squared_sensitivities
from secagg.protocols.enclave.session import DEFAULT_LIFETIME, EnclaveOptions
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.session.certificates import Authority
from secagg.session.roles import Subject
from tests.harness.enclave_buffers import MIXED_LAYOUT, EnclaveSetup

NOW = datetime(2026, 1, 1, 0, 0, 0, 700_000, tzinfo=UTC)
TABLES = EnclaveSetup().tables


def planned(**changes: Any) -> EnclaveConfiguration:
    chosen: dict[str, Any] = {
        "task": b"a task",
        "layout": MIXED_LAYOUT,
        "tables": TABLES,
        "capacity": 1 << 20,
        "authority": Authority(b"a" * 32),
        "minimum_cohort": 3,
        "maximum_cohort": 6,
        "now": NOW,
    }
    chosen |= changes
    about = {name: chosen.pop(name) for name in ("task", "layout", "tables", "capacity")}
    authority, now = chosen.pop("authority"), chosen.pop("now")
    return EnclaveOptions(**chosen).configured(Subject(round_number=0, **about), authority, now)


NOISED: dict[str, Any] = {"noise_multiplier": Fraction(2), "l2_bounds": (30, 50)}


def test_defaults_are_the_careful_ones() -> None:
    made = planned()
    assert (made.suite, made.form, made.accumulation) == (Suite.HYBRID, ReleaseForm.DECODED_SUM, Accumulation.OBLIVIOUS)
    assert (made.oldest, made.noise) == (0, None)
    assert made.expiry == int(NOW.timestamp() + DEFAULT_LIFETIME.total_seconds())
    assert timedelta(hours=1) < DEFAULT_LIFETIME <= timedelta(hours=24)


def test_tables_are_part_of_a_plan_only_where_they_are_summed() -> None:
    assert planned().tables == TABLES
    assert planned(form=ReleaseForm.HISTOGRAM).tables == ()
    assert planned(layout=Layout((RingSegment(20, 6),)), tables=TABLES).tables == ()
    with pytest.raises(InvalidParameters, match="tables"):
        planned(tables=())


def test_a_plan_whose_buffers_could_leave_the_codecs_capacity_is_refused() -> None:
    full: dict[str, Any] = {"maximum_cohort": 126, "oldest": 2}
    assert planned(**full, capacity=126).maximum_cohort == 126
    with pytest.raises(CapacityExceeded) as caught:
        planned(**full, capacity=125)
    assert caught.value.reason is Reason.CAPACITY_EXCEEDED


@pytest.mark.parametrize("multiplier", [Fraction(0), Fraction(-1)])
def test_a_noise_multiplier_is_positive(multiplier: Fraction) -> None:
    with pytest.raises(InvalidParameters, match="positive"):
        planned(noise_multiplier=multiplier, l2_bounds=(30, 50))


@pytest.mark.parametrize("bounds", [(), (30,)])
def test_every_ring_segment_has_a_bound_of_its_own(bounds: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameters):
        planned(noise_multiplier=Fraction(1), l2_bounds=bounds)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("form", ReleaseForm)
@pytest.mark.parametrize("oldest", [0, 2])
def test_noise_is_in_proportion_to_what_one_client_moves(adjacency: Adjacency, form: ReleaseForm, oldest: int) -> None:
    made = planned(adjacency=adjacency, form=form, oldest=oldest, **NOISED)
    factor = {Adjacency.ZERO_OUT: 1, Adjacency.REPLACE: 2}[adjacency]
    rings = [(factor * bound) ** 2 for bound in (30, 50)]
    if form is ReleaseForm.HISTOGRAM:
        middle = [factor * 5]
    else:
        middle = list[int]()
        for table in TABLES[0]:
            rows = table.entries.tolist()
            others = [[0] * table.width] if adjacency is Adjacency.ZERO_OUT else rows
            largest = max(
                sum((a - b) ** 2 for a, b in zip(row, other, strict=True)) for row in rows for other in others
            )
            middle.append(table.blocks * largest)
    sensitivities = [rings[0], *middle, rings[1]]
    noise = made.noise
    assert noise is not None
    assert noise.variances == tuple(4 * len(sensitivities) * squared for squared in sensitivities)
    assert noise.l2_bounds == (30, 50)
    computed = squared_sensitivities(MIXED_LAYOUT, form, TABLES, (30, 50), adjacency)
    assert list(computed) == sensitivities


def test_noise_on_a_histogram_alone_needs_no_ring() -> None:
    indices = Layout(tuple(segment for segment in MIXED_LAYOUT.segments if not isinstance(segment, RingSegment)))
    made = planned(layout=indices, form=ReleaseForm.HISTOGRAM, noise_multiplier=Fraction(2))
    assert made.noise is not None
