"""A file of records of one size that is appended to, each with the digest of all before it: for ledgers.

None can be taken out of the middle or changed. A last record that is cut is one whose ``append`` never returned, so
that nothing followed from it; it is dropped.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason

from .durable import append_whole, sync_folder

LINK_BYTES: Final = 32
_CHANGED: Final = Reason.NOT_CANONICAL


class ChainedFile:
    """The records of an open file, which this process has locked."""

    def __init__(self, descriptor: int, path: Path, *, header: bytes, body_bytes: int) -> None:
        """Use a file that was opened and not read, and that others may not write to; a new one has a header."""
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o022:
            raise InvalidParameters(f"others may write to the ledger {path}; chmod it to 600")
        self._descriptor, self._path, self._header, self._body_bytes = descriptor, path, header, body_bytes
        self._link = hashlib.sha256(bind(Label.SPENT_LINK, header)).digest()

    def bodies(self) -> list[bytes]:
        """Return what was appended so far, and stand at the end; to be called once, before ``append``.

        Raises:
            MalformedMessage: the file begins with another header, or was changed.
        """
        stored = self._stored()
        size, found = self._body_bytes + LINK_BYTES, list[bytes]()
        if self._header.startswith(stored):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            append_whole(self._descriptor, self._header)
            sync_folder(self._path.parent)
            return found
        if not stored.startswith(self._header):
            raise MalformedMessage(f"{self._path} is no ledger of uploads; name another file", reason=_CHANGED)
        whole = len(stored) - (len(stored) - len(self._header)) % size
        for number, start in enumerate(range(len(self._header), whole, size)):
            body, link = stored[start : start + self._body_bytes], stored[start + self._body_bytes : start + size]
            if link != self._next(body):
                raise MalformedMessage(
                    f"record {number} of {self._path} was changed; what this client has uploaded is not known any "
                    "more, so give it a new identity",
                    reason=_CHANGED,
                )
            self._link = link
            found.append(body)
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, whole, os.SEEK_SET)
        return found

    def append(self, body: bytes) -> None:
        """Write a record, whole or not at all as far as this process can see to that; it is durable when this returns.

        Raises:
            OSError: it could not be written; nothing has changed.
        """
        link = self._next(body)
        append_whole(self._descriptor, body + link)
        self._link = link

    def close(self) -> None:
        """Let another process use the file; nothing more is appended."""
        os.close(self._descriptor)
        self._descriptor = -1

    def _stored(self) -> bytes:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            return file.read()

    def _next(self, body: bytes) -> bytes:
        return hashlib.sha256(bind(Label.SPENT_LINK, self._link, body)).digest()
