"""Keys of one server's operator, the public half that he gives the other one, and the key that both derive.

Each operator draws his own keys, and nobody else ever holds them. A person who knows a pair key can pass a server off
as the other's peer and can foresee at which points uploads are checked; it opens no upload and signs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.declared import SERVER, Field, Message, fixed
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ServerId
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.wire import MessageKind

from .configuration import SERVERS
from .point_functions.one_hot_proof import SEED_BYTES

EXCHANGE_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class OperatorKeys(Message):
    """Public half of a server's keys; the signature says that one party has both."""

    kind: ClassVar = MessageKind.OPERATOR_KEYS
    server: Annotated[ServerId, SERVER]
    signing_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    exchange_key: Annotated[bytes, fixed(EXCHANGE_KEY_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    @classmethod
    def verified(cls, message: bytes) -> OperatorKeys:
        """Read what an operator has given away, and check its signature."""
        keys = cls.decode(message)
        parts = (bytes([keys.server.index]), keys.exchange_key)
        verify_signature(keys.signing_key, keys.signature, Label.INDEXING_OPERATOR, *parts)
        return keys


def _seed(kind: str) -> Field:
    return Field(
        lambda writer, seed: writer.fixed(bytes(seed.expose()), SEED_BYTES),
        lambda reader, _: Secret(kind, reader.fixed(SEED_BYTES)),
        f"{SEED_BYTES}",
    )


@dataclass(slots=True, eq=False, repr=False)
class ServerKeys(Confined, Message):
    """The secret keys of server 0 or server 1.

    Security: ``encode`` returns them in the clear; store it where nobody but this server's operator reads it.
    """

    kind: ClassVar = MessageKind.INDEXING_KEYS
    server: Annotated[ServerId, SERVER]
    signing_seed: Annotated[Secret, _seed("signing seed")]
    exchange_seed: Annotated[Secret, _seed("exchange seed")]

    def __post_init__(self) -> None:
        if (len(self.signing_seed), len(self.exchange_seed)) != (SEED_BYTES, SEED_BYTES):
            raise Misuse(f"a server has a signing seed and an exchange seed of {SEED_BYTES} bytes each")

    @classmethod
    def random(cls, server: ServerId, coins: Coins) -> ServerKeys:
        return cls(
            server,
            Secret.random("signing seed", SEED_BYTES, coins),
            Secret.random("exchange seed", SEED_BYTES, coins),
        )

    def signing_key(self) -> SigningKey:
        return SigningKey(self.signing_seed)

    @property
    def public(self) -> OperatorKeys:
        signing_key = self.signing_key()
        exchange_key = self._exchange_key().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        signature = signing_key.sign(Label.INDEXING_OPERATOR, bytes([self.server.index]), exchange_key)
        return OperatorKeys(self.server, signing_key.public_key, exchange_key, signature)

    def pair_key(self, peer: OperatorKeys) -> Secret:
        """Return the key that this server shares with the other one; the caller wipes it.

        Implements: [RFC 7748] §6.1, and [RFC 5869] over its output, with both servers' public keys in ``info``.
        Raises:
            InvalidParameters: these are the keys of the same server, or a point of low order.
        """
        own = self.public
        if peer.server == own.server or peer.exchange_key == own.exchange_key:
            raise InvalidParameters(f"{own.server} shares a key with the other server; name its operator's public keys")
        try:
            exchanged = self._exchange_key().exchange(X25519PublicKey.from_public_bytes(peer.exchange_key))
        except ValueError:
            raise InvalidParameters(f"the exchange key of {peer.server} is a point of low order; refuse it") from None
        both = [part for one in sorted((own, peer), key=lambda one: one.server.index) for part in _parts(one)]
        with Secret("shared secret", exchanged) as shared:
            return derive("pair key", SEED_BYTES, shared, b"", Label.INDEXING_PAIR_KEY, *both)

    def wipe(self) -> None:
        self.signing_seed.wipe()
        self.exchange_seed.wipe()

    def _exchange_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.exchange_seed.expose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<ServerKeys of {self.server}>"


def trial_server_keys(coins: Coins) -> tuple[ServerKeys, ServerKeys]:
    """Draw the keys of both servers, for a trial: their owner is both servers."""
    zero, one = (ServerKeys.random(ServerId(index), coins) for index in range(SERVERS))
    return zero, one


def _parts(keys: OperatorKeys) -> tuple[bytes, bytes]:
    return keys.signing_key, keys.exchange_key
