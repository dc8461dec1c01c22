"""Durable files: created once, replaced as a whole, locked by one process, or erased. On disk when a call returns."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from secagg.errors import InvalidParameters

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PIECE_BYTES: Final = 1 << 20
_ERASED: Final = ".erased"
PUBLIC: Final = 0o644
"""Mode of a file that others may read; other files are private to their owner."""
_PRIVATE: Final = 0o600


def require_own_folder(folder: Path, setting: str = "") -> None:
    """Require a folder that only this user can access; create it if it is missing.

    Args:
        setting: name of the setting that names the folder, for the error.
    Raises:
        InvalidParameters: somebody else owns it, or can access it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077):
        named = f" in {setting}" if setting else ""
        raise InvalidParameters(f"{folder} must be private to this user; remove it, or use another folder{named}")


_OVERLAY: Final = {0x794C7630: "overlayfs", 0x61756673: "aufs", 0xF15F083D: "unionfs"}
_FUSE: Final = 0x65735546
_FUSE_LAYERS: Final = ("fuse-overlayfs", "unionfs", "unionfs-fuse", "mergerfs")


def require_one_layer(folder: Path, setting: str = "") -> None:
    """Refuse a folder on a layered file system, because mounting one layer twice gives two copies of everything.

    Raises:
        InvalidParameters: it is on overlayfs or similar, like a container's own files.
    """
    if (system := _layers_of(folder)) is not None:
        named = f" in {setting}" if setting else ""
        raise InvalidParameters(
            f"{folder} is on {system}, whose layers can be mounted twice and vanish with a container; use a folder on "
            f"a volume{named}, or one in memory such as /dev/shm for trials"
        )


def _layers_of(folder: Path) -> str | None:
    kind = file_system_of(folder)
    if kind == _FUSE:
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == wanted]
        return next((name for name in names if name.removeprefix("fuse.") in _FUSE_LAYERS), None)
    return _OVERLAY.get(kind)


def file_system_of(folder: Path) -> int:
    """Return the type of a folder's file system, as reported by statfs(2); 0 on systems without this call."""
    if sys.platform != "linux":
        return 0
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), found) != 0:
        raise OSError(ctypes.get_errno(), "cannot determine the type of its file system", os.fspath(folder))
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF


_STATFS_BYTES: Final = 512
"""Larger than the structure on any platform; its first word is the type."""


def require_regular(path: Path) -> None:
    """Require a regular file or no file: replacing a device would destroy it, and writing to a pipe would hang."""
    if path.exists() and not path.is_file():
        raise InvalidParameters(f"{path} is a folder, a pipe or a device; name a regular or new file")


def create(path: Path, data: bytes = b"") -> None:
    """Create a file that does not exist; if several callers try, all but one get a ``FileExistsError``."""
    with _made(path, _PRIVATE) as file:
        file.write(data)
    sync_folder(path.parent)


def replace(path: Path, data: bytes, mode: int = _PRIVATE) -> None:
    """Replace a file with data, as ``replacing`` does."""
    with replacing(path, mode) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int = _PRIVATE) -> Generator[WholeFile]:
    """Yield a file to write; it replaces the other one once it is completely on disk.

    A crash or an error leaves either the old or the new file, never a part. A path must have only one writer at a time.

    Raises:
        InvalidParameters: it is a device, a pipe or a socket.
    """
    require_regular(path)
    beside = _beside(path)
    beside.unlink(missing_ok=True)
    with _made(beside, mode) as file:
        yield file
    try:
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class WholeFile(io.RawIOBase):
    """A file that writes all data it is given, or raises; numpy and zipfile can write to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: ReadableBuffer) -> int:
        """Write all of it; fails after closing, because the descriptor may then belong to another file."""
        if self.closed:
            raise ValueError("the file is closed")
        with memoryview(data) as view, view.cast("B") as octets:
            write_whole(self._descriptor, octets)
            return len(octets)


def write_whole(descriptor: int, data: bytes | memoryview) -> None:
    """Write all data, or raise; a disk that fills up accepts a part before it refuses the rest."""
    rest = memoryview(data)
    while rest:
        written = os.write(descriptor, rest)
        if not written:
            raise OSError(errno.EIO, "a write to the file wrote nothing, without an error")
        rest = rest[written:]


def append_whole(descriptor: int, data: bytes) -> None:
    """Append at the current position, or raise and restore the file as far as this process can."""
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        write_whole(descriptor, data)
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, before)
        os.lseek(descriptor, before, os.SEEK_SET)
        raise


def claim(descriptor: int, refusal: str) -> None:
    """Lock a file for this process, until it is closed.

    Raises:
        InvalidParameters: another process has locked it; with the caller's sentence.
    """
    if not locked(descriptor):
        raise InvalidParameters(refusal)


def locked(descriptor: int) -> bool:
    """Try to lock a file; return whether that succeeded."""
    import fcntl  # noqa: PLC0415 -- where there is none, nothing is kept that two processes could take

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release a lock of ``locked``, even if a fork has the file open."""
    import fcntl  # noqa: PLC0415 -- as in locked

    fcntl.flock(descriptor, fcntl.LOCK_UN)


def erase(path: Path) -> None:
    """Overwrite a file with zeros and remove it, and any remains of ``replace`` or an interrupted ``erase``.

    It is renamed first, so that a crash leaves no half-erased file under its own name.

    Security: this cannot reach copies that the file system keeps.
    """
    erased = path.with_name(path.name + _ERASED)
    for each in filter(Path.exists, (erased, _beside(path), path)):
        # Another process may end the same session.
        with suppress(FileNotFoundError):
            if each != erased:
                each.rename(erased)
                sync_folder(path.parent)
            _overwrite(erased)


def finish_erasing(folder: Path) -> None:
    """Overwrite and remove what an interrupted ``erase`` left in a folder; call it at startup."""
    for path in folder.glob(f"*{_ERASED}"):
        with suppress(FileNotFoundError):
            _overwrite(path)


def _overwrite(path: Path) -> None:
    """Overwrite a file and remove it, even if it cannot be overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            size = os.fstat(descriptor).st_size
            for start in range(0, size, _PIECE_BYTES):
                write_whole(descriptor, bytes(min(_PIECE_BYTES, size - start)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        path.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make new, renamed or removed files of a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


@contextmanager
def _made(path: Path, mode: int) -> Generator[WholeFile]:
    """Create a file, yield it, and flush it; on any error, remove it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            with WholeFile(descriptor) as file:
                yield file
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
