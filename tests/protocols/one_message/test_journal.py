"""A holder's journal, file by file: what is written first, what a crash leaves, and what is gone when it is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved
from secagg.protocols.one_message.journal import Event, FileJournal, Placements
from secagg.session.durable import replace
from secagg.simulation.insecure_coins import InsecureSeededCoins

RECORD, BOOT = bytes(32), b"since this morning"


class KeptCoins(InsecureSeededCoins):
    """Coins that keep what they gave, so that it can be looked at."""

    def __init__(self, seed: bytes = b"journal") -> None:
        super().__init__(seed)
        self.given = list[bytearray]()

    def draw(self, count: int) -> bytearray:
        self.given.append(super().draw(count))
        return self.given[-1]


def opened(folder: Path, seed: bytes = b"journal") -> FileJournal:
    return FileJournal(folder, RECORD, BOOT, InsecureSeededCoins(seed))


def with_records(folder: Path, count: int) -> None:
    made = opened(folder)
    for number in range(count):
        made.append(Event.BEGUN, bytes([number]))
    made.close()


# --- A second list ----------------------------------------------------------------------------------------------------


def test_a_sum_and_an_upload_are_each_on_one_list() -> None:
    """Either rule alone lets a server take a difference: of two lists of one sum, of one upload in two sums."""
    placements = Placements()
    placements.place(b"sum", b"list", (b"upload",))
    placements.require_free(b"sum", b"list", (b"upload",))
    with pytest.raises(PeerMisbehaved, match="a sum has one list"):
        placements.require_free(b"sum", b"other list", (b"other upload",))
    with pytest.raises(PeerMisbehaved, match="an upload is on one list ever"):
        placements.require_free(b"other sum", b"other list", (b"fresh upload", b"upload"))
    placements.require_free(b"other sum", b"other list", (b"other upload",))


# --- What is written, and when ----------------------------------------------------------------------------------------


def test_a_record_is_on_the_disk_before_its_head_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, order = opened(tmp_path / "holder"), list[str]()
    records, sync = (tmp_path / "holder" / "records").stat().st_ino, os.fsync

    def synced(number: int) -> None:
        if os.fstat(number).st_ino == records:
            order.append("record")
        sync(number)

    def replaced(path: Path, data: bytes) -> None:
        order.append(path.name)
        replace(path, data)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr("secagg.protocols.one_message.journal.replace", replaced)
    journal.append(Event.BEGUN, b"1")
    assert order == ["record", "head"]
    journal.close()


def test_what_is_closed_or_was_read_is_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path / "holder")
    assert list(journal.records()) == []
    with pytest.raises(Misuse, match=r"open the journal .* again"):
        journal.records()
    journal.append(Event.BEGUN, b"1")
    kept = (tmp_path / "holder" / "records").read_bytes()
    journal.close()
    assert journal.root.is_wiped
    for write in (journal.append, journal.restart):
        with pytest.raises(Misuse, match="was closed"):
            write(Event.BEGUN, b"2")
    assert (tmp_path / "holder" / "records").read_bytes() == kept


def test_an_erased_journal_is_closed_and_its_folder_empty(tmp_path: Path) -> None:
    journal = opened(tmp_path / "holder")
    journal.append(Event.BEGUN, b"1")
    journal.erase()
    assert journal.root.is_wiped
    assert not any((tmp_path / "holder").iterdir())
    with pytest.raises(Misuse, match="was closed"):
        journal.append(Event.BEGUN, b"2")


def test_a_restarted_journal_holds_its_one_record(tmp_path: Path) -> None:
    journal = opened(tmp_path / "holder")
    journal.append(Event.BEGUN, b"a longer record than the next one")
    journal.restart(Event.BEGUN, b"2")
    journal.close()
    again = opened(tmp_path / "holder")
    assert [entry.parts for entry in again.records()] == [(b"2",)]
    again.close()


def test_what_the_root_was_drawn_into_is_overwritten(tmp_path: Path) -> None:
    coins = KeptCoins()
    journal = FileJournal(tmp_path / "holder", RECORD, BOOT, coins)
    assert bytes(coins.given[0]) == bytes(32)
    assert bytes(journal.root.expose()) != bytes(32)
    journal.close()


# --- What a crash leaves ----------------------------------------------------------------------------------------------


def test_a_secret_that_a_crash_kept_from_its_place_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has heard of it yet, so the epoch is not over for this holder."""
    folder = tmp_path / "holder"

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FileJournal, "_write_head", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(folder)
    lost = (folder / "secret").read_bytes()
    journal = opened(folder, b"other coins")
    assert (folder / "secret").read_bytes() != lost
    journal.append(Event.BEGUN, b"1")
    journal.close()
    again = opened(folder, b"no coins are drawn")
    assert again.nonce == journal.nonce
    assert len(list(again.records())) == 1
    again.close()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("lost", [("secret",), ("secret", "records"), ("secret", "head")])
def test_a_folder_without_its_secret_is_not_begun_anew(count: int, lost: tuple[str, ...], tmp_path: Path) -> None:
    """One record without a head is what a crash leaves, so that a fresh secret beside it would go unnoticed."""
    folder = tmp_path / "holder"
    with_records(folder, count)
    for name in lost:
        (folder / name).unlink()
    with pytest.raises(InvalidParameters, match="records and no secret"):
        opened(folder)
    assert not (folder / "secret").exists()


def test_a_record_of_no_bytes_is_a_damaged_one(tmp_path: Path) -> None:
    with_records(tmp_path / "holder", 2)
    with (tmp_path / "holder" / "records").open("ab") as records:
        records.write(bytes(8))
    with pytest.raises(MalformedMessage):
        opened(tmp_path / "holder")


@pytest.mark.parametrize("cut", [1, 8, 9, 20])
def test_the_beginning_of_a_record_is_cut_off(cut: int, tmp_path: Path) -> None:
    folder = tmp_path / "holder"
    with_records(folder, 2)
    kept = (folder / "records").read_bytes()
    with (folder / "records").open("ab") as records:
        records.write(kept[: min(cut, len(kept) - 1)][:cut])
    journal = opened(folder)
    assert len(list(journal.records())) == 2
    assert (folder / "records").read_bytes() == kept
    journal.append(Event.BEGUN, b"3")
    journal.close()
    again = opened(folder)
    assert [entry.parts[0] for entry in again.records()] == [b"\x00", b"\x01", b"3"]
    again.close()
