"""Sources of coins (randomness); the only file that reads the operating system's generator, besides HPKE's backend.

Functions that need randomness take a ``Coins`` argument. Production code passes ``SystemCoins``; the replayable coins
of tests and vectors live in ``secagg.simulation`` under a name that says ``Insecure``.
"""

from __future__ import annotations

import os
from typing import Protocol

from secagg.errors import InvalidParameters


class Coins(Protocol):
    """A source of uniform bytes, passed to every function that needs them."""

    def draw(self, count: int) -> bytearray:
        """Return ``count`` fresh uniform bytes; the caller owns the buffer and wipes it."""
        ...


class SystemCoins:
    """Coins from the operating system's generator.

    Security: it has no state, so a forked process or a resumed snapshot draws different coins.
    """

    def draw(self, count: int) -> bytearray:
        if count < 0:
            raise InvalidParameters(f"cannot draw {count} bytes; the count must not be negative")
        return bytearray(os.urandom(count))
