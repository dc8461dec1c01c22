"""Attacks on the noise of two servers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.choices import SharingMode
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.privacy.accounting import Adjacency
from secagg.privacy.client_noise import noise_in
from secagg.privacy.kinds import GREATEST_VARIANCE, NoiseKind
from secagg.privacy.rounding import summed_deviation, unrounded_norm
from secagg.protocols.two_servers.configuration import IndexingConfiguration, ServerNoise, clipped
from secagg.protocols.two_servers.release import (
    Release,
    ReleasedNoise,
    add_noise,
    centred,
    counts_layout,
    require_held,
    server_noise,
    sums_of_counts,
)
from secagg.protocols.two_servers.server import Server
from secagg.protocols.two_servers.session import TwoServersOptions
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run

MODEL = bytes(32)
BLOCKS, CODEWORDS, VALUES = 200, 16, 500
LAYOUT = Layout((IndexSegment(CODEWORDS, BLOCKS), RingSegment(24, VALUES)))
ENTRIES = np.random.default_rng(5).integers(-50, 50, (CODEWORDS, 3))
TABLES = ((CodewordTable(BLOCKS, ENTRIES),),)
SUBJECT = Subject(task=b"noise", round_number=1, layout=LAYOUT, capacity=1 << 10, tables=TABLES, model_digest=MODEL)
CLIENTS = tuple(map(ClientId, range(1, 6)))
SETTINGS = TwoServersOptions(
    noise_multiplier=Fraction(1), l2_bounds=(1000,), adjacency=Adjacency.ZERO_OUT, minimum_cohort=3
)
VARIANCES = (2 * BLOCKS, 2 * 1000**2)
"""Two segments: each has twice the square of its sensitivity."""


def payload_of(client: ClientId, layout: Layout = LAYOUT) -> Payload:
    ring = RingSegment(24, VALUES).ring
    indices = np.full(BLOCKS, client.value % CODEWORDS, np.uint8)
    return Payload(layout, (indices, ring.from_integers(np.full(VALUES, client.value))))


def late(client: ClientId) -> LazyUpdate:
    return LazyUpdate(lambda: Update(payload_of(client), MODEL))


def ran(settings: TwoServersOptions = SETTINGS, member_settings: TwoServersOptions | None = None) -> Released:
    entry = find("two-servers")
    world: Any
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = world.open(SUBJECT, frozenset(CLIENTS))
        world._settings = member_settings or settings  # noqa: SLF001
        joined = (world.member(client).join(SUBJECT, late(client)) for client in CLIENTS)
        measured = Measured(session)
        try:
            return run(measured, joined)
        except Exception:
            failed = [why for figures in measured.figures for why in figures.failed.values()]
            if failed:
                raise InvalidParameters(failed[0]) from None
            raise


def noise_of(released: Released) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what is in the sums of codewords, and in the ring segment, beside the clients' values."""
    plain = [
        np.tile(sum(ENTRIES[client.value % CODEWORDS] for client in CLIENTS), BLOCKS),
        np.full(VALUES, sum(client.value for client in CLIENTS)),
    ]
    rings = released.aggregate.layout.require_rings()
    found = [
        segment.ring.lift(vector).astype(np.float64) - due
        for segment, vector, due in zip(rings, released.aggregate.values, plain, strict=True)
    ]
    return found[0], found[1]


def test_both_servers_noise_is_in_what_is_released() -> None:
    decoded, summed = noise_of(ran())
    assert float((summed**2).mean()) == pytest.approx(2 * VARIANCES[1], rel=5 * (2 / VALUES) ** 0.5)
    due = 2 * VARIANCES[0] * float((ENTRIES.astype(float) ** 2).sum(axis=0).mean())
    assert float((decoded**2).mean()) == pytest.approx(due, rel=0.35)


def test_without_noise_histograms_are_released_though_there_are_tables() -> None:
    assert ran(replace(SETTINGS, noise_multiplier=None, l2_bounds=())).aggregate.layout == LAYOUT


