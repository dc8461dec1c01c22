"""Every key is checked by name; a client's policy can be tightened, never loosened."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import InvalidParameters
from secagg.options import declared
from secagg.parameters import SecurityMode
from secagg.platforms.client_node import ClientNode
from secagg.platforms.plugs import plug_of
from secagg.platforms.settings import SecAggSettings
from secagg.quick.model_session import planned
from secagg.session.client_policy import ClientPolicy, usual_dropped
from secagg.session.registry import find, planned_settings

NODE = ClientNode.of(
    {"maximum_population": 100, "allow_simulated_enclave": True, "allow_simulated_second_server": True}
)


def test_a_protocol_that_nodes_cannot_run_is_refused_by_servers_and_by_clients_with_the_reason() -> None:
    """Both are checked before anything is sent or answered; its simulation would lose each suspended client."""
    with pytest.raises(
        InvalidParameters, match=r"cannot run on Flower: its clients resume from memory.*use 'pairwise'"
    ):
        plug_of("lightsecagg")
    assert "lightsecagg" not in NODE.protocols


def test_keys_of_the_app_itself_are_left_alone() -> None:
    settings = SecAggSettings.from_run_config({"num-server-rounds": 3, "secagg-clip": 2, "secagg-metrics": "a, b"})
    assert (settings.clip, settings.metric_names) == (2.0, ("a", "b"))


def test_the_example_lists_the_defaults(repository: Path) -> None:
    project = tomllib.loads((repository / "examples/flower_quickstart/pyproject.toml").read_text(encoding="utf-8"))
    config = {**project["tool"]["flwr"]["app"]["config"], "secagg-metrics": "", "secagg-full-weight": 1024}
    assert SecAggSettings.from_run_config(config) == SecAggSettings()


def test_the_example_names_every_setting_since_flower_refuses_others(repository: Path) -> None:
    """`flwr run -c` accepts only keys of the app's configuration: "Invalid run configuration"."""
    text = (repository / "examples/flower_quickstart/pyproject.toml").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:# )?secagg-([a-z-]+) =", text, re.MULTILINE))
    assert named == {name.replace("_", "-") for name in declared(SecAggSettings)}


