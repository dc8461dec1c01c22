"""Words with hidden values: constant-time code runs on them unchanged, and other code fails."""

from __future__ import annotations

from typing import NoReturn, Self


class DataDependenceError(Exception):
    """A kernel used a word's value."""


class Word:
    """A wrapping word of ``bits`` bits, with a logical right shift."""

    __slots__ = ("bits", "revealed")

    # Keeps numpy from treating a word as an element of object arrays.
    __array_ufunc__ = None

    def __init__(self, revealed: int, bits: int = 64) -> None:
        """Make the word; only tests may use ``revealed``."""
        self.revealed = revealed % (1 << bits)
        self.bits = bits

    def _operand(self, other: object) -> int:
        if isinstance(other, Word):
            assert other.bits == self.bits, "words of two sizes are combined"
            return other.revealed
        # A machine word refuses other integers too, so a constant that does not fit is an error in the kernel.
        assert type(other) is int, f"{type(other).__name__} is not a constant of a kernel"
        assert 0 <= other < 1 << self.bits, f"{other} does not fit a word of {self.bits} bits"
        return other

    def _distance(self, by: object) -> int:
        assert type(by) is int, f"a shift by {type(by).__name__} depends on data"
        assert 0 <= by < self.bits, f"a shift by {by} is undefined on a word of {self.bits} bits"
        return by

    def _grown(self, value: int) -> Self:
        """Return a sum, a product or a difference with a constant."""
        return self._made(value)

    def _made(self, value: int) -> Self:
        return type(self)(value, self.bits)

    def __add__(self, other: object) -> Self:
        return self._grown(self.revealed + self._operand(other))

    def __sub__(self, other: object) -> Self:
        return self._made(self.revealed - self._operand(other))

    def __rsub__(self, other: object) -> Self:
        return self._grown(self._operand(other) - self.revealed)

    def __mul__(self, other: object) -> Self:
        return self._grown(self.revealed * self._operand(other))

    def __and__(self, other: object) -> Self:
        return self._made(self.revealed & self._operand(other))

    def __or__(self, other: object) -> Self:
        return self._made(self.revealed | self._operand(other))

    def __xor__(self, other: object) -> Self:
        return self._made(self.revealed ^ self._operand(other))

    def __lshift__(self, by: object) -> Self:
        return self._made(self.revealed << self._distance(by))

    def __rshift__(self, by: object) -> Self:
        return self._made(self.revealed >> self._distance(by))

    def _refuse(self, *_: object) -> NoReturn:
        raise DataDependenceError

    # All operations by which a program could branch on a word, index with it, look it up, print it or inspect it.
    __bool__ = __index__ = __int__ = __float__ = __hash__ = __len__ = __iter__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __repr__ = __str__ = __format__ = __bytes__ = __array__ = _refuse


class NarrowWord(Word):
    """A word whose sums and products must not overflow."""

    __slots__ = ()

    def _grown(self, value: int) -> Self:
        assert 0 <= value < 1 << self.bits, "a word overflowed"
        return self._made(value)
