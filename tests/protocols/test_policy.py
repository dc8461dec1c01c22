"""Policies of clients and of a second server must have comparable values: NaN passes no comparison."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from secagg.errors import InvalidParameters
from secagg.platforms.client_node import ClientNode
from secagg.protocols import two_servers
from secagg.session.client_policy import ClientPolicy

KEY, OTHER, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
POLICY: list[Any] = [
    ClientPolicy(authority=KEY, server_keys=(OTHER, THIRD)),
    ClientNode(),
    two_servers.OperatorPolicy(
        weakest=ClientPolicy(authority=KEY, server_keys=(OTHER, THIRD), minimum_cohort=5),
        task_prefix=b"",
        maximum_cohort=10,
        maximum_lanes=1 << 20,
        maximum_lifetime=timedelta(hours=1),
    ),
]
FIELDS = [(policy, field.name) for policy in POLICY for field in fields(policy)]
WRONG: dict[type, tuple[object, ...]] = {
    int: (math.nan, 5.0, True, "5", None),
    float: (math.nan, math.inf, -1.0, True, "5", None),
    bool: (1, 0, "yes", None),
    frozenset: ("x25519-aes128 semi_honest", frozenset({"x25519-aes128"}), frozenset[str](), ["active"], None),
    timedelta: (timedelta(), 60, None),
}


@pytest.mark.parametrize(("policy", "name"), FIELDS, ids=[f"{type(one).__name__}.{name}" for one, name in FIELDS])
def test_a_limit_of_another_type_is_refused(policy: Any, name: str) -> None:
    assert replace(policy) == policy
    for wrong in WRONG.get(getattr(policy, name).__class__, ()):
        with pytest.raises(InvalidParameters):
            pytest.fail(f"{wrong!r} is taken: {replace(policy, **{name: wrong})}")
