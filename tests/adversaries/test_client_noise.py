"""Attacks on noise added by clients, in each protocol that supports it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from math import log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.choices import Topology
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.privacy.accounting import Adjacency
from secagg.privacy.client_noise import ClientNoise, NoiseSettings, noise_in
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.one_message.session import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from secagg.simulation.insecure_coins import InsecureSeededCoins

MODEL = bytes(32)
VALUES = 3_000
LAYOUT = Layout((RingSegment(24, VALUES),))
SUBJECT = Subject(task=b"noise", round_number=1, layout=LAYOUT, capacity=1 << 10, model_digest=MODEL)
CLIENTS = tuple(map(ClientId, range(1, 9)))
NOISE: dict[str, Any] = {
    "noise_multiplier": Fraction(1),
    "l2_bounds": (3000,),
    "adjacency": Adjacency.ZERO_OUT,
    "minimum_cohort": 6,
    "corrupted": 1,
}
FULL: dict[str, Any] = {"topology": Topology.FULL, "dropped": 2, "population": 8}
SETTINGS: dict[str, tuple[str, Any]] = {
    "pairwise": ("pairwise", PairwiseOptions(**NOISE, **FULL)),
    "pairwise, semi-honest": ("pairwise", PairwiseOptions(**NOISE, **FULL, mode=SecurityMode.SEMI_HONEST)),
    "one message": ("one-message", OneMessageOptions(**NOISE, capacity=8)),
}
OTHER_TERMS = r"application_digest .* differs|capacity, noise or set of terms differs"
PROTOCOLS = pytest.mark.parametrize("name", SETTINGS)


def payload_of(client: ClientId, scale: int = 1) -> Payload:
    (segment,) = LAYOUT.require_rings()
    return Payload(LAYOUT, (segment.ring.from_integers(np.full(VALUES, scale * client.value)),))


def late(client: ClientId) -> LazyUpdate:
    return LazyUpdate(lambda: Update(payload_of(client), MODEL))


def ran(
    name: str,
    clients: Iterable[ClientId] = CLIENTS,
    *,
    settings: Any = None,
    member_settings: Any = None,
    gone: frozenset[ClientId] = frozenset(),
) -> tuple[Released, ClientNoise]:
    """Run a session whose server has one kind of settings and whose clients another."""
    protocol, usual = SETTINGS[name]
    entry = find(protocol)
    with closing(entry.simulate(settings or usual, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = world.open(SUBJECT, frozenset(clients))
        noise = noise_in(session)
        if member_settings is not None:
            world._settings = member_settings  # type: ignore[attr-defined] # noqa: SLF001
        joined = (world.member(client).join(SUBJECT, late(client)) for client in clients)
        uploading = next(stage.name for stage in entry.stages if stage.takes_update)
        measured = Measured(session)
        try:
            released = run(measured, joined, {uploading: gone})
        except ThresholdNotMet:
            failed = [why for figures in measured.figures for why in figures.failed.values()]
            if failed and not gone:
                raise InvalidParameters(failed[0]) from None
            raise
        assert isinstance(noise, ClientNoise)
        return released, noise


def noise_of(released: Released) -> npt.NDArray[np.float64]:
    (segment,) = LAYOUT.require_rings()
    plain = segment.ring.from_integers(np.full(VALUES, sum(client.value for client in released.counted)))
    left = segment.ring.subtract(released.aggregate.values[0], plain)
    return segment.ring.lift(left).astype(np.float64)


@PROTOCOLS
def test_the_sum_has_the_noise_of_all_who_contributed(name: str) -> None:
    released, noise = ran(name)
    assert noise.honest == 5
    found = float((noise_of(released) ** 2).mean())
    assert found == pytest.approx(float(noise.variances[0]) * len(CLIENTS) / 5, rel=5 * sqrt(2 / VALUES))


@PROTOCOLS
def test_the_smallest_sum_has_the_accounted_noise_without_that_of_the_corrupted(name: str) -> None:
    """Of 6 contributors, the minimum, one knows its own noise: the rest is still V, not 5/6 of it."""
    released, noise = ran(name, gone=frozenset(CLIENTS[:2]))
    found = float((noise_of(released) ** 2).mean())
    assert found * (6 - 1) / 6 == pytest.approx(float(noise.variances[0]), rel=5 * sqrt(2 / VALUES))


@PROTOCOLS
def test_nothing_is_opened_of_fewer_than_the_noise_is_made_for(name: str) -> None:
    with pytest.raises(ThresholdNotMet):
        ran(name, gone=frozenset(CLIENTS[:3]))


@PROTOCOLS
@pytest.mark.parametrize(
    ("offered", "own"),
    [
        ({"noise_multiplier": None}, {}),
        ({"noise_multiplier": Fraction(1, 2)}, {}),
        ({"l2_bounds": (2000,)}, {}),
        ({"noise_kind": NoiseKind.SKELLAM}, {}),
        ({"adjacency": Adjacency.REPLACE}, {}),
        ({"is_rotated": True}, {}),
        ({"corrupted": 0}, {}),
        ({}, {"noise_multiplier": None}),
    ],
    ids=str,
)
def test_an_offer_with_other_noise_than_a_client_insists_on_is_refused(
    name: str, offered: dict[str, Any], own: dict[str, Any]
) -> None:
    """The offers include a session without noise, whose sum would contain the exact values."""
    _, usual = SETTINGS[name]
    with pytest.raises(InvalidParameters, match=rf"{OTHER_TERMS}|corrupted clients"):
        ran(name, settings=replace(usual, **offered), member_settings=replace(usual, **own))


@PROTOCOLS
def test_an_offer_that_counts_more_corrupted_clients_than_a_client_does_has_the_noise_that_it_accounts_for(
    name: str,
) -> None:
    """With two of six corrupted, four shares of a fourth each are accounted; shares of a fifth would leave less."""
    _, usual = SETTINGS[name]
    if name.startswith("pairwise"):
        with pytest.raises(InvalidParameters, match=OTHER_TERMS):
            ran(name, settings=replace(usual, corrupted=2, dropped=0), member_settings=usual)
        return
    released, noise = ran(name, settings=replace(usual, corrupted=2), member_settings=usual)
    assert noise.honest == 4
    found = float((noise_of(released) ** 2).mean())
    assert found == pytest.approx(float(noise.variances[0]) * len(CLIENTS) / 4, rel=5 * sqrt(2 / VALUES))


def test_bounds_of_values_do_not_go_with_noise() -> None:
    _, usual = SETTINGS["one message"]
    with pytest.raises(InvalidParameters, match="set bounds = none"):
        ran("one message", settings=replace(usual, bounds=((0, 10),)))


# --- An audit ---------------------------------------------------------------------------------------------------------

RUNS = 10**6
AUDIT_DELTA = 1e-5


def audited(share: float) -> float:
    """Return the epsilon that a million guesses prove, for epsilon 1 and deviations of this share of the required ones.

    One value per client; the guess is "it took part" above a threshold that is fixed here, not taken from the runs. The
    bound holds with a confidence of 99.9 %, by a normal approximation of counts of thousands.
    """
    layout, bound = Layout((RingSegment(24, RUNS),)), 1000
    settings = NoiseSettings(noise_multiplier=Fraction("4.06"), l2_bounds=(bound,), adjacency=Adjacency.ZERO_OUT)
    # One scalar release costs epsilon 1 at 1e-5; the runs are entries of one vector, each a separate sum.
    scalar = settings.noise_for(Layout((RingSegment(24, 1),)), minimum_cohort=6, capacity=8, corrupted=2)
    assert scalar is not None
    assert scalar.epsilon(AUDIT_DELTA) == pytest.approx(1, abs=0.02)
    drawn = replace(settings, noise_multiplier=Fraction("4.06") * Fraction(share))
    noise = drawn.noise_for(layout, minimum_cohort=6, capacity=8, corrupted=2)
    assert noise is not None
    ring = layout.require_rings()[0].ring
    counts = list[int]()
    threshold = 3 * bound * 4.06 * share
    for canary in (0, bound):
        total = ring.from_integers(np.full(RUNS, canary))
        for client in range(noise.honest):
            empty = Payload(layout, (ring.zeros(RUNS),))
            coins = InsecureSeededCoins(f"audit {canary} {client}".encode())
            total = ring.add(total, noise.add_to(empty, coins).values[0])
        counts.append(int(np.count_nonzero(ring.lift(total).astype(np.int64) > threshold)))
    out, inside = (count / RUNS for count in counts)
    sure = NormalDist().inv_cdf(0.9995)
    least = inside - sure * sqrt(inside * (1 - inside) / RUNS)
    most = out + sure * sqrt(out * (1 - out) / RUNS)
    return log((least - AUDIT_DELTA) / most)


def test_the_audit_proves_less_than_epsilon_one_of_noise_as_it_is_and_more_of_half_of_it() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    as_shipped, halved = audited(1), audited(0.5)
    assert 0.5 < as_shipped < 1
    assert halved > 1.2
