"""Product quantization of one tensor: the laws of the contract, exact sums of codewords, and calibration."""

import hashlib
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.product_quantization import Codebook, ProductQuantization, calibrate
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, ideal_aggregate, public_parameters_digest
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"nothing is drawn")
SEED = bytes(range(32))
CORNERS = Codebook(np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [0.5, -0.5]]))
FINE = Codebook(np.array([[0.0, 0.0], [0.125, 0.0], [0.0, 0.125], [-0.125, 0.0], [0.0, -0.125]]))
Floats = npt.NDArray[np.floating[Any]]


def scheme(shape: tuple[int, ...] = (3, 4), *codebooks: Codebook) -> ProductQuantization:
    return ProductQuantization(shape=shape, codebooks=codebooks or (CORNERS,))


def uniform(shape: tuple[int, ...], name: bytes = b"") -> npt.NDArray[np.float32]:
    """Return numbers in [-1, 1) that are the same in every run."""
    size = int(np.prod(shape))
    drawn = np.frombuffer(hashlib.shake_256(name).digest(4 * size), dtype="<i4")
    return np.ldexp(drawn.astype(np.float32), -31).reshape(shape)


def assignments(decoder: ProductQuantization, update: Floats, stage: int = 0) -> list[list[int]]:
    """Return the indices of a stage, row by row of the tensor."""
    indices: Any = decoder.encode(update, COINS).values[stage]
    return [[int(index) for index in row] for row in indices.reshape(decoder.shape[0], -1)]


def decoded(
    decoder: ProductQuantization, *updates: Floats, weights: list[int] | None = None
) -> npt.NDArray[np.float64]:
    payloads = [decoder.encode(update, COINS) for update in updates]
    return decoder.decode(ideal_aggregate(decoder.layout, payloads, weights))


def distance_to_the_nearest(update: Floats) -> npt.NDArray[np.float64]:
    """Bound the error of each coordinate by the distance of its block from the nearest of the corners."""
    blocks = update.reshape(-1, 1, 2).astype(np.float64)
    squares = np.square(blocks - CORNERS.values).sum(axis=2).min(axis=1)
    rounding = 2.0**-21 * (np.abs(blocks).max() + 1) ** 2
    lengths = np.square(blocks).sum(axis=(1, 2))
    return np.repeat(np.sqrt(squares + 2.0**-17 * lengths + rounding), 2).reshape(update.shape)


def tensors(*shape: int) -> st.SearchStrategy[Floats]:
    return st.sampled_from(["<f4", "<f8", "<f2", ">f4"]).flatmap(
        lambda dtype: arrays(np.dtype(dtype), shape, elements=st.floats(-2.0, 2.0, width=16))
    )


ONE_STAGE = Candidate(
    name="product_quantization",
    make=scheme,
    updates=tensors(3, 4),
    error=distance_to_the_nearest,
    bad_updates={
        "blocks in rows": np.zeros((6, 2)),
        "flattened": np.zeros(12),
        "integers": np.zeros((3, 4), dtype=int),
    },
    others={
        "another codebook": lambda: scheme((3, 4), Codebook(CORNERS.values * 1.5)),
        "codewords in another order": lambda: scheme((3, 4), Codebook(CORNERS.values[::-1])),
        "the last bit of a codeword": lambda: scheme((3, 4), Codebook(np.nextafter(CORNERS.values, np.float32(9)))),
        "as many blocks in another shape": lambda: scheme((1, 12)),
        "the same rows in three dimensions": lambda: scheme((3, 2, 2)),
        "a residual codebook": lambda: scheme((3, 4), CORNERS, FINE),
    },
    payload_bytes=2,
)
CONVOLUTION = Candidate(
    name="product_quantization_of_a_convolution",
    make=lambda: scheme((2, 2, 1, 3)),
    updates=tensors(2, 2, 1, 3),
    error=distance_to_the_nearest,
    others={"another shape": lambda: scheme((2, 1, 2, 3))},
    payload_bytes=2,
)
TWO_STAGES = Candidate(
    name="residual_product_quantization",
    make=lambda: scheme((3, 4), CORNERS, FINE),
    updates=tensors(3, 4),
    # The second stage has a zero codeword, so it never makes a block worse.
    error=distance_to_the_nearest,
    others={
        "stages in another order": lambda: scheme((3, 4), FINE, CORNERS),
        "one stage fewer": scheme,
        "one stage more": lambda: scheme((3, 4), CORNERS, FINE, FINE),
    },
    payload_bytes=2 + 3,
)


