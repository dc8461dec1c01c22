"""Every key is checked by name; a client's floors are raised and never lowered."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import InvalidParameters
from secagg.platforms.floors import NodeSettings
from secagg.platforms.pairwise_plug import floors_of
from secagg.platforms.plugs import plug_of
from secagg.platforms.settings import SecAggSettings

NODE = NodeSettings(
    maximum_population=100,
    maximum_weight=100,
    allow_simulated_enclave=True,
    allow_simulated_second_server=True,
)


def test_a_protocol_that_nodes_cannot_run_is_refused_by_servers_and_by_clients_with_the_reason() -> None:
    """Both come here before anything is sent or answered; its own simulation would lose each client it suspends."""
    with pytest.raises(InvalidParameters, match=r"no plug for Flower: its clients resume from memory.*take 'pairwise'"):
        plug_of("coded-mask")
    assert "coded-mask" not in NODE.protocols


def test_keys_of_the_app_itself_are_left_alone() -> None:
    settings = SecAggSettings.from_run_config({"num-server-rounds": 3, "secagg-clip": 2, "secagg-metrics": "a, b"})
    assert (settings.clip, settings.metric_names) == (2.0, ("a", "b"))


def test_the_example_lists_the_defaults(repository: Path) -> None:
    project = tomllib.loads((repository / "examples/flower_quickstart/pyproject.toml").read_text(encoding="utf-8"))
    config = {**project["tool"]["flwr"]["app"]["config"], "secagg-metrics": ""}
    assert SecAggSettings.from_run_config(config) == SecAggSettings()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("secagg-protocol", "two-server", "secagg-protocol is one of pairwise, enclave, two-servers"),
        ("secagg-protocol", "two-servers", "secagg-roster names the roster file"),
        ("secagg-protocol", "enclave", "secagg-roster names the roster file"),
        ("secagg-protocol", "one-message", "secagg-roster names the roster file"),
        ("secagg-epoch", "record", "secagg-epoch belongs to secagg-protocol = 'one-message'"),
        ("secagg-holders", "a,b", "secagg-holders belongs to secagg-protocol = 'one-message'"),
        ("secagg-mode", "secure", "secagg-mode is one of semi_honest, active"),
        ("secagg-topology", "ring", "secagg-topology is one of full, sparse"),
        ("secagg-suite", "rsa", "secagg-suite is one of"),
        ("secagg-weighting", "loss", "secagg-weighting is one of"),
        ("secagg-threshold", 1.5, "secagg-threshold is a part of the clients"),
        ("secagg-threshold", "most", "secagg-threshold is a number"),
        ("secagg-minimum-cohort", 1, "secagg-minimum-cohort is 0 or at least 2"),
        ("secagg-corrupted", -1, "secagg-corrupted is not negative"),
        ("secagg-corrupted", True, "secagg-corrupted is an integer"),
        ("secagg-privacy-bits", 39, "secagg-privacy-bits is 0 or at least 40"),
        ("secagg-privacy-bits", 60, "secagg-privacy-bits is for secagg-topology = 'sparse'"),
        ("secagg-compression", "zip", "secagg-compression is fixed-point, scalar-2"),
        ("secagg-compression", "scalar-17", "secagg-compression"),
        ("secagg-compression", "scalar-1", "secagg-compression"),
        ("secagg-compression", "pruning-1.0", "secagg-compression"),
        ("secagg-compression", "pq-64", "secagg-compression"),
        ("secagg-compression", "pq", "change secagg-protocol to 'enclave' or 'two-servers', or this to fixed-point"),
        ("secagg-modulus-bits", 65, "secagg-modulus-bits is 0 or lies in"),
        ("secagg-fraction-bits", 0, "secagg-fraction-bits lies in 1..40"),
        ("secagg-clip", 0.0, "secagg-clip is a positive number"),
        ("secagg-clip", float("nan"), "secagg-clip is a positive number"),
        ("secagg-metric-bound", float("inf"), "secagg-metric-bound"),
        ("secagg-maximum-weight", 0, "secagg-maximum-weight"),
        ("secagg-weight-unit", 0, "secagg-weight-unit"),
        ("secagg-metrics", "loss,loss", "secagg-metrics names something twice"),
        ("secagg-stage-timeout", 0.0, "secagg-stage-timeout"),
        ("secagg-mode", "active", "secagg-roster names the roster file"),
        ("secagg-treshold", 0.5, "did you mean secagg-threshold"),
        ("secagg-0123456789", 0.5, "there are secagg-protocol"),
        ("secagg-foo", 0.5, "secagg-foo is not a setting of secure aggregation; there are secagg-protocol"),
        ("secagg-banana", 0.5, "secagg-banana is not a setting of secure aggregation; there are secagg-protocol"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_name_of_its_key(key: str, value: object, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        SecAggSettings.from_run_config({key: value})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("secagg-mode", "active", "secagg-mode belongs to secagg-protocol = 'pairwise'"),
        ("secagg-topology", "sparse", "secagg-topology belongs to secagg-protocol = 'pairwise'"),
        ("secagg-privacy-bits", 60, "secagg-privacy-bits belongs to secagg-protocol = 'pairwise'"),
        ("secagg-corrupted", 3, "secagg-corrupted belongs to secagg-protocol = 'pairwise' or 'one-message'"),
    ],
)
def test_what_only_pairwise_masks_have_is_refused_beside_an_enclave(key: str, value: object, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        SecAggSettings.from_run_config({"secagg-protocol": "enclave", "secagg-roster": "roster.json", key: value})


TWO = {"secagg-protocol": "two-servers", "secagg-roster": "roster.json", "secagg-weighting": "uniform"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"secagg-weighting": "examples"}, "secagg-weighting is 'uniform' with two servers"),
        ({"secagg-mode": "active"}, "secagg-mode belongs to secagg-protocol = 'pairwise'"),
        ({"secagg-enclave-socket": "s"}, "secagg-enclave-socket belongs to secagg-protocol = 'enclave'"),
        ({"secagg-second-server": "s"}, "secagg-servers names a file with secagg-second-server"),
        ({"secagg-second-server": "s", "secagg-servers": "f"}, "secagg-server-keys names a file with"),
        ({"secagg-server-keys": "f"}, "secagg-server-keys names a file with secagg-second-server, and is left out"),
    ],
)
def test_a_wrong_setting_of_two_servers_is_refused_by_the_name_of_its_key(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        SecAggSettings.from_run_config({**TWO, **changed})


def test_one_message_needs_a_record_and_sums_no_indices() -> None:
    given = {"secagg-protocol": "one-message", "secagg-roster": "roster.json"}
    with pytest.raises(InvalidParameters, match="secagg-epoch names the record of who holds"):
        SecAggSettings.from_run_config(given)
    with pytest.raises(InvalidParameters, match="and one-message sums vectors alone"):
        SecAggSettings.from_run_config({**given, "secagg-epoch": "record", "secagg-compression": "pq"})
    settings = SecAggSettings.from_run_config({**given, "secagg-epoch": "record", "secagg-holders": "a.sock, b.sock"})
    assert settings.holder_sockets == ("a.sock", "b.sock")
    assert settings.is_certified


def test_two_servers_take_codewords_and_half_of_the_clients() -> None:
    settings = SecAggSettings.from_run_config({**TWO, "secagg-compression": "pq"})
    assert settings.codebook == (64, 8)
    assert settings.tolerated_dropouts(9) == 4


@pytest.mark.parametrize("key", ["secagg-second-server", "secagg-servers", "secagg-server-keys"])
def test_what_only_two_servers_have_is_refused_beside_others(key: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{key} belongs to secagg-protocol = 'two-servers'"):
        SecAggSettings.from_run_config({key: "a file"})


def test_a_compression_is_read_with_its_numbers() -> None:
    assert SecAggSettings(compression="scalar-8").scalar_bits == 8
    assert SecAggSettings(compression="pruning-0.95").sparsity == "0.95"
    enclave = {"protocol": "enclave", "roster": "roster.json"}
    assert SecAggSettings(compression="pq", **enclave).codebook == (64, 8)  # type: ignore[arg-type]
    assert SecAggSettings(compression="pq-256x4", **enclave).codebook == (256, 4)  # type: ignore[arg-type]
    assert SecAggSettings().codebook is None


def test_an_enclave_needs_half_of_the_clients_unless_told_otherwise() -> None:
    enclave: dict[str, Any] = {"protocol": "enclave", "roster": "roster.json"}
    assert SecAggSettings(**enclave).tolerated_dropouts(9) == 4
    assert SecAggSettings(**enclave, threshold=0.9).tolerated_dropouts(10) == 1


@pytest.mark.parametrize(("invited", "most"), [(3, 0), (4, 0), (5, 1), (8, 2), (10, 3), (20, 8), (100, 48)])
def test_a_full_graph_stands_as_many_dropouts_as_leave_the_shares_together(invited: int, most: int) -> None:
    assert SecAggSettings().tolerated_dropouts(invited) == most


def test_a_threshold_that_the_graph_cannot_keep_is_refused_with_one_that_it_can() -> None:
    with pytest.raises(InvalidParameters, match=r"raise it to 0.7$"):
        SecAggSettings(threshold=0.5).tolerated_dropouts(10)
    assert SecAggSettings(threshold=0.7).tolerated_dropouts(10) == 3
    assert SecAggSettings(threshold=1.0).tolerated_dropouts(10) == 0


@pytest.mark.parametrize("protocol", ["pairwise", "enclave"])
def test_two_clients_are_no_session(protocol: str) -> None:
    with pytest.raises(InvalidParameters, match="each knows the other's update"):
        SecAggSettings(protocol=protocol, roster="roster.json").tolerated_dropouts(2)


def test_metrics_are_named_by_a_string_or_by_a_tuple() -> None:
    assert SecAggSettings(metrics=("loss",)) == SecAggSettings(metrics=" loss,")
    assert SecAggSettings(metrics=("loss", "accuracy")).metric_names == ("loss", "accuracy")


@pytest.mark.parametrize(
    ("key", "value", "name", "kept", "raised"),
    [
        ("secagg-minimum-cohort", 10, "minimum_cohort", 2, 10),
        ("secagg-minimum-threshold", 5, "minimum_threshold", 1, 5),
        ("secagg-minimum-modulus-bits", 16, "minimum_modulus_bits", 1, 16),
        ("secagg-assumed-corrupted", 4, "assumed_corrupted", 0, 4),
        ("secagg-privacy-bits", 60, "privacy_bits", 10, 60),
        ("secagg-minimum-holders", 5, "minimum_holders", 3, 5),
        ("secagg-assumed-corrupted-holders", 2, "assumed_corrupted_holders", 0, 2),
        ("secagg-maximum-population", 50, "maximum_population", 1000, 50),
        ("secagg-maximum-weight", 1, "maximum_weight", 1000, 1),
        ("secagg-required", True, "required", False, True),
        ("secagg-allow-simulated-enclave", False, "allow_simulated_enclave", True, False),
        ("secagg-allow-simulated-second-server", False, "allow_simulated_second_server", True, False),
    ],
)
def test_an_operator_raises_a_floor_and_lowers_none(key: str, value: int, name: str, kept: int, raised: int) -> None:
    assert getattr(NODE.raised_by({key: value}), name) == raised
    assert NODE.raised_by({key: kept}) == NODE


def test_an_operator_narrows_modes_and_adds_none() -> None:
    assert NODE.raised_by({"secagg-modes": "active"}).modes == ("active",)
    assert NODE.raised_by({"secagg-modes": "active,none"}).modes == ("active",)
    with pytest.raises(InvalidParameters):
        floors_of(NODE.raised_by({"secagg-modes": "none"}))


def test_an_operator_cannot_allow_what_the_app_does_not() -> None:
    strict = replace(NODE, allow_simulated_enclave=False)
    assert not strict.raised_by({"secagg-allow-simulated-enclave": True}).allow_simulated_enclave


def test_an_operator_names_the_two_servers() -> None:
    assert NODE.raised_by({"secagg-servers": "/etc/secagg/servers.json"}).servers == "/etc/secagg/servers.json"


def test_an_operator_names_the_protocols() -> None:
    narrowed = replace(NODE, maximum_population=10_000).raised_by({"secagg-protocols": "enclave"})
    narrowed.require_protocol("enclave")
    with pytest.raises(InvalidParameters, match="accepts enclave"):
        narrowed.require_protocol("pairwise")


@pytest.mark.parametrize("config", [{"secagg-minimum-cohort": "10"}, {"secagg-cohort": 3}, {"secagg-identity": 3}])
def test_a_node_key_that_is_none_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters, match="is not a floor"):
        NODE.raised_by({"partition-id": 1, **config})
