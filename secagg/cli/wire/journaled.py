"""A session whose uploads workers add, in a journal from which the next process goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import InvalidParameters
from secagg.scale.journal import Event, Journal
from secagg.scale.resumed import ResumableSession, SpreadSession
from secagg.session.durable import erase
from secagg.transport.keeping import ServerStore


class JournaledSession(ResumableSession):
    """A ``ResumableSession`` of a process that may be asked to stop."""

    def __init__(
        self, path: Path, store: ServerStore, open_session: Callable[[ResumableSession, Coins], SpreadSession]
    ) -> None:
        """Begin a session, or go on with that of the journal.

        Raises:
            InvalidParameters: the journal is of another session, or an older copy, or in use.
            Misuse: its session is over.
        """
        self._store, self._records, self._path = store, Journal(path), path
        self.number = self._records.count(Event.CLOSED)
        """Of the stage that is open."""
        try:
            self._require_newest()
            super().__init__(self._records, SystemCoins(), open_session)
        except BaseException:
            self._records.close()
            raise

    def _require_newest(self) -> None:
        """Refuse a journal that lacks stages which clients have seen: others might answer them otherwise."""
        kept = self._store.get() if self._records.past else None
        shown = self._records.count(Event.SHOWN)
        if kept is not None and kept.stage > shown:
            raise InvalidParameters(
                f"{self._path} is an older copy: clients have seen stage {kept.stage}, and it ends in stage {shown}; "
                "begin another session in an empty --state"
            )

    def abort(self) -> None:
        """Give the session up, unless the process stops and the store still has it for the next one."""
        is_over = self._store.get() is None
        if is_over:
            super().abort()
        self._records.close()
        if is_over:
            erase(self._path)


def goes_on(path: Path) -> bool:
    """Return whether there is a journal, and its session is not over."""
    if not path.exists():
        return False
    journal = Journal(path)
    journal.close()
    return bool(journal.past) and not any(record.event is Event.OVER for record in journal.past)
