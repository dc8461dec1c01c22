"""The first process of an enclave's machine: mounts file systems, loads drivers, drops privileges and serves.

Its options are on the kernel's command line, which is measured: ``secagg.listen``, ``secagg.evidence``,
``secagg.memory`` (MiB per epoch), ``secagg.threads``, ``secagg.heartbeat=1`` in a Nitro enclave, and ``secagg.acpi=1``
where hardware measures the ACPI tables.
"""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, SecAggError

from .listeners import send_heartbeat
from .serving import serve_at

WORDS: Final = frozenset({"listen", "evidence", "memory", "threads", "heartbeat", "acpi"})
_NOBODY: Final = 65534
_NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_LOAD_MODULE: Final = {"x86_64": 313, "aarch64": 273}
_DRIVERS: Final = Path("/lib/modules")
_DEFAULT_MEMORY: Final = 256
_ACPI_OFF: Final = "acpi=off"
PROTECTING: Final = frozenset(
    {"console=ttyS0", "quiet", "panic=-1", _ACPI_OFF, "module.sig_enforce=1", "lockdown=confidentiality"}
)
_RESTART: Final = 0x01234567
"""``LINUX_REBOOT_CMD_RESTART``: ends the machine without a kernel panic, which would hide the error."""
_GENERATORS: Final = ("rdrand", "rng")
"""Flags of processors with a built-in random number generator."""


def run(coins: Coins) -> None:
    """Serve until the machine shuts down; after an error, print it to the console and shut down."""
    try:
        main(coins)
    except (SecAggError, OSError) as error:
        print(f"secagg enclave: does not start: {error}", flush=True)
        ctypes.CDLL(None).reboot(_RESTART)


def main(coins: Coins) -> None:
    """Serve until the machine shuts down.

    Raises:
        InvalidParameters: the command line or the machine does not suit the image; nothing was served.
    """
    _mount("proc", "/proc")
    _mount("sysfs", "/sys")
    _mount("devtmpfs", "/dev", _NO_SUID | _NO_PROGRAMS)
    _load_drivers()
    with suppress(OSError):
        _mount("configfs", "/sys/kernel/config")
    words = told(require_protected(Path("/proc/cmdline").read_text()))
    require_generator(Path("/proc/cpuinfo").read_text(), words.get("evidence", ""))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if words.get("heartbeat", "0") != "0":
        send_heartbeat()
    # The source of evidence stays root, and could read the service's memory through /proc.
    _unmount("/proc")
    serve_at(
        words.get("listen", ""),
        evidence=words.get("evidence", ""),
        coins=coins,
        threads=number_of(words, "threads", 1),
        memory_bytes=number_of(words, "memory", _DEFAULT_MEMORY) << 20,
        become=_become_nobody,
    )


def require_protected(command_line: str) -> str:
    """Return the command line if it has all protecting words.

    Nitro measures kernel and command line without the boundary between them, so a host could move words from the start
    of the command line to the end of the kernel, where nothing reads them.
    """
    words = {*command_line.split()}
    if missing := PROTECTING - words - ({_ACPI_OFF} if "secagg.acpi=1" in words else set[str]()):
        raise InvalidParameters(f"the kernel's command line lacks {min(missing)}; start the image as it was built")
    return command_line


def told(command_line: str) -> dict[str, str]:
    """Return this program's options on the kernel's command line; duplicates are refused."""
    found = dict[str, str]()
    for word in command_line.split():
        name, _, value = word.partition("=")
        if name.startswith("secagg."):
            if name in found:
                raise InvalidParameters(f"the kernel's command line has {name} twice")
            found[name] = value
    words = {name.removeprefix("secagg."): value for name, value in found.items()}
    if unknown := sorted(words.keys() - WORDS):
        raise InvalidParameters(f"unknown option secagg.{unknown[0]}; known: {', '.join(sorted(WORDS))}")
    return words


def require_generator(processor: str, evidence: str) -> None:
    """Refuse a machine whose randomness would come from its host.

    Any host can emulate a security module, but ``nsm`` evidence proves to clients that it is AWS's random generator.
    """
    flags = {flag for line in processor.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()}
    if evidence != "nsm" and flags.isdisjoint(_GENERATORS):
        raise InvalidParameters(
            "this processor has no random number generator, and the host's randomness cannot be trusted"
        )


def number_of(words: dict[str, str], name: str, usual: int) -> int:
    """Return an option as a positive number."""
    text = words.get(name, str(usual))
    if not text.isdecimal() or not int(text):
        raise InvalidParameters(f"secagg.{name} must be a positive number; got {text!r}")
    return int(text)


def _mount(kind: str, place: str, flags: int = _NO_SUID | _NO_DEVICES | _NO_PROGRAMS) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), place.encode(), kind.encode(), flags, None):
        raise OSError(ctypes.get_errno(), f"mount {place}")


def _unmount(place: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(place.encode(), 0):
        raise OSError(ctypes.get_errno(), f"unmount {place}")


def _load_drivers() -> None:
    """Load every driver of the image in order; a driver may refuse to load because its device is missing."""
    libc, number = ctypes.CDLL(None, use_errno=True), _LOAD_MODULE[os.uname().machine]
    for path in sorted(_DRIVERS.iterdir()):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        libc.syscall(number, file, b"", 0)
        os.close(file)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