ROSTER: dict[str, Any] = {"roster": "roster.txt"}
ENCLAVE: dict[str, Any] = {"protocol": "enclave", **ROSTER}
TWO: dict[str, Any] = {"protocol": "two-servers", "weighting": "uniform", **ROSTER}
ONE: dict[str, Any] = {"protocol": "one-message", **ROSTER}
NOISE: dict[str, Any] = {"weighting": "uniform", "noise": 2.0, "norm": 0.5}
AUTO: dict[str, Any] = {
    **ENCLAVE,
    "weighting": "uniform",
    "compression": "peak",
    "rate": "auto",
    "evaluation_metrics": "loss",
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"protocol": "two-server"}, "secagg-protocol must be one of pairwise, enclave, two-servers"),
        ({"protocol": "two-servers"}, "secagg-roster is required"),
        ({"protocol": "enclave"}, "secagg-roster is required"),
        ({"protocol": "one-message"}, "secagg-roster is required"),
        ({"epoch": "record"}, "secagg-epoch only applies with secagg-protocol = 'one-message'"),
        ({"holders": "a,b"}, "secagg-holders only applies with secagg-protocol = 'one-message'"),
        ({"mode": "secure"}, "secagg-mode must be one of semi_honest, active"),
        ({"topology": "ring"}, "secagg-topology must be one of full, sparse"),
        ({"suite": "rsa"}, "secagg-suite must be one of"),
        ({"weighting": "loss"}, "secagg-weighting must be one of"),
        ({"threshold": 1.5}, "secagg-threshold must be a number between 0 and 1"),
        ({"threshold": "most"}, "secagg-threshold must be a number"),
        ({"minimum_cohort": 1}, "secagg-minimum-cohort must be 0 or an integer of at least 2"),
        ({"corrupted": -1}, "secagg-corrupted must be an integer of at least 0"),
        ({"corrupted": True}, "secagg-corrupted must be an integer"),
        ({"privacy_bits": 39}, "secagg-privacy-bits must be 0 or an integer of at least 40"),
        ({"privacy_bits": 60, "topology": "full"}, "secagg-privacy-bits only applies to sparse graphs"),
        ({"compression": "zip"}, "secagg-compression must be fixed-point, scalar-N"),
        ({"compression": "scalar-17"}, "secagg-compression"),
        ({"compression": "scalar-1"}, "secagg-compression"),
        ({"compression": "pruning-1.0"}, "secagg-compression"),
        ({"compression": "pq-64"}, "secagg-compression"),
        ({"compression": "pq"}, "change secagg-protocol to 'enclave' or 'two-servers', or use fixed-point"),
        ({"modulus_bits": 65}, "secagg-modulus-bits must be 0 or an integer between 8 and 64"),
        ({"fraction_bits": -1}, "secagg-fraction-bits must be"),
        ({"clip": 0.0}, "secagg-clip must be a number above 0"),
        ({"clip": float("nan")}, "secagg-clip must be a number above 0"),
        ({"metric_bound": float("inf")}, "secagg-metric-bound"),
        ({"full_weight": 1}, "secagg-full-weight"),
        ({"minimum_trained": 0}, "secagg-minimum-trained"),
        ({"metrics": "loss,loss"}, "secagg-metrics names something twice"),
        ({"stage_timeout": 0.0}, "secagg-stage-timeout"),
        ({"mode": "active"}, "secagg-roster is required"),
        ({**ENCLAVE, "mode": "active"}, "secagg-mode only applies with secagg-protocol = 'pairwise'"),
        ({**ENCLAVE, "topology": "sparse"}, "secagg-topology only applies with secagg-protocol = 'pairwise'"),
        ({**ENCLAVE, "privacy_bits": 60}, "secagg-privacy-bits only applies with secagg-protocol = 'pairwise'"),
        (
            {**ENCLAVE, "corrupted": 3},
            "secagg-corrupted only applies with secagg-protocol = 'pairwise' or 'one-message'",
        ),
        ({**TWO, "weighting": "examples", "compression": "pq"}, "set secagg-weighting = 'uniform'"),
        ({**NOISE, "minimum_trained": 2}, "secagg-minimum-trained must be 1 with noise"),
        ({**TWO, "mode": "active"}, "secagg-mode only applies with secagg-protocol = 'pairwise'"),
        ({**TWO, "enclave_socket": "s"}, "secagg-enclave-socket only applies with secagg-protocol = 'enclave'"),
        ({**TWO, "second_server": "s"}, "secagg-servers must be set together with secagg-second-server"),
        ({**TWO, "second_server": "s", "servers": "f"}, "secagg-server-keys must be set together with"),
        ({**TWO, "server_keys": "f"}, "secagg-server-keys must be set together with secagg-second-server; a simulated"),
        ({"second_server": "a file"}, "secagg-second-server only applies with secagg-protocol = 'two-servers'"),
        ({"servers": "a file"}, "secagg-servers only applies with secagg-protocol = 'two-servers'"),
        ({"server_keys": "a file"}, "secagg-server-keys only applies with secagg-protocol = 'two-servers'"),
        (ONE, "secagg-epoch must name the signed record"),
        ({**ONE, "epoch": "record"}, "secagg-holders must list the holders' addresses"),
        ({**ONE, "epoch": "record", "holders": "a,b", "compression": "pq"}, "but one-message only sums vectors"),
        ({"clip": "4"}, "secagg-clip must be a number"),
        ({"full_weight": 1.5}, "secagg-full-weight must be an integer"),
        ({"metrics": (1,)}, "secagg-metrics must be text with commas"),
        (
            {"weighting": "uniform", "full_weight": 7},
            "secagg-full-weight only applies with secagg-weighting = 'examples'",
        ),
        ({"cohort_bits": 2.0}, "secagg-cohort-bits only applies with secagg-compression = 'peak'"),
        ({**NOISE, "norm": 0.0}, "secagg-norm"),
        ({**NOISE, "noise": 0.0}, "secagg-norm"),
        ({**NOISE, "noise": float("nan")}, "secagg-noise must be 0 or a number between"),
        ({**NOISE, "noise": 1e9}, "secagg-noise must be 0 or a number between"),
        ({**NOISE, "weighting": "examples"}, "secagg-weighting"),
        ({**NOISE, "compression": "scalar-8"}, "secagg-compression"),
        ({**NOISE, "compression": "pruning-0.9"}, "secagg-compression"),
        ({**NOISE, "metrics": "loss"}, "secagg-metrics"),
        ({**NOISE, "evaluation_metrics": "loss"}, "secagg-evaluation-metrics"),
        ({**NOISE, "protocol": "enclave", "roster": "r"}, "change either"),
        ({**NOISE, "protocol": "two-servers", "roster": "r"}, "change either"),
        ({**AUTO, "compression": "peak-16"}, "secagg-rate only applies with secagg-compression = 'peak'"),
        ({**AUTO, "evaluation_metrics": ""}, "name it first in secagg-evaluation-metrics"),
        ({**AUTO, "cohort_bits": 3.0}, "secagg-cohort-bits is chosen by"),
        ({**AUTO, "rate": "fixed", "harm": 0.5}, "secagg-harm only applies with secagg-rate = 'auto'"),
        ({**AUTO, "harm": 0.0}, "secagg-harm must be a number above 0"),
        *(({"compression": wrong}, "N up to 2048") for wrong in ("peak-0", "peak-4096", "peak-", "peaks", "peak-1x2")),
        ({"compression": "peak"}, "sends indices"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_name_of_its_key(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        SecAggSettings(**given)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("secagg-treshold", "did you mean secagg-threshold"),
        ("secagg-0123456789", "there are secagg-protocol"),
        ("secagg-banana", "secagg-banana is not a setting of secure aggregation; there are secagg-protocol"),
    ],
)
def test_a_key_that_is_no_setting_is_refused(key: str, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        SecAggSettings.from_run_config({key: 0.5})


def test_one_message_has_holders_with_sockets() -> None:
    settings = SecAggSettings(**ONE, epoch="record", holders="a.sock, b.sock")
    assert settings.holder_sockets == ("a.sock", "b.sock")
    assert settings.is_certified


def test_two_servers_take_codewords_and_lose_a_third_of_a_few_clients() -> None:
    settings = SecAggSettings(**TWO, compression="pq")
    assert settings.codebook == (64, 8)
    assert settings.tolerated_dropouts(9) == 3


def test_a_compression_is_read_with_its_numbers() -> None:
    assert SecAggSettings(compression="scalar-8").scalar_bits == 8
    assert SecAggSettings(compression="pruning-0.95").sparsity == "0.95"
    assert SecAggSettings(compression="pq", weighting="uniform", **ENCLAVE).codebook == (64, 8)
    assert SecAggSettings(compression="pq-256x4", weighting="uniform", **ENCLAVE).codebook == (256, 4)
    assert SecAggSettings().codebook is None


def test_an_enclave_loses_a_third_of_a_few_clients_unless_told_otherwise() -> None:
    assert SecAggSettings(**ENCLAVE).tolerated_dropouts(9) == 3
    assert SecAggSettings(**ENCLAVE, threshold=0.9).tolerated_dropouts(10) == 1


@pytest.mark.parametrize(
    ("invited", "curious", "certified"),
    [(3, 0, 0), (4, 1, 0), (5, 1, 1), (6, 2, 1), (8, 2, 2), (10, 3, 3), (20, 6, 6), (100, 10, 10), (1000, 100, 100)],
)
def test_a_third_of_a_few_clients_may_drop_out_where_privacy_allows_it(
    invited: int, curious: int, certified: int
) -> None:
    assert SecAggSettings().tolerated_dropouts(invited) == curious
    assert SecAggSettings(roster="roster.txt").tolerated_dropouts(invited) == certified


def test_clients_with_certified_keys_do_not_trust_the_server() -> None:
    assert SecAggSettings().trust is SecurityMode.SEMI_HONEST
    assert SecAggSettings(roster="roster.txt").trust is SecurityMode.ACTIVE
    assert SecAggSettings(roster="roster.txt", mode="semi_honest").trust is SecurityMode.SEMI_HONEST


@pytest.mark.parametrize("invited", [3, 5, 8, 20, 200])
@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "two-servers", "one-message", "lightsecagg"])
def test_a_platform_plans_what_the_library_plans(protocol: str, invited: int) -> None:
    """Pairwise masks are compared with clients' keys, as in a simulation."""
    own: dict[str, Any] = {"epoch": "record", "holders": "a.sock"} if protocol == "one-message" else {}
    on_platform = SecAggSettings(protocol=protocol, roster="roster.txt", **own)
    made = planned_settings(find(protocol), on_platform.facts(invited))
    library = planned(find(protocol), invited, settings={})
    for name in ("mode", "suite", "topology", "corrupted", "dropped", "late"):
        assert getattr(made, name, None) == getattr(library, name, None), name
    least = invited - usual_dropped(invited) if made.minimum_cohort is None else made.minimum_cohort
    assert least == library.minimum_cohort


