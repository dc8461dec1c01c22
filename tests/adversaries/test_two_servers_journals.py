"""The file in which a server writes down what it did: shared, altered, exchanged, or failing.

| attack | defence |
|---|---|
| a server is started twice on one journal, and signs two lists | the second process is refused |
| the journal is altered, so that a server forgets what it signed | every record has digests, its length included |
| a journal of another round, configuration or server | the first record says whose it is |
| a disk that fails, and may have written half | a journal that failed takes no further record |
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import InvalidParameters, MalformedMessage, Misuse
from secagg.protocols.two_servers.journal import Event, FileJournal, NoJournal
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

SETUP = IndexingSetup()


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[tuple[FileJournal, FileJournal]]:
    """Open the journals of both servers, and close them at the end."""
    opened = FileJournal(tmp_path / "zero"), FileJournal(tmp_path / "one")
    yield opened
    for journal in opened:
        journal.close()


def whole_round(journals: tuple[FileJournal, FileJournal]) -> InsecureIndexingRound:
    made = InsecureIndexingRound(SETUP, journals)
    for number in (1, 2, 3):
        made.upload(number)
    made.check()
    made.finish()
    return made


def test_a_second_process_on_one_journal_is_refused(journals: tuple[FileJournal, FileJournal]) -> None:
    """Two would sign two lists."""
    whole_round(journals)
    before = journals[0].path.read_bytes()
    with pytest.raises(InvalidParameters, match="another process"):
        FileJournal(journals[0].path)
    assert journals[0].path.read_bytes() == before


@pytest.mark.parametrize("index", [0, 1])
def test_a_journal_that_was_altered_anywhere_is_refused(
    index: int, journals: tuple[FileJournal, FileJournal], tmp_path: Path
) -> None:
    """Above all in the length of a record, which would make all that follows the beginning of one record."""
    ends, genuine = [0], journals[index].append
    path = journals[index].path

    def recording(event: Event, *fields: bytes) -> None:
        genuine(event, *fields)
        ends.append(path.stat().st_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals[index], "append", recording)
        whole_round(journals)
    journal, altered = bytearray(path.read_bytes()), tmp_path / "altered"
    heads = [at + offset for at in ends[:-1] for offset in range(30)]
    for position in (*heads, *range(0, len(journal), 101), len(journal) - 1):
        journal[position] ^= 4
        altered.write_bytes(journal)
        altered.chmod(0o600)
        with pytest.raises(MalformedMessage):
            FileJournal(altered)
        assert altered.read_bytes() == bytes(journal)
        journal[position] ^= 4


@pytest.mark.parametrize("changes", [{"round_number": 8}, {"task": b"another task"}, {}])
def test_a_journal_is_of_one_round_configuration_and_server(
    changes: dict[str, Any], journals: tuple[FileJournal, FileJournal]
) -> None:
    whole_round(journals)
    journals[0].close()
    other, reopened = InsecureIndexingRound(replace(SETUP, **changes)), FileJournal(journals[0].path)
    with pytest.raises(Misuse, match="another round, configuration or server"):
        other.restart(0 if changes else 1, reopened)
    reopened.close()


def test_a_journal_that_failed_takes_no_further_record(
    journals: tuple[FileJournal, FileJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals[0]
    journal.append(Event.BEGUN, b"first")

    def full(_: int) -> None:
        raise OSError(28, "no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            journal.append(Event.RECEIVED, b"second")
    with pytest.raises(Misuse):
        journal.append(Event.RECEIVED, b"second")
    again = FileJournal(journal.path)
    assert len(list(again.records())) in {1, 2}
    again.close()


def test_without_a_journal_nothing_is_remembered() -> None:
    journal = NoJournal()
    journal.append(Event.BEGUN, b"anything")
    assert list(journal.records()) == []
