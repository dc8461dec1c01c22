"""The guard against two restores: how often a client's session was suspended and resumed, in a store that only goes up.

A suspended state can be copied. If two clients are resumed from one record, one shows a neighbour's first
share and the other its second one, which no client ever does. So a record is numbered, and resuming claims its number
in the platform's store before anything is read or answered.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, Misuse, Reason

from .durable import create, require_own_folder, sync_folder

NAME_BYTES: Final = 16


class Latch(Protocol):
    """Store in which a platform counts, for each suspended session. A call's effect is durable when it returns.

    Security: a machine that is restored from a snapshot takes this store back with it, which nothing in it can notice.
    """

    def begin(self, name: bytes) -> None:
        """Let a session stand at 0.

        Raises:
            Misuse: it stands somewhere already.
        """

    def claim(self, name: bytes, number: int) -> None:
        """Let a session that stands at a number stand at the next one; one caller alone gets this.

        Raises:
            Misuse: it does not stand there: the record was resumed before, is not the newest, or its session is over.
        """

    def end(self, name: bytes) -> None:
        """Forget a session, so that nothing can be claimed for it any more; does nothing if it is not known."""


class MemoryLatch(Confined):
    """A store that ends with the process, for simulations and for platforms whose records end with it too."""

    def __init__(self) -> None:
        """Know of no session."""
        self._numbers = dict[bytes, int]()
        self._lock = Lock()

    def begin(self, name: bytes) -> None:
        """See ``Latch``."""
        with self._lock:
            if name in self._numbers:
                raise _begun()
            self._numbers[name] = 0

    def claim(self, name: bytes, number: int) -> None:
        """See ``Latch``."""
        with self._lock:
            if self._numbers.get(name) != number:
                raise _claimed()
            self._numbers[name] = number + 1

    def end(self, name: bytes) -> None:
        """See ``Latch``."""
        with self._lock:
            self._numbers.pop(name, None)


class FileLatch:
    """A store in a folder: one empty file for each session, whose name holds its number.

    Claiming renames the file, which the operating system lets one process do once.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder of this user's alone.

        Raises:
            InvalidParameters: somebody else owns the folder, or may write to it.
        """
        self._folder = folder
        require_own_folder(folder)

    def begin(self, name: bytes) -> None:
        """See ``Latch``."""
        path = self._path(name, 0)
        # Coins that repeat give a name again, whose session may stand at another number by now.
        if any(self._folder.glob(f"{name.hex()}.*")):
            raise _begun()
        try:
            create(path)
        except FileExistsError:
            raise _begun() from None

    def claim(self, name: bytes, number: int) -> None:
        """See ``Latch``."""
        claimed = self._path(name, number + 1)
        try:
            # ``rename`` would overwrite; no file of the next number can be there while this one is.
            self._path(name, number).rename(claimed)
        except FileNotFoundError:
            raise _claimed() from None
        with suppress(FileNotFoundError):
            os.utime(claimed)
        sync_folder(self._folder)

    def end(self, name: bytes) -> None:
        """See ``Latch``."""
        for path in self._folder.glob(f"{name.hex()}.*"):
            path.unlink(missing_ok=True)
        sync_folder(self._folder)

    def sweep(self, before: float) -> None:
        """Forget sessions that were last resumed before a time, in seconds since 1970; nobody will resume them."""
        for path in self._folder.iterdir():
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)

    def _path(self, name: bytes, number: int) -> Path:
        if type(name) is not bytes or len(name) != NAME_BYTES:
            raise InvalidParameters(f"a session is named by {NAME_BYTES} bytes; let its record draw them")
        return self._folder / f"{name.hex()}.{number}"

    def __repr__(self) -> str:
        return f"<FileLatch in {os.fspath(self._folder)}>"


def _begun() -> Misuse:
    return Misuse("a session of this name was suspended before; names are drawn afresh", reason=Reason.ALREADY_SPENT)


def _claimed() -> Misuse:
    return Misuse(
        "the suspended state was resumed before, is not the newest, or its session is over; take part in the next one",
        reason=Reason.ALREADY_SPENT,
    )
