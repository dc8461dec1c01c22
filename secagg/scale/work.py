"""What a worker does: one job, from the storage to the storage. It keeps nothing, so losing it loses that job alone.

Memory: the sums of one range, and one piece; a second range while partial sums are merged.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Final

import numpy as np

from secagg.contract.pieces import Cut, Sums
from secagg.crypto.ring import RingVector, add_into
from secagg.errors import MalformedMessage
from secagg.identifiers import ClientId

from .store import Store, WrongPiece, open_store, piece_name, read_piece, read_result, write_result

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job."""

    key: str
    digest: bytes = b""
    """Of what was written; empty if the job failed."""
    wrong: tuple[tuple[int, str, bool], ...] = ()
    """Clients that are not in it, why, and whether they signed what is wrong."""
    bytes_read: int = 0
    seconds: float = 0.0
    failure: str = ""
    missing: tuple[bytes, ...] = ()
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
        return Outcome(key=order.key, failure=f"the storage failed: {error}")
    wrong = tuple((client, *why) for client, why in sorted(work.wrong.items()))
    seconds = perf_counter() - started
    return Outcome(key=order.key, digest=digest, wrong=wrong, bytes_read=work.bytes_read, seconds=seconds)


class Work:
    """One job while it is done."""

    def __init__(self, order: Order, store: Store) -> None:
        self._order, self._store, self._cut = order, store, order.cut
        self.wrong = dict[int, tuple[str, bool]]()
        self.bytes_read = 0

    def do(self) -> bytes:
        """Write the result, and return its digest."""
        make = {Kind.ADD: self._added, Kind.MERGE: self._merged, Kind.OPEN: self._opened}[self._order.kind]
        return write_result(self._store, self._cut.context, encode_range(make()))

    def _empty(self) -> list[Sums]:
        return [self._cut.zeros(number) for number in range(self._order.first, self._order.end)]

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
        try:
            piece = read_piece(self._store, self._cut.context, client, number, digest)
            self.bytes_read += len(piece)
            self._cut.add(total, number, piece)
        except WrongPiece as error:
            self.wrong[client.value] = str(error), False
        except MalformedMessage as error:
            self.wrong[client.value] = f"piece {number} was signed and does not decode: {error}", True
        return client.value not in self.wrong

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
                read_result(self._store, self._cut.context, digest)
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
        data = read_result(self._store, self._cut.context, digest)
        self.bytes_read += len(data)
        return decode_range(data)


def encode_range(totals: Sequence[Sums]) -> bytes:
    """Return the words of all pieces of a range, behind a line that says what they are."""
    forms = [[(vector.dtype.str, vector.size) for vector in total] for total in totals]
    header = json.dumps(forms).encode() + b"\n"
    return b"".join([header, *(vector.data.cast("B") for total in totals for vector in total)])


def decode_range(data: bytes) -> list[Sums]:
    """Return views of the words of a range."""
    at, totals = data.index(b"\n") + 1, list[Sums]()
    layouts: list[list[tuple[str, int]]] = json.loads(data[:at])
    for forms in layouts:
        totals.append([])
        for dtype, size in forms:
            vector: RingVector = np.frombuffer(data, dtype, size, at)
            totals[-1].append(vector)
            at += vector.nbytes
    return totals


def perform_encoded(order: bytes) -> bytes:
    """Do a job for a process that is sent orders of its own coordinator, and of nobody else."""
    found: Order = pickle.loads(order)  # noqa: S301 -- a worker obeys its coordinator
    return pickle.dumps(perform(found))
