"""Sockets of a standing server 1, and server 0's connection to it: strict frames in, one answer out for each.

Whoever connects has to greet within seconds, so strangers and silent connections block nobody. Of peers that greeted
the newest is served, and the one before is let go: a connection that died without a word does not keep server 0 out.

Whoever may write to a socket is told apart by the file's mode, and by the pair key. Between two hosts the socket needs
a connection that authenticates both ends and hides what is said, such as mutual TLS, around it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread, Timer
from typing import Final, NoReturn

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, PeerError
from secagg.session.frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame
from secagg.wire import MessageKind, message_kind

from .greeting import GREETING_BYTES, Challenge, Proof
from .standing_server import StandingServer

GREETING_PATIENCE: Final = 10.0
"""How many seconds a greeting may take."""
STRANGERS_AT_ONCE: Final = 16
PEER_PATIENCE: Final = 600.0
"""How many seconds server 0 waits for an answer, and server 1 until an answer is read."""
_RETRY: Final = 0.1
_REFUSAL_BYTES: Final = 1 << 16


class _Desk:
    """Who is served: the newest peer that greeted."""

    def __init__(self, server: StandingServer, coins: Coins) -> None:
        self._server, self._coins = server, coins
        self._strangers = BoundedSemaphore(STRANGERS_AT_ONCE)
        self._turn, self._switch = Lock(), Lock()
        self._current: socket.socket | None = None

    def meet(self, connection: socket.socket) -> None:
        """Answer somebody in a thread, unless too many strangers are there already."""
        if not self._strangers.acquire(blocking=False):
            connection.close()
            return
        # A daemon: the end of the process is the end of whatever it waits for, and the journal knows the rest.
        Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Overwrite what a round left in memory; its journal stays."""
        with self._turn:
            self._server.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, MemoryError, PeerError):
            try:
                self._greet(connection)
            finally:
                self._strangers.release()
            self._replace(connection)
            while True:
                try:
                    request = receive_frame(connection, self._server.request_bytes)
                except MalformedMessage as error:
                    connection.settimeout(GREETING_PATIENCE)
                    send_frame(connection, encode_refusal(error))
                    return
                with self._turn:
                    if self._current is not connection:
                        return
                    answer = self._server.answer(request)
                connection.settimeout(PEER_PATIENCE)
                send_frame(connection, answer)
                connection.settimeout(None)

    def _greet(self, connection: socket.socket) -> None:
        timer = Timer(GREETING_PATIENCE, _hang_up, [connection])
        timer.start()
        try:
            with self._server.pair_key() as pair_key:
                challenge = Challenge(pair_key, self._coins)
                send_frame(connection, challenge.message)
                try:
                    welcome = challenge.welcome(receive_frame(connection, GREETING_BYTES))
                except PeerError as error:
                    send_frame(connection, encode_refusal(error))
                    raise
                send_frame(connection, welcome)
        finally:
            timer.cancel()

    def _replace(self, connection: socket.socket) -> None:
        with self._switch:
            earlier, self._current = self._current, connection
        if earlier is not None:
            _hang_up(earlier)


def serve_standing(
    server: StandingServer, socket_path: Path, coins: Coins, *, ready: Callable[[], None] = lambda: None
) -> NoReturn:
    """Answer server 0 until the process is told to end; then remove the socket, and keep the round's journal.

    Args:
        ready: called once, when server 0 can connect.
    Raises:
        InvalidParameters: no socket can be made at the path.
    """
    desk = _Desk(server, coins)
    try:
        with listening(socket_path, replaces_dead=True) as listener:
            ready()
            while True:
                desk.meet(listener.accept()[0])
    finally:
        desk.close()


class PeerLink:
    """Server 0's connection to server 1, made when it is needed, and anew after it was lost."""

    def __init__(
        self, path: Path, pair_key: Secret, coins: Coins, *, answer_bytes: int, patience: float = GREETING_PATIENCE
    ) -> None:
        """Connect to nothing yet.

        Args:
            pair_key: the caller keeps it, and wipes it.
            answer_bytes: no answer is longer; see ``message_sizes.exchange_bytes``.
            patience: for how many seconds to try to connect, while server 1 is started again.
        """
        self._path, self._pair_key, self._coins = path, pair_key, coins
        self._answer_bytes, self._patience = answer_bytes, patience
        self._connection: socket.socket | None = None

    def ask(self, message: bytes) -> bytes:
        """Send a message and return its answer.

        Raises:
            OSError: the other server cannot be reached, or went away; the message may have arrived or not.
            InvalidParameters: what answers does not know the pair key.
            SecAggError: what the other server refused with.
        """
        try:
            connection = self._connection or self._connect()
            send_frame(connection, message)
            answer = receive_frame(connection, self._answer_bytes)
            if message_kind(answer) is not MessageKind.REFUSAL:
                return answer
            refusal = decode_refusal(answer)
        except BaseException:
            # An answer may still be to come, and would be taken for that of the next message.
            self.close()
            raise
        raise refusal

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + self._patience
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(GREETING_PATIENCE)
                connection.connect(str(self._path))
                self._greet(connection)
                connection.settimeout(PEER_PATIENCE)
            except OSError:
                connection.close()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY)
            except BaseException:
                connection.close()
                raise
            else:
                self._connection = connection
                return connection

    def _greet(self, connection: socket.socket) -> None:
        proof = Proof(self._pair_key, receive_frame(connection, GREETING_BYTES), self._coins)
        send_frame(connection, proof.message)
        try:
            proof.check(receive_frame(connection, _REFUSAL_BYTES))
        except PeerError as error:
            raise InvalidParameters(
                f"what answers at {self._path} is not the server 1 that shares a key with this server ({error}); both "
                "operators write servers.json from the same public keys"
            ) from error


def _hang_up(connection: socket.socket) -> None:
    """End a connection that another thread reads from."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
