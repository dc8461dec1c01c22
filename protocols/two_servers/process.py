"""Sockets of a standing server 1, and server 0's connection to it: a greeting, then one answer for each request.

In the greeting each proves that it knows their pair key, before anything is asked or answered.

    server 1 -> server 0   PeerChallenge
    server 0 -> server 1   PeerProof
    server 1 -> server 0   PeerWelcome

The file's mode and the greeting keep strangers away, and hide nothing: between two hosts the socket needs a connection
around it that authenticates both ends and encrypts, such as mutual TLS.
"""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

from secagg.blame import between_servers
from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.declared import Message, fixed
from secagg.errors import AuthenticationFailed, InvalidParameters, PeerError
from secagg.session.frames import receive_frame, send_frame
from secagg.session.sockets import GREETING_PATIENCE, Service, SocketAsk
from secagg.wire import MessageKind

from .standing_server import StandingServer

NONCE_BYTES = 32
TAG_BYTES = 32
GREETING_BYTES = 7 + NONCE_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True)
class PeerChallenge(Message):
    """A nonce of server 1."""

    kind: ClassVar = MessageKind.PEER_CHALLENGE
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]


@dataclass(frozen=True, slots=True)
class PeerProof(Message):
    """A nonce of server 0, and its tag over both nonces."""

    kind: ClassVar = MessageKind.PEER_PROOF
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    tag: Annotated[bytes, fixed(TAG_BYTES)]


@dataclass(frozen=True, slots=True)
class PeerWelcome(Message):
    """Server 1's tag over both nonces."""

    kind: ClassVar = MessageKind.PEER_WELCOME
    tag: Annotated[bytes, fixed(TAG_BYTES)]


class Challenge:
    """Server 1's side of one greeting; the caller keeps the pair key and wipes it."""

    def __init__(self, pair_key: Secret, coins: Coins) -> None:
        self._pair_key = pair_key
        self._nonce = bytes(coins.draw(NONCE_BYTES))
        self.message = PeerChallenge(self._nonce).encode()

    def welcome(self, proof: bytes) -> bytes:
        """Return server 1's welcome, if the other end knows the pair key."""
        proven = PeerProof.decode(proof)
        _require_tag(self._pair_key, 0, self._nonce, proven.nonce, proven.tag)
        return PeerWelcome(_tag(self._pair_key, 1, self._nonce, proven.nonce)).encode()


class Proof:
    """Server 0's side of one greeting."""

    def __init__(self, pair_key: Secret, challenge: bytes, coins: Coins) -> None:
        self._pair_key, self._challenge = pair_key, PeerChallenge.decode(challenge).nonce
        self._nonce = bytes(coins.draw(NONCE_BYTES))
        self.message = PeerProof(self._nonce, _tag(pair_key, 0, self._challenge, self._nonce)).encode()

    def check(self, welcome: bytes) -> None:
        _require_tag(self._pair_key, 1, self._challenge, self._nonce, PeerWelcome.decode(welcome).tag)


def _tag(pair_key: Secret, server: int, challenge: bytes, nonce: bytes) -> bytes:
    with expand("greeting", TAG_BYTES, pair_key, Label.INDEXING_GREETING, bytes([server]), challenge, nonce) as tag:
        return bytes(tag.expose())


def _require_tag(pair_key: Secret, server: int, challenge: bytes, nonce: bytes, tag: bytes) -> None:
    if not hmac.compare_digest(_tag(pair_key, server, challenge, nonce), tag):
        raise AuthenticationFailed(culprits=between_servers())


PEER_PATIENCE: Final = 600.0
"""Seconds that server 0 waits for an answer, and server 1 until an answer is read."""
_RETRY: Final = 0.1
_REFUSAL_BYTES: Final = 1 << 16


def serve_standing(
    server: StandingServer,
    socket_path: Path,
    coins: Coins,
    *,
    greeting_patience: float = GREETING_PATIENCE,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer server 0 until the process is told to end; then remove the socket, and end the round that runs.

    Args:
        ready: called once, when server 0 can connect.
    """

    def greet(connection: socket.socket) -> None:
        with server.pair_key() as pair_key:
            challenge = Challenge(pair_key, coins)
            send_frame(connection, challenge.message)
            send_frame(connection, challenge.welcome(receive_frame(connection, GREETING_BYTES)))

    service = Service(
        server,
        limit=lambda: server.request_bytes,
        patience=PEER_PATIENCE,
        greet=greet,
        greeting_patience=greeting_patience,
    )
    try:
        service.serve(socket_path, ready=ready)
    finally:
        server.end_round()


class PeerLink:
    """Server 0's connection to server 1, made when it is needed, and again after it was lost."""

    def __init__(
        self, path: Path, pair_key: Secret, coins: Coins, *, answer_bytes: int, patience: float = GREETING_PATIENCE
    ) -> None:
        """Connect to nothing yet.

        Args:
            pair_key: the caller keeps it, and wipes it.
            answer_bytes: no answer is longer; see ``server_messages.exchange_bytes``.
            patience: seconds to try to connect, while server 1 is started again.
        """
        self._path, self._pair_key, self._coins = path, pair_key, coins
        self._answer_bytes, self._patience = answer_bytes, patience
        self._connection: SocketAsk | None = None

    def ask(self, message: bytes) -> bytes:
        """Send a message and return its answer.

        Raises:
            OSError: the other server cannot be reached, or was lost; what was asked was done or not.
            InvalidParameters: what answers does not know the pair key.
            SecAggError: what the other server refused with.
        """
        try:
            if self._connection is None:
                self._connection = self._connected()
            return self._connection(message)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> SocketAsk:
        deadline = time.monotonic() + self._patience
        while True:
            connection = SocketAsk(self._path, limit=self._answer_bytes, timeout=PEER_PATIENCE, greet=self._greet)
            try:
                connection.connect()
            except OSError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY)
            else:
                return connection

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(GREETING_PATIENCE)
        proof = Proof(self._pair_key, receive_frame(connection, GREETING_BYTES), self._coins)
        send_frame(connection, proof.message)
        try:
            proof.check(receive_frame(connection, _REFUSAL_BYTES))
        except PeerError as error:
            raise InvalidParameters(
                f"what answers at {self._path} is not the server 1 that shares a key with this server ({error}); both "
                "operators write servers.json from the same public keys"
            ) from error
        connection.settimeout(PEER_PATIENCE)
