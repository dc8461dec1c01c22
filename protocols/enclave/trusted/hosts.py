"""The hosts of an enclave: one after the other, over a listener; what each sends goes to the service."""

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
"""Seconds that one message may take, from its first byte to its last, in either direction."""
SILENCE_SECONDS: Final = 600.0
"""Seconds that a host may be silent before another takes its place."""
_FIRST_WORD_SECONDS: Final = 1.0
"""Seconds a second connection may stay silent before it is closed; a port scan must not end the epoch."""


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
    """What hosts connect to."""

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
    """Answer one host after the other, until the process is told to end.

    Args:
        listener: open and ready; nothing is opened here.
        quote: the hardware's driver, or a simulation's.
        log: takes a line for each request that is refused.
        frame_seconds: how long one message may take.
        silence_seconds: after how long another host may take the place of a silent one.
    """
    following: Connection | None = None
    while True:
        service = EnclaveService(coins=coins, quote=quote, threads=threads, memory_bytes=memory_bytes, log=log)
        with following or listener.accept()[0] as connection:
            following = None
            # A host that goes away, or whose message is too long or too slow, ends its epoch and nothing else.
            with suppress(OSError, MemoryError, MalformedMessage):
                following = _serve_host(connection, listener, service, frame_seconds, silence_seconds)


def _serve_host(
    connection: Connection,
    listener: Listener,
    service: EnclaveService,
    frame_seconds: float,
    silence_seconds: float,
) -> Connection:
    """Answer one host until it goes away, or was silent and another comes, which is returned."""
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
                    # The frames after it would be out of step.
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
            # There is one host. Another is let go, with nothing said or changed.
            beside.close()
    finally:
        service.destroy()


def _has_something_to_say(beside: Connection) -> bool:
    with suppress(OSError):
        if select.select([beside], [], [], _FIRST_WORD_SECONDS)[0]:
            return bool(beside.recv(1, socket.MSG_PEEK))
    return False
