"""The kernels of ``secagg/crypto/ring.py``, run on terms, for every width and every value of every word.

Elements of p bits are specified by the solver's own vectors of p bits, whose addition is addition modulo 2^p. Packing
is
specified as concatenation, so it loses nothing and gives every vector exactly one encoding.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import gcd
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from obligations import Obligation
from secagg.crypto import ring
from terms import Answer, Question, Term, Word, conjunction, z3

Kernels = Mapping[str, Callable[..., Any]]
Statement = Callable[[Kernels, int], Question]

WIDTHS: Final = range(1, ring.MAXIMUM_MODULUS_BITS + 1)
NAMES: Final = (
    "add",
    "add_into",
    "lift",
    "pack_group",
    "reduce",
    "reduce_into",
    "round_off",
    "subtract",
    "subtract_into",
    "unpack_lanes",
)
LIBRARY: Final[Kernels] = MappingProxyType({name: getattr(ring, name) for name in NAMES})

MUTANTS: Final = (
    ("reduce", "return words & low_bits(modulus_bits)", "return words | low_bits(modulus_bits)"),
    ("reduce", "return (1 << count) - 1", "return (1 << count) - 2"),
    ("add", "return (left + right) & low_bits", "return (left | right) & low_bits"),
    ("add", "return (left + right) & low_bits(modulus_bits)", "return left + right"),
    ("subtract", "return (left - right) & low_bits", "return (right - left) & low_bits"),
    ("accumulate", "total += words", "total -= words"),
    ("accumulate", "total -= words", "total += words"),
    ("accumulate", "total &= low_bits", "total |= low_bits"),
    ("lift", "return (element ^ half) - half", "return (element ^ half) + half"),
    ("lift", "half = 1 << (modulus_bits - 1)", "half = 1 << modulus_bits - 2"),
    ("pack", "word = word | _shifted", "word = word & _shifted"),
    ("pack", "(start + word_bits - 1) // modulus_bits", "start // modulus_bits"),
    ("pack", "if by >= 0 else word >> -by", "if by >= 0 else word >> -by - 1"),
    ("pack", "modulus_bits * index - start", "modulus_bits * index - start - 1"),
    ("unpack", "lanes.append(lane & low_bits", "lanes.append(lane | low_bits"),
    ("unpack", "word_at(byte) >> bit", "word_at(byte) >> bit + 1"),
    ("unpack", "if bit + modulus_bits > word_bits", "if bit + modulus_bits > word_bits + 1"),
    ("unpack", "word_at(byte + 1) << 8 - bit", "word_at(byte + 1) << 7 - bit"),
    ("unpack", "divmod(modulus_bits * index, 8)", "divmod(modulus_bits * index + 1, 8)"),
    ("rounding", "half = (1 << fine_bits) >> 1", "half = 1 << fine_bits"),
    ("rounding", "half = (1 << fine_bits) >> 1", "half = 0"),
    ("rounding", "^ low_bits(fine_bits)", "| low_bits(fine_bits)"),
    ("rounding", "(low_bits(modulus_bits) ^", "(low_bits(modulus_bits + 1) ^"),
)
"""For each family tokens of the source, original and altered; every altered version must be refuted."""
MUTATED_WIDTH: Final = 13
"""An odd width, far from the edges of its word, at which each of these alterations has an effect."""


def obligations() -> Iterator[Obligation]:
    """Every statement at every width, and every mutant."""
    for family, statements in STATEMENTS.items():
        for statement in statements:
            for width in WIDTHS:
                name = f"{statement.__name__.replace('_', ' ')}, p = {width}"
                yield Obligation(f"ring {family}", name, partial(statement, LIBRARY, width))
    for family, original, altered in MUTANTS:
        name = f"`{altered}` for `{original}`"
        yield Obligation(f"ring {family}", name, partial(_ask_mutant, family, original, altered), Answer.REFUTED)


# --- Statements -------------------------------------------------------------------------------------------------------


def reduction_keeps_the_low_bits(kernels: Kernels, width: int) -> Question:
    """State that reduce(w) is w modulo 2^p, whatever the higher bits are."""
    (word,) = _words(width, "w")
    return Question(_is_element(kernels["reduce"](word, width), _low(word, width), width))


def addition_is_modulo_2_to_the_p(kernels: Kernels, width: int) -> Question:
    """State the result of add for any words, reduced or not."""
    left, right = _words(width, "l", "r")
    return Question(_is_element(kernels["add"](left, right, width), _low(left, width) + _low(right, width), width))


def subtraction_is_modulo_2_to_the_p(kernels: Kernels, width: int) -> Question:
    """State the result of subtract for any words, reduced or not."""
    left, right = _words(width, "l", "r")
    return Question(_is_element(kernels["subtract"](left, right, width), _low(left, width) - _low(right, width), width))


def a_step_of_accumulation_is_modulo_2_to_the_p(kernels: Kernels, width: int) -> Question:
    """State one step of add_into and subtract_into from any total; by induction, any number of them in any order."""
    total, word = _words(width, "t", "w")
    summed = _low(kernels["add_into"](total, word), width) == _low(total, width) + _low(word, width)
    differing = _low(kernels["subtract_into"](total, word), width) == _low(total, width) - _low(word, width)
    return Question(conjunction(summed, differing))


def reduction_in_place_keeps_the_low_bits(kernels: Kernels, width: int) -> Question:
    """State the result of reduce_into after any steps."""
    (total,) = _words(width, "t")
    return Question(_is_element(kernels["reduce_into"](total, width), _low(total, width), width))


def the_lift_extends_the_sign(kernels: Kernels, width: int) -> Question:
    """State that the lift of an element is the two's complement word of the same p bits."""
    (word,) = _words(width, "v")
    lifted = kernels["lift"](word, width).term
    return Question(lifted == z3.SignExt(word.bits - width, _low(word, width)), [_fits(word, width)])


