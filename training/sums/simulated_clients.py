"""Keys of simulated clients: an authority, and a signing key with its certificate for everybody who takes part."""

from __future__ import annotations

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.session.certificates import IDENTITY_KEY_BYTES, Authority, Certificate, SigningKey, issue_certificate


def new_signing_key() -> SigningKey:
    """Return a key of coins of production."""
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)


def client_id(client: int) -> ClientId:
    """Return what a protocol calls a client; numbers count from 0, and identifiers from 1."""
    return ClientId(client + 1)


class ClientKeys:
    """An authority that nobody else holds, and the keys of clients, each made when it is first asked for."""

    def __init__(self) -> None:
        """Make the authority."""
        self._authority = new_signing_key()
        self._keys = dict[int, SigningKey]()

    @property
    def authority(self) -> Authority:
        """Who certifies clients."""
        return Authority(self._authority.public_key)

    def signing_key(self, client: int) -> SigningKey:
        """Return a client's own key."""
        if client not in self._keys:
            self._keys[client] = new_signing_key()
        return self._keys[client]

    def certificate(self, client: int) -> Certificate:
        """Return the authority's word for a client's key."""
        return issue_certificate(self._authority, client_id(client), self.signing_key(client).public_key)
