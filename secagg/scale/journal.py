"""What a coordinator writes down before it acts on it, so that one which was killed goes on.

A file of records in a chain: each has the digest of everything before it, so a record of another session, an older copy
put together with a newer one and a damaged file are refused. Of the last record a part may be missing: that is the
crash. A coordinator holds the file locked, so there is one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, SecAggError
from secagg.fields import Message, choice, repeated, variable
from secagg.identifiers import ClientId
from secagg.session.durable import claim, require_own_folder
from secagg.wire import MessageKind

from .work import Outcome

_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32
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
    """A stage."""
    ASKED = 4
    """The digest of requests to helpers, and every answer behind the number of its helper."""
    DONE = 5
    """The outcome of a job."""
    SETTLED = 6
    """Clients whose vectors are not in the sum, each with a byte that says if it signed what is wrong, and why."""
    OVER = 7
    """The sum is about to be released, or was given up: nothing is released after this."""


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
            self._chain, self._path = _link(b"", b""), path
            self.past = tuple(self._read())
            """What was written in earlier lives."""
        except BaseException:
            self._file.close()
            raise
        self._done = {outcome.key: outcome for outcome in map(_outcome_of, self._past(Event.DONE))}
        self._settled = next((_wrong_of(record) for record in self._past(Event.SETTLED)), None)

    def _past(self, event: Event) -> Iterator[Record]:
        return (record for record in self.past if record.event is event)

    def _read(self) -> Iterator[Record]:
        data, at = self._file.read(), 0
        while len(data) - at >= _LENGTH_BYTES + _DIGEST_BYTES:
            start = at + _LENGTH_BYTES + _DIGEST_BYTES
            end = start + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
            if end > len(data):
                break
            chain = _link(self._chain, data[start:end])
            if chain != data[at + _LENGTH_BYTES : start]:
                raise InvalidParameters(
                    f"{self._path} is damaged, or put together of journals of several sessions; nothing goes on from it"
                )
            self._chain, at = chain, end
            try:
                yield Record.decode(data[start:end])
            except SecAggError as error:
                raise InvalidParameters(f"{self._path} is of another version: {error}") from None
        self._file.truncate(at)
        self._file.seek(at)

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""
        data = Record(event=event, parts=parts).encode()
        self._chain = _link(self._chain, data)
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + self._chain + data)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    # --- What a ``SpreadSum`` remembers -------------------------------------------------------------------------------

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a job that was done in an earlier life."""
        return self._done.get(key)

    def remember(self, outcome: Outcome) -> None:
        """Write an outcome down."""
        self.append(Event.DONE, outcome.key.encode(), outcome.digest, *_wrong_parts(_by_client(outcome)))

    def settled(self, wrong: Mapping[ClientId, tuple[str, bool]] | None) -> Mapping[ClientId, tuple[str, bool]] | None:
        """Write down whose vectors are not in the sum; or return what was."""
        if wrong is not None:
            self.append(Event.SETTLED, *_wrong_parts(wrong))
        return self._settled


def _link(chain: bytes, record: bytes) -> bytes:
    return hashlib.sha256(bind(Label.SUM_JOURNAL, chain, record)).digest()


def _by_client(outcome: Outcome) -> dict[ClientId, tuple[str, bool]]:
    return {ClientId(client): (why, is_signed) for client, why, is_signed in outcome.wrong}


def _wrong_parts(wrong: Mapping[ClientId, tuple[str, bool]]) -> list[bytes]:
    return [client.encode() + bytes([is_signed]) + why.encode() for client, (why, is_signed) in sorted(wrong.items())]


def _wrong_of(record: Record, skipped: int = 0) -> dict[ClientId, tuple[str, bool]]:
    size = len(ClientId(0).encode())
    return {
        ClientId(int.from_bytes(part[:size], "big")): (part[size + 1 :].decode(), bool(part[size]))
        for part in record.parts[skipped:]
    }


def _outcome_of(record: Record) -> Outcome:
    wrong = tuple((client.value, *why) for client, why in _wrong_of(record, 2).items())
    return Outcome(key=record.parts[0].decode(), digest=record.parts[1], wrong=wrong)
