"""Coins of test vectors, and coins that a test inspects after their use."""

from __future__ import annotations

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.simulation.insecure_coins import InsecureSeededCoins


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
        """Whether all recorded coins were drawn, as required at a vector's end."""
        return self._position == len(self._recorded)


class WatchedCoins:
    """Coins that keep their drawn buffers, so a test can inspect them."""

    def __init__(self) -> None:
        self.handed_out = list[bytearray]()
        self._coins = InsecureSeededCoins(b"watched")

    def draw(self, count: int) -> bytearray:
        """Return the next bytes of a fixed seed."""
        self.handed_out.append(self._coins.draw(count))
        return self.handed_out[-1]
