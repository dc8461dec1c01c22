"""Codebooks: their grid and encoding, k-means, and its sample."""

import hashlib
import struct
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.product_quantization import Codebook, learn_codewords, nearest_codewords, sample_blocks
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason

SEED = bytes(range(32))
Floats = npt.NDArray[np.floating[Any]]


def clouds(centres: Floats, each: int, radius: float) -> npt.NDArray[np.float64]:
    """Return normally distributed points around every centre."""
    noise = np.random.default_rng(0).standard_normal((len(centres), each, centres.shape[1]))
    return (centres[:, None] + radius * noise).reshape(-1, centres.shape[1])


def squared_error(blocks: Floats, codewords: Floats) -> float:
    return float(np.square(blocks - codewords[nearest_codewords(blocks, [codewords])[0]]).sum())


def in_order(codewords: Floats) -> list[list[float]]:
    return sorted(codewords.tolist())


@pytest.mark.parametrize("seed", [bytes([number]) * 32 for number in range(10)])
def test_as_many_constant_groups_as_codewords_are_found(seed: bytes) -> None:
    groups = np.repeat([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], 100, axis=0)
    assert in_order(learn_codewords(groups, 3, seed=seed, keep_zero=False)) == [[1, 1], [2, 2], [3, 3]]
    assert in_order(learn_codewords(groups, 4, seed=seed)) == [[0, 0], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("keep_zero", [True, False])
def test_every_codeword_is_the_nearest_of_some_blocks(keep_zero: bool) -> None:  # noqa: FBT001
    # Most blocks are close together, so many of the first codewords lose their blocks to others.
    blocks = np.concatenate([clouds(np.array([[1.0, 1.0]]), 5000, 0.01), clouds(np.eye(2) * 50, 50, 9.0)])
    for number in range(5):
        found = learn_codewords(blocks, 64, seed=bytes([number]) * 32, iterations=3, keep_zero=keep_zero)
        assert np.bincount(nearest_codewords(blocks, [found])[0], minlength=64)[1:].all()


def test_the_zero_codeword_is_the_first_and_stays_exactly_zero() -> None:
    blocks = clouds(np.array([[0.2, 0.2], [5.0, 5.0]]), 200, 0.1)
    found = learn_codewords(blocks, 2, seed=SEED)
    assert found[0].tolist() == [0, 0]
    assert np.abs(found[1] - 5).max() < 0.1
    assert learn_codewords(blocks, 2, seed=SEED, keep_zero=False).all()


def test_fewer_values_than_codewords_leave_zeros() -> None:
    blocks = np.repeat([[1.0], [-2.0]], 50, axis=0)
    assert in_order(learn_codewords(blocks, 6, seed=SEED)) == [[-2], [0], [0], [0], [0], [1]]
    assert in_order(learn_codewords(np.zeros((10, 1)), 3, seed=SEED, keep_zero=False)) == [[0], [0], [0]]


def test_improving_lowers_the_error() -> None:
    blocks = np.random.default_rng(0).standard_normal((4000, 4))
    errors = [
        squared_error(blocks, learn_codewords(blocks, 16, seed=SEED, iterations=iterations))
        for iterations in (1, 3, 20)
    ]
    assert errors[0] > errors[1] > errors[2]
    # A normal distribution in four dimensions cannot be coded in four bits with less than the distortion 2^-2.
    assert 0.25 < errors[2] / np.square(blocks).sum() < 0.35


def test_a_codeword_of_one_iteration_is_the_mean_of_what_is_nearest_to_where_it_was() -> None:
    blocks = np.random.default_rng(0).standard_normal((500, 3))
    start = blocks[:8]
    found = learn_codewords(blocks, 8, seed=SEED, iterations=1, start=start, keep_zero=False)
    nearest = np.square(blocks[:, None] - start[None]).sum(axis=2).argmin(axis=1)
    expected = np.stack([blocks[nearest == codeword].mean(axis=0) for codeword in range(8)])
    assert np.abs(found - expected).max() < 1e-6


def test_a_warm_start_keeps_the_order_of_the_codewords() -> None:
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    found = learn_codewords(clouds(centres, 50, 0.1), 4, seed=SEED, start=centres[[0, 3, 1, 2]] + 0.5)
    assert np.abs(found - centres[[0, 3, 1, 2]]).max() < 0.2


def test_a_start_from_another_order_of_magnitude_does_no_harm() -> None:
    blocks = np.ldexp(np.repeat([[1.0], [2.0]], 25, axis=0), -100)
    found = learn_codewords(blocks, 3, seed=SEED, start=np.array([[0.0], [1e30], [-1e300]]))
    assert in_order(found) == np.ldexp([[0.0], [1.0], [2.0]], -100).tolist()


@pytest.mark.parametrize("keep_zero", [True, False])
def test_an_empty_codeword_of_the_start_is_put_where_blocks_are(keep_zero: bool) -> None:  # noqa: FBT001
    blocks = np.repeat([[1.0], [2.0], [3.0], [4.0]], 25, axis=0)
    start = np.array([[0.0], [100.0], [2.5], [100.0], [-50.0]])
    found = learn_codewords(blocks, 5, seed=SEED, start=start, keep_zero=keep_zero)
    assert {1.0, 2.0, 3.0, 4.0} <= {value for (value,) in found.tolist()}


def test_a_start_far_from_zero_is_pulled_to_the_zero_codeword() -> None:
    found = learn_codewords(np.ones((20, 2)), 2, seed=SEED, start=np.full((2, 2), 7.0))
    assert found.tolist() == [[0, 0], [1, 1]]
    once = learn_codewords(np.array([[1.0], [1.0], [4.0]]), 2, seed=SEED, start=np.array([[3.9], [1.0]]), iterations=1)
    assert once.tolist() == [[0], [2]]


@pytest.mark.parametrize("exponent", [-300, -140, -60, 60, 120, 900])
def test_neither_small_nor_large_blocks_are_lost(exponent: int) -> None:
    blocks = np.ldexp(np.repeat([[1.0], [-2.0], [3.0]], 20, axis=0), exponent)
    found = learn_codewords(blocks, 4, seed=SEED)
    assert in_order(found) == np.ldexp([[-2.0], [0.0], [1.0], [3.0]], exponent).tolist()


@pytest.mark.parametrize("seed", [bytes([number]) * 32 for number in range(20)])
def test_what_is_drawn_is_pinned_to_the_byte(seed: bytes) -> None:
    values = [0.25 * number**2 for number in range(1, 13)]

    def fraction(place: int) -> float:
        bound = b"secagg/1/codebook-seeding"
        for part in (seed, place.to_bytes(8, "big")):
            bound += len(part).to_bytes(4, "big") + part
        return (int.from_bytes(hashlib.shake_256(bound).digest(8), "little") >> 11) / 2**53

    drawn: list[float] = []
    for place in range(4):
        distances = [min(abs(value - taken) for taken in drawn) if drawn else 1.0 for value in values]
        target = fraction(place) * sum(distances)
        drawn.append(
            next(value for value, reached in zip(values, accumulate(distances), strict=True) if reached > target)
        )
    nearest = [min(range(4), key=lambda codeword: abs(value - drawn[codeword])) for value in values]
    expected = [np.mean([value for value, near in zip(values, nearest, strict=True) if near == at]) for at in range(4)]
    found = learn_codewords(np.array(values)[:, None], 4, seed=seed, iterations=1, keep_zero=False)
    assert np.abs(found[:, 0] - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"blocks": np.full((4, 2), np.nan)}, InvalidParameters),
        ({"blocks": np.full((4, 2), np.inf)}, InvalidParameters),
        ({"blocks": np.zeros(8)}, Misuse),
        ({"blocks": np.zeros((0, 2))}, Misuse),
        ({"blocks": np.zeros((4, 0))}, Misuse),
        ({"blocks": np.zeros((4, 2), dtype=int)}, Misuse),
        ({"blocks": [[0.0, 0.0]]}, Misuse),
        ({"codewords": 0}, InvalidParameters),
        ({"codewords": 2.0}, InvalidParameters),
        ({"iterations": 0}, InvalidParameters),
        ({"iterations": True}, InvalidParameters),
        ({"seed": bytes(16)}, InvalidParameters),
        ({"seed": "0" * 32}, InvalidParameters),
        ({"start": np.zeros((3, 2))}, InvalidParameters),
        ({"start": np.zeros((2, 3))}, InvalidParameters),
        ({"start": np.full((2, 2), np.nan)}, InvalidParameters),
        ({"start": np.full((2, 2), -np.inf)}, InvalidParameters),
    ],
    ids=repr,
)
def test_k_means_refuses_what_it_cannot_learn_from(
    changed: dict[str, Any], error: type[InvalidParameters | Misuse]
) -> None:
    arguments: dict[str, Any] = {"blocks": np.ones((4, 2)), "codewords": 2, "seed": SEED}
    learn_codewords(**arguments)
    with pytest.raises(error):
        learn_codewords(**(arguments | changed))


