"""A sealed state is opened once, by one process, and never after its session ended."""

from __future__ import annotations

import gc
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.session import durable
from secagg.session.sealed_state import DIRECTORY_VARIABLE, OpenState, StateDirectory
from tests.harness.planted import always
from tests.harness.secrets_held import left_over, secrets_from_now


@pytest.fixture
def states(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "states", coins=SystemCoins())


def sealed(state: OpenState, data: bytes = b"what a client keeps") -> bytes:
    with Secret("state", data) as secret:
        return state.seal(secret)


def test_an_older_state_cannot_be_opened_once_a_newer_one_is_sealed(states: StateDirectory) -> None:
    first = sealed(states.begin())
    state, _ = states.open(first)
    second = sealed(state)
    with pytest.raises(Misuse, match="not the newest"):
        states.open(first)
    _, secret = states.open(second)
    assert bytes(secret.expose()) == b"what a client keeps"


def test_no_remaining_key_opens_an_older_state(states: StateDirectory) -> None:
    first = sealed(states.begin())
    state, _ = states.open(first)
    sealed(state)
    (left,) = states.folder.iterdir()
    # An attacker with the folder and every earlier state restores one by name.
    left.rename(left.with_suffix(".0"))
    with pytest.raises(Misuse, match="not the newest"):
        states.open(first)


def test_only_one_of_many_threads_opens_a_state(states: StateDirectory) -> None:
    stored = sealed(states.begin())

    def opened(_: int) -> bool:
        try:
            states.open(stored)
        except Misuse:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(opened, range(32))) == 1


def test_nothing_is_left_of_an_ended_session(states: StateDirectory) -> None:
    stored = sealed(states.begin())
    state, _ = states.open(stored)
    state.destroy()
    assert not list(states.folder.iterdir())
    state.destroy()
    with pytest.raises(Misuse, match="not the newest"):
        states.open(stored)


def test_a_key_is_overwritten_before_it_is_removed(states: StateDirectory, tmp_path: Path) -> None:
    stored = sealed(states.begin())
    (path,) = states.folder.iterdir()
    # A hard link to the same bytes on disk.
    (tmp_path / "same").hardlink_to(path)
    assert any((tmp_path / "same").read_bytes())
    states.discard(stored)
    states.discard(stored)
    assert (tmp_path / "same").read_bytes() == bytes(32)
    assert not list(states.folder.iterdir())


@pytest.mark.parametrize("kept", [0, 5, 15, 16, 19, 20, 21, 36, -1])
def test_a_truncated_state_is_refused_and_its_key_is_destroyed_if_it_names_one(
    states: StateDirectory, kept: int
) -> None:
    stored = sealed(states.begin())
    with pytest.raises(Misuse, match="not the newest"):
        states.open(stored[:kept])
    if 0 <= kept < 20:
        states.open(stored)
    else:
        assert not any(states.folder.iterdir())


@pytest.mark.parametrize("is_shifted", [False, True])
def test_an_altered_state_is_refused(states: StateDirectory, *, is_shifted: bool) -> None:
    stored = sealed(states.begin())
    altered = stored[1:] + b"\0" if is_shifted else stored[:-1] + bytes([stored[-1] ^ 1])
    with pytest.raises(Misuse, match="not the newest"):
        states.open(altered)


def test_the_sealed_bytes_do_not_contain_the_secret(states: StateDirectory) -> None:
    assert b"what a client keeps" not in sealed(states.begin())


def test_every_state_has_its_own_key(states: StateDirectory) -> None:
    stored = sealed(states.begin())
    (path,) = states.folder.iterdir()
    before = path.read_bytes()
    state, _ = states.open(stored)
    sealed(state)
    (path,) = states.folder.iterdir()
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o077 == 0


def test_stale_files_are_swept_once_an_hour(states: StateDirectory) -> None:
    folder = states.beside("ledgers")
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "node").touch()
    make_old(folder / "node", days=3)
    states.beside("ledgers")
    assert (folder / "node").exists()
    make_old(folder / "swept", days=1)
    states.beside("ledgers")
    assert not (folder / "node").exists()


def make_old(path: Path, days: int) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))


def test_keys_on_layers_that_can_be_mounted_twice_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mounts would open one state twice."""
    monkeypatch.setattr(durable, "file_system_of", always(0x794C7630))
    with pytest.raises(InvalidParameters, match=f"overlayfs.* in {DIRECTORY_VARIABLE}"):
        StateDirectory(tmp_path / "states", coins=SystemCoins())


def test_the_environment_can_name_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "named"))
    assert StateDirectory(coins=SystemCoins()).folder == tmp_path / "named"


def test_the_default_folder_is_the_state_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert StateDirectory(coins=SystemCoins()).folder == tmp_path / "secagg"


def test_a_key_is_on_disk_before_its_state_is_sent(states: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    state, synced, sync = states.begin(), list[bytes](), os.fsync

    def flushed(number: int) -> None:
        if stat.S_ISREG(os.fstat(number).st_mode):
            synced.append(Path(f"/proc/self/fd/{number}").read_bytes())
        sync(number)

    monkeypatch.setattr(os, "fsync", flushed)
    sealed(state)
    assert synced == [state.path.read_bytes()]
    state.destroy()
    assert synced[1:] == [bytes(32)]


def test_sealing_a_state_leaves_no_file_open(states: StateDirectory) -> None:
    gc.collect()  # Files of other tests would be closed in between.
    before = len(list(Path("/proc/self/fd").iterdir()))
    sealed(states.begin())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_state_opened_to_be_discarded_is_overwritten(states: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, take = list[Secret](), states.open

    def recorded(stored: bytes) -> tuple[OpenState, Secret]:
        state, secret = take(stored)
        secrets.append(secret)
        return state, secret

    stored = sealed(states.begin())
    monkeypatch.setattr(states, "open", recorded)
    states.discard(stored)
    assert [secret.is_wiped for secret in secrets] == [True]


def test_a_sweep_keeps_files_in_use_and_runs_once_an_hour(
    states: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of exactly two days is still in use, and the folder is swept after exactly one hour."""
    # A file's timestamp comes from a coarser clock.
    begun, now = time.time() - 10, [time.time()]
    monkeypatch.setattr("secagg.session.sealed_state.time.time", lambda: now[0])
    used, left = states.begin(), states.begin()
    os.utime(used.path, (begun, begun))
    os.utime(left.path, (begun - 1, begun - 1))
    now[0] = used.path.stat().st_mtime + 2 * 24 * 3600
    states.beside("pieces")
    assert used.path.exists()
    assert not left.path.exists()
    swept = states.folder / "swept"
    os.utime(swept, (now[0], now[0]))
    os.utime(used.path, (1000, 1000))
    now[0] = swept.stat().st_mtime + 3599
    states.beside("pieces")
    assert used.path.exists()
    now[0] = swept.stat().st_mtime + 3600
    states.beside("pieces")
    assert not used.path.exists()


def test_a_state_opened_to_be_discarded_is_overwritten_even_if_its_key_stays(
    states: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, made = sealed(states.begin()), secrets_from_now(monkeypatch)

    def stays(_: OpenState) -> None:
        raise OSError("the disk is lost")

    monkeypatch.setattr(OpenState, "destroy", stays)
    with pytest.raises(OSError, match="is lost"):
        states.discard(stored)
    assert [secret.kind for secret in made] == ["client state"]
    assert left_over(made) == []
