"""Initramfs of an enclave's machine: a reproducible cpio archive."""

from __future__ import annotations

import posixpath
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

from .packages import FILE, PACKAGES, PROGRAM, Entry, Files, linked_libraries, resolved

PYTHON: Final = "3.13"
INTERPRETER: Final = f"usr/bin/python{PYTHON}"
LOADER: Final = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARY: Final = "usr/lib/x86_64-linux-gnu"
_STANDARD: Final = f"usr/lib/python{PYTHON}"
_FOUND_IN: Final = (LIBRARY, f"{LIBRARY}/blas", f"{LIBRARY}/lapack", "usr/lib64")
_ENDINGS: Final = ("/__init__.py", ".py", f".cpython-{PYTHON.replace('.', '')}-x86_64-linux-gnu.so", ".abi3.so", ".so")
_EMPTY_FOLDERS: Final = ("dev", "proc", "sys", "tmp", "lib/modules")
INIT: Final = f"""#!/{INTERPRETER} -ISB
import sys
sys.path.append("/{PACKAGES}")
from secagg.crypto.entropy import SystemCoins
from secagg.protocols.enclave.machine.boot import run
run(SystemCoins())
"""


def selected(files: Mapping[str, Entry], modules: Iterable[str]) -> Files:
    """Return only the interpreter, the named modules and the libraries that they link to."""
    chosen = {INTERPRETER, *(path for module in modules if (path := _source_of(files, module)))}
    waiting = [path for path in chosen if not path.endswith(".py")]
    while waiting:
        for name in linked_libraries(files[resolved(files, waiting.pop())].content):
            found = next((f"{folder}/{name}" for folder in _FOUND_IN if f"{folder}/{name}" in files), None)
            if found is None:
                raise InvalidParameters(f"no locked package contains {name}; add the package that does")
            if found not in chosen:
                chosen.add(found)
                waiting.append(found)
    return {_place(path): files[resolved(files, path)] for path in chosen}


def _source_of(files: Mapping[str, Entry], module: str) -> str | None:
    """Return the file of a module, or None if it is built into the interpreter."""
    path = module.replace(".", "/")
    places = (
        f"{root}/{path}{ending}" for root in (_STANDARD, f"{_STANDARD}/lib-dynload", PACKAGES) for ending in _ENDINGS
    )
    return next((place for place in places if place in files), None)


def _place(path: str) -> str:
    """Return the target path of a file: libraries are put into one folder, where the loader looks without a cache."""
    name = posixpath.basename(path)
    if path.startswith((f"{LIBRARY}/blas/", f"{LIBRARY}/lapack/")):
        return f"{LIBRARY}/{name}"
    return LOADER if name == posixpath.basename(LOADER) else path


# --- Compiled modules -------------------------------------------------------------------------------------------------

_COMPILE: Final = """
import marshal, sys
from _frozen_importlib_external import MAGIC_NUMBER
for path in sys.argv[2:]:
    source = open(f"{sys.argv[1]}/{path}", "rb").read()
    code = compile(source, "/" + path, "exec", dont_inherit=True, optimize=0)
    header = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    open(f"{sys.argv[1]}/{path}c", "wb").write(header + marshal.dumps(code))
"""
"""Header with flags that disable the check against the source file, because the image contains no sources."""


def compiled(files: Files) -> Files:
    """Return an image with modules compiled by its own interpreter; they load three times as fast.

    The hash seed is fixed; otherwise the elements of constant sets would be written in another order each time.
    """
    sources = sorted(path for path in files if path.endswith(".py"))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_tree(files, root)
        command = [*interpreter_of(root), "-sSBP", "-c", _COMPILE, name, *sources]
        subprocess.run(command, env=environment_of(root), check=True)  # noqa: S603 -- the image's own interpreter
        made = {f"{path}c": Entry((root / f"{path}c").read_bytes()) for path in sources}
    return {path: entry for path, entry in files.items() if path not in sources} | made


def interpreter_of(root: Path) -> list[str]:
    """Return the command that runs the interpreter of an unpacked image on this machine."""
    folders = ":".join(str(root / folder) for folder in _FOUND_IN)
    loader = next((root / path for path in (LOADER, f"{LIBRARY}/ld-linux-x86-64.so.2") if (root / path).exists()), None)
    if loader is None:
        raise InvalidParameters("no locked package contains the loader ld-linux-x86-64.so.2; add libc6")
    return [str(loader), "--library-path", folders, str(root / INTERPRETER)]


def environment_of(root: Path) -> dict[str, str]:
    """Return the environment for that interpreter; it inherits nothing from this machine."""
    return {"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


def write_tree(files: Mapping[str, Entry], root: Path) -> None:
    """Write files into a folder."""
    for path, entry in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.target:
            place.unlink(missing_ok=True)
            # An absolute link would lead out of the folder.
            place.symlink_to(root / entry.target.lstrip("/") if entry.target.startswith("/") else entry.target)
        else:
            place.write_bytes(entry.content)
            place.chmod(entry.mode)


# --- The archive ------------------------------------------------------------------------------------------------------

_LINK, _REGULAR, _FOLDER, _DEVICE = 0o120777, 0o100000, 0o040755, 0o020600
_ALIGNMENT, _BLOCK = 4, 512
_CONSOLE: Final = "dev/console"
_CONSOLE_NUMBERS: Final = (5, 1)
_LAST: Final = "TRAILER!!!"


def archive(files: Mapping[str, Entry]) -> bytes:
    """Return an uncompressed cpio archive ("newc") in path order, owned by root and dated 1970.

    Compression would add a decompressor to the measured programs.
    """
    entries: dict[str, tuple[int, bytes]] = {_CONSOLE: (_DEVICE, b"")}
    for path in (*files, *_EMPTY_FOLDERS, _CONSOLE):
        folder = path if path in _EMPTY_FOLDERS else posixpath.dirname(path)
        while folder:
            entries[folder] = (_FOLDER, b"")
            folder = posixpath.dirname(folder)
    for path, entry in files.items():
        mode = _LINK if entry.target else _REGULAR | entry.mode
        entries[path] = (mode, entry.target.encode() or entry.content)
    out = bytearray()
    for number, path in enumerate(sorted(entries), 1):
        _put(out, path, *entries[path], number)
    _put(out, _LAST, 0, b"", 0)
    return bytes(out + bytes(-len(out) % _BLOCK))


def _put(out: bytearray, path: str, mode: int, content: bytes, number: int) -> None:
    device = _CONSOLE_NUMBERS if path == _CONSOLE else (0, 0)
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
    out += bytes(-len(out) % _ALIGNMENT)
    out += content
    out += bytes(-len(out) % _ALIGNMENT)


def with_start(files: Files) -> Files:
    """Return the files with the start script that the kernel runs, and with the link for the loader's path."""
    return {**files, "init": Entry(INIT.encode(), PROGRAM), "lib64": Entry(b"", FILE, "usr/lib64")}