def test_one_servers_noise_is_enough_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 0 adds none, which nobody can see; V is left, and epsilon is computed from it."""
    right = add_noise

    def lazily(self: ServerNoise, *arguments: Any) -> None:
        lazily.calls += 1  # type: ignore[attr-defined]
        if lazily.calls % 2:  # type: ignore[attr-defined]
            right(self, *arguments)

    lazily.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr("secagg.protocols.two_servers.release.add_noise", lazily)
    _, summed = noise_of(ran())
    assert float((summed**2).mean()) == pytest.approx(VARIANCES[1], rel=5 * (2 / VALUES) ** 0.5)


def test_epsilon_is_that_of_one_server() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    entry = find("two-servers")
    with closing(entry.simulate(SETTINGS, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = world.open(SUBJECT, frozenset(CLIENTS))
        noise = noise_in(session)
        assert isinstance(session, Server)
        assert noise is not None
        one, twice = noise.epsilon(1e-6), noise.epsilon(1e-6, releases=2)
        session.abort()
    # One Gaussian of multiplier 1 costs 5.2 at 1e-6; with the variance of both servers it would be 3.6.
    assert one == pytest.approx(5.22, abs=0.05)
    assert twice > one
    assert any("against the other server: epsilon 5.2" in line for line in entry.describe(session))


@pytest.mark.parametrize(
    "offered",
    [{"noise_multiplier": None}, {"noise_multiplier": Fraction(1, 2)}, {"l2_bounds": (999,)}, {"is_rotated": True}],
)
def test_a_round_with_other_noise_than_a_client_insists_on_is_refused(offered: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters, match="not what this client requires"):
        ran(replace(SETTINGS, **offered), SETTINGS)


def test_a_client_is_clipped_to_its_bound() -> None:
    ring = RingSegment(24, VALUES).ring
    long = Payload(LAYOUT, (np.zeros(BLOCKS, np.uint8), ring.from_integers(np.full(VALUES, 1000))))
    configured = server_noise(SETTINGS, LAYOUT)
    found = clipped(long, configured)
    assert float((ring.lift(found.values[1]).astype(float) ** 2).sum()) <= 1000**2
    assert clipped(long, None) is long


# --- A crash ----------------------------------------------------------------------------------------------------------


def configured(**changes: Any) -> IndexingConfiguration:
    chosen: dict[str, Any] = {
        "task": b"noise",
        "suite": Suite.CLASSIC,
        "authority": b"\1" * 32,
        "server_keys": (b"\2" * 32, b"\3" * 32),
        "layout": LAYOUT,
        "minimum_cohort": 3,
        "maximum_cohort": 5,
        "maximum_rejections": 0,
        "expiry": 1,
        "noise": server_noise(SETTINGS, LAYOUT),
        **changes,
    }
    return IndexingConfiguration(**chosen)


def test_a_share_that_is_made_again_has_the_same_noise_and_another_list_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share that was asked for twice would have the average of two noises: the same root and list have one."""
    asked = list[list[bytes]]()
    right = Release.encode_share

    def twice(self: Release, *arguments: Any) -> bytes:
        first, second = (right(self, *arguments) for _ in range(2))
        asked.append([first, second])
        return first

    monkeypatch.setattr(Release, "encode_share", twice)
    noise_of(ran())
    assert len(asked) == 2, "each server shares once"
    for first, second in asked:
        assert first == second
    assert asked[0][0] != asked[1][0]


