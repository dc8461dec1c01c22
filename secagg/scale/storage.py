"""Stores pieces and partial sums in a shared folder or at an fsspec address; and the task that adds them.

A tag authenticates the name with the contents (GMAC under a key derived from the sum's key and the name). A name
follows from the object's inputs, so no key ever tags two contents, and no nonce is used twice. A task has no state. It
adds exactly the buffers whose tags it has checked, and stores its sum atomically, so it may run twice.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EACCES, EAGAIN, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, ENXIO, EPERM
from hashlib import sha256
from hmac import compare_digest, digest
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import RingVector
from secagg.errors import InvalidParameters
from secagg.protocols.one_message import OneMessageCut
from secagg.session.durable import sync_folder, write_whole

TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)
"""Nonce; each key tags only one message."""
_NOT_THERE: Final = frozenset({ENOENT, EACCES, ELOOP, ENXIO, EAGAIN, EISDIR, ENOTDIR, EPERM})


class Lost(Exception):
    """An object is missing, or differs from the one written under its name."""


class Objects:
    """The objects of one sum; its key authenticates them and names their folder."""

    def __init__(self, storage: str, key: bytes) -> None:
        self._store: FolderStore | FsspecStore = (
            FsspecStore(storage) if "://" in storage else FolderStore(Path(storage))
        )
        self._key = key
        self._folder = digest(key, b"folder", "sha256").hex()[:32]

    def put(self, name: str, *parts: bytes | memoryview, lasts: bool = False) -> None:
        """Write an object atomically; one that lasts survives a power failure."""
        self._store.put(f"{self._folder}/{name}", (*parts, tag_of(self._key, name, *parts)), lasts=lasts)

    def read(self, name: str, size: int) -> memoryview:
        """Return the checked contents of an object, in a buffer that is valid until the next read.

        Raises:
            Lost: it is missing, or differs from the one that was written.
            OSError: the storage fails.
        """
        stored = self._store.read(f"{self._folder}/{name}", size + TAG_BYTES)
        if stored is None or not compare_digest(tag_of(self._key, name, stored[:size]), stored[size:]):
            raise Lost(name)
        return stored[:size]

    def remove(self) -> None:
        self._store.remove(self._folder)


def tag_of(key: bytes, name: str, *parts: bytes | memoryview) -> bytes:
    """Return the tag of an object."""
    cipher = Cipher(AES(digest(key, bind(Label.SPREAD_TAG, name.encode()), "sha256")), GCM(_NONCE)).encryptor()
    for part in parts:
        cipher.authenticate_additional_data(part)
    cipher.finalize()
    return cipher.tag


# --- Tasks ------------------------------------------------------------------------------------------------------------

Sums = list[RingVector]
"""Sums of one piece, plane by plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Adds one piece of some clients' uploads; names and key authenticate the pieces."""

    storage: str
    key: bytes = field(repr=False)
    cut: OneMessageCut
    piece: int
    inputs: tuple[str, ...]

    @property
    def output(self) -> str:
        """Name of the sum, derived from its inputs."""
        return f"sums/{sha256(' '.join((str(self.piece), *self.inputs)).encode()).hexdigest()}"


def add(task: Task) -> None:
    """Add and store the sum, unless it exists; nothing is stored if ``Objects.read`` raises."""
    objects, total = Objects(task.storage, task.key), task.cut.zeros(task.piece)
    with suppress(Lost):
        read_sum(objects, task.output, total)
        return
    for name in task.inputs:
        task.cut.add(total, task.piece, objects.read(name, task.cut.lengths[task.piece]))
    objects.put(task.output, *(words.data.cast("B") for words in total))


def read_sum(objects: Objects, name: str, like: Sums) -> Sums:
    """Return a partial sum of the form of another one, as ``Objects.read`` does."""
    data, sums, at = objects.read(name, sum(words.nbytes for words in like)), Sums(), 0
    for words in like:
        sums.append(np.frombuffer(data, words.dtype, words.size, at))
        at += words.nbytes
    return sums


# --- Storages ---------------------------------------------------------------------------------------------------------


class FolderStore:
    """A folder of a file system."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._buffer = folder, memoryview(b"")

    def put(self, name: str, parts: tuple[bytes | memoryview, ...], *, lasts: bool = False) -> None:
        """Write a temporary file, then rename it; several machines may write one name at once."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(dir=path.parent)
        try:
            fill(descriptor, parts, lasts=lasts)
            Path(written).replace(path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        for above in Path(name).parents if lasts else ():
            sync_folder(self._folder / above)

    def read(self, name: str, size: int) -> memoryview | None:
        """Read a regular file of this size; never blocks on a pipe or follows a link."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise
        try:
            found, at = os.fstat(descriptor), 0
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return None
            if len(self._buffer) < size:
                self._buffer = memoryview(bytearray(size))
            while at < size:
                if not (count := os.readv(descriptor, [self._buffer[at:size]])):
                    return None
                at += count
        finally:
            os.close(descriptor)
        return self._buffer[:size]

    def remove(self, folder: str) -> None:
        """Remove as much of a folder as possible."""
        path = self._folder / folder
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            raise OSError(ENOTEMPTY, "not everything can be removed", str(path))


def fill(descriptor: int, parts: tuple[bytes | memoryview, ...], *, lasts: bool) -> None:
    """Write a file, flush it if it must last, and close it."""
    try:
        for part in parts:
            write_whole(descriptor, part)
        if lasts:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FsspecStore:
    """Any fsspec address with atomic writes of objects: ``s3://bucket/folder``, ``gs://...``."""

    def __init__(self, url: str) -> None:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError:
            raise InvalidParameters(
                f"{url} needs fsspec: pip install '.[storage]' in a checkout, and the package of that storage"
            ) from None
        self._files, self._root = fsspec.core.url_to_fs(url)

    def put(self, name: str, parts: tuple[bytes | memoryview, ...], *, lasts: bool = False) -> None:
        del lasts  # Writes to an object storage are atomic and durable.
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, b"".join(parts))

    def read(self, name: str, size: int) -> memoryview | None:
        try:
            data = self._files.cat_file(f"{self._root}/{name}", start=0, end=size + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            return None
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 -- each storage has its own errors
            raise OSError(f"{name} cannot be read: {type(error).__name__}: {error}") from None
        return memoryview(data) if len(data) == size else None

    def remove(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(f"{self._root}/{folder}", recursive=True)


def located(url: str) -> str:
    """Return an absolute address: a path, or a URL for fsspec."""
    path = url.removeprefix("file://")
    return path if "://" in path else str(Path(path).absolute())


def require_usable(url: str) -> None:
    """Refuse storage where objects cannot be written, read and removed."""
    try:
        probe = Objects(located(url), f"probe {os.getpid()}".encode())
        probe.put("object", b"probe")
        probe.read("object", 5)
        probe.remove()
    except InvalidParameters:
        raise
    except Exception as error:  # noqa: BLE001 -- each storage has its own errors
        raise InvalidParameters(f"{url} cannot be written ({error}); use another --storage") from None
