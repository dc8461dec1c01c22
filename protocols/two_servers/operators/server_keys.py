"""What one server keeps from round to round: the seed of its signing key, and the key that the two servers share."""

from __future__ import annotations

from typing import Self

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, Reason
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.configuration import SERVERS
from secagg.protocols.two_servers.one_hot.statement import SEED_BYTES
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey
from secagg.wire import MessageKind, Reader, Writer


class ServerKeys(Confined):
    """The keys of server 0 or server 1.

    Security: ``encode`` returns them in the clear; store it where nobody but this server's operator reads it.
    """

    def __init__(self, server: ServerId, signing_seed: Secret, pair_key: Secret) -> None:
        """Take the keys, and wipe them when this is wiped."""
        if type(server) is not ServerId or type(signing_seed) is not Secret or type(pair_key) is not Secret:
            raise Misuse("the keys of a server are those of a ServerId: two Secrets")
        if (len(signing_seed), len(pair_key)) != (IDENTITY_KEY_BYTES, SEED_BYTES):
            raise Misuse(f"a signing seed has {IDENTITY_KEY_BYTES} bytes, and a pair key {SEED_BYTES}")
        self.server = server
        self.signing_seed = signing_seed
        self.pair_key = pair_key

    def signing_key(self) -> SigningKey:
        """Return the key with which this server signs."""
        return SigningKey(self.signing_seed)

    def encode(self) -> bytes:
        """Return what a key file holds."""
        writer = Writer(MessageKind.INDEXING_KEYS).integer(self.server.index, 1)
        writer.fixed(bytes(self.signing_seed.expose()), IDENTITY_KEY_BYTES)
        return writer.fixed(bytes(self.pair_key.expose()), SEED_BYTES).finish()

    @classmethod
    def decode(cls, message: bytes) -> ServerKeys:
        """Read a key file back.

        Raises:
            MalformedMessage, UnexpectedMessage: it is none.
        """
        reader = Reader(message, MessageKind.INDEXING_KEYS)
        index = reader.integer(1)
        seed, pair_key = reader.fixed(IDENTITY_KEY_BYTES), reader.fixed(SEED_BYTES)
        reader.finish()
        if index >= SERVERS:
            raise MalformedMessage(f"there is no server {index}", reason=Reason.NOT_CANONICAL)
        return cls(ServerId(index), Secret("signing seed", seed), Secret("pair key", pair_key))

    def wipe(self) -> None:
        """Overwrite the keys."""
        self.signing_seed.wipe()
        self.pair_key.wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<ServerKeys of {self.server}>"


def new_server_keys(coins: Coins) -> tuple[ServerKeys, ServerKeys]:
    """Draw the keys of both servers.

    Security: whoever draws them could sign for both. The operators of two servers draw their own signing seeds, and
        agree on a pair key.
    """
    pair_key = Secret.random("pair key", SEED_BYTES, coins)
    zero, one = (
        ServerKeys(
            ServerId(index),
            Secret.random("signing seed", IDENTITY_KEY_BYTES, coins),
            Secret("pair key", pair_key.expose()),
        )
        for index in range(SERVERS)
    )
    pair_key.wipe()
    return zero, one
