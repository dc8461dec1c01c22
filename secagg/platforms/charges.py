"""What a node has uploaded: one ledger for every protocol, on disk where a key says who the client is.

Two sums that differ in one client give that client away. So a round of a task is uploaded for once, and numbers go up
within a task. A client with a key also uploads no update twice, and none of a model of before, whatever the server
calls task and round: not after a restart either, because its ledger stands in ``SECAGG_LEDGER_DIRECTORY`` (by default
in ``$XDG_STATE_HOME/secagg`` or ``~/.local/state/secagg``). A client without one follows a server that keeps to the
protocol; its ledger stands in memory, and numbers are all that it remembers.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason
from secagg.session.durable import hold, replace, require_own_folder
from secagg.session.ledger import NO_MODEL, Spent, SpentUpdates
from secagg.session.sealed_state import StateDirectory

DIRECTORY_VARIABLE: Final = "SECAGG_LEDGER_DIRECTORY"
_TRIES: Final = 50
_PAUSE: Final = 0.1


class Charges:
    """The ledger of one client; the file is open only while it is asked, because a node trains for several runs."""

    def __init__(self, path: Path, *, is_strict: bool) -> None:
        """Use a file; strict ledgers remember updates and models across tasks."""
        self._path, self._is_strict = path, is_strict

    @classmethod
    def of_key(cls, public_key: bytes, *, is_strict: bool) -> Charges:
        """Return the ledger of a client with a key, which is kept for good.

        Raises:
            InvalidParameters: others may look into its folder.
        """
        return cls(durable_file(public_key, "spent"), is_strict=is_strict)

    @classmethod
    def of_node(cls, states: StateDirectory, node: int) -> Charges:
        """Return the ledger of a node without a key, which is lost with the memory of the machine."""
        return cls(states.beside("ledgers") / f"{node}.spent", is_strict=False)

    def require_open(self, task: bytes, number: int) -> None:
        """Refuse a round that was uploaded for, or one before it; nothing changes.

        Raises:
            PeerMisbehaved: it was.
        """
        with closing(self._opened()) as spent:
            _require_open(spent, task, number)

    def charge(self, task: bytes, number: int, values: bytes, model: bytes) -> None:
        """Remember an upload for good, or refuse it.

        Raises:
            Misuse, PeerMisbehaved: it was uploaded for before, under whatever task.
            OSError: nothing may be sent.
        """
        if not self._is_strict:
            named = bind(Label.PLATFORM_ROUND, task, number.to_bytes(8, "big"))
            values, model = hashlib.sha256(named).digest(), NO_MODEL
        with closing(self._opened()) as spent:
            _require_open(spent, task, number)
            spent.charge(Spent(task, number, values, model))

    def _opened(self) -> SpentUpdates:
        """Open the file, which another process of this node may hold for a moment."""
        for _ in range(_TRIES):
            try:
                return SpentUpdates(self._path)
            except InvalidParameters:
                time.sleep(_PAUSE)
        return SpentUpdates(self._path)

    def __repr__(self) -> str:
        return f"<Charges in {self._path}{', strict' if self._is_strict else ''}>"


class NewestEpoch:
    """The newest epoch of holders that a client has uploaded in, over all runs; it follows no server back to another.

    The authority begins another epoch early where holders of the last one are not to be trusted any more.
    """

    def __init__(self, public_key: bytes) -> None:
        """Use the file of a client's key.

        Raises:
            InvalidParameters: others may look into its folder.
        """
        self._path = durable_file(public_key, "epoch")

    @property
    def number(self) -> int:
        """Its number; zero before the first."""
        return int(self._path.read_text(encoding="ascii")) if self._path.exists() else 0

    def reach(self, number: int) -> None:
        """Remember an epoch for good."""
        # Processes of one client may have read an older number at once.
        with self._path.with_suffix(".lock").open("ab") as lock:
            hold(lock.fileno())
            if number > self.number:
                replace(self._path, str(number).encode())


def durable_file(public_key: bytes, kind: str) -> Path:
    """Return where a client with a key keeps something for good, over all runs.

    Raises:
        InvalidParameters: others may look into its folder.
    """
    if named := os.environ.get(DIRECTORY_VARIABLE):
        folder = Path(named)
    else:
        state = os.environ.get("XDG_STATE_HOME")
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "secagg"
    require_own_folder(folder)
    return folder / f"{public_key.hex()}.{kind}"


def _require_open(spent: SpentUpdates, task: bytes, number: int) -> None:
    if number <= spent.last(task):
        raise PeerMisbehaved(
            f"round {number} was uploaded for before, or one after it; an update goes into one sum alone",
            reason=Reason.ALREADY_ANSWERED,
        )
