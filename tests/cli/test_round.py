"""`secagg round`: a real session, what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.cli.figures import Bar
from secagg.contract import Aggregate
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import ServerState, Topology
from secagg.simulation.cohort import PLACES, Setting, WindowedInputs, client_ids, gather, spread_dropouts

SMALL = ("round", "--clients", "24", "--dimension", "500")
Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    def run(*options: str) -> dict[str, Any]:
        assert main([*SMALL, "--json", str(tmp_path / "new" / "report.json"), *options]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "new" / "report.json").read_text())
        return report

    return run


@pytest.mark.parametrize("mode", ["active", "semi_honest"])
@pytest.mark.parametrize("graph", ["sparse", "full"])
def test_a_round_with_dropouts_everywhere_gives_the_exact_sum(report_of: Report, mode: str, graph: str) -> None:
    report = report_of("--mode", mode, "--graph", graph, "--drop", "5", "--corrupted", "0")
    assert report["sum is exact"] is True
    assert report["revealed set is the contributors"] is True
    # The fifth is dealt to the place after the consistency check, or where that is absent to the first one again.
    late = 1
    uploading = 24 - late - 1 - (1 if mode == "active" else 2)
    assert report["contributors"] == report["revealed sets"][0] == uploading
    assert sum(len(row["dropped"]) for row in report["rounds"]) == 5
    assert len(report["rounds"]) == (5 if mode == "active" else 4)
    assert report["faults"] == []
    # Planned for all of them: nothing is released of fewer than those that are left at the end.
    assert report["minimum cohort"] == 24 - 5


def test_the_hybrid_suite_runs_as_well(report_of: Report) -> None:
    report = report_of("--suite", "hybrid", "--drop", "3", "--corrupted", "0")
    assert (report["suite"], report["sum is exact"]) == ("mlkem768x25519-aes256", True)


def test_each_round_counts_the_messages_and_bytes_of_those_that_answered(report_of: Report) -> None:
    report = report_of("--drop", "2", "--corrupted", "0")
    answered = [row["answered"] for row in report["rounds"]]
    assert answered == [24, 24, 23, 23, 22]
    for row in report["rounds"]:
        assert row["messages up"] == row["messages down"] == row["answered"]
    upload = report["rounds"][2]
    assert upload["bytes up"] == upload["answered"] * report["bytes of the masked input"]
    assert report["bytes of the masked input"] > report["bytes of the packed vector"]


def test_what_is_printed_names_the_dropouts_the_revealed_set_and_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--drop", "5", "--corrupted", "0"]) == 0
    captured = capsys.readouterr()
    assert "dropped out before answering in round 2 masked input: client 1\n" in captured.out
    assert "dropped out before answering in round 0 advertise keys: client 20\n" in captured.out
    assert "revealed: 1 sum, over 21 clients, which are those that uploaded" in captured.out
    assert "the sum is exactly the plain sum of their inputs" in captured.out
    assert re.search(r"^2 masked input +21 +1 +42 ", captured.out, re.MULTILINE)
    assert captured.err == ""


def test_a_wrong_sum_is_said_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def is_sum_of(*_: object) -> bool:
        return False

    monkeypatch.setattr(WindowedInputs, "is_sum_of", is_sum_of)
    assert main([*SMALL, "--drop", "0"]) == 1
    assert "the sum is NOT the plain sum of their inputs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clients", "1"], "--clients is in 2..20000; got 1"),
        (["--dimension", "0"], "--dimension is in 1.."),
        (["--drop", "24"], "--drop is in 0..23; got 24"),
        (["--drop", "-1"], "--drop is in 0..23; got -1"),
        (["--corrupted", "24"], "--corrupted is in 0..23; got 24"),
        (["--bits", "65"], "--bits is in 1..64; got 65"),
        (["--bits", "62"], "take fewer clients or fewer bits"),
        (["--threads", "0"], "--threads is in 1.."),
        (["--drop", "20"], "assume fewer"),
    ],
)
def test_an_impossible_round_is_refused_with_what_to_change(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main([*SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


def test_the_bar_is_drawn_where_somebody_sees_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = Bar()
    bar.update("2 masked input", 1, 4)
    bar.update("2 masked input", 2, 4)  # Too soon after the other to be drawn.
    bar.update("2 masked input", 4, 4)
    bar.clear()
    drawn = capsys.readouterr().err
    assert "2 masked input       [#######.......................] 1 of 4" in drawn
    assert "2 of 4" not in drawn
    assert f"[{'#' * 30}] 4 of 4" in drawn


# --- What the command is made of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(SecurityMode))
def test_dropouts_are_dealt_out_in_turn_and_nobody_drops_out_twice(mode: SecurityMode) -> None:
    dealt = spread_dropouts(100, 10, mode)
    signing = dealt[ServerState.AWAITING_SURVIVOR_SIGNATURES]
    assert len(frozenset[ClientId]().union(*dealt.values())) == 10
    # Whoever is not on the committee is not asked there, and vanishes at the next occasion.
    assert signing <= dealt[ServerState.AWAITING_UNMASKING_SHARES]
    sizes = [len(dealt[place] - signing) for place in PLACES if place is not ServerState.AWAITING_SURVIVOR_SIGNATURES]
    assert (sizes, len(signing)) == (([2, 2, 2, 2], 2) if mode is SecurityMode.ACTIVE else ([3, 3, 2, 2], 0))


def test_whoever_is_not_on_the_committee_is_counted_where_it_vanishes() -> None:
    inputs = WindowedInputs(input_bits=4, length=10, clients=24, seed=b"")
    dropouts = spread_dropouts(24, 6, SecurityMode.ACTIVE, [ServerState.AWAITING_SURVIVOR_SIGNATURES])
    setting = Setting(topology=Topology.FULL)
    cohort = gather(inputs.payload_of, 24, capacity=inputs.capacity, dropouts=dropouts, setting=setting)
    # Of a committee of everyone nobody would be left out. One of 14 still has a quorum if it loses all six.
    configuration = replace(cohort.plan.configuration, committee_size=14, quorum=8)
    cohort = replace(cohort, plan=replace(cohort.plan, configuration=configuration))
    result = cohort.run()
    roster = result.server.roster
    committee = {roster.clients[position] for position in roster.committee}
    planned = dropouts[ServerState.AWAITING_SURVIVOR_SIGNATURES]
    lost = {figures.state: figures.lost for figures in result.rounds}
    assert lost[ServerState.AWAITING_SURVIVOR_SIGNATURES] == planned & committee
    assert lost[ServerState.AWAITING_UNMASKING_SHARES] == planned - committee


def test_more_dropouts_than_clients_are_refused() -> None:
    with pytest.raises(InvalidParameters):
        spread_dropouts(3, 3, SecurityMode.ACTIVE)


def test_the_inputs_of_two_clients_differ_and_fill_their_bits() -> None:
    inputs = WindowedInputs(input_bits=4, length=1000, clients=9, seed=b"")
    one, two = inputs.payload_of(1).values[0], inputs.payload_of(2).values[0]
    assert (one != two).any()
    (segment,) = inputs.layout.require_rings()
    lifted = segment.ring.lift(one)
    assert (int(lifted.min()), int(lifted.max())) == (-8, 7)
    assert (segment.modulus_bits, inputs.capacity) == (8, 16)


def test_a_sum_that_lacks_a_client_is_noticed() -> None:
    inputs = WindowedInputs(input_bits=4, length=10, clients=3, seed=b"")
    (segment,) = inputs.layout.require_rings()
    everybody = client_ids(3)
    total = segment.ring.sum([inputs.payload_of(client.value).values[0] for client in everybody], 10)
    aggregate = Aggregate(inputs.layout, (total,), 3, 3)
    assert inputs.is_sum_of(aggregate, everybody)
    assert not inputs.is_sum_of(aggregate, everybody[:2])


def test_a_client_that_leaves_on_its_own_account_is_reported_with_its_reason() -> None:
    inputs = WindowedInputs(input_bits=4, length=10, clients=12, seed=b"")
    dropouts, setting = spread_dropouts(12, 2, SecurityMode.ACTIVE), Setting(topology=Topology.FULL)
    cohort = gather(inputs.payload_of, 12, capacity=inputs.capacity, dropouts=dropouts, setting=setting)
    leaving = cohort.clients[4]
    steps = list[ServerState]()

    def watch(state: ServerState, done: int, count: int) -> None:
        assert done <= count
        steps.append(state)
        if state is ServerState.AWAITING_ENCRYPTED_SHARES and done == count:
            leaving.abort()

    assert cohort.dropouts[ServerState.AWAITING_MASKED_INPUTS] == {ClientId(1)}
    result = cohort.run(watch)
    (figures,) = (f for f in result.rounds if f.state is ServerState.AWAITING_MASKED_INPUTS)
    assert list(figures.failed) == [leaving.client]
    assert figures.lost == {ClientId(1), leaving.client}
    assert inputs.is_sum_of(result.aggregate, [c for c in client_ids(12) if c not in figures.lost])
    assert steps[-1] is ServerState.COMPLETED
