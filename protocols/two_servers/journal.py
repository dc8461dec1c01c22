"""What a server writes down before it acts, so that it can go on after a crash and does nothing twice.

A server's state is what its records say, one after the other: it writes a record, and then applies it. To take an
upload and to add it to the sum is one record. Nothing is sent that was not written down; what is sent again after a
crash is computed again and compared with the digest that was written down, or is the record itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.wire import MessageKind, Reader, Writer

_LENGTH_BYTES: Final = 8
_HEAD_CHECK_BYTES: Final = 8
_CHECK_BYTES: Final = 16
_HEAD_BYTES: Final = _LENGTH_BYTES + _HEAD_CHECK_BYTES + _CHECK_BYTES
_OWNER_ONLY: Final = 0o600
_ERASED_BYTES: Final = 1 << 20
MAXIMUM_FIELD_BYTES: Final = (1 << 32) - 1


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
    """The other server's list, which is the same."""
    OPENED = 9
    """The other server's commitment, against which this one's share was opened."""
    FAILED = 10
    """The round is given up, and why."""
    DEALT = 11
    """A dealer's correlations, as they came."""


Record = tuple[Event, tuple[bytes, ...]]


class Journal(Protocol):
    """The records of one server and round."""

    def append(self, event: Event, *fields: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""
        ...

    def records(self) -> Iterator[Record]:
        """Return what was written down before this server was made, in order."""
        ...


class NoJournal:
    """Writes nothing down: whoever uses it gives a round up after a crash, and its round number with it."""

    def append(self, event: Event, *fields: bytes) -> None:
        """Forget a record."""

    def records(self) -> Iterator[Record]:
        """Return nothing."""
        return iter(())


class FileJournal(Confined):
    """Records in one file of its owner's, each with its length and digests, flushed to the disk before it counts.

    One process has it open at a time. What a crash may leave behind the last whole record is the beginning of another
    one, and is removed; anything else that is wrong with the file is refused, because a record that was lost may have
    been acted upon.

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
        try:
            self._claim()
            self._records: list[Record] | None = self._whole_records()
        except BaseException:
            self._file.close()
            raise

    def append(self, event: Event, *fields: bytes) -> None:
        """Write a record down, and flush it to the disk."""
        writer = Writer(MessageKind.INDEXING_RECORD).integer(event, 1).integer(len(fields), 1)
        for part in fields:
            writer.integer(len(part), 4).borrowed(part)
        record = writer.finish()
        if self._file.closed:
            raise Misuse(f"the journal {self.path} was closed", reason=Reason.ALREADY_SPENT)
        try:
            self._file.write(_head(record))
            self._file.write(record)
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:
            # Nobody knows how much of the record is there. Whoever opens the file again does.
            with suppress(OSError):
                self._file.close()
            raise

    def records(self) -> Iterator[Record]:
        """Return what the file held when it was opened, once.

        Raises:
            Misuse: they were taken before; a second server of this object would begin the round anew.
        """
        records, self._records = self._records, None
        if records is None:
            raise Misuse(f"open the journal {self.path} again to go on with it", reason=Reason.ALREADY_SPENT)
        return iter(records)

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    def erase(self) -> None:
        """Overwrite the file with zeros and remove it; a file that is gone is erased."""
        self.close()
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for start in range(0, size, _ERASED_BYTES):
                file.write(bytes(min(_ERASED_BYTES, size - start)))
            file.flush()
            os.fsync(file.fileno())
        self.path.unlink()

    def _claim(self) -> None:
        """Make sure that nobody else reads the file or writes to it, and that a crash does not lose its name."""
        import fcntl  # noqa: PLC0415 -- where there is none, there are servers without a journal

        if os.fstat(self._file.fileno()).st_mode & 0o077:
            raise InvalidParameters(f"the journal {self.path} is readable by others; chmod it to 600, or remove it")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidParameters(
                f"the journal {self.path} is open in another process; two servers of one round would sign two lists"
            ) from None
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise InvalidParameters(f"the folder of {self.path} cannot be written down: {error.strerror}") from None

    def _whole_records(self) -> list[Record]:
        """Read all records, and cut off what a crash left of a last one."""
        found, end = list[Record](), 0
        size = os.fstat(self._file.fileno()).st_size
        while end < size:
            head = self._file.read(_HEAD_BYTES)
            if len(head) < _HEAD_BYTES:
                break
            length = int.from_bytes(head[:_LENGTH_BYTES], "big")
            if _digest(head[:_LENGTH_BYTES])[:_HEAD_CHECK_BYTES] != head[_LENGTH_BYTES:-_CHECK_BYTES]:
                raise self._damaged(len(found))
            if end + _HEAD_BYTES + length > size:
                break
            record = self._file.read(length)
            if _digest(record)[:_CHECK_BYTES] != head[-_CHECK_BYTES:]:
                raise self._damaged(len(found))
            found.append(_decoded(record))
            end += _HEAD_BYTES + length
        self._file.truncate(end)
        self._file.seek(end)
        return found

    def _damaged(self, number: int) -> MalformedMessage:
        sentence = f"record {number} of the journal {self.path} is damaged; give its round up"
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


def _head(record: bytes) -> bytes:
    """Return what stands before a record: its length, the digest of that, and the digest of the record."""
    length = len(record).to_bytes(_LENGTH_BYTES, "big")
    return length + _digest(length)[:_HEAD_CHECK_BYTES] + _digest(record)[:_CHECK_BYTES]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
