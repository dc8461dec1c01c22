"""Product quantization: encodes blocks of a tensor as indices into a common codebook, and decodes histograms to sums.

A tensor is read as rows: the first dimension counts them, and the others are flattened in order. A row is an output
neuron of a linear layer or an output channel of a convolution. Rows are cut into consecutive blocks of one size, which
divides the row, so a block never reaches into the next one. Block size and number of codewords follow from the shape.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Histogram, IndexSegment, Layout, Payload, public_parameters_digest
from secagg.contract.codewords import CodewordTable, Tables, require_summed
from secagg.contract.layout import LEAST_CODEWORDS, MAXIMUM_CODEWORDS
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring, RingVector, require_capacity
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, require_length
from secagg.parameters import require_integer

from .common import finite, require_floats, require_seed, require_shape, require_sum

# --- Geometry of blocks -----------------------------------------------------------------------------------------------

LEAST_ELEMENTS: Final = 10
BLOCKS_PER_CODEWORD: Final = 4
LEAST_BLOCKS: Final = LEAST_CODEWORDS * BLOCKS_PER_CODEWORD
"""With fewer blocks the cap leaves one codeword, whose index carries no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGeometry:
    """Requested block size and number of codewords, capped by a tensor's shape."""

    block_size: int
    blocks: int
    codewords: int


def block_geometry(shape: Sequence[int], requested_block_size: int, requested_codewords: int) -> BlockGeometry:
    """Return the geometry for a tensor's shape; check ``is_quantizable`` first."""
    size = block_size(shape, requested_block_size)
    blocks = prod(shape) // size
    return BlockGeometry(block_size=size, blocks=blocks, codewords=codeword_count(blocks, requested_codewords))


def block_size(shape: Sequence[int], requested: int) -> int:
    """Return the largest size up to ``requested`` that divides a row of the tensor."""
    if len(shape) <= 1 or any(type(size) is not int or size < 1 for size in shape):
        raise InvalidParameters(f"a tensor must have two or more dimensions of at least 1; got {tuple(shape)}")
    require_integer("a block size", requested, 1)
    row = prod(shape[1:])
    return next(size for size in range(min(requested, row), 0, -1) if row % size == 0)


