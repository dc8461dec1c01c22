"""The journal of a server: what it writes down before it acts, so that it goes on after a crash and does nothing twice.

A server's state is what its records say, one after the other: it writes a record, and then applies it. To take an
upload and to add it to the sum is one record. Nothing is sent that was not written down; what is sent again after a
crash is computed again and compared with the digest that was written down, or is the record itself.

Records are chained: each carries a digest of itself and of all records before it. A lost, altered or swapped record is
found when the file is opened. A lost tail is not: a file that was rolled back to an earlier record looks as it did
then. So restore no journal from a backup; give the round up instead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.session.durable import claim, erase, sync_folder
from secagg.wire import MessageKind, Reader, Writer

_LENGTH_BYTES: Final = 8
_HEAD_CHECK_BYTES: Final = 8
_LINK_BYTES: Final = 32
_HEAD_BYTES: Final = _LENGTH_BYTES + _HEAD_CHECK_BYTES + _LINK_BYTES
_OWNER_ONLY: Final = 0o600
_PIECE_BYTES: Final = 1 << 20


class Event(IntEnum):
    """What a record says happened."""

    BEGUN = 1
    """The round's configuration digest and number, the server, and the root of its sealing key."""
    RECEIVED = 2
    """An upload, as it came."""
    ASKED = 3
    """An upload's id, what the other server said of it, and the digest of what this one says."""
    CONCLUDED = 4
    """The digest of an answer, and the conclusion in which server 1 names the uploads that it takes."""
    TAKEN = 5
    """An upload that server 0 takes."""
    REJECTED = 6
    """An upload that is not taken, and why."""
    SIGNED = 7
    """The one list that this server signs."""
    AGREED = 8
    """The other server's list, which is the same; and this server's commitment."""
    OPENED = 9
    """The other server's commitment, against which this one's share was opened."""
    FAILED = 10
    """The round is given up, and why."""


Record = tuple[Event, tuple[bytes, ...]]


