"""Keys of simulated clients: an authority, and a signing key with its certificate for everybody who takes part."""

from __future__ import annotations

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.identifiers import ClientId

from .certificates import IDENTITY_KEY_BYTES, Authority, Certificate, SigningKey, issue_certificate


def new_signing_key(coins: Coins) -> SigningKey:
    """Draw a signing key."""
    with Secret.random("signing key", IDENTITY_KEY_BYTES, coins) as seed:
        return SigningKey(seed)


class SimulatedKeys(Confined):
    """An authority that nobody else holds, and the keys of clients, each drawn when it is first asked for."""

    def __init__(self, coins: Coins) -> None:
        self._coins, self._root = coins, new_signing_key(coins)
        self._keys = dict[ClientId, tuple[SigningKey, Certificate]]()

    @property
    def authority(self) -> Authority:
        return Authority(self._root.public_key)

    def of(self, client: ClientId) -> tuple[SigningKey, Certificate]:
        if client not in self._keys:
            key = new_signing_key(self._coins)
            self._keys[client] = key, issue_certificate(self._root, client, key.public_key)
        return self._keys[client]

    def __repr__(self) -> str:
        return f"<SimulatedKeys of {len(self._keys)} clients>"
