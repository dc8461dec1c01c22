"""Keys of one server's operator: the private keys, the public keys for the other operator, and the shared pair key.

Each operator draws a key that no one else ever holds. A party that knows the pair key can predict the points at which
uploads are checked, but it cannot open uploads or sign anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from secagg.blame import between_servers
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.declared import SERVER, Field, Message, fixed
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ServerId
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.session.signing_keys import agreed
from secagg.wire import MessageKind

from .configuration import SERVERS
from .point_functions.one_hot_proof import SEED_BYTES


@dataclass(frozen=True, slots=True)
class OperatorKeys(Message):
    """Public key of a server; the signature proves that its operator has the private key."""

    kind: ClassVar = MessageKind.OPERATOR_KEYS
    server: Annotated[ServerId, SERVER]
    signing_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    @classmethod
    def verified(cls, message: bytes) -> OperatorKeys:
        """Decode an operator's public keys, and verify the signature."""
        keys = cls.decode(message)
        verify_signature(keys.signing_key, keys.signature, Label.INDEXING_OPERATOR, bytes([keys.server.index]))
        return keys


def _seed(kind: str) -> Field:
    return Field(
        lambda writer, seed: writer.fixed(bytes(seed.expose()), SEED_BYTES),
        lambda reader, _: Secret(kind, reader.fixed(SEED_BYTES)),
        f"{SEED_BYTES}",
    )


@dataclass(slots=True, eq=False, repr=False)
class ServerKeys(Confined, Message):
    """Secret key of server 0 or server 1, for signing, authentication to its peer, and key agreement.

    Security: ``encode`` returns it in the clear; store it where only this server's operator can read it.
    """

    kind: ClassVar = MessageKind.INDEXING_KEYS
    server: Annotated[ServerId, SERVER]
    signing_seed: Annotated[Secret, _seed("signing seed")]

    def __post_init__(self) -> None:
        if len(self.signing_seed) != SEED_BYTES:
            raise Misuse(f"a server needs a signing seed of {SEED_BYTES} bytes")

    @classmethod
    def random(cls, server: ServerId, coins: Coins) -> ServerKeys:
        return cls(server, Secret.random("signing seed", SEED_BYTES, coins))

    def signing_key(self) -> SigningKey:
        return SigningKey(self.signing_seed)

    @property
    def public(self) -> OperatorKeys:
        signing_key = self.signing_key()
        signature = signing_key.sign(Label.INDEXING_OPERATOR, bytes([self.server.index]))
        return OperatorKeys(self.server, signing_key.public_key, signature)

    def pair_key(self, peer: OperatorKeys) -> Secret:
        """Return the key that this server shares with the other one; the caller wipes it.

        Raises:
            InvalidParameters: these are the keys of the same server.
            AuthenticationFailed: the peer's key is of small order or not canonical.
        """
        own = self.signing_key()
        if peer.server == self.server or peer.signing_key == own.public_key:
            raise InvalidParameters(f"{self.server} shares a key with the other server; pass that server's public keys")
        return agreed(own, peer.signing_key, SEED_BYTES, Label.INDEXING_PAIR_KEY, culprits=between_servers())

    def wipe(self) -> None:
        self.signing_seed.wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<ServerKeys of {self.server}>"


def trial_server_keys(coins: Coins) -> tuple[ServerKeys, ServerKeys]:
    """Draw the keys of both servers, for a trial: their owner controls both servers."""
    zero, one = (ServerKeys.random(ServerId(index), coins) for index in range(SERVERS))
    return zero, one
