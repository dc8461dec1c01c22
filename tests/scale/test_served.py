"""``secagg serve --engine``: real processes of a server, its workers and its clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from secagg.platforms.keys.identities import load_roster
from tests.harness.wire_town import Town

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


def test_a_server_that_goes_on_has_workers_too(town: Town, tmp_path: Path) -> None:
    """The session comes out of its snapshot, and the engine from the options."""
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
    server = town.serve(*options)
    for step in ("stored 1", "asked 2", "stored 2", "asked 3", "stored 3"):
        held.go_on()
        held.wait_for(step)
    held.go_on()
    assert [client.ended() for client in (*clients, held)] == [0] * 4
    assert server.ended() == 0
    assert "workers: " in server.text
    assert abs(town.mean() - 0.015) < 1e-3


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
        *("--protocol", "one-message", "--engine", "processes", "--workers", "2"),
        *("--set", f"roster={roster}", "--set", f"epoch={record}", "--set", f"holders={','.join(sockets)}"),
    ]


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_server_whose_uploads_others_add_goes_on(town: Town, tmp_path: Path, end: str) -> None:
    """Three have uploaded, and are not asked again: a client uploads once."""
    options = one_message_options(town, tmp_path)
    server = town.serve(*options)
    clients = [town.contribute(number, *ONE_MESSAGE, is_paused=True) for number in range(3)]
    for client in clients:
        client.wait_for("asked 0")
        client.go_on()
        client.wait_for("stored 0")
        client.go_on()
    deadline = time.monotonic() + 90
    while len(list((tmp_path / "server" / "storage").rglob("pieces/*"))) < 3:
        assert time.monotonic() < deadline, server.text
        time.sleep(0.05)
    if end == "killed":
        server.kill()
    else:
        assert server.terminate() == 0
    assert len(list((tmp_path / "server" / "storage").rglob("pieces/*"))) == 3
    server = town.serve(*options)
    clients += [town.contribute(number, *ONE_MESSAGE) for number in (3, 4)]
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert "cannot go on" not in server.text
    assert abs(town.mean() - 0.02) < 1e-3
    # The journal could open the sum.
    assert [path.name for path in (tmp_path / "server").rglob("*")] == ["storage"]