def test_the_sample_is_the_blocks_of_lowest_rank_in_their_order() -> None:
    blocks = np.arange(1.0, 101.0)[:, None]
    bound = b"secagg/1/codebook-sample" + len(SEED).to_bytes(4, "big") + SEED
    ranks = struct.unpack("<100Q", hashlib.shake_256(bound).digest(800))
    for count in (1, 10, 99):
        expected = sorted(sorted(range(100), key=lambda at: ranks[at])[:count])
        assert sample_blocks(blocks, count, seed=SEED)[:, 0].tolist() == [at + 1 for at in expected]


def test_zeros_are_left_out_where_a_zero_codeword_encodes_them() -> None:
    blocks = np.zeros((1000, 2))
    blocks[::100, 1] = np.arange(1.0, 11.0)
    assert sample_blocks(blocks, 50, seed=SEED).tolist() == blocks[::100].tolist()
    assert len(sample_blocks(blocks, 50, seed=SEED, without_zeros=False)) == 50
    assert sample_blocks(np.zeros((9, 2)), 5, seed=SEED).tolist() == [[0, 0]]


@pytest.mark.parametrize("count", [0, -1, 2.0])
def test_a_sample_of_none_is_refused(count: Any) -> None:
    with pytest.raises(InvalidParameters):
        sample_blocks(np.ones((4, 2)), count, seed=SEED)
    with pytest.raises(InvalidParameters):
        sample_blocks(np.ones((4, 2)), 2, seed=bytes(33))


