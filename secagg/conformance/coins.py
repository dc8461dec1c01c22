"""Coins that repeat and are counted, so that the kit can see what they change."""

from __future__ import annotations

import hashlib


class InsecureCountedCoins:
    """An endless stream of coins that anybody who knows the seed can repeat."""

    def __init__(self, seed: bytes) -> None:
        """Start the stream of this seed."""
        self.draws = 0
        self._seed = seed

    def draw(self, count: int) -> bytearray:
        """Return the next ``count`` bytes."""
        self.draws += 1
        return bytearray(hashlib.shake_256(self.draws.to_bytes(8, "big") + self._seed).digest(count))
