"""Field lanes that a server adds and subtracts in place: the library's methods, run on terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from obligations import Obligation, altered_module
from secagg.crypto.ring import Ring
from secagg.protocols.two_servers.point_functions import lanes as fields
from terms import Answer, Memory, Question, Term, Word, conjunction, z3

Field = Callable[[int], Any]
"""Makes the lanes of a modulus: ``LaneField``, or an altered version."""
Statement = Callable[[Field, int], Question]
FAMILY: Final = "lanes in place"
MUTANTS: Final = (
    ("total += wraps(total, self.bits)", "total += wraps(lanes, self.bits)"),
    ("total += wraps(total, self.bits)", "total += 0"),
    ("total += lanes", "total += total"),
    ("total &= self.word.type(self.modulus)", "total &= total"),
    ("return (words + 1) >> bits", "return words >> bits"),
    ("lanes ^ self.word.type(self.modulus)", "lanes"),
)
"""Tokens of the source, original and altered; for each altered module a statement must be refuted."""


def obligations() -> Iterator[Obligation]:
    """Every statement at every modulus, and every mutant."""
    for statement in STATEMENTS:
        for modulus in fields.MODULI:
            name = f"{statement.__name__.replace('_', ' ')}, q = {modulus}"
            yield Obligation(FAMILY, name, partial(statement, fields.LaneField, modulus))
    for original, altered in MUTANTS:
        name = f"`{altered}` for `{original}`"
        yield Obligation(FAMILY, name, partial(_ask_mutant, original, altered), Answer.REFUTED)


def sums_are_of_the_field(field: Field, modulus: int) -> Question:
    """State that add_into leaves the sum modulo q, for a total below q and lanes up to q; lanes are unchanged."""
    total, lanes, left, right = _memory(modulus)
    field(modulus).add_into(total, lanes)
    return _due(total, (left + right, modulus), lanes.term == right, [z3.ULT(left, modulus), z3.ULE(right, modulus)])


def differences_are_of_the_field(field: Field, modulus: int) -> Question:
    """State that subtract_into leaves the difference modulo q, for lanes below q; the subtrahend is unchanged."""
    total, lanes, left, right = _memory(modulus)
    field(modulus).subtract_into(total, lanes)
    due = (left + modulus - right, modulus)
    return _due(total, due, lanes.term == right, [z3.ULT(left, modulus), z3.ULT(right, modulus)])


STATEMENTS: Final[tuple[Statement, ...]] = (sums_are_of_the_field, differences_are_of_the_field)


def _memory(modulus: int) -> tuple[Memory, Memory, Term, Term]:
    """Return a total and lanes in the words of a field, and their initial values."""
    bits = Ring(modulus.bit_length()).word_bits
    total, lanes = (Memory(Word.named(name, bits).term) for name in ("total", "lanes"))
    return total, lanes, total.term, lanes.term


def _due(total: Memory, due: tuple[Term, int], unchanged: Term, premises: list[Term]) -> Question:
    """State that the total is the remainder of a number below 2q, which fits the word of every field."""
    value, modulus = due
    remainder = z3.If(z3.UGE(value, modulus), value - modulus, value)
    return Question(conjunction(total.term == remainder, z3.ULT(total.term, modulus), unchanged), premises)


def _ask_mutant(original: str, altered: str) -> Question:
    """Return the conjunction of the statements at the smallest modulus, for altered methods."""
    field = altered_module(fields, original, altered)["LaneField"]
    questions = [statement(field, fields.MODULI[0]) for statement in STATEMENTS]
    return Question(
        conjunction(*(z3.Implies(conjunction(*question.premises), question.goal) for question in questions))
    )
