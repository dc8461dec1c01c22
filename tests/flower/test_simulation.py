"""Rounds in Flower's simulation: the same model as plain strategies give, with dropouts at every stage."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.flower

STAGES = ("advertise keys", "share keys", "masked input", "unmasking")
LEFT = "secagg: this client left the round; code: "
DROPPED = {
    "drop_offer": [(8, 6), (6, 6), (6, 6), (6, 6)],
    "drop_advertised": [(8, 8), (8, 6), (6, 6), (6, 6)],
    "drop_training": [(8, 8), (8, 8), (8, 6), (6, 6)],
    "fail_training": [(8, 8), (8, 8), (8, 8), (8, 8)],
    "refuse_training": [(8, 8), (8, 8), (8, 8), (8, 8)],
    "drop_unmasking": [(8, 8), (8, 8), (8, 8), (8, 6)],
}
ACTIVE = {
    "active:drop_advertised": [(8, 8), (8, 6), (6, 6), (6, 6), (6, 6)],
    "active:drop_training": [(8, 8), (8, 8), (8, 6), (6, 6), (6, 6)],
    "active:drop_survivors": [(8, 8), (8, 8), (8, 8), (8, 6), (6, 6)],
    "active:drop_unmasking": [(8, 8), (8, 8), (8, 8), (8, 8), (8, 6)],
}
ONE_MESSAGE = {
    "one_holder_killed": ["upload"],
    "one_committee": ["upload", "deliver", "open"],
}


SCENARIOS = [
    *("twin", "scalar", *DROPPED, "active", *ACTIVE, "too_many_gone", "restarted", "rolled_back", "averaging"),
    *("private", "not_averaging", "hybrid", "even_sizes", "clipped", "silent", "pruning", *ONE_MESSAGE),
]
"""Of eight clients a full graph stands two that drop out."""


def counts(outcome: dict[str, Any]) -> list[tuple[int, int]]:
    return [(stage["sent"], stage["received"]) for stage in outcome["stages"]]


def agrees(outcome: dict[str, Any], rounds: int = 1) -> None:
    """Compare with the weighted mean: steps of 2^-16 for floats, half-precision numbers, and integers exactly."""
    assert outcome["error"] is None
    difference = outcome["difference"]
    assert difference["layer"] < rounds * 2**-15
    assert difference["bias"] < rounds * 2**-15
    assert difference["narrow"] < rounds * 2**-9
    assert difference["steps"] == difference["empty"] == 0
    assert all(record["loss"] == pytest.approx(outcome["loss"], abs=1e-6) for record in outcome["metrics"].values())


def test_a_run_agrees_with_plain_federated_averaging_within_the_error_of_quantization(eight: dict[str, Any]) -> None:
    outcome = eight["twin"]
    agrees(outcome, rounds=2)
    assert outcome["twin"]["layer"] < 2**-14
    assert outcome["twin"]["bias"] < 2**-14
    assert outcome["twin"]["narrow"] < 2**-8
    assert outcome["twin_loss"] == pytest.approx(outcome["loss"], abs=1e-6)


def test_nothing_but_messages_of_the_protocol_leaves_a_client(eight: dict[str, Any]) -> None:
    assert eight["twin"]["names"] == ["secagg"]
    assert set(eight["twin"]["metrics"]["1"]) == {"loss"}


@pytest.mark.parametrize("name", ["fail_training", "refuse_training"])
def test_that_training_failed_is_not_told(eight: dict[str, Any], name: str) -> None:
    assert eight[name]["errors"] == []


@pytest.mark.parametrize("name", ["twin", "fail_training", "refuse_training"])
def test_no_state_is_left_after_a_round(eight: dict[str, Any], name: str) -> None:
    assert eight[name]["state_left"] == 0
    assert eight["twin"]["keys_left"] == 0


def test_pruning_moves_the_coordinates_that_the_seed_says_and_moves_them_rightly(eight: dict[str, Any]) -> None:
    assert eight["pruning"]["error"] is None
    assert eight["pruning"]["moved"] == pytest.approx(0.25, abs=0.01)
    assert eight["pruning"]["off"] < 2**-15


def test_each_stage_is_logged_once_with_what_it_carried(eight: dict[str, Any]) -> None:
    first, *_ = re.findall("^INFO round [0-9]+,", eight["twin"]["log"], re.MULTILINE)
    log = [line for line in eight["twin"]["log"].splitlines() if line.startswith(first)]
    assert [line.partition(", ")[2].partition(":")[0] for line in log] == [*STAGES, "sum"]
    assert all("sent 8 (" in line and "received 8 (" in line and "dropped 0" in line for line in log[:4])


def test_eight_bits_after_the_first_round_come_from_its_mean_and_send_less(eight: dict[str, Any]) -> None:
    outcome = eight["scalar"]
    assert outcome["error"] is None
    assert outcome["difference"]["layer"] < 0.005
    assert outcome["difference"]["steps"] == 0
    assert "the first round travels in fixed point" in outcome["log"]


@pytest.mark.parametrize("name", DROPPED)
def test_a_round_stands_dropouts_at_every_stage(eight: dict[str, Any], name: str) -> None:
    agrees(eight[name])
    assert counts(eight[name]) == DROPPED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_a_round_in_active_mode_stands_dropouts_at_every_stage(eight: dict[str, Any], name: str) -> None:
    agrees(eight[name])
    assert counts(eight[name]) == ACTIVE[name]


def test_active_mode_checks_consistency(eight: dict[str, Any]) -> None:
    agrees(eight["active"])
    assert [stage["name"] for stage in eight["active"]["stages"]] == [*STAGES[:3], "consistency check", STAGES[3]]


def test_the_hybrid_suite_stands_dropouts_too(eight: dict[str, Any]) -> None:
    agrees(eight["hybrid"])
    assert counts(eight["hybrid"]) == [(8, 8), (8, 8), (8, 7), (7, 6)]


@pytest.mark.parametrize("name", ["sparse", "active:sparse"])
def test_a_sparse_graph_gives_the_same_sum(many: dict[str, Any], name: str) -> None:
    agrees(many[name], rounds=2)
    assert counts(many[name])[1:3] == [(24, 24), (24, 23)]


def test_a_sparse_graph_keeps_the_threshold_that_was_configured(many: dict[str, Any]) -> None:
    assert many["sparse_threshold"]["error"] == (
        "ThresholdNotMet: 23 clients (secagg-threshold) are needed and 22 are present"
    )


def test_a_client_that_is_silent_costs_patience_and_not_the_timeout(eight: dict[str, Any]) -> None:
    agrees(eight["silent"])
    assert counts(eight["silent"])[1] == (8, 7)
    assert eight["silent"]["seconds"] < 300


def test_a_round_that_loses_too_many_ends_the_run_loudly(eight: dict[str, Any]) -> None:
    outcome = eight["too_many_gone"]
    assert outcome["error"] == "ThresholdNotMet: 6 contributors are needed and 5 are present"
    assert "ERROR round" in outcome["log"]
    assert "nothing of it was learned" in outcome["log"]


def test_a_client_that_restarted_leaves_the_round_and_takes_part_in_the_next(eight: dict[str, Any]) -> None:
    agrees(eight["restarted"])
    assert counts(eight["restarted"]) == [(8, 8), (8, 7), (7, 6), (6, 6)]
    assert eight["restarted"]["errors"] == [f"{LEFT}left"]
    assert "there is no session to resume" in eight["restarted"]["log"]
    agrees(eight["restarted"]["again"])


def test_a_state_that_comes_back_is_not_gone_on_from(eight: dict[str, Any]) -> None:
    agrees(eight["rolled_back"])
    assert counts(eight["rolled_back"]) == [(8, 8), (8, 8), (8, 7), (7, 6)]
    assert "state is not the newest of its session" in eight["rolled_back"]["log"]


@pytest.mark.parametrize(
    ("name", "bound"),
    [("FedProx", 3e-5), ("FedAvgM", 3e-5), ("FedAdam", 5e-3), ("FedYogi", 5e-3), ("FedAdagrad", 5e-3)],
)
def test_strategies_that_average_agree_with_themselves(eight: dict[str, Any], name: str, bound: float) -> None:
    assert eight["averaging"][name] < bound


def test_a_strategy_that_clips_on_the_clients_is_given_the_mean_to_add_noise_to(eight: dict[str, Any]) -> None:
    assert eight["private"]["error"] is None
    assert eight["private"]["difference"]["layer"] < 2**-15


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
def test_strategies_that_need_single_updates_are_refused_by_name(eight: dict[str, Any], name: str) -> None:
    assert eight["not_averaging"][name].startswith(f"InvalidParameters: {name} cannot work under secure aggregation")


def test_every_number_of_clients_is_a_session(eight: dict[str, Any]) -> None:
    sizes = {key: value for key, value in eight["even_sizes"].items() if key.isdecimal()}
    assert sizes == dict.fromkeys("4567")


def test_what_is_cut_off_is_told_at_both_ends(eight: dict[str, Any]) -> None:
    assert "of this update's values are beyond their range" in eight["clipped"]["log"]
    assert "of the clients' values were out of range and cut off" in eight["clipped"]["log"]


@pytest.mark.parametrize("name", ONE_MESSAGE)
def test_one_message_by_holders_of_which_one_is_killed_and_by_a_committee(eight: dict[str, Any], name: str) -> None:
    agrees(eight[name], rounds=2)
    assert [stage["name"] for stage in eight[name]["stages"]] == ONE_MESSAGE[name]
    assert ("holder/1 at " in eight[name]["log"]) is (name == "one_holder_killed")
