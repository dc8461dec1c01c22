"""Files that are on disk when a call returns: made once, replaced as a whole, held by one process, or erased."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

_PIECE_BYTES: Final = 1 << 20


def require_own_folder(folder: Path) -> None:
    """Make a folder for this user alone, or take one that is.

    Raises:
        InvalidParameters: somebody else owns it, or may look into it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077):
        raise InvalidParameters(f"{folder} must be this user's alone; remove it, or name another folder")


def create(path: Path) -> None:
    """Make an empty file that was not there; one caller alone gets this.

    Raises:
        FileExistsError: it is there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Put data in the place of a file, so that a crash leaves the one or the other and never a part."""
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def append_whole(descriptor: int, data: bytes) -> None:
    """Write behind where a file stands, whole or not at all as far as this process can see to that.

    Raises:
        OSError: it could not be written; the file is as before.
    """
    before, rest = os.lseek(descriptor, 0, os.SEEK_CUR), memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        os.lseek(descriptor, before, os.SEEK_SET)
        raise


def claim(descriptor: int, refusal: str) -> None:
    """Lock a file for this process, until it is closed.

    Raises:
        InvalidParameters: another process has it; with the sentence that the caller gives.
    """
    import fcntl  # noqa: PLC0415 -- where there is none, nothing is kept that two processes could take

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidParameters(refusal) from None


def hold(descriptor: int) -> None:
    """Lock a file until it is closed, and wait for another process to close it, which should be soon."""
    import fcntl  # noqa: PLC0415 -- as in claim

    fcntl.flock(descriptor, fcntl.LOCK_EX)


def erase(path: Path) -> None:
    """Overwrite a file with zeros and remove it, if it is there; what the file system keeps of it is beyond reach."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, _PIECE_BYTES):
            file.write(bytes(min(_PIECE_BYTES, size - start)))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def sync_folder(folder: Path) -> None:
    """Let what was made, renamed or removed in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
