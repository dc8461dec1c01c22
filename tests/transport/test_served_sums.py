"""``secagg serve --engine``: real processes of a server, its workers and its clients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secagg.platforms.keys.identities import load_roster
from tests.harness.wire_town import Town

pytestmark = pytest.mark.wire
HOLDERS = 4


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


def test_uploads_of_one_message_are_added_by_processes(town: Town, tmp_path: Path) -> None:
    """Holders stand behind sockets."""
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
    server = town.serve(
        *("--protocol", "one-message", "--engine", "processes", "--workers", "2"),
        *("--set", f"roster={roster}", "--set", f"epoch={record}", "--set", f"holders={','.join(sockets)}"),
        *("--storage", str(tmp_path / "storage")),
    )
    clients = [town.contribute(number, "--protocol", "one-message") for number in range(5)]
    assert [client.ended() for client in clients] == [0] * 5
    assert server.ended() == 0
    assert abs(town.mean() - 0.02) < 1e-3
    assert "workers: " in server.text
    assert list((tmp_path / "storage").iterdir()) == []
