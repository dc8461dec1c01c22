"""Ledger of a node's uploads: one for every protocol, on disk where a key says who the client is.

Two sums that differ in one client give that client away. So a round of a task is uploaded for once, and numbers go up
within a task. A client with a key also uploads for one model a few times at most, whatever the server calls task and
round: not after a restart either, because its ledger stands in ``SECAGG_LEDGER_DIRECTORY`` (by default in
``$XDG_STATE_HOME/secagg`` or ``~/.local/state/secagg``). A client without one follows a server that keeps to the
protocol; its ledger stands in memory, and numbers are all that it remembers.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters
from secagg.session.durable import hold, replace, require_own_folder
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.sealed_state import StateDirectory

DIRECTORY_VARIABLE: Final = "SECAGG_LEDGER_DIRECTORY"
_TRIES: Final = 50
_PAUSE: Final = 0.1


class Charges:
    """The ledger of one client; the file is open only while it is asked, because a node trains for several runs."""

    def __init__(self, path: Path, *, attempts: int | None) -> None:
        """Take at most so many uploads for one model, across tasks; None remembers numbers alone."""
        self._path, self._attempts = path, attempts

    @classmethod
    def of_key(cls, public_key: bytes, *, attempts: int | None) -> Charges:
        """Return the ledger of a client with a key, which is kept for good."""
        return cls(durable_file(public_key, "spent"), attempts=attempts)

    @classmethod
    def of_node(cls, states: StateDirectory, node: int) -> Charges:
        """Return the ledger of a node without a key, which is lost with the memory of the machine."""
        return cls(states.beside("ledgers") / f"{node}.spent", attempts=None)

    def require_open(self, spent: Spent) -> None:
        """Refuse what ``charge`` would refuse; nothing changes."""
        with closing(self._opened()) as opened:
            opened.require_open(self._known(spent))

    def charge(self, spent: Spent) -> None:
        """Remember an upload for good before its update is made, or refuse it; after an ``OSError`` send nothing."""
        with closing(self._opened()) as opened:
            opened.charge(self._known(spent))

    def _known(self, spent: Spent) -> Spent:
        return Spent(spent.task, spent.number) if self._attempts is None else spent

    def _opened(self) -> SpentUpdates:
        """Open the file, which another process of this node may hold for a moment."""
        for _ in range(_TRIES):
            try:
                return SpentUpdates(self._path, attempts=self._attempts)
            except InvalidParameters:
                time.sleep(_PAUSE)
        return SpentUpdates(self._path, attempts=self._attempts)

    def __repr__(self) -> str:
        return f"<Charges in {self._path}, attempts: {self._attempts}>"


class NewestEpoch:
    """The newest epoch of holders that a client has uploaded in, over all runs; it follows no server back.

    The authority begins another epoch early where holders of the last one are not to be trusted any more.
    """

    def __init__(self, public_key: bytes) -> None:
        self._path = durable_file(public_key, "epoch")

    @property
    def number(self) -> int:
        return int(self._path.read_text(encoding="ascii")) if self._path.exists() else 0

    def reach(self, number: int) -> None:
        # Processes of one client may have read an older number at once.
        with self._path.with_suffix(".lock").open("ab") as lock:
            hold(lock.fileno())
            if number > self.number:
                replace(self._path, str(number).encode())


def durable_file(public_key: bytes, kind: str) -> Path:
    """Return where a client with a key keeps something for good, over all runs."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        folder = Path(named)
    else:
        state = os.environ.get("XDG_STATE_HOME")
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "secagg"
    require_own_folder(folder, DIRECTORY_VARIABLE)
    return folder / f"{public_key.hex()}.{kind}"
