"""Floors that a client can have; what they refuse is in ``tests/adversaries/test_two_servers_offers.py``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from tests.harness.indexing_rounds import indexing_configuration

CHECKED, _ = SharingMode
LAYOUT = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
AUTHORITY, ZERO, ONE, OTHER = (bytes([byte] * 32) for byte in (1, 2, 3, 4))


def floors(**changes: Any) -> IndexingFloors:
    chosen: dict[str, Any] = {
        "suites": frozenset({Suite.HYBRID}),
        "authority": AUTHORITY,
        "server_keys": (ZERO, ONE),
        "minimum_cohort": 5,
        "maximum_length": 11,
    }
    return IndexingFloors(**(chosen | changes))


def test_the_time_has_a_zone() -> None:
    with pytest.raises(Misuse, match="time zone"):
        floors().admit(indexing_configuration(layout=LAYOUT), layout=LAYOUT, now=datetime(2026, 1, 1))  # noqa: DTZ001


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
    ],
)
def test_floors_that_protect_nobody_are_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        floors(**changes)


@pytest.mark.parametrize("server_keys", [(ZERO,), (ZERO, ONE, OTHER), [ZERO, ONE], None])
def test_servers_are_two(server_keys: Any) -> None:
    with pytest.raises(Misuse, match="server 0 and of server 1"):
        floors(server_keys=server_keys)
