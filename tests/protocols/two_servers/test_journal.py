"""What a server writes down: whole records in order, whatever a crash cuts off, and nothing that was tampered with."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import stat
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.two_servers import journal as journal_module
from secagg.protocols.two_servers.journal import Event, FileJournal, Record, RoundFile
from secagg.protocols.two_servers.less_protected import NoJournal
from secagg.wire import Writer

RECORDS: list[Record] = [
    (Event.BEGUN, (b"root" * 8, b"\0" * 3)),
    (Event.RECEIVED, (b"",)),
    (Event.TAKEN, (b"u" * 32,)),
    (Event.FAILED, ()),
    (Event.ASKED, (b"a", b"b" * 40, b"\xff" * 7)),
]


def written(path: Path, records: list[Record] = RECORDS) -> list[int]:
    """Write records into a new journal, and return where each of them begins and the last one ends."""
    kept = FileJournal(path)
    edges = [0]
    for event, fields in records:
        kept.append(event, *fields)
        edges.append(path.stat().st_size)
    kept.close()
    return edges


def read(path: Path) -> list[Record]:
    kept = FileJournal(path)
    try:
        return list(kept.records())
    finally:
        kept.close()


@pytest.fixture(autouse=True, scope="module")
def waits_for_no_disk() -> Iterator[None]:
    """Leave out what only a power failure would show; one test below looks at it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", id)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "round.journal"


# --- Whole records ----------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_back_in_order(path: Path) -> None:
    written(path)
    assert read(path) == RECORDS
    assert read(path) == RECORDS, "reading changes nothing"


def test_a_journal_goes_on_where_it_ended(path: Path) -> None:
    written(path, RECORDS[:2])
    again = FileJournal(path)
    assert list(again.records()) == RECORDS[:2]
    for event, fields in RECORDS[2:]:
        again.append(event, *fields)
    again.close()
    assert read(path) == RECORDS


def test_a_new_journal_is_empty_and_its_owners_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        kept = FileJournal(path)
    finally:
        os.umask(before)
    assert list(kept.records()) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept.close()


def test_the_records_of_before_are_those_of_before(path: Path) -> None:
    written(path, RECORDS[:2])
    kept = FileJournal(path)
    kept.append(*RECORDS[2][:1], *RECORDS[2][1])
    assert list(kept.records()) == RECORDS[:2]
    kept.close()


def test_records_are_taken_once(path: Path) -> None:
    """A second server that got none would begin the round anew, and sign another list."""
    written(path)
    kept = FileJournal(path)
    assert list(kept.records()) == RECORDS
    with pytest.raises(Misuse) as caught:
        kept.records()
    assert caught.value.reason is Reason.ALREADY_SPENT
    kept.close()