@pytest.mark.parametrize(("candidate", "law"), cases(ONE_STAGE, CONVOLUTION, TWO_STAGES), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_memory_order_and_byte_order_change_nothing() -> None:
    update = uniform((8, 3, 2, 2))
    decoder = scheme(update.shape)
    expected = assignments(decoder, update)
    assert len({index for row in expected for index in row}) == 4
    for same in (np.asfortranarray(update), update.astype(">f4"), update.astype(np.float64), update[::-1][::-1]):
        assert assignments(decoder, same) == expected


def test_the_second_stage_quantizes_what_the_first_leaves_over() -> None:
    update = np.array([[1.11, 1.0, 0.0, -0.1], [-1.0, -0.9, 0.4, -0.5]])
    decoder = scheme((2, 4), CORNERS, FINE)
    assert assignments(decoder, update) == [[1, 0], [2, 3]]
    assert assignments(decoder, update, stage=1) == [[1, 4], [2, 3]]
    expected = [[1.125, 1.0, 0.0, -0.125], [-1.0, -0.875, 0.375, -0.5]]
    assert decoded(decoder, update).tolist() == expected


def test_encoding_takes_half_the_memory_of_the_update_at_most() -> None:
    update = np.zeros((1024, 2048), dtype=np.float32)
    codebooks = (Codebook(uniform((64, 8))), Codebook(uniform((64, 8), b"second")))
    decoder = scheme(update.shape, *codebooks)
    tracemalloc.start()
    try:
        decoder.encode(update, COINS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= update.nbytes / 2


@given(st.data())
def test_a_sum_of_codewords_is_exact_up_to_the_capacity(data: st.DataObject) -> None:
    values = data.draw(arrays(np.float32, (5, 3), elements=st.floats(-1e3, 1e3, width=32)))
    decoder = scheme((2, 6), Codebook(values))
    total = data.draw(st.integers(1, decoder.capacity))
    cuts = data.draw(arrays(np.int64, (decoder.blocks, 4), elements=st.integers(0, total)))
    edges = np.hstack([np.zeros((4, 1), dtype=np.int64), np.sort(cuts, axis=1), np.full((4, 1), total)])
    histogram = np.diff(edges, axis=1).astype(np.uint64)
    sums = decoder.decode(Aggregate(decoder.layout, (histogram,), total)).reshape(-1, 3)
    grid = decoder.codebooks[0].values.tolist()
    for block, row in zip(sums.tolist(), histogram.tolist(), strict=True):
        expected = [
            sum(count * Fraction(codeword[at]) for count, codeword in zip(row, grid, strict=True)) for at in range(3)
        ]
        assert [Fraction(value) for value in block] == expected


def test_the_version_is_the_digest_of_shape_and_codebooks() -> None:
    numbers = b"".join(number.to_bytes(8, "big") for number in (2, 3, 4, 2))
    encoded = numbers + CORNERS.encode() + FINE.encode()
    version = public_parameters_digest("product_quantization", encoded)
    assert scheme((3, 4), CORNERS, FINE).layout.version == version


def relative_error(decoder: ProductQuantization, update: Floats) -> float:
    return float(np.square(decoded(decoder, update) - update).sum() / np.square(update).sum())


def test_what_no_client_touched_is_decoded_as_zeros() -> None:
    sample = uniform((64, 16)) + np.float32(3)
    for stages in (1, 2):
        learned = calibrate(sample, block_size=4, codewords=16, seed=SEED, stages=stages)
        zeros = np.zeros(sample.shape)
        assert not decoded(learned, zeros, zeros).any()
    without = calibrate(sample, block_size=4, codewords=16, seed=SEED, keep_zero=False)
    assert decoded(without, np.zeros(sample.shape)).all()


def test_a_sample_of_zeros_gives_a_codebook_of_zeros() -> None:
    learned = calibrate(np.zeros((16, 8)), block_size=4, codewords=4, seed=SEED, stages=2)
    assert not any(codebook.values.any() for codebook in learned.codebooks)
    assert not decoded(learned, uniform((16, 8))).any()


def test_few_touched_rows_get_all_codewords_but_the_zero() -> None:
    sample = np.zeros((5000, 8), dtype=np.float32)
    sample[[17, 900, 4321]] = uniform((3, 8)) + np.float32(2)
    learned = calibrate(sample, block_size=4, codewords=8, seed=SEED)
    assert relative_error(learned, sample) < 1e-12


def test_a_second_stage_and_more_codewords_lower_the_error() -> None:
    sample = uniform((64, 64))
    errors = [
        relative_error(calibrate(sample, block_size=4, codewords=codewords, seed=SEED, stages=stages), sample)
        for codewords, stages in ((4, 1), (16, 1), (16, 2), (16, 3))
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 4


def test_a_refresh_begins_where_the_codebooks_were() -> None:
    sample = uniform((64, 64))
    cold = calibrate(sample, block_size=4, codewords=16, seed=SEED, iterations=1, stages=2)
    warm = calibrate(sample, block_size=4, codewords=16, seed=SEED, iterations=1, stages=2, previous=cold)
    assert warm.layout != cold.layout
    for before, after in zip(cold.codebooks[:1], warm.codebooks[:1], strict=True):
        # Every codeword moved a little, and none swapped places.
        gaps = np.square(before.values[:, None] - after.values[None]).sum(axis=2)
        assert gaps.argmin(axis=1).tolist() == list(range(16))
    assert relative_error(warm, sample) < relative_error(cold, sample)


def test_a_sample_of_any_float_type_is_learned_from_and_left_as_it_was() -> None:
    sample = uniform((32, 32)).astype(np.float16)
    before = sample.copy()
    learned = calibrate(sample, block_size=4, codewords=16, seed=SEED, stages=2)
    assert (sample == before).all()
    wide = calibrate(sample.astype(np.float64), block_size=4, codewords=16, seed=SEED, stages=2)
    assert learned.layout == wide.layout


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"sample": np.full((8, 8), np.nan)}, InvalidParameters),
        ({"sample": np.full((8, 8), -np.inf)}, InvalidParameters),
        ({"sample": np.full((8, 8), 1e39)}, InvalidParameters),
        ({"sample": np.zeros(64)}, InvalidParameters),
        ({"sample": np.zeros((1, 4))}, InvalidParameters),
        ({"sample": np.zeros((8, 8), dtype=int)}, Misuse),
        ({"sample": [[0.0] * 8] * 8}, Misuse),
        ({"block_size": 0}, InvalidParameters),
        ({"block_size": 4.0}, InvalidParameters),
        ({"codewords": 1}, InvalidParameters),
        ({"seed": bytes(31)}, InvalidParameters),
        ({"seed": bytearray(32)}, InvalidParameters),
        ({"stages": 0}, InvalidParameters),
        ({"stages": 9}, InvalidParameters),
        ({"stages": True}, InvalidParameters),
        ({"iterations": 0}, InvalidParameters),
        ({"previous": scheme((8, 8))}, InvalidParameters),
        ({"previous": scheme((8, 8), Codebook(np.zeros((4, 4))), Codebook(np.zeros((4, 4))))}, InvalidParameters),
        ({"previous": scheme((16, 4), Codebook(np.zeros((4, 4))))}, InvalidParameters),
        ({"previous": scheme((8, 8), Codebook(np.zeros((8, 4))))}, InvalidParameters),
    ],
    ids=repr,
)
def test_a_calibration_that_makes_no_sense_is_refused(
    changed: dict[str, Any], error: type[InvalidParameters | Misuse]
) -> None:
    arguments: dict[str, Any] = {"sample": uniform((8, 8)), "block_size": 4, "codewords": 4, "seed": SEED}
    calibrate(**arguments, previous=scheme((8, 8), Codebook(np.zeros((4, 4)))))
    with pytest.raises(error):
        calibrate(**(arguments | changed))


@pytest.mark.parametrize(
    ("shape", "codebooks", "error"),
    [
        ((12,), (CORNERS,), InvalidParameters),
        ((), (CORNERS,), InvalidParameters),
        ((4, 3), (CORNERS,), InvalidParameters),
        ((4, 0), (CORNERS,), InvalidParameters),
        ((4, 2.0), (CORNERS,), InvalidParameters),
        ([4, 2], (CORNERS,), InvalidParameters),
        ((4, 2), (), InvalidParameters),
        ((4, 2), (CORNERS,) * 9, InvalidParameters),
        ((4, 12), (CORNERS, Codebook(np.zeros((4, 3)))), InvalidParameters),
        ((4, 2), [CORNERS], Misuse),
        ((4, 2), (CORNERS.values,), Misuse),
    ],
    ids=repr,
)
def test_a_scheme_that_makes_no_sense_is_refused(
    shape: Any, codebooks: Any, error: type[InvalidParameters | Misuse]
) -> None:
    with pytest.raises(error):
        ProductQuantization(shape=shape, codebooks=codebooks)
