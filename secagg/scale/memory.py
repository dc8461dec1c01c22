"""What a sum has to have remembered, so that the next life of its coordinator goes on with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from secagg.identifiers import ClientId

from .work import Outcome, Wrong


class Memory(Protocol):
    """What remembers outcomes across a crash of the coordinator."""

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a job that was done in an earlier life."""
        ...

    def remember(self, outcome: Outcome) -> None:
        """Write an outcome down, before it counts."""

    def kept(self, client: ClientId) -> None:
        """Write an upload down: its pieces are stored, and it is about to be taken."""

    def settled(self, wrong: Iterable[Wrong] | None) -> Iterable[Wrong] | None:
        """Write down whose vectors are not in the sum; or return what was, before the list was made of it."""
        ...

    def ended(self) -> bool:
        """Write down that the session is over, and return whether what it stored can be removed."""
        ...


class NoMemory:
    """For a coordinator that is not resumed."""

    def outcome(self, key: str) -> Outcome | None:
        """Know nothing."""
        del key
        return None

    def remember(self, outcome: Outcome) -> None:
        """Forget it."""

    def kept(self, client: ClientId) -> None:
        """Forget it."""

    def settled(self, wrong: Iterable[Wrong] | None) -> Iterable[Wrong] | None:
        """Know nothing."""
        del wrong
        return None

    def ended(self) -> bool:
        """Let everything be removed."""
        return True
