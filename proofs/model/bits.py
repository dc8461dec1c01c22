"""Sets as numbers: each thing that is met has one bit, so that a schedule is put together by ``or``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class Bits(Generic[Thing]):
    """What was met so far, and the bit of each."""

    def __init__(self) -> None:
        """Have met nothing."""
        self._bits = dict[Thing, int]()
        self._things = list[Thing]()

    def bit(self, thing: Thing) -> int:
        """Return the bit of a thing, which has one from now on."""
        if thing not in self._bits:
            self._bits[thing] = 1 << len(self._things)
            self._things.append(thing)
        return self._bits[thing]

    def set_of(self, things: Iterable[Thing]) -> int:
        """Return several things as one number."""
        together = 0
        for thing in things:
            together |= self.bit(thing)
        return together

    def first(self, bits: int) -> Thing:
        """Return the thing that was met first."""
        return self._things[(bits & -bits).bit_length() - 1]

    def each(self, bits: int) -> Iterator[Thing]:
        """Return the things of a number, in the order in which they were met."""
        while bits:
            yield self.first(bits)
            bits &= bits - 1
