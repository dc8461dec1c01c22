"""Rounds of two servers in Flower's simulation: plain strategies' means, and a server 0 that learns only these."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.flower_federation import counts

pytestmark = pytest.mark.flower

LEFT = "secagg: this client left the round; code: "
REFUSED = {
    "two_by_default": "the first server simulates the second and can read all updates",
    "two_low_cohort": "a cohort of 2 is below 3",
}
TO_SERVER_ONE = {
    "two_offered_low_cohort": "a cohort of 2 is below 3",
    "two_own_key": "the two servers' keys are not the pinned ones",
}
TOLD_OTHERWISE = {
    "two_other_terms": "the round's codec, model, capacity or terms differ from this client's",
    "two_other_task": " again', but this run is ",
    "two_other_round": "the servers run a different round from this client's",
}
SCENARIOS = [
    *("two", "two_twin", "two_dropped", "two_hybrid"),
    *("two_served", "two_restarted", "two_lost", "two_absent", *REFUSED, *TO_SERVER_ONE, *TOLD_OTHERWISE),
    "two_other_models",
]


@pytest.mark.parametrize(("name", "uploads"), [("two", 8), ("two_dropped", 7), ("two_hybrid", 8)])
def test_one_exchange_gives_the_mean_of_those_who_uploaded(outcomes: dict[str, Any], name: str, uploads: int) -> None:
    outcome = outcomes[name]
    assert outcome["error"] is None
    assert counts(outcome) == [(8, uploads)]
    assert outcome["difference"]["layer"] < 2**-14
    assert outcome["difference"]["steps"] == 0
    assert outcome["names"] == ["secagg"]
    assert f"sum: {uploads} clients, " in outcome["log"]
    assert all(record["loss"] == pytest.approx(outcome["loss"], abs=1e-6) for record in outcome["metrics"].values())


def test_a_run_agrees_with_plain_federated_averaging_within_the_error_of_quantization(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_twin"]["error"] is None
    assert outcomes["two_twin"]["fixed-point"] < 2**-14
    assert 2**-14 < outcomes["two_twin"]["pq-64x5"] < 0.15


def test_every_node_keeps_a_ledger_of_its_uploads_between_rounds(outcomes: dict[str, Any]) -> None:
    # It also contains those of other nodes.
    assert outcomes["two"]["last"].count(outcomes["two"]["rounds"]) == 8


def test_a_simulated_second_server_is_called_one(outcomes: dict[str, Any]) -> None:
    assert "a simulated second server protects no client from this one" in outcomes["two"]["log"]
    assert "simulated second server" not in outcomes["two_served"]["log"]


def test_a_second_server_in_a_process_of_its_own_counts_codewords(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_served"]["error"] is None
    assert counts(outcomes["two_served"]) == [(8, 8)]
    assert 2**-14 < outcomes["two_served"]["difference"]["layer"] < 0.15


def test_a_second_server_that_was_killed_between_rounds_goes_on(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_restarted"]["error"] is None
    assert outcomes["two_restarted"]["difference"]["layer"] < 2**-14


def test_a_second_server_that_was_killed_knows_which_rounds_it_began(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_restarted"]["again"].startswith("InvalidParameters")
    assert "was already started" in outcomes["two_restarted"]["again"]


@pytest.mark.parametrize("name", ["two_lost", "two_absent"])
def test_a_second_server_that_is_gone_is_named(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["error"].startswith("HelperLost: no server 1 answers at secagg-second-server = ")
    assert "the server learned nothing" in outcomes[name]["log"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_shares_nothing_with_servers_that_are_not_what_it_was_told(
    outcomes: dict[str, Any], name: str
) -> None:
    assert outcomes[name]["error"].startswith("ThresholdNotMet")
    assert counts(outcomes[name]) == [(8, 0)]
    assert [error.removeprefix(LEFT) for error in outcomes[name]["errors"]] in (["terms"], ["left"])
    assert outcomes[name]["log"].count(REFUSED[name]) == 8


def test_what_is_refused_is_neither_trained_for_nor_spent(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_low_cohort"]["again"] is None


@pytest.mark.parametrize("name", TO_SERVER_ONE)
def test_server_1_takes_no_part_in_what_its_operator_would_not_configure(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["error"].startswith("InvalidParameters: the round offered to server 1 is refused")
    assert TO_SERVER_ONE[name] in outcomes[name]["log"]
    assert counts(outcomes[name]) == []


@pytest.mark.parametrize("name", TOLD_OTHERWISE)
def test_whoever_is_told_something_else_than_the_servers_agreed_on_leaves_the_round(
    outcomes: dict[str, Any], name: str
) -> None:
    assert outcomes[name]["error"] is None
    assert counts(outcomes[name]) == [(8, 6)]
    assert outcomes[name]["log"].count(TOLD_OTHERWISE[name]) == 2


def test_updates_of_different_models_are_in_no_sum(outcomes: dict[str, Any]) -> None:
    assert outcomes["two_other_models"]["error"] is None
    assert counts(outcomes["two_other_models"]) == [(8, 4)]
