"""State of a coordinator in a folder of its own, from which it is restarted: each file is made once, and tagged.

A file is whole or absent: it is written under another name, flushed, and linked. So one that does not verify was
damaged or put there, and nothing resumes from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from hmac import compare_digest, digest
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import draw_exactly
from secagg.errors import InvalidParameters
from secagg.session.durable import claim, erase, require_own_folder, sync_folder

from .storage import fill

OFFER: Final = "offer"
LIST: Final = "list"
OVER: Final = "over"
_KEY: Final = "key"
UPLOADS: Final = "uploads"
_UNFINISHED: Final = ".new"
_DIGEST_BYTES: Final = 32


class State:
    """The folder of one sum, held by one process."""

    def __init__(self, folder: Path, coins: Coins, *, lasts: bool = True, begins: bool = False) -> None:
        """Use a folder for the sum that it is about, or for another one.

        Args:
            coins: source of the key of a sum that begins.
            lasts: whether files are flushed; not needed where nobody resumes a sum.
            begins: whether another sum begins, even if the earlier one is not over.
        """
        for each in (folder, folder / UPLOADS):
            require_own_folder(each)
        self._folder, self.lasts = folder, lasts
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            claim(self._lock, f"{folder} is in use; one coordinator at a time has a sum")
            self.left_by: bytes | None = None
            """Key of an earlier sum, which may have left objects in the storage."""
            if begins or not goes_on(folder):
                if (folder / _KEY).exists():
                    self.left_by = (folder / _KEY).read_bytes()
                self.clear()
                self._make(_KEY, bytes(draw_exactly(_DIGEST_BYTES, coins)))
                if lasts:
                    sync_folder(folder.parent)
            self.key = (folder / _KEY).read_bytes()
        except BaseException:
            os.close(self._lock)
            raise

    def get(self, name: str) -> bytes | None:
        """Return a file, or None if it was never written; a damaged one is refused."""
        path = self._folder / name
        if not path.exists():
            return None
        stored = path.read_bytes()
        data = stored[:-_DIGEST_BYTES]
        if not compare_digest(self._tagged(name, data), stored):
            raise InvalidParameters(
                f"{path} is damaged, or of another sum; it cannot be resumed: begin another sum in an empty folder"
            )
        return data

    def put(self, name: str, data: bytes) -> None:
        """Write a file, and read it back; ``OSError`` if it was there, cannot be written, or reads otherwise."""
        stored = self._tagged(name, data)
        self._make(name, stored)
        if (self._folder / name).read_bytes() != stored:
            raise OSError(f"{self._folder / name} reads otherwise than it was written")

    def uploads(self) -> Iterator[bytes]:
        for path in sorted((self._folder / UPLOADS).iterdir()):
            if path.suffix != _UNFINISHED:
                yield self.get(f"{UPLOADS}/{path.name}") or b""

    def _tagged(self, name: str, data: bytes) -> bytes:
        """Return a file's bytes. HMAC, because a write that failed may be followed by another one of its name."""
        return data + digest(self.key, bind(Label.SPREAD_TAG, name.encode(), data), "sha256")

    def _make(self, name: str, data: bytes) -> None:
        path = self._folder / name
        written = path.with_name(path.name + _UNFINISHED)
        written.unlink(missing_ok=True)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fill(descriptor, (data,), lasts=self.lasts)
            path.hardlink_to(written)
        finally:
            written.unlink(missing_ok=True)
        if self.lasts:
            sync_folder(path.parent)

    def clear(self) -> None:
        """Remove everything: the offer, without which nothing is resumed, first, and the mark of the end last."""
        (self._folder / OFFER).unlink(missing_ok=True)
        sync_folder(self._folder)
        for path in (self._folder / UPLOADS).iterdir():
            path.unlink()
        for name in (LIST, _KEY, OVER):
            erase(self._folder / name)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def goes_on(folder: Path) -> bool:
    """Whether a sum was begun in a folder and is not over."""
    return (folder / OFFER).exists() and not (folder / OVER).exists()


class RecordedCoins:
    """Coins that an earlier process drew for its offer, which is public, then fresh ones: they give the same offer."""

    def __init__(self, state: State, coins: Coins) -> None:
        self._state, self._coins, self._drawn = state, coins, b""
        recorded = state.get(OFFER) or b""
        self._offered, self._left = recorded[:_DIGEST_BYTES], recorded[_DIGEST_BYTES:]

    def draw(self, count: int) -> bytearray:
        drawn, self._left = bytearray(self._left[:count]), self._left[count:]
        drawn += self._coins.draw(count - len(drawn))
        if not self._offered:
            self._drawn += drawn
        return drawn

    def require_offer(self, invitation: bytes) -> None:
        """Write an offer down before anybody is invited, or refuse one that differs from what clients signed for."""
        offered = hashlib.sha256(invitation).digest()
        if not self._offered:
            self._state.put(OFFER, offered + self._drawn)
            self._offered = offered
        elif self._offered != offered:
            raise InvalidParameters(
                "the sum that was begun here has another offer: open it with the same arguments, holders and epoch, or "
                "begin another sum in an empty folder"
            )
