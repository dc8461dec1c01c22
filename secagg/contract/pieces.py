"""Masked vectors in pieces: each has a digest, the digests are signed, and pieces are added and opened by themselves.

A client that sends its vector whole and one that leaves its pieces in a storage sign the same thing. Who adds up is
another's business: ``LocalSum`` does it in this process, and ``secagg.scale`` on many machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, Protocol

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import RingVector
from secagg.errors import AuthenticationFailed, MalformedMessage, PeerError, Reason
from secagg.identifiers import ClientId, ServerId

DIGEST_BYTES: Final = 32
_NUMBER_BYTES: Final = 4

Sums = list[RingVector]
"""The sums of one piece, as words that wrap: adding two of them word by word adds what is in them."""


class Cut(Protocol):
    """How the vectors of one session are cut, added and opened; in any process that may see what its server sees."""

    @property
    def context(self) -> bytes:
        """What the session agreed on; no piece of another is taken."""
        ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bytes of each piece."""
        ...

    def zeros(self, number: int, *, is_open: bool = False) -> Sums:
        """Return the empty sums of a piece, or what ``open`` returns of them."""
        ...

    def check(self, number: int, piece: bytes) -> None:
        """Refuse a piece that ``add`` would refuse.

        Raises:
            MalformedMessage: it does not decode.
        """

    def add(self, total: Sums, number: int, piece: bytes) -> None:
        """Add one client's piece.

        Raises:
            MalformedMessage: it does not decode; nothing was added.
        """

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Return the sums of a piece without their masks; what is checked of a whole vector is not checked yet."""
        ...


class Adder(Protocol):
    """Where a server's uploads are added."""

    def keep(self, client: ClientId, digests: Sequence[bytes], vector: bytes | memoryview) -> bytes:
        """Take a vector that fits its digests, or nothing if a storage has it; return what ``add`` is to be given.

        Raises:
            MalformedMessage: there is no storage that could have it.
        """
        ...

    def add(self, client: ClientId, digests: Sequence[bytes], kept: bytes) -> None:
        """Add what was kept, now or later.

        Raises:
            MalformedMessage: it does not decode; nothing was added.
        """

    def settle(self) -> Mapping[ClientId, PeerError]:
        """Finish the sum, and return whose vectors are not in it, and why."""
        ...

    def open(self, key: bytes) -> list[Sums]:
        """Return the pieces of the sum without their masks."""
        ...

    def end(self) -> None:
        """Give up what was added, and everything that was written for it."""


class Retractable(Adder, Protocol):
    """An ``Adder`` that can take clients out of what it has added."""

    def take_out(self, clients: Iterable[ClientId]) -> None:
        """Take clients out of a sum that is settled; their pieces are good, and their uploads are not."""


class LocalSum:
    """Adds at once, in this process."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._totals = [cut.zeros(number) for number in range(len(cut.lengths))]

    def keep(self, client: ClientId, digests: Sequence[bytes], vector: bytes | memoryview) -> bytes:
        """Keep the vector itself."""
        del digests
        require_vector(client, vector)
        return bytes(vector)

    def add(self, client: ClientId, digests: Sequence[bytes], kept: bytes) -> None:
        """Add every piece, or none."""
        del client, digests
        pieces = pieces_of(kept, self._cut.lengths)
        for number, piece in enumerate(pieces):
            self._cut.check(number, piece)
        for number, piece in enumerate(pieces):
            self._cut.add(self._totals[number], number, piece)

    def settle(self) -> Mapping[ClientId, PeerError]:
        """Return nobody: everything is added."""
        return {}

    def open(self, key: bytes) -> list[Sums]:
        """Open every piece."""
        return [self._cut.open(total, number, key) for number, total in enumerate(self._totals)]

    def end(self) -> None:
        """Overwrite the sums."""
        for total in self._totals:
            for vector in total:
                vector[:] = 0


def require_vector(client: ClientId, vector: bytes | memoryview) -> None:
    """Refuse an upload whose vector is elsewhere, where there is no elsewhere.

    Raises:
        MalformedMessage: the vector is empty.
    """
    if not vector:
        raise MalformedMessage(
            f"{client} sent digests without its vector, and this server has no storage to look into",
            reason=Reason.LAYOUT_MISMATCH,
            # The same signature holds for both forms, so the way may have taken the vector out.
            culprits={client, ServerId()},
        )


def pieces_of(vector: bytes | memoryview, lengths: Sequence[int]) -> list[bytes]:
    """Cut a vector."""
    view = memoryview(vector)
    return [bytes(view[start:end]) for start, end in pairwise(accumulate(lengths, initial=0))]


def piece_digest(context: bytes, client: ClientId, number: int, *piece: bytes | memoryview) -> bytes:
    """Return the digest of a piece, which is of one client, one session and one place alone."""
    bound = bind(Label.UPLOAD_PIECE, context, client.encode(), number.to_bytes(_NUMBER_BYTES, "big"))
    hashed = hashlib.sha256(bound)
    for part in piece:
        hashed.update(part)
    return hashed.digest()


def piece_digests(
    context: bytes, client: ClientId, lengths: Sequence[int], *vector: bytes | memoryview
) -> tuple[bytes, ...]:
    """Return the digests of all pieces of a vector, which the client signs; it may come in several runs of bytes."""
    left, digests = [memoryview(run).cast("B") for run in vector if len(run)], list[bytes]()
    for number, length in enumerate(lengths):
        piece, missing = list[memoryview](), length
        while missing and left:
            run = left.pop(0)
            piece.append(run[:missing])
            if run.nbytes > missing:
                left.insert(0, run[missing:])
            missing -= piece[-1].nbytes
        digests.append(piece_digest(context, client, number, *piece))
    return tuple(digests)


def require_pieces(cut: Cut, client: ClientId, digests: Sequence[bytes], vector: bytes) -> None:
    """Check that a vector which came with its digests has them.

    Raises:
        AuthenticationFailed: it has not; a relay may be to blame as well.
    """
    if piece_digests(cut.context, client, cut.lengths, vector) != tuple(digests):
        raise AuthenticationFailed(culprits={client})
