"""The trusted part behind a Unix socket, for one host at a time.

An epoch lives no longer than the connection that started it. A host that stops in the midst of a message is let go, and
one that is silent gives way to another that has something to say.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.errors import MalformedMessage
from secagg.session.sockets.frames import listening, receive_frame, send_frame

from .enclave import DEFAULT_MEMORY_BYTES
from .service import EnclaveService, Quote

FRAME_SECONDS: Final = 60.0
"""How long one message may take, from its first byte to its last, in either direction."""
SILENCE_SECONDS: Final = 600.0
"""How long a host may be silent before another takes its place."""
_FIRST_WORD_SECONDS: Final = 1.0
"""How long one that comes beside a silent host has for its first byte: a mere probe ends no epoch."""


class _Patient:
    """A connection whose bytes are all due before one time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._last = monotonic() + seconds

    def recv(self, size: int) -> bytes:
        """Return at most so many bytes."""
        self._connection.settimeout(max(1e-3, self._last - monotonic()))
        return self._connection.recv(size)


def serve(  # noqa: PLR0913 -- all but three have defaults
    socket_path: Path,
    *,
    coins: Coins,
    quote: Quote,
    threads: int = 1,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    frame_seconds: float = FRAME_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer one host after the other, until the process is told to end; then remove the socket.

    Args:
        coins: ``SystemCoins()`` in production.
        quote: the hardware's driver, or a simulation's.
        threads: how many threads expand masks.
        memory_bytes: how much an epoch may need.
        frame_seconds: how long one message may take.
        silence_seconds: after how long another host may take the place of a silent one.
        ready: called once, when a host can connect.
    Raises:
        InvalidParameters: no socket can be made at the path, or somebody listens there.
    """
    with listening(socket_path, replaces_dead=True) as listener:
        ready()
        following: socket.socket | None = None
        while True:
            service = EnclaveService(coins=coins, quote=quote, threads=threads, memory_bytes=memory_bytes)
            with following or listener.accept()[0] as connection:
                following = None
                # A host that goes away, or whose message is too long or too slow, ends its epoch and nothing else.
                with suppress(OSError, MemoryError, MalformedMessage):
                    following = _serve_host(connection, listener, service, frame_seconds, silence_seconds)


def _serve_host(
    connection: socket.socket,
    listener: socket.socket,
    service: EnclaveService,
    frame_seconds: float,
    silence_seconds: float,
) -> socket.socket:
    """Answer one host until it goes away, or until it was silent and another comes, which is returned."""
    heard = monotonic()
    try:
        while True:
            select.select([connection, listener], [], [])
            # Looked at again, later than the listener: a host that went away before it came back is not beside itself.
            if select.select([connection], [], [], 0)[0]:
                request = receive_frame(_Patient(connection, frame_seconds), service.maximum_request_bytes)
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


def _has_something_to_say(beside: socket.socket) -> bool:
    with suppress(OSError):
        if select.select([beside], [], [], _FIRST_WORD_SECONDS)[0]:
            return bool(beside.recv(1, socket.MSG_PEEK))
    return False
