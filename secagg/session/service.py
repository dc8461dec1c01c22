"""A helper behind a Unix socket: it listens, answers strict messages, and lets go of peers that are slow or silent.

The socket is this user's alone; the file's mode authenticates who connects. There is one owner of what the helper
holds: the newest connection. A peer that was cut off comes back at once, and the connection that it left behind is
closed, rather than waited for until a time-out. What a peer sends never ends the service.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from typing import Final

from secagg.errors import InternalError, MalformedMessage

from .connection import Helper
from .frames import encode_refusal, listening, receive_frame, send_frame

DEFAULT_PATIENCE: Final = 60.0
"""How many seconds a peer may take to go on with a frame that it has begun."""
DEFAULT_LIMIT: Final = 1 << 30
_PEERS_AT_ONCE: Final = 64


def _ignore() -> None:
    """Do nothing."""


class Service:
    """Answers the newest peer that connects, and no other."""

    def __init__(
        self,
        helper: Helper,
        *,
        limit: int = DEFAULT_LIMIT,
        patience: float = DEFAULT_PATIENCE,
        ended: Callable[[], None] = _ignore,
    ) -> None:
        """Serve a helper.

        Args:
            limit: how many bytes a request has at most.
            patience: how long a peer may take between two pieces of one frame, or to take an answer.
            ended: called when a peer has gone, so that the helper ends what lives no longer than its connection.
        """
        self._helper, self._limit, self._patience, self._ended = helper, limit, patience, ended
        self._places = BoundedSemaphore(_PEERS_AT_ONCE)
        self._turn, self._newest_lock = Lock(), Lock()
        self._newest: socket.socket | None = None

    def serve(self, path: Path, *, ready: Callable[[], None] = _ignore) -> None:
        """Listen until the process is told to end; then remove the socket.

        A socket that a killed process has left at the path is replaced.

        Args:
            ready: called once, when a peer can connect.
        Raises:
            InvalidParameters: no socket can be made at the path, or somebody listens there.
        """
        with listening(path, replaces_dead=True) as listener:
            ready()
            try:
                self.accept(listener)
            finally:
                self._take_place_of(None)

    def accept(self, listener: socket.socket) -> None:
        """Take one connection after the other from a socket that listens, until it is closed."""
        while True:
            self._places.acquire()
            try:
                connection = listener.accept()[0]
            except OSError:
                self._places.release()
                return
            self._take_place_of(connection)
            # A daemon: the end of the process is the end of whatever it waits for.
            Thread(target=self._answer_one, args=(connection,), daemon=True).start()

    def _take_place_of(self, connection: socket.socket | None) -> None:
        """Let the newest peer be served, and cut off the one before."""
        with self._newest_lock:
            before, self._newest = self._newest, connection
        if before is not None:
            with suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)

    def _answer_one(self, connection: socket.socket) -> None:
        """Answer until the peer goes away, is too slow, sends what is no frame, or another one has connected."""
        try:
            # One peer at a time, in the order in which they came: the one before has been cut off.
            with connection, self._turn:
                try:
                    if connection is self._newest:
                        self._serve(connection)
                finally:
                    self._ended()
        finally:
            self._places.release()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, MemoryError):
            while True:
                # Between two requests a peer may be silent as long as it likes; nobody waits for it.
                connection.settimeout(None)
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                connection.settimeout(self._patience)
                try:
                    request = receive_frame(connection, self._limit)
                except MalformedMessage as error:
                    send_frame(connection, encode_refusal(error))
                    return
                send_frame(connection, self._answered(request))

    def _answered(self, request: bytes) -> bytes:
        try:
            return self._helper.answer(request)
        except Exception as error:  # noqa: BLE001 -- nothing that a peer sends ends the process
            self._ended()
            return encode_refusal(InternalError(f"the helper met a {type(error).__name__}, and has ended its session"))

    def __repr__(self) -> str:
        return f"<Service of {self._helper!r}>"
