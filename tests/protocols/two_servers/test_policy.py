"""Policy that a client can have; what they refuse is in ``tests/adversaries/test_two_servers_offers.py``."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.choices import ReleaseForm, SharingMode
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.session.client_policy import ClientPolicy

CHECKED, _ = SharingMode
LAYOUT = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
AUTHORITY, ZERO, ONE, OTHER = (bytes([byte] * 32) for byte in (1, 2, 3, 4))


def policy(**changes: Any) -> ClientPolicy:
    chosen: dict[str, Any] = {
        "suites": frozenset({Suite.HYBRID}),
        "authority": AUTHORITY,
        "server_keys": (ZERO, ONE),
        "minimum_cohort": 5,
        "maximum_length": 11,
    }
    return ClientPolicy(**(chosen | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"suites": frozenset[Suite]()},
        {"suites": {Suite.HYBRID}},
        {"suites": frozenset({"x25519-aes128"})},
        {"sharings": frozenset[SharingMode]()},
        {"sharings": {CHECKED}},
        {"sharings": frozenset({1})},
        {"sharings": frozenset({ReleaseForm.DECODED_SUM})},
        {"authority": b""},
        {"authority": b"a" * 31},
        {"server_keys": (ZERO, b"1" * 33)},
        {"server_keys": (None, ONE)},
        {"minimum_cohort": 1},
        {"minimum_cohort": True},
        {"minimum_cohort": 2.0},
        {"maximum_length": 0},
        {"maximum_length": None},
    ],
)
def test_policies_that_protect_nobody_are_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        policy(**changes)


@pytest.mark.parametrize("server_keys", [(ZERO,), (ZERO, ONE, OTHER), [ZERO, ONE], (ZERO, ZERO)])
def test_servers_are_two(server_keys: Any) -> None:
    with pytest.raises(InvalidParameters, match="2 different public keys"):
        policy(server_keys=server_keys)