def the_lift_inverts_reduction_in_range(kernels: Kernels, width: int) -> Question:
    """State that lift(reduce(q)) is q for every q in [-2^(p-1), 2^(p-1) - 1]."""
    (word,) = _words(width, "q")
    half = 1 << (width - 1)
    returned = kernels["lift"](kernels["reduce"](word, width), width).term
    # Both comparisons are of signed words, like the range.
    return Question(returned == word.term, [word.term >= -half, word.term <= half - 1])


def reduction_inverts_the_lift(kernels: Kernels, width: int) -> Question:
    """State that reduce(lift(v)) is v for every element v."""
    (word,) = _words(width, "v")
    returned = kernels["reduce"](kernels["lift"](word, width), width).term
    return Question(returned == word.term, [_fits(word, width)])


def packing_concatenates(kernels: Kernels, width: int) -> Question:
    """State that the packed words, concatenated, are the p bits of the lanes, concatenated."""
    bits = _word_bits(width)
    lanes = _words(width, *(f"x{index}" for index in range(_lanes_of_words(width))))
    packed = kernels["pack_group"](lanes, width, bits)
    whole = _concatenation([_low(lane, width) for lane in lanes])
    return Question(_are_pieces([word.term for word in packed], whole, bits), [_fits(lane, width) for lane in lanes])


def unpacking_cuts(kernels: Kernels, width: int) -> Question:
    """State that eight lanes are the pieces of p bits of p bytes, for any bytes there and behind them."""
    whole = z3.BitVec("y", ring.LANES * width)
    lanes = _unpacked(kernels, whole, width)
    pieces = [_low(lane, width) for lane in lanes]
    return Question(conjunction(_are_pieces(pieces, whole, width), *(_fits(lane, width) for lane in lanes)))


def unpacking_inverts_packing(kernels: Kernels, width: int) -> Question:
    """State that lanes are recovered from the words that they pack into, for numbers that fill words and bytes."""
    lanes = _words(width, *(f"x{index}" for index in range(_together(width))))
    returned = _all_unpacked(kernels, _all_packed(kernels, lanes, width), width)
    return Question(_same(returned, lanes), [_fits(lane, width) for lane in lanes])


def packing_inverts_unpacking(kernels: Kernels, width: int) -> Question:
    """State that bytes are recovered from the lanes that they unpack into, for numbers that fill words and bytes."""
    whole = z3.BitVec("y", width * _together(width))
    return Question(_all_packed(kernels, _all_unpacked(kernels, whole, width), width) == whole)


def a_mask_is_taken_off_after_rounding(kernels: Kernels, width: int) -> Question:
    """State that (round(x + m) - m) - x is in -2^(f-1) + 1 .. 2^(f-1) for any x and m; whole steps are sent."""
    value, mask = _words(width, "x", "m")
    parts = list[Term]()
    for fine in _fine_bits(width):
        rounded, error = _rounded(kernels, kernels["add"](value, mask, width), width, fine)
        counted = kernels["subtract"](kernels["subtract"](rounded, mask, width), value, width)
        half = 1 << fine >> 1
        # Both comparisons are of signed vectors of p bits, which hold the ends of the range.
        bounded = conjunction(error <= half, error >= 1 - half) if fine else error == 0
        parts += [_low(counted, width) == error, bounded, _fits(rounded, width)]
        if fine:
            parts.append(_low(rounded, fine) == 0)
    return Question(conjunction(*parts))


def the_error_is_a_bijection_of_the_low_bits(kernels: Kernels, width: int) -> Question:
    """State that two masked elements have one error exactly if their f low bits agree; so it is uniform."""
    one, other = _words(width, "u", "v")
    parts = list[Term]()
    for fine in _fine_bits(width):
        errors = [_rounded(kernels, word, width, fine)[1] for word in (one, other)]
        agree = _low(one, fine) == _low(other, fine) if fine else z3.BoolVal(val=True)
        parts.append((errors[0] == errors[1]) == agree)
    return Question(conjunction(*parts))


