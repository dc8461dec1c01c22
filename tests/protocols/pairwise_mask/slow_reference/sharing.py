"""Secrets shared over the integers modulo 2^256 - 189."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

PRIME = 2**256 - 189


class CoinReader:
    """The coins of one role, read in order."""

    def __init__(self, coins: bytes) -> None:
        self._coins = coins

    def take(self, count: int) -> bytes:
        """Read bytes."""
        taken, self._coins = self._coins[:count], self._coins[count:]
        if len(taken) < count:
            raise ValueError("the vector holds too few coins")
        return taken

    def element(self) -> bytes:
        """Read the next 32 bytes that encode a number below the prime."""
        while int.from_bytes(drawn := self.take(32), "big") >= PRIME:
            pass
        return drawn

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._coins)


def deal(secret: bytes, coefficients: Sequence[bytes], holders: int) -> list[bytes]:
    """Return the shares at the points 1, 2, ...: secret + c_1 binomial(x, 1) + c_2 binomial(x, 2) + ..."""
    terms = [int.from_bytes(term, "big") for term in (secret, *coefficients)]
    return [
        (sum(term * math.comb(point, power) for power, term in enumerate(terms)) % PRIME).to_bytes(32, "big")
        for point in range(1, holders + 1)
    ]


def interpolate(shares: Mapping[int, bytes]) -> bytes:
    """Return the value at zero of the polynomial through shares at their points."""
    value = 0
    for point, share in shares.items():
        others = [other for other in shares if other != point]
        numerator, denominator = math.prod(others), math.prod(other - point for other in others)
        value += int.from_bytes(share, "big") * numerator * pow(denominator, -1, PRIME)
    return (value % PRIME).to_bytes(32, "big")
