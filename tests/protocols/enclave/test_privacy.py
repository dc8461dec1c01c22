"""Noise in releases: where it is added, that it is drawn once, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.choices import ReleaseForm
from secagg.contract import Aggregate
from secagg.contract.codewords import sum_of_codewords
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.privacy.accounting import Adjacency
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise import sample
from secagg.protocols.enclave.release_privacy import epsilon_of, squared_sensitivities
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession

LAYOUT = Layout((RingSegment(32, 400), IndexSegment(8, 40), RingSegment(24, 30)))
NUMBERS = (1, 2, 3, 4)
DRAWS_AT_BOOT = (32, 32, 32)
"""The epoch, the root of the sealing key, the seed of the receipt key."""


def noised(**changes: Any) -> EnclaveSetup:
    return replace(EnclaveSetup(layout=LAYOUT, noise_multiplier=Fraction(1), l2_bounds=(60, 20)), **changes)


def released(session: InsecureEnclaveSession) -> Aggregate:
    session.host.open_buffer(0, bytes(32))
    for number in NUMBERS:
        session.upload(number)
    return session.host.release()[0]


def integers(aggregate: Aggregate) -> list[Any]:
    pairs = zip(aggregate.layout.segments, aggregate.values, strict=True)
    return [segment.ring.lift(value.reshape(-1).astype(segment.ring.word)) for segment, value in pairs]


def exact(session: InsecureEnclaveSession) -> list[Any]:
    """Return the sums in the clear, in the form in which they are released."""
    ideal, setup = session.ideal(NUMBERS), session.setup
    first, histogram, last = ideal.values
    rings = [segment.ring for segment in setup.layout.segments]
    if setup.form is ReleaseForm.HISTOGRAM:
        middle = [histogram.reshape(-1).astype(np.int64)]
    else:
        rows = np.split(histogram, np.cumsum([table.blocks for table in setup.tables[0]])[:-1])
        middle = [sum_of_codewords(part, table) for part, table in zip(rows, setup.tables[0], strict=True)]
    return [rings[0].lift(first), *middle, rings[2].lift(last)]


@pytest.mark.parametrize("form", ReleaseForm)
@pytest.mark.parametrize("kind", NoiseKind)
def test_a_release_is_the_sum_plus_the_noise_that_the_enclave_drew(kind: NoiseKind, form: ReleaseForm) -> None:
    session = InsecureEnclaveSession(noised(noise_kind=kind, form=form))
    aggregate = released(session)
    coins = session.setup.coins_of("enclave, epoch 1")
    for count in DRAWS_AT_BOOT:
        coins.draw(count)
    noise = session.configuration.noise
    assert noise is not None
    for plain, seen, variance in zip(exact(session), integers(aggregate), noise.variances, strict=True):
        drawn = sample(kind, variance, plain.size, coins)
        assert (seen - plain == drawn).all()
        assert drawn.any()


@pytest.mark.parametrize("form", ReleaseForm)
def test_a_planned_release_costs_what_one_gaussian_of_the_multiplier_does(form: ReleaseForm) -> None:
    configuration = InsecureEnclaveSession(noised(form=form, noise_multiplier=Fraction(3, 2))).configuration
    noise = configuration.noise
    assert noise is not None
    what = (configuration.layout, configuration.form, configuration.tables)
    sensitivities = squared_sensitivities(*what, noise.l2_bounds, Adjacency.REPLACE)
    losses = (squared / (2 * variance) for squared, variance in zip(sensitivities, noise.variances, strict=True))
    assert sum(losses) == Fraction(1, 2) / Fraction(9, 4)
    assert epsilon_of(configuration, 1e-6, Adjacency.ZERO_OUT) <= epsilon_of(configuration, 1e-6, Adjacency.REPLACE)


def test_epsilon_falls_with_noise_and_grows_with_releases_and_not_with_age() -> None:
    def of(**changes: Any) -> float:
        return epsilon_of(InsecureEnclaveSession(noised(**changes)).configuration, 1e-6)

    assert of() == pytest.approx(5.23, abs=0.01)
    assert of(noise_multiplier=Fraction(2)) < of() < of(releases_per_client=2)
    assert of(oldest=1) == of()


def test_a_configuration_without_noise_has_no_epsilon() -> None:
    with pytest.raises(InvalidParameters, match="adds no noise, so epsilon is infinite"):
        epsilon_of(InsecureEnclaveSession(EnclaveSetup()).configuration, 1e-6)


def test_sensitivities_are_those_of_bounds_and_tables_that_fit_the_layout() -> None:
    configuration = InsecureEnclaveSession(noised()).configuration
    layout, form, tables = configuration.layout, configuration.form, configuration.tables
    for bounds, given, said in (
        ((60,), tables, "l2_bounds has 1 values; give one for each of 2"),
        ((60, 20, 1), tables, "l2_bounds has 3 values; give one for each of 2"),
        ((60, 20), (), "tables must be a tuple of 1 tuples"),
    ):
        with pytest.raises(InvalidParameters, match=said):
            list(squared_sensitivities(layout, form, given, bounds, Adjacency.REPLACE))
    histograms = list(squared_sensitivities(layout, ReleaseForm.HISTOGRAM, (), (60, 20), Adjacency.REPLACE))
    assert len(histograms) == len(layout.segments)


def test_a_host_knows_how_much_noise_is_in_its_sum() -> None:
    for setup in (EnclaveSetup(), noised()):
        session = InsecureEnclaveSession(setup)
        session.host.open_buffer(0, bytes(32))
        noise = session.configuration.noise
        due = [] if noise is None else [float(variance) for variance in noise.variances]
        assert [deviation**2 for deviation in session.host.server.deviations] == pytest.approx(due)
