"""Packages that an image is made of: Debian's and wheels, each under the SHA-256 that a lock names.

A lock has a line for each package, a digest and a file name:

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

PACKAGES: Final = "usr/lib/python3/dist-packages"
"""Where wheels are unpacked, which is where Debian's Python looks."""
_LOCKED: Final = re.compile(r"([0-9a-f]{64}) +([^/\s]+)")
_ARCHIVE: Final = b"!<arch>\n"
_MOST_LINKS: Final = 8
PROGRAM, FILE = 0o755, 0o644


@dataclass(frozen=True, slots=True)
class Entry:
    """A file with its mode, or a link to another path."""

    content: bytes
    mode: int = FILE
    target: str = ""
    """Where a link points; empty for a file."""


Files = dict[str, Entry]
"""Entries by their paths from the root of the image."""


def locked_packages(lock: Path, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the packages that a lock names.

    Raises:
        InvalidParameters: a line is unreadable, or a file is missing or has another digest.
    """
    for number, line in enumerate(_text(lock).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LOCKED.fullmatch(line.strip())
        if found is None:
            raise InvalidParameters(f"{lock}, line {number}: a line is a SHA-256 and a file name; got {line!r:.80}")
        digest, name = found.groups()
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise InvalidParameters(f"{folder / name} is locked and cannot be read: {error.strerror}") from None
        if (got := hashlib.sha256(content).hexdigest()) != digest:
            raise InvalidParameters(f"{folder / name} is not the file that was locked: it has {got}, {lock} {digest}")
        yield name, content


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameters(f"{file} is not a readable lock: {error}") from None


def unpacked(name: str, content: bytes) -> Files:
    """Return what a package installs."""
    if name.endswith(".whl"):
        files = dict(_in_wheel(content))
    elif name.endswith(".deb"):
        files = dict(_in_deb(name, content))
    else:
        raise InvalidParameters(f"{name} is neither a .deb nor a .whl")
    if strange := [path for path in files if path != posixpath.normpath(path) or path.startswith(("/", ".."))]:
        raise InvalidParameters(f"{name} installs {strange[0]!r}, which is outside of the image")
    return files


def _in_deb(name: str, content: bytes) -> Iterator[tuple[str, Entry]]:
    if not content.startswith(_ARCHIVE):
        raise InvalidParameters(f"{name} is not a Debian package")
    at = len(_ARCHIVE)
    while at < len(content):
        member, size = content[at : at + 16].strip(), int(content[at + 48 : at + 58])
        body = content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if member.startswith(b"data.tar"):
            if not member.startswith(b"data.tar.xz"):
                raise InvalidParameters(f"{name} holds {member.decode()}, and only data.tar.xz can be read")
            yield from _in_tar(lzma.decompress(body))


def _in_tar(content: bytes) -> Iterator[tuple[str, Entry]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = posixpath.normpath(member.name).lstrip("/")
            if member.issym():
                yield path, Entry(b"", target=member.linkname)
            elif member.isfile() and (opened := archive.extractfile(member)) is not None:
                yield path, Entry(opened.read(), PROGRAM if member.mode & 0o100 else FILE)


def _in_wheel(content: bytes) -> Iterator[tuple[str, Entry]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and ".dist-info/" not in name:
                yield f"{PACKAGES}/{name}", Entry(archive.read(name), PROGRAM if ".so" in name else FILE)


def resolved(files: Mapping[str, Entry], path: str) -> str:
    """Follow links to a file."""
    for _ in range(_MOST_LINKS):
        entry = files[path]
        if not entry.target:
            return path
        path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), entry.target)).lstrip("/")
        # Debian's /lib is a link to /usr/lib, which no package holds.
        path = f"usr/{path}" if path.startswith("lib") else path
    raise InvalidParameters(f"{path} is a loop of links")


# --- What a program is linked to --------------------------------------------------------------------------------------

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS = 1, 5
_HEADER: Final = struct.Struct("<IIQQQQQQ")
_TAG: Final = struct.Struct("<QQ")


def linked_libraries(program: bytes) -> list[str]:
    """Return the names of the libraries and of the loader that a 64-bit ELF file asks for."""
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
    """Return where in the file an address of the loaded program is."""
    for kind, _, at, begin, _, length, *_ in headers:
        if kind == _LOAD and begin <= address < begin + length:
            return at + address - begin
    raise InvalidParameters("a library's table of strings is in no segment that is loaded")


def _string(program: bytes, at: int) -> str:
    return program[at : program.index(0, at)].decode()
