"""The model of large sessions: its arithmetic, its lines, and a session that it predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.planning.seconds import (
    Constants,
    Farm,
    Rates,
    Sample,
    costs_of,
    estimate_scale,
    fit,
    layout_for,
    run_session,
)
from secagg.scale.tree import MOST_IN_A_GROUP as MOST_CLIENTS
from secagg.session.registry import ProtocolEntry, find
from secagg.session.simulated import Costs, Work

CONSTANTS = Constants(session=0.5, client=Rates(2e-3, 1e-9), server=Rates(3e-4, 2e-9))


def costs(clients: int, values: int) -> Costs:
    return Costs(
        plan="counted by hand",
        payload_bytes=0,
        up_bytes=100,
        down_bytes=0,
        client=Work(cipher_calls=values, word_operations=3 * values, steps=10),
        server=Work(word_operations=clients * values, steps=clients),
    )


def sample(clients: int, values: int) -> Sample:
    return CONSTANTS.predict(costs(clients, values), clients)


def test_what_a_session_takes_is_steps_and_words_at_their_rates() -> None:
    found = sample(100, 1_000)
    assert found.client_seconds == pytest.approx(100 * (10 * 2e-3 + 5 * 1_000 * 1e-9))
    assert found.server_seconds == pytest.approx(0.5 + 100 * 3e-4 + 100 * 1_000 * 2e-9)
    assert found.seconds == pytest.approx(found.client_seconds + found.server_seconds)


def test_four_sessions_give_the_constants_back() -> None:
    found = fit(sample(60, 64), sample(200, 64), sample(20, 64), sample(20, 1 << 17))
    assert found.session == pytest.approx(CONSTANTS.session)
    assert (found.client.step, found.client.word) == pytest.approx((2e-3, 1e-9))
    assert (found.server.step, found.server.word) == pytest.approx((3e-4, 2e-9))


def test_a_disturbed_measurement_makes_no_constant_negative() -> None:
    many, long = sample(200, 64), sample(20, 1 << 17)
    nothing = {"client_seconds": 0.0, "server_seconds": 0.0}
    few, short = sample(60, 64), sample(20, 64)
    many = Sample(costs=many.costs, clients=200, **nothing)
    long = Sample(costs=long.costs, clients=20, **nothing)
    found = fit(few, many, short, long)
    assert min(found.session, found.client.step, found.client.word, found.server.step, found.server.word) >= 0


@pytest.mark.parametrize("protocol", ["one-message", "pairwise"])
def test_every_line_follows_from_counts_and_says_what_it_assumes(protocol: str) -> None:
    """Four workers and three sessions: what is not spread is divided by three, and so are uploads."""
    entry, clients, values = find(protocol), 25_000, 1 << 12
    lines = {line.name: line for line in estimate_scale(entry, CONSTANTS, clients, values, farm=Farm(workers=4))}
    assert all(len(line.assumes.split()) > 3 for line in lines.values())
    each = -(-clients // 3)
    due = costs_of(entry, layout_for(each, values), each, Suite.CLASSIC)
    one = CONSTANTS.predict(due, each)
    assert lines["sessions"].value == 3
    assert each <= MOST_CLIENTS
    assert lines["a client sends"].value == due.up_bytes
    assert lines["a client computes"].value == pytest.approx(CONSTANTS.client.of(due.client))
    assert lines["all clients send"].value == clients * due.up_bytes
    assert lines["taking it in"].value == pytest.approx(8 * clients * due.up_bytes / (3 * 10e9))
    assert lines["server, cores busy"].value == pytest.approx(3 * one.server_seconds)
    words = 3 * CONSTANTS.server.word * due.server.words if protocol == "one-message" else 0
    divided = (3 * one.server_seconds - words) / 3 + words / 4
    assert lines["server, a core for each worker"].value == pytest.approx(divided)
    said = lines["server, a core for each worker"].assumes
    assert ("--engine" in said, "--group" in said) == (protocol == "one-message", protocol != "one-message")
    slower = max(lines["taking it in"].value, lines["server, a core for each worker"].value)
    assert lines["a round at the server"].value == slower


def test_as_many_clients_as_fit_are_in_one_session() -> None:
    entry = find("one-message")
    for clients, sessions in ((MOST_CLIENTS, 1), (MOST_CLIENTS + 1, 2)):
        assert next(iter(estimate_scale(entry, CONSTANTS, clients, 64))).value == sessions


@pytest.mark.parametrize("change", [{"workers": 0}, {"gigabits": 0.0}, {"gigabits": float("inf")}])
def test_a_farm_that_cannot_be_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(InvalidParameters, match="--workers"):
        Farm(**change)  # type: ignore[arg-type]


def test_a_session_counts_everybody_and_who_dropped_out() -> None:
    found = run_session(find("one-message"), layout_for(20, 8), 20)
    assert found.clients == 20
    assert min(found.client_seconds, found.server_seconds) > 0
    assert found.costs == costs_of(find("one-message"), layout_for(20, 8), 20, Suite.CLASSIC)


def test_the_command_prints_every_line_with_its_assumption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def calibrated(entry: ProtocolEntry, suite: Suite) -> Constants:
        del entry, suite
        return CONSTANTS

    monkeypatch.setattr("secagg.planning.seconds.calibrate", calibrated)
    report = tmp_path / "scale.json"
    assert main(["estimate", "--scale", "--clients", "20000", "--values", "64", "--json", str(report)]) == 0
    written, printed = json.loads(report.read_text()), capsys.readouterr().out
    assert all(line["name"] in printed and line["assumes"] in printed for line in written)
    assert "this holds for one-message as `secagg serve --engine` adds it" in printed
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["estimate", "--scale", "--clients", "20000", "--values", "64"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [[], ["--scale", "a preset"], ["--scale", "--set", "rounds=1"]])
def test_one_thing_is_estimated_at_a_time(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *arguments]) != 0
    said = capsys.readouterr().err
    assert "give one of the two" in said or "--set changes a training run" in said
