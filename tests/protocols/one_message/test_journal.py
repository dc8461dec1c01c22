"""A holder's journal, file by file: what is written first, what a crash leaves, and what is gone when it is closed."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved
from secagg.protocols.one_message.journal import Event, FileJournal, Journal, JournalHead, Placements
from secagg.session import durable
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.stopped_files import Copy, Stopped, StoppedFiles, copy_of, put_back

MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- another file system than that of temporary files
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


def test_a_record_is_on_the_disk_before_its_head_and_the_mark_of_the_last_one_goes_at_the_end(tmp_path: Path) -> None:
    journal, order = opened(tmp_path / "holder"), list[tuple[str, ...]]()

    def watch() -> None:
        copy = copy_of(tmp_path / "holder")
        seen = (str(len(copy["records"])), str(JournalHead.decode(copy["head"]).number), *(n for n in copy if "." in n))
        if order[-1:] != [seen]:
            order.append(seen)

    with StoppedFiles(watch=watch).installed():
        journal.append(Event.BEGUN, b"1")
    written = str((tmp_path / "holder" / "records").stat().st_size)
    assert order[0] == ("0", "0", "mark.0")
    assert order[1:] == [
        (written, "0", "mark.0"),
        (written, "0", "mark.0", "mark.1"),
        (written, "0", "head.new", "mark.0", "mark.1"),
        (written, "1", "mark.0", "mark.1"),
        (written, "1", "mark.1"),
    ]
    journal.close()


def test_a_journal_in_files_keeps_everything_that_the_base_class_forgets() -> None:
    assert {name for name in vars(Journal) if not name.startswith("_")} <= vars(FileJournal).keys()


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


# --- Every write, and every copy --------------------------------------------------------------------------------------

STEPS: Final = (b"one", b"two", b"three", b"four")
RESTARTED: Final = b"three"


@dataclass
class Run:
    """A journal that is opened and written to, and what a caller was told by it."""

    folder: Path
    told: list[bytes] = field(default_factory=list[bytes])
    """The records whose writing returned; a restart empties them."""
    tried: list[bytes] = field(default_factory=list[bytes])
    """The records there would be after the write that was under way."""
    nonce: bytes | None = None
    journal: FileJournal | None = None

    def go(self, steps: Iterable[bytes] = STEPS, seed: bytes = b"journal") -> None:
        self.journal = opened(self.folder, seed)
        self.nonce = self.journal.nonce
        self.told = self.tried = [entry.parts[0] for entry in self.journal.records()]
        for step in steps:
            write = self.journal.restart if step == RESTARTED else self.journal.append
            self.tried = [step] if step == RESTARTED else [*self.told, step]
            write(Event.BEGUN, step)
            self.told = self.tried
        self.journal.close()

    def end(self) -> None:
        """End the process: its files are closed, and nothing else happens."""
        if self.journal is not None:
            self.journal.close()


def found_in(folder: Path) -> tuple[list[bytes], bytes]:
    """Open a folder, and return the records and the nonce that are in it."""
    journal = opened(folder, b"other coins")
    found = [entry.parts[0] for entry in journal.records()]
    journal.close()
    return found, journal.nonce


def writes_of(folder: Path) -> int:
    files = StoppedFiles()
    with files.installed():
        Run(folder).go()
    return files.calls


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_process_that_ends_at_any_write_continues_with_all_that_it_told(tmp_path: Path, *, is_partial: bool) -> None:
    for number in range(writes_of(tmp_path / "whole")):
        run = Run(tmp_path / f"{number}")
        with StoppedFiles(stop_before=number, is_partial=is_partial).installed(), pytest.raises(Stopped):
            run.go()
        run.end()
        found, nonce = found_in(run.folder)
        assert found in (run.told, run.tried), number
        assert run.nonce in (None, nonce), "the keys were told"
        again = Run(run.folder)
        again.go([b"four"])
        assert again.told == [*found, b"four"]
        assert not list(run.folder.glob("*.new"))
        assert len(list(run.folder.iterdir())) == 4


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_disk_that_is_full_at_any_write_loses_nothing_that_was_told(tmp_path: Path, *, is_partial: bool) -> None:
    for number in range(writes_of(tmp_path / "whole")):
        run = Run(tmp_path / f"{number}")
        with StoppedFiles(fail_at=number, is_partial=is_partial).installed(), pytest.raises(OSError, match="no space"):
            run.go()
        told, journal = run.told, run.journal
        if journal is not None and journal.is_open:
            # Room was made.
            journal.append(Event.BEGUN, b"more")
            told = run.tried = [*told, b"more"]
        run.end()
        found, nonce = found_in(run.folder)
        assert found in (told, run.tried), number
        assert run.nonce in (None, nonce)


SETS: Final = (
    ("secret", "records", "head", "mark"),
    ("records", "head", "mark"),
    ("records", "head"),
    ("records",),
    ("head",),
    ("head", "mark"),
    ("mark",),
)


def copies_of(folder: Path) -> list[tuple[int, Copy]]:
    """Return each state of the folder that anybody could copy, and how many records had been told by then."""
    run, found = Run(folder), list[tuple[int, Copy]]()
    told = list[list[bytes]]()

    def watch() -> None:
        if run.told and (not told or told[-1] != run.told):
            told.append(run.told)
        copy = copy_of(folder)
        if not found or copy != found[-1][1]:
            found.append((len(told), copy))

    with StoppedFiles(watch=watch).installed():
        run.go()
    return found


@pytest.mark.parametrize("by_renaming", [False, True])
@pytest.mark.parametrize("names", SETS, ids=" ".join)
def test_no_copy_that_is_put_back_forgets_what_was_told(
    names: tuple[str, ...], tmp_path: Path, *, by_renaming: bool
) -> None:
    """Copied at any write, put back after the next record or at the end, in whole or in part, beside what is there."""
    copies = copies_of(tmp_path / "copied")
    assert len(copies) > 20
    refused = 0
    for at, (told, copy) in enumerate(copies):
        chosen = {name: data for name, data in copy.items() if name.partition(".")[0] in names}
        for last in {min(told + 1, len(STEPS)), len(STEPS)}:
            run = Run(tmp_path / f"{at} {last}")
            # The coins are the same, so that the copy is of this very folder but for its times.
            with StoppedFiles().installed():
                run.go(STEPS[:last])
            if "secret" in names:
                for file in run.folder.iterdir():
                    file.unlink()
            put_back(run.folder, chosen, by_renaming=by_renaming)
            try:
                found, nonce = found_in(run.folder)
            except InvalidParameters:
                refused += 1
            else:
                # Fresh keys open no share that was ever sealed to this holder.
                assert found == run.told or (nonce != run.nonce and not found), (at, last)
    assert refused > 0 or names == ("records",)


def test_a_copy_of_what_a_crash_left_is_not_continued_from_twice(tmp_path: Path) -> None:
    """The crash is genuine, and so is its state, once: it is copied, continued from, and put back."""
    for number in range(writes_of(tmp_path / "whole")):
        run = Run(tmp_path / f"{number}")
        with StoppedFiles(stop_before=number, is_partial=True).installed(), pytest.raises(Stopped):
            run.go()
        run.end()
        copy = copy_of(run.folder)
        again = Run(run.folder)
        again.go([b"another"])
        for names in (SETS[1], SETS[2], SETS[4]):
            chosen = {name: data for name, data in copy.items() if name.partition(".")[0] in names}
            put_back(run.folder, chosen, by_renaming=False)
            try:
                found, _ = found_in(run.folder)
            except InvalidParameters:
                continue
            assert found == again.told, (number, names)


def test_records_that_are_cut_end_the_epoch_and_bytes_behind_them_do_not(tmp_path: Path) -> None:
    with_records(tmp_path / "holder", 2)
    records = tmp_path / "holder" / "records"
    kept = records.read_bytes()
    for behind in (b"\0", bytes(8), kept, (500).to_bytes(8, "big") + b"half of a record", b"\xff" * 9):
        records.write_bytes(kept + behind)
        assert found_in(records.parent)[0] == [b"\x00", b"\x01"]
        journal = opened(records.parent)
        list(journal.records())
        journal.close()
    for length in range(len(kept)):
        records.write_bytes(kept[:length])
        with pytest.raises(InvalidParameters, match="older than what this holder has done"):
            opened(records.parent)
    for place in range(0, len(kept), 7):
        records.write_bytes(kept[:place] + bytes([kept[place] ^ 1]) + kept[place + 1 :])
        with pytest.raises(InvalidParameters, match="older than what this holder has done"):
            opened(records.parent)
    records.write_bytes(kept)
    assert found_in(records.parent)[0] == [b"\x00", b"\x01"]


def test_a_folder_that_was_copied_elsewhere_is_not_opened_there(tmp_path: Path) -> None:
    """Times of files cannot be set; that of a link to the mark, or of one that was moved away, is its own."""
    folder = tmp_path / "holder"
    with_records(folder, 1)
    elsewhere = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        for target in (tmp_path / "copied", elsewhere / "holder"):
            subprocess.run(["cp", "-a", str(folder), str(target)], check=True)  # noqa: S603, S607
            with pytest.raises(InvalidParameters, match="was copied"):
                opened(target)
    finally:
        shutil.rmtree(elsewhere)
    # Moved as a whole it is no copy.
    folder.rename(tmp_path / "moved")
    assert found_in(tmp_path / "moved")[0] == [b"\x00"]
    (mark,) = (tmp_path / "moved").glob("mark.*")
    mark.rename(tmp_path / "aside")
    (tmp_path / "aside").rename(mark)
    with pytest.raises(InvalidParameters, match="was copied"):
        opened(tmp_path / "moved")


def test_a_journal_whose_files_are_exchanged_while_it_is_open_tells_nothing_more(tmp_path: Path) -> None:
    folder = tmp_path / "holder"
    journal = opened(folder)
    journal.append(Event.BEGUN, b"1")
    copy = copy_of(folder)
    put_back(folder, copy, by_renaming=True)
    # Another file is in the place of the records, and the folder is still locked.
    with pytest.raises(InvalidParameters, match="open in another process"):
        opened(folder)
    with pytest.raises(InvalidParameters, match="changed by somebody else"):
        journal.append(Event.BEGUN, b"2")
    with pytest.raises(Misuse, match="was closed"):
        journal.append(Event.BEGUN, b"2")
    journal.close()
    with pytest.raises(InvalidParameters, match="epoch is over"):
        opened(folder)


def test_marks_are_later_one_than_the_other_though_the_clock_of_the_file_system_is_coarse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that were made at one time could be exchanged."""
    journal, made = opened(tmp_path / "holder"), list[int]()
    for number in range(20):
        journal.append(Event.BEGUN, bytes([number]))
        (mark,) = (tmp_path / "holder").glob("mark.*")
        made.append(mark.stat().st_ctime_ns)
    assert made == sorted(set(made))
    monkeypatch.setattr("secagg.session.durable._MOST_TICKS", 2)
    head = journal._head  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    journal._head = dataclasses.replace(head, made=head.made + (1 << 60))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvalidParameters, match="clock of this machine"):
        journal.append(Event.BEGUN, b"back in time")
    journal.close()