@given(arrays(np.float32, (4, 3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_values_are_multiples_of_one_step_of_which_the_largest_has_less_than_two_to_the_24(values: Floats) -> None:
    grid = Codebook(values).values
    wide, given_values = grid.astype(np.float64), values.astype(np.float64)
    largest = np.abs(given_values).max()
    assert np.abs(wide).max() == largest
    step = np.ldexp(1.0, int(np.frexp(largest)[1]) - 24)
    assert (np.fmod(wide, step) == 0).all()
    assert (np.abs(wide) < 2**24 * step).all() or not largest
    assert (np.abs(wide - given_values) <= step / 2).all()
    assert (Codebook(grid).values == grid).all()


def test_a_codebook_is_a_copy_that_cannot_be_written_to() -> None:
    values = np.ones((2, 2), dtype=np.float32)
    codebook = Codebook(values)
    encoded = codebook.encode()
    values[:] = 7
    assert codebook.encode() == encoded
    with pytest.raises(ValueError, match="read-only"):
        codebook.values[0, 0] = 7
    assert (codebook.codewords, codebook.block_size, codebook.downlink_bytes) == (2, 2, 16)


def test_the_encoding_is_pinned_to_the_byte() -> None:
    codebook = Codebook(np.array([[0.0, 1.0], [-2.0, 0.5], [0.25, -0.0]]))
    expected = struct.pack(">II6f", 3, 2, 0.0, 1.0, -2.0, 0.5, 0.25, 0.0)
    assert codebook.encode() == expected
    assert Codebook.decode(expected).encode() == expected


GOOD = struct.pack(">II2f", 2, 1, 0.0, 1.0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.TRUNCATED),
        (GOOD[:7], Reason.TRUNCATED),
        (GOOD[:8], Reason.TRUNCATED),
        (GOOD[:-1], Reason.TRUNCATED),
        (GOOD + b"\0", Reason.TRAILING_BYTES),
        (struct.pack(">II", 2**32 - 1, 2**32 - 1), Reason.TRUNCATED),
        (struct.pack(">II", 0, 0), Reason.NOT_CANONICAL),
        (struct.pack(">II", 0, 5), Reason.NOT_CANONICAL),
        (struct.pack(">II", 5, 0), Reason.NOT_CANONICAL),
        (struct.pack(">2If", 1, 1, 1.0), Reason.NOT_CANONICAL),
        (struct.pack(">II2f", 2, 1, float("nan"), 1.0), Reason.NOT_CANONICAL),
        (struct.pack(">II2f", 2, 1, float("inf"), 1.0), Reason.NOT_CANONICAL),
        (struct.pack(">II2f", 2, 1, -0.0, 1.0), Reason.NOT_CANONICAL),
        (struct.pack(">II2f", 2, 1, 2.0**-25, 1.0), Reason.NOT_CANONICAL),
    ],
    ids=repr,
)
def test_bytes_that_no_codebook_encodes_to_are_refused(data: bytes, reason: Reason) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Codebook.decode(data)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.zeros(4), Misuse),
        (np.zeros((2, 2, 2)), Misuse),
        (np.zeros((2, 2), dtype=int), Misuse),
        ([[0.0], [1.0]], Misuse),
        (np.zeros((1, 2)), InvalidParameters),
        (np.zeros((2, 0)), InvalidParameters),
        (np.zeros((65537, 1)), InvalidParameters),
        (np.array([[0.0], [np.nan]]), InvalidParameters),
        (np.array([[0.0], [-np.inf]]), InvalidParameters),
        (np.array([[0.0], [1e39]]), InvalidParameters),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_codebook_is_refused(values: Any, error: type[InvalidParameters | Misuse]) -> None:
    with pytest.raises(error):
        Codebook(values)
