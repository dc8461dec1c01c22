"""One of the two servers in a process of its own: strict messages in over Unix sockets, one answer out for each.

Server 0 listens at two sockets, server 1 at one, and connects to the second one of server 0:

    --socket       the server's front end and its operator: a request of the offer, an upload or a dealer's batch, a
                   request to close the round, a request of its result
    --peer-socket  server 1 alone: a proposal, a conclusion, its signed list, its commitment, its share

Server 1 asks about uploads by itself, as they come. What server 0 does not hold yet is asked about once more when the
round is closed; so a client uploads to server 0 first. The operator of server 1 closes the round, with CLOSE_ROUND. If
that is refused because server 0 cannot be reached, or either process ended meanwhile, the operator asks again: whatever
was signed, committed or opened is said again in the same bytes. Server 0's operator reads the result afterwards.

Whoever may write to a socket is told apart by the file's mode alone. Between two hosts the peer socket needs a
connection that authenticates both ends, such as mutual TLS, around it; and what clients send goes through a front end
that relays uploads and no other request, as ``RemoteServer.upload`` does.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Final, NoReturn

from secagg.errors import MalformedMessage
from secagg.protocols.two_servers.server import IndexingServer
from secagg.session.frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame
from secagg.wire import MessageKind, message_kind

from .service import IndexingService
from .standing_server import StandingServer

MAXIMUM_PEER_BYTES: Final = 1 << 32
CLIENTS_AT_ONCE: Final = 64
PATIENCE: Final = 60.0
"""How many seconds somebody at the front socket may take to go on with a request."""
_PEER_PATIENCE: Final = 600.0


def serve(
    server: IndexingServer, socket_path: Path, peer_socket_path: Path, *, ready: Callable[[], None] = lambda: None
) -> NoReturn:
    """Answer until the process is told to end; then remove the sockets.

    Args:
        server: the server of one round; its journal is open in no other process.
        peer_socket_path: where server 0 listens for server 1.
        ready: called once, when anybody can connect.
    Raises:
        InvalidParameters: no socket can be made at a path.
    """
    with listening(socket_path, replaces_dead=True) as front:
        if server.server.index == 1:
            link = PeerLink(peer_socket_path)
            service = IndexingService(server, link.ask)
            _start(service.keep_asking)
            ready()
            _answer_everybody(front, service)
        with listening(peer_socket_path, replaces_dead=True) as peers:
            service = IndexingService(server)
            _start(_answer_peer, peers, service)
            ready()
            _answer_everybody(front, service)


def serve_standing(server: StandingServer, socket_path: Path, *, ready: Callable[[], None] = lambda: None) -> NoReturn:
    """Answer one server 0 after the other, until the process is told to end; then remove the socket.

    A round lives no longer than the connection on which it was begun.

    Args:
        ready: called once, when server 0 can connect.
    Raises:
        InvalidParameters: no socket can be made at the path.
    """
    try:
        with listening(socket_path, replaces_dead=True) as listener:
            ready()
            while True:
                connection = listener.accept()[0]
                _answer_one(connection, server.answer, MAXIMUM_PEER_BYTES)
                server.end_round()
    finally:
        server.end_round()


class PeerLink:
    """A server's connection to the other one, made when it is needed, and anew after it was lost."""

    def __init__(self, path: Path) -> None:
        """Connect to nothing yet."""
        self._path = path
        self._connection: socket.socket | None = None

    def ask(self, message: bytes) -> bytes:
        """Send a message and return its answer.

        Raises:
            OSError: the other server cannot be reached, or went away; the message may have arrived or not.
            SecAggError: what the other server refused with.
        """
        try:
            answer = self._asked(message)
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

    def _asked(self, message: bytes) -> bytes:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.settimeout(_PEER_PATIENCE)
            self._connection.connect(str(self._path))
        send_frame(self._connection, message)
        return receive_frame(self._connection, MAXIMUM_PEER_BYTES)


def _start(target: Callable[..., object], *arguments: object) -> None:
    # A daemon: the end of the process is the end of whatever it waits for, and the journal knows the rest.
    Thread(target=target, args=arguments, daemon=True).start()


def _answer_peer(listener: socket.socket, service: IndexingService) -> NoReturn:
    """Answer one connection of server 1 after the other."""
    while True:
        connection = listener.accept()[0]
        _answer_one(connection, service.answer_peer, MAXIMUM_PEER_BYTES)


def _answer_everybody(listener: socket.socket, service: IndexingService) -> NoReturn:
    """Answer all who connect to the front socket, so many at a time; who is too slow is let go."""
    places = BoundedSemaphore(CLIENTS_AT_ONCE)

    def answer(connection: socket.socket) -> None:
        try:
            connection.settimeout(PATIENCE)
            _answer_one(connection, service.answer, service.request_bytes)
        finally:
            places.release()

    while True:
        places.acquire()
        _start(answer, listener.accept()[0])


def _answer_one(connection: socket.socket, answer: Callable[[bytes], bytes], limit: int) -> None:
    """Answer until the other end goes away, is too slow, or announces a frame that is too long."""
    with connection, suppress(OSError, MemoryError):
        while True:
            try:
                request = receive_frame(connection, limit)
            except MalformedMessage as error:
                send_frame(connection, encode_refusal(error))
                return
            send_frame(connection, answer(request))
