"""The greeting of two servers: each proves that it knows their pair key, before anything is asked or answered.

    server 1 -> server 0   PEER_CHALLENGE   a nonce of server 1
    server 0 -> server 1   PEER_PROOF       a nonce of server 0, and its tag over both nonces
    server 1 -> server 0   PEER_WELCOME     server 1's tag over both nonces

It tells strangers from the peer. It keeps nothing secret afterwards: between two hosts the connection has to be one
that authenticates and encrypts, such as mutual TLS.
"""

from __future__ import annotations

import hmac

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed
from secagg.identifiers import ServerId
from secagg.wire import MessageKind, Reader, Writer

NONCE_BYTES = 32
TAG_BYTES = 32
GREETING_BYTES = 7 + NONCE_BYTES + TAG_BYTES
"""No message of a greeting is longer."""


class Challenge:
    """Server 1's side of one greeting."""

    def __init__(self, pair_key: Secret, coins: Coins) -> None:
        """Draw a nonce; the caller keeps the pair key, and wipes it."""
        self._pair_key = pair_key
        self._nonce = bytes(coins.draw(NONCE_BYTES))
        self.message = Writer(MessageKind.PEER_CHALLENGE).fixed(self._nonce, NONCE_BYTES).finish()

    def welcome(self, proof: bytes) -> bytes:
        """Return the message that welcomes server 0.

        Raises:
            AuthenticationFailed: whoever proves does not know the pair key.
            MalformedMessage, UnexpectedMessage: it is no proof.
        """
        reader = Reader(proof, MessageKind.PEER_PROOF)
        nonce, tag = reader.fixed(NONCE_BYTES), reader.fixed(TAG_BYTES)
        reader.finish()
        _require_tag(self._pair_key, 0, self._nonce, nonce, tag)
        own = _tag(self._pair_key, 1, self._nonce, nonce)
        return Writer(MessageKind.PEER_WELCOME).fixed(own, TAG_BYTES).finish()


class Proof:
    """Server 0's side of one greeting."""

    def __init__(self, pair_key: Secret, challenge: bytes, coins: Coins) -> None:
        """Answer a challenge.

        Raises:
            MalformedMessage, UnexpectedMessage: it is none.
        """
        reader = Reader(challenge, MessageKind.PEER_CHALLENGE)
        self._pair_key, self._challenge = pair_key, reader.fixed(NONCE_BYTES)
        reader.finish()
        self._nonce = bytes(coins.draw(NONCE_BYTES))
        tag = _tag(pair_key, 0, self._challenge, self._nonce)
        self.message = Writer(MessageKind.PEER_PROOF).fixed(self._nonce, NONCE_BYTES).fixed(tag, TAG_BYTES).finish()

    def check(self, welcome: bytes) -> None:
        """Check that server 1 knows the pair key as well.

        Raises:
            AuthenticationFailed: it does not.
            MalformedMessage, UnexpectedMessage: it is no welcome.
        """
        reader = Reader(welcome, MessageKind.PEER_WELCOME)
        tag = reader.fixed(TAG_BYTES)
        reader.finish()
        _require_tag(self._pair_key, 1, self._challenge, self._nonce, tag)


def _tag(pair_key: Secret, server: int, challenge: bytes, nonce: bytes) -> bytes:
    with expand("greeting", TAG_BYTES, pair_key, Label.INDEXING_GREETING, bytes([server]), challenge, nonce) as tag:
        return bytes(tag.expose())


def _require_tag(pair_key: Secret, server: int, challenge: bytes, nonce: bytes, tag: bytes) -> None:
    if not hmac.compare_digest(_tag(pair_key, server, challenge, nonce), tag):
        raise AuthenticationFailed(culprits=[ServerId(server)])
