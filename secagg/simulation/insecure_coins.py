"""Coins that repeat: for test vectors and reproducible experiments, never for production."""

from __future__ import annotations

import hashlib

from secagg.errors import InvalidParameters, Misuse, Reason


class InsecureSeededCoins:
    """An endless stream of coins that anybody who knows the seed can repeat."""

    def __init__(self, seed: bytes) -> None:
        """Start the stream of this seed."""
        self._seed = seed
        self._draws = 0

    def draw(self, count: int) -> bytearray:
        """Return the next ``count`` bytes; the draws of one seed are independent of each other."""
        if count < 0:
            raise InvalidParameters(f"cannot draw {count} bytes; the count must not be negative")
        self._draws += 1
        return bytearray(hashlib.shake_256(self._draws.to_bytes(8, "big") + self._seed).digest(count))


class InsecureRecordedCoins:
    """The coins of a test vector, consumed in order."""

    def __init__(self, recorded: bytes) -> None:
        """Take the recorded bytes."""
        self._recorded = recorded
        self._position = 0

    def draw(self, count: int) -> bytearray:
        """Return the next ``count`` recorded bytes.

        Raises:
            Misuse: fewer are left; the vector and the code disagree on how many coins are drawn.
        """
        if count < 0:
            raise InvalidParameters(f"cannot draw {count} bytes; the count must not be negative")
        end = self._position + count
        if end > len(self._recorded):
            raise Misuse(
                f"{count} coins are drawn and {len(self._recorded) - self._position} are left in the record",
                reason=Reason.ALREADY_SPENT,
            )
        drawn = bytearray(self._recorded[self._position : end])
        self._position = end
        return drawn

    @property
    def is_exhausted(self) -> bool:
        """Whether every recorded coin was drawn, as a vector demands at its end."""
        return self._position == len(self._recorded)