@given(
    records=st.lists(
        st.tuples(st.sampled_from(Event), st.lists(st.binary(max_size=40), max_size=5).map(tuple)), max_size=6
    )
)
def test_any_records_are_read_back(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("journals") / "any"
    written(path, records)
    assert read(path) == records


def test_a_record_is_on_the_disk_when_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[tuple[int, bytes]]()

    def recorded(descriptor: int) -> None:
        synced.append((descriptor, path.read_bytes()))

    kept = FileJournal(path)
    monkeypatch.setattr(os, "fsync", recorded)
    kept.append(Event.TAKEN, b"u" * 32)
    assert [data for _, data in synced] == [path.read_bytes()]
    assert b"u" * 32 in synced[0][1]
    monkeypatch.undo()
    kept.close()


# --- What a crash leaves ----------------------------------------------------------------------------------------------


def test_the_name_of_a_new_journal_is_on_the_disk_before_anything_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a power failure takes with its name had records that were acted upon."""
    synced = list[Path]()
    monkeypatch.setattr(journal_module, "sync_folder", synced.append)
    FileJournal(path).close()
    assert synced == [path.parent]


def test_a_journal_that_was_cut_at_any_byte_holds_its_whole_records(path: Path, tmp_path: Path) -> None:
    edges = written(path)
    data, cut = path.read_bytes(), tmp_path / "cut"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        cut.chmod(0o600)
        whole = sum(edge <= length for edge in edges) - 1
        kept = FileJournal(cut)
        assert list(kept.records()) == RECORDS[:whole]
        assert cut.stat().st_size == edges[whole], "what was cut off is removed"
        kept.append(Event.REJECTED, b"u" * 32, b"a sentence")
        kept.close()
        assert read(cut) == [*RECORDS[:whole], (Event.REJECTED, (b"u" * 32, b"a sentence"))]


def test_a_damaged_record_is_refused_wherever_it_stands(path: Path) -> None:
    """Also the last one: what was written whole may have been acted upon, and a crash does not alter bytes."""
    written(path)
    data = path.read_bytes()
    for position in range(len(data)):
        for bit in (0, 7):
            altered = bytearray(data)
            altered[position] ^= 1 << bit
            path.write_bytes(altered)
            with pytest.raises(MalformedMessage, match=r"damaged") as caught:
                FileJournal(path)
            assert caught.value.reason is Reason.NOT_CANONICAL
            assert path.read_bytes() == bytes(altered), "nothing is removed from a journal that is refused"


def test_a_whole_record_that_was_taken_out_written_twice_or_swapped_is_refused(path: Path) -> None:
    """Each link covers all records before it; without that a server would act on a round that never was."""
    edges = written(path)
    data = path.read_bytes()
    records = [data[first:stop] for first, stop in pairwise(edges)]
    orders = [[order for order in range(5) if order != left_out] for left_out in range(4)]
    orders += [[0, 1, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 2, 1, 3, 4], [1, 0, 2, 3, 4], [0, 1, 2, 4, 3]]
    for order in orders:
        path.write_bytes(b"".join(records[number] for number in order))
        with pytest.raises(MalformedMessage, match="or not what was written there") as caught:
            FileJournal(path)
        assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_lost_tail_is_not_noticed_and_how_many_records_there_are_is_said(path: Path) -> None:
    edges = written(path)
    data = path.read_bytes()
    for count in range(len(RECORDS) + 1):
        path.write_bytes(data[: edges[count]])
        kept = FileJournal(path)
        assert kept.count == count
        kept.close()


def test_a_restart_needs_memory_for_one_record(path: Path) -> None:
    size = 1 << 21
    written(path, [(Event.RECEIVED, (bytes(size),))] * 12)
    kept = FileJournal(path)
    tracemalloc.start()
    assert sum(len(fields[0]) for _, fields in kept.records()) == 12 * size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept.close()
    assert peak < 6 * size


@pytest.mark.parametrize("event", [0, 11, 255])
def test_a_record_that_no_server_writes_is_refused(path: Path, event: int) -> None:
    fake: Any = event
    written(path, [(fake, (b"x",))])
    with pytest.raises(MalformedMessage, match="no server writes"):
        read(path)


def test_a_record_with_more_than_its_fields_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(kind: int) -> Writer:
        return _Longer(kind)

    class _Longer(Writer):
        def finish(self) -> bytes:
            return super().finish() + b"\0"

    monkeypatch.setattr(journal_module, "Writer", longer)
    written(path, RECORDS[:1])
    with pytest.raises(MalformedMessage) as caught:
        read(path)
    assert caught.value.reason is Reason.TRAILING_BYTES


def test_a_journal_that_is_refused_is_not_held(path: Path) -> None:
    """Whoever repairs it, or looks at it, finds it unlocked."""
    edges = written(path)
    data = bytearray(path.read_bytes())
    data[edges[1] - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(MalformedMessage):
        FileJournal(path)
    data[edges[1] - 1] ^= 1
    path.write_bytes(data)
    assert read(path) == RECORDS


# --- Whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601, 0o602, 0o620, 0o777])
def test_a_journal_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    written(path)
    path.chmod(mode)
    with pytest.raises(InvalidParameters, match="600"):
        FileJournal(path)
    assert path.stat().st_size > 0, "nothing is removed"
    path.chmod(0o600)
    assert read(path) == RECORDS


def test_a_journal_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "nowhere" / "journal"):
        with pytest.raises(InvalidParameters, match="cannot be opened"):
            FileJournal(where)


def test_a_journal_is_open_once(path: Path) -> None:
    """Two servers on one journal would each sign a list of their own."""
    kept = FileJournal(path)
    with pytest.raises(InvalidParameters, match="another process"):
        FileJournal(path)
    kept.append(Event.FAILED)
    kept.close()
    assert read(path) == [(Event.FAILED, ())]


# --- The end ----------------------------------------------------------------------------------------------------------


def test_erasing_overwrites_every_byte_before_the_file_is_removed(path: Path, tmp_path: Path) -> None:
    kept = FileJournal(path)
    for event, fields in RECORDS:
        kept.append(event, *fields)
    kept.append(Event.RECEIVED, b"s" * (1 << 21))
    size = path.stat().st_size
    other_name = tmp_path / "another name of the same file"
    os.link(path, other_name)
    kept.erase()
    assert not path.exists()
    assert other_name.read_bytes() == bytes(size)


def test_a_journal_that_was_closed_is_erased_as_well(path: Path, tmp_path: Path) -> None:
    kept = FileJournal(path)
    kept.append(*RECORDS[0][:1], *RECORDS[0][1])
    other_name = tmp_path / "another name of the same file"
    os.link(path, other_name)
    kept.close()
    kept.erase()
    assert not path.exists()
    assert not any(other_name.read_bytes())


def test_nothing_is_written_after_the_end(path: Path, tmp_path: Path) -> None:
    for name, end in (("closed", FileJournal.close), ("erased", FileJournal.erase)):
        kept = FileJournal(tmp_path / name)
        kept.append(Event.FAILED)
        end(kept)
        with pytest.raises(Misuse, match="closed") as caught:
            kept.append(Event.FAILED)
        assert caught.value.reason is Reason.ALREADY_SPENT
    assert read(tmp_path / "closed") == [(Event.FAILED, ())]
    assert not path.exists()


def test_an_append_that_failed_ends_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what of it is there; a second try could write it twice."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    kept = FileJournal(path)
    kept.append(*RECORDS[0][:1], *RECORDS[0][1])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        kept.append(Event.TAKEN, b"u" * 32)
    monkeypatch.undo()
    with pytest.raises(Misuse):
        kept.append(Event.TAKEN, b"u" * 32)
    shutil.copy(path, path.with_suffix(".copy"))
    assert read(path) in ([RECORDS[0]], [RECORDS[0], (Event.TAKEN, (b"u" * 32,))])


def test_a_journal_is_neither_copied_nor_pickled_nor_shown(path: Path) -> None:
    kept = FileJournal(path)
    kept.append(*RECORDS[0][:1], *RECORDS[0][1])
    for call in (lambda: copy.copy(kept), lambda: copy.deepcopy(kept), lambda: pickle.dumps(kept)):
        with pytest.raises(Misuse):
            call()
    assert "rootroot" not in repr(kept)
    kept.close()


# --- The file of the round that runs ----------------------------------------------------------------------------------


def test_the_file_of_a_round_is_opened_again_and_stays_until_it_is_erased(path: Path) -> None:
    """A file that was left open would be held against its own server."""
    store = RoundFile(path)
    store.close()
    store.open().append(*RECORDS[0][:1], *RECORDS[0][1])
    assert list(store.open().records()) == RECORDS[:1]
    store.close()
    assert read(path) == RECORDS[:1]
    store.open()
    store.erase()
    assert not path.exists()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_round_that_is_over_is_erased_whether_its_file_is_open_closed_or_damaged(
    path: Path, tmp_path: Path, *, is_damaged: bool
) -> None:
    edges = written(path)
    os.link(path, tmp_path / "kept")
    if is_damaged:
        data = bytearray(path.read_bytes())
        data[edges[1] - 1] ^= 1
        path.write_bytes(data)
    RoundFile(path).erase()
    assert not path.exists()
    assert not any((tmp_path / "kept").read_bytes())


def test_no_journal_remembers_nothing() -> None:
    kept = NoJournal()
    kept.append(Event.BEGUN, b"root")
    assert list(kept.records()) == []


def test_the_events_are_pinned() -> None:
    """A journal is read by the version that comes after the one that wrote it."""
    assert {event.name: event.value for event in Event} == {
        "BEGUN": 1,
        "RECEIVED": 2,
        "ASKED": 3,
        "CONCLUDED": 4,
        "TAKEN": 5,
        "REJECTED": 6,
        "SIGNED": 7,
        "AGREED": 8,
        "OPENED": 9,
        "FAILED": 10,
    }