def codeword_count(blocks: int, requested: int) -> int:
    """Return ``requested``, or if smaller the largest power of two that leaves four blocks for each codeword."""
    if type(requested) is not int or requested < LEAST_CODEWORDS:
        raise InvalidParameters(f"a codebook must have at least {LEAST_CODEWORDS} codewords; got {requested!r}")
    if type(blocks) is not int or blocks < LEAST_BLOCKS:
        raise InvalidParameters(
            f"a codebook needs {LEAST_BLOCKS} blocks; got {blocks!r}; ask for smaller blocks, or send the tensor in "
            "fixed point"
        )
    return min(requested, 1 << ((blocks // BLOCKS_PER_CODEWORD).bit_length() - 1))


def is_quantizable(shape: Sequence[int], requested_block_size: int) -> bool:
    """Return whether a tensor is large enough for a codebook; if not, it is sent in fixed point."""
    if len(shape) <= 1 or prod(shape) < LEAST_ELEMENTS:
        return False
    return prod(shape) // block_size(shape, requested_block_size) >= LEAST_BLOCKS


# --- Codebooks --------------------------------------------------------------------------------------------------------

GRID_BITS: Final = 24
"""The largest value of a codebook is less than 2^24 grid steps, the precision of a float32."""
EXACT_WEIGHT: Final = 1 << (53 - GRID_BITS)
"""Up to this number of uploads, float64 sums of codewords in steps are exact in any order."""
FLOAT_BYTES: Final = 4
_HEADER = struct.Struct(">II")
_HISTOGRAM_ROWS: Final = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """Codewords of one length, one in each row.

    Values are rounded to float32 and then to multiples of one step: 2^-24 of the power of two above the largest value.
    So no value changes by more than float32 rounding can change the largest.
    """

    values: npt.NDArray[np.floating[Any]]

    def __post_init__(self) -> None:
        given = self.values
        if getattr(given, "dtype", np.dtype(bool)).kind != "f" or given.ndim != 2:  # noqa: PLR2004 -- a matrix
            raise Misuse("a codebook must be a two-dimensional array of floats with a codeword in each row")
        if not LEAST_CODEWORDS <= len(given) <= MAXIMUM_CODEWORDS or given.shape[1] < 1:
            raise InvalidParameters(
                f"a codebook must have {LEAST_CODEWORDS} to {MAXIMUM_CODEWORDS} codewords of at least one value; got "
                f"{given.shape[0]} of {given.shape[1]}"
            )
        with np.errstate(over="ignore"):
            narrow = given.astype(np.float32)
        if not np.isfinite(narrow).all():
            raise InvalidParameters("a codebook contains NaN, infinity or values beyond a float32; learn it again")
        # The object owns a copy, so the array cannot change after its version is computed.
        values = _rounded_to_grid(narrow)
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def codewords(self) -> int:
        return len(self.values)

    @property
    def block_size(self) -> int:
        return int(self.values.shape[1])

    @property
    def downlink_bytes(self) -> int:
        return self.values.size * FLOAT_BYTES

    @property
    def step_exponent(self) -> int:
        """The exponent of the grid: every value is an integer times two to this power."""
        return _step_exponent(self.values)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The values as integers of steps, below 2^24 in magnitude."""
        return np.ldexp(self.values.astype(np.float64), -self.step_exponent).astype(np.int64)

    def from_steps(self, sums: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.float64]:
        """Convert sums of codewords from steps to values; exact up to 2^53 steps."""
        return np.ldexp(sums.astype(np.float64), self.step_exponent)

    def sum_of_codewords(self, histogram: Histogram) -> npt.NDArray[np.float64]:
        """Return the exact sum of codewords for each block, weighted by the histogram."""
        wide = self.values.astype(np.float64)
        sums = np.empty((len(histogram), self.block_size))
        for start in range(0, len(histogram), _HISTOGRAM_ROWS):
            rows = slice(start, start + _HISTOGRAM_ROWS)
            np.matmul(histogram[rows].astype(np.float64), wide, out=sums[rows])
        return sums

    def encode(self) -> bytes:
        """Return the canonical encoding: both dimensions as 4 bytes, then float32 values row by row, big-endian."""
        return _HEADER.pack(*self.values.shape) + self.values.astype(">f4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the canonical encoding.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written; its reason says what.
        """
        if len(data) < _HEADER.size:
            raise MalformedMessage("the codebook ends before its dimensions do", reason=Reason.TRUNCATED)
        codewords, block_size = _HEADER.unpack_from(data)
        due = _HEADER.size + codewords * block_size * FLOAT_BYTES
        require_length(f"a codebook of {codewords} codewords of {block_size} values", len(data), due)
        values = np.frombuffer(data, dtype=">f4", offset=_HEADER.size).reshape(codewords, block_size)
        try:
            codebook = cls(values)
        except InvalidParameters as error:
            raise MalformedMessage(f"the codebook is invalid: {error}", reason=Reason.NOT_CANONICAL) from None
        if codebook.encode() != data:
            raise MalformedMessage("the codebook's values are not on its grid", reason=Reason.NOT_CANONICAL)
        return codebook


def _step_exponent(values: npt.NDArray[np.floating[Any]]) -> int:
    """Return the exponent of 2^-24 of the power of two above the largest value; rounding to the grid keeps it."""
    return int(np.frexp(np.abs(values).max())[1]) - GRID_BITS


def _rounded_to_grid(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to multiples of the grid step, which keeps the largest value; minus zero becomes zero."""
    exponent = _step_exponent(values)
    steps = np.rint(np.ldexp(values.astype(np.float64), -exponent)) + 0.0
    return np.ldexp(steps, exponent).astype(np.float32)


# --- The nearest codeword ---------------------------------------------------------------------------------------------

Floats = npt.NDArray[np.floating[Any]]
FloatMatrix = npt.NDArray[np.float32]
CHUNK_BLOCKS: Final = 5184
"""One row of gains must fill more than half of numpy's buffer of 8192 elements; otherwise numpy copies two rows to
buffer them together. A row must not be a multiple of a page: then the rows of a tile share a few sets of the
first-level cache, and encoding took 1.5 times as long on one kind of processor."""
TILE_CODEWORDS: Final = 1 << 6
"""Codewords compared at once; more would leave fewer bits for the gains and take more memory."""
SQUARES_LIMIT: Final = 2.0**120
"""Maximum sum of squares of a chunk; its products with weights below 2^60 are then float32 numbers."""
_WEIGHT_EXPONENTS: Final = (-60, 60)


def nearest_codewords(blocks: Floats, stages: Sequence[Floats]) -> list[RingVector]:
    """Return the index of the nearest codeword for each row of ``blocks``, and for each later stage's residual.

    NaN counts as 0, and values are clamped near 2^50.
    """
    return search(blocks, [Search(codewords) for codewords in stages])


def search(blocks: Floats, searches: Sequence[Search]) -> list[RingVector]:
    """Like ``nearest_codewords``, with prepared codewords, which all clients of a round share."""
    found = [np.empty(len(blocks), dtype=stage.word) for stage in searches]
    size = blocks.shape[1]
    columns = np.ones((size + 1, min(CHUNK_BLOCKS, len(blocks))), dtype=np.float32)
    memory = np.empty((max(stage.rows for stage in searches), columns.shape[1]), dtype=np.float32)
    for start in range(0, len(blocks), CHUNK_BLOCKS):
        chunk = blocks[start : start + CHUNK_BLOCKS]
        filled = columns[:, : len(chunk)]
        values = filled[:size]
        # An overflow, here or in the squares, is clamped in the next line.
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(values, chunk.T, casting="same_kind")
            squares = float(np.vdot(values, values))
        if not squares < SQUARES_LIMIT:
            values[:] = finite(values, math.sqrt(SQUARES_LIMIT / values.size) / 2)
        for stage, indices in zip(searches, found, strict=True):
            nearest = stage.nearest(filled, memory[: stage.rows, : len(chunk)])
            indices[start : start + len(chunk)] = nearest
            if stage is not searches[-1]:
                values -= stage.codewords[nearest].T
    return found


class Search:
    """The codewords of one stage as rows of weights; multiplied with blocks they give the gains."""

    def __init__(self, codewords: Floats) -> None:
        self.codewords = codewords.astype(np.float32)
        self.word = Ring(max(1, (len(codewords) - 1).bit_length())).word
        self._tiles = _tiles(self.codewords.astype(np.float64))
        self._index_mask = (1 << (len(self._tiles[0]) - 1).bit_length()) - 1
        # Inverted, so that the lower index wins among equal gains.
        self._order = np.arange(self._index_mask, self._index_mask - len(self._tiles[0]), -1, dtype=np.int32)[:, None]

    @property
    def rows(self) -> int:
        return len(self._tiles[0])

    def nearest(self, columns: FloatMatrix, memory: FloatMatrix) -> npt.NDArray[np.int32]:
        """Return the index of the codeword nearest to each column's block; a column ends with a 1."""
        gains, indices = self._nearest_in_tile(self._tiles[0], columns, memory)
        for number, tile in enumerate(self._tiles[1:], start=1):
            others, other_indices = self._nearest_in_tile(tile, columns, memory)
            is_nearer = others > gains
            np.copyto(gains, others, where=is_nearer)
            np.copyto(indices, other_indices + number * TILE_CODEWORDS, where=is_nearer)
        return indices

    def _nearest_in_tile(
        self, tile: FloatMatrix, columns: FloatMatrix, memory: FloatMatrix
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the largest gains, as integers without the index bits, and the indices in the tile.

        Negative gains sort in the wrong order as integers, but the shortest codeword's gain is above all of them.
        """
        gains = memory[: len(tile)]
        np.matmul(tile, columns, out=gains)
        ordered = gains.view(np.int32)
        np.bitwise_and(ordered, ~self._index_mask, out=ordered)
        np.bitwise_or(ordered, self._order[: len(tile)], out=ordered)
        greatest = np.maximum.reduce(ordered, axis=0)
        return greatest & ~self._index_mask, ~greatest & self._index_mask


def _tiles(codewords: npt.NDArray[np.float64]) -> list[FloatMatrix]:
    """Return the rows (2 (c - s), |s|² - |c|²), times a power of two that scales gains to about 1."""
    squares = np.square(codewords).sum(axis=1, keepdims=True)
    shortest = squares.argmin()
    rows = np.hstack([2 * (codewords - codewords[shortest]), squares[shortest] - squares])
    exponent = int(np.frexp(np.abs(codewords).max())[1])
    least, greatest = _WEIGHT_EXPONENTS
    weights = np.ldexp(rows, min(max(-2 * exponent, least - exponent), greatest - exponent)).astype(np.float32)
    return [weights[first : first + TILE_CODEWORDS] for first in range(0, len(weights), TILE_CODEWORDS)]


# --- Learning codewords -----------------------------------------------------------------------------------------------

ITERATIONS: Final = 10
SAMPLE_BLOCKS: Final = 256
"""Number of sample blocks that are enough for one codeword."""
_FARTHEST_START: Final = 4.0
"""Blocks are scaled to values of at most 1, so this codeword is never the nearest."""
_DRAWING_ROUNDS: Final = 64
"""Up to this number codewords are drawn one by one; above it, several are drawn per update of the distances."""


def learn_codewords(  # noqa: PLR0913 -- all but three have defaults
    blocks: Floats,
    codewords: int,
    *,
    seed: bytes,
    iterations: int = ITERATIONS,
    start: Floats | None = None,
    keep_zero: bool = True,
) -> npt.NDArray[np.float64]:
    """Learn codewords from blocks by k-means; return one in each row.

    Args:
        blocks: one block in each row; all of them are used, so draw a sample first.
        codewords: number of codewords. If there are fewer distinct blocks, the rest are zeros.
        start: initial codewords, such as the previous round's; without it all are drawn.
        keep_zero: whether the first codeword is fixed at zero, which decodes blocks of zeros as zeros.
    """
    _require_blocks(blocks)
    require_seed(seed)
    if any(type(count) is not int or count < 1 for count in (codewords, iterations)):
        raise InvalidParameters(f"codewords and iterations must be at least 1; got {codewords!r} and {iterations!r}")
    if start is not None and (start.shape != (codewords, blocks.shape[1]) or not np.isfinite(start).all()):
        raise InvalidParameters(
            f"k-means starts from {codewords} finite codewords of {blocks.shape[1]} values; got shape {start.shape}; "
            "omit start, or keep the geometry"
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
    """Return at most ``count`` of the blocks, drawn without replacement, in order.

    Blocks of zeros are excluded by default, since a codebook with a zero codeword encodes them exactly; if all blocks
    are zeros, one is returned.
    """
    _require_blocks(blocks)
    require_seed(seed)
    if type(count) is not int or count < 1:
        raise InvalidParameters(f"a sample must have at least one block; got {count!r}")
    candidates = np.flatnonzero(blocks.any(axis=1)) if without_zeros else np.arange(len(blocks))
    if candidates.size == 0:
        return blocks[:1]
    if candidates.size > count:
        drawn = hashlib.shake_256(bind(Label.CODEBOOK_SAMPLE, seed)).digest(8 * candidates.size)
        ranks = np.frombuffer(drawn, dtype="<u8")
        candidates = candidates[np.sort(np.argpartition(ranks, count)[:count])]
    return blocks[candidates]


class _Draws:
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
    """Replace unused codewords by blocks that are far from all codewords, or by zeros if none is far."""
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
    return nearest_codewords(points, [centres])[0]


def _distances(points: FloatMatrix, centres: FloatMatrix) -> npt.NDArray[np.float64]:
    offsets = points - (centres if len(centres) == 1 else centres[_assign(points, centres)])
    squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", offsets, offsets, dtype=np.float64)
    return np.sqrt(squares)


def _require_blocks(blocks: Floats) -> None:
    if getattr(blocks, "dtype", np.dtype(bool)).kind != "f" or blocks.ndim != 2 or not blocks.size:  # noqa: PLR2004 -- a matrix
        raise Misuse("blocks must be a two-dimensional array of floats, with at least one block, one in each row")
    if not np.isfinite(blocks).all():
        raise InvalidParameters("the sample contains NaN or infinity; calibrate on another one")


# --- The scheme -------------------------------------------------------------------------------------------------------

MAXIMUM_STAGES: Final = 8
_LEAST_NORM: Final = 2.0**-149


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductQuantization:
    """Cuts a tensor into blocks and encodes each as the index of its nearest codeword.

    With several codebooks, each quantizes the residual of those before it, and a decoded block is the sum of its
    codewords. The layout has one index segment for each codebook.

    Implements: [PGC+22], product quantization with secure indexing.
    Security: a histogram reveals more than a sum: it shows how often each codeword was chosen for each block. Release
    it only when it holds enough clients.
    """

    shape: tuple[int, ...]
    codebooks: tuple[Codebook, ...]
    layout: Layout = field(init=False, repr=False)
    """One index segment for each codebook; the blocks of each row of the tensor are consecutive."""
    _searches: tuple[Search, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_shape(self.shape)
        if type(self.codebooks) is not tuple or any(type(codebook) is not Codebook for codebook in self.codebooks):
            raise Misuse("codebooks must be a tuple of Codebook, one for each stage")
        if not 1 <= len(self.codebooks) <= MAXIMUM_STAGES:
            raise InvalidParameters(f"there must be 1 to {MAXIMUM_STAGES} codebooks; got {len(self.codebooks)}")
        if any(codebook.block_size != self.block_size for codebook in self.codebooks):
            raise InvalidParameters("the codebooks of all stages must have codewords of one size; learn them together")
        if len(self.shape) <= 1 or prod(self.shape[1:]) % self.block_size:
            raise InvalidParameters(
                f"codewords of {self.block_size} values do not divide the rows of a tensor of shape {self.shape}; "
                "block_size() says which sizes do"
            )
        object.__setattr__(self, "layout", self._layout())
        object.__setattr__(self, "_searches", tuple(Search(codebook.values) for codebook in self.codebooks))

    @property
    def block_size(self) -> int:
        return self.codebooks[0].block_size

    @property
    def blocks(self) -> int:
        return prod(self.shape) // self.block_size

    def _layout(self) -> Layout:
        segments = tuple(IndexSegment(codebook.codewords, self.blocks) for codebook in self.codebooks)
        numbers = (len(self.shape), *self.shape, len(self.codebooks))
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        version = public_parameters_digest(
            "product_quantization", encoded + b"".join(codebook.encode() for codebook in self.codebooks)
        )
        return Layout(segments, version)

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sums of codewords are exact; a histogram has no ring to overflow."""
        return EXACT_WEIGHT

    @property
    def tables(self) -> Tables:
        return tuple((CodewordTable(self.blocks, codebook.steps),) for codebook in self.codebooks)

    @property
    def largest_norm(self) -> float:
        """Maximum length of a single decoded update, whatever codewords a client chooses."""
        longest = (
            float(np.linalg.norm(codebook.values.astype(np.float64), axis=1).max()) for codebook in self.codebooks
        )
        return math.sqrt(self.blocks) * max(sum(longest), _LEAST_NORM)

    @property
    def downlink_bytes(self) -> int:
        return sum(codebook.downlink_bytes for codebook in self.codebooks)

    def encode(self, update: Floats, coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        require_floats(update, self.shape)
        return Payload(self.layout, tuple(search(_blocks(finite(update), self.block_size), self._searches)))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        """Return the sum of the contributors' quantized updates: each block's histogram times the codewords.

        The sum over each codebook is exact; those of several codebooks are added in float64.

        Claim CO-2: a histogram is all that the sum of codewords needs.
        """
        require_sum(aggregate, self.layout, self.capacity)
        histograms: tuple[Histogram, ...] = aggregate.values
        sums = np.zeros((self.blocks, self.block_size))
        for codebook, histogram in zip(self.codebooks, histograms, strict=True):
            sums += codebook.sum_of_codewords(histogram)
        return sums.reshape(self.shape)

    def decode_summed(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        require_capacity(aggregate.contributors, self.capacity)
        sums = np.zeros((self.blocks, self.block_size))
        stages = zip(self.codebooks, aggregate.layout.require_rings(), aggregate.values, strict=True)
        for codebook, segment, value in stages:
            sums += codebook.from_steps(segment.ring.lift(value)).reshape(sums.shape)
        return sums.reshape(self.shape)


def calibrate(  # noqa: PLR0913 -- the parameters of what it makes
    sample: Floats,
    *,
    block_size: int,
    codewords: int,
    seed: bytes,
    stages: int = 1,
    iterations: int = ITERATIONS,
    keep_zero: bool = True,
    previous: ProductQuantization | None = None,
) -> ProductQuantization:
    """Return a quantizer with codebooks learned from a sample; its shape caps block size and codewords.

    Args:
        sample: an array of the tensor's shape that may be public, from a public batch or the previous aggregate.
        block_size, codewords: maximum values; the shape may cap them.
        stages: number of codebooks, each for the residual of those before it.
        keep_zero: whether a block of zeros is decoded as zeros; it costs one codeword in each stage.
        previous: the scheme to refresh; its codebooks are this round's initial ones.

    Security: the codebooks are broadcast. Codebooks learned from a client's own update reveal it in part.
    """
    if getattr(sample, "dtype", np.dtype(bool)).kind != "f":
        raise Misuse("a sample must be an array of floats in the tensor's shape")
    geometry = block_geometry(sample.shape, block_size, codewords)
    require_integer("stages", stages, 1, MAXIMUM_STAGES)
    if previous is not None and (previous.shape != sample.shape or len(previous.codebooks) != stages):
        raise InvalidParameters("the previous scheme has another shape or number of stages; start without it")
    blocks = _blocks(sample, geometry.block_size)
    wanted = geometry.codewords * SAMPLE_BLOCKS
    points = sample_blocks(blocks, wanted, seed=seed, without_zeros=keep_zero).astype(np.float64)
    codebooks = list[Codebook]()
    for stage in range(stages):
        learned = learn_codewords(
            points,
            geometry.codewords,
            seed=seed,
            iterations=iterations,
            start=None if previous is None else previous.codebooks[stage].values,
            keep_zero=keep_zero,
        )
        codebooks.append(Codebook(learned))
        if stage + 1 < stages:
            (nearest,) = nearest_codewords(points, [codebooks[-1].values])
            points -= codebooks[-1].values[nearest]
    return ProductQuantization(shape=sample.shape, codebooks=tuple(codebooks))


def _blocks(update: Floats, size: int) -> Floats:
    return update.reshape(-1, size)
