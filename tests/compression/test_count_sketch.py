"""The count sketch against its definition in bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, ideal_aggregate
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"only stochastic rounding of the inner scheme draws them")
SEED = bytes(range(32))
SEGMENT_WORDS = 1 << 18
Floats = npt.NDArray[np.float64]


def fixed_point(cells: int, clip: float = 64.0, fraction_bits: int = 20) -> FixedPoint:
    return FixedPoint(length=cells, clip=clip, fraction_bits=fraction_bits, modulus_bits=40)


def scheme(length: int = 6, rows: int = 3, columns: int = 8, seed: bytes = SEED) -> CountSketch:
    return CountSketch(length=length, rows=rows, columns=columns, seed=seed, inner=fixed_point(rows * columns))


def words_of(seed: bytes, length: int, row: int) -> npt.NDArray[np.uint32]:
    """Return W(row, 0), W(row, 1), ... as the module defines them, without the library."""
    key = hashlib.sha256(b"secagg/1/count-sketch-hashes" + (32).to_bytes(4, "big") + seed).digest()
    segments = -(-length // SEGMENT_WORDS)
    stream = b""
    for segment in range(row * segments, (row + 1) * segments):
        first_block = segment.to_bytes(12, "big") + (2).to_bytes(4, "big")
        encryptor = Cipher(algorithms.AES(key), modes.CTR(first_block)).encryptor()
        stream += encryptor.update(bytes(4 * SEGMENT_WORDS))
    return np.frombuffer(stream, dtype="<u4")[:length]


def matrix_of(sketch: CountSketch) -> Floats:
    """Return the matrix whose product with an update is its table, row after row."""
    matrix = np.zeros((sketch.rows, sketch.columns, sketch.length))
    for row in range(sketch.rows):
        for coordinate, word in enumerate(words_of(sketch.seed, sketch.length, row).tolist()):
            matrix[row, word % sketch.columns, coordinate] = (-1) ** (word // sketch.columns)
    return matrix.reshape(sketch.rows * sketch.columns, sketch.length)


def aggregate_of(sketch: CountSketch, updates: Sequence[Floats], weights: Sequence[int] | None = None) -> Aggregate:
    return ideal_aggregate(sketch.layout, [sketch.encode(update, COINS) for update in updates], weights)


FULL_GRAM = matrix_of(scheme()).T @ matrix_of(scheme())


def expected_estimate(update: npt.NDArray[np.floating[Any]]) -> Floats:
    estimate: Floats = FULL_GRAM @ update.astype(np.float64) / 3
    return estimate


def quantized(rounding: Rounding = Rounding.STOCHASTIC) -> CountSketch:
    inner = ScalarQuantization(shape=(24,), bits=8, modulus_bits=16, scales=(0.0625,), rounding=rounding)
    return replace(scheme(), inner=inner)


FIXED = Candidate(
    name="count_sketch_over_fixed_point",
    make=scheme,
    updates=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays(dtype, 6, elements=st.floats(-10, 10, width=32))
    ),
    error=2.0**-21,
    expected=expected_estimate,
    extremes=[np.full(6, 1e6), np.full(6, -1e6)],
    payload_bytes=3 * 8 * 5,
    others={
        "another seed": lambda: scheme(seed=bytes(32)),
        "one coordinate more": lambda: scheme(length=7),
        "one row more": lambda: scheme(rows=4),
        "twice the columns": lambda: scheme(columns=16),
        "rows for columns": lambda: scheme(rows=6, columns=4),
        "another step": lambda: replace(scheme(), inner=fixed_point(24, fraction_bits=19)),
    },
)
QUANTIZED = Candidate(
    name="count_sketch_over_scalar_quantization",
    make=quantized,
    updates=arrays(np.float64, 6, elements=st.floats(-1, 1)),
    error=0.0625 + 2.0**-20,
    expected=expected_estimate,
    extremes=[np.full(6, 1e6), np.full(6, -1e6)],
    stochastic=True,
    payload_bytes=3 * 8 * 2,
    others={"another rounding": lambda: quantized(Rounding.NEAREST_EVEN)},
    # The inner scheme decodes to float32.
    ulps=2.0**32,
)


@pytest.mark.parametrize(("candidate", "law"), cases(FIXED, QUANTIZED), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 40), st.integers(1, 4), st.integers(0, 7), st.data())
def test_the_table_is_the_product_with_the_defined_matrix(
    seed: bytes, length: int, rows: int, log_columns: int, data: st.DataObject
) -> None:
    sketch = scheme(length, rows, 1 << log_columns, seed)
    update = data.draw(arrays(np.float64, length, elements=st.integers(-1000, 1000)))
    assert (sketch.sketch(update).reshape(-1) == matrix_of(sketch) @ update).all()


def test_updates_of_several_segments_are_sketched_as_defined() -> None:
    length, columns = 2 * SEGMENT_WORDS + 3, 1 << 12
    sketch = scheme(length, 2, columns)
    update = np.arange(length) % 1009 - 504.0
    table = np.zeros((2, columns))
    for row in range(2):
        words = words_of(SEED, length, row)
        np.add.at(table[row], words % columns, np.where(words // columns % 2, -update, update))
    assert (sketch.sketch(update) == table).all()
    (estimate,) = (sketch.medians(sketch.sketch(np.eye(1, length, length - 1)[0])),)
    assert estimate[-1] == 1.0


def test_estimates_are_unbiased_and_vary_as_little_as_is_said() -> None:
    update = np.array([3.0, -1.0, 0.5, 0.0, 2.0, -4.0])
    seeds = [hashlib.sha256(bytes([number % 256, number // 256])).digest() for number in range(2000)]
    sketches = [scheme(rows=2, columns=4, seed=seed) for seed in seeds]
    estimates = np.array([sketch.decode(aggregate_of(sketch, [update])) for sketch in sketches])
    variance = (update**2).sum() / (2 * 4)
    assert np.abs(estimates.mean(axis=0) - update).max() < 5 * np.sqrt(variance / len(seeds))
    assert estimates.var(axis=0).max() < 1.15 * variance


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_medians_are_those_of_the_rows(rows: int) -> None:
    sketch = scheme(length=20, rows=rows)
    table = sketch.sketch(np.linspace(-3, 5, 20))
    by_row = np.array([matrix_of(sketch).reshape(rows, 8, 20)[row].T @ table[row] for row in range(rows)])
    assert (sketch.medians(table) == np.median(by_row, axis=0)).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 0},
        {"rows": 33},
        {"rows": 2.0},
        {"columns": 0},
        {"columns": 3},
        {"columns": -4},
        {"columns": 1 << 31},
        {"columns": 8.0},
        {"length": 0},
        {"length": 6.0},
        {"length": 1 << 34},
        {"seed": bytes(31)},
        {"seed": bytearray(32)},
        {"inner": fixed_point(23)},
    ],
    ids=repr,
)
def test_impossible_parameters_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        replace(scheme(), **changed)


def test_a_table_of_another_shape_is_refused() -> None:
    with pytest.raises(Misuse):
        scheme().medians(np.zeros((8, 3)))
