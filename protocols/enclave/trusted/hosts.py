"""Serves the hosts of an enclave one after the other; passes each request to the service."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol, Self

from secagg.crypto.entropy import Coins
from secagg.errors import MalformedMessage
from secagg.session.frames import receive_frame, send_frame

from .enclave import DEFAULT_MEMORY_BYTES
from .service import EnclaveService, Log, Quote

FRAME_SECONDS: Final = 60.0
"""Limit on the time of one message in either direction, from its first byte to its last."""
SILENCE_SECONDS: Final = 600.0
"""Time after which another host may replace a silent one."""
_FIRST_WORD_SECONDS: Final = 1.0
"""Time for the first byte of a second connection, which is then closed, so that a port scan cannot end the epoch."""


class Connection(Protocol):
    """A connection to a host: a socket, or a port of the machine."""

    def fileno(self) -> int: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def recv(self, size: int, flags: int = 0, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Listener(Protocol):
    """A listening socket or port to which hosts connect."""

    def fileno(self) -> int: ...
    def accept(self) -> tuple[Connection, Any]: ...


class _Patient:
    """A connection with one deadline for all bytes."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._last = monotonic() + seconds

    def recv(self, size: int) -> bytes:
        self._connection.settimeout(max(1e-3, self._last - monotonic()))
        return self._connection.recv(size)


def serve(  # noqa: PLR0913 -- all but three have defaults
    listener: Listener,
    *,
    coins: Coins,
    quote: Quote,
    threads: int = 1,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    log: Log = lambda _: None,
    frame_seconds: float = FRAME_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
) -> None:
    """Serve one host after the other until the process is terminated.

    Args:
        listener: a listener that is already open.
        quote: produces evidence: the hardware's driver, or a simulation.
        log: called with a line for each refused request.
        frame_seconds: limit on the time of one message.
        silence_seconds: time after which another host may replace a silent one.
    """
    following: Connection | None = None
    while True:
        service = EnclaveService(coins=coins, quote=quote, threads=threads, memory_bytes=memory_bytes, log=log)
        with following or listener.accept()[0] as connection:
            following = None
            # A host that disconnects, or sends a message too long or too slowly, only ends its own epoch.
            with suppress(OSError, MemoryError, MalformedMessage):
                following = _serve_host(connection, listener, service, frame_seconds, silence_seconds)


def _serve_host(
    connection: Connection, listener: Listener, service: EnclaveService, frame_seconds: float, silence_seconds: float
) -> Connection:
    """Serve one host until it disconnects or another replaces it after silence; return the other's connection."""
    heard = monotonic()
    both: list[Connection | Listener] = [connection, listener]
    try:
        while True:
            select.select(both, [], [])
            # Polled again, after the listener: a host that left and came back must not count as a second one.
            if select.select([connection], [], [], 0)[0]:
                try:
                    request = receive_frame(_Patient(connection, frame_seconds), service.maximum_request_bytes)
                except MalformedMessage as error:
                    # The start of the next frame is unknown, so the connection must be closed.
                    connection.settimeout(frame_seconds)
                    send_frame(connection, service.refusal(error, "a frame"))
                    raise
                answer = service.answer(request)
                connection.settimeout(frame_seconds)
                send_frame(connection, answer)
                heard = monotonic()
                continue
            beside = listener.accept()[0]
            if monotonic() - heard >= silence_seconds and _has_something_to_say(beside):
                return beside
            # An active host keeps the enclave; the second connection is closed without an answer.
            beside.close()
    finally:
        service.destroy()


def _has_something_to_say(beside: Connection) -> bool:
    with suppress(OSError):
        if select.select([beside], [], [], _FIRST_WORD_SECONDS)[0]:
            return bool(beside.recv(1, socket.MSG_PEEK))
    return False
