"""A model's arrays in the form that is aggregated, and scales and codebooks that follow from sums alone.

Floating-point tensors change by a float difference. Integer tensors, such as the counters of a normalisation layer,
change by an integer difference, whose weighted mean is rounded to the nearest integer; it is exact up to its bound,
and cut off there. Both keep their dtype. Tensors without elements, tensors that no pattern names, and
booleans, whose sum means nothing, stay as they were sent; training must not change a boolean. Other dtypes are
refused by name.

Scales need neither public data nor anybody's update in the clear. Each client adds one number for each compressed
tensor to the secure sum: how far its values reach (``stat``), or how long they are (``prior``). The server learns the
means of these and nothing else, and they are the next round's scales. The first round has none, and is sent
uncompressed. A codebook that was fitted to the sum of the round before would consist of sums of its own codewords, and
shrink or explode from round to round; a codebook of no data does not, since only its length follows the updates.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import isfinite
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.cohort_bits import code_within
from secagg.compression.common import LOG, PublicStream
from secagg.compression.custom import CustomScheme, Factory
from secagg.compression.downlink import Sums
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import weighting
from secagg.compression.model_update.codec import ModelUpdate, Shape, TensorScheme
from secagg.compression.model_update.plan import FitsEvery, Sample, Scheme
from secagg.compression.peak import NORM_LEVELS, KnownLengths, LevelCode, PeakCode, level_votes
from secagg.compression.product_quantization import (
    Codebook,
    ProductQuantization,
    block_geometry,
    is_quantizable,
    learn_codewords,
    nearest_codewords,
)
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import Gains, JoinedRotation
from secagg.compression.scalar_quantization import DitheredQuantization, Rounding, ScalarQuantization
from secagg.contract import Aggregate
from secagg.contract.layout import RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Reason

Arrays = Mapping[str, npt.NDArray[Any]]
TENSOR: Final = "tensor/"
"""Before the name of every tensor of the model, so that none can be taken for the vector of metrics."""
METRICS: Final = "secagg/metrics"
_NARROW_FLOAT_BYTES: Final = 4
_LARGEST_WHOLE: Final = 1 << 53


def is_integer(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor is aggregated as integers."""
    return array.dtype.kind in "iu"


