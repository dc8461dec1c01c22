"""Codewords by k-means, from a public seed; they can begin where those of the previous round ended.

Places without blocks, which at a cold start are all of them, are given to blocks drawn with probability proportional
to their distance from the codewords there are; then codewords and assignments improve in turn. Squared distances would
find separate clusters more surely, but updates have few of those and many outliers, on which they spend codewords.

What is drawn comes from a public seed, by SHAKE256. The sums are floats, so two platforms may learn codebooks that
differ in their last digits; one party learns, and broadcasts what it learned.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import RingVector
from secagg.errors import InvalidParameters, Misuse

from .nearest_codeword import nearest_codewords

ITERATIONS: Final = 10
BLOCKS_PER_CODEWORD: Final = 256
"""How many blocks of a sample suffice for one codeword."""
SEED_BYTES: Final = 32
_FARTHEST_START: Final = 4.0
"""Blocks are scaled to values of at most 1, so that none is near a codeword out there."""
_DRAWING_ROUNDS: Final = 64
"""Codewords are drawn one by one up to this number; beyond it, several between two updates of the distances."""

Floats = npt.NDArray[np.floating[Any]]
FloatMatrix = npt.NDArray[np.float32]


def learn_codewords(  # noqa: PLR0913 -- all but three have defaults
    blocks: Floats,
    codewords: int,
    *,
    seed: bytes,
    iterations: int = ITERATIONS,
    start: Floats | None = None,
    keep_zero: bool = True,
) -> npt.NDArray[np.float64]:
    """Return codewords near which the blocks lie, one in each row.

    Args:
        blocks: one block in each row; all of them are used, so draw a sample first.
        codewords: how many to return. Where the blocks have fewer different values, the rest are zeros.
        seed: 32 public bytes, from which all that is drawn is derived.
        iterations: how often assignments and codewords are improved, at most.
        start: the codewords to begin with, such as those of the previous round; all are drawn without it.
        keep_zero: whether the first codeword is zero and stays so, which decodes what a client never touched as zero.

    Raises:
        Misuse: the blocks are not an array of floats in two dimensions.
        InvalidParameters: a block that holds NaN or infinity, a number out of range, or codewords to start with of
            another number or size.
    """
    _require_blocks(blocks)
    _require_seed(seed)
    if any(type(count) is not int or count < 1 for count in (codewords, iterations)):
        raise InvalidParameters(f"codewords and iterations are at least 1; got {codewords!r} and {iterations!r}")
    if start is not None and (start.shape != (codewords, blocks.shape[1]) or not np.isfinite(start).all()):
        raise InvalidParameters(
            f"k-means starts from {codewords} finite codewords of {blocks.shape[1]} values; got shape {start.shape}; "
            "start cold, or keep the geometry"
        )
    exponent = int(np.frexp(np.abs(blocks).max())[1])
    points = np.ldexp(blocks.astype(np.float64), -exponent).astype(np.float32)
    draws = _Draws(seed)
    centres = np.zeros((codewords, blocks.shape[1]), dtype=np.float32)
    is_empty = np.full(codewords, start is None)
    if start is not None:
        with np.errstate(over="ignore"):
            scaled = np.ldexp(start.astype(np.float64), -exponent)
        centres[:] = np.clip(scaled, -_FARTHEST_START, _FARTHEST_START)
    if keep_zero:
        centres[0], is_empty[0] = 0.0, False
    _fill(centres, is_empty, points, draws)
    assigned = _assign(points, centres)
    for _ in range(iterations):
        histogram = np.bincount(assigned, minlength=codewords)
        is_empty = histogram == 0
        sums = [np.bincount(assigned, weights=column, minlength=codewords) for column in points.T]
        centres[:] = np.stack(sums, axis=1) / np.maximum(histogram, 1)[:, None]
        if keep_zero:
            centres[0], is_empty[0] = 0.0, False
        _fill(centres, is_empty, points, draws)
        before, assigned = assigned, _assign(points, centres)
        if (assigned == before).all():
            break
    return np.ldexp(centres.astype(np.float64), exponent)


def sample_blocks(blocks: Floats, count: int, *, seed: bytes, without_zeros: bool = True) -> Floats:
    """Return at most ``count`` of the blocks, drawn without replacement, in their order.

    Blocks of zeros are left out by default, since a codebook that keeps a zero codeword encodes them as they are; where
    nothing else is left, one is returned.
    """
    _require_blocks(blocks)
    _require_seed(seed)
    if type(count) is not int or count < 1:
        raise InvalidParameters(f"a sample has at least one block; asked for {count!r}")
    candidates = np.flatnonzero(blocks.any(axis=1)) if without_zeros else np.arange(len(blocks))
    if candidates.size == 0:
        return blocks[:1]
    if candidates.size > count:
        drawn = hashlib.shake_256(bind(Label.CODEBOOK_SAMPLE, seed)).digest(8 * candidates.size)
        ranks = np.frombuffer(drawn, dtype="<u8")
        candidates = candidates[np.sort(np.argpartition(ranks, count)[:count])]
    return blocks[candidates]


class _Draws:
    """Uniform numbers from a public seed, in the order in which they are asked for."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._number = 0

    def fractions(self, count: int) -> npt.NDArray[np.float64]:
        """Return multiples of 2^-53 in [0, 1)."""
        place = self._number.to_bytes(8, "big")
        self._number += 1
        drawn = hashlib.shake_256(bind(Label.CODEBOOK_SEEDING, self._seed, place)).digest(8 * count)
        return np.ldexp((np.frombuffer(drawn, dtype="<u8") >> np.uint64(11)).astype(np.float64), -53)


