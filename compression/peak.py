"""Peak code: the position and sign of the largest value in each block of d rotated values.

A block becomes one of 2d codewords, +e_i and -e_i: index 0..d-1 means a positive peak, d..2d-1 a negative one, and the
first of equal values counts (cross-polytope vector quantization). After a rotation values are nearly normal, so the
kept share depends only on d; dividing by it makes the decoded sum of directions unbiased over the rotations. The code
gives the direction of an update, not its length: every update is decoded with the length ``unit``. Clients may report
their lengths next to the code, in public levels, so that a protocol that checks blocks also checks lengths
(``norm_levels``).

For more than one bit a value, ``LevelCode`` rounds every rotated value to one of k levels: 2i - (k - 1) half steps,
with the best step for normal values.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, public_parameters_digest
from secagg.contract.codewords import CodewordTable, Tables, require_summed
from secagg.contract.layout import MAXIMUM_CODEWORDS
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .common import PublicStream, float32_capacity, require_sum
from .product_quantization import Codebook, ProductQuantization
from .rotation import BLOCK_SIZE, Floats, Gains, JoinedRotation, Update, square_root_scales

MAXIMUM_PLACES: Final = MAXIMUM_CODEWORDS // 2
MOST_SUMMED_PLACES: Final = 2048
"""Maximum places for a table of codewords: it takes 64 MB here, and four times that for twice the places."""
EXACT_WEIGHT: Final = 1 << 24
"""Up to this many uploads, a sum of signs is exact in float32."""
NORM_LEVELS: Final = 256
MOST_LEVELS: Final = 256
_GREATEST: Final = 2.0**126
"""Factor of a float32; values of even shorter updates are only in the middle levels."""
_LEVEL_STEPS: Final = np.geomspace(0.02, 2.0, 400)
"""Candidate steps, in standard deviations of the values."""
_VALUES_AT_A_TIME: Final = 1 << 16
_STEPS: Final = 24001
_FARTHEST: Final = 12.0
LEAST_ALIKE: Final = 0.7
"""Squared mean of the lengths over their mean square, below which a warning says that the mean is biased."""
_LEAST_NORM: Final = 2.0**-40
"""Length used in place of zero, which cannot be a reference."""
_ROUNDING: Final = 1e-9
"""Tolerance of shares of a weight."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakCode:
    """Encodes a vector of all values of a model as positions and signs of the peaks of its rotation.

    Security: as with every codebook, a histogram reveals more than the sum; release it only when it holds enough
    clients. Every decodable update has the same length, at most ``largest_norm``, whatever its client chose: if
    blocks are checked, one client's influence is bounded.
    """

    rotation: JoinedRotation
    places: int
    """Number of values in a block, d."""
    unit: float = 1.0
    """Length with which each client's scaled update is decoded, such as the previous round's mean."""
    layout: Layout = field(init=False, repr=False)
    """One segment of indices below 2d."""

    def __post_init__(self) -> None:
        require_integer("places", self.places, 1, MAXIMUM_PLACES)
        if type(self.unit) is not float or not 2.0**-100 <= self.unit <= 2.0**100:
            raise InvalidParameters(f"unit must be a float in 2^-100..2^100; got {self.unit!r}")
        encoded = self.rotation.encode() + struct.pack(">Id", self.places, self.unit)
        version = public_parameters_digest("peak", encoded)
        object.__setattr__(self, "layout", Layout((IndexSegment(2 * self.places, self.blocks),), version))

    @property
    def length(self) -> int:
        return self.rotation.size

    @property
    def blocks(self) -> int:
        """Number of blocks of a rotated update; the last one may be padded with zeros."""
        return -(-self.rotation.padded // self.places)

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sums of signs are exact in float32, which decoding uses."""
        return min(EXACT_WEIGHT, float32_capacity(self.largest_norm))

    @property
    def tables(self) -> Tables:
        """The 2d codewords, in steps of one sign.

        Raises:
            InvalidParameters: there are too many of them for a table.
        """
        if self.places > MOST_SUMMED_PLACES:
            raise InvalidParameters(
                f"a table of 2 x {self.places} codewords takes too much memory: use at most {MOST_SUMMED_PLACES} "
                "places, or a protocol that releases histograms"
            )
        signs = np.eye(2 * self.places, self.places, dtype=np.int64)
        signs -= np.eye(2 * self.places, self.places, -self.places, dtype=np.int8)
        return ((CodewordTable(self.blocks, signs),),)

    @property
    def largest_norm(self) -> float:
        """Maximum length of a single decoded update, whatever a client sends.

        Claim CO-4: one codeword a block, all of one norm, so every rotated update has the same length.
        """
        gains = self._gain(self.places) * math.sqrt(self.blocks - 1), self._gain(self._last)
        return max(self.rotation.scales) * math.hypot(*gains)

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Find the largest value of each block; a block of zeros draws its codeword from the coins."""
        rows = self.rotation.turned(update, self.blocks * self.places).reshape(self.blocks, self.places)
        step = max(1, min(self.blocks, _VALUES_AT_A_TIME // self.places))
        indices = np.empty(self.blocks, self.layout.segments[0].ring.word)
        peaks, sizes = np.empty(self.blocks, np.float32), np.empty((step, self.places), np.float32)
        begins = np.arange(0, sizes.size, self.places)
        for first in range(0, self.blocks, step):
            some = rows[first : first + step]
            at = np.abs(some, out=sizes[: len(some)]).argmax(axis=1)
            indices[first : first + step] = at
            peaks[first : first + step] = some.reshape(-1).take(at + begins[: len(some)])
        indices += (peaks < 0) * indices.dtype.type(self.places)
        empty = np.flatnonzero(peaks == 0)
        if len(empty):
            # This choice counts like any other block, so it must favour no direction on average.
            drawn = np.frombuffer(coins.draw(4 * len(empty)), dtype="<u4")
            indices[empty] = drawn % (2 * self.places)
        return Payload(self.layout, (indices,))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        return self.rotation.turned_back(self.signs(aggregate), self.gains)

    def decode_summed(self, aggregate: Aggregate) -> Floats:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        return self.rotation.turned_back(self.signs(aggregate), self.gains)

    def signs(self, aggregate: Aggregate) -> Floats:
        """Return the integer sums of the signs of rotated values, from a histogram or sums of codewords."""
        require_capacity(aggregate.contributors, self.capacity)
        if aggregate.layout == self.layout:
            counts = aggregate.values[0].view(np.int64)
            signs = np.empty((self.blocks, self.places), np.float32)
            np.subtract(counts[:, : self.places], counts[:, self.places :], out=signs, casting="unsafe")
        else:
            (segment,) = aggregate.layout.require_rings()
            signs = segment.ring.lift(aggregate.values[0]).astype(np.float32)
        return signs.reshape(-1)[: self.rotation.padded]

    @property
    def gains(self) -> Gains:
        """Decoded values of a peak, in whole blocks and in a shorter last one."""
        last = self._last % self.places
        return Gains(self._gain(self.places), last, self._gain(last) if last else 1.0)

    @property
    def _last(self) -> int:
        return self.rotation.padded - (self.blocks - 1) * self.places

    def _gain(self, places: int) -> float:
        """Return the decoded value of a peak: the length of a block's part of an update, over the kept share."""
        return self.unit * places / (mean_peak(places) * math.sqrt(self.rotation.padded))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelCode:
    """Encodes a vector of all values of a model as levels of its rotation: for more than one bit a value.

    Security: a client that always chooses the outermost levels sends an update of length ``largest_norm``. Its length
    over an honest one's is about the outermost level in standard deviations: 1.5 with 4 levels, 2.7 with 16.
    """

    rotation: JoinedRotation
    levels: int
    """Number of levels, a power of two."""
    layout: Layout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_integer("levels", self.levels, 2, MOST_LEVELS)
        if self.levels & (self.levels - 1):
            raise InvalidParameters(f"levels must be a power of two; got {self.levels}")
        version = public_parameters_digest("levels", self.rotation.encode() + struct.pack(">I", self.levels))
        object.__setattr__(self, "layout", Layout((IndexSegment(self.levels, self.rotation.padded),), version))

    @property
    def length(self) -> int:
        return self.rotation.size

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sums of levels are exact in float32, which decoding uses."""
        return min(EXACT_WEIGHT // self.levels, float32_capacity(self.largest_norm))

    @property
    def tables(self) -> Tables:
        return ((CodewordTable(self.rotation.padded, _places(self.levels)[:, np.newaxis]),),)

    @property
    def largest_norm(self) -> float:
        """Maximum length of a single decoded update, whatever a client sends.

        Claim CO-4: every value is at most the outermost level.
        """
        return max(self.rotation.scales) * (self.levels - 1) / _best(self.levels).gain

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Round each value to the nearest level; an update of zeros draws one of the two middle levels."""
        turned, norm = self.rotation.turned_with_norm(update)
        if norm:
            factor = math.sqrt(self.rotation.padded) / (norm * _best(self.levels).step)
            turned *= np.float32(min(factor, _GREATEST))
        else:
            drawn = np.frombuffer(coins.draw(self.rotation.padded), dtype=np.uint8) & 1
            turned += drawn.astype(np.float32) - np.float32(0.5)
        turned += np.float32(self.levels / 2)
        np.clip(np.floor(turned, out=turned), 0, self.levels - 1, out=turned)
        return Payload(self.layout, (turned.astype(self.layout.segments[0].ring.word),))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        return self.rotation.turned_back(self.signs(aggregate), self.gains)

    def decode_summed(self, aggregate: Aggregate) -> Floats:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        return self.rotation.turned_back(self.signs(aggregate), self.gains)

    def signs(self, aggregate: Aggregate) -> Floats:
        require_capacity(aggregate.contributors, self.capacity)
        if aggregate.layout == self.layout:
            counts: Any = aggregate.values[0].view(np.int64)
            sums: Floats = (counts @ _places(self.levels)).astype(np.float32)
        else:
            (segment,) = aggregate.layout.require_rings()
            sums = segment.ring.lift(aggregate.values[0]).astype(np.float32)
        return sums

    @property
    def gains(self) -> Gains:
        """Decoded value of half a step."""
        return Gains(1 / (_best(self.levels).gain * math.sqrt(self.rotation.padded)))


def level_noise(levels: int, cohort: int) -> float:
    """Return the noise of a mean of orthogonal updates, in units of one client's energy."""
    share = _best(levels).share
    return (1 - share) / (share * cohort)


@dataclass(frozen=True, slots=True)
class _Step:
    """Step of the best quantizer with k levels, for normal values."""

    step: float
    gain: float
    """Mean of a value times its level."""
    share: float
    """Kept share of the energy."""


def _places(levels: int) -> Any:  # noqa: ANN401 -- an array of int64
    return 2 * np.arange(levels, dtype=np.int64) - (levels - 1)


@lru_cache(maxsize=8)
def _best(levels: int) -> _Step:
    places, found = _places(levels), _Step(1.0, 1.0, 0.0)
    for step in _LEVEL_STEPS.tolist():
        edges = step * np.concatenate([[-math.inf], places[:-1] / 2 + 0.5, [math.inf]])
        below = np.array([0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges.tolist()])
        density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
        gain = float(places @ (density[:-1] - density[1:]))
        share = gain**2 / float(places**2 @ np.diff(below))
        if share > found.share:
            found = _Step(step, gain, share)
    return found


def voted(payload: Payload, share: float, coins: Coins) -> Payload:
    """Return a payload that keeps each block of the update with this probability and draws the others.

    A drawn block has no direction on average, so an update with a share of the common length is decoded with that
    share, and the mean over clients of unequal lengths is unbiased.
    """
    segment, indices = payload.layout.segments[0], payload.values[0].copy()
    codewords = segment.codewords if isinstance(segment, IndexSegment) else 1
    drawn = np.frombuffer(coins.draw(8 * len(indices)), dtype="<u4").reshape(2, -1)
    is_drawn = drawn[0] >= share * 2.0**32
    indices[is_drawn] = drawn[1][is_drawn] % codewords
    return Payload(payload.layout, (indices, *payload.values[1:]))


def length_levels(*, references: bool) -> npt.NDArray[np.float64]:
    """Return the 256 geometric levels of lengths, in increasing order.

    Args:
        references: whether lengths are relative to public ones. Then the levels are 2^-6 to 2^2, and one client of N
        scales a mean by at most 1 + 4 / N; otherwise, as in a first round, they are 2^-14 to 2^6.
    """
    least, greatest = (-6.0, 2.0) if references else (-14.0, 6.0)
    return np.exp2(np.linspace(least, greatest, NORM_LEVELS))


def norm_levels(count: int, *, references: bool) -> ProductQuantization:
    """Return the scheme of ``count`` lengths, each a block with the nearest level; it reveals their mean."""
    levels = length_levels(references=references)
    return ProductQuantization(shape=(count, 1), codebooks=(Codebook(levels[:, np.newaxis]),))


def level_votes(count: int) -> ProductQuantization:
    """Return the scheme of ``count`` lengths as votes for levels; it reveals the number of votes for each level.

    A vote is a row with a one at its level. Votes reveal more than a mean, but their median is robust: fewer than half
    of the clients cannot move it beyond the others' lengths.
    """
    return ProductQuantization(shape=(count, NORM_LEVELS), codebooks=(_vote_codebook(),))


def is_votes(scheme: ProductQuantization) -> bool:
    """Whether a scheme is one of ``level_votes``, whose encoding needs only the number of lengths."""
    return len(scheme.codebooks) == 1 and np.array_equal(scheme.codebooks[0].values, _vote_codebook().values)


@lru_cache(maxsize=1)
def _vote_codebook() -> Codebook:
    return Codebook(np.eye(NORM_LEVELS))


@lru_cache(maxsize=256)
def mean_peak(places: int) -> float:
    """Return the mean of the largest magnitude of d normal values: the integral of 1 - P(|g| < t)^d."""
    at = np.linspace(0.0, _FARTHEST, _STEPS)
    inside = np.array([math.erf(value / math.sqrt(2)) for value in at.tolist()])
    return float(np.trapezoid(1 - inside**places, at))


def kept_share(places: int) -> float:
    """Return the share of normal values' energy that a peak keeps: the mean peak squared, over d."""
    return mean_peak(places) ** 2 / places


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLengths:
    """Lengths that clients reported in earlier rounds; none in the first round.

    Clients report lengths relative to the known ones: that of the scaled update, and in some rounds that of each
    tensor, which gives the tensors' scales. If blocks are checked, each length is a vote for a public level, and the
    median counts: fewer than half of the clients cannot move it beyond the others' lengths.
    """

    sizes: tuple[int, ...]
    """Number of values of each tensor."""
    common: float | None = None
    """Length of the scaled update, in the previous round."""
    tensors: tuple[float, ...] | None = None
    """Length of each tensor, when clients were last asked."""

    @property
    def is_informed(self) -> bool:
        """Whether a round was decoded; then all lengths are known."""
        return self.common is not None and self.tensors is not None

    @property
    def longest(self) -> float:
        """Highest level, relative to the known length; longer updates are clamped to it."""
        return float(length_levels(references=self.is_informed)[-1])

    def rotation(self, stream: PublicStream) -> JoinedRotation:
        """Return the rotation of a round, with scales from the tensors' lengths."""
        scales = () if self.tensors is None else square_root_scales(self.sizes, self.tensors)
        return JoinedRotation(stream=stream, sizes=self.sizes, scales=scales, block_size=block_size_for(stream.size))

    def told(self, rotation: JoinedRotation, update: Update, *, with_tensors: bool) -> Update:
        """Return a client's report: the lengths of its update, relative to the known ones."""
        norms = [rotation.norm(update), *(rotation.norms(update) if with_tensors else ())]
        return np.array(norms) / self._references(with_tensors=with_tensors)

    def votes(self, relative: Update) -> Floats:
        """Return a row for each length, with a one at the nearest level."""
        levels = np.log2(length_levels(references=self.is_informed))
        at = np.abs(np.log2(np.maximum(relative, _LEAST_NORM))[:, np.newaxis] - levels).argmin(axis=1)
        votes: Floats = np.eye(len(levels), dtype=np.float32)[at]
        return votes

    def middle(self, shares: Update, share: float = 0.5) -> npt.NDArray[np.float64]:
        """Return the median level of each row of shares; the midpoint of two if half of the weight is on each side.

        Args:
            share: quantile to return instead of the median.
        """
        levels, below = length_levels(references=self.is_informed), np.cumsum(shares, axis=1)
        lower, upper = ((below >= half).argmax(axis=1) for half in (share - _ROUNDING, share + _ROUNDING))
        middle: npt.NDArray[np.float64] = np.sqrt(levels[lower] * levels[upper])
        return middle

    def alike(self, shares: Update) -> float:
        """Return the squared mean of the lengths over their mean square, from the shares of the votes for each level.

        It is 1 if all are equal. A mean of directions times one length overweights short updates.
        """
        levels = length_levels(references=self.is_informed)
        return float(shares @ levels) ** 2 / max(float(shares @ levels**2), _LEAST_NORM**2)

    def after(self, relative: Update, rotation: JoinedRotation) -> tuple[float, KnownLengths]:
        """Return the length of a round's mean from its clients' reports, and the next round's known lengths."""
        references = self._references(with_tensors=len(relative) > 1)
        norms = np.maximum(relative * references, _LEAST_NORM).tolist()
        common, tensors = float(norms[0]), tuple(norms[1:])
        if not tensors:
            return common, KnownLengths(sizes=self.sizes, common=common, tensors=self.tensors)
        # From the next round on, lengths use the new scales.
        changed = _scaled(tensors, square_root_scales(self.sizes, tensors)) / _scaled(tensors, rotation.scales)
        return common, KnownLengths(sizes=self.sizes, common=common * changed, tensors=tensors)

    def _references(self, *, with_tensors: bool) -> npt.NDArray[np.float64]:
        """Return the reference lengths: the known ones, or ones in the first round."""
        if not self.is_informed:
            return np.ones(1)
        known = (self.common or 0.0, *((self.tensors or ()) if with_tensors else ()))
        return np.array([max(length, _LEAST_NORM) for length in known])


def block_size_for(values: int) -> int:
    """Return the block size for rotating a whole update."""
    return min(BLOCK_SIZE, 1 << max(1, (values - 1).bit_length()))


def _scaled(norms: tuple[float, ...], scales: tuple[float, ...]) -> float:
    """Return the length of tensors of these lengths, each divided by its scale."""
    return math.hypot(*(norm / scale for norm, scale in zip(norms, scales, strict=True)))
