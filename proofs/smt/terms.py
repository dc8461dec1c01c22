"""Machine words that are solver terms, and questions to the solver.

A ``Word`` does what an unsigned machine word does and refuses whatever would need its value, so a kernel that runs on
it has done the same operations for every value. Each question gets a fresh solver: an incremental one was seen to take
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
    """Let whatever is computed come out as anything: of that a statement about the code must not hold."""
    try:
        _unknown.append(0)
        yield
    finally:
        _unknown.clear()


def result(term: Term) -> Term:
    """Return what an operation gives; an unknown of its kind among arbitrary results."""
    if not _unknown:
        return term
    _unknown[0] += 1
    return z3.Const(f"arbitrary{_unknown[0]}", term.sort())


_unknown = list[int]()
"""How many results were arbitrary so far; empty where each is what it is."""


class DataDependenceError(Exception):
    """A kernel asked a term for its value."""


class Word:
    """An unsigned word: + - wrap, the right shift is logical, and constants and distances must fit."""

    __slots__ = ("bits", "term")

    # Keeps numpy from taking a word apart as an object of its own arrays.
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
                raise TypeError("words of two sizes meet")
            return other.term
        if isinstance(other, np.unsignedinteger) and 8 * other.itemsize == self.bits:
            other = int(other)
        if type(other) is not int or not 0 <= other < 1 << self.bits:
            raise TypeError(f"{other!r} is no constant of a word of {self.bits} bits")
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

    # Everything by which a program could branch on a word, index with it, look it up, print it or take it apart.
    __bool__ = __index__ = __int__ = __float__ = __hash__ = __len__ = __iter__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __repr__ = __str__ = __format__ = __bytes__ = __array__ = _refuse


class Memory(Word):
    """A word that stays where it is: operators with ``=`` change it in place, as they do an array."""

    __slots__ = ()

    def __iadd__(self, other: object) -> Self:
        self.term = (self + other).term
        return self

    def __iand__(self, other: object) -> Self:
        self.term = (self & other).term
        return self

    def __setitem__(self, place: object, value: Word) -> None:
        """Take all of a word's value, or its lowest bits where it is wider, as an array of this word does."""
        if place is not Ellipsis or value.bits < self.bits:
            raise TypeError("a word in memory is assigned whole, from a word that is not narrower")
        self.term = z3.Extract(self.bits - 1, 0, value.term)


def conjunction(*terms: Term) -> Term:
    """Return the conjunction; of one term the term itself, since other solvers do not read an ``and`` of one."""
    if len(terms) > 1:
        return z3.And(*terms)
    return terms[0] if terms else z3.BoolVal(val=True)


class Answer(Enum):
    """What the solver says of an obligation."""

    PROVED = "proved"
    """The premises hold for some values, and for all values for which they do the goal does too."""
    REFUTED = "refuted"
    """Values were found for which the premises hold and the goal does not."""
    VACUOUS = "vacuous"
    """The premises contradict each other, so that anything follows from them."""
    UNKNOWN = "unknown"
    """The solver gave up. This is never success."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether the goal follows from the premises."""

    goal: Term
    premises: Sequence[Term] = ()

    @property
    def text(self) -> str:
        """What the solver is asked, in its own language."""
        return "\n".join(term.sexpr() for term in (self.goal, *self.premises))

    def decide(self) -> Answer:
        """Ask a fresh solver for the premises alone and another for a counterexample."""
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
