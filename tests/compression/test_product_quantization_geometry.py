"""How tensors are cut into blocks and how many codewords they get: the rules, by rows and by exhaustion."""

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.compression.product_quantization import (
    block_geometry,
    block_size,
    codeword_count,
    is_quantizable,
)
from secagg.errors import InvalidParameters

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
