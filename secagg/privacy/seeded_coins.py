"""Coins that follow from a secret seed: for noise that has to be the same when it is drawn again."""

from __future__ import annotations

from secagg.crypto.mask_expansion import Generator, expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Confined, Secret

_BYTES = Ring(8)


class SeededCoins(Confined):
    """The bytes of a key's stream, one draw after another.

    Security: they are as secret as the seed, which is used for nothing else; two of these over one seed draw alike.
    """

    def __init__(self, seed: Secret) -> None:
        """Begin at the start; the caller keeps the seed, of 16 or 32 bytes, and wipes it."""
        self._seed, self._drawn = seed, 0

    def draw(self, count: int) -> bytearray:
        stream = expand(self._seed, _BYTES, count, start=self._drawn, generator=Generator.CTR)
        self._drawn += count
        drawn = bytearray(stream.tobytes())
        stream[:] = 0
        return drawn

    def __repr__(self) -> str:
        return f"<SeededCoins, {self._drawn} bytes drawn>"
