"""Sensitivities against every pair of neighbours of small sets of clients, and at the edges of the words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.errors import InvalidParameters, Misuse
from secagg.privacy import accounting
from secagg.privacy.accounting import Adjacency, of_decoded_sum, of_histogram, of_vector

Table = npt.NDArray[np.int64]
Contribution = tuple[int, ...]
"""One client's contribution to the release."""

ADJACENCIES = pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda adjacency: adjacency.name.lower())
TABLES = (
    [[0, 0], [3, -1], [-2, 4]],
    [[5, 5], [5, 5]],
    [[7, 1], [8, 1], [6, 2], [7, 3]],
    [[-4, 0], [4, 0], [0, 1], [0, -1]],
)
OTHERS = 1
"""Clients in addition to the differing one: their number does not matter, which is checked."""


def table(rows: Sequence[Sequence[int]]) -> Table:
    return np.array(rows, dtype=np.int64)


def greatest_move(contributions: Iterable[Contribution], adjacency: Adjacency) -> int:
    """Return the maximum squared distance of the sums of two neighbouring sets, over all sets."""
    possible = sorted(set(contributions))
    zeros = (0,) * len(possible[0])

    def sums(choices: Iterable[Sequence[Contribution]]) -> Iterator[Contribution]:
        return (tuple(sum(parts) for parts in zip(*choice, strict=True)) for choice in choices)

    greatest = 0
    for others in product(possible, repeat=OTHERS):
        neighbours = [zeros] if adjacency is Adjacency.ZERO_OUT else possible
        left = list(sums((*others, mine) for mine in possible))
        right = list(sums((*others, mine) for mine in neighbours))
        distances = (sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in product(left, right))
        greatest = max(greatest, *distances)
    return greatest


def one_hot(choice: Sequence[int], codewords: int) -> Contribution:
    return tuple(int(index == codeword) for index in choice for codeword in range(codewords))


def decoded(choice: Sequence[int], rows: Sequence[Sequence[int]]) -> Contribution:
    return tuple(entry for index in choice for entry in rows[index])


@ADJACENCIES
@pytest.mark.parametrize("l2_bound", [1, 2, 5])
def test_a_vector_moves_a_sum_by_its_norm_or_by_twice_that(l2_bound: int, adjacency: Adjacency) -> None:
    reach = range(-l2_bound, l2_bound + 1)
    vectors = [(x, y) for x, y in product(reach, reach) if x * x + y * y <= l2_bound**2]
    assert of_vector(l2_bound, adjacency) == greatest_move(vectors, adjacency)


@ADJACENCIES
@pytest.mark.parametrize(("blocks", "codewords"), [(1, 2), (1, 5), (2, 3), (3, 2)])
def test_choices_move_one_or_two_counters_of_each_block(blocks: int, codewords: int, adjacency: Adjacency) -> None:
    choices = product(range(codewords), repeat=blocks)
    moved = greatest_move((one_hot(choice, codewords) for choice in choices), adjacency)
    assert of_histogram(blocks, adjacency) == moved


@ADJACENCIES
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("rows", TABLES)
def test_choices_move_a_decoded_sum_by_the_longest_codeword_or_the_farthest_two(
    rows: list[list[int]], blocks: int, adjacency: Adjacency
) -> None:
    choices = product(range(len(rows)), repeat=blocks)
    moved = greatest_move((decoded(choice, rows) for choice in choices), adjacency)
    assert of_decoded_sum([(blocks, table(rows))], adjacency) == moved


@ADJACENCIES
def test_tables_of_several_runs_of_blocks_add_up(adjacency: Adjacency) -> None:
    rows, others = TABLES[0], TABLES[2]
    choices = product(range(len(rows)), range(len(rows)), range(len(others)))
    contributions = (decoded(choice[:2], rows) + decoded(choice[2:], others) for choice in choices)
    moved = greatest_move(contributions, adjacency)
    assert of_decoded_sum([(2, table(rows)), (1, table(others))], adjacency) == moved


