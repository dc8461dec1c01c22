"""The file in which a server writes down what it did: shared, altered, exchanged, or failing.

| attack | defence |
|---|---|
| a server is started twice on one journal, and signs two lists | the second process is refused |
| the journal is altered, so that a server forgets what it signed | every record has digests, its length included |
| a journal of another round, configuration or server | the first record says whose it is |
| a whole record is taken out or exchanged | records are chained; list and commitment are compared with them |
| the other server guesses a small share from its commitment | a nonce that comes with the share alone |
| a disk that fails, and may have written half | a journal that failed takes no further record |
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.contract.layout import Layout, RingSegment
from secagg.errors import InvalidParameters, MalformedMessage, Misuse
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.journal import Event, FileJournal, Record
from secagg.protocols.two_servers.less_protected import NoJournal
from secagg.protocols.two_servers.server_messages import NONCE_BYTES, AcceptedList, OutputCommitment, RoundStamp
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


class Edited:
    """A journal from which somebody takes, or in which somebody exchanges, whole records; its chain is not checked."""

    def __init__(self, records: list[Record]) -> None:
        self.kept = records

    def append(self, event: Event, *fields: bytes) -> None:
        self.kept.append((event, fields))

    def records(self) -> Iterator[Record]:
        return iter(list(self.kept))


def edited_round() -> tuple[InsecureIndexingRound, list[Record]]:
    journals = Edited([]), Edited([])
    made = InsecureIndexingRound(SETUP, journals)
    for number in (1, 2, 3):
        made.upload(number)
        made.check()
    made.finish()
    return made, journals[0].kept


def test_a_server_releases_the_sum_that_it_signed_and_no_other() -> None:
    """Without what one client sent, its next share less the one before would be that client's input."""
    made, records = edited_round()
    client = next(place for place, record in enumerate(records) if record[0] is Event.RECEIVED)
    without = [record for place, record in enumerate(records) if not client <= place < client + 3]
    assert [event for event, _ in records[client : client + 3]] == [Event.RECEIVED, Event.ASKED, Event.TAKEN]
    with pytest.raises(MalformedMessage, match="it has signed another list than that of the uploads it has taken"):
        made.restart(0, Edited(without))
    with pytest.raises(MalformedMessage, match="it has signed another list"):
        made.restart(0, Edited([record for record in without if record[0] is not Event.AGREED]))


def test_a_server_opens_the_share_that_it_committed_to_and_no_other() -> None:
    made, records = edited_round()
    place = next(place for place, record in enumerate(records) if record[0] is Event.AGREED)
    peer_list, commitment = records[place][1]
    other = commitment[:-1] + bytes([commitment[-1] ^ 1])
    written = [*records[:place], (Event.AGREED, (peer_list, other)), *records[place + 1 :]]
    with pytest.raises(MalformedMessage, match="it has committed to another share"):
        made.restart(0, Edited(written))
    made.restart(0, Edited(records))


def test_a_commitment_does_not_tell_the_share() -> None:
    """A sum of one ring element has 2^16 shares: whoever hears a commitment tries them all."""
    setup = IndexingSetup(layout=Layout((RingSegment(16, 1),)), capacity=1 << 16)
    made = InsecureIndexingRound(setup)
    for number in (1, 2):
        made.upload(number)
    made.check()
    lists = made.zero.close(), made.one.close()
    commitment = made.zero.agree(lists[1])
    share = made.zero.open(made.one.agree(lists[0]))
    stamp = RoundStamp(context=made.configuration.context, round_number=setup.round_number, server=ServerId(0))
    listed = AcceptedList.decode(lists[0], made.configuration, stamp).entries_digest

    def found(nonce: bytes) -> bool:
        guesses = (share[: -2 - NONCE_BYTES] + nonce + guess.to_bytes(2, "little") for guess in range(1 << 16))
        return any(OutputCommitment.to(stamp, listed, guess).encode() == commitment for guess in guesses)

    assert not found(bytes(NONCE_BYTES)), "the nonce is needed, and comes with the share alone"
    assert found(share[-2 - NONCE_BYTES : -2])
    again = InsecureIndexingRound(setup)
    for number in (1, 2, 3):
        again.upload(number)
    again.check()
    more = again.zero.close(), again.one.close()
    again.zero.agree(more[1])
    other = again.zero.open(again.one.agree(more[0]))
    assert other[-2 - NONCE_BYTES : -2] != share[-2 - NONCE_BYTES : -2], "another list has another nonce"
