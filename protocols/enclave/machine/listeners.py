"""Listeners of an enclave's service: a Unix socket, vsock, or a virtio serial port for one host at a time."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from secagg.errors import InvalidParameters
from secagg.protocols.enclave.trusted.hosts import Listener
from secagg.session.frames import listening

_PIECE: Final = 1 << 15
_PAUSE: Final = 0.01
_SILENCE_MILLISECONDS: Final = 200
_PORTS: Final = Path("/sys/class/virtio-ports")
_LAST_PORT: Final = (1 << 32) - 2
"""The number after it means any port."""


@contextmanager
def listening_at(address: str) -> Generator[Listener]:
    """Listen at ``unix:PATH``, ``vsock:PORT`` or ``virtio:NAME``.

    Raises:
        InvalidParameters: the address is invalid or cannot be used.
    """
    kind, _, rest = address.partition(":")
    match kind:
        case "unix" if rest and not hasattr(socket, "AF_UNIX"):
            raise InvalidParameters("this system has no Unix sockets; use vsock: or virtio:, or another system")
        case "unix" if rest:
            with listening(Path(rest), replaces_dead=True) as listener:
                yield listener
        case "vsock" if is_port(rest):
            with _vsock(int(rest)) as listener:
                yield listener
        case "virtio" if rest:
            with PortListener(_port_named(rest)) as port:
                yield port
        case _:
            raise InvalidParameters(f"the address must be unix:PATH, vsock:PORT or virtio:NAME; got {address!r}")


def is_port(text: str) -> bool:
    """Return whether a text is a vsock port number."""
    return text.isdecimal() and int(text) <= _LAST_PORT


def is_reachable(address: str) -> bool:
    """Return whether a host can reach an address; a vsock without a device is only reachable from this machine."""
    if not address.startswith("vsock:"):
        return True
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as knocking:
        knocking.settimeout(0)
        # The kernel checks for the device before it sends anything.
        return knocking.connect_ex((socket.VMADDR_CID_HOST, 1)) != errno.ENODEV


def _vsock(port: int) -> socket.socket:
    try:
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        listener.bind((socket.VMADDR_CID_ANY, port))
        listener.listen()
    except (AttributeError, OSError, OverflowError) as error:
        raise InvalidParameters(f"cannot listen at vsock:{port}: {error}") from None
    return listener


def _port_named(name: str) -> Path:
    for entry in sorted(_PORTS.iterdir()) if _PORTS.exists() else ():
        if (entry / "name").read_text().strip() == name:
            return Path("/dev") / entry.name
    raise InvalidParameters(f"this machine has no virtio port {name!r}; add a virtserialport with that name")


def send_heartbeat(context: int = 3, port: int = 9000) -> None:
    """Tell the parent instance of a Nitro enclave that the enclave booted: send one byte and wait for its echo."""
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as parent:
            parent.settimeout(10)
            parent.connect((context, port))
            parent.sendall(b"\xb7")
            said: object = parent.recv(1)
    except OSError as error:
        said = error
    if said != b"\xb7":
        raise InvalidParameters(
            f"no Nitro parent instance answers at vsock:{context}:{port} ({said}); outside Nitro, build the image "
            "without --heartbeat"
        )


class Port:
    """A virtio serial port as a connection; the host's end is a socket of its virtual machine monitor.

    The port stays open from one host to the next, so ``close`` discards what a host sent and nobody read. Reads and
    writes never wait for a host that has disconnected.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._timeout: float | None = None
        self._is_drained = False

    def fileno(self) -> int:
        return self._file

    def settimeout(self, value: float | None, /) -> None:
        self._timeout = value

    def _wait(self, event: int) -> int:
        poll = select.poll()
        poll.register(self._file, event)
        for _, found in poll.poll(None if self._timeout is None else max(1, int(1000 * self._timeout))):
            return found
        raise TimeoutError("the host is too slow")

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        if flags:
            raise OSError("a virtio port does not support MSG_PEEK or other flags")
        self._wait(select.POLLIN)
        received = os.read(self._file, size)
        self._is_drained = not received
        return received

    def sendall(self, data: bytes, /) -> None:
        rest = memoryview(data)
        while rest:
            if self._wait(select.POLLOUT) & select.POLLHUP:
                self.close()
                raise ConnectionResetError("the host has disconnected")
            rest = rest[os.write(self._file, rest[:_PIECE]) :]

    def close(self) -> None:
        """Discard the host's unread bytes until it disconnects or is silent; the port stays open for the next one."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        while not self._is_drained and poll.poll(_SILENCE_MILLISECONDS):
            with suppress(BlockingIOError):
                self._is_drained = not os.read(self._file, _PIECE)
        self._is_drained = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PortListener:
    """Listener that serves one connection of the port at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        # ``serve`` selects on the listener and its connection; this end of a pipe is never ready.
        self._silent, self._kept = os.pipe()

    def fileno(self) -> int:
        return self._silent

    def accept(self) -> tuple[Port, None]:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        # Until a host connects, the kernel reports a hang-up.
        while any(event & select.POLLHUP for _, event in poll.poll()):
            time.sleep(_PAUSE)
        return Port(self._file), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._silent, self._kept):
            os.close(file)
