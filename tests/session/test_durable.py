"""Files that are on disk when a call returns: what is synced, in which order, and what a failure leaves behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from secagg.errors import InvalidParameters
from secagg.session.durable import (
    append_whole,
    claim,
    create,
    erase,
    file_system_of,
    replace,
    replacing,
    require_own_folder,
    sync_folder,
    unlock,
)
from secagg.transport.keeping import ServerStore


class Disk:
    """Files that were synced, by their name at that time, and files that were opened but not closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed, self.contents = list[str](), list[bytes]()
        sync = os.fsync

        def synced(number: int) -> None:
            path = Path(f"/proc/self/fd/{number}").readlink()
            self.flushed.append(path.name)
            self.contents.append(path.read_bytes() if path.is_file() else b"")
            sync(number)

        monkeypatch.setattr(os, "fsync", synced)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_folder_is_private_to_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deep" / "down"
    require_own_folder(folder)
    require_own_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o710)
    with pytest.raises(InvalidParameters, match="private to this user"):
        require_own_folder(folder)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InvalidParameters, match="private to this user"):
        require_own_folder(folder)
    # Systems without file owners skip the check.
    monkeypatch.delattr(os, "getuid")
    require_own_folder(folder)


def test_a_file_is_created_once_and_its_name_is_synced(tmp_path: Path, disk: Disk) -> None:
    before = open_files()
    create(tmp_path / "made")
    assert disk.flushed == ["made", tmp_path.name]
    assert open_files() == before
    with pytest.raises(FileExistsError):
        create(tmp_path / "made")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_atomically_after_its_data_is_synced(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"what was there, and longer")
    replace(path, b"what is there")
    assert disk.flushed == ["kept.new", tmp_path.name]
    assert path.read_bytes() == b"what is there"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_data_is_appended_completely_or_not_at_all(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "kept", os.write
    with path.open("wb", buffering=0) as file:
        append_whole(file.fileno(), b"before")
        disk.flushed.clear()

        def few(number: int, data: bytes) -> int:
            return write(number, data[:3])

        monkeypatch.setattr(os, "write", few)
        append_whole(file.fileno(), b" and after")
    assert disk.flushed == ["kept"]
    assert path.read_bytes() == b"before and after"


def test_a_file_is_overwritten_on_disk_before_it_is_removed(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, beside = tmp_path / "kept", tmp_path / "beside"
    erase(path)
    path.write_bytes(b"secret" * 1000)
    os.link(path, beside)
    monkeypatch.setattr("secagg.session.durable._PIECE_BYTES", 1024)
    before, unlink = open_files(), Path.unlink

    def gone(self: Path, *, missing_ok: bool = False) -> None:
        assert disk.flushed == [tmp_path.name, "kept.erased"], "removed before it was overwritten"
        assert disk.contents[-1] == bytes(6000)
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", gone)
    erase(path)
    assert not path.exists()
    assert open_files() == before


def test_a_folder_is_synced_and_closed(tmp_path: Path, disk: Disk) -> None:
    before = open_files()
    sync_folder(tmp_path)
    assert disk.flushed == [tmp_path.name]
    assert open_files() == before


def test_a_lock_file_has_one_holder_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    with (tmp_path / "held").open() as first, (tmp_path / "held").open() as second:
        claim(first.fileno(), "somebody has it")
        with pytest.raises(InvalidParameters, match="somebody has it"):
            claim(second.fileno(), "somebody has it")


def test_a_closed_file_does_not_write_to_a_reused_descriptor(tmp_path: Path) -> None:
    """An archive that a full disk truncated writes its end when it is collected."""
    with pytest.raises(OSError, match="full"), replacing(tmp_path / "one") as file:
        raise OSError("full")
    with (tmp_path / "other").open("wb"), pytest.raises(ValueError, match="closed"):
        file.write(b"end")
    assert (tmp_path / "other").read_bytes() == b""
    assert not (tmp_path / "one").exists()


def test_new_and_grown_files_are_synced_with_all_their_data(tmp_path: Path, disk: Disk) -> None:
    create(tmp_path / "made", b"all of it")
    assert (tmp_path / "made").read_bytes() == disk.contents[0] == b"all of it"
    with (tmp_path / "grown").open("wb", buffering=0) as file:
        append_whole(file.fileno(), b"all of it")
    assert disk.contents[-1] == b"all of it"


def test_the_name_of_a_removed_file_is_synced(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "kept").write_bytes(b"secret")
    erase(tmp_path / "kept")
    assert disk.flushed == [tmp_path.name, "kept.erased", tmp_path.name]


@pytest.mark.parametrize("killed", ["unlink", "fsync"])
def test_an_interrupted_erasure_leaves_no_partial_file_and_is_finished_at_startup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """A record of zeros under its own name once kept a server from starting again."""
    path = tmp_path / "session.record"
    path.write_bytes(b"secret" * 1000)

    def gone(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"pathlib.Path.{killed}" if killed == "unlink" else f"os.{killed}", gone)
        with pytest.raises(KeyboardInterrupt):
            erase(path)
    assert not path.exists()
    path.write_bytes(b"the next")
    if killed == "unlink":
        assert [file.name for file in tmp_path.iterdir() if file != path] == ["session.record.erased"]
    tmp_path.chmod(0o700)
    ServerStore(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["session.record"]


def test_a_failed_replacement_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(InvalidParameters, match="is a folder"):
        replace(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def lost(*_: object) -> None:
    raise OSError("the disk is lost")


def test_a_replacement_that_cannot_be_renamed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", lost)
    with pytest.raises(OSError, match="is lost"):
        replace(tmp_path / "kept", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": b"old"}


def test_an_append_after_a_failed_one_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "grown").open("wb", buffering=0) as file:
        append_whole(file.fileno(), b"before")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lost)
            with pytest.raises(OSError, match="is lost"):
                append_whole(file.fileno(), b" in vain")
        assert (tmp_path / "grown").read_bytes() == b"before"
        append_whole(file.fileno(), b" and after")
    assert (tmp_path / "grown").read_bytes() == b"before and after"


def test_a_released_lock_may_be_taken_by_another(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    with (tmp_path / "held").open() as first, (tmp_path / "held").open() as second:
        claim(first.fileno(), "somebody has it")
        unlock(first.fileno())
        claim(second.fileno(), "somebody has it")


def test_only_linux_is_asked_for_the_type_of_a_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert file_system_of(Path("/proc")) == 0


def test_a_file_that_cannot_be_synced_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lost)
    with pytest.raises(OSError, match="is lost"):
        create(tmp_path / "made", b"data")
    assert not list(tmp_path.iterdir())
