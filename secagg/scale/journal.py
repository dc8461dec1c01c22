"""What a coordinator writes down before it acts on it, so that one which was killed goes on.

A file of records in a chain: each has the digest of everything before it, so a record of another session, an older copy
put together with a newer one and a damaged file are refused. Of the last record a part may be missing: that is the
crash, and a length that was damaged does not look like one, because it is in the chain by itself. A coordinator holds
the file locked, so there is one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, SecAggError
from secagg.fields import Message, choice, repeated, variable
from secagg.session.durable import append_whole, claim, require_own_folder, sync_folder
from secagg.wire import MessageKind

from .work import Outcome, Wrong

_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32
_HEADER_BYTES: Final = _LENGTH_BYTES + 2 * _DIGEST_BYTES
_MAXIMUM_BYTES: Final = (1 << 32) - 1
_MAXIMUM_PARTS: Final = 1 << 21


class Event(IntEnum):
    """What a record says happened."""

    OPENED = 0
    """The digest of the invitation, and the coins that it was made with."""
    RECEIVED = 1
    """A sender, and its message without its vector."""
    DROPPED = 2
    """A client."""
    CLOSED = 3
    """A stage is to be closed, with what came so far."""
    ASKED = 4
    """The digest of requests to helpers, and every answer behind the number of its helper."""
    DONE = 5
    """The outcome of a job."""
    SETTLED = 6
    """An outcome that says whose vectors are not in the sum."""
    OVER = 7
    """The sum is about to be released, or was given up: nothing is released after this."""
    SHOWN = 8
    """It is closed, and clients may see what follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Message):
    """One record."""

    kind: ClassVar = MessageKind.SUM_RECORD
    event: Annotated[Event, choice(tuple(Event))]
    parts: Annotated[tuple[bytes, ...], repeated(variable(_MAXIMUM_BYTES), _MAXIMUM_PARTS)]


class Journal:
    """The records of one session, in a file of its own."""

    def __init__(self, path: Path) -> None:
        """Open a journal, or begin one; what was not written to its end is cut off.

        Raises:
            InvalidParameters: another process has it, or it is damaged before its end.
        """
        require_own_folder(path.parent)
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        try:
            claim(self._file.fileno(), f"{path} is in use; one coordinator at a time goes on with a session")
            sync_folder(path.parent)
            self._path = path
            self._chain: bytes = _link(b"", b"")
            self.past = tuple(self._read())
            """What was written in earlier lives."""
        except BaseException:
            self._file.close()
            raise
        self._done = {outcome.key: outcome for outcome in map(_outcome_of, self._past(Event.DONE))}
        self._settled = next((_outcome_of(record).wrong for record in self._past(Event.SETTLED)), None)

    def _past(self, event: Event) -> Iterator[Record]:
        return (record for record in self.past if record.event is event)

    def count(self, event: Event) -> int:
        """Return how often something had happened in earlier lives."""
        return sum(1 for _ in self._past(event))

    def _read(self) -> Iterator[Record]:
        data, at = self._file.read(), 0
        # A file may have grown before a power failure, and what was to stand there not been written.
        while len(data) - at >= _HEADER_BYTES and any(data[at : at + _HEADER_BYTES]):
            start = at + _HEADER_BYTES
            length, links = data[at : at + _LENGTH_BYTES], data[at + _LENGTH_BYTES : start]
            end, chain = start + int.from_bytes(length, "big"), _link(self._chain, length)
            is_whole = end <= len(data)
            if is_whole and chain == links[:_DIGEST_BYTES]:
                chain += _link(chain, data[start:end])
            if not links.startswith(chain):
                raise InvalidParameters(
                    f"{self._path} is damaged, or put together of journals of several sessions; nothing goes on from it"
                )
            if not is_whole:
                break
            self._chain, at = chain[_DIGEST_BYTES:], end
            try:
                yield Record.decode(data[start:end])
            except SecAggError as error:
                raise InvalidParameters(f"{self._path} is of another version: {error}") from None
        self._file.truncate(at)
        self._file.seek(at)

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""
        data = Record(event=event, parts=parts).encode()
        length = len(data).to_bytes(_LENGTH_BYTES, "big")
        first = _link(self._chain, length)
        second = _link(first, data)
        append_whole(self._file.fileno(), length + first + second + data)
        self._chain = second

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    # --- What a ``SpreadSum`` remembers -------------------------------------------------------------------------------

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a job that was done in an earlier life."""
        return self._done.get(key)

    def remember(self, outcome: Outcome) -> None:
        """Write an outcome down."""
        self.append(Event.DONE, outcome.encode())

    def settled(self, wrong: Iterable[Wrong] | None) -> Iterable[Wrong] | None:
        """Write down whose vectors are not in the sum; or return what was."""
        if wrong is not None:
            self.append(Event.SETTLED, Outcome(key="", wrong=tuple(wrong)).encode())
        return self._settled


def _link(chain: bytes, record: bytes) -> bytes:
    return hashlib.sha256(bind(Label.SUM_JOURNAL, chain, record)).digest()


def _outcome_of(record: Record) -> Outcome:
    return Outcome.decode(record.parts[0])
