"""The kernels of the ring name no dtype and neither branch nor index on data.

They run here, unchanged, on a word that refuses everything except word arithmetic, and agree with machine words. A
proof that runs the same source on a solver's terms relies on exactly this.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.crypto.ring import (
    LANES,
    Ring,
    add,
    add_into,
    lift,
    low_bits,
    pack_group,
    reduce,
    reduce_into,
    subtract,
    subtract_into,
    unpack_lanes,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.hidden_words import DataDependenceError, Word

LANE_LENGTH = 9

MODULI = pytest.mark.parametrize("modulus_bits", range(1, 65), ids=lambda bits: f"p={bits}")


def words(values: list[int], bits: int) -> list[Word]:
    return [Word(value, bits) for value in values]


def revealed(result: list[Word]) -> list[int]:
    return [word.revealed for word in result]


def telling_words(bits: int, modulus_bits: int) -> list[int]:
    """Return words at which carries, signs and edges change, and a few without a pattern."""
    edges = (0, 1 << (modulus_bits - 1), 1 << modulus_bits, 1 << (bits - 1), 1 << bits)
    drawn = bytes(InsecureSeededCoins(b"kernel words").draw(64))
    values = [edge + step for edge in edges for step in (-1, 0, 1)]
    values += [int.from_bytes(drawn[at : at + 8], "little") for at in range(0, len(drawn), 8)]
    return sorted({value % (1 << bits) for value in values})


def columns(rows: int, bits: int, used_bits: int) -> list[list[int]]:
    """Return ``rows`` lanes of ``LANE_LENGTH`` values: without a pattern, and all zeros and all ones."""
    drawn = bytes(InsecureSeededCoins(b"kernel lanes").draw(8 * rows * LANE_LENGTH))
    values = [int.from_bytes(drawn[at : at + 8], "little") >> (64 - used_bits) for at in range(0, len(drawn), 8)]
    top = (1 << used_bits) - 1
    assert top < 1 << bits
    lanes = [values[row * LANE_LENGTH : (row + 1) * LANE_LENGTH] for row in range(rows)]
    return [[0, top, *lane[2:]] for lane in lanes]


@MODULI
def test_addition_and_subtraction_run_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    values = telling_words(ring.word_bits, modulus_bits)
    left = [value for value in values for _ in values]
    right = values * len(values)
    pairs = list(zip(words(left, ring.word_bits), words(right, ring.word_bits), strict=True))
    machine_left, machine_right = np.array(left, dtype=ring.word), np.array(right, dtype=ring.word)
    modulus = 1 << modulus_bits
    for kernel, expected in (
        (add, [(x + y) % modulus for x, y in zip(left, right, strict=True)]),
        (subtract, [(x - y) % modulus for x, y in zip(left, right, strict=True)]),
    ):
        assert revealed([kernel(x, y, modulus_bits) for x, y in pairs]) == expected
        assert kernel(machine_left, machine_right, modulus_bits).tolist() == expected


@MODULI
def test_accumulation_in_place_runs_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    values = telling_words(ring.word_bits, modulus_bits)
    # Three additions and one subtraction between reductions: the word may wrap in between.
    turns = [values[turn:] + values[:turn] for turn in range(4)]
    expected = [(a + b + c - d) % (1 << modulus_bits) for a, b, c, d in zip(*turns, strict=True)]
    results = list[int]()
    for a, b, c, d in zip(*(words(turn, ring.word_bits) for turn in turns), strict=True):
        total = subtract_into(add_into(add_into(a, b), c), d)
        results.append(reduce_into(total, modulus_bits).revealed)
    assert results == expected
    machine, *others = (np.array(turn, dtype=ring.word) for turn in turns)
    add_into(machine, others[0])
    add_into(machine, others[1])
    subtract_into(machine, others[2])
    reduce_into(machine, modulus_bits)
    assert machine.tolist() == expected


@MODULI
def test_reduction_runs_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    values = telling_words(ring.word_bits, modulus_bits)
    expected = [value % (1 << modulus_bits) for value in values]
    assert revealed([reduce(word, modulus_bits) for word in words(values, ring.word_bits)]) == expected
    assert reduce(np.array(values, dtype=ring.word), modulus_bits).tolist() == expected


@MODULI
def test_the_lift_runs_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    elements = [value for value in telling_words(ring.word_bits, modulus_bits) if value < 1 << modulus_bits]
    centred = [element - ((element >> (modulus_bits - 1)) << modulus_bits) for element in elements]
    as_words = [integer % (1 << ring.word_bits) for integer in centred]
    assert revealed([lift(word, modulus_bits) for word in words(elements, ring.word_bits)]) == as_words
    assert lift(np.array(elements, dtype=ring.word), modulus_bits).tolist() == as_words


@MODULI
def test_packing_runs_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    bits = ring.word_bits
    # The fewest lanes that fill whole words, found by counting.
    count = next(lanes for lanes in range(1, bits + 1) if lanes * modulus_bits % bits == 0)
    lanes = columns(count, bits, modulus_bits)
    machine = pack_group([np.array(lane, dtype=ring.word) for lane in lanes], modulus_bits, bits)
    for column in range(LANE_LENGTH):
        elements = [lane[column] for lane in lanes]
        whole = sum(element << (modulus_bits * index) for index, element in enumerate(elements))
        expected = [(whole >> (bits * index)) & low_bits(bits) for index in range(count * modulus_bits // bits)]
        packed = pack_group(words(elements, bits), modulus_bits, bits)
        assert revealed(packed) == expected
        assert [int(word[column]) for word in machine] == expected


def word_at(whole: int, bits: int, byte: int) -> Word:
    return Word(whole >> 8 * byte, bits)


@MODULI
def test_unpacking_runs_on_words_that_reveal_nothing(modulus_bits: int) -> None:
    bits = Ring(modulus_bits).word_bits
    lanes = columns(LANES, bits, modulus_bits)
    for column in range(LANE_LENGTH):
        elements = [lane[column] for lane in lanes]
        whole = sum(element << (modulus_bits * index) for index, element in enumerate(elements))
        for behind in (0, low_bits(2 * bits)):
            followed = whole | behind << (LANES * modulus_bits)
            assert revealed(unpack_lanes(partial(word_at, followed, bits), modulus_bits, bits)) == elements


def a_kernel_that_branches(word: Any, modulus_bits: int) -> Any:
    return word - (1 << modulus_bits) if word >> (modulus_bits - 1) else word


TABLE: dict[int, int] = {0: 1, 1: 0}
PLANTED: dict[str, Callable[[Any, int], Any]] = {
    "branches": a_kernel_that_branches,
    "compares": lambda word, modulus_bits: (word >= 1 << (modulus_bits - 1)) * word,
    "compares for equality": lambda word, _: [word == value for value in range(4)],
    "indexes": lambda word, modulus_bits: operator.index(word) + modulus_bits,
    "looks up": lambda word, _: TABLE[word],
    "counts": lambda word, _: sum(1 for _ in range(word)),
    "leaves the words": lambda word, modulus_bits: int(word) % (1 << modulus_bits),
    "names a dtype": lambda word, _: np.asarray(word, dtype=np.uint64),
    "prints": lambda word, _: f"{word}",
}


@pytest.mark.parametrize("kernel", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_kernel_that_asks_for_the_value_is_caught(kernel: Callable[[Any, int], Any]) -> None:
    with pytest.raises(DataDependenceError):
        kernel(Word(1, 8), 2)


UNDEFINED: dict[str, Callable[[Any], Any]] = {
    "a left shift by the whole word": lambda word: word << 8,
    "a negative shift": lambda word: word >> -1,
    "a shift by data": lambda word: word << word,
    "a shift by a machine word": lambda word: word >> np.int64(1),
    "a constant of nine bits": lambda word: word & 256,
    "a negative constant": lambda word: word + -1,
    "a constant with a dtype": lambda word: word - np.uint8(1),
    "a float": lambda word: word + 1.0,
    "a word of another size": lambda word: word & Word(1, 16),
}


@pytest.mark.parametrize("step", UNDEFINED.values(), ids=UNDEFINED.keys())
def test_a_planted_step_that_machine_words_do_not_define_is_caught(step: Callable[[Any], Any]) -> None:
    with pytest.raises(AssertionError):
        step(Word(1, 8))
