"""Hedged coins: different operations get different coins, even from a faulty source."""

from __future__ import annotations

from typing import Self

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters

_ROOT_BYTES = 32
_BLOCK_BYTES = 16


class HedgedCoins(Confined):
    """Coins of one operation, derived from fresh coins and all inputs of the operation.

    A source that repeats, as when a machine's snapshot is resumed twice, gives two operations equal coins only if their
    inputs are equal. A predictable source reveals nothing if an input is secret.
    """

    def __init__(self, coins: Coins, *inputs: bytes) -> None:
        with Secret.random("drawn coins", _ROOT_BYTES, coins) as drawn:
            self._root = expand("root of hedged coins", _ROOT_BYTES, drawn, Label.HEDGED_COINS_ROOT, *inputs)
        self._draws = 0

    def draw(self, count: int) -> bytearray:
        if count < 0:
            raise InvalidParameters(f"cannot draw {count} bytes; the count must not be negative")
        self._draws += 1
        number, drawn = self._draws.to_bytes(8, "big"), bytearray(count)
        with expand("key of hedged coins", _ROOT_BYTES, self._root, Label.HEDGED_COINS, number) as key:
            stream = Cipher(algorithms.AES(key.expose()), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
            stream.update_into(bytes(count), drawn)
        return drawn

    def wipe(self) -> None:
        self._root.wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<HedgedCoins, {self._draws} draws>"