class Journal(Protocol):
    """The records of one server and round."""

    def append(self, event: Event, *fields: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""
        ...

    def records(self) -> Iterator[Record]:
        """Return what was written down before this server was made, in order."""
        ...


class FileJournal(Confined):
    """Records in one file of its owner's, each with its length and its link of the chain, on the disk before it counts.

    One process has it open at a time. What a crash may leave behind the last whole record is the beginning of another
    one, and is removed; anything else that is wrong with the file is refused, because a record that was lost may have
    been acted upon. Records are read one at a time: a restart needs memory for one of them.

    Security: the file holds the root of the round's sealing key and uploads that it opens. ``erase`` it after the
    round; what the file system keeps of it is beyond reach.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file; a last record that a crash cut off is removed.

        Raises:
            InvalidParameters: the file cannot be opened, is readable by others, or is open in another process.
            MalformedMessage: a record is damaged.
        """
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        except OSError as error:
            raise InvalidParameters(f"the journal {path} cannot be opened: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "r+b")
        self._was_read = False
        try:
            self._claim()
            self._link = _FIRST_LINK
            self._count = 0
            self._end = self._check_records()
        except BaseException:
            self._file.close()
            raise

    @property
    def count(self) -> int:
        """How many records the file held when it was opened."""
        return self._count

    def append(self, event: Event, *fields: bytes) -> None:
        """Write a record down, and flush it to the disk."""
        writer = Writer(MessageKind.INDEXING_RECORD).integer(event, 1).integer(len(fields), 1)
        for part in fields:
            writer.integer(len(part), 4).borrowed(part)
        record = writer.finish()
        link = _link(self._link, [record])
        if self._file.closed:
            raise Misuse(f"the journal {self.path} was closed", reason=Reason.ALREADY_SPENT)
        try:
            self._file.write(_head(len(record)) + link)
            self._file.write(record)
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:
            # Nobody knows how much of the record is there. Whoever opens the file again does.
            with suppress(OSError):
                self._file.close()
            raise
        self._link = link

    def records(self) -> Iterator[Record]:
        """Return what the file held when it was opened, once.

        Raises:
            Misuse: they were taken before; a second server of this object would begin the round anew.
        """
        if self._was_read:
            raise Misuse(f"open the journal {self.path} again to go on with it", reason=Reason.ALREADY_SPENT)
        self._was_read = True
        return self._stored()

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    def erase(self) -> None:
        """Overwrite the file with zeros and remove it; a file that is gone is erased."""
        self.close()
        erase(self.path)

    def _claim(self) -> None:
        """Make sure that nobody else reads the file or writes to it, and that a crash does not lose its name."""
        if os.fstat(self._file.fileno()).st_mode & 0o077:
            raise InvalidParameters(f"the journal {self.path} is readable by others; chmod it to 600, or remove it")
        claim(
            self._file.fileno(),
            f"the journal {self.path} is open in another process; two servers of one round would sign two lists",
        )
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise InvalidParameters(f"the folder of {self.path} cannot be written down: {error.strerror}") from None

    def _check_records(self) -> int:
        """Check the chain, cut off what a crash left of a last record, and return where the records end."""
        end, size = 0, os.fstat(self._file.fileno()).st_size
        while end < size:
            head = self._file.read(_HEAD_BYTES)
            if len(head) < _HEAD_BYTES:
                break
            length = int.from_bytes(head[:_LENGTH_BYTES], "big")
            if _head(length) != head[:-_LINK_BYTES]:
                raise self._damaged()
            if end + _HEAD_BYTES + length > size:
                break
            link = _link(self._link, self._pieces(end + _HEAD_BYTES, length))
            if link != head[-_LINK_BYTES:]:
                raise self._damaged()
            self._link = link
            self._count += 1
            end += _HEAD_BYTES + length
            self._file.seek(end)
        self._file.truncate(end)
        self._file.seek(end)
        return end

    def _stored(self) -> Iterator[Record]:
        place = 0
        while place < self._end:
            length = int.from_bytes(b"".join(self._pieces(place, _LENGTH_BYTES)), "big")
            yield _decoded(b"".join(self._pieces(place + _HEAD_BYTES, length)))
            place += _HEAD_BYTES + length

    def _pieces(self, place: int, length: int) -> Iterator[bytes]:
        for start in range(place, place + length, _PIECE_BYTES):
            yield os.pread(self._file.fileno(), min(_PIECE_BYTES, place + length - start), start)

    def _damaged(self) -> MalformedMessage:
        sentence = (
            f"record {self._count} of the journal {self.path} is damaged, or not what was written there; give its "
        )
        sentence += "round up"
        return MalformedMessage(sentence, reason=Reason.NOT_CANONICAL)

    def __repr__(self) -> str:
        return f"<FileJournal {self.path}>"


def _decoded(record: bytes) -> Record:
    reader = Reader(record, MessageKind.INDEXING_RECORD)
    try:
        event = Event(reader.integer(1))
    except ValueError:
        raise MalformedMessage("a record says what no server writes", reason=Reason.NOT_CANONICAL) from None
    fields = tuple(bytes(reader.view(reader.integer(4))) for _ in range(reader.integer(1)))
    reader.finish()
    return event, fields


def _head(length: int) -> bytes:
    """Return the length of a record, and a digest of it: a damaged length must not look like a record cut off."""
    encoded = length.to_bytes(_LENGTH_BYTES, "big")
    return encoded + hashlib.sha256(encoded).digest()[:_HEAD_CHECK_BYTES]


def _link(previous: bytes, pieces: Iterable[bytes]) -> bytes:
    """Return the link of a record: a digest of it and of the link before."""
    digest = hashlib.sha256(bind(Label.INDEXING_JOURNAL, previous))
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


_FIRST_LINK: Final = bytes(_LINK_BYTES)


class RoundFile:
    """Where a standing server keeps the journal of the round that runs: one file, erased when the round is over."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self.path = path
        self._journal: FileJournal | None = None

    def open(self) -> FileJournal:
        """Open the round's journal, or begin one.

        Raises:
            InvalidParameters, MalformedMessage: as ``FileJournal`` does.
        """
        self.close()
        self._journal = FileJournal(self.path)
        return self._journal

    def close(self) -> None:
        """Close the file, which stays: the round goes on when it is opened again."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def erase(self) -> None:
        """Overwrite and remove the file: the round is over, also one whose file is damaged.

        Raises:
            InvalidParameters: the file is open in another process, or readable by others.
        """
        journal, self._journal = self._journal, None
        try:
            journal = journal or FileJournal(self.path)
        except MalformedMessage:
            erase(self.path)
        else:
            journal.erase()
