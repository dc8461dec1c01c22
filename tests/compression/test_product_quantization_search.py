"""Blocks: how tensors are cut, how many codewords they get, and the search for the nearest, against exact distances."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.product_quantization import (
    CHUNK_BLOCKS,
    block_geometry,
    block_size,
    codeword_count,
    is_quantizable,
    nearest_codewords,
)
from secagg.errors import InvalidParameters

Floats = npt.NDArray[np.floating[Any]]
SPARE = 2.0**-17
"""Precision of a gain that the index bits may take."""


def spread(rows: int, size: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return normally distributed rows."""
    return np.random.default_rng(seed).standard_normal((rows, size), dtype=np.float32)


def squared_distances(blocks: Floats, codewords: Floats) -> npt.NDArray[np.float64]:
    """Return the distances without cancellation, with a block in each row and a codeword in each column."""
    wide = [array.astype(np.float64) for array in (blocks, codewords)]
    return np.stack([np.square(wide[0] - codeword).sum(axis=1) for codeword in wide[1]], axis=1)


def require_nearest(blocks: Floats, codewords: Floats) -> None:
    (found,) = nearest_codewords(blocks, [codewords])
    distances = squared_distances(blocks, codewords)
    chosen, least = distances[np.arange(len(blocks)), found], distances.min(axis=1)
    shortest = np.square(codewords.astype(np.float64)).sum(axis=1).argmin()
    lengths = np.sqrt(np.square(blocks.astype(np.float64)).sum(axis=1))
    longest = np.sqrt(np.square(codewords.astype(np.float64)).sum(axis=1)).max()
    rounding = 4 * (blocks.shape[1] + 3) * 2.0**-24 * np.square(lengths + longest)
    assert (chosen <= least + SPARE * distances[:, shortest] + rounding).all()


@pytest.mark.parametrize("codewords", [1, 2, 3, 63, 64, 65, 100, 128, 129, 1000])
@pytest.mark.parametrize("size", [1, 2, 18])
def test_the_codeword_found_is_nearest_up_to_the_bound(codewords: int, size: int) -> None:
    require_nearest(spread(700, size), spread(codewords, size, seed=1))


@pytest.mark.parametrize("rows", [0, 1, CHUNK_BLOCKS - 1, CHUNK_BLOCKS, CHUNK_BLOCKS + 1, 2 * CHUNK_BLOCKS + 1])
def test_chunks_of_every_length_are_searched_alike(rows: int) -> None:
    blocks, codewords = spread(20000, 3)[:rows], spread(70, 3, seed=1)
    (found,) = nearest_codewords(blocks, [codewords])
    one_by_one = [nearest_codewords(blocks[at : at + 1], [codewords])[0] for at in range(0, rows, 997)]
    assert len(found) == rows
    assert found[::997].tolist() == [int(index) for (index,) in one_by_one]
    if rows:
        require_nearest(blocks, codewords)


@given(st.data())
def test_multiples_of_an_eighth_are_searched_exactly_and_ties_go_to_the_lower_index(data: st.DataObject) -> None:
    # Every product and every sum is a float32, and two different distances differ by far more than a 2^-17th.
    eighths = st.integers(-16, 16).map(lambda number: number / 8)
    size = data.draw(st.integers(1, 3))
    codewords = data.draw(arrays(np.float32, (data.draw(st.integers(1, 140)), size), elements=eighths))
    blocks = data.draw(arrays(np.float32, (4, size), elements=eighths))
    expected = squared_distances(blocks, codewords).argmin(axis=1)
    assert nearest_codewords(blocks, [codewords])[0].tolist() == expected.tolist()


def test_equal_codewords_far_apart_in_the_codebook_are_a_tie() -> None:
    codewords = np.zeros((300, 2), dtype=np.float32)
    codewords[[5, 70, 299]] = 1.0
    assert nearest_codewords(np.ones((3, 2)), [codewords])[0].tolist() == [5, 5, 5]
    assert nearest_codewords(np.full((1, 2), 0.5), [codewords])[0].tolist() == [0]


def test_one_codeword_far_out_costs_the_others_no_accuracy() -> None:
    for outlier in (0, 3):
        codewords = np.array([[1.0], [1.001], [1.002], [1.003], [-1.0]])
        codewords[outlier] = 1e6
        blocks = np.array([[0.9999], [1.0011], [1.0019], [1.0031], [-5.0]])
        expected = squared_distances(blocks, codewords).argmin(axis=1).tolist()
        assert nearest_codewords(blocks, [codewords])[0].tolist() == expected


@pytest.mark.parametrize("exponent", [-146, -140, -100, -30, 0, 30, 47])
def test_neither_small_nor_large_codebooks_lose_a_distance(exponent: int) -> None:
    eighths = (np.arange(-7, 8, dtype=np.float64) / 8)[:, None]
    codewords, blocks = np.ldexp(eighths[::2], exponent), np.ldexp(eighths, exponent)
    found = nearest_codewords(blocks.astype(np.float32), [codewords.astype(np.float32)])[0]
    # Halfway between two codewords the lower index wins.
    assert found.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]


