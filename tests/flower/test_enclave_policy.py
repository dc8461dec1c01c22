"""A node's operator pins a file of measurements; without one no enclave is accepted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import InvalidParameters, PeerMisbehaved, SecAggError
from secagg.platforms.client_node import ClientNode
from secagg.platforms.enclave_plug import NodeJudge, load_judge
from secagg.protocols.enclave.attestation import Evidence, EvidenceFormat, PinnedMeasurement, Policy, Verifier
from secagg.protocols.enclave.judge import HardwareJudge
from secagg.protocols.enclave.remote_enclave import SimulatedEvidence

PINS = dict.fromkeys(("PCR0", "PCR1", "PCR2"), "ab" * 48)
SNP = {"MEASUREMENT": "cd" * 48}
NITRO = PinnedMeasurement(EvidenceFormat.NITRO, {name: bytes.fromhex(value) for name, value in PINS.items()})
NODE = ClientNode()


def policy(folder: Path, content: Any) -> Path:
    path = folder / "enclave.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_measurements_of_a_file_are_pinned(tmp_path: Path) -> None:
    judge = load_judge(policy(tmp_path, {"format": "nitro", "accepted": [PINS]}))
    (pinned,) = judge.policy.accepted
    assert isinstance(pinned, PinnedMeasurement)
    assert pinned.registers["PCR2"] == b"\xab" * 48


def test_a_judge_of_hardware_takes_no_simulated_evidence(tmp_path: Path) -> None:
    judge = load_judge(policy(tmp_path, {"format": "nitro", "accepted": [PINS]}))
    with pytest.raises(PeerMisbehaved):
        judge.judge(SimulatedEvidence(bytes(64)), bytes(64), datetime.now(UTC))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"format": "sev-snp", "accepted": [PINS]}, "must pin MEASUREMENT"),
        ({"format": "sev-snp", "accepted": [SNP]}, "needs minimum_snp_tcb"),
        ({"format": "nitro", "accepted": [PINS], "lists_since": "2026-06-01"}, "may also set nothing else"),
        ({"format": "nitrotpm", "accepted": [PINS]}, "not a valid EvidenceFormat"),
        ({"format": "nitro", "accepted": []}, "at least one"),
        ({"format": "nitro", "accepted": [{"PCR0": "ab" * 48}]}, "must pin PCR1, PCR2"),
        ({"format": "nitro", "accepted": [{**PINS, "PCR0": "no"}]}, "not an enclave policy"),
        ({"format": "nitro"}, "not an enclave policy"),
        ([], "not an enclave policy"),
    ],
)
def test_a_file_that_pins_nothing_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        load_judge(policy(tmp_path, content))


def test_a_client_without_a_policy_seals_to_nobody(tmp_path: Path) -> None:
    shown = Evidence(EvidenceFormat.NITRO, b"a document")
    for config, said in (
        ({}, "secagg-enclave-policy"),
        ({"secagg-enclave-policy": str(tmp_path / "absent.json")}, r"absent\.json"),
    ):
        judge = NodeJudge(NODE.raised_by(config), None)
        with pytest.raises(InvalidParameters, match=said):
            judge.judge(shown, bytes(64), datetime.now(UTC))


def test_simulated_evidence_is_accepted_only_where_the_code_says_so() -> None:
    evidence = SimulatedEvidence(bytes(64))
    with pytest.raises(InvalidParameters, match="the server's enclave is simulated"):
        NodeJudge(NODE, HardwareJudge(policy=Policy(accepted=(NITRO,)), verifier=Verifier())).judge(
            evidence, bytes(64), datetime.now(UTC)
        )
    NodeJudge(replace(NODE, allow_simulated_enclave=True), None).judge(evidence, bytes(64), datetime.now(UTC))


def test_the_policy_of_an_operator_takes_the_place_of_the_apps_judge(tmp_path: Path) -> None:
    class Believer:
        def judge(self, *_: object) -> None:
            raise AssertionError("an app that believes anybody was asked")

    raised = NODE.raised_by({"secagg-enclave-policy": str(policy(tmp_path, {"format": "nitro", "accepted": [PINS]}))})
    judge = NodeJudge(raised, Believer())  # type: ignore[arg-type]
    with pytest.raises(SecAggError):
        judge.judge(Evidence(EvidenceFormat.NITRO, b"a document"), bytes(64), datetime.now(UTC))


def test_a_policy_that_cannot_be_read_is_said_before_there_is_an_enclave(tmp_path: Path) -> None:
    """Otherwise a misspelt path passes every trial with a simulated enclave, but fails in deployment."""
    node = replace(NODE, allow_simulated_enclave=True, enclave_policy=str(tmp_path / "enclave.jsn"))
    with pytest.raises(InvalidParameters, match=r"cannot read the enclave policy .*enclave\.jsn"):
        NodeJudge(node, None).judge(SimulatedEvidence(bytes(64)), bytes(64), datetime.now(UTC))
