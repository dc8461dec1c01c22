"""Scales and codebooks that are derived only from sums.

Scales need neither public data nor any update in the clear. Each client adds one number for each compressed tensor to
the secure sum: its largest magnitude or its length. The server only learns the means of these numbers, which become the
next round's scales. The first round has none and is sent uncompressed. A codebook fitted to the previous round's sum
would consist of sums of its own codewords, and shrink or explode from round to round. A data-free codebook does not,
because only its length follows the updates.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.common import PublicStream
from secagg.compression.model_update.codec import Shape
from secagg.compression.model_update.plan import FitsEvery, Sample, Scheme
from secagg.compression.product_quantization import (
    Codebook,
    ProductQuantization,
    block_geometry,
    is_quantizable,
    learn_codewords,
    nearest_codewords,
)
from secagg.compression.scalar_quantization import DitheredQuantization, Rounding, ScalarQuantization
from secagg.crypto.labels import Label, bind

STATISTICS: Final = "secagg/statistics"
"""Name of the tensor of the clients' statistics."""
LEAST_LENGTH: Final = 2.0**-40
"""Length used to calibrate a tensor that did not change; zero is not a valid scale."""
_BLOCKS_PER_CODEWORD: Final = 512
_MOST_BLOCKS: Final = 1 << 15
_ITERATIONS: Final = 30
_SEED: Final = bytes(32)
_EPOCH: Final = struct.Struct(">Q")


def reach(values: npt.NDArray[Any]) -> float:
    """Return the largest magnitude of a tensor's values."""
    return float(np.abs(values).max())


def length(values: npt.NDArray[Any]) -> float:
    """Return the root mean square of the nonzero values: most rows of an embedding never change."""
    moved = np.count_nonzero(values)
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()) / moved) if moved else 0.0


def rotated_reach(values: npt.NDArray[Any]) -> float:
    """Return the largest magnitude after a rotation makes the values normal, up to a few percent.

    The largest of n standard normal values is near sqrt(2 ln n).
    """
    root_mean_square = math.sqrt(float(np.square(values, dtype=np.float64).mean()))
    return root_mean_square * math.sqrt(2 * math.log(max(2, values.size)))


@lru_cache(maxsize=64)
def unit_codebooks(codewords: int, block_size: int, stages: int = 1) -> tuple[npt.NDArray[np.float64], ...]:
    """Return codebooks for blocks of independent Laplace values of length 1, one for each stage; cached.

    Model updates have heavier tails than normal values; these codebooks fit them without any data.
    """
    count = max(codewords, min(codewords * _BLOCKS_PER_CODEWORD, _MOST_BLOCKS))
    points = _unit_points((codewords, block_size), count, block_size)
    books = list[npt.NDArray[np.float64]]()
    for _ in range(stages):
        learned = learn_codewords(points, codewords, seed=_SEED, iterations=_ITERATIONS, keep_zero=True)
        learned.flags.writeable = False
        books.append(learned)
        (nearest,) = nearest_codewords(points, [learned.astype(np.float32)])
        points -= learned[nearest]
    return tuple(books)


@lru_cache(maxsize=64)
def kept_share(codewords: int, block_size: int, stages: int = 1) -> float:
    """Return the share of a signal that data-free codewords keep: their factor, on average over blocks.

    A codeword is the mean of the blocks that choose it, and shorter than they are. A small change that many clients
    share is shortened equally, so dividing the mean by this share nearly restores its length.
    """
    points = _unit_points((codewords, block_size, stages), _MOST_BLOCKS >> 1, block_size)
    left = points.astype(np.float32)
    for book in unit_codebooks(codewords, block_size, stages):
        (nearest,) = nearest_codewords(left, [book.astype(np.float32)])
        left -= book.astype(np.float32)[nearest]
    return float(np.vdot(points, points - left) / np.vdot(points, points))


def _unit_points(numbers: tuple[int, ...], count: int, block_size: int) -> npt.NDArray[np.float64]:
    """Return deterministic blocks of Laplace values of length 1."""
    seed = bind(Label.CODEBOOK_POINTS, *(number.to_bytes(8, "big") for number in numbers))
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(4 * count * block_size), dtype="<u4")
    # Midpoints of cells avoid log(0); the signs are the sides of the distribution's median.
    placed = (drawn.astype(np.float64) + 0.5) * 2.0**-31 - 1
    points: npt.NDArray[np.float64] = (-np.sign(placed) * np.log1p(-np.abs(placed))).reshape(count, block_size)
    return points / math.sqrt(float(np.square(points).mean()))


@dataclass(frozen=True, slots=True)
class Made(FitsEvery):
    """A recipe that makes a scheme from a tensor's place, without a sample."""

    made: Callable[[PublicStream], Scheme]

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> Scheme:  # noqa: ARG002
        return self.made(place)


def reaching_quantizer(
    reach: float,
    bits: int,
    modulus_bits: int,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    wrapping_weight: int | None = None,
) -> Made:
    """Return the recipe of scalar quantization whose largest code represents a given magnitude."""
    scale = max(reach, LEAST_LENGTH) / (((1 << bits) - 1) / 2)
    return Made(
        lambda place: ScalarQuantization(
            shape=place.shape,
            bits=bits,
            modulus_bits=modulus_bits,
            scales=(scale,),
            rounding=rounding,
            wrapping_weight=wrapping_weight,
        )
    )


def reaching_dither(reach: float, bits: int, modulus_bits: int, fine_bits: int) -> Made:
    """Return the recipe of dithered quantization whose range ends at a given magnitude."""
    scale = max(reach, LEAST_LENGTH) / (1 << (bits - 1))
    return Made(
        lambda place: DitheredQuantization(
            shape=place.shape, bits=bits, modulus_bits=modulus_bits, scale=scale, fine_bits=fine_bits
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCodebooks:
    """A recipe: product quantization with data-free codebooks, times a length."""

    length: float
    codewords: int
    block_size: int
    stages: int
    is_capped: bool = True
    """Whether to cap codewords at the number that could be learned from the tensor, as in the paper."""

    def fits(self, shape: Shape) -> bool:
        return is_quantizable(shape, self.block_size)

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> ProductQuantization:  # noqa: ARG002
        geometry = block_geometry(place.shape, self.block_size, self.codewords)
        codewords = geometry.codewords if self.is_capped else self.codewords
        books = unit_codebooks(codewords, geometry.block_size, self.stages)
        scale = max(self.length, LEAST_LENGTH)
        return ProductQuantization(shape=place.shape, codebooks=tuple(Codebook(book * scale) for book in books))


def encode_scales(epoch: int, scales: Sequence[float]) -> bytes:
    """Return the broadcast: the epoch in 8 bytes, and a float32 for each compressed tensor, in their order."""
    return _EPOCH.pack(epoch) + np.asarray(scales, dtype=">f4").tobytes()


def mean_statistics(mean: Mapping[str, npt.NDArray[Any]]) -> list[float]:
    """Return the statistics of a decoded mean, as float32 like the broadcast."""
    return [float(np.float32(value)) for value in mean[STATISTICS]]
