"""A client's state between two messages: sealed bytes that may be stored anywhere, with a one-time key on its node.

Flower runs a client app once per message, often in another process, and carries ``Context.state`` from one run to the
next. That state is copied in transit, and a run that fails returns the state from before it. So the state by itself
must neither reveal a secret nor bring one back:

- The secrets are sealed under a fresh key each time. The key is in a file on the node. It is overwritten with the next
  key when the state advances, and erased when the session ends. So nothing opens a copy of an older state.
- The file's name contains the number of times the state advanced. Opening a state renames the file first, which
  succeeds for only one process. So no state is resumed twice: not by a second process, after a crash, or from a copy.

If a state's file is gone, its client counts as dropped.

A suspended state can also be copied elsewhere. If two clients were resumed from one record, one could reveal a
neighbour's first share and the other its second, which no single client ever does. So each record is numbered, and
resuming claims its number in the platform's store, a ``Latch``, before anything is read or answered.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Misuse, Reason

from .durable import create, erase, require_one_layer, require_own_folder, write_whole

NAME_BYTES: Final = 16


class Latch(Protocol):
    """A platform's counter for each suspended session: a ``Store``. A call's effect is durable when it returns."""

    def begin(self, name: bytes) -> None:
        """Start a session's counter at 0.

        Raises:
            Misuse: the session already has a counter.
        """

    def claim(self, name: bytes, number: int) -> None:
        """Advance a session's counter from this number to the next; succeeds for only one caller.

        Raises:
            Misuse: the counter differs: the record was already resumed, is not the newest, or its session is over.
        """

    def end(self, name: bytes) -> None:
        """Delete a session's counter, so that nothing more can be claimed; does nothing if it is unknown."""


class MemoryLatch(Confined):
    """A latch in memory, for simulations and for platforms whose records also end with the process."""

    def __init__(self) -> None:
        self._numbers = dict[bytes, int]()
        self._lock = Lock()

    def begin(self, name: bytes) -> None:
        with self._lock:
            if name in self._numbers:
                raise _begun()
            self._numbers[name] = 0

    def claim(self, name: bytes, number: int) -> None:
        with self._lock:
            if self._numbers.get(name) != number:
                raise _claimed()
            self._numbers[name] = number + 1

    def end(self, name: bytes) -> None:
        with self._lock:
            self._numbers.pop(name, None)


def _begun() -> Misuse:
    return Misuse("a session of this name was already suspended; draw a fresh name", reason=Reason.ALREADY_SPENT)


def _claimed() -> Misuse:
    return Misuse(
        "the suspended state was already resumed, is not the newest, or its session is over; join the next session",
        reason=Reason.ALREADY_SPENT,
    )


DIRECTORY_VARIABLE: Final = "SECAGG_STATE_DIRECTORY"
_GENERATION_BYTES: Final = 4
_HEADER_BYTES: Final = NAME_BYTES + _GENERATION_BYTES
_KEY_BYTES: Final = 32
_NONCE: Final = bytes(12)
"""Safe because: every key seals once."""
_SWEPT: Final = "swept"
"""An empty file; its time is that of the last sweep of the folder."""
_SWEEP_SECONDS: Final = 3600
_ABANDONED_SECONDS: Final = 2 * 24 * 3600


class StateDirectory:
    """A node's folder for the keys of sealed states."""

    def __init__(self, folder: Path | None = None, *, coins: Coins) -> None:
        """Use a folder that is private to this user, by default in memory if possible."""
        self.folder, self._coins = folder or _default_folder(), coins
        require_own_folder(self.folder, DIRECTORY_VARIABLE)
        require_one_layer(self.folder, DIRECTORY_VARIABLE)

    def begin(self) -> OpenState:
        """Start a session; its state will be sealed for the first time."""
        name = bytes(self._coins.draw(NAME_BYTES))
        state = OpenState(self.folder, name, 0, self._coins)
        create(state.path)
        return state

    def open(self, sealed: bytes) -> tuple[OpenState, Secret]:
        """Open a sealed state, once.

        Raises:
            Misuse: it was already opened, or its session is over.
        """
        name, number = sealed[:NAME_BYTES], sealed[NAME_BYTES:_HEADER_BYTES]
        if len(sealed) < _HEADER_BYTES:
            raise _lost()
        before = OpenState(self.folder, name, int.from_bytes(number, "big"), self._coins)
        state = OpenState(self.folder, name, before.generation + 1, self._coins)
        try:
            before.path.rename(state.path)
            key = state.path.read_bytes()
        except OSError:
            raise _lost() from None
        try:
            opened = AESGCM(key).decrypt(_NONCE, sealed[_HEADER_BYTES:], sealed[:_HEADER_BYTES])
        except (InvalidTag, ValueError):
            state.destroy()
            raise _lost() from None
        return state, Secret("client state", opened)

    def beside(self, name: str) -> Path:
        """Return a folder next to the keys; files in it that nobody has written to for two days are removed.

        At most once an hour, this also destroys the keys of abandoned sessions.
        """
        self._sweep()
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.iterdir() if self._is_due(folder) else ():
            if _is_abandoned(path):
                path.unlink(missing_ok=True)
        return folder

    def discard(self, sealed: bytes) -> None:
        """End a session without opening its state; does nothing if it is over."""
        try:
            state, secret = self.open(sealed)
        except Misuse:
            return
        secret.wipe()
        state.destroy()

    def _sweep(self) -> None:
        """Destroy the keys of sessions that nobody will resume, for example after a process was killed."""
        for path in self.folder.iterdir() if self._is_due(self.folder) else ():
            try:
                if path.is_file() and _is_abandoned(path):
                    erase(path.with_name(path.name.removesuffix(".erased")))
            except OSError:
                continue

    @staticmethod
    def _is_due(folder: Path) -> bool:
        swept = folder / _SWEPT
        try:
            if swept.stat().st_mtime > time.time() - _SWEEP_SECONDS:
                return False
        except FileNotFoundError:
            pass
        swept.touch(mode=0o600)
        return True


def _is_abandoned(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


class OpenState:
    """A state that only this process may resume: seal it again, or destroy it."""

    def __init__(self, folder: Path, name: bytes, generation: int, coins: Coins) -> None:
        self.generation, self._coins = generation, coins
        self._name = name
        self._folder = folder

    @property
    def path(self) -> Path:
        return self._folder / f"{self._name.hex()}.{self.generation}"

    def seal(self, secret: Secret) -> bytes:
        """Seal under a fresh key, which replaces the previous one."""
        header = self._name + self.generation.to_bytes(_GENERATION_BYTES, "big")
        with Secret.random("state key", _KEY_BYTES, self._coins) as key:
            sealed = AESGCM(key.expose()).encrypt(_NONCE, bytes(secret.expose()), header)
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                write_whole(descriptor, bytes(key.expose()))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return header + sealed

    def destroy(self) -> None:
        """Overwrite and remove the key; nothing opens the state any more."""
        erase(self.path)


def _default_folder() -> Path:
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "secagg"
    memory = Path("/dev/shm")  # noqa: S108 -- the folder below belongs to one user, which is checked
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"secagg-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _lost() -> Misuse:
    return Misuse(
        "this client's state is not the newest of its session, or was destroyed; the client joins again next round",
        reason=Reason.ALREADY_SPENT,
    )
