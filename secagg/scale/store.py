"""Where pieces of uploads, partial sums and opened ranges lie: a folder that all machines see, or any fsspec address.

Whatever is read is compared with its digest, so a storage can lose and destroy, and cannot change anything unseen.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from errno import EACCES, EAGAIN, EDQUOT, EISDIR, ELOOP, ENOENT, ENOTEMPTY, ENXIO, EPERM
from hashlib import sha256
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from secagg.contract.pieces import Cut, piece_digest
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.session.durable import sync_folder

_NO_FILE: Final = frozenset({ENOENT, EACCES, ELOOP, ENXIO, EAGAIN})
_OBSTRUCTED: Final = frozenset({EISDIR, EACCES, ENOENT, EPERM, EDQUOT})


class WrongPiece(Exception):
    """A piece that is not there, or has another digest than its client signed."""

    def __init__(self, *, is_there: bool) -> None:
        super().__init__("it has another digest" if is_there else "it is not there")
        self.is_there = is_there


class Obstructed(Exception):
    """A name that cannot be written, because of what its folder holds or allows."""


class Store(Protocol):
    """Named bytes. A name is written by who has the bytes of its digest, so writing it again changes nothing."""

    def put(self, name: str, data: bytes, *, lasts: bool = False) -> None:
        """Write all of it, or nothing; what lasts is there after a power failure, too.

        Raises:
            Obstructed: who may write in its folder is in the way.
            OSError: the storage fails.
        """

    def get(self, name: str, most: int) -> bytes:
        """Read it; of what is longer, one byte more than the most.

        Raises:
            FileNotFoundError: it is not there.
            OSError: the storage fails.
        """
        ...

    def expect(self, name: str) -> None:
        """Be told what is read soon."""

    def remove(self, prefix: str) -> None:
        """Remove everything whose name begins with a folder, if there is anything.

        Raises:
            OSError: something is left.
        """


class FolderStore:
    """A folder of a file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes, *, lasts: bool = False) -> None:
        """Write beside the name, then rename."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write(path, data, lasts=lasts)
        except OSError as error:
            if error.errno in _OBSTRUCTED:
                raise Obstructed(f"{name} cannot be written: {error.strerror}") from error
            raise

    @staticmethod
    def _write(path: Path, data: bytes, *, lasts: bool) -> None:
        # Many machines may write one name at once, so what they write beside it has a name of its own.
        descriptor, beside = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                if lasts:
                    file.flush()
                    os.fsync(descriptor)
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink()
            raise
        if lasts:
            sync_folder(path.parent)

    def get(self, name: str, most: int) -> bytes:
        """Read a file."""
        with self._opened(name) as file:
            return file.read(most + 1)

    def _opened(self, name: str) -> BinaryIO:
        """Open a file; a client may write in its own folder, so pipes, links and what is locked up are not there."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise FileNotFoundError(error.errno, "no file that can be read", name) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(ENOENT, "no file", name)
        return os.fdopen(descriptor, "rb")

    def expect(self, name: str) -> None:
        """Have the system read a file ahead, where it can."""
        with suppress(OSError, AttributeError), self._opened(name) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def remove(self, prefix: str) -> None:
        """Remove a folder; one file that cannot be removed keeps no other."""
        path = self._folder / prefix
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            raise OSError(ENOTEMPTY, "not everything can be removed", str(path))


class FsspecStore:
    """Any address that fsspec knows: ``s3://bucket/folder``, ``gs://...``, ``memory://...``."""

    def __init__(self, url: str) -> None:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError:
            raise InvalidParameters(
                f"{url} needs fsspec: pip install 'secagg[storage]', and the package of that storage"
            ) from None
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        self._files, self._root = found

    def put(self, name: str, data: bytes, *, lasts: bool = False) -> None:
        """Write an object, which object storages do at once and for good."""
        del lasts
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def get(self, name: str, most: int) -> bytes:
        """Read an object."""
        return bytes(self._files.cat_file(f"{self._root}/{name}", start=0, end=most + 1))

    def expect(self, name: str) -> None:
        """Do nothing: an object is fetched when it is read."""

    def remove(self, prefix: str) -> None:
        """Remove all objects below a folder."""
        path = f"{self._root}/{prefix}"
        if self._files.exists(path):
            self._files.rm(path, recursive=True)


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
    """Write and remove a name.

    Raises:
        InvalidParameters: that cannot be done there.
    """
    try:
        store, probe = open_store(located(url)), f"probe-{os.getpid()}"
        store.put(f"{probe}/empty", b"")
        store.remove(probe)
    except InvalidParameters:
        raise
    except Exception as error:  # noqa: BLE001 -- each storage has errors of its own
        raise InvalidParameters(f"{url} is no storage that can be written ({error}); name another --storage") from None


# --- What lies there --------------------------------------------------------------------------------------------------


def session_folder(context: bytes) -> str:
    """Return the folder of a session."""
    return context.hex()


def piece_name(context: bytes, client: ClientId, digest: bytes) -> str:
    """Return the name of a client's piece: each client has a folder, so that it can be let into that one alone."""
    return f"{session_folder(context)}/pieces/{client.value}/{digest.hex()}"


def write_piece(  # noqa: PLR0913 -- a piece, and where it belongs
    store: Store, cut: Cut, client: ClientId, digest: bytes, piece: bytes, *, lasts: bool
) -> None:
    """Store a piece of a vector that came whole.

    Raises:
        PeerMisbehaved: its client, or who keeps the storage, is in the way.
        OSError: the storage fails.
    """
    try:
        store.put(piece_name(cut.context, client, digest), piece, lasts=lasts)
    except Obstructed as error:
        raise PeerMisbehaved(
            f"the pieces of {client} cannot be stored: {error}; empty its folder, or let the server write",
            reason=Reason.COMMITMENT_MISMATCH,
            culprits={client, ServerId()},
        ) from None


def read_piece(store: Store, cut: Cut, client: ClientId, number: int, digest: bytes) -> bytes:
    """Return a piece that has the digest which its client signed.

    Raises:
        WrongPiece: it is not there, or has another digest.
        OSError: the storage fails.
    """
    try:
        piece = store.get(piece_name(cut.context, client, digest), cut.lengths[number])
    except FileNotFoundError:
        raise WrongPiece(is_there=False) from None
    if not compare_digest(piece_digest(cut.context, client, number, piece), digest):
        raise WrongPiece(is_there=True)
    return piece


def write_result(store: Store, context: bytes, data: bytes) -> bytes:
    """Write what a job made, and return the digest by which it is named and found."""
    digest = sha256(data).digest()
    store.put(f"{session_folder(context)}/sums/{digest.hex()}", data)
    return digest


def read_result(store: Store, context: bytes, digest: bytes, size: int) -> bytes:
    """Return what a job made.

    Raises:
        FileNotFoundError: it is not there, or not what was written: the job must be done again.
        OSError: the storage fails.
    """
    data = store.get(f"{session_folder(context)}/sums/{digest.hex()}", size)
    if len(data) != size or not compare_digest(sha256(data).digest(), digest):
        raise FileNotFoundError(f"{digest.hex()} is not what was written")
    return data
