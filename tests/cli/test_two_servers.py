"""``secagg server``: keys of two operators, a standing server and its end, its files, and refusals."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.protocols.two_servers import load_server_keys, load_server_pair, make_trial_pair
from secagg.protocols.two_servers.standing_server import StandingRounds, StandingServer
from secagg.session.identities import make_identities
from tests.harness.commands import refusal
from tests.harness.indexing_rounds import IndexingSetup

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

PATIENCE = 60


def keys(*arguments: str | Path) -> int:
    return main(["server", "keys", *map(str, arguments)])


def test_two_operators_make_their_keys_apart_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders, roster = [tmp_path / "zero", tmp_path / "one"], tmp_path / "authority" / "roster.txt"
    make_identities(roster.parent, [ClientId(0)], SystemCoins())
    for role, folder in enumerate(folders):
        assert keys("--role", f"{role}", "--out", folder) == 0
        assert stat.S_IMODE((folder / f"server-{role}.keys").stat().st_mode) == 0o600
    capsys.readouterr()
    printed = list[str]()
    for role, folder in enumerate(folders):
        public = folders[1 - role] / f"server-{1 - role}.public"
        assert keys("--role", f"{role}", "--out", folder, "--peer", public, "--roster", roster) == 0
        printed.append(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("fingerprint")))
    assert printed[0] == printed[1]
    assert (folders[0] / "servers.json").read_bytes() == (folders[1] / "servers.json").read_bytes()
    pair = load_server_pair(folders[0] / "servers.json")
    with (
        load_server_keys(folders[0] / "server-0.keys", 0) as zero,
        load_server_keys(folders[1] / "server-1.keys", 1) as one,
        zero.pair_key(pair.operators[1]) as first,
        one.pair_key(pair.operators[0]) as second,
    ):
        assert first == second
    assert not (folders[0] / "server-1.keys").exists(), "nobody holds both"


def test_an_operator_who_was_given_other_keys_sees_another_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attacker between the operators who gives each one the attacker's public keys."""
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    roster = tmp_path / "roster.txt"
    for role, name in ((0, "zero"), (1, "one"), (1, "between")):
        assert keys("--role", f"{role}", "--out", tmp_path / name) == 0
    said = list[str]()
    for name in ("one", "between"):
        (tmp_path / "zero" / "servers.json").unlink(missing_ok=True)
        peer = tmp_path / name / "server-1.public"
        assert keys("--role", "0", "--out", tmp_path / "zero", "--peer", peer, "--roster", roster) == 0
        said.append(capsys.readouterr().out.splitlines()[-1])
    assert said[0] != said[1]


def test_what_makes_no_pair_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    assert keys("--out", tmp_path) == 2
    assert "choose the server with --role 0 or --role 1; --trial makes the keys of both" in capsys.readouterr().err
    assert keys("--role", "0", "--out", tmp_path, "--roster", tmp_path / "roster.txt") == 2
    assert "--roster only applies with --peer" in capsys.readouterr().err
    assert keys("--role", "0", "--out", tmp_path) == 0
    assert keys("--role", "0", "--out", tmp_path) == 2
    assert "server-0.keys exists; choose another --out" in capsys.readouterr().err
    own, altered = tmp_path / "server-0.public", tmp_path / "altered.public"
    assert keys("--role", "0", "--out", tmp_path, "--peer", own) == 2
    assert "an authority and two servers need three different keys" in capsys.readouterr().err
    encoded = bytearray.fromhex(own.read_text())
    encoded[7] = 1
    altered.write_text(encoded.hex())
    assert keys("--role", "0", "--out", tmp_path, "--peer", altered) == 2
    assert "is not a server's public key file (authentication failed)" in capsys.readouterr().err
    assert not (tmp_path / "servers.json").exists()


def test_a_trial_says_that_it_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    assert keys("--trial", "--out", tmp_path) == 0
    assert "A trial protects nobody" in capsys.readouterr().out
    assert main(["keys", "--clients", "1", "--two-servers"]) == 2


def test_a_trial_refuses_what_it_would_not_heed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("role", "1"), ("peer", "x"), ("roster", "x")):
        assert keys("--trial", "--out", tmp_path, f"--{option}", value) == 2
        assert f"--{option} cannot be combined with --trial" in capsys.readouterr().err


def test_a_trial_without_a_roster_leaves_no_keys_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("--trial", "--out", tmp_path) == 2
    assert "create one with `secagg keys`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, str]:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    make_trial_pair(tmp_path, SystemCoins())
    return {
        "listen": str(tmp_path / "s"),
        "keys": str(tmp_path / "server-1.keys"),
        "servers": str(tmp_path / "servers.json"),
        "journal": str(tmp_path / "journal"),
        "minimum-cohort": "3",
    }