def test_equal_codewords_hide_a_replacement_and_not_an_absence() -> None:
    same = [(3, table(TABLES[1]))]
    assert of_decoded_sum(same, Adjacency.REPLACE) == 0
    assert of_decoded_sum(same, Adjacency.ZERO_OUT) == 3 * 50


@pytest.mark.parametrize("scale", [1, 1 << 12, 1 << 26, 1 << 28])
def test_many_codewords_are_compared_exactly_in_floats_and_in_integers(
    monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    rng = np.random.default_rng(7)
    rows = rng.integers(-scale, scale + 1, size=(301, 3))
    expected = max(
        sum((a - b) ** 2 for a, b in zip(left, right, strict=True)) for left, right in product(rows.tolist(), repeat=2)
    )
    assert of_decoded_sum([(1, rows)], Adjacency.REPLACE) == expected
    monkeypatch.setattr(accounting, "_PAIRS_AT_A_TIME", 1000)
    assert of_decoded_sum([(1, rows)], Adjacency.REPLACE) == expected


@pytest.mark.parametrize("largest", [(1 << 26) + 1, (1 << 29) - 1])
def test_distances_that_floats_would_round_are_exact(largest: int) -> None:
    rows = table([[largest, 1, 0], [-largest, 0, 1], [-largest, 0, 2]])
    assert of_decoded_sum([(1, rows)], Adjacency.REPLACE) == 4 * largest**2 + 5
    assert of_decoded_sum([(1, rows)], Adjacency.ZERO_OUT) == largest**2 + 4


def test_the_farthest_pair_is_found_in_every_position() -> None:
    rows = np.zeros((4096, 2), dtype=np.int64)
    for left, right in [(0, 4095), (255, 256), (1000, 1001), (4094, 4095), (0, 1)]:
        rows[left], rows[right] = (100, 7), (-100, 3)
        assert of_decoded_sum([(1, rows)], Adjacency.REPLACE) == 200**2 + 4**2
        rows[[left, right]] = 0


def test_sensitivities_are_integers_of_any_size() -> None:
    rows = table([[1 << 29, 0], [-(1 << 29), 0]])
    blocks = 1 << 39
    assert of_decoded_sum([(blocks, rows)], Adjacency.REPLACE) == blocks * (1 << 60)
    assert of_vector((1 << 40) - 1, Adjacency.REPLACE) == (2 * ((1 << 40) - 1)) ** 2
    assert type(of_decoded_sum([(blocks, rows)], Adjacency.ZERO_OUT)) is int


def test_entries_whose_distances_leave_the_word_are_refused() -> None:
    limit = 1_073_741_823  # 2 (2^30 - 1) squared, twice, is just below 2^63.
    assert of_decoded_sum([(1, table([[limit, limit], [-limit, -limit]]))], Adjacency.REPLACE) == 8 * limit**2
    for rows in ([[limit + 1, 0], [0, 0]], [[-limit - 1, 0], [0, 0]], [[np.iinfo(np.int64).min, 0], [0, 0]]):
        with pytest.raises(InvalidParameters, match="coarser grid"):
            of_decoded_sum([(1, table(rows))], Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2)), np.zeros(4, dtype=np.int64), np.zeros((0, 2), dtype=np.int64), [[1]]]
)
def test_tables_of_another_form_are_refused(bad: Any) -> None:
    with pytest.raises(Misuse):
        of_decoded_sum([(1, bad)], Adjacency.REPLACE)


def test_nothing_that_counts_moves_nothing() -> None:
    assert of_vector(0, Adjacency.REPLACE) == of_histogram(0, Adjacency.REPLACE) == 0


@pytest.mark.parametrize("of", [of_vector, of_histogram])
def test_numbers_below_zero_and_of_other_types_are_refused(of: Callable[..., int]) -> None:
    for given in (-1, 1.0, True):
        with pytest.raises(InvalidParameters, match="an integer of at least 0"):
            of(given, Adjacency.REPLACE)
    with pytest.raises(Misuse):
        of(1, 2)
