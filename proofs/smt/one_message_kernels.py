"""The kernels of ``protocols/one_message/masks.py``, run on terms: coefficients of one and two words.

A coefficient is specified by the solver's own vector of 64 or 128 bits. Noise is any integer within the guard bits, and
values are any that their fields hold: reading them back is exact in all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import getsource
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from obligations import Obligation
from secagg.protocols.one_message import masks
from secagg.protocols.one_message.parameters import MAXIMUM_DROPPED_BITS
from terms import Answer, Question, Term, Word, conjunction, result, z3

Kernels = Mapping[str, Callable[..., Any]]
Statement = Callable[..., Question]

WORD_BITS: Final = masks.WORD_BITS
NAMES: Final = ("add_shifted", "center", "counted", "field_of", "low_bits", "round_off", "subtract_wide")
LIBRARY: Final[Kernels] = MappingProxyType({name: getattr(masks, name) for name in NAMES})


class Packing(NamedTuple):
    """One way to fill a coefficient: w, g, k and the bits of a field."""

    modulus: int
    guard: int
    fields: int
    bits: int

    @property
    def words(self) -> int:
        """Number of words that hold it."""
        return -(-self.modulus // WORD_BITS)


PACKINGS: Final = (
    Packing(25, 10, 1, 15),
    Packing(55, 10, 3, 15),
    Packing(48, 12, 2, 18),
    Packing(36, 14, 1, 22),
    Packing(64, 12, 2, 26),
    Packing(100, 10, 6, 15),
    Packing(102, 12, 5, 18),
    Packing(90, 12, 3, 26),
    Packing(104, 14, 3, 30),
)

MUTANTS: Final = (
    ("wide sums", "words[1] += above + carry", "words[1] += above"),
    ("wide sums", "(before ^ _ONES)", "before"),
    ("wide sums", "value >> (WORD_BITS - shift) if shift", "value >> (WORD_BITS - shift - 1) if shift"),
    ("wide sums", "(value >> (WORD_BITS - 1))) << shift)", "(value >> (WORD_BITS - 1))))"),
    ("wide sums", "words[1] -= other[1] + borrow", "words[1] -= other[1]"),
    ("wide sums", "words[0] ^ _ONES", "words[0]"),
    ("rounding", "1 << (dropped_bits - 1), 0)", "1 << dropped_bits, 0)"),
    ("rounding", "field_of(words, dropped_bits, 64)", "words[0] >> dropped_bits"),
    ("dither", "1 << (dropped_bits - 1), 0)", "0, 0)"),
    ("dither", "(_ONES ^ low_bits(fine_bits))) - mask", "(_ONES ^ low_bits(fine_bits))) + mask"),
    ("dither", "word & (_ONES ^ low_bits(fine_bits))", "word & _ONES"),
    ("fields", "1 << (lowest - 1)) - bias", "1 << lowest) - bias"),
    ("fields", "1 << (lowest - 1)) - bias", "1 << (lowest - 1)) + bias"),
    ("fields", "words[first + 1] << (WORD_BITS - offset)", "words[first + 1] << offset"),
    ("fields", "return value & low_bits(bits) if", "return value | low_bits(bits) if"),
)
"""For each family tokens of the source, original and altered; every altered version must be refuted."""


def obligations() -> Iterator[Obligation]:
    """Every statement at every case, and every mutant."""
    for family, cases in CASES.items():
        for statement, case in cases:
            name = f"{statement.__name__.replace('_', ' ')}, {case}"
            yield Obligation(f"one message {family}", name, partial(statement, LIBRARY, case))
    for family, original, altered in MUTANTS:
        name = f"`{altered}` for `{original}`"
        yield Obligation(f"one message {family}", name, partial(_ask_mutant, family, original, altered), Answer.REFUTED)


# --- Statements -------------------------------------------------------------------------------------------------------


def adding_a_shifted_value_is_addition_of_integers(kernels: Kernels, case: tuple[int, int, bool]) -> Question:
    """State add_shifted for a number of words, a shift, and a signed or unsigned value."""
    count, shift, signed = case
    words, value = _words("y", count), Word.named("x", WORD_BITS)
    before = _whole(words)
    kernels["add_shifted"](words, value, shift, signed=signed)
    extended = (z3.SignExt if signed else z3.ZeroExt)((count - 1) * WORD_BITS, value.term)
    return Question(_whole(words) == before + (extended << shift))


def subtracting_is_subtraction_of_integers(kernels: Kernels, count: int) -> Question:
    """State subtract_wide for a number of words."""
    words, other = _words("y", count), _words("z", count)
    due = _whole(words) - _whole(other)
    kernels["subtract_wide"](words, other)
    return Question(_whole(words) == due)


def rounding_errs_by_half_a_unit_at_most(kernels: Kernels, case: tuple[int, int]) -> Question:
    """State that the rounded coefficient, shifted back, is off by -2^(d-1) + 1 .. 2^(d-1), below the topmost unit."""
    count, dropped = case
    words = _words("y", count)
    whole = _whole(words)
    rounded = kernels["round_off"](words, dropped)
    bits = count * WORD_BITS
    error = (result(_whole(rounded)) << dropped) - whole
    half = z3.BitVecVal(1 << dropped >> 1, bits)
    bounded = conjunction(error <= half, error >= 1 - half) if dropped else error == 0
    return Question(bounded, [z3.ULT(whole, z3.BitVecVal((1 << bits) - (1 << dropped), bits))])


def fields_are_read_back_beside_any_noise(kernels: Kernels, case: tuple[Packing, int]) -> Question:
    """State that packing, noise within the guard bits, the bias of rounding, and centring lose nothing."""
    packing, bias = case
    values = [Word.named(f"x{index}", WORD_BITS) for index in range(packing.fields)]
    noise = Word.named("e", WORD_BITS)
    words = [Word(z3.BitVecVal(0, WORD_BITS)) for _ in range(packing.words)]
    for index, value in enumerate(values):
        kernels["add_shifted"](words, value, packing.guard + index * packing.bits)
    kernels["add_shifted"](words, noise, 0, signed=True)
    kernels["add_shifted"](words, bias, 0)
    kernels["center"](words, packing.guard, bias)
    read = [
        kernels["field_of"](words, packing.guard + index * packing.bits, packing.bits)
        for index in range(packing.fields)
    ]
    guard = kernels["field_of"](words, 0, packing.guard)
    half = 1 << (packing.guard - 1)
    return Question(
        conjunction(
            *(left.term == right.term for left, right in zip(read, values, strict=True)),
            guard.term - half == noise.term,
        ),
        [
            *(z3.ULT(value.term, z3.BitVecVal(1 << packing.bits, WORD_BITS)) for value in values),
            noise.term >= -half,
            noise.term < half,
        ],
    )


def a_mask_is_taken_off_after_rounding(kernels: Kernels, case: tuple[int, int, int]) -> Question:
    """State that the p bits sent, shifted back minus the mask, are the value, its noise and at most half a step.

    The client's check words, computed by ``counted``, are of the same number modulo 2^(p + f).
    """
    count, fine, sent = case
    mask, value = _words("m", count), Word.named("x", WORD_BITS)
    words = list(mask)
    kernels["add_shifted"](words, value, 0)
    packed = kernels["field_of"](kernels["round_off"](words, fine), 0, sent)
    received = [Word(z3.BitVecVal(0, WORD_BITS))]
    kernels["add_shifted"](received, packed, fine)
    kernels["subtract_wide"](received, mask[:1])
    summed, own = (
        z3.Extract(sent + fine - 1, 0, word.term) for word in (received[0], kernels["counted"](words[0], mask[0], fine))
    )
    error = summed - z3.Extract(sent + fine - 1, 0, value.term)
    return Question(conjunction(summed == own, error <= 1 << fine >> 1, error >= 1 - (1 << fine >> 1)))


CASES: Final[Mapping[str, list[tuple[Statement, Any]]]] = MappingProxyType(
    {
        "wide sums": [
            *((adding_a_shifted_value_is_addition_of_integers, (1, shift, True)) for shift in (0, 10, 63)),
            *((adding_a_shifted_value_is_addition_of_integers, (2, shift, False)) for shift in range(0, 128, 3)),
            *(
                (adding_a_shifted_value_is_addition_of_integers, (2, shift, True))
                for shift in (0, 25, 26, 54, 63, 78, 81)
            ),
            *((subtracting_is_subtraction_of_integers, count) for count in (1, 2)),
        ],
        "rounding": [
            (rounding_errs_by_half_a_unit_at_most, (count, dropped))
            for count in (1, 2)
            for dropped in range(MAXIMUM_DROPPED_BITS + 1)
        ],
        "dither": [
            (a_mask_is_taken_off_after_rounding, (count, fine, sent))
            for count in (1, 2)
            for fine, sent in ((7, 1), (7, 8), (8, 12), (16, 16), (24, 29), (20, 44))
        ],
        "fields": [
            (fields_are_read_back_beside_any_noise, (packing, bias))
            for packing in PACKINGS
            for bias in (0, 50, 264_000)
        ],
    }
)


# --- Mutants and bits -------------------------------------------------------------------------------------------------


def _ask_mutant(family: str, original: str, altered: str) -> Question:
    """Return the conjunction of the family's statements, for kernels in which a few tokens are altered."""
    kernels = altered_kernels(original, altered)
    questions = [statement(kernels, case) for statement, case in CASES[family]]
    return Question(
        conjunction(*(z3.Implies(conjunction(*question.premises), question.goal) for question in questions))
    )


def altered_kernels(original: str, altered: str) -> Kernels:
    """Return the kernels with tokens replaced that occur in them."""
    text = "from __future__ import annotations\n\n" + "\n\n".join(map(getsource, LIBRARY.values()))
    if original not in text:
        raise LookupError(f"`{original}` is not in the kernels of masks.py; update MUTANTS")
    names = dict(vars(masks))
    exec(text.replace(original, altered), names)  # noqa: S102 -- the library's own source
    return {name: names[name] for name in NAMES}


def _words(name: str, count: int) -> list[Word]:
    return [Word.named(f"{name}{index}", WORD_BITS) for index in range(count)]


def _whole(words: list[Word]) -> Term:
    """Concatenate words, the first one in the lowest bits."""
    return z3.Concat(*(word.term for word in reversed(words))) if len(words) > 1 else words[0].term
