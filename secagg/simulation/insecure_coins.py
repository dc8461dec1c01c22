"""Repeatable coins for test vectors and reproducible experiments, never for production."""

from __future__ import annotations

import hashlib

from secagg.errors import InvalidParameters


class InsecureSeededCoins:
    """An endless stream of coins, which anyone with the seed can reproduce."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._draws = 0

    def draw(self, count: int) -> bytearray:
        """Return the next ``count`` bytes; draws from one seed are independent."""
        if count < 0:
            raise InvalidParameters(f"cannot draw {count} bytes; the count must not be negative")
        self._draws += 1
        return bytearray(hashlib.shake_256(self._draws.to_bytes(8, "big") + self._seed).digest(count))
