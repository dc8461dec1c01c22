"""What a coordinator keeps in a folder of its own, so that it can be started again: each file is made once, and tagged.

The offer is written before anybody is invited, an upload without its vector before it is acknowledged, the list before
a holder sees it, and that the sum is over before it is released. A file is whole or not there: it is written under
another name, flushed, and linked. So a file that does not verify was damaged or put there, and nothing goes on from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly
from secagg.errors import InvalidParameters
from secagg.session.durable import claim, erase, require_own_folder, sync_folder, write_whole

from .storage import KEY_BYTES, Lost, opened, tag_of

OFFER: Final = "offer"
LIST: Final = "list"
OVER: Final = "over"
_KEY: Final = "key"
_UPLOADS: Final = "uploads"
_DIGEST_BYTES: Final = 32


class State:
    """The folder of one sum, which one process has."""

    def __init__(self, folder: Path, coins: Coins, *, lasts: bool = True) -> None:
        """Use a folder, for the sum that it is about or for another one.

        Args:
            coins: draw the key of a sum that begins.
            lasts: whether files are flushed; not where nobody goes on with a sum.

        Raises:
            InvalidParameters: another process has it, others may look into it, or it is damaged.
        """
        for each in (folder, folder / _UPLOADS):
            require_own_folder(each)
        self._folder, self.lasts = folder, lasts
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            claim(self._lock, f"{folder} is in use; one coordinator at a time has a sum")
            self.left_by: bytes | None = None
            """The key of a sum that is over, and may have left objects in the storage."""
            if not goes_on(folder):
                if (folder / _KEY).exists():
                    self.left_by = (folder / _KEY).read_bytes()
                self.clear()
                self._make(_KEY, bytes(draw_exactly(KEY_BYTES, coins)))
            self.key = (folder / _KEY).read_bytes()
            """Authenticates everything that is written for the sum, here and in the storage."""
            self._require(len(self.key) == KEY_BYTES, _KEY)
            self._count = 1 + max(self._numbers(), default=-1)
        except BaseException:
            os.close(self._lock)
            raise

    def get(self, name: str) -> bytes | None:
        """Return a file; None if it was never written.

        Raises:
            InvalidParameters: it is not what was written.
        """
        path = self._folder / name
        if not path.exists():
            return None
        try:
            return bytes(opened(self.key, name, path.read_bytes()))
        except (Lost, OSError) as error:
            raise self._damaged(name) from error

    def put(self, name: str, data: bytes) -> None:
        """Write a file that was not there.

        Raises:
            FileExistsError: it was.
            OSError: it cannot be written, or does not read back.
        """
        stored = data + tag_of(self.key, name, data)
        self._make(name, stored)
        if (self._folder / name).read_bytes() != stored:
            raise OSError(f"{self._folder / name} reads otherwise than it was written")

    def put_upload(self, data: bytes) -> None:
        """Write the next upload."""
        self.put(f"{_UPLOADS}/{self._count:08d}", data)
        self._count += 1

    def uploads(self) -> Iterator[bytes]:
        """Return the uploads of earlier processes, as they came."""
        for number in sorted(self._numbers()):
            yield self.get(f"{_UPLOADS}/{number:08d}") or b""

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in (self._folder / _UPLOADS).iterdir() if path.name.isdecimal()]

    def _make(self, name: str, data: bytes) -> None:
        path = self._folder / name
        written = path.with_name(f"{path.name}.new")
        written.unlink(missing_ok=True)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try:
                write_whole(descriptor, data)
                if self.lasts:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            path.hardlink_to(written)
        finally:
            written.unlink(missing_ok=True)
        if self.lasts:
            sync_folder(path.parent)

    def _require(self, is_whole: bool, name: str) -> None:  # noqa: FBT001 -- what is required
        if not is_whole:
            raise self._damaged(name)

    def _damaged(self, name: str) -> InvalidParameters:
        return InvalidParameters(
            f"{self._folder / name} is damaged, or of another sum; nothing goes on from it: begin another sum in an "
            "empty folder"
        )

    def clear(self) -> None:
        """Remove everything: nobody goes on with the sum. Without the offer nobody can; what says so goes last."""
        erase(self._folder / OFFER)
        for path in (self._folder / _UPLOADS).iterdir():
            path.unlink()
        for name in (LIST, _KEY, OVER):
            erase(self._folder / name)
        self._count = 0

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def forget(folder: Path) -> None:
    """Let nobody go on with the sum in a folder."""
    erase(folder / OFFER)


def goes_on(folder: Path) -> bool:
    """Return whether a sum was begun in a folder, and is not over."""
    return (folder / OFFER).exists() and not (folder / OVER).exists()


class RecordedCoins:
    """Coins that an earlier process drew for its offer, and behind them fresh ones; an offer is no secret."""

    def __init__(self, coins: Coins, drawn: bytes = b"") -> None:
        self._coins, self.drawn, self._at = coins, drawn, 0

    def draw(self, count: int) -> bytearray:
        """Return coins."""
        if (missing := self._at + count - len(self.drawn)) > 0:
            self.drawn += bytes(self._coins.draw(missing))
        self._at += count
        return bytearray(self.drawn[self._at - count : self._at])


def recorded_coins(state: State, coins: Coins) -> RecordedCoins:
    """Return the coins that a sum is opened with, so that it has the offer that its clients signed for."""
    recorded = state.get(OFFER)
    return RecordedCoins(coins, b"" if recorded is None else recorded[_DIGEST_BYTES:])


def require_offer(state: State, invitation: bytes, coins: RecordedCoins) -> None:
    """Write an offer down before anybody is invited, or compare it with the one that was.

    Raises:
        InvalidParameters: it is another one; who uploaded to that cannot be counted.
    """
    digest, recorded = hashlib.sha256(invitation).digest(), state.get(OFFER)
    if recorded is None:
        state.put(OFFER, digest + coins.drawn)
    elif recorded[:_DIGEST_BYTES] != digest:
        raise InvalidParameters(
            "the sum that was begun here has another offer: open it with the same arguments, holders and epoch, or "
            "begin another sum in an empty folder"
        )
