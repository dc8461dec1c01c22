"""A client's policy: an offer exactly at a limit is accepted, and one step below is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from secagg.choices import Topology
from secagg.contract import Layout, RingSegment
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
from secagg.errors import InvalidParameters, Reason
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.session.client_policy import ClientPolicy
from tests.harness.pairwise_sessions import SessionSetup

POLICY: dict[str, Any] = {
    "suites": frozenset({Suite.CLASSIC}),
    "modes": frozenset({SecurityMode.ACTIVE}),
    "minimum_cohort": 100,
    "minimum_threshold": 67,
    "minimum_modulus_bits": 20,
    "maximum_length": 1000,
    "maximum_population": 500,
    "assumed_corrupted": 25,
    "privacy_bits": 40,
}
COSTS: dict[str, Any] = {"topologies": frozenset({Topology.SPARSE}), "maximum_degree": 80}
AT_THE_FLOOR = replace(
    SessionSetup(layout=Layout((RingSegment(20, 1000),))).plan(b"a" * 32).configuration,
    topology=Topology.SPARSE,
    degree=80,
    threshold=67,
    minimum_cohort=100,
    maximum_population=500,
    quorum=300,
)

# Each row: the offer, one step below the limit, and the value and limit that the error must name.
BELOW: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"suite": Suite.HYBRID}, ("mlkem768x25519-aes256", "x25519-aes128")),
    ({"mode": SecurityMode.SEMI_HONEST, "quorum": 0, "authority": bytes(32)}, ("semi_honest", "active")),
    ({"minimum_cohort": 99}, ("99", "100")),
    ({"threshold": 66}, ("66", "67")),
    ({"layout": Layout((RingSegment(30, 1), RingSegment(19, 999)))}, ("19", "20")),
    ({"layout": Layout((RingSegment(20, 500), RingSegment(20, 501)))}, ("1001", "1000")),
    ({"maximum_population": 501}, ("501", "500")),
    ({"topology": Topology.FULL, "degree": 0}, ("full", "sparse")),
    ({"degree": 82}, ("82", "80")),
]

# Each row: a limit, an invalid value for it, and a valid value one step inside.
NO_FLOORS = [
    ("minimum_cohort", 1, 2),
    ("minimum_threshold", 1, 2),
    ("minimum_modulus_bits", 0, 1),
    ("minimum_modulus_bits", MAXIMUM_MODULUS_BITS + 1, MAXIMUM_MODULUS_BITS),
    ("maximum_length", 0, 1),
    ("maximum_population", 99, 100),
    ("maximum_degree", 0, 1),
    ("assumed_corrupted", -1, 0),
    ("privacy_bits", 39, 40),
]


def policy(**changes: Any) -> ClientPolicy:
    return ClientPolicy(**(POLICY | COSTS | changes))


def test_an_offer_exactly_at_every_floor_is_admitted() -> None:
    AT_THE_FLOOR.require_accepted(policy())


def test_the_strongest_offer_that_can_be_is_admitted() -> None:
    strongest = Layout((RingSegment(MAXIMUM_MODULUS_BITS, 1),))
    replace(AT_THE_FLOOR, minimum_cohort=500, threshold=80, layout=strongest).require_accepted(policy())


@pytest.mark.parametrize(("offered", "named"), BELOW, ids=[" ".join(row[0]) for row in BELOW])
def test_an_offer_one_step_below_a_floor_is_refused_by_name(offered: dict[str, Any], named: tuple[str, str]) -> None:
    with pytest.raises(InvalidParameters) as caught:
        replace(AT_THE_FLOOR, **offered).require_accepted(policy())
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize("floor", [name for name, value in POLICY.items() if isinstance(value, int)])
def test_a_floor_that_is_no_integer_is_refused(floor: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{floor} must be an integer"):
        policy(**{floor: float("nan")})


@pytest.mark.parametrize("members", ["mlkem768x25519-aes256", frozenset({"x25519-aes128"}), {Suite.CLASSIC}])
def test_suites_that_are_no_set_of_suites_are_refused(members: object) -> None:
    # In a string, every substring would be found.
    with pytest.raises(InvalidParameters, match="suites must be a frozenset"):
        policy(suites=members)


@pytest.mark.parametrize(("floor", "outside", "inside"), NO_FLOORS)
def test_a_floor_that_protects_nobody_is_refused(floor: str, outside: int, inside: int) -> None:
    with pytest.raises(InvalidParameters, match=floor) as caught:
        policy(**{floor: outside})
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE
    assert getattr(policy(**{floor: inside}), floor) == inside


@pytest.mark.parametrize("floor", ["suites", "modes", "topologies"])
def test_policies_that_accept_nothing_are_refused(floor: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{floor} must be a frozenset of at least one"):
        policy(**{floor: frozenset[object]()})


def test_a_population_for_a_sparse_graph_lets_no_full_one_in() -> None:
    """Sharing among 65,535 neighbours takes minutes; a client that allows so many expects a sparse graph."""
    for topology, degree, refused in ((Topology.SPARSE, 134, False), (Topology.FULL, 0, True)):
        setup = SessionSetup(population=8, topology=topology, mode=SecurityMode.SEMI_HONEST)
        large = replace(setup.plan().configuration, maximum_population=65_535, degree=degree, threshold=100)
        low: dict[str, Any] = {"modes": frozenset({SecurityMode.SEMI_HONEST}), "minimum_cohort": 2,
                               "minimum_modulus_bits": 1, "maximum_population": 65_535}  # fmt: skip
        accepting = ClientPolicy(**(POLICY | low))
        if not refused:
            large.require_accepted(accepting)
            continue
        with pytest.raises(InvalidParameters, match="degree of 65534 exceeds 1024") as caught:
            large.require_accepted(accepting)
        assert caught.value.reason is Reason.BELOW_FLOOR


def test_a_policy_cannot_be_changed() -> None:
    hostile: Any = policy()
    with pytest.raises(AttributeError):
        hostile.minimum_cohort = 2


@pytest.mark.parametrize("clients", [2, 3, 4, 20, 1000])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_policy_among_clients_fits_their_number(clients: int, mode: SecurityMode) -> None:
    usual = ClientPolicy.among(clients, mode)
    assert usual.modes == {mode}
    assert usual.maximum_population == clients
    assert usual.minimum_cohort == max(2, clients // 2)
    assert 10 * usual.assumed_corrupted >= clients


@pytest.mark.parametrize("clients", [1, 0, -3, True, 100.0, "100", None])
def test_a_policy_is_among_a_number_of_clients(clients: Any) -> None:
    with pytest.raises(InvalidParameters, match="clients must be an integer"):
        ClientPolicy.among(clients)


@pytest.mark.parametrize(("mode", "bits"), [(SecurityMode.ACTIVE, 100), (SecurityMode.SEMI_HONEST, 40)])
def test_a_graph_betrays_a_client_with_at_most_the_chance_of_its_mode(
    monkeypatch: pytest.MonkeyPatch, mode: SecurityMode, bits: int
) -> None:
    """Advertisers are judged by the policy's bits, or by the mode's if these are more."""
    seen = list[int]()

    def noted(_: object, __: int, *, corrupted: int, privacy_bits: int) -> None:
        del corrupted
        seen.append(privacy_bits)

    configuration = SessionSetup(mode=mode).plan(b"a" * 32).configuration
    monkeypatch.setattr(SessionConfiguration, "require_population", noted)
    for own in (40, 120):
        configuration.require_protected(policy(privacy_bits=own), 8)
    assert seen == [bits, 120]
