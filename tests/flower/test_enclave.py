"""Rounds of the enclave in Flower's simulation: means equal to plain strategies', and enforced policies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.flower_federation import counts

pytestmark = pytest.mark.flower

LEFT = "secagg: this client left the round; code: "
REFUSED = {
    "enclave_by_default": "the server's enclave is simulated and protects nobody from the server",
    "enclave_low_cohort": "a cohort of 2 is below 3",
    "enclave_of_others": "does not trust",
}
SCENARIOS = [
    *("enclave", "enclave_dropped", "enclave_served", "enclave_absent", *REFUSED),
    *("enclave_other_terms", "enclave_other_models"),
    "enclave_other_task",
]


@pytest.mark.parametrize(("name", "rounds", "uploads"), [("enclave", 2, 8), ("enclave_dropped", 1, 6)])
def test_one_exchange_gives_the_weighted_mean(outcomes: dict[str, Any], name: str, rounds: int, uploads: int) -> None:
    outcome = outcomes[name]
    assert outcome["error"] is None
    assert counts(outcome) == [(8, uploads)]
    assert outcome["difference"]["layer"] < rounds * 2**-15
    assert outcome["difference"]["steps"] == 0
    assert outcome["names"] == ["secagg"]
    assert all(record["loss"] == pytest.approx(outcome["loss"], abs=1e-6) for record in outcome["metrics"].values())


def test_a_simulated_enclave_is_called_one(outcomes: dict[str, Any]) -> None:
    assert "a simulated enclave protects no client from this server" in outcomes["enclave"]["log"]
    assert "simulated enclave protects" not in outcomes["enclave_served"]["log"]


def test_an_enclave_in_a_process_of_its_own_gives_the_same(outcomes: dict[str, Any]) -> None:
    assert outcomes["enclave_served"]["error"] is None
    assert outcomes["enclave_served"]["difference"]["layer"] < 2**-15


def test_an_enclave_that_is_not_there_is_named(outcomes: dict[str, Any]) -> None:
    assert "nothing answers at secagg-enclave-socket = /absent/socket" in outcomes["enclave_absent"]["error"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_seals_nothing_below_its_policy(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["error"].startswith("ThresholdNotMet")
    assert counts(outcomes[name]) == [(8, 0)]
    assert [error.removeprefix(LEFT) for error in outcomes[name]["errors"]] in (["terms"], ["left"])
    assert REFUSED[name] in outcomes[name]["log"]


def test_an_update_under_other_terms_is_in_no_sum(outcomes: dict[str, Any]) -> None:
    assert outcomes["enclave_other_terms"]["error"] is None
    assert counts(outcomes["enclave_other_terms"]) == [(8, 6)]


def test_an_enclave_that_counts_for_another_task_is_sealed_nothing(outcomes: dict[str, Any]) -> None:
    assert counts(outcomes["enclave_other_task"]) == [(8, 6)]
    assert outcomes["enclave_other_task"]["log"].count(" again', but this run is ") == 2


def test_updates_of_different_models_are_in_no_sum(outcomes: dict[str, Any]) -> None:
    assert counts(outcomes["enclave_other_models"]) == [(8, 4)]