def test_a_setting_of_pairwise_masks_reaches_the_protocol() -> None:
    """A field that ``facts`` leaves out is accepted, and changes nothing."""
    usual = SecAggSettings(roster="roster.txt")
    given: dict[str, Any] = {"mode": "semi_honest", "topology": "full", "privacy_bits": 90}
    own = {
        name for name, rule in declared(SecAggSettings).items() if rule.option.only_with == ("protocol", ("pairwise",))
    }
    assert own == given.keys()
    for name, value in given.items():
        assert replace(usual, **{name: value}).facts(8) != usual.facts(8), name


def test_a_threshold_that_no_graph_can_keep_is_refused_with_one_that_it_can() -> None:
    with pytest.raises(InvalidParameters, match=r"at most 7 may: raise it to 0.3$"):
        SecAggSettings(threshold=0.2).tolerated_dropouts(10)
    assert SecAggSettings(threshold=0.5).tolerated_dropouts(10) == 5
    assert SecAggSettings(threshold=0.7).tolerated_dropouts(10) == 3
    assert SecAggSettings(threshold=1.0).tolerated_dropouts(10) == 0


@pytest.mark.parametrize("protocol", ["pairwise", "enclave"])
def test_two_clients_are_no_session(protocol: str) -> None:
    with pytest.raises(InvalidParameters, match="each learns the other's update"):
        SecAggSettings(protocol=protocol, roster="roster.txt").tolerated_dropouts(2)


