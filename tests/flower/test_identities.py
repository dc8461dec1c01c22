"""Keys for active mode: made once, stored privately, and refused if they do not match."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.platforms.client_node import ClientNode
from secagg.session.identities import load_authority, load_identity, load_roster, make_identities


def test_the_command_makes_keys_that_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Also by the older name.
    assert main(["keys", "--clients", "2", "--out", str(tmp_path / "keys")]) == 0
    assert main(["keys", "--clients", "3", "--out", str(tmp_path / "keys")]) == 0
    roster = load_roster(tmp_path / "keys" / "roster.txt")
    assert roster.clients == {ClientId(0), ClientId(1), ClientId(2)}
    identity = load_identity(tmp_path / "keys" / "client-1.key")
    assert identity.client == ClientId(1)
    assert identity.authority.public_key == roster.authority
    assert "a new authority" in capsys.readouterr().out


def test_keys_that_exist_stay_and_others_join_them(tmp_path: Path) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.key")}
    assert make_identities(tmp_path, [ClientId(0), ClientId(1)], SystemCoins()) == (1, False)
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert load_roster(tmp_path / "roster.txt").clients == {ClientId(0), ClientId(1)}


def test_private_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_identities(tmp_path / "keys", [ClientId(0)], SystemCoins())
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "keys").glob("*.key"))
    public = (tmp_path / "keys" / "roster.txt").read_text(encoding="utf-8")
    for path in (tmp_path / "keys").glob("*.key"):
        assert json.loads(path.read_text(encoding="utf-8"))["seed"] not in public


@pytest.mark.parametrize(
    "change",
    [
        {"id": 5},
        {"certificate": "00" * 72},
        {"authority": "11" * 32},
        {"seed": "22" * 32},
        {"seed": "zz"},
        {"kind": "roster"},
        {"id": None},
    ],
)
def test_a_key_file_whose_parts_do_not_belong_together_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    path = tmp_path / "client-0.key"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(InvalidParameters, match=r"secagg keys|use a client file"):
        load_identity(path)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    path = tmp_path / "client-0.key"
    path.chmod(0o640)
    with pytest.raises(InvalidParameters, match="chmod 600"):
        load_identity(path)


def test_an_authoritys_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_identities(tmp_path, [ClientId(0)], SystemCoins())
    path = tmp_path / "authority.key"
    load_authority(path)
    path.chmod(0o644)
    for use in (lambda: load_authority(path), lambda: make_identities(tmp_path, [ClientId(1)], SystemCoins())):
        with pytest.raises(InvalidParameters, match="chmod 600"):
            use()
    assert not (tmp_path / "client-1.key").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match=r"absent\.key"):
        load_identity(tmp_path / "absent.key")
    with pytest.raises(InvalidParameters, match=r"roster\.txt"):
        load_roster(tmp_path / "roster.txt")


def test_a_simulated_client_finds_its_key_by_its_partition(tmp_path: Path) -> None:
    make_identities(tmp_path, map(ClientId, range(2)), SystemCoins())
    settings = ClientNode(identity=str(tmp_path))
    assert settings.load_identity({"partition-id": 1}).client == ClientId(1)
    named = settings.raised_by({"secagg-identity": str(tmp_path / "client-0.key")})
    assert named.load_identity({"partition-id": 1}).client == ClientId(0)


def test_active_mode_without_a_key_says_where_to_name_it() -> None:
    settings = ClientNode()
    with pytest.raises(InvalidParameters, match="secagg-identity"):
        settings.load_identity({})
