"""Floors of every protocol hold values that can be compared: NaN is below no floor, and a string holds its parts."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from secagg.errors import InvalidParameters
from secagg.protocols import enclave, light_secagg, one_message, pairwise_mask, two_servers

KEY, OTHER, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
FLOORS: list[Any] = [
    pairwise_mask.ClientFloors.usual(10),
    enclave.EnclaveFloors.usual(10, authority=KEY),
    two_servers.IndexingFloors.usual(10, KEY, (OTHER, THIRD)),
    two_servers.StandingFloors(
        task_prefix=b"",
        authority=KEY,
        server_keys=(OTHER, THIRD),
        minimum_cohort=5,
        maximum_cohort=10,
        maximum_lanes=1 << 20,
        maximum_lifetime=timedelta(hours=1),
    ),
    one_message.Floors.usual(KEY),
    light_secagg.Floors.usual(10),
]
FIELDS = [(floors, field.name) for floors in FLOORS for field in fields(floors)]
WRONG: dict[type, tuple[object, ...]] = {
    int: (math.nan, 5.0, True, "5", None),
    frozenset: ("x25519-aes128 semi_honest", frozenset({"x25519-aes128"}), frozenset[str](), ["active"], None),
    timedelta: (timedelta(), 60, None),
}


@pytest.mark.parametrize(("floors", "name"), FIELDS, ids=[f"{type(one).__name__}.{name}" for one, name in FIELDS])
def test_a_floor_of_another_type_is_refused(floors: Any, name: str) -> None:
    assert replace(floors) == floors
    for wrong in WRONG.get(type(getattr(floors, name)), ()):
        with pytest.raises(InvalidParameters):
            pytest.fail(f"{wrong!r} is taken: {replace(floors, **{name: wrong})}")


def test_the_table_has_the_floors_of_every_protocol() -> None:
    packages = (enclave, light_secagg, one_message, pairwise_mask, two_servers)
    found = {name for package in packages for name in dir(package) if name.endswith("Floors")}
    assert found == {type(floors).__name__ for floors in FLOORS}