def is_boolean(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor stays as it was sent, whatever is summed."""
    return array.dtype.kind == "b"


def aggregated_names(sent: Arrays, patterns: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the tensors that are summed, in their order.

    Args:
        patterns: of names, as a shell has them; without one all are summed.
        excluded: patterns of names that are not, such as parts that each client keeps for itself.
    """
    for key, each in (("secagg-tensors", patterns), ("secagg-exclude", excluded)):
        if idle := [pattern for pattern in each if not any(fnmatchcase(name, pattern) for name in sent)]:
            raise InvalidParameters(f"{key} names {idle[0]}, and the model has {', '.join(list(sent)[:8])}")
    left = [name for name in sent if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    chosen = [name for name in left if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in chosen:
        if sent[name].dtype.kind not in "fiub":
            raise InvalidParameters(
                f"tensor {name!r} is of dtype {sent[name].dtype}, which has no sum; leave it out of the record that is "
                "aggregated, name the others in secagg-tensors, or send it as floats"
            )
    names = tuple(name for name in chosen if sent[name].size and not is_boolean(sent[name]))
    if not names:
        named = f" that secagg-tensors ({', '.join(patterns)}) names" if patterns else ""
        named += f" and secagg-exclude ({', '.join(excluded)}) does not" if excluded else ""
        raise InvalidParameters(
            f"the model has no tensor of numbers with any elements{named}; send the arrays that clients train"
        )
    return names


def differences(
    sent: Arrays, trained: Arrays, integer_bound: float, names: Iterable[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return by how much training changed each tensor that is summed, under the names of the update.

    Args:
        names: of the tensors that are summed; by default all that can be. Others that training returns stay here.
    """
    summed = aggregated_names(sent) if names is None else tuple(names)
    if missing := sorted({*summed} - trained.keys() | trained.keys() - sent.keys()):
        raise InvalidParameters(
            f"training returned other tensors than were sent and are summed: {missing[:4]}; return those and no new "
            "ones, or name in secagg-tensors which ones are trained"
        )
    for name, before in sent.items():
        if is_boolean(before) and name in trained and not np.array_equal(before, trained[name]):
            raise InvalidParameters(
                f"training changed the boolean tensor {name!r}, which has no sum; send it as floats, or leave it alone"
            )
    update = dict[str, npt.NDArray[Any]]()
    for name in summed:
        before, after = sent[name], trained[name]
        if before.shape != after.shape:
            raise InvalidParameters(
                f"tensor {name!r} was sent with shape {before.shape} and returned with {after.shape}"
            )
        if is_integer(before) and after.dtype.kind == "f" and np.array_equal(after, np.rint(after)):
            # Whole numbers that training made floats of.
            after = np.clip(after, -_LARGEST_WHOLE, _LARGEST_WHOLE).astype(np.int64)
        elif is_integer(after) and before.dtype.kind == "f" and np.array_equal(before, np.rint(before)):
            # Whole numbers that a strategy or a saved model made floats of.
            after = after.astype(np.float64)
        if is_integer(before) != is_integer(after) or after.dtype.kind not in "fiu":
            raise InvalidParameters(f"tensor {name!r} was sent as {before.dtype} and returned as {after.dtype}")
        if is_integer(before):
            change = np.subtract(after, before, dtype=np.int64, casting="unsafe").astype(np.float64)
            change = np.clip(change, -integer_bound, integer_bound)
        else:
            wide = np.float32 if max(before.itemsize, after.itemsize) <= _NARROW_FLOAT_BYTES else np.float64
            change = np.subtract(after, before, dtype=wide, casting="unsafe")
        update[TENSOR + name] = np.ascontiguousarray(change).reshape(before.shape)
    return update


def applied(sent: Arrays, mean: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return the model that was sent, changed by the mean difference; every tensor keeps its dtype."""
    changed = dict[str, npt.NDArray[Any]]()
    for name, before in sent.items():
        difference = mean.get(TENSOR + name)
        if difference is None:
            changed[name] = before
        elif is_integer(before):
            changed[name] = (before.astype(np.int64) + np.rint(difference).astype(np.int64)).astype(before.dtype)
        else:
            changed[name] = (before.astype(np.float64) + difference).astype(before.dtype)
    return changed


def restored(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a tensor of integers or booleans as it was before a strategy multiplied it by floats."""
    if array.dtype == dtype or dtype.kind not in "iub" or array.dtype.kind in "iub":
        return array
    changed: npt.NDArray[Any] = array.astype(bool) if dtype.kind == "b" else np.rint(array).astype(dtype)
    return changed


def model_digest(sent: Arrays) -> bytes:
    """Return the digest of a model, or of an update that is not rounded yet: names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, array in sent.items():
        described = f"{len(name.encode())}:{name}:{array.dtype.str}:{array.shape}:".encode()
        digest.update(described)
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()


# --- Scales that clients tell -----------------------------------------------------------------------------------------

STATISTICS: Final = "secagg/statistics"
"""The name of the tensor that the clients' statistics are sent as."""
LEAST_LENGTH: Final = 2.0**-40
"""Length for which a tensor that did not move is calibrated; zero would make no scale."""
_BLOCKS_PER_CODEWORD: Final = 512
_MOST_BLOCKS: Final = 1 << 15
_ITERATIONS: Final = 30
_SEED: Final = bytes(32)
_EPOCH: Final = struct.Struct(">Q")


def reach(values: npt.NDArray[Any]) -> float:
    """Return the largest magnitude."""
    return float(np.abs(values).max())


def length(values: npt.NDArray[Any]) -> float:
    """Return the root mean square of the values that are not zero: most rows of an embedding are never touched."""
    moved = np.count_nonzero(values)
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()) / moved) if moved else 0.0


def rotated_reach(values: npt.NDArray[Any]) -> float:
    """Return how far the values reach once a rotation has made them bell-shaped, up to a few percent.

    The largest of n normal values of length 1 is near the root of 2 ln n.
    """
    root_mean_square = math.sqrt(float(np.square(values, dtype=np.float64).mean()))
    return root_mean_square * math.sqrt(2 * math.log(max(2, values.size)))


@lru_cache(maxsize=64)
def unit_codebooks(codewords: int, block_size: int, stages: int = 1) -> tuple[npt.NDArray[np.float64], ...]:
    """Return codebooks for blocks of independent Laplace values of length 1, stage by stage; learned once.

    Updates of models have heavier tails than normal values, and these fit them without having seen any.
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
    """Return the share of a signal that codewords of no data keep: what they are multiplied by, on average over blocks.

    A codeword is the mean of the blocks that choose it, and shorter than they are. A small change that many clients
    have in common is shortened likewise, so a mean that is divided by this share is nearly as long as it should be.
    """
    points = _unit_points((codewords, block_size, stages), _MOST_BLOCKS >> 1, block_size)
    left = points.astype(np.float32)
    for book in unit_codebooks(codewords, block_size, stages):
        (nearest,) = nearest_codewords(left, [book.astype(np.float32)])
        left -= book.astype(np.float32)[nearest]
    return float(np.vdot(points, points - left) / np.vdot(points, points))


def _unit_points(numbers: tuple[int, ...], count: int, block_size: int) -> npt.NDArray[np.float64]:
    """Return blocks of Laplace values of length 1, the same ones for the same numbers."""
    seed = bind(Label.CODEBOOK_POINTS, *(number.to_bytes(8, "big") for number in numbers))
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(4 * count * block_size), dtype="<u4")
    # The middle of each cell, so that no logarithm is of zero; the sides are those of the distribution's median.
    placed = (drawn.astype(np.float64) + 0.5) * 2.0**-31 - 1
    points: npt.NDArray[np.float64] = (-np.sign(placed) * np.log1p(-np.abs(placed))).reshape(count, block_size)
    return points / math.sqrt(float(np.square(points).mean()))


@dataclass(frozen=True, slots=True)
class Made(FitsEvery):
    """A recipe: whatever is made of a tensor's place, without a sample."""

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
    """Return the recipe of scalar quantization whose greatest code stands for a given reach."""
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
    """Return the recipe of dithered quantization whose ends stand for a given reach."""
    scale = max(reach, LEAST_LENGTH) / (1 << (bits - 1))
    return Made(
        lambda place: DitheredQuantization(
            shape=place.shape, bits=bits, modulus_bits=modulus_bits, scale=scale, fine_bits=fine_bits
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCodebooks:
    """A recipe: product quantization with codebooks of no data, times a length."""

    length: float
    codewords: int
    block_size: int
    stages: int
    is_capped: bool = True
    """Whether a tensor has no more codewords than could be learned from it, as the paper's has; these are not."""

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
    """Return the statistics of a decoded mean, as the float32 that they travel as."""
    return [float(np.float32(value)) for value in mean[STATISTICS]]


# --- Values that are summed -------------------------------------------------------------------------------------------

UPDATE: Final = weighting.UPDATE
LENGTHS: Final = "secagg/lengths"
"""The name of the clients' votes: for the length of the whole update, and for that of each tensor."""
TOLD: Final[Mapping[str, Callable[[npt.NDArray[Any]], float]]] = {"secagg/reach": reach, "secagg/length": length}
"""Values that clients report of every tensor of floats of more than one dimension, by the name of the vector that
holds them; the means over the clients are the scales of the next round."""
_KEY_BYTES: Final = 32
_COINS: Final = Ring(32)
Values = dict[str, npt.NDArray[Any]]
Range = tuple[int, int]


def peaks(places: int, known: KnownLengths) -> Made:
    """Return the recipe of a round's peak code, under the scales that follow from known lengths."""
    return Made(lambda place: PeakCode(rotation=known.rotation(place), places=places))


def bounded_noise(cohort: int, noise: float, known: KnownLengths) -> Made:
    """Return the recipe of a code of the whole update whose noise is about this at most."""
    return Made(lambda place: code_within(known.rotation(place), cohort, noise))


def votes() -> Made:
    """Return the recipe of one vote for each length."""
    return Made(lambda place: level_votes(place.shape[0]))


def known_lengths(sent: Arrays, joined: Sequence[str], lengths: Sequence[float]) -> KnownLengths:
    """Return what a round's lengths say of the joined tensors.

    Raises:
        MalformedMessage: there is not one for the update and one for each tensor, or one is not a length.
    """
    if lengths and (len(lengths) != 1 + len(joined) or not all(isfinite(one) and one >= 0 for one in lengths)):
        raise MalformedMessage(
            f"there are {len(lengths)} lengths, and {len(joined)} tensors have {1 + len(joined)}; each is a number "
            "from 0 on",
            reason=Reason.NOT_CANONICAL,
        )
    sizes = tuple(sent[name].size for name in joined)
    return KnownLengths(sizes=sizes, common=lengths[0] if lengths else None, tensors=tuple(lengths[1:]) or None)


def votes_shape(joined: Sequence[str]) -> Shape:
    """Return the shape of a client's votes."""
    return (1 + len(joined), NORM_LEVELS)


def custom_scheme(name: str, factory: Factory, cohort: int) -> Made:
    """Return the recipe of a custom scheme."""
    return Made(
        lambda place: CustomScheme(
            name=name, values=place.size, cohort=cohort, seed=place.seed, epoch=place.round_number, factory=factory
        )
    )


def told_names(shapes: Mapping[str, Shape], sent: Arrays) -> tuple[str, ...]:
    """Return the names of the tensors about which clients report something, in their order."""
    floats = {TENSOR + name for name, array in sent.items() if not is_integer(array)}
    return tuple(name for name, shape in shapes.items() if name in floats and len(shape) > 1)


def with_told(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]], sent: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return the values with what the update asks clients to tell of them."""
    found = dict(values)
    names = told_names({tensor.name: tensor.shape for tensor in update.tensors}, sent)
    for kind, measure in TOLD.items():
        if kind in update.names:
            found[kind] = np.array([measure(values[name]) for name in names], dtype=np.float64)
    return found


def taken_told(mean: dict[str, npt.NDArray[Any]], sent: Arrays) -> dict[str, float]:
    """Take what clients told out of a mean, and return it by the names of tensors."""
    names = told_names({name: array.shape for name, array in mean.items()}, sent)
    for kind in TOLD:
        if kind in mean:
            return dict(zip(names, map(float, mean.pop(kind)), strict=True))
    return {}


def with_joined(values: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the values with those of these tensors joined to one vector."""
    found, parts = dict(values), [TENSOR + name for name in names if TENSOR + name in values]
    if parts:
        found[UPDATE] = np.concatenate([found.pop(name).astype(np.float32).reshape(-1) for name in parts])
    return found


def part(mean: dict[str, npt.NDArray[Any]], names: Sequence[str], sent: Arrays) -> None:
    """Put tensors in the place of the vector that they were joined to."""
    if UPDATE in mean:
        edges = np.cumsum([sent[name].size for name in names])[:-1].tolist()
        for name, values in zip(names, np.split(mean.pop(UPDATE), edges), strict=True):
            mean[TENSOR + name] = values.reshape(sent[name].shape)


def with_votes(
    update: ModelUpdate,
    values: Mapping[str, npt.NDArray[Any]],
    sent: Arrays,
    joined: Sequence[str],
    lengths: Sequence[float],
) -> Values:
    """Return the values with a client's votes, where the update asks for them."""
    found = dict(values)
    if LENGTHS in update.names:
        known = known_lengths(sent, joined, lengths)
        found[LENGTHS] = known.votes(known.told(whole_code(update).rotation, found[UPDATE], with_tensors=True))
    return found


@dataclass(frozen=True, slots=True)
class ToldLengths:
    """Lengths of a round's updates, by their clients' votes."""

    middle: float
    """Length of the mean."""
    alike: float
    """Squared mean over mean square; 1 where all are equal."""
    known: tuple[float, ...]
    """Lengths that those of the next round are relative to: of the update, and of each tensor."""


def take_lengths(  # noqa: PLR0913 -- what a round is about
    update: ModelUpdate, mean: Values, sent: Arrays, joined: Sequence[str], lengths: Sequence[float], *, trained: float
) -> ToldLengths | None:
    """Take the votes out of a mean, and give its update the middle length; None where nobody votes.

    Args:
        trained: the share of the clients whose training did not fail; the others vote as well.
    """
    if LENGTHS not in update.names:
        return None
    known, shares = known_lengths(sent, joined, lengths), mean.pop(LENGTHS).astype(np.float64)
    # Updates of zeros vote for the least level, and half of them would make it the middle one.
    shares[:, 0] = np.maximum(shares[:, 0] - (1 - trained), 0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    relative = known.middle(shares)
    if relative[0] >= known.longest:
        LOG.warning(
            "half of the updates or more are longer than the longest level, %.3g times what is known; the model moves "
            "by that level, and the next round knows more",
            known.longest,
        )
    length, after = known.after(relative, whole_code(update).rotation)
    mean[UPDATE] = mean[UPDATE] * np.float32(length)
    return ToldLengths(length, known.alike(shares[0]), (after.common or 0.0, *(after.tensors or ())))


@dataclass(frozen=True, slots=True)
class PeakSum:
    """Sums of the signs or levels of a code, and the factors that make them a mean of updates."""

    sums: Sums
    rotation: JoinedRotation
    gains: Gains


def peak_sum(update: ModelUpdate, aggregate: Aggregate, length: float) -> PeakSum:
    """Return what a sum of peaks or levels holds, for updates of this length."""
    code = whole_code(update)
    sums = code.signs(update.part(aggregate, UPDATE)).astype(np.int32)
    return PeakSum(sums, code.rotation, code.gains.times(length / update.counted(aggregate).divisor(UPDATE, code)))


def rounded_at_random(
    update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]], coins: Coins
) -> dict[str, npt.NDArray[Any]]:
    """Return the values with those of fixed point moved to a step above or below, so that the mean is the value.

    The bias is at most 2^-32 of a step. Rounding to the nearest step would lose values that are small in every round.
    """
    rounded = dict(values)
    for tensor in update.tensors:
        scheme = fixed_point(tensor)
        if scheme is None or tensor.name not in values:
            continue
        given = values[tensor.name]
        with Secret.random("rounding_key", _KEY_BYTES, coins) as key:
            drawn = expand(key, _COINS, given.size)
        steps = np.ldexp(given.astype(np.float64).ravel(), scheme.fraction_bits)
        steps += np.ldexp(drawn.astype(np.float64), -_COINS.modulus_bits)
        rounded[tensor.name] = np.ldexp(np.floor(steps, out=steps), -scheme.fraction_bits).reshape(given.shape)
    return rounded


def steps_in(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return the root mean square of the changes that travel in fixed point, in steps; infinity if none does."""
    squares, count = 0.0, 0
    for tensor in update.tensors:
        scheme = fixed_point(tensor)
        # Integers are exact, and metrics have a step of their own.
        if scheme is not None and scheme.fraction_bits and tensor.name != METRICS and tensor.name in values:
            found = np.asarray(values[tensor.name], dtype=np.float64).ravel()
            squares += float(np.dot(found, found)) * 4.0**scheme.fraction_bits
            count += found.size
    return math.sqrt(squares / count) if count else math.inf


def fixed_point(tensor: TensorScheme) -> FixedPoint | None:
    """Return the scheme in which a tensor's values travel, of what pruning leaves too; None if it is another one."""
    scheme: object = tensor.scheme
    if isinstance(scheme, RandomPruning):
        scheme = scheme.inner
    return scheme if isinstance(scheme, FixedPoint) else None


def clipped_share(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return which part of a client's floats the schemes cut off; it is for the client's own log."""
    beyond, count = 0, 0
    for tensor in update.tensors:
        if tensor.name in values and (limit := _limit(tensor)) is not None:
            found = values[tensor.name]
            count += found.size
            # Two passes without a copy, which is all that most tensors need.
            if found.max() > limit or found.min() < -limit:
                beyond += int(np.count_nonzero(np.abs(found) > limit))
    return beyond / count if count else 0.0


def value_bounds(update: ModelUpdate) -> tuple[Range | None, ...]:
    """Return for each segment of the layout between which integers one value lies, where all its schemes say that."""
    found = dict[Segment, list[Range | None]]()
    for tensor in update.tensors:
        for segment in tensor.scheme.layout.segments:
            found.setdefault(_kind(segment), []).append(range_of(tensor))
    return tuple(_joined(found[_kind(segment)]) for segment in update.layout.segments)


def _kind(segment: Segment) -> Segment:
    return replace(segment, length=1) if isinstance(segment, RingSegment) else replace(segment, blocks=1)


def range_of(tensor: TensorScheme) -> Range | None:
    """Return between which integers one value lies; None where its scheme does not say that."""
    scheme: object = tensor.scheme
    if (fixed := fixed_point(tensor)) is not None:
        return -fixed.bound, fixed.bound
    return (scheme.least, scheme.greatest) if isinstance(scheme, ScalarQuantization) else None


def _joined(ranges: list[Range | None]) -> Range | None:
    known = [one for one in ranges if one is not None]
    if len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def integer_bound(update: ModelUpdate, sent: Arrays) -> float:
    """Return how far an integer tensor may change."""
    integers = {TENSOR + name for name in sent if is_integer(sent[name])}
    schemes: list[object] = [tensor.scheme for tensor in update.tensors if tensor.name in integers]
    return min((scheme.clip for scheme in schemes if isinstance(scheme, FixedPoint)), default=0.0)


def _limit(tensor: TensorScheme) -> float | None:
    scheme: object = tensor.scheme
    match scheme:
        case FixedPoint():
            return scheme.clip
        case ScalarQuantization():
            return scheme.scales[0] * (scheme.greatest + 0.5)
        case _:
            return None


def whole_code(update: ModelUpdate) -> PeakCode | LevelCode:
    """Return the code of all tensors of floats as one vector, where clients vote for lengths next to it."""
    return cast("PeakCode | LevelCode", next(tensor.scheme for tensor in update.tensors if tensor.name == UPDATE))
