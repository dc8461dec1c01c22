"""Rounds in Flower's simulation: the same model as with plain strategies, with dropouts at every stage."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.harness.flower_federation import counts

pytestmark = pytest.mark.flower

STAGES = ("advertise keys", "share keys", "masked input", "unmasking")
LEFT = "secagg: this client left the round; code: "
DROPPED = {
    "drop_training": [(8, 8), (8, 8), (8, 6), (6, 6)],
    "fail_training": [(8, 8), (8, 8), (8, 8), (8, 8)],
    "refuse_training": [(8, 8), (8, 8), (8, 8), (8, 8)],
}
"""In a deployed federation, nodes are killed at every stage."""


SCENARIOS = [
    *(
        "twin",
        "failing_rounds",
        *DROPPED,
        "active:drop_survivors",
        "too_many_gone",
        "restarted",
        "rolled_back",
        "averaging",
    ),
    *("private", "not_averaging", "hybrid", "clipped", "silent", "pruning", "one_holder_killed"),
    *("sparse", "active:sparse", "sparse_threshold"),
]
"""A full graph of eight clients tolerates two dropouts."""


def agrees(outcome: dict[str, Any], rounds: int = 1) -> None:
    """Compare with the weighted mean: steps of 2^-16 for floats, half-precision numbers, and integers exactly."""
    assert outcome["error"] is None
    difference = outcome["difference"]
    assert difference["layer"] < rounds * 2**-15
    assert difference["bias"] < rounds * 2**-15
    assert difference["narrow"] < rounds * 2**-9
    assert difference["steps"] == difference["empty"] == 0
    assert all(record["loss"] == pytest.approx(outcome["loss"], abs=1e-6) for record in outcome["metrics"].values())


def test_a_run_agrees_with_plain_federated_averaging_within_the_error_of_quantization(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["twin"]
    agrees(outcome, rounds=2)
    assert outcome["twin"]["layer"] < 2**-14
    assert outcome["twin"]["bias"] < 2**-14
    assert outcome["twin"]["narrow"] < 2**-8
    assert outcome["twin_loss"] == pytest.approx(outcome["loss"], abs=1e-6)


def test_nothing_but_messages_of_the_protocol_leaves_a_client(outcomes: dict[str, Any]) -> None:
    assert outcomes["twin"]["names"] == ["secagg"]
    assert set(outcomes["twin"]["metrics"]["1"]) == {"loss", "secagg-trained", "secagg-failed"}


def test_rounds_and_trainings_that_fail_are_in_the_result_and_nothing_else_changes(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["failing_rounds"]
    assert [set(outcome["metrics"][number]) for number in "123"] == [
        {"loss", "secagg-trained", "secagg-failed"},
        {"secagg-skipped"},
        {"loss", "secagg-trained", "secagg-failed"},
    ]
    assert outcome["metrics"]["3"]["secagg-failed"] == 2
    # The model of rounds 1 and 3, and of another phase, with its counter.
    assert outcome["difference"] < 2**-14
    assert outcome["steps"] == ["int64", 0]
    assert outcome["error"].startswith("training failed at too many clients: of 8 uploads 0 trained")


@pytest.mark.parametrize("name", ["fail_training", "refuse_training"])
def test_that_training_failed_is_not_told(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["errors"] == []


@pytest.mark.parametrize("name", ["twin", "fail_training", "refuse_training"])
def test_no_state_is_left_after_a_round(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["state_left"] == 0
    assert outcomes["twin"]["keys_left"] == 0


def test_pruning_moves_the_coordinates_that_the_seed_says_and_moves_them_rightly(outcomes: dict[str, Any]) -> None:
    assert outcomes["pruning"]["error"] is None
    assert outcomes["pruning"]["moved"] == pytest.approx(0.25, abs=0.01)
    assert outcomes["pruning"]["off"] < 2**-15


def test_each_stage_is_logged_once_with_what_it_carried(outcomes: dict[str, Any]) -> None:
    first, *_ = re.findall("^INFO round [0-9]+,", outcomes["twin"]["log"], re.MULTILINE)
    log = [line for line in outcomes["twin"]["log"].splitlines() if line.startswith(first)]
    assert [line.partition(", ")[2].partition(":")[0] for line in log] == [*STAGES, "sum"]
    assert all("sent 8 (" in line and "received 8 (" in line and "dropped 0" in line for line in log[:4])


@pytest.mark.parametrize("name", DROPPED)
def test_a_round_stands_dropouts_in_training(outcomes: dict[str, Any], name: str) -> None:
    agrees(outcomes[name])
    assert counts(outcomes[name]) == DROPPED[name]


def test_a_round_in_active_mode_stands_dropouts_of_survivors(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["active:drop_survivors"]
    agrees(outcome)
    assert counts(outcome) == [(8, 8), (8, 8), (8, 8), (8, 6), (6, 6)]
    assert [stage["name"] for stage in outcome["stages"]] == [*STAGES[:3], "consistency check", STAGES[3]]


def test_the_hybrid_suite_stands_dropouts_too(outcomes: dict[str, Any]) -> None:
    agrees(outcomes["hybrid"])
    assert counts(outcomes["hybrid"]) == [(8, 8), (8, 8), (8, 7), (7, 6)]


@pytest.mark.parametrize("name", ["sparse", "active:sparse"])
def test_a_sparse_graph_gives_the_same_sum(outcomes: dict[str, Any], name: str) -> None:
    agrees(outcomes[name], rounds=2)
    assert counts(outcomes[name])[1:3] == [(24, 24), (24, 23)]


def test_a_sparse_graph_keeps_the_threshold_that_was_configured(outcomes: dict[str, Any]) -> None:
    assert outcomes["sparse_threshold"]["error"] == (
        "ThresholdNotMet: not enough clients: 23 must upload, 22 did (secagg-threshold)"
    )


def test_a_client_that_is_silent_costs_patience_and_not_the_timeout(outcomes: dict[str, Any]) -> None:
    agrees(outcomes["silent"])
    assert counts(outcomes["silent"])[1] == (8, 7)
    assert outcomes["silent"]["seconds"] < 300


def test_a_round_that_loses_too_many_ends_the_run_loudly(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["too_many_gone"]
    assert outcome["error"] == "ThresholdNotMet: not enough clients: 6 must upload, 5 did"
    assert "ERROR round" in outcome["log"]
    assert "the server learned nothing" in outcome["log"]


def test_a_client_that_restarted_leaves_the_round_and_takes_part_in_the_next(outcomes: dict[str, Any]) -> None:
    agrees(outcomes["restarted"])
    assert counts(outcomes["restarted"]) == [(8, 8), (8, 7), (7, 6), (6, 6)]
    assert outcomes["restarted"]["errors"] == [f"{LEFT}left"]
    assert "there is no session to resume" in outcomes["restarted"]["log"]
    agrees(outcomes["restarted"]["again"])


def test_a_state_that_comes_back_is_not_gone_on_from(outcomes: dict[str, Any]) -> None:
    agrees(outcomes["rolled_back"])
    assert counts(outcomes["rolled_back"]) == [(8, 8), (8, 8), (8, 7), (7, 6)]
    assert "state is not the newest of its session" in outcomes["rolled_back"]["log"]


@pytest.mark.parametrize(
    ("name", "bound"),
    # Random rounding has a deviation of about 5e-6 in one round's mean. Momentum of 0.9 adds the first round's
    # error 1.9 times to the second's, so its deviation is sqrt(1.9^2 + 1) times as large.
    [("FedProx", 3e-5), ("FedAvgM", 6.5e-5), ("FedAdam", 5e-3), ("FedYogi", 5e-3), ("FedAdagrad", 5e-3)],
)
def test_strategies_that_average_agree_with_themselves(outcomes: dict[str, Any], name: str, bound: float) -> None:
    assert outcomes["averaging"][name] < bound


def test_a_strategy_that_clips_on_the_clients_is_given_the_mean_to_add_noise_to(outcomes: dict[str, Any]) -> None:
    assert outcomes["private"]["error"] is None
    assert outcomes["private"]["difference"]["layer"] < 2**-15


@pytest.mark.parametrize(
    "name",
    [
        "Krum",
        "MultiKrum",
        "Bulyan",
        "FedMedian",
        "FedTrimmedAvg",
        "QFedAvg",
        "DifferentialPrivacyServerSideFixedClipping",
    ],
)
def test_strategies_that_need_single_updates_are_refused_by_name(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes["not_averaging"][name].startswith(f"InvalidParameters: {name} cannot work under secure aggregation")


def test_a_client_logs_what_was_cut_off_and_the_server_does_not_learn_it(outcomes: dict[str, Any]) -> None:
    (line,) = [line for line in outcomes["clipped"]["log"].splitlines() if "were clipped" in line]
    assert re.match("WARNING [0-9.e-]+ % of this update's values exceeded their range and were clipped", line)


def test_one_message_by_holders_of_which_one_is_killed(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["one_holder_killed"]
    agrees(outcome, rounds=2)
    assert [stage["name"] for stage in outcome["stages"]] == ["upload"]
    assert "holder/1 at " in outcome["log"]
