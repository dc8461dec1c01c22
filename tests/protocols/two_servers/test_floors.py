"""What a client insists on: each weakness of a configuration is refused by itself, and names what is too weak."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from tests.harness.indexing_rounds import indexing_configuration

CHECKED, UNCHECKED = SharingMode
LAYOUT = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPIRY = int(NOW.timestamp()) + 60
AUTHORITY, ZERO, ONE, OTHER = (bytes([byte] * 32) for byte in (1, 2, 3, 4))


configuration = partial(
    indexing_configuration,
    suite=Suite.HYBRID,
    authority=AUTHORITY,
    server_keys=(ZERO, ONE),
    layout=LAYOUT,
    minimum_cohort=5,
    maximum_cohort=9,
    maximum_rejections=2,
    weights=(1, 3),
    expiry=EXPIRY,
)


def floors(**changes: Any) -> IndexingFloors:
    """Floors that the configuration above just meets."""
    chosen: dict[str, Any] = {
        "suites": frozenset({Suite.HYBRID}),
        "authority": AUTHORITY,
        "server_keys": (ZERO, ONE),
        "minimum_cohort": 5,
        "maximum_length": 11,
        "maximum_weight": 3,
    }
    return IndexingFloors(**(chosen | changes))


def admit(kept: IndexingFloors, made: IndexingConfiguration, *, layout: Layout = LAYOUT, now: datetime = NOW) -> None:
    kept.admit(made, layout=layout, now=now)


def test_what_just_meets_the_floors_is_admitted() -> None:
    admit(floors(), configuration())
    admit(floors(minimum_cohort=2, maximum_length=99, maximum_weight=9), configuration())
    admit(floors(suites=frozenset(Suite)), configuration())
    admit(floors(), configuration(maximum_cohort=20, maximum_rejections=0, depth=1, task=b"another"))


def test_vectors_are_no_longer_than_a_client_puts_up_with() -> None:
    with pytest.raises(InvalidParameters, match="longer than 10") as caught:
        admit(floors(maximum_length=10), configuration())
    assert caught.value.reason is Reason.BELOW_FLOOR


def test_a_configuration_expires_at_its_second() -> None:
    for now in (
        NOW + timedelta(seconds=59.999),
        (NOW + timedelta(seconds=59)).astimezone(timezone(timedelta(hours=9))),
    ):
        admit(floors(), configuration(), now=now)
    for now in (NOW + timedelta(seconds=60), NOW + timedelta(days=9)):
        with pytest.raises(InvalidParameters, match="expired") as caught:
            admit(floors(), configuration(), now=now)
        assert caught.value.reason is Reason.BELOW_FLOOR


@pytest.mark.parametrize("mode", SharingMode)
def test_a_mode_is_admitted_where_it_is_named(mode: SharingMode) -> None:
    made = configuration(mode=mode)
    admit(floors(modes=frozenset({mode})), made)
    admit(floors(modes=frozenset(SharingMode)), made)
    with pytest.raises(InvalidParameters, match="mode"):
        admit(floors(modes=frozenset(SharingMode) - {mode}), made)


def test_by_default_clients_are_checked_and_weigh_one() -> None:
    kept = IndexingFloors(
        suites=frozenset({Suite.HYBRID}),
        authority=AUTHORITY,
        server_keys=(ZERO, ONE),
        minimum_cohort=5,
        maximum_length=11,
    )
    assert (kept.modes, kept.maximum_weight) == (frozenset({CHECKED}), 1)
    admit(kept, configuration(weights=(1,)))
    with pytest.raises(InvalidParameters, match="weigh 3"):
        admit(kept, configuration())


@pytest.mark.parametrize(
    "changes",
    [
        {"suites": frozenset[Suite]()},
        {"suites": {Suite.HYBRID}},
        {"suites": frozenset({"x25519-aes128"})},
        {"modes": frozenset[SharingMode]()},
        {"modes": {CHECKED}},
        {"modes": frozenset({1})},
        {"authority": b""},
        {"authority": b"a" * 31},
        {"authority": None},
        {"server_keys": (ZERO, b"1" * 33)},
        {"server_keys": (None, ONE)},
        {"minimum_cohort": 1},
        {"minimum_cohort": True},
        {"minimum_cohort": 2.0},
        {"maximum_length": 0},
        {"maximum_length": None},
        {"maximum_weight": 0},
        {"maximum_weight": True},
    ],
)
def test_floors_that_protect_nobody_are_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        floors(**changes)


@pytest.mark.parametrize("server_keys", [(ZERO,), (ZERO, ONE, OTHER), [ZERO, ONE], None])
def test_servers_are_two(server_keys: Any) -> None:
    with pytest.raises(Misuse, match="server 0 and of server 1"):
        floors(server_keys=server_keys)
