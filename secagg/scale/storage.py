"""Where pieces and partial sums lie: a folder that all machines see, or any fsspec address; each object has a tag.

A tag authenticates the name with the contents (GMAC under a key that follows from the sum's key and the name). A name
follows from what the object is made of, so no key ever tags two contents, and no nonce can come twice.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from errno import EACCES, EAGAIN, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, ENXIO, EPERM
from hmac import digest
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.session.durable import sync_folder, write_whole

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)
"""Of the one message that each key tags."""
_NOT_THERE: Final = frozenset({ENOENT, EACCES, ELOOP, ENXIO, EAGAIN, EISDIR, ENOTDIR, EPERM})


class Lost(Exception):
    """An object that is not there, or is not what was written under its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


# --- Tags -------------------------------------------------------------------------------------------------------------


def tag_of(key: bytes, name: str, data: bytes | memoryview) -> bytes:
    """Return the tag of an object; it depends on nothing but its arguments."""
    return _cipher(key, name).encrypt(_NONCE, b"", data)


def opened(key: bytes, name: str, stored: bytes | memoryview) -> memoryview:
    """Return the contents of an object that ends in its tag.

    Raises:
        Lost: it is not what was written under this name.
    """
    view = memoryview(stored)
    try:
        _cipher(key, name).decrypt(_NONCE, bytes(view[-TAG_BYTES:]), view[:-TAG_BYTES])
    except (InvalidTag, ValueError):
        raise Lost(name) from None
    return view[:-TAG_BYTES]


def _cipher(key: bytes, name: str) -> AESGCM:
    return AESGCM(digest(key, bind(Label.SPREAD_TAG, name.encode()), "sha256"))


# --- Storages ---------------------------------------------------------------------------------------------------------


class Store(Protocol):
    """Named bytes."""

    def put(self, name: str, parts: Sequence[bytes | memoryview], *, lasts: bool = False) -> None:
        """Write all of it, or nothing; an object that lasts is there after a power failure, too.

        Raises:
            OSError: the storage fails.
        """

    def read(self, name: str, size: int, into: memoryview | None = None) -> memoryview:
        """Return an object of this size, in the buffer if that can be done.

        Raises:
            Lost: there is no such object, or it has another size.
            OSError: the storage fails.
        """
        ...

    def remove(self, folder: str) -> None:
        """Remove everything below a folder.

        Raises:
            OSError: something is left.
        """


class FolderStore:
    """A folder of a file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, parts: Sequence[bytes | memoryview], *, lasts: bool = False) -> None:
        """Write another file, then rename it; many machines may write one name at once."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(dir=path.parent)
        try:
            try:
                for part in parts:
                    write_whole(descriptor, part)
                if lasts:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            Path(written).replace(path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        if lasts:
            sync_folder(path.parent)

    def read(self, name: str, size: int, into: memoryview | None = None) -> memoryview:
        """Read a file; a pipe, a link and a folder are not there, and nobody waits for one."""
        buffer = memoryview(bytearray(size)) if into is None else into[:size]
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise Lost(name) from None
            raise
        try:
            found, at = os.fstat(descriptor), 0
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise Lost(name)
            while at < size:
                if not (count := os.readv(descriptor, [buffer[at:]])):
                    raise Lost(name)
                at += count
        finally:
            os.close(descriptor)
        return buffer

    def remove(self, folder: str) -> None:
        """Remove a folder; one file that cannot be removed keeps no other."""
        path = self._folder / folder
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            raise OSError(ENOTEMPTY, "not everything can be removed", str(path))


class FsspecStore:
    """Any address that fsspec knows and that writes an object at once: ``s3://bucket/folder``, ``gs://...``."""

    def __init__(self, url: str) -> None:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError:
            raise InvalidParameters(
                f"{url} needs fsspec: pip install 'secagg[storage]', and the package of that storage"
            ) from None
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        self._files, self._root = found

    def put(self, name: str, parts: Sequence[bytes | memoryview], *, lasts: bool = False) -> None:
        """Write an object, which object storages do at once and for good."""
        del lasts
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, b"".join(parts))

    def read(self, name: str, size: int, into: memoryview | None = None) -> memoryview:
        """Read an object."""
        del into
        try:
            data = self._files.cat_file(f"{self._root}/{name}", start=0, end=size + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            raise Lost(name) from None
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 -- each storage has errors of its own
            raise OSError(f"{name} cannot be read: {type(error).__name__}: {error}") from None
        if len(data) != size:
            raise Lost(name)
        return memoryview(data)

    def remove(self, folder: str) -> None:
        """Remove all objects below a folder."""
        with suppress(FileNotFoundError):
            self._files.rm(f"{self._root}/{folder}", recursive=True)


def read_object(  # noqa: PLR0913, PLR0917 -- which object, and where it goes
    store: Store, key: bytes, folder: str, name: str, size: int, into: memoryview | None = None
) -> memoryview:
    """Return the contents of an object of a sum, which are the buffer that was checked.

    Raises:
        Lost: it is not there, or not what was written.
        OSError: the storage fails.
    """
    try:
        return opened(key, name, store.read(f"{folder}/{name}", size + TAG_BYTES, into))
    except Lost:
        raise Lost(name) from None


def put_object(store: Store, key: bytes, folder: str, name: str, data: bytes | memoryview, *, lasts: bool) -> None:  # noqa: PLR0913 -- as above
    """Write an object of a sum, with its tag.

    Raises:
        OSError: the storage fails.
    """
    store.put(f"{folder}/{name}", (data, tag_of(key, name, data)), lasts=lasts)


def located(url: str) -> str:
    """Return an address that is the same for processes in other folders."""
    return url if "://" in url else str(Path(url).absolute())


def open_store(url: str) -> Store:
    """Return the storage at an address: a path, or a URL with a scheme.

    Raises:
        InvalidParameters: the address needs fsspec, which is not installed.
    """
    if "://" in url and not url.startswith("file://"):
        return FsspecStore(url)
    return FolderStore(Path(url.removeprefix("file://")))


def require_usable(url: str) -> None:
    """Write, read and remove an object.

    Raises:
        InvalidParameters: that cannot be done there.
    """
    try:
        store, probe = open_store(located(url)), f"probe-{os.getpid()}"
        store.put(f"{probe}/object", (b"probe",))
        store.read(f"{probe}/object", 5)
        store.remove(probe)
    except InvalidParameters:
        raise
    except Exception as error:  # noqa: BLE001 -- each storage has errors of its own
        raise InvalidParameters(f"{url} is no storage that can be written ({error}); name another --storage") from None
