"""Kernels on coefficients of one or two machine words, lowest first: adding, subtracting, rounding, reading fields.

They name no dtype and neither branch nor index on data, so that the same source runs on arrays of words of 64 bits and
on solver terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

WORD_BITS: Final = 64
_ONES = (1 << WORD_BITS) - 1

Words = Any
"""Arrays of unsigned words of 64 bits, or solver terms: + and - wrap, << drops what leaves the word, >> is logical."""


def low_bits(count: int) -> int:
    """Return the word whose lowest ``count`` bits are set."""
    return (1 << count) - 1


def add_shifted(words: list[Words], value: Words, shift: int, *, signed: bool = False) -> None:
    """Add value 2^shift modulo 2^(64 words) in place; a signed value is in two's complement.

    A value may be a public integer as well as an array.

    Claim OM-1: this and ``subtract_wide`` are run on terms.
    """
    if len(words) == 1:
        words[0] += value << shift
        return
    if shift >= WORD_BITS:
        words[1] += value << (shift - WORD_BITS)
        return
    part = value << shift if shift else value
    before = words[0] + part
    carry = ((words[0] & part) | ((words[0] | part) & (before ^ _ONES))) >> (WORD_BITS - 1)
    above = value >> (WORD_BITS - shift) if shift else value & 0
    if signed:
        above = above | (((value & 0) - (value >> (WORD_BITS - 1))) << shift)
    words[1] += above + carry
    words[0] += part


def subtract_wide(words: list[Words], other: Sequence[Words]) -> None:
    """Subtract modulo 2^(64 words) in place.

    Claim OM-1.
    """
    if len(words) == 1:
        words[0] -= other[0]
        return
    difference = words[0] - other[0]
    inverted = words[0] ^ _ONES
    borrow = ((inverted & other[0]) | ((inverted | other[0]) & difference)) >> (WORD_BITS - 1)
    words[1] -= other[1] + borrow
    words[0] -= other[0]


def field_of(words: Sequence[Words], start: int, bits: int) -> Words:
    """Return ``bits`` bits, at most a word, from bit ``start`` on."""
    first, offset = divmod(start, WORD_BITS)
    value = words[first] >> offset if offset else words[first]
    if offset and offset + bits > WORD_BITS and first + 1 < len(words):
        value = value | (words[first + 1] << (WORD_BITS - offset))
    return value & low_bits(bits) if bits < WORD_BITS else value


def round_off(words: list[Words], dropped_bits: int) -> list[Words]:
    """Return round(y / 2^d), after adding half a unit to ``words``; bits above the modulus stay.

    Claim OM-2: this and ``center`` are run on terms.
    """
    if not dropped_bits:
        return words
    add_shifted(words, 1 << (dropped_bits - 1), 0)
    return [field_of(words, dropped_bits, 64), *(word >> dropped_bits for word in words[1:])]


def center(words: list[Words], lowest: int, bias: int) -> None:
    """Add half of the guard bits' range and take away the bias of rounding, so that noise is never below zero."""
    offset = (1 << (lowest - 1)) - bias & low_bits(64 * len(words))
    for index in range(len(words)):
        add_shifted(words, offset >> 64 * index & low_bits(64), 64 * index)


def counted(word: Words, mask: Words, fine_bits: int) -> Words:
    """Return what counts of a coefficient that ``round_off`` added half a step to: whole steps, less its mask.

    Claim OM-7: modulo 2^(p + f) it is what a server has once it takes the mask off the p bits that were sent.
    """
    return (word & (_ONES ^ low_bits(fine_bits))) - mask
