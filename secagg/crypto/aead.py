"""Authenticated encryption between two parties of a session: AES-256-GCM, one message per key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.blame import unverified
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, Reason, require_length
from secagg.identifiers import ClientId, SessionContext

from .labels import Label, bind
from .secret import Confined, Secret, overwrite, require_secret

AEAD_KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE_BYTES = 12
_KIND_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AeadHeader:
    """Associated data of a sealed message: its kind, session, sender and recipient; authenticated, not sent."""

    message_kind: int
    context: SessionContext
    sender: ClientId
    receiver: ClientId

    def __post_init__(self) -> None:
        if type(self.message_kind) is not int or not 0 <= self.message_kind < _KIND_LIMIT:
            raise InvalidParameters(f"a message kind must be an integer below 2^16; got {self.message_kind!r}")
        if (type(self.context), type(self.sender), type(self.receiver)) != (SessionContext, ClientId, ClientId):
            raise Misuse("a header needs a SessionContext and two ClientIds")
        if self.sender == self.receiver:
            raise InvalidParameters(f"{self.sender} must not seal a message to itself")

    @property
    def nonce(self) -> bytes:
        """The message kind as 12 bytes."""
        return self.message_kind.to_bytes(_NONCE_BYTES, "big")

    @property
    def associated_data(self) -> bytes:
        kind = self.message_kind.to_bytes(2, "big")
        return bind(Label.AEAD_HEADER, kind, self.context.digest, self.sender.encode(), self.receiver.encode())


class SealingKey(Confined):
    """A key that seals one message and is then wiped."""

    def __init__(self, key: Secret) -> None:
        """Take ownership of the key: the caller's object is wiped now, the copy here after the one message."""
        _require_key(key)
        self._unspent = [Secret(key.kind, key.expose())]
        key.wipe()

    def seal(self, header: AeadHeader, plaintext: Secret) -> bytes:
        """Encrypt the one message of this key.

        Implements: [SP 800-38D] §7.1.
        Raises:
            Misuse: the key has already sealed its message. A second one under the same nonce would reveal their
            difference and the authentication key.
        Security: this object seals once, but another object may have the same key. Derive a key once, and store the
        sealed message before sending it, so that a restart sends the same bytes again.
        """
        exposed = plaintext.expose()
        try:
            key = self._unspent.pop()
        except IndexError:
            raise Misuse("this key has sealed its one message; derive a new one", reason=Reason.ALREADY_SPENT) from None
        # Safe because: the nonce is fixed per message kind, and this object seals exactly one message. Removing the key
        # from the list is atomic, so two threads cannot both get it.
        with key:
            return AESGCM(key.expose()).encrypt(header.nonce, exposed, header.associated_data)

    def __repr__(self) -> str:
        return f"<SealingKey{'' if self._unspent else ', spent'}>"


def open_sealed(key: Secret, header: AeadHeader, sealed: bytes, *, kind: str, length: int) -> Secret:
    """Decrypt the one message of a key; the protocol fixes the plaintext's length.

    Implements: [SP 800-38D] §7.2.
    Raises:
        MalformedMessage: the ciphertext does not have the length for a plaintext of ``length`` bytes.
        AuthenticationFailed: the tag does not verify; the sender or the relaying server is responsible.
    """
    _require_key(key)
    require_length(f"a sealed {kind}", len(sealed), length + TAG_BYTES, unverified(header.sender))
    opened = bytearray(length)
    try:
        AESGCM(key.expose()).decrypt_into(header.nonce, sealed, header.associated_data, opened)
        return Secret(kind, opened)
    except InvalidTag:
        raise AuthenticationFailed(culprits=unverified(header.sender)) from None
    finally:
        overwrite(opened)


def _require_key(key: Secret) -> None:
    require_secret(key)
    if len(key) != AEAD_KEY_BYTES:
        raise InvalidParameters(f"an AEAD key must be {AEAD_KEY_BYTES} bytes; got {key!r}")
