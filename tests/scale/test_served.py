"""``secagg serve --engine``: real processes of a server, its workers and its clients."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from secagg.platforms.keys.identities import load_roster
from tests.harness.wire_town import SECONDS, Process, Town

pytestmark = pytest.mark.scale
HOLDERS = 4
ONE_MESSAGE = ("--protocol", "one-message")


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_masks_are_taken_off_by_processes(town: Town, tmp_path: Path) -> None:
    storage, told = tmp_path / "storage", tmp_path / "figures.prom"
    server = town.serve(
        *("--clients", "4", "--engine", "processes", "--workers", "2", "--audit", "1"),
        *("--storage", str(storage), "--metrics", str(told)),
    )
    clients = [town.contribute(number) for number in range(4)]
    assert [client.ended() for client in clients] == [0] * 4
    assert server.ended() == 0
    assert abs(town.mean() - 0.015) < 1e-3
    assert "workers: " in server.text
    figures = told.read_text()
    assert "secagg_jobs_left 0" in figures
    assert int(re.findall(r"^secagg_jobs_audited (\d+)$", figures, re.MULTILINE)[0]) >= 2
    assert list(storage.iterdir()) == []


def test_vectors_for_an_enclave_are_added_by_processes(town: Town) -> None:
    roster = ("--set", f"roster={town.make_keys()}")
    server = town.serve("--protocol", "enclave", "--engine", "processes", *roster)
    simulated = ("--protocol", "enclave", "--set", "allow_simulated_enclave=yes")
    clients = [town.contribute(number, *simulated) for number in range(5)]
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert "workers: " in server.text
    assert abs(town.mean() - 0.02) < 1e-3


def test_a_server_that_goes_on_has_workers_too(town: Town, tmp_path: Path) -> None:
    """Its uploads are in the storage, and all else in the journal."""
    options = ("--clients", "4", "--engine", "processes", "--storage", str(tmp_path / "storage"))
    server = town.serve(*options)
    clients = [town.contribute(number) for number in range(3)]
    held = town.contribute(3, is_paused=True)
    held.wait_for("asked 0")
    held.go_on()
    held.wait_for("stored 0")
    held.go_on()
    held.wait_for("asked 1")
    server.kill()
    assert "go on with --engine" in refused(town, "--clients", "4")
    server = town.serve(*options)
    for step in ("stored 1", "asked 2", "stored 2", "asked 3", "stored 3"):
        held.go_on()
        held.wait_for(step)
    held.go_on()
    assert [client.ended() for client in (*clients, held)] == [0] * 4
    assert server.ended() == 0
    assert "workers: " in server.text
    assert abs(town.mean() - 0.015) < 1e-3


def refused(town: Town, *options: str) -> str:
    """Return what a server says that does not go on."""
    state = str(town.folder / "server")
    process = town.command(
        "serve", "--values", "1", "--clip", "1", "--out", str(town.folder), "--state", state, *options
    )
    assert process.ended() == 2
    return process.text


def one_message_options(town: Town, tmp_path: Path) -> list[str]:
    """Start standing holders, and return what a server is told of them."""
    roster, sockets, holders = town.make_keys(), list[str](), list[str]()
    authority, record = load_roster(Path(roster)).authority.hex(), str(tmp_path / "record")
    for number in range(HOLDERS):
        made = town.command("holder", "keys", "--out", str(tmp_path / f"holder-{number}"))
        assert made.ended() == 0
        holders += ["--holder", made.text.strip()]
    signed = ("--authority", str(tmp_path / "keys" / "authority.key"), "--number", "1", "--out", record)
    assert town.command("holder", "record", *signed, *holders).ended() == 0
    for number in range(HOLDERS):
        sockets.append(str(tmp_path / f"{number}.socket"))
        town.command(
            *("holder", "serve", "--record", record, "--key", str(tmp_path / f"holder-{number}")),
            *("--authority", authority, "--journal", str(tmp_path / f"journal-{number}"), "--socket", sockets[-1]),
            *("--minimum-holders", str(HOLDERS)),
        ).wait_for("is ready")
    return [
        *("--protocol", "one-message", "--workers", "2"),
        *("--set", f"roster={roster}", "--set", f"epoch={record}", "--set", f"holders={','.join(sockets)}"),
    ]


def pieces_in(folder: Path) -> int:
    return len(list((folder / "server" / "storage").rglob("pieces/*")))


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        time.sleep(0.05)


def three_uploads(town: Town) -> list[Process]:
    """Return three clients once their pieces are stored."""
    clients = [town.contribute(number, *ONE_MESSAGE, is_paused=True) for number in range(3)]
    for client in clients:
        client.wait_for("asked 0")
        client.go_on()
        client.wait_for("stored 0")
        client.go_on()
    wait_until(lambda: pieces_in(town.folder) == 3, "three uploads are stored")
    return clients


def parents() -> dict[int, tuple[int, str]]:
    """Return the parent and the title of every process."""
    found = dict[int, tuple[int, str]]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if status[0] != "Z":
                found[int(folder.name)] = int(status[1]), (folder / "cmdline").read_text(errors="replace")
    return found


def two_actors(server: Process) -> set[int]:
    """Wait for the actors of the Ray that a server has started: those of nobody else may be ended."""
    wait_until(lambda: len(actors_below(server)) == 2, "its actors have started")
    return actors_below(server)


def actors_below(server: Process) -> set[int]:
    known, found = parents(), set[int]()
    for process in (process for process, (_, title) in known.items() if title.startswith("ray::RayWorker")):
        above = process
        while above in known and above != server.number:
            above = known[above][0]
        if above == server.number:
            found.add(process)
    return found


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_server_whose_uploads_others_add_goes_on(town: Town, tmp_path: Path, end: str) -> None:
    """Three have uploaded, and are not asked again: a client uploads once."""
    options = ("--engine", "processes", *one_message_options(town, tmp_path))
    server = town.serve(*options)
    clients = three_uploads(town)
    if end == "killed":
        server.kill()
    else:
        assert server.terminate() == 130
    assert pieces_in(tmp_path) == 3
    server = town.serve(*options)
    clients += [town.contribute(number, *ONE_MESSAGE) for number in (3, 4)]
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert "cannot go on" not in server.text
    assert abs(town.mean() - 0.02) < 1e-3
    # The journal could open the sum.
    assert [path.name for path in (tmp_path / "server").rglob("*")] == ["storage"]


def test_a_server_that_is_told_to_stop_while_workers_add_ends_and_goes_on(town: Town, tmp_path: Path) -> None:
    """Nobody answers it any more, and that is not what ends the session."""
    told = tmp_path / "figures.prom"
    options = ("--clients", "4", "--engine", "processes", "--metrics", str(told))
    server = town.serve(*options)

    def workers() -> list[int]:
        return [child for child, (above, title) in parents().items() if above == server.number and "spawn" in title]

    wait_until(lambda: len(workers()) == 2, "its workers have started")
    for worker in workers():
        os.kill(worker, signal.SIGSTOP)
    clients = [town.contribute(number) for number in range(4)]
    wait_until(lambda: told.exists() and figure(told, "jobs_left") > 0, "a job is given to a worker")
    assert server.terminate() == 130
    server = town.serve(*options)
    assert [client.ended() for client in clients] == [0] * 4
    assert server.ended() == 0
    assert abs(town.mean() - 0.015) < 1e-3


def test_a_server_with_actors_of_ray_goes_on(town: Town, tmp_path: Path) -> None:
    """The server is killed between uploads, and so is, in its next life, the actor that has been given a job.

    A client that waits long after it lost its server may come back when that has ended, so none is waited for.
    """
    told = tmp_path / "figures.prom"
    options = ("--engine", "ray", "--metrics", str(told), *one_message_options(town, tmp_path))
    server = town.serve(*options)
    three_uploads(town)
    before = two_actors(server)
    server.kill()
    wait_until(lambda: not before & parents().keys(), "its actors ended with the server")
    server = town.serve(*options)
    actors = two_actors(server)
    for actor in actors:
        os.kill(actor, signal.SIGSTOP)
    for number in (3, 4):
        town.contribute(number, *ONE_MESSAGE)
    wait_until(lambda: told.exists() and figure(told, "jobs_left") > 0, "a job is given to an actor")
    for actor in actors:
        os.kill(actor, signal.SIGKILL)
    assert server.ended() == 0
    assert "the mean of 5 clients' updates" in server.text
    assert figure(told, "workers_lost") >= 1
    assert figure(told, "jobs_left") == 0
    assert abs(town.mean() - 0.02) < 1e-3
    assert [path.name for path in (tmp_path / "server").rglob("*")] == ["storage"]


def figure(file: Path, name: str) -> int:
    (found,) = re.findall(rf"^secagg_{name} (\d+)$", file.read_text(), re.MULTILINE)
    return int(found)