def test_metrics_are_named_by_a_string_or_by_a_tuple() -> None:
    assert SecAggSettings(metrics=("loss",)) == SecAggSettings(metrics=" loss,")
    assert SecAggSettings(metrics=("loss", "accuracy")).metric_names == ("loss", "accuracy")


@pytest.mark.parametrize(
    ("key", "value", "name", "kept", "raised"),
    [
        ("secagg-minimum-cohort", 10, "minimum_cohort", 2, 10),
        ("secagg-minimum-threshold", 5, "minimum_threshold", 2, 5),
        ("secagg-minimum-modulus-bits", 16, "minimum_modulus_bits", 1, 16),
        ("secagg-assumed-corrupted", 4, "assumed_corrupted", 0, 4),
        ("secagg-privacy-bits", 60, "privacy_bits", 40, 60),
        ("secagg-minimum-holders", 5, "minimum_holders", 3, 5),
        ("secagg-assumed-corrupted-holders", 2, "assumed_corrupted_holders", 0, 2),
        ("secagg-maximum-population", 50, "maximum_population", 1000, 50),
        ("secagg-required", True, "required", False, True),
        ("secagg-allow-simulated-enclave", False, "allow_simulated_enclave", True, False),
        ("secagg-allow-simulated-second-server", False, "allow_simulated_second_server", True, False),
    ],
)
def test_an_operator_raises_a_floor_and_lowers_none(key: str, value: int, name: str, kept: int, raised: int) -> None:
    changed = NODE.raised_by({key: value})
    assert getattr(changed if hasattr(changed, name) else changed.policy, name) == raised
    assert NODE.raised_by({key: kept}) == NODE


def test_an_operator_narrows_modes_and_adds_none() -> None:
    assert NODE.raised_by({"secagg-modes": "active"}).policy.modes == {SecurityMode.ACTIVE}
    assert NODE.raised_by({"secagg-modes": "active,semi-honest"}).policy == NODE.policy
    with pytest.raises(InvalidParameters, match="modes must be some of semi_honest, active"):
        NODE.raised_by({"secagg-modes": "active,none"})
    with pytest.raises(InvalidParameters, match="at least one SecurityMode"):
        NODE.raised_by({"secagg-modes": "active"}).raised_by({"secagg-modes": "semi_honest"})


@pytest.mark.parametrize("key", ["secagg-minimum-cohort", "secagg-noise", "secagg-attempts", "secagg-epsilon"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "5", None, -1])
def test_nothing_but_a_number_is_one(key: str, value: Any) -> None:
    with pytest.raises(InvalidParameters, match=key.removeprefix("secagg-").replace("-", "_")):
        NODE.raised_by({key: value})


def test_an_operator_cannot_loosen_a_policy_below_what_is_safe() -> None:
    for key, value in (("minimum-cohort", 1), ("privacy-bits", 10), ("minimum-threshold", 1)):
        with pytest.raises(InvalidParameters, match=key.replace("-", "_")):
            NODE.raised_by({f"secagg-{key}": value})


def test_an_operator_cannot_allow_what_the_app_does_not() -> None:
    strict = replace(NODE, allow_simulated_enclave=False)
    assert not strict.raised_by({"secagg-allow-simulated-enclave": True}).allow_simulated_enclave


def test_an_operator_names_the_two_servers() -> None:
    assert NODE.raised_by({"secagg-servers": "/etc/secagg/servers.json"}).servers == "/etc/secagg/servers.json"


def test_an_operator_names_the_protocols() -> None:
    narrowed = replace(NODE, policy=ClientPolicy()).raised_by({"secagg-protocols": "enclave"})
    narrowed.require_protocol("enclave")
    with pytest.raises(InvalidParameters, match="accepts enclave"):
        narrowed.require_protocol("pairwise")


@pytest.mark.parametrize("config", [{"secagg-minimum-cohort": "10"}, {"secagg-cohort": 3}, {"secagg-identity": 3}])
def test_a_node_key_that_is_none_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters, match=r"an option of the node"):
        NODE.raised_by({"partition-id": 1, **config})
