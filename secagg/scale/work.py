"""What a worker does: one job, from the storage to the storage. It keeps nothing, so losing it loses that job alone.

Memory: the sums of one range, and one piece; a second range while partial sums are merged.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from time import perf_counter
from typing import Annotated, ClassVar, Final

import numpy as np

from secagg.contract.pieces import DIGEST_BYTES, Cut, Sums
from secagg.crypto.ring import add_into
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason
from secagg.fields import CLIENT, Message, Placed, choice, fixed, nested, repeated, text, unsigned
from secagg.identifiers import ClientId, Party, ServerId
from secagg.wire import MessageKind

from .store import Store, WrongPiece, open_store, piece_name, read_piece, read_result, write_result

OUTCOME_BYTES: Final = 1 << 26
"""No outcome is longer."""
_TEXT_BYTES: Final = 1 << 10
_CLIENTS: Final = 1 << 20
_PARTS: Final = 1 << 10
_SAID: Final = 200
_AHEAD: Final = 4
"""So many pieces before it is needed a piece is asked for, while others are hashed and added."""
Entry = tuple[int, tuple[bytes, ...]]
"""A client, and the digests of its pieces of a range."""


class Kind(StrEnum):
    """What is to be done with a range."""

    ADD = "add"
    """Add some clients' pieces."""
    MERGE = "merge"
    """Add partial sums."""
    OPEN = "open"
    """Take the masks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One job, with everything that it takes beside the storage."""

    key: str
    kind: Kind
    storage: str
    cut: Cut
    first: int
    end: int
    """Of the pieces of the range."""
    entries: tuple[Entry, ...] = ()
    parts: tuple[bytes, ...] = ()
    """The partial sums, by their digests."""
    opening: bytes = field(default=b"", repr=False)
    """What the masks follow from, which the server has learned."""


