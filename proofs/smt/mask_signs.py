"""Which neighbour adds their mask: ``round2_masked_input.adds_pairwise_mask``, run on terms, for every pair of clients.

One of the two adds and the other subtracts, so the mask cancels in the sum of their uploads. Each upload is the input
plus the same mask with one of two opposite signs, as ``proofs/coq/masks.v`` assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final

from obligations import Obligation
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, add_into, reduce_into, subtract_into
from secagg.identifiers import CLIENT_ID_BYTES
from secagg.protocols.pairwise_mask.round2_masked_input import adds_pairwise_mask
from terms import Answer, Question, Term, Word, conjunction, result, z3

Rule = Callable[[Any, Any], Any]


class AnyClient:
    """An unknown client; identifiers have the order of their numbers."""

    def __init__(self, name: str) -> None:
        self.value = z3.BitVec(name, 8 * CLIENT_ID_BYTES)

    def __gt__(self, other: AnyClient) -> Term:
        return result(z3.UGT(self.value, other.value))

    def __ge__(self, other: AnyClient) -> Term:
        return result(z3.UGE(self.value, other.value))

    def __lt__(self, other: AnyClient) -> Term:
        return result(z3.ULT(self.value, other.value))

    def __le__(self, other: AnyClient) -> Term:
        return result(z3.ULE(self.value, other.value))


def obligations() -> Iterator[Obligation]:
    """Every statement, and every mutant."""
    for statement in (one_of_two_adds, nobody_adds_its_own):
        yield Obligation("mask signs", statement.__name__.replace("_", " "), partial(statement, adds_pairwise_mask))
    for width in range(1, MAXIMUM_MODULUS_BITS + 1):
        ask = partial(masks_of_a_pair_cancel, adds_pairwise_mask, width)
        yield Obligation("mask signs", f"masks of a pair cancel, p = {width}", ask)
    for name, rule in MUTANTS:
        yield Obligation("mask signs", name, partial(one_of_two_adds, rule), Answer.REFUTED)
        yield Obligation("mask signs", name, partial(masks_of_a_pair_cancel, rule, 13), Answer.REFUTED)


def one_of_two_adds(rule: Rule) -> Question:
    """State that of two different clients exactly one adds."""
    one, other = AnyClient("one"), AnyClient("other")
    return Question(z3.Xor(rule(one, other), rule(other, one)), [one.value != other.value])


def nobody_adds_its_own(rule: Rule) -> Question:
    """State that a client does not add its own mask; a graph has no such edge anyway."""
    client = AnyClient("client")
    return Question(z3.Not(rule(client, client)))


def masks_of_a_pair_cancel(rule: Rule, width: int) -> Question:
    """State that the sum of two uploads is the sum of the two inputs, for any mask."""
    one, other = AnyClient("one"), AnyClient("other")
    bits = Ring(width).word_bits
    left, right, mask = (Word.named(name, bits) for name in ("left", "right", "mask"))
    plain = reduce_into(add_into(left, right), width)
    # Case by case, because a solver decides sums quickly and sums of conditional sums slowly.
    cases = list[Term]()
    for one_adds, other_adds in product((True, False), repeat=2):
        masked = reduce_into(add_into(_upload(left, mask, one_adds), _upload(right, mask, other_adds)), width)
        case = conjunction(rule(one, other) == z3.BoolVal(one_adds), rule(other, one) == z3.BoolVal(other_adds))
        cases.append(z3.Implies(case, masked.term == plain.term))
    return Question(conjunction(*cases), [one.value != other.value])


def _upload(vector: Word, mask: Word, adds: bool) -> Word:  # noqa: FBT001 -- the list that contains the key
    """Do to one word what ``masking.MaskedVector.apply`` does."""
    upload: Word = add_into(vector, mask) if adds else subtract_into(vector, mask)
    return upload


MUTANTS: Final[tuple[tuple[str, Rule], ...]] = (
    ("everybody adds", lambda _, __: z3.BoolVal(val=True)),
    ("only the lowest bits are compared", lambda one, other: z3.Extract(31, 0, one.value - other.value) != 0),
    ("one client adds to nobody", lambda one, other: conjunction(one > other, one.value != 1)),
)
