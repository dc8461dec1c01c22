"""Files on a disk that fills up: old content stays, partial writes are removed, and the writer gets an error."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from secagg.cli.figures import write_json
from secagg.cli.groups import write_mean
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.session.durable import append_whole, create, erase, replace
from secagg.session.identities import make_identities
from secagg.session.ledger import NO_MODEL, Spent, SpentUpdates
from secagg.session.sealed_state import StateDirectory
from secagg.session.store import Store
from secagg.training.records import write_arrays, write_text
from secagg.transport.description import SessionDescription
from secagg.transport.keeping import ClientProgress, ClientStore, ServerRecord, ServerStore

DESCRIPTION = SessionDescription(
    session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
)
MANY = 240_000
Write = Callable[[Path, int], object]
"""Writes a file to a folder; the content depends on a number and has tens of thousands of bytes."""


def _record(folder: Path, number: int) -> None:
    ServerStore(folder).put(ServerRecord(DESCRIPTION.encode(), number, bytes(MANY)))


def _progress(folder: Path, number: int) -> None:
    store = ClientStore(StateDirectory(folder, coins=SystemCoins()), "http://sums", ClientId(1))
    store.put(ClientProgress(bytes(16), bytes(65), number, bytes(MANY), is_last=False, suspended=b""))


WRITERS: dict[str, Write] = {
    "any file": lambda folder, number: replace(folder / "file", bytes([number]) * MANY),
    "a mean": lambda folder, number: write_mean(folder / "mean", np.full(30_000, float(number))),
    "figures": lambda folder, number: write_json(folder / "figures.json", [number] * MANY),
    "a server's session": _record,
    "a checkpoint": lambda folder, number: write_arrays(folder / "arrays.npz", {"x": np.full(30_000, number)}),
    "a report": lambda folder, number: write_text(folder / "report.md", f"{number}" * MANY),
}


@contextmanager
def full_after(count: int) -> Generator[None]:
    """Limit the size of files: the kernel accepts part of a write and refuses the next one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize("room", [0, 1, 4096, 100_000, 221_184])
@pytest.mark.parametrize("name", WRITERS)
def test_old_content_survives_a_full_disk(folder: Path, name: str, room: int) -> None:
    write = WRITERS[name]
    write(folder, 1)
    before = contents(folder)
    with full_after(room), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        write(folder, 2)
    assert contents(folder) == before
    write(folder, 2)
    assert contents(folder) != before


@pytest.mark.parametrize("room", [0, 1, 4096, 221_184])
def test_the_progress_of_a_client_survives_if_the_next_state_cannot_be_written(folder: Path, room: int) -> None:
    _progress(folder, 1)
    before = contents(folder)
    with full_after(room), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        _progress(folder, 2)
    assert contents(folder) == before


@pytest.mark.parametrize("room", [0, 10, 100])
def test_keys_are_written_completely_or_not_at_all(folder: Path, room: int) -> None:
    make_identities(folder, map(ClientId, range(2)), SystemCoins())
    before = contents(folder)
    with full_after(room), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        make_identities(folder, map(ClientId, range(3)), SystemCoins())
    assert contents(folder) == before
    make_identities(folder, map(ClientId, range(3)), SystemCoins())
    assert "client-2.key" in contents(folder)


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_ledger_only_has_complete_transactions(folder: Path, room: int) -> None:
    """Each kind of file that a transaction writes can be the one that does not fit."""
    ledger = SpentUpdates(folder / "spent")
    ledger.charge(Spent(b"task", 1, bytes(32), NO_MODEL))
    before = contents(folder)["spent/state.db"]
    with full_after(room), pytest.raises(OSError, match="could not be read or written"):
        ledger.charge(Spent(b"task", 2, bytes([1]) * 32, NO_MODEL))
    assert contents(folder)["spent/state.db"] == before
    assert ledger.last(b"task") == 1
    ledger.charge(Spent(b"task", 2, bytes([1]) * 32, NO_MODEL))
    assert Store(folder / "spent").newest(b"", 0) == 0
    assert SpentUpdates(folder / "spent").last(b"task") == 2


class Disk:
    """A disk that accepts a few bytes at a time and refuses one of the writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
        self._write, self._refused, self.writes = os.write, refused, 0
        monkeypatch.setattr(os, "write", self.take)

    def take(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.writes == self._refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes += 1
        return self._write(descriptor, memoryview(data)[:7])


@pytest.mark.parametrize("refused", range(5))
def test_any_write_may_fail(folder: Path, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    def everything(number: int) -> None:
        replace(folder / "replaced", bytes([number]) * 30)
        with (folder / "appended").open("ab") as file:
            append_whole(file.fileno(), bytes([number]) * 30)

    everything(1)
    before = contents(folder)
    with monkeypatch.context() as patch:
        Disk(patch, refused)
        with pytest.raises(OSError, match="No space"):
            replace(folder / "replaced", bytes([2]) * 30)
        with (folder / "appended").open("ab") as file, pytest.raises(OSError, match="No space"):
            append_whole(file.fileno(), bytes([2]) * 30)
        with pytest.raises(OSError, match="No space"):
            create(folder / "created", bytes(30))
    assert contents(folder) == before
    with monkeypatch.context() as patch:
        disk = Disk(patch, 1000)
        everything(2)
        create(folder / "created", bytes(30))
        assert disk.writes == 15
    assert contents(folder) == {
        "replaced": bytes([2]) * 30,
        "appended": bytes([1]) * 30 + bytes([2]) * 30,
        "created": bytes(30),
    }


def _takes_nothing(*_: object) -> int:
    return 0


def test_a_disk_that_accepts_nothing_without_an_error_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", _takes_nothing)
    with pytest.raises(OSError, match="wrote nothing"):
        replace(folder / "file", b"data")
    assert not contents(folder)


def test_a_secret_is_removed_even_if_it_cannot_be_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(folder / "secret", bytes(range(100)))
    Disk(monkeypatch, 1)
    with pytest.raises(OSError, match="No space"):
        erase(folder / "secret")
    assert not contents(folder)


def test_files_of_a_killed_writer_are_removed(folder: Path) -> None:
    (folder / "file.new").write_bytes(b"half a secret")
    replace(folder / "file", b"data")
    assert contents(folder) == {"file": b"data"}
    (folder / "file.new").write_bytes(b"half a secret")
    erase(folder / "file")
    assert not contents(folder)


def test_no_file_is_written_through_a_planted_link(folder: Path) -> None:
    (folder / "victim").write_bytes(b"theirs")
    (folder / "file.new").symlink_to(folder / "victim")
    replace(folder / "file", b"data")
    assert contents(folder) == {"victim": b"theirs", "file": b"data"}


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_a_file_has_the_intended_mode(folder: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        replace(folder / "private", b"data")
        write_json(folder / "public.json", [])
        make_identities(folder / "keys", map(ClientId, range(2)), SystemCoins())
    finally:
        os.umask(before)
    found = {file.name: file.stat().st_mode & 0o777 for file in folder.rglob("*") if file.is_file()}
    public = 0o644 & ~mask
    assert found == {
        "private": 0o600,
        "public.json": public,
        "roster.txt": public,
        **dict.fromkeys(("authority.key", "client-0.key", "client-1.key"), 0o600),
    }
