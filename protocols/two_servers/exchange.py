"""How two servers come to take one upload: four steps in turns, whatever the mode.

    server 1  propose   ->  server 0  answer  ->  server 1  conclude  ->  server 0  settle

Each step may find that the upload must not be taken, and raises then. Server 1 takes the upload when it concludes, and
server 0 when it settles; only then is anything added. Each step called again with the same bytes gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Protocol

from secagg.errors import MalformedMessage, Reason

from .uploads.class_totals import ClassTotals


class Exchange(Protocol):
    """One server's side of one upload, from when it was opened until it was taken or rejected."""

    def propose(self) -> bytes:
        """Return what server 1 says first.

        Raises:
            PeerError: the upload is refused; ``culprits`` says whose doing it is.
        """
        ...

    def learn(self, heard: bytes, /) -> None:
        """Take what the other server says of the upload itself.

        Server 0 learns from a proposal. Server 1 learns from an answer, where its share depends on what that says.
        """
        ...

    def answer(self, proposal: bytes) -> bytes:
        """Return what server 0 answers."""
        ...

    def conclude(self, answer: bytes) -> bytes:
        """Decide as server 1, and return what server 0 needs to decide."""
        ...

    def settle(self, conclusion: bytes) -> None:
        """Decide as server 0."""
        ...

    def add_to(self, totals: ClassTotals) -> None:
        """Add this server's share of the upload, which was taken."""
        ...

    def wipe(self) -> None:
        """Overwrite the seeds."""
        ...


def cut(blob: bytes | bytearray | memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Cut bytes into pieces of these sizes, without copies.

    Raises:
        MalformedMessage: their number is another.
    """
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    if len(blob) != edges[-1]:
        raise MalformedMessage(
            f"{edges[-1]} bytes are due and {len(blob)} came",
            reason=Reason.TRUNCATED if len(blob) < edges[-1] else Reason.TRAILING_BYTES,
        )
    view = memoryview(blob)
    return (view[first:stop] for first, stop in pairwise(edges))
