"""Check words: ``secagg/crypto/check_words.py`` and the inner products that it adds, run on terms.

The public vector is ideal: element i is one unknown word, for any key and in each piece that contains it. A test covers
its expansion from a key. Pieces are a few elements long here, so a vector has three of them, the last one shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final
from unittest import mock

import numpy as np

from obligations import Obligation, altered_module
from secagg.crypto import check_words as check_words_module
from secagg.crypto import ring as ring_module
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring
from secagg.crypto.secret import Secret
from terms import Answer, Question, Term, Word, conjunction, z3

Functions = Mapping[str, Any]
FAMILY: Final = "check words"
LIBRARY: Final[Functions] = MappingProxyType({"check_words": check_words_module.check_words, "Ring": Ring})
WIDTHS: Final = range(1, MAXIMUM_MODULUS_BITS + 1)
MUTATED_WIDTH: Final = 13
LENGTH: Final = 7
PIECE: Final = 3
COUNTS: Final = (1, 2, 4)
MUTANTS: Final = (
    (check_words_module, "start=start,", "start=0,"),
    (check_words_module, "public[word : word + piece.size]", "public[: piece.size]"),
    (check_words_module, "words[word] += ring", "words[word] = ring"),
    (check_words_module, "        public[:] = 0\n", ""),
    (check_words_module, "values[start : start + per_piece]", "values[start : start + per_piece - 1]"),
    (check_words_module, "word & low_bits(ring.modulus_bits)", "word & low_bits(ring.modulus_bits - 1)"),
    (check_words_module, "range(0, values.size, per_piece)", "range(per_piece, values.size, per_piece)"),
    (ring_module, '"i,i->", left, right', '"i,i->", left, left'),
    (ring_module, "return int(product) & low_bits(self.modulus_bits)", "return int(product) & 1"),
)
"""Tokens of the source, original and altered; for each altered module a statement must be refuted."""


def obligations() -> Iterator[Obligation]:
    """Every number of words at every width, and every mutant."""
    for width in WIDTHS:
        for count in COUNTS:
            name = f"{count} check words are inner products, p = {width}"
            yield Obligation(FAMILY, name, partial(check_words_are_inner_products, LIBRARY, width, count))
    for module, original, altered in MUTANTS:
        name = f"`{altered}` for `{original}`"
        yield Obligation(FAMILY, name, partial(_ask_mutant, module, original, altered), Answer.REFUTED)


@dataclass(frozen=True, slots=True)
class TermRing:
    """A ring whose vectors are arrays of terms; its inner product is the library's."""

    ring: Ring
    multiply: Callable[..., Any]

    @property
    def modulus_bits(self) -> int:
        """The bits of an element."""
        return self.ring.modulus_bits

    @property
    def word_bytes(self) -> int:
        """The bytes of a word."""
        return self.ring.word_bytes

    def zeros(self, length: int) -> Any:  # noqa: ANN401 -- an array of terms
        """Return words of memory with unknown content: they must be written before they are read."""
        return _vector("stale", length, self.ring.word_bits)

    def require_form(self, vector: Any, length: int | None = None) -> None:  # noqa: ANN401 -- an array of terms
        """Refuse another length, as the library does."""
        if length is not None and vector.size != length:
            raise TypeError(f"expected a vector of {length} elements; got {vector.size}")

    def inner_product(self, left: Any, right: Any) -> Word:  # noqa: ANN401 -- arrays of terms
        """Return the result of the library's method."""
        product: Word = self.multiply(self, left, right)
        return product


def check_words_are_inner_products(functions: Functions, width: int, count: int) -> Question:
    """State that word w is the sum of x_i r_(i + w) modulo 2^p, for all x and r, over all pieces."""
    bits = Ring(width).word_bits
    values, public = _vector("x", LENGTH, bits), _vector("r", LENGTH + count - 1, bits)

    def accumulate(total: Any, *_: Any, start: int, add: list[Secret], **__: Any) -> None:  # noqa: ANN401 -- terms
        """Add the elements of the public vector from ``start`` on."""
        if len(add) != 1:
            raise TypeError("check words have one public vector")
        for index in range(total.size):
            total[index] = public[start + index] + total[index]

    method: FunctionType = functions["Ring"].inner_product
    function: FunctionType = functions["check_words"]
    ring = TermRing(Ring(width), method)
    ideal = {"accumulate": accumulate, "SEGMENT_BYTES": PIECE * Ring(width).word_bytes}
    with (
        mock.patch.dict(function.__globals__, ideal),
        # A product of terms is a single word; a product of arrays is one of Python's integers.
        mock.patch.dict(method.__globals__, {"int": lambda product: product}),
        Secret("key", bytes(check_words_module.CHECK_KEY_BYTES)) as key,
    ):
        words = function(ring, values, count, key)
    goals = list[Term]()
    for shift, word in enumerate(words):
        due = sum(
            (value.term * public[index + shift].term for index, value in enumerate(values)), z3.BitVecVal(0, bits)
        )
        lowest = z3.Extract(width - 1, 0, due)
        goals.append(word.term == (lowest if width == bits else z3.ZeroExt(bits - width, lowest)))
    return Question(conjunction(*goals))


def _vector(name: str, length: int, bits: int) -> Any:  # noqa: ANN401 -- an array of terms
    """Return unknown words; assigned one by one, because numpy would ask each for its length."""
    vector = np.empty(length, dtype=object)
    for index in range(length):
        vector[index] = Word.named(f"{name}{index}", bits)
    return vector


def _ask_mutant(module: ModuleType, original: str, altered: str) -> Question:
    """Return the statement for an altered module, at one width."""
    names = altered_module(module, original, altered)
    return check_words_are_inner_products({**LIBRARY, **names}, MUTATED_WIDTH, COUNTS[-1])
