"""Coins that can be drawn again, so that keys follow from them a second time and need not be kept themselves."""

from __future__ import annotations

from collections.abc import Iterable

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret, draw_exactly
from secagg.errors import InternalError


class RecordedCoins(Confined):
    """Coins that are remembered until told otherwise, and drawn again in the same order from what was remembered."""

    def __init__(self, coins: Coins, recorded: Iterable[Secret] = ()) -> None:
        self.coins = coins
        self._record = list(recorded)
        self._replayed = 0
        self._records = True

    def draw(self, count: int) -> bytearray:
        """Return the next coins."""
        if self._replayed < len(self._record):
            drawn = bytearray(self._record[self._replayed].expose())
            self._replayed += 1
            if len(drawn) != count:
                raise InternalError("a client draws other coins than when it was put aside")
            return drawn
        drawn = draw_exactly(count, self.coins)
        if self._records:
            self._record.append(Secret("coins", drawn))
            self._replayed += 1
        return drawn

    def stop(self) -> None:
        """Remember nothing from here on; what is drawn for sharing is never needed again."""
        self._records = False

    @property
    def record(self) -> tuple[Secret, ...]:
        """What was drawn."""
        return tuple(self._record)

    def wipe(self) -> None:
        """Overwrite what was drawn."""
        for secret in self._record:
            secret.wipe()
        self._record.clear()
        self._replayed = 0

    def __repr__(self) -> str:
        return f"<RecordedCoins, {len(self._record)} draws>"