class Harm(IntEnum):
    """What is wrong with a piece."""

    MISSING = 0
    ANOTHER = 1
    """It has another digest than its client signed."""
    MALFORMED = 2
    """It has that digest, and does not decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong(Placed):
    """A client that is not in a sum, and why."""

    client: Annotated[ClientId, CLIENT]
    piece: Annotated[int, unsigned(4)]
    harm: Annotated[Harm, choice(tuple(Harm))]


_SENTENCES: Final = {
    Harm.MISSING: "is not in the storage",
    Harm.ANOTHER: "in the storage is not the one that was signed",
    Harm.MALFORMED: "was signed and does not decode",
}


def error_of(wrong: Wrong) -> PeerMisbehaved:
    """Blame a client for what it signed; for what is in the storage, it or who keeps that."""
    is_signed = wrong.harm is Harm.MALFORMED
    culprits: set[Party] = {wrong.client} if is_signed else {wrong.client, ServerId()}
    reason = Reason.NOT_CANONICAL if is_signed else Reason.COMMITMENT_MISMATCH
    sentence = f"{wrong.client} is not in the sum: piece {wrong.piece} {_SENTENCES[wrong.harm]}"
    return PeerMisbehaved(sentence, reason=reason, culprits=culprits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Message):
    """What became of a job: all that a coordinator hears of a worker, so it is no pickle."""

    kind: ClassVar = MessageKind.SUM_OUTCOME
    key: Annotated[str, text(_TEXT_BYTES)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    """Of what was written."""
    wrong: Annotated[tuple[Wrong, ...], repeated(nested(Wrong), _CLIENTS)] = ()
    bytes_read: Annotated[int, unsigned(8)] = 0
    microseconds: Annotated[int, unsigned(8)] = 0
    failure: Annotated[str, text(_TEXT_BYTES)] = ""
    """Empty if it was done."""
    missing: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), _PARTS)] = ()
    """The partial sums that are not in the storage any more."""


def perform(order: Order) -> Outcome:
    """Do a job; what fails is part of the outcome."""
    started, work = perf_counter(), Work(order, open_store(order.storage))
    try:
        digest = work.do()
    except FileNotFoundError:
        failure = "partial sums are not in the storage any more"
        return Outcome(key=order.key, failure=failure, missing=tuple(work.missing_parts()))
    except OSError as error:
        return Outcome(key=order.key, failure=f"the storage failed: {error}"[:_SAID])
    except Exception as error:  # noqa: BLE001 -- another worker may do it, and if none does, this is said
        return Outcome(key=order.key, failure=f"a worker failed: {type(error).__name__}: {error}"[:_SAID])
    wrong = tuple(work.wrong[client] for client in sorted(work.wrong))
    micros = int(1e6 * (perf_counter() - started))
    return Outcome(key=order.key, digest=digest, wrong=wrong, bytes_read=work.bytes_read, microseconds=micros)


class Work:
    """One job while it is done."""

    def __init__(self, order: Order, store: Store) -> None:
        self._order, self._store, self._cut = order, store, order.cut
        self._pieces = range(order.first, order.end)
        self.wrong = dict[int, Wrong]()
        self.bytes_read = 0

    def do(self) -> bytes:
        """Write the result, and return its digest."""
        make = {Kind.ADD: self._added, Kind.MERGE: self._merged, Kind.OPEN: self._opened}[self._order.kind]
        return write_result(self._store, self._cut.context, encode_range(make()))

    def _empty(self) -> list[Sums]:
        return [self._cut.zeros(number) for number in self._pieces]

    def _added(self) -> list[Sums]:
        """Add every client whose pieces of this range are all right; go over it again if one was not after its first.

        Each pass leaves out at least one client more than the last, and almost always there is one.
        """
        pieces = [(client, at, digest) for client, digests in self._order.entries for at, digest in enumerate(digests)]
        while True:
            totals, is_clean = self._empty(), True
            for number, (client, offset, digest) in enumerate(pieces):
                for later, _, awaited in pieces[number + _AHEAD : number + _AHEAD + 1]:
                    self._store.expect(piece_name(self._cut.context, ClientId(later), awaited))
                if client in self.wrong:
                    continue
                if not self._add_piece(totals[offset], ClientId(client), self._order.first + offset, digest):
                    is_clean = is_clean and offset == 0
            if is_clean:
                return totals

    def _add_piece(self, total: Sums, client: ClientId, number: int, digest: bytes) -> bool:
        """Verify a piece and add it; or note what is wrong with it."""
        harm = Harm.MALFORMED
        try:
            piece = read_piece(self._store, self._cut, client, number, digest)
            self.bytes_read += len(piece)
            self._cut.add(total, number, piece)
        except WrongPiece as error:
            harm = Harm.ANOTHER if error.is_there else Harm.MISSING
        except MalformedMessage:
            pass
        else:
            return True
        self.wrong[client.value] = Wrong(client=client, piece=number, harm=harm)
        return False

    def _merged(self) -> list[Sums]:
        totals = self._empty()
        for digest in self._order.parts:
            self._merge_part(totals, digest)
        return totals

    def _merge_part(self, totals: list[Sums], digest: bytes) -> None:
        for total, part in zip(totals, self._read(digest), strict=True):
            for vector, summand in zip(total, part, strict=True):
                add_into(vector, summand)

    def missing_parts(self) -> Iterator[bytes]:
        """Return which of its parts the storage has lost."""
        for digest in self._order.parts:
            try:
                self._read(digest)
            except FileNotFoundError:
                yield digest

    def _opened(self) -> list[Sums]:
        (digest,) = self._order.parts
        parts, opening = self._read(digest), self._order.opening
        return [
            self._cut.open([vector.copy() for vector in part], number, opening)
            for number, part in enumerate(parts, self._order.first)
        ]

    def _read(self, digest: bytes) -> list[Sums]:
        totals = read_range(self._store, self._cut, self._pieces, digest)
        self.bytes_read += sum(vector.nbytes for total in totals for vector in total)
        return totals


def encode_range(totals: Iterable[Sums]) -> bytes:
    """Return the words of all pieces of a range; what they are follows from the cut."""
    return b"".join(vector.data.cast("B") for total in totals for vector in total)


def read_range(store: Store, cut: Cut, pieces: Iterable[int], digest: bytes, *, is_open: bool = False) -> list[Sums]:
    """Return views of the words of a range, in the form that its cut gives them.

    Raises:
        FileNotFoundError: it is not there, or not what was written, or a worker wrote another form.
        OSError: the storage fails.
    """
    forms = [[(vector.dtype, vector.size) for vector in cut.zeros(piece, is_open=is_open)] for piece in pieces]
    size = sum(dtype.itemsize * count for form in forms for dtype, count in form)
    data, at, totals = read_result(store, cut.context, digest, size), 0, list[Sums]()
    for form in forms:
        totals.append([])
        for dtype, count in form:
            totals[-1].append(np.frombuffer(data, dtype, count, at))
            at += totals[-1][-1].nbytes
    return totals


def perform_encoded(order: bytes) -> bytes:
    """Do a job for a process that is sent orders of its own coordinator, and of nobody else."""
    found: Order = pickle.loads(order)  # noqa: S301 -- a worker obeys its coordinator
    return perform(found).encode()
