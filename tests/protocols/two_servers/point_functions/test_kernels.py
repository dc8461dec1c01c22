"""The kernels run on words that refuse to be looked at, and keep the invariant of the tree."""

from typing import Any

import numpy as np
import pytest

from secagg.protocols.two_servers.point_functions.lanes import field_correction, ring_correction
from secagg.protocols.two_servers.point_functions.shares import (
    control_bits,
    control_bits_in,
    correction_of,
    feed_forward_into,
    grow_into,
    kept_child,
    masked,
    masked_in,
    root_into,
    select,
    spread,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.hidden_words import Word

SAMPLES = 64


def drawn(name: str, bits: int = 64, below: int | None = None) -> list[int]:
    data = bytes(InsecureSeededCoins(name.encode()).draw(8 * SAMPLES))
    values = [int.from_bytes(data[at : at + 8], "little") >> (64 - bits) for at in range(0, len(data), 8)]
    return [value % below for value in values] if below else values


def both_ways(kernel: Any, arguments: list[list[int]], bits: int, *constants: int) -> list[list[int]]:
    """Run a kernel on hidden words and on an array, compare, and return what it gives."""

    def run(*words: Any) -> tuple[Any, ...]:
        result: Any = kernel(*words, *constants)
        return (result,) if type(result) in (Word, np.ndarray) else (*result,)

    hidden = [run(*(Word(value, bits) for value in column)) for column in zip(*arguments, strict=True)]
    machine = run(*(np.array(argument, dtype=f"<u{bits // 8}") for argument in arguments))
    columns = [[word.revealed for word in column] for column in zip(*hidden, strict=True)]
    assert columns == [array.tolist() for array in machine]
    return columns


@pytest.mark.parametrize("kernel", [control_bits, spread], ids=lambda kernel: kernel.__name__)
def test_kernels_of_one_word_run_on_words_that_reveal_nothing(kernel: Any) -> None:
    values = drawn("one", below=2) if kernel is spread else drawn("one")
    result = both_ways(kernel, [values], 64)[0]
    expected = {
        "control_bits": [value & 1 for value in values],
        "spread": [value * ((1 << 64) - 1) for value in values],
    }
    assert result == expected[kernel.__name__]


@pytest.mark.parametrize("control", [0, 1])
def test_a_root_has_its_servers_control_bits(control: int) -> None:
    values = drawn("root")
    assert both_ways(root_into, [values], 64, control)[0] == [value & ~1 | control for value in values]


def test_memory_that_is_kept_holds_what_the_kernels_give() -> None:
    memory = np.zeros((2, SAMPLES // 2), dtype="<u8")
    nodes, correction = (np.array(drawn(name), dtype="<u8") for name in ("nodes", "correction"))
    control = control_bits_in(memory, nodes.reshape(2, -1))
    assert (control == control_bits(nodes).reshape(2, -1)).all()
    row = correction[: SAMPLES // 2]
    assert (masked_in(np.ones_like(memory), control, row) == masked(control, row)).all()


def test_selection_and_masking_run_on_words_that_reveal_nothing() -> None:
    zero, one, bit = drawn("zero"), drawn("one"), drawn("bit", below=2)
    chosen = both_ways(select, [zero, one, bit], 64)[0]
    assert chosen == [y if b else x for x, y, b in zip(zero, one, bit, strict=True)]
    assert both_ways(masked, [bit, one], 64)[0] == [x * b for x, b in zip(one, bit, strict=True)]
    assert both_ways(feed_forward_into, [zero, one], 64)[0] == [x ^ y for x, y in zip(zero, one, strict=True)]


def test_a_level_keeps_the_invariant_and_runs_on_words_that_reveal_nothing() -> None:
    """Off the path the children are equal; on it they differ in the control bit; the generator knows the one on it."""
    # Two nodes on the path, with control bits of which one is set.
    node_0 = drawn("node 0")
    node_1 = [(value & ~1) | (other & 1 ^ 1) for value, other in zip(drawn("node 1"), node_0, strict=True)]
    bit = drawn("bit", below=2)
    hashes = [drawn(f"hash {number}") for number in range(4)]

    def correction(a: Any, b: Any, c: Any, d: Any, goes_right: Any) -> Any:
        return correction_of((a, b), (c, d), goes_right)

    words = both_ways(correction, [*hashes, bit], 64)
    assert all(difference in (0, 1) for difference in words[1])

    def grown(node: Any, left: Any, right: Any, correct: Any, differ: Any) -> Any:
        control = control_bits(node)
        return grow_into(node, (left, right), control, masked(control, correct), differ)

    def kept(*words: Any) -> Any:
        node, left, right, correct, differ, goes_right = words
        return kept_child(node, (left, right), (correct, differ), goes_right)

    servers = list[list[list[int]]]()
    for node, pair in ((node_0, hashes[:2]), (node_1, hashes[2:])):
        permuted = [[x ^ y for x, y in zip(one, node, strict=True)] for one in pair]
        servers.append(both_ways(grown, [node, *permuted, *words], 64))
        on_path = both_ways(kept, [node, *pair, *words, bit], 64)[0]
        assert on_path == [children[b] for b, *children in zip(bit, *servers[-1], strict=True)]
    for sample, goes_right in enumerate(bit):
        lost = [server[1 - goes_right][sample] for server in servers]
        assert lost[0] == lost[1]
        stays = [server[goes_right][sample] for server in servers]
        assert (stays[0] ^ stays[1]) & 1
        assert stays[0] >> 1 != stays[1] >> 1


@pytest.mark.parametrize("bits", [7, 8, 13, 17, 32])
def test_the_rings_correction_runs_on_words_that_reveal_nothing(bits: int) -> None:
    word = next(size for size in (8, 16, 32) if size >= bits)
    target, one, other = (drawn(name, bits) for name in ("target", "one", "other"))
    negative = [value * ((1 << word) - 1) for value in drawn("sign", below=2)]
    result = both_ways(ring_correction, [target, one, other, negative], word, bits)[0]
    signs = [-1 if value else 1 for value in negative]
    assert result == [s * (t - x + y) % (1 << bits) for s, t, x, y in zip(signs, target, one, other, strict=True)]


@pytest.mark.parametrize("bits", [7, 13, 17])
def test_the_fields_correction_runs_on_words_that_reveal_nothing(bits: int) -> None:
    word, modulus = {7: 8, 13: 16, 17: 32}[bits], (1 << bits) - 1
    target, one, other = ([0, modulus - 1, *drawn(name, below=modulus)[2:]] for name in ("target", "one", "other"))
    negative = [value * ((1 << word) - 1) for value in drawn("sign", below=2)]
    result = both_ways(field_correction, [target, one, other, negative], word, bits)[0]
    signs = [-1 if value else 1 for value in negative]
    assert result == [s * (t - x + y) % modulus for s, t, x, y in zip(signs, target, one, other, strict=True)]
