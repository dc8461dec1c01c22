"""What protects less than the rest of this protocol, by name: import it from here or not at all.

``UNCHECKED_POINT_FUNCTIONS``: nobody checks that a client votes once in every block; one client sets any histogram.
``NoJournal``: nothing is written down. After a crash the round is given up, and its number is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .configuration import SharingMode
from .journal import Event, Record

UNCHECKED_POINT_FUNCTIONS: Final = SharingMode.UNCHECKED_POINT_FUNCTIONS


class NoJournal:
    """Writes nothing down."""

    count = 0

    def append(self, event: Event, *fields: bytes) -> None:
        """Forget a record."""

    def records(self) -> Iterator[Record]:
        """Return nothing."""
        return iter(())


class NoRoundFile:
    """A standing server's rounds end with its process, or with its connection."""

    def open(self) -> NoJournal:
        """Return a journal that forgets."""
        return NoJournal()

    def close(self) -> None:
        """Do nothing."""

    def erase(self) -> None:
        """Do nothing."""
