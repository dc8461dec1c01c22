"""``secagg indexing-server stand``: what it refuses to begin with, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.flower.keys.identities import make_identities
from secagg.flower.keys.server_pair import make_server_pair
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.journal import Event, FileJournal

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

PATIENCE = 60


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, str]:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    make_server_pair(tmp_path, SystemCoins())
    return {
        "socket": str(tmp_path / "s"),
        "keys": str(tmp_path / "server-1.keys"),
        "servers": str(tmp_path / "servers.json"),
        "journal": str(tmp_path / "journal"),
        "minimum-cohort": "3",
    }


def command(arguments: dict[str, str], **changes: str) -> list[str]:
    given = {**arguments, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["indexing-server", "stand", *(part for name, value in given.items() for part in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": "server-0.keys"}, "holds the keys of server/0, and those of server/1 are due here"),
        ({"servers": "roster.json"}, "names no two servers"),
        ({"suites": "classic,rsa"}, "--suites are classic, hybrid; got 'rsa'"),
        ({"threads": "0"}, "at least one thread evaluates"),
        ({"minimum_cohort": "1"}, "minimum_cohort is an integer of at least 2"),
        ({"maximum_cohort": "2"}, "maximum_cohort is an integer of at least 3"),
        ({"maximum_hours": "0"}, "some time to come"),
        ({"socket": "servers.json"}, "no socket can be made at"),
    ],
)
def test_what_cannot_stand_is_refused_with_what_to_change(
    arguments: dict[str, str], changes: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: str(tmp_path / value) if "." in value else value for name, value in changes.items()}
    assert main(command(arguments, **paths)) == 2
    assert said in capsys.readouterr().err


def test_the_journal_of_a_round_is_no_journal_of_a_standing_server(
    arguments: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(Event.RECEIVED, b"an upload")
    journal.close()
    assert main(command(arguments)) == 2
    assert "this is no journal of a standing server" in capsys.readouterr().err


def test_it_says_when_it_stands_and_ends_when_it_is_told_to(arguments: dict[str, str]) -> None:
    full = [sys.executable, "-m", "secagg.cli", *command(arguments)]
    with subprocess.Popen(full, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 -- this very program
        try:
            assert process.stdout is not None
            assert "server/1 stands at" in process.stdout.readline()
            assert Path(arguments["socket"]).is_socket()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not Path(arguments["socket"]).exists()