def _fill(centres: FloatMatrix, is_empty: npt.NDArray[np.bool_], points: FloatMatrix, draws: _Draws) -> None:
    """Put blocks that are far from all other codewords into the places of the empty ones, and zeros if none is far."""
    places = np.flatnonzero(is_empty)
    if places.size == 0:
        return
    taken = centres[~is_empty]
    distances = _distances(points, taken) if len(taken) else np.ones(len(points))
    centres[places] = 0.0
    batch = -(-places.size // _DRAWING_ROUNDS)
    for first in range(0, places.size, batch):
        cumulated: npt.NDArray[np.float64] = np.cumsum(distances)
        total = float(cumulated[-1])
        if total == 0:
            return
        group = places[first : first + batch]
        chosen: npt.NDArray[np.intp] = np.searchsorted(cumulated, total * draws.fractions(group.size), side="right")
        centres[group] = points[np.minimum(chosen, len(points) - 1)]
        others = _distances(points, centres[group])
        distances = np.minimum(distances, others) if len(taken) or first else others


def _assign(points: FloatMatrix, centres: FloatMatrix) -> RingVector:
    """Return the index of the centre nearest to each point."""
    return nearest_codewords(points, [centres])[0]


def _distances(points: FloatMatrix, centres: FloatMatrix) -> npt.NDArray[np.float64]:
    """Return the distance of each point from the centre nearest to it."""
    offsets = points - (centres if len(centres) == 1 else centres[_assign(points, centres)])
    squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", offsets, offsets, dtype=np.float64)
    return np.sqrt(squares)


def _require_blocks(blocks: Floats) -> None:
    if getattr(blocks, "dtype", np.dtype(bool)).kind != "f" or blocks.ndim != 2 or not blocks.size:  # noqa: PLR2004 -- a matrix
        raise Misuse("blocks are an array of floats in two dimensions, one block in each row, and at least one")
    if not np.isfinite(blocks).all():
        raise InvalidParameters("a sample to learn from holds NaN or infinity; calibrate on another")


def _require_seed(seed: bytes) -> None:
    if type(seed) is not bytes or len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a public seed is {SEED_BYTES} bytes; draw one for each session")
