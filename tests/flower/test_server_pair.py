"""The keys of two servers: a file for each operator, and one that names both; invalid files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.protocols.two_servers import load_server_keys, load_server_pair, make_trial_pair
from secagg.session.identities import load_roster, make_identities


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_identities(tmp_path / "keys", [ClientId(0)], SystemCoins())
    assert make_trial_pair(tmp_path / "keys", SystemCoins())
    return tmp_path / "keys"


def test_the_command_makes_keys_that_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "--clients", "1", "--trial-servers", "--out", str(tmp_path)]) == 0
    pair = load_server_pair(tmp_path / "servers.json")
    for index in (0, 1):
        with load_server_keys(tmp_path / f"server-{index}.keys", index) as keys:
            assert keys.signing_key().public_key == pair.server_keys[index]
    assert pair.authority == load_roster(tmp_path / "roster.txt").authority
    assert "the owner of both files can act as both servers" in capsys.readouterr().out


def test_both_servers_share_the_key_that_no_client_has(folder: Path) -> None:
    with load_server_keys(folder / "server-0.keys", 0) as zero, load_server_keys(folder / "server-1.keys", 1) as one:
        assert zero.pair_key(one.public) == one.pair_key(zero.public)
        assert zero.signing_seed != one.signing_seed


def test_keys_that_exist_stay(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not make_trial_pair(folder, SystemCoins())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_one_of_two_is_not_made_anew(folder: Path) -> None:
    (folder / "server-1.keys").unlink()
    with pytest.raises(InvalidParameters, match="exists but the other files do not"):
        make_trial_pair(folder, SystemCoins())


def test_private_keys_are_for_their_owner_alone(folder: Path) -> None:
    path = folder / "server-0.keys"
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o640)
    with pytest.raises(InvalidParameters, match="others can read"):
        load_server_keys(path, 0)


def test_the_keys_of_the_other_server_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidParameters, match="contains the keys of server/1; expected those of server/0"):
        load_server_keys(folder / "server-1.keys", 0)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "roster"},
        {"format": "secagg/flower/2"},
        {"servers": ["swapped"]},
        {"authority": "00"},
        {"servers": []},
        {"servers": ["00" * 32]},
        {"servers": ["00" * 32, "00" * 32]},
        {"servers": ["00" * 32, "00" * 31]},
        {"servers": ["00" * 32, "zz" * 32]},
        {"servers": 7},
    ],
)
def test_a_file_that_names_no_two_servers_is_refused(folder: Path, change: dict[str, object]) -> None:
    path = folder / "servers.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    if change == {"servers": ["swapped"]}:
        change = {"servers": fields["servers"][::-1]}
    path.write_text(json.dumps({**fields, **change}), encoding="utf-8")
    with pytest.raises(InvalidParameters, match=r"does not name two servers|three different keys"):
        load_server_pair(path)


def test_files_that_are_missing_or_something_else_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidParameters, match="does not name two servers"):
        load_server_pair(folder / "absent.json")
    with pytest.raises(InvalidParameters, match="is not a server's key file"):
        load_server_keys(folder / "client-0.key", 0)
    with pytest.raises(InvalidParameters, match="is not a server's key file"):
        load_server_keys(folder / "absent.keys", 0)