def test_the_noise_is_from_a_root_of_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that share the pair key and count the same have noise that is not alike."""
    seeds = list[bytes]()
    right = add_noise

    def seen(self: ServerNoise, values: Any, layout: Layout, group: Any, seed: Secret) -> None:
        seeds.append(bytes(seed.expose()))
        right(self, values, layout, group, seed)

    monkeypatch.setattr("secagg.protocols.two_servers.release.add_noise", seen)
    ran()
    ran()
    assert len(set(seeds)) == 4


# --- Fields and rings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": Fraction(0)}, "noise_multiplier must be positive"),
        ({"noise_multiplier": Fraction(-1)}, "noise_multiplier must be positive"),
        ({"l2_bounds": ()}, "one per ring segment"),
        ({"l2_bounds": (1000, 1000)}, "one per ring segment"),
    ],
)
def test_noise_of_other_settings_is_not_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        server_noise(replace(SETTINGS, **changes), LAYOUT)


@pytest.mark.parametrize("mode", SharingMode)
def test_lanes_with_noise_are_below_the_order(mode: SharingMode) -> None:
    """Above it, a lane would tell what part of it is noise."""
    configuration = configured(mode=mode)
    assert configuration.noise is not None
    noise = replace(configuration.noise, variances=configuration.noise.variances[:1])
    values = [np.full(BLOCKS * CODEWORDS, configuration.group.order - 1, configuration.group.word)]
    with Secret("noise seed", bytes(16)) as seed:
        add_noise(noise, values, Layout(LAYOUT.segments[:1]), configuration.group, seed)
    assert int(values[0].max()) < configuration.group.order


def test_sums_of_codewords_stand_beside_the_sums_of_rings_before_them() -> None:
    layout = Layout((RingSegment(24, 2), IndexSegment(CODEWORDS, BLOCKS)))
    counts = np.arange(BLOCKS * CODEWORDS) % 3
    noised = Aggregate(
        counts_layout(layout),
        (layout.segments[0].ring.from_integers(np.array([-5, 7])), RingSegment(32, 1).ring.from_integers(counts)),
        contributors=5,
    )
    released = sums_of_counts(noised, layout, TABLES)
    rings = [
        segment.ring.lift(values)
        for segment, values in zip(released.layout.require_rings(), released.values, strict=True)
    ]
    assert rings[0].tolist() == [-5, 7]
    assert np.array_equal(rings[1], (counts.reshape(BLOCKS, CODEWORDS) @ ENTRIES).reshape(-1))
    noise = configured().noise
    assert noise is not None
    widest = float((ENTRIES.astype(float) ** 2).sum(axis=0).max())
    said = ReleasedNoise(noise, SETTINGS, LAYOUT, TABLES).deviations
    assert said == pytest.approx([(2 * VARIANCES[0] * widest) ** 0.5, (2 * VARIANCES[1]) ** 0.5])


def test_the_field_grows_with_the_noise() -> None:
    def modulus(multiplier: Fraction | None) -> int:
        noise = server_noise(replace(SETTINGS, noise_multiplier=multiplier), LAYOUT)
        return configured(noise=noise).group.order

    assert [modulus(None), modulus(Fraction(1, 4)), modulus(Fraction(4)), modulus(Fraction(40))] == [
        127,
        127,
        8191,
        131071,
    ]


@pytest.mark.parametrize(
    ("layout", "bounds", "is_rotated"),
    [
        (LAYOUT, (1,), False),
        (LAYOUT, (10**5,), False),
        (Layout((RingSegment(17, VALUES),)), (1000,), True),
        (Layout((RingSegment(17, VALUES),)), (1000,), False),
    ],
    ids=["lanes decide", "the ring decides", "behind a rotation", "a ring alone"],
)
def test_noise_that_is_not_held_names_the_multiplier_that_is(
    layout: Layout, bounds: tuple[int, ...], *, is_rotated: bool
) -> None:
    settings = replace(SETTINGS, l2_bounds=bounds, is_rotated=is_rotated)

    def tried(multiplier: Fraction) -> IndexingConfiguration:
        chosen = replace(settings, noise_multiplier=multiplier)
        require_held(chosen, layout, 5)
        return configured(layout=layout, noise=server_noise(chosen, layout))

    with pytest.raises(CapacityExceeded, match="use noise_multiplier = ") as refused:
        tried(Fraction(10) ** 30)
    named = Fraction(str(refused.value).split("noise_multiplier = ")[1].split()[0])
    tried(named)
    with pytest.raises(CapacityExceeded):
        tried(named * Fraction(102, 100))
    noise = server_noise(settings, layout)
    assert noise is not None
    configured(layout=layout, noise=replace(noise, variances=tuple(noise.most(layout, 5))))
    with pytest.raises(CapacityExceeded, match="Use less noise or a wider ring"):
        configured(layout=layout, noise=server_noise(replace(settings, noise_multiplier=2 * named), layout))


def test_noise_of_exactly_what_is_held_is_added_and_no_more() -> None:
    layout = Layout((RingSegment(32, 1),))
    settings = replace(SETTINGS, noise_kind=NoiseKind.SKELLAM, l2_bounds=(1,), noise_multiplier=Fraction(1 << 15))
    noise = require_held(settings, layout, 5)
    assert noise is not None
    assert noise.variances == (GREATEST_VARIANCE[NoiseKind.SKELLAM],)
    configured(layout=layout, noise=noise)
    with pytest.raises(CapacityExceeded, match="use noise_multiplier = 32760 at most"):
        require_held(replace(settings, noise_multiplier=Fraction(32769)), layout, 5)


def test_a_ring_that_no_noise_fits_says_so() -> None:
    with pytest.raises(CapacityExceeded, match="use wider rings, or no noise"):
        require_held(replace(SETTINGS, l2_bounds=(10**7,)), LAYOUT, 5)


def test_a_ring_behind_a_rotation_is_narrower_and_its_sums_leave_it_as_seldom_as_said() -> None:
    """4 deviations in place of 9.1: 63 coordinates in a million leave it, where all updates are alike."""
    length, bound, clients = 200_000, 20_000, 100
    settings = replace(SETTINGS, l2_bounds=(bound,), is_rotated=True, noise_multiplier=Fraction(1, 100))

    def narrowest(chosen: TwoServersOptions) -> int:
        for bits in range(8, 40):
            try:
                require_held(chosen, Layout((RingSegment(bits, length),)), clients)
            except CapacityExceeded:
                continue
            return bits
        raise AssertionError("none")

    assert narrowest(replace(settings, is_rotated=False)) - narrowest(settings) >= 6
    layout = Layout((RingSegment(narrowest(settings), length),))
    noise = server_noise(settings, layout)
    assert noise is not None
    (most,) = noise.most(layout, clients)
    deviation = summed_deviation(unrounded_norm(bound, length), length, clients, 2 * most)
    greatest = layout.require_rings()[0].ring.greatest
    assert greatest / deviation == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": Layout((RingSegment(24, VALUES),))}, "noise needs 1 variances"),
        ({"noise": ServerNoise(kind=NoiseKind.SKELLAM, variances=(1, 0), l2_bounds=(1000,))}, "the variance of"),
    ],
)
def test_noise_for_something_else_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        configured(**changes)


def test_counts_without_tables_are_not_released() -> None:
    entry = find("two-servers")
    with (
        closing(entry.simulate(SETTINGS, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world,
        pytest.raises(InvalidParameters, match="pass the codec's tables"),
    ):
        world.open(replace(SUBJECT, tables=()), frozenset(CLIENTS))


def test_negative_counts_are_counts() -> None:
    lanes = np.array([0, 5, 126, 64, 63], np.uint8)
    ring = RingSegment(32, 1).ring
    assert ring.lift(centred(lanes, 127)).tolist() == [0, 5, -1, -63, 63]
