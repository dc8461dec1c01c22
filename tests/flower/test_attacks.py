"""Attacks that succeed on Flower's SecAgg+, tried on this plug-in in a real simulation: each fails with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.flower_federation import counts

pytestmark = pytest.mark.flower

LEFT = "secagg: this client left the round; code: "
SCENARIOS = [
    *("second_request", "active:second_request", "active:substituted_keys", "substituted_keys"),
    *("active:two_stories", "two_stories", "low_cohort", "active:low_threshold", "low_ring", "large_population"),
    *("other_graph", "other_models", "same_round_again", "wrong_share", "active:wrong_share"),
    *("narrow_ring", "light", "nan", "server_side"),
    *("other_terms", "other_field", "other_task", "other_round", "other_layout"),
    *("two_models", "unreadable_model", "other_authority"),
]


@pytest.mark.parametrize("mode", ["", "active:"])
def test_2_a_second_request_for_shares_is_answered_by_nobody(outcomes: dict[str, Any], mode: str) -> None:
    outcome = outcomes[f"{mode}second_request"]
    assert outcome["left"] == 8
    assert outcome["answers"] == 8 * len(outcome["stages"])
    assert "there is no session to resume" in outcome["log"]


def test_2_two_stories_about_who_dropped_out_get_no_quorum_in_active_mode(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["active:two_stories"]
    assert outcome["error"].startswith("ThresholdNotMet: not enough clients: 5 must sign")
    assert [stage["name"] for stage in outcome["stages"]][-1] == "consistency check"
    assert "authentication failed" in outcome["log"]


@pytest.mark.parametrize("mode", ["", "active:"])
def test_3_keys_of_the_servers_own_are_noticed(outcomes: dict[str, Any], mode: str) -> None:
    outcome = outcomes[f"{mode}substituted_keys"]
    assert counts(outcome)[1] == (8, 6)
    assert "do not match the roster's root" in outcome["log"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("low_cohort", "a cohort of 2 is below 3"),
        ("active:low_threshold", "parameters that do not protect this client"),
        ("low_ring", "the offer's layout differs from this client"),
        ("large_population", "20000 clients exceed the decoder's capacity"),
    ],
)
def test_5_parameters_below_a_clients_policy_are_refused(outcomes: dict[str, Any], name: str, reason: str) -> None:
    outcome = outcomes[name]
    assert outcome["error"].startswith("ThresholdNotMet")
    assert outcome["left"] == 8
    assert outcome["errors"] == [f"{LEFT}terms"]
    assert reason in outcome["log"]


def test_6_a_graph_that_the_server_chose_afterwards_is_refused(outcomes: dict[str, Any]) -> None:
    assert counts(outcomes["other_graph"]) == [(8, 8), (8, 0)] or outcomes["other_graph"]["left"] == 8
    assert "the graph seed does not match the offer's commitment" in outcomes["other_graph"]["log"]


def test_7_names_of_records_are_all_that_a_server_sees_beside_the_protocol(outcomes: dict[str, Any]) -> None:
    assert outcomes["wrong_share"]["names"] == ["secagg"]


@pytest.mark.parametrize("mode", ["", "active:"])
def test_11_a_wrong_share_changes_no_sum_and_is_blamed_on_its_holder(outcomes: dict[str, Any], mode: str) -> None:
    outcome = outcomes[f"{mode}wrong_share"]
    assert outcome["error"] is None
    assert outcome["difference"]["layer"] < 2**-15
    # Surplus shares are ignored; in active mode the order of the clients is known.
    assert not mode or "client/3" in outcome["log"].partition("to blame: ")[2]


def test_15_a_sum_that_could_leave_its_ring_is_refused_before_it_begins(outcomes: dict[str, Any]) -> None:
    assert "a ring of 16 bits is too narrow" in outcomes["narrow_ring"]["error"]


def test_17_precision_does_not_depend_on_the_weight(outcomes: dict[str, Any]) -> None:
    # A step of the sum is 2**-16 of a client's update at full weight; random rounding errs by less than one.
    assert outcomes["light"]["256"] < 4 * 2**-16
    assert outcomes["light"]["1024"] < 2**-16


def test_18_a_nan_counts_as_no_change_and_its_client_stays(outcomes: dict[str, Any]) -> None:
    assert outcomes["nan"]["error"] is None
    assert outcomes["nan"]["difference"]["layer"] < 2**-15


def test_different_models_for_different_clients_are_noticed(outcomes: dict[str, Any]) -> None:
    assert outcomes["other_models"]["error"].startswith("ThresholdNotMet")
    assert "model_digest differs from this client" in outcomes["other_models"]["log"]


def test_a_round_is_not_repeated_for_a_second_sum(outcomes: dict[str, Any]) -> None:
    assert outcomes["same_round_again"]["again"] == 0


def test_two_stories_give_no_wrong_sum_in_semi_honest_mode(outcomes: dict[str, Any]) -> None:
    """Depending on the graph, the other half of the clients may reveal enough shares; then the sum is correct."""
    outcome = outcomes["two_stories"]
    if outcome["error"] is None:
        assert outcome["difference"]["layer"] < 2**-15
    else:
        assert outcome["error"].startswith("PeerMisbehaved")


@pytest.mark.parametrize(
    ("name", "stage", "reason", "code"),
    [
        ("other_terms", 0, "application_digest (capacity, noise, terms) differs from this client", "terms"),
        ("other_field", 0, "the secagg record lacks 'terms'", "left"),
        ("other_task", 0, " again', but this run is ", "terms"),
        ("other_round", 0, "round_number differs from this client", "terms"),
        ("other_layout", 0, "layout differs from this client", "terms"),
        ("two_models", 2, "the message has 2 array records", "terms"),
        ("unreadable_model", 2, "a message could not be read", "left"),
    ],
)
def test_whoever_is_told_something_else_than_the_offer_says_leaves_the_round(
    outcomes: dict[str, Any], name: str, stage: int, reason: str, code: str
) -> None:
    assert outcomes[name]["error"] is None
    assert counts(outcomes[name])[stage] == (8, 6)
    assert outcomes[name]["log"].count(reason) == 2
    assert outcomes[name]["errors"] == [LEFT + code]


def test_a_roster_of_the_servers_own_authority_is_refused(outcomes: dict[str, Any]) -> None:
    assert outcomes["other_authority"]["error"].startswith("ThresholdNotMet")
    assert counts(outcomes["other_authority"]) == [(8, 0)]
    assert "an authority that this client does not trust" in outcomes["other_authority"]["log"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pushed", "Misuse: push summed values with send_and_receive"),
        ("pushed_otherwise", "Misuse: push summed values with send_and_receive"),
        ("mixed", "Misuse: messages of several types at once"),
        ("different_models", "InvalidParameters: the strategy sends different models"),
        ("two_records", "InvalidParameters: a training message must have one array record"),
    ],
)
def test_a_grid_is_not_used_so_that_single_updates_would_show(outcomes: dict[str, Any], name: str, said: str) -> None:
    assert outcomes["server_side"][name].startswith(said)