def command(arguments: dict[str, str], **changes: str) -> list[str]:
    given = {**arguments, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["server", "serve", *(part for name, value in given.items() for part in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": "server-0.keys"}, "contains the keys of server/0; expected those of server/1"),
        ({"servers": "roster.txt"}, "does not name two servers"),
        ({"suites": "classic,rsa"}, "--suites must be among classic, hybrid; got 'rsa'"),
        ({"threads": "0"}, "--threads must be at least 1"),
        ({"task": "\udcff"}, "argument --task: invalid task value"),
        ({"minimum_cohort": "1"}, "minimum_cohort must be an integer in 2..2^32 - 1; got 1"),
        ({"maximum_cohort": "2"}, "maximum_cohort must be an integer of at least 3"),
        ({"maximum_hours": "0"}, "maximum_lifetime must be a time above 0; got 0:00:00"),
        ({"maximum_hours": "99999999999999"}, "--maximum-hours must be at most 8784"),
        ({"listen": "servers.json"}, "cannot create a socket at"),
    ],
)
def test_what_cannot_stand_is_refused_with_what_to_change(
    arguments: dict[str, str], changes: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: str(tmp_path / value) if "." in value else value for name, value in changes.items()}
    assert said in refusal(capsys, *command(arguments, **paths))


def begun(folder: Path, *numbers: int) -> StandingRounds:
    rounds = StandingRounds(folder)
    for number in numbers:
        rounds.begin(b"a task", number)
    return rounds


def test_a_journal_that_was_changed_is_refused(
    arguments: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path / "journal", 1).close()
    (tmp_path / "journal" / "state.db").write_bytes(b"another" * 100)
    assert "is damaged" in refusal(capsys, *command(arguments))


def started(arguments: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    full = [sys.executable, "-m", "secagg.cli", *command(arguments)]
    process = subprocess.Popen(full, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- this very program
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_it_says_when_it_stands_whether_it_is_new_and_ends_when_it_is_told_to(
    arguments: dict[str, str], tmp_path: Path
) -> None:
    said = list[str]()
    for number in (signal.SIGTERM, signal.SIGINT):
        process, line = started(arguments)
        with process:
            try:
                said.append(line)
                assert stat.S_IMODE(Path(arguments["listen"]).stat().st_mode) == 0o600
                limits = Path(f"/proc/{process.pid}/limits")
                if limits.exists():
                    core = next(line for line in limits.read_text().splitlines() if "core file" in line)
                    assert core.split()[4:6] == ["0", "0"]
                process.send_signal(number)
                process.send_signal(number)
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()
        assert not Path(arguments["listen"]).exists()
        assert not (tmp_path / "journal" / "round.journal").exists(), "a round of an earlier version is over"
        (tmp_path / "journal" / "round.journal").write_bytes(b"a root")
        begun(tmp_path / "journal", 2 * len(said), 2 * len(said) + 1).close()
    assert "server/1 is ready at" in said[0]
    assert ", new. Two servers of one operator protect nobody" in said[0]
    assert ", resumed after 2 rounds. Two servers" in said[1]


def test_keys_are_wiped_when_it_has_stood(arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stood = list[Any]()

    def stand(server: StandingServer, *_: object, **__: object) -> None:
        stood.append(vars(server)["_keys"])
        assert not stood[0].signing_seed.is_wiped
        raise InvalidParameters("somebody listens there")

    monkeypatch.setattr("secagg.cli.operators.serve_standing", stand)
    assert main(command(arguments)) == 2
    (keys,) = stood
    assert keys.signing_seed.is_wiped


def shown(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    status = main(["server", "show", str(path)])
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_a_folder_without_a_journal_is_shown_as_none_and_gets_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "folder").mkdir(mode=0o700)
    assert "Is a directory" in shown(capsys, folder)
    assert not [*folder.iterdir()]


def test_every_file_says_what_it_holds_and_no_secret(
    arguments: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, configuration = load_server_pair(Path(arguments["servers"])), tmp_path / "configuration"
    configuration.write_bytes(IndexingSetup().configuration.encode())
    begun(tmp_path / "journal", 3, 4).close()
    assert pair.fingerprint in shown(capsys, Path(arguments["servers"]))
    assert pair.server_keys[0].hex() in shown(capsys, tmp_path / "server-0.public")
    private = shown(capsys, Path(arguments["keys"]))
    assert pair.server_keys[1].hex() in private
    with load_server_keys(Path(arguments["keys"]), 1) as secret:
        assert bytes(secret.signing_seed.expose()).hex() not in private
    said = shown(capsys, configuration)
    assert IndexingSetup().configuration.context.digest.hex() in said
    assert "2 to 20 clients; " in said
    assert "2 rounds of 1 tasks were started" in shown(capsys, tmp_path / "journal")
    for path in (tmp_path / "absent.journal", tmp_path / "absent", tmp_path / "absent.public", tmp_path / "s.keys"):
        assert shown(capsys, path).startswith("secagg: ")


def test_a_journal_that_was_changed_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun(tmp_path / "journal", 3, 4).close()
    (tmp_path / "journal" / "state.db").write_bytes(b"another" * 100)
    assert "is damaged" in shown(capsys, tmp_path / "journal")
