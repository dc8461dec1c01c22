"""Where an enclave's service listens: a Unix socket, vsock, or a virtio serial port that takes one host."""

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
        InvalidParameters: the address is none of these, or nothing can listen there.
    """
    kind, _, rest = address.partition(":")
    match kind:
        case "unix" if rest and not hasattr(socket, "AF_UNIX"):
            raise InvalidParameters("this system has no Unix sockets; serve where there are some")
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
            raise InvalidParameters(f"an enclave listens at unix:PATH, vsock:PORT or virtio:NAME; got {address!r}")


def is_port(text: str) -> bool:
    """Whether a text is the number of a vsock port."""
    return text.isdecimal() and int(text) <= _LAST_PORT


def is_reachable(address: str) -> bool:
    """Whether a host could reach an address: without a device nothing but this machine reaches its vsock."""
    if not address.startswith("vsock:"):
        return True
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as knocking:
        knocking.settimeout(0)
        # The kernel looks for the device before it sends anything.
        return knocking.connect_ex((socket.VMADDR_CID_HOST, 1)) != errno.ENODEV


def _vsock(port: int) -> socket.socket:
    try:
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        listener.bind((socket.VMADDR_CID_ANY, port))
        listener.listen()
    except (AttributeError, OSError, OverflowError) as error:
        raise InvalidParameters(f"nothing can listen at vsock:{port} here: {error}") from None
    return listener


def _port_named(name: str) -> Path:
    for entry in sorted(_PORTS.iterdir()) if _PORTS.exists() else ():
        if (entry / "name").read_text().strip() == name:
            return Path("/dev") / entry.name
    raise InvalidParameters(f"this machine has no virtio port {name!r}; give it a virtserialport of that name")


def send_heartbeat(context: int = 3, port: int = 9000) -> None:
    """Tell the parent instance of a Nitro enclave that it has booted: one byte, which comes back."""
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
            f"no Nitro parent instance is at vsock:{context}:{port} ({said}); elsewhere build the image without "
            "--heartbeat"
        )


class Port:
    """A virtio serial port as a connection; the host's end is a socket of its monitor.

    A port cannot be closed for one host and opened for the next: what one of them sent and nobody read is discarded
    here, or the next host would be out of step. Reads and writes never wait for a host that has gone.
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
            raise OSError("a port cannot be read without taking what is there")
        self._wait(select.POLLIN)
        received = os.read(self._file, size)
        self._is_drained = not received
        return received

    def sendall(self, data: bytes, /) -> None:
        rest = memoryview(data)
        while rest:
            if self._wait(select.POLLOUT) & select.POLLHUP:
                self.close()
                raise ConnectionResetError("the host has gone")
            rest = rest[os.write(self._file, rest[:_PIECE]) :]

    def close(self) -> None:
        """Discard what this host has sent, until it has gone or is silent; the port stays open for the next host."""
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
    """A listener whose only connection is the port; a second host cannot knock."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        # A listener is waited for next to its connection; this end of a pipe is never ready.
        self._silent, self._kept = os.pipe()

    def fileno(self) -> int:
        return self._silent

    def accept(self) -> tuple[Port, None]:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        # Until a host is there, the kernel says that it has hung up.
        while any(event & select.POLLHUP for _, event in poll.poll()):
            time.sleep(_PAUSE)
        return Port(self._file), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._silent, self._kept):
            os.close(file)