# --- Calls that fail half-way -----------------------------------------------------------------------------------------


def test_a_journal_holds_two_files_open_and_none_after_it_was_closed_or_refused(tmp_path: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    journal = opened(tmp_path / "holder")
    assert count() == before + 2
    with pytest.raises(InvalidParameters, match="open in another process"):
        opened(tmp_path / "holder")
    assert count() == before + 2
    journal.close()
    assert count() == before


def test_a_journal_that_cannot_be_closed_is_over_and_its_root_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("planted")

    journal = opened(tmp_path / "holder")
    files = journal._files  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as failing:
        failing.setattr(files, "close", refuse)
        with pytest.raises(OSError, match="planted"):
            journal.close()
    assert journal.root.is_wiped
    with pytest.raises(Misuse, match="was closed"):
        journal.append(Event.BEGUN, b"1")
    files.close()


def test_a_journal_that_cannot_be_erased_has_overwritten_its_root(tmp_path: Path) -> None:
    journal = opened(tmp_path / "holder")
    with StoppedFiles(fail_at=0).installed(), pytest.raises(OSError, match="no space"):
        journal.erase()
    assert journal.root.is_wiped


def test_a_root_that_cannot_be_written_is_overwritten(tmp_path: Path) -> None:
    coins = KeptCoins()
    for number in range(4):
        with StoppedFiles(fail_at=number).installed(), suppress(OSError):
            FileJournal(tmp_path / f"{number}", RECORD, BOOT, coins).close()
    assert len(coins.given) > 4
    assert not any(any(drawn) for drawn in coins.given[::2])


def test_the_folder_is_flushed_once_the_last_mark_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is told after that, so that no crash brings the older head back."""
    journal, flushed = opened(tmp_path / "holder"), list[set[str]]()

    def sync(folder: Path) -> None:
        flushed.append({path.name for path in folder.iterdir()})

    monkeypatch.setattr(durable, "sync_folder", sync)
    journal.append(Event.BEGUN, b"1")
    assert flushed[-1] == {"secret", "records", "head", "mark.1"}
    journal.close()