def test_every_float_type_and_memory_order_gives_the_same_indices() -> None:
    blocks = spread(500, 6).astype(np.float16)
    codewords = spread(30, 6, seed=1)
    (expected,) = nearest_codewords(blocks.astype(np.float32), [codewords])
    for dtype in ("<f2", ">f2", ">f4", "<f8", "g"):
        assert nearest_codewords(blocks.astype(dtype), [codewords])[0].tolist() == expected.tolist()
    for view in (np.asfortranarray(blocks), np.repeat(blocks, 2, axis=1)[:, ::2], blocks[::-1].copy()[::-1]):
        assert nearest_codewords(view, [codewords])[0].tolist() == expected.tolist()


def test_each_stage_searches_what_those_before_it_leave_over() -> None:
    blocks, stages = spread(9000, 4), [spread(count, 4, seed=count) / count for count in (16, 70, 5)]
    found = nearest_codewords(blocks, stages)
    left = blocks.astype(np.float64)
    for codewords, indices in zip(stages, found, strict=True):
        alone = nearest_codewords(left, [codewords])[0]
        assert (alone != indices).mean() < 1e-3
        left = left - codewords[indices]


def test_indices_have_the_smallest_word_that_holds_them() -> None:
    words = [nearest_codewords(spread(3, 1), [spread(count, 1)])[0].dtype for count in (2, 256, 257)]
    assert words == [np.dtype("<u1"), np.dtype("<u1"), np.dtype("<u2")]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**61, 3e38, -1e300])
@pytest.mark.parametrize("place", [0, CHUNK_BLOCKS - 1, CHUNK_BLOCKS, 8999])
def test_a_value_that_is_not_finite_or_far_too_large_is_clamped_wherever_it_stands(bad: float, place: int) -> None:
    blocks, clamped = np.zeros((9000, 2)), np.zeros((9000, 2))
    blocks[place, 1], clamped[place, 1] = bad, np.clip(np.nan_to_num(bad), -(2.0**40), 2.0**40)
    (found,), (due,) = (nearest_codewords(each, [spread(8, 2)]) for each in (blocks, clamped))
    assert np.array_equal(found, due)


def test_rows_of_gains_are_no_multiple_of_a_page() -> None:
    """Rows that begin at the same offset of their pages share a few sets of the first-level cache."""
    assert (CHUNK_BLOCKS * np.dtype(np.float32).itemsize) % 4096
    assert np.getbufsize() // 2 < CHUNK_BLOCKS


SHAPES = st.lists(st.integers(1, 40), min_size=2, max_size=4)


@given(SHAPES, st.integers(1, 100))
def test_no_larger_block_up_to_the_request_divides_a_row(shape: list[int], requested: int) -> None:
    size, row = block_size(shape, requested), prod(shape[1:])
    assert row % size == 0
    assert 1 <= size <= requested
    assert not [larger for larger in range(size + 1, requested + 1) if row % larger == 0]


def test_the_codewords_are_capped_by_the_power_of_two_in_a_quarter_of_the_blocks() -> None:
    for blocks in range(8, 2000):
        cap = max(2**power for power in range(12) if 2**power <= blocks // 4)
        for requested in (2, 3, 100, cap, cap + 1, 1 << 16):
            assert codeword_count(blocks, requested) == min(requested, cap)


@pytest.mark.parametrize(
    ("shape", "requested", "expected"),
    [
        ((), 4, False),
        ((1000,), 4, False),
        ((1, 4), 1, False),
        ((3, 3), 1, False),
        ((2, 5), 1, True),
        ((7, 4), 4, False),
        ((7, 4), 2, True),
        ((8, 4), 4, True),
        ((2, 288), 100, False),
    ],
)
def test_small_tensors_are_not_quantized(shape: tuple[int, ...], requested: int, expected: bool) -> None:  # noqa: FBT001
    assert is_quantizable(shape, requested) is expected


@given(SHAPES, st.integers(1, 100))
def test_what_is_quantizable_has_a_geometry_of_at_least_two_codewords(shape: list[int], requested: int) -> None:
    if is_quantizable(shape, requested):
        assert block_geometry(shape, requested, 64).codewords >= 2
    elif prod(shape) >= 10:
        with pytest.raises(InvalidParameters, match="blocks"):
            block_geometry(shape, requested, 64)


@pytest.mark.parametrize(
    ("shape", "requested", "codewords"),
    [
        ((64,), 4, 8),
        ((), 4, 8),
        ((64, 0), 4, 8),
        ((64, -8), 4, 8),
        ((64, 8.0), 4, 8),
        ((True, 64), 4, 8),
        ((64, 8), 0, 8),
        ((64, 8), -4, 8),
        ((64, 8), 4.0, 8),
        ((64, 8), 4, 1),
        ((64, 8), 4, 0),
        ((64, 8), 4, 8.0),
        ((7, 4), 4, 8),
    ],
    ids=repr,
)
def test_what_has_no_geometry_is_refused(shape: Any, requested: Any, codewords: Any) -> None:
    with pytest.raises(InvalidParameters):
        block_geometry(shape, requested, codewords)
