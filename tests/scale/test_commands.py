"""``secagg round --engine`` and ``secagg serve --engine``: options, and real processes of a server and its clients."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from secagg.cli import main
from tests.harness.standing_holders import StandingHolders
from tests.harness.wire_town import SECONDS, Process, Town

HOLDERS = 4
ONE_MESSAGE = ("--protocol", "one-message")


def round_with(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["round", *ONE_MESSAGE, "--clients", "12", "--dimension", "70000", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("engine", ["processes", "memory", pytest.param("ray", marks=pytest.mark.scale)])
def test_a_round_whose_uploads_others_add_is_exact(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, storage = tmp_path / "figures.prom", str(tmp_path / "storage")
    said = round_with(capsys, "--engine", engine, "--storage", storage, "--metrics", str(told), "--compression", "none")
    assert "the sum is exactly the plain sum of their inputs" in said
    assert "secagg_tasks_left 0" in told.read_text()
    assert list((tmp_path / "storage").iterdir()) == []


def test_groups_with_an_engine_have_a_sum_each(capsys: pytest.CaptureFixture[str]) -> None:
    said = round_with(capsys, "--engine", "memory", "--groups", "3", "--compression", "none")
    assert "the sum is exactly the plain sum of their inputs" in said
    assert "3 sums, over 4 to 4 clients" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--protocol", "two-servers", "--engine", "memory"), "only the server adds the uploads"),
        (("--protocol", "enclave", "--engine", "memory"), "`secagg serve --group K/N`, then `secagg add`"),
        (("--protocol", "pairwise", "--engine", "ray"), "--engine requires one-message"),
        ((*ONE_MESSAGE, "--storage", "x"), "only applies with --engine"),
        ((*ONE_MESSAGE, "--engine", "memory", "--ray-address", "x"), "--ray-address requires --engine ray"),
        ((*ONE_MESSAGE, "--engine", "processes", "--workers", "0"), "between 1 and 4096"),
        ((*ONE_MESSAGE, "--workers", "0"), "between 1 and 4096"),
        ((*ONE_MESSAGE, "--workers", "3"), "--workers only applies with --engine"),
        ((*ONE_MESSAGE, "--engine", "memory", "--workers", "3"), "memory has no workers"),
        ((*ONE_MESSAGE, "--engine", "ray", "--ray-address", "192.0.2.1:1"), "that all machines"),
    ],
)
def test_options_that_go_together_with_nothing_are_refused(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["round", "--clients", "5", "--dimension", "400", *options]) != 0
    assert sentence in capsys.readouterr().err


def test_a_cluster_that_the_environment_names_needs_a_storage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its nodes cannot see this run's own folder, and updates would be spent on a sum that cannot finish."""
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:1")
    assert main(["round", *ONE_MESSAGE, "--clients", "5", "--dimension", "400", "--engine", "ray"]) != 0
    assert "RAY_ADDRESS need --storage" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--storage", "--metrics"])
def test_a_place_that_cannot_be_written_is_refused_before_anybody_uploads(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*_: object) -> None:
        pytest.fail("a session was begun")

    monkeypatch.setattr("secagg.simulation.rehearsal.Rehearsal.run", begun)
    (tmp_path / "file").touch()
    options = (*ONE_MESSAGE, "--clients", "5", "--dimension", "400", "--engine", "memory")
    assert main(["round", *options, option, str(tmp_path / "file" / "below")]) != 0
    assert "file" in capsys.readouterr().err


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def standing(town: Town, tmp_path: Path) -> Iterator[list[str]]:
    """Start standing holders, and return a server's settings for them."""
    roster = town.make_keys()
    authority, policy = tmp_path / "keys" / "authority.key", ("--minimum-holders", str(HOLDERS))
    holders = StandingHolders(tmp_path, authority, HOLDERS, serve=policy)
    sockets = ",".join(map(holders.socket, range(HOLDERS)))
    told = (f"roster={roster}", f"epoch={tmp_path / 'record'}", f"holders={sockets}")
    yield [*ONE_MESSAGE, *(part for setting in told for part in ("--set", setting))]
    holders.end()


def uploads_in(folder: Path) -> int:
    return len(list((folder / "server" / "sum" / "uploads").glob("*")))


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        time.sleep(0.05)


def three_uploads(town: Town) -> list[Process]:
    """Return three clients after their uploads are stored."""
    clients = [town.contribute(number, *ONE_MESSAGE, is_paused=True) for number in range(3)]
    for client in clients:
        for step in ("asked 0", "stored 0"):
            client.wait_for(step)
            client.go_on()
    wait_until(lambda: uploads_in(town.folder) == 3, "three uploads are kept")
    return clients


@pytest.mark.scale
@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_server_whose_uploads_others_add_goes_on(
    town: Town, tmp_path: Path, standing: list[str], engine: str, end: str
) -> None:
    """Three have uploaded, and are not asked again: a client uploads once."""
    options = ("--engine", engine, "--workers", "2", *standing)
    server = town.serve(*options)
    clients = three_uploads(town)
    if end == "killed":
        server.kill()
    else:
        assert server.terminate() == 130
    assert uploads_in(tmp_path) == 3
    assert "resume with --engine" in refused(town, *standing)
    server = town.serve(*options)
    clients += [town.contribute(number, *ONE_MESSAGE) for number in (3, 4)]
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert "cannot be resumed" not in server.text
    assert "workers: " in server.text
    assert abs(town.mean() - 0.02) < 1e-3
    left = {path.name for path in (tmp_path / "server").rglob("*")}
    assert left == {"storage", "sum", "uploads", "lock"}


@pytest.mark.scale
def test_a_server_is_stopped_while_its_workers_hang_and_goes_on(
    town: Town, tmp_path: Path, standing: list[str]
) -> None:
    options = ("--engine", "processes", *standing)
    server = town.serve(*options)
    clients = three_uploads(town)
    clients += [town.contribute(3, *ONE_MESSAGE)]
    wait_until(lambda: uploads_in(tmp_path) == 4, "four uploads are kept")
    workers = children_of(server)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    clients += [town.contribute(4, *ONE_MESSAGE)]
    server.wait_for("stage closed")
    assert server.terminate() == 130
    server = town.serve(*options)
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert abs(town.mean() - 0.02) < 1e-3


def children_of(server: Process) -> list[int]:
    found = list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if above == server.number and "spawn" in (folder / "cmdline").read_text(errors="replace"):
                found.append(int(folder.name))
    return found


def refused(town: Town, *options: str) -> str:
    """Return the output of a server that stops."""
    state = str(town.folder / "server")
    common = ("--values", "8", "--clip", "1", "--out", str(town.folder / "mean.npy"), "--state", state)
    process = town.command("serve", *common, *options)
    assert process.ended() == 2, process.text
    return re.sub(r"\s+", " ", process.text)
