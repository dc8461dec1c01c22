"""Packages of an image: Debian packages, wheels and perhaps a kernel, each with its SHA-256 in a lock file.

A lock has one line for each package, with a digest and a file name:

    b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf  libc6_2.41-12+deb13u5_amd64.deb
"""

from __future__ import annotations

import hashlib
import io
import lzma
import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

PACKAGES: Final = "usr/lib/python3/dist-packages"
"""Folder for unpacked wheels; Debian's Python imports from it."""
_LOCKED: Final = re.compile(r"([0-9a-f]{64}) +([^/\s\0]+)")
_ARCHIVE: Final = b"!<arch>\n"
_MOST_LINKS: Final = 8
_DAMAGES: Final = (ValueError, KeyError, EOFError, RuntimeError)
_MOST_BYTES: Final = 1 << 30
"""Maximum size of an unpacked package."""
PROGRAM, FILE = 0o755, 0o644


@dataclass(frozen=True, slots=True)
class Entry:
    """A file with its mode, or a link to another path."""

    content: bytes
    mode: int = FILE
    target: str = ""
    """Target of a link; empty for a file."""


Files = dict[str, Entry]
"""Entries by path from the root of the image."""


def locked_packages(lock: Path, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each package in a lock.

    Raises:
        InvalidParameters: a line is malformed, or a file is missing or has another digest.
    """
    for number, line in enumerate(_text(lock).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LOCKED.fullmatch(line.strip())
        if found is None:
            raise InvalidParameters(f"{lock}, line {number}: expected a SHA-256 and a file name; got {line!r:.80}")
        digest, name = found.groups()
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise InvalidParameters(f"cannot read the locked package {folder / name}: {error.strerror}") from None
        if (got := hashlib.sha256(content).hexdigest()) != digest:
            raise InvalidParameters(f"{folder / name} differs from the lock: its SHA-256 is {got}, {lock} has {digest}")
        yield name, content


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameters(f"cannot read the lock {file}: {error}") from None


def unpacked(name: str, content: bytes) -> Files:
    """Return the files that a package installs.

    Raises:
        InvalidParameters: it is not a package, is damaged, or contains a path twice or outside the image.
    """
    if not name.endswith((".whl", ".deb")):
        raise InvalidParameters(f"{name} must be a .deb, a .whl, a kernel (bzImage) or a module of it (.ko)")
    files, size = Files(), 0
    try:
        for path, entry in _in_wheel(content) if name.endswith(".whl") else _in_deb(name, content):
            if path != posixpath.normpath(path) or path.startswith(("/", ".")) or not path.isprintable():
                raise InvalidParameters(f"{name} installs {path!r}, which is outside the image")
            # Hard links to one file are written as separate copies.
            if (size := size + len(entry.content)) > _MOST_BYTES:
                raise ValueError(f"the package unpacks to more than {_MOST_BYTES} bytes")
            add(files, name, {path: entry})
    except (*_DAMAGES, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InvalidParameters):
            raise
        raise InvalidParameters(f"{name} is damaged: {error}") from None
    return files


def add(files: Files, name: str, new: Mapping[str, Entry]) -> None:
    """Add a package's files; refuse a path that was already added with different content, in either order."""
    for path, entry in new.items():
        if files.setdefault(path, entry) != entry:
            raise InvalidParameters(f"{name} and an earlier package contain different files {path}; lock only one")


def require_tree(files: Mapping[str, Entry]) -> None:
    """Refuse a file below a link or below another file, because unpacking it would write to another place."""
    for path in files:
        above = posixpath.dirname(path)
        while above:
            if above in files:
                raise InvalidParameters(f"{path} is below {above}, which is a file or a link in another package")
            above = posixpath.dirname(above)


def expanded(packed: bytes) -> bytes:
    """Decompress xz."""
    content = lzma.LZMADecompressor().decompress(packed, _MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise InvalidParameters(f"a package unpacks to more than {_MOST_BYTES} bytes")
    return content


def _in_deb(name: str, content: bytes) -> Iterator[tuple[str, Entry]]:
    if not content.startswith(_ARCHIVE):
        raise InvalidParameters(f"{name} is not a Debian package")
    at = len(_ARCHIVE)
    while at < len(content):
        member, size = content[at : at + 16].strip(), int(content[at + 48 : at + 58])
        if size < 0 or at + 60 + size > len(content):
            raise ValueError(f"{member.decode()} has {size} bytes")
        body = content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if member.startswith(b"data.tar"):
            if not member.startswith(b"data.tar.xz"):
                raise InvalidParameters(f"{name} contains {member.decode()}, but only data.tar.xz is supported")
            yield from _in_tar(expanded(body))


def _in_tar(content: bytes) -> Iterator[tuple[str, Entry]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = posixpath.normpath(member.name).lstrip("/")
            if member.issym():
                yield path, Entry(b"", target=member.linkname)
            elif not member.isdir():
                # A hard link is read as the file that it points to.
                is_plain = (member.isfile() and not member.issparse()) or member.islnk()
                opened = archive.extractfile(member) if is_plain else None
                if opened is None:
                    raise ValueError(f"{path} is not a file, link or folder")
                yield path, Entry(opened.read(), PROGRAM if member.mode & 0o100 else FILE)


def _in_wheel(content: bytes) -> Iterator[tuple[str, Entry]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(each.file_size for each in archive.infolist()) > _MOST_BYTES:
            raise ValueError(f"the package unpacks to more than {_MOST_BYTES} bytes")
        for each in archive.infolist():
            if not each.is_dir() and ".dist-info/" not in each.filename:
                mode = PROGRAM if ".so" in each.filename else FILE
                yield f"{PACKAGES}/{each.filename}", Entry(archive.read(each), mode)


def resolved(files: Mapping[str, Entry], path: str) -> str:
    """Follow links until a file."""
    for _ in range(_MOST_LINKS):
        entry = files.get(path)
        if entry is None:
            raise InvalidParameters(f"a link points to {path}, which no locked package contains; add that package")
        if not entry.target:
            return path
        path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), entry.target)).lstrip("/")
        # In Debian /lib is a link to /usr/lib, but no package contains the link.
        path = f"usr/{path}" if path.startswith("lib") else path
    raise InvalidParameters(f"the link {path} leads back to itself")


# --- Linked libraries -------------------------------------------------------------------------------------------------

_ELF: Final = b"\x7fELF\x02\x01"
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS = 1, 5
_HEADER: Final = struct.Struct("<IIQQQQQQ")
_TAG: Final = struct.Struct("<QQ")


def linked_libraries(program: bytes) -> list[str]:
    """Return the names of the loader and of the libraries that a 64-bit ELF file requires."""
    if not program.startswith(_ELF):
        raise InvalidParameters("a program or library of the image is not a 64-bit ELF file")
    try:
        return _linked(program)
    except (struct.error, ValueError, KeyError, OverflowError) as error:
        raise InvalidParameters(f"a program or library of the image is damaged: {error}") from None


def _linked(program: bytes) -> list[str]:
    (offset,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    headers = [_HEADER.unpack_from(program, offset + size * number) for number in range(count)]
    names = [posixpath.basename(_string(program, at)) for kind, _, at, *_ in headers if kind == _INTERPRETER]
    for kind, _, at, _, _, length, *_ in headers:
        if kind == _DYNAMIC:
            tags = [_TAG.unpack_from(program, at + _TAG.size * number) for number in range(length // _TAG.size)]
            strings = _place(headers, dict(tags)[_STRINGS])
            names += [_string(program, strings + value) for tag, value in tags if tag == _NEEDED]
    return names


def _place(headers: list[tuple[int, ...]], address: int) -> int:
    """Return the file offset of an address in the loaded program."""
    for kind, _, at, begin, _, length, *_ in headers:
        if kind == _LOAD and begin <= address < begin + length:
            return at + address - begin
    raise InvalidParameters("a library's string table is in no loaded segment")


def _string(program: bytes, at: int) -> str:
    return program[at : program.index(0, at)].decode()
