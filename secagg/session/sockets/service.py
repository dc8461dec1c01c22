"""A helper behind a Unix socket: it listens, answers strict messages, and lets go of peers that are slow or silent.

The socket is this user's alone; the file's mode authenticates who connects. There is one owner of what the helper
holds: the newest connection. A peer that was cut off comes back at once, and the connection that it left behind is
closed, rather than waited for until a time-out. What a peer sends never ends the service.

Where a greeting is asked for, a stranger replaces nobody: of the peers that greeted, the newest is served.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread, Timer
from typing import Final

from secagg.errors import InternalError, MalformedMessage, PeerError

from .connection import Helper
from .frames import encode_refusal, listening, receive_frame, send_frame

DEFAULT_PATIENCE: Final = 60.0
"""How many seconds a peer may take to go on with a frame that it has begun."""
DEFAULT_LIMIT: Final = 1 << 30
GREETING_PATIENCE: Final = 10.0
"""How many seconds a greeting may take in all, so that silent strangers keep nobody out for long."""
PEERS_AT_ONCE: Final = 64
Greet = Callable[[socket.socket], None]
"""Finds out over a new connection who is there; raises ``PeerError`` for somebody who is not served."""


def _ignore() -> None:
    """Do nothing."""


class Service:
    """Answers the newest peer that connects, and no other."""

    def __init__(  # noqa: PLR0913 -- all but the first have defaults
        self,
        helper: Helper,
        *,
        limit: int | Callable[[], int] = DEFAULT_LIMIT,
        patience: float = DEFAULT_PATIENCE,
        ended: Callable[[], None] = _ignore,
        greet: Greet | None = None,
        greeting_patience: float = GREETING_PATIENCE,
    ) -> None:
        """Serve a helper.

        Args:
            limit: how many bytes a request has at most, or what tells it before each.
            patience: how long a peer may take between two pieces of one frame, or to take an answer.
            ended: called when a peer has gone, so that the helper ends what lives no longer than its connection.
            greet: tells a peer from a stranger; without it, the mode of the socket alone does.
        """
        self._helper, self._patience, self._ended = helper, patience, ended
        self._limit = limit if callable(limit) else lambda: limit
        self._greet, self._greeting_patience = greet, greeting_patience
        self._places = BoundedSemaphore(PEERS_AT_ONCE)
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
                # What is being answered is answered first; then the caller may close the helper.
                with self._turn:
                    self._ended()

    def accept(self, listener: socket.socket) -> None:
        """Take one connection after the other from a socket that listens, until it is closed."""
        while True:
            self._places.acquire()
            try:
                connection = listener.accept()[0]
            except OSError:
                self._places.release()
                return
            if self._greet is None:
                self._take_place_of(connection)
            # A daemon: the end of the process is the end of whatever it waits for.
            Thread(target=self._answer_one, args=(connection,), daemon=True).start()

    def _take_place_of(self, connection: socket.socket | None) -> None:
        """Let the newest peer be served, and cut off the one before."""
        with self._newest_lock:
            before, self._newest = self._newest, connection
        if before is not None:
            _hang_up(before)

    def _answer_one(self, connection: socket.socket) -> None:
        """Answer until the peer goes away, is too slow, sends what is no frame, or another one has connected."""
        try:
            with connection:
                if self._greet is not None:
                    if not self._has_greeted(connection, self._greet):
                        return
                    self._take_place_of(connection)
                # One peer at a time, in the order in which they came: the one before has been cut off.
                with self._turn:
                    try:
                        if connection is self._newest:
                            self._serve(connection)
                    finally:
                        self._ended()
        finally:
            self._places.release()

    def _has_greeted(self, connection: socket.socket, greet: Greet) -> bool:
        timer = Timer(self._greeting_patience, _hang_up, [connection])
        timer.start()
        with suppress(OSError, MemoryError):
            try:
                greet(connection)
            except PeerError as error:
                send_frame(connection, encode_refusal(error))
            else:
                return True
            finally:
                timer.cancel()
        return False

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, MemoryError):
            while True:
                # Between two requests a peer may be silent as long as it likes; nobody waits for it.
                connection.settimeout(None)
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                connection.settimeout(self._patience)
                try:
                    request = receive_frame(connection, self._limit())
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


def _hang_up(connection: socket.socket) -> None:
    """End a connection that another thread reads from."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
