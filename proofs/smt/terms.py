"""Machine words that are solver terms, and questions to the solver.

A ``Word`` does what an unsigned machine word does and refuses every operation that needs its value, so a kernel that
runs on it has done the same operations for every value. Each question gets a new solver: an incremental solver took
minutes for what takes a hundredth of a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn, Self

import numpy as np

z3: Any = importlib.import_module("z3")

Term = Any
TIME_LIMIT_SECONDS: Final = 300


@contextmanager
def arbitrary_results() -> Iterator[None]:
    """Replace every result by an arbitrary one; a statement about the code must not hold then."""
    try:
        _unknown.append(0)
        yield
    finally:
        _unknown.clear()


def result(term: Term) -> Term:
    """Return the result of an operation, or an unknown of its kind if results are arbitrary."""
    if not _unknown:
        return term
    _unknown[0] += 1
    return z3.Const(f"arbitrary{_unknown[0]}", term.sort())


_unknown = list[int]()
"""Number of arbitrary results so far; empty if results are exact."""


class DataDependenceError(Exception):
    """A kernel asked a term for its value."""


class Word:
    """An unsigned word: + and - wrap, the right shift is logical, and constants and distances must fit."""

    __slots__ = ("bits", "term")

    # Keeps numpy from treating a word as an element of object arrays.
    __array_ufunc__ = None

    def __init__(self, term: Term) -> None:
        self.term = term
        self.bits: int = term.size()

    @classmethod
    def named(cls, name: str, bits: int) -> Word:
        """Return an unknown word."""
        return cls(z3.BitVec(name, bits))

    def _operand(self, other: object) -> Term:
        if isinstance(other, Word):
            if other.bits != self.bits:
                raise TypeError("operation on words of two sizes")
            return other.term
        if isinstance(other, np.unsignedinteger) and 8 * other.itemsize == self.bits:
            other = int(other)
        if type(other) is not int or not 0 <= other < 1 << self.bits:
            raise TypeError(f"{other!r} is not a constant of a word of {self.bits} bits")
        return z3.BitVecVal(other, self.bits)

    def _distance(self, by: object) -> Term:
        if type(by) is not int or not 0 <= by < self.bits:
            raise TypeError(f"a shift by {by!r} is undefined on a word of {self.bits} bits")
        return z3.BitVecVal(by, self.bits)

    def __add__(self, other: object) -> Word:
        return Word(result(self.term + self._operand(other)))

    def __sub__(self, other: object) -> Word:
        return Word(result(self.term - self._operand(other)))

    def __and__(self, other: object) -> Word:
        return Word(result(self.term & self._operand(other)))

    def __or__(self, other: object) -> Word:
        return Word(result(self.term | self._operand(other)))

    def __xor__(self, other: object) -> Word:
        return Word(result(self.term ^ self._operand(other)))

    def __mul__(self, other: object) -> Word:
        return Word(result(self.term * self._operand(other)))

    def __radd__(self, other: object) -> Word:
        return Word(result(self._operand(other) + self.term))

    def __rsub__(self, other: object) -> Word:
        return Word(result(self._operand(other) - self.term))

    def __lshift__(self, by: object) -> Word:
        return Word(result(self.term << self._distance(by)))

    def __rshift__(self, by: object) -> Word:
        return Word(result(z3.LShR(self.term, self._distance(by))))

    def _refuse(self, *_: object) -> NoReturn:
        raise DataDependenceError

    # All operations by which a program could branch on a word, index with it, look it up, print it or inspect it.
    __bool__ = __index__ = __int__ = __float__ = __hash__ = __len__ = __iter__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __repr__ = __str__ = __format__ = __bytes__ = __array__ = _refuse


class Memory(Word):
    """A word in memory: operators with ``=`` change it in place, as they change an array."""

    __slots__ = ()

    def __iadd__(self, other: object) -> Self:
        self.term = (self + other).term
        return self

    def __iand__(self, other: object) -> Self:
        self.term = (self & other).term
        return self

    def __setitem__(self, place: object, value: Word) -> None:
        """Take a word's value, or its lowest bits if it is wider, as an array of this word does."""
        if place is not Ellipsis or value.bits < self.bits:
            raise TypeError("a word in memory can only be assigned as a whole, from a word that is not narrower")
        self.term = z3.Extract(self.bits - 1, 0, value.term)


def conjunction(*terms: Term) -> Term:
    """Return the conjunction; for one term the term itself, because other solvers cannot parse an ``and`` of one."""
    if len(terms) > 1:
        return z3.And(*terms)
    return terms[0] if terms else z3.BoolVal(val=True)


class Answer(Enum):
    """The solver's answer to an obligation."""

    PROVED = "proved"
    """The premises hold for some values, and whenever they hold, the goal holds too."""
    REFUTED = "refuted"
    """There are values for which the premises hold and the goal does not."""
    VACUOUS = "vacuous"
    """The premises contradict each other, so everything follows from them."""
    UNKNOWN = "unknown"
    """The solver gave up, which never counts as success."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether the goal follows from the premises."""

    goal: Term
    premises: Sequence[Term] = ()

    @property
    def text(self) -> str:
        """The question to the solver, in SMT-LIB."""
        return "\n".join(term.sexpr() for term in (self.goal, *self.premises))

    def decide(self) -> Answer:
        """Ask one new solver whether the premises hold for some values, and another for a counterexample."""
        satisfiable = _check(self.premises)
        if satisfiable != z3.sat:
            return Answer.VACUOUS if satisfiable == z3.unsat else Answer.UNKNOWN
        counterexample = _check([*self.premises, z3.Not(self.goal)])
        if counterexample == z3.unsat:
            return Answer.PROVED
        return Answer.REFUTED if counterexample == z3.sat else Answer.UNKNOWN


def _check(formulas: Sequence[Term]) -> Any:  # noqa: ANN401 -- the solver's own type
    solver = z3.Solver()
    solver.set("timeout", TIME_LIMIT_SECONDS * 1000)
    solver.add(*formulas)
    return solver.check()
