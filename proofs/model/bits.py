"""Sets as integers: each element has one bit, so schedules are combined with ``or``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class Bits(Generic[Thing]):
    """The elements so far, and the bit of each."""

    def __init__(self) -> None:
        """Start with no elements."""
        self._bits = dict[Thing, int]()
        self._things = list[Thing]()

    def bit(self, thing: Thing) -> int:
        """Return the bit of an element; a new element gets the next bit."""
        if thing not in self._bits:
            self._bits[thing] = 1 << len(self._things)
            self._things.append(thing)
        return self._bits[thing]

    def set_of(self, things: Iterable[Thing]) -> int:
        """Return several elements as one integer."""
        together = 0
        for thing in things:
            together |= self.bit(thing)
        return together

    def first(self, bits: int) -> Thing:
        """Return the lowest element."""
        return self._things[(bits & -bits).bit_length() - 1]

    def each(self, bits: int) -> Iterator[Thing]:
        """Return the elements of an integer, in the order of their bits."""
        while bits:
            yield self.first(bits)
            bits &= bits - 1