STATEMENTS: Final[Mapping[str, tuple[Statement, ...]]] = MappingProxyType(
    {
        "reduce": (reduction_keeps_the_low_bits,),
        "add": (addition_is_modulo_2_to_the_p,),
        "subtract": (subtraction_is_modulo_2_to_the_p,),
        "accumulate": (a_step_of_accumulation_is_modulo_2_to_the_p, reduction_in_place_keeps_the_low_bits),
        "lift": (the_lift_extends_the_sign, the_lift_inverts_reduction_in_range, reduction_inverts_the_lift),
        "pack": (packing_concatenates, packing_inverts_unpacking),
        "unpack": (unpacking_cuts, unpacking_inverts_packing),
        "rounding": (a_mask_is_taken_off_after_rounding, the_error_is_a_bijection_of_the_low_bits),
    }
)


# --- Mutants ----------------------------------------------------------------------------------------------------------


def _ask_mutant(family: str, original: str, altered: str) -> Question:
    """Return the conjunction of the family's statements, for kernels in which a few tokens are altered."""
    kernels = altered_kernels(original, altered)
    questions = [statement(kernels, MUTATED_WIDTH) for statement in STATEMENTS[family]]
    # Each statement with premises is an implication, so one counterexample to any of them is enough.
    return Question(
        conjunction(*(z3.Implies(conjunction(*question.premises), question.goal) for question in questions))
    )


def altered_kernels(original: str, altered: str) -> Kernels:
    """Return the kernels with tokens replaced that occur once in them."""
    source = Path(str(ring.__file__)).read_text(encoding="utf-8")
    tree = ast.parse(source)
    wanted = {*NAMES, "low_bits", "_shifted"}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    text = "\n\n".join(str(ast.get_source_segment(source, node)) for node in functions)
    if text.count(original) == 0:
        raise LookupError(f"`{original}` is not in the kernels of secagg/crypto/ring.py; update MUTANTS")
    names: dict[str, Any] = {"Words": Any, "LANES": ring.LANES}
    exec("from __future__ import annotations\n" + text.replace(original, altered), names)  # noqa: S102 -- the library's own source
    return names


# --- Words and bits ---------------------------------------------------------------------------------------------------


def _word_bits(width: int) -> int:
    return ring.Ring(width).word_bits


def _words(width: int, *names: str) -> list[Word]:
    return [Word.named(name, _word_bits(width)) for name in names]


def _lanes_of_words(width: int) -> int:
    """Return how many lanes fill whole words, as in ``Ring.pack``."""
    return _word_bits(width) // gcd(width, _word_bits(width))


def _together(width: int) -> int:
    """Return how many lanes fill whole words and whole rows of eight: both are powers of two."""
    return max(_lanes_of_words(width), ring.LANES)


def _unpacked(kernels: Kernels, whole: Term, width: int) -> list[Word]:
    """Unpack eight lanes of p bytes, followed by anything."""
    bits = _word_bits(width)
    padded = z3.Concat(z3.BitVec("behind", bits), whole)
    lanes: list[Word] = kernels["unpack_lanes"](
        lambda byte: Word(z3.Extract(8 * byte + bits - 1, 8 * byte, padded)), width, bits
    )
    return lanes


def _all_packed(kernels: Kernels, lanes: list[Word], width: int) -> Term:
    size, words = _lanes_of_words(width), list[Word]()
    for first in range(0, len(lanes), size):
        words += kernels["pack_group"](lanes[first : first + size], width, _word_bits(width))
    return _concatenation([word.term for word in words])


def _all_unpacked(kernels: Kernels, whole: Term, width: int) -> list[Word]:
    row = ring.LANES * width
    rows = (z3.Extract(first + row - 1, first, whole) for first in range(0, whole.size(), row))
    return [lane for row in rows for lane in _unpacked(kernels, row, width)]


def _low(word: Word, width: int) -> Term:
    return z3.Extract(width - 1, 0, word.term)


def _fine_bits(width: int) -> list[int]:
    """Return no fine bits, one, half of a width, and the maximum."""
    return sorted({0, width // 2, width - 1, min(1, width - 1)})


def _rounded(kernels: Kernels, masked: Word, width: int, fine: int) -> tuple[Word, Term]:
    """Return a masked element rounded, and the error of rounding, modulo 2^p."""
    rounded = kernels["round_off"](masked, width, fine)
    return rounded, _low(kernels["subtract"](rounded, masked, width), width)


def _fits(word: Word, width: int) -> Term:
    if width == word.bits:
        return z3.BoolVal(val=True)
    return z3.Extract(word.bits - 1, width, word.term) == 0


def _is_element(word: Word, element: Term, width: int) -> Term:
    return conjunction(_low(word, width) == element, _fits(word, width))


def _same(left: list[Word], right: list[Word]) -> Term:
    return conjunction(*(one.term == other.term for one, other in zip(left, right, strict=True)))


def _concatenation(pieces: list[Term]) -> Term:
    """Concatenate pieces, the first one in the lowest bits."""
    return z3.Concat(*reversed(pieces)) if len(pieces) > 1 else pieces[0]


def _are_pieces(pieces: list[Term], whole: Term, bits: int) -> Term:
    if len(pieces) * bits != whole.size():
        return z3.BoolVal(val=False)
    cut = (z3.Extract(bits * index + bits - 1, bits * index, whole) for index in range(len(pieces)))
    return conjunction(*(piece == part for piece, part in zip(pieces, cut, strict=True)))
