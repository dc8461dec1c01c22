"""Values summed together with an update's tensors, and the bounds of summed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.cohort_bits import code_within
from secagg.compression.common import LOG
from secagg.compression.custom import CustomScheme, Factory
from secagg.compression.downlink import Sums
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import weighting
from secagg.compression.model_update.arrays import METRICS, TENSOR, Arrays, is_integer
from secagg.compression.model_update.codec import ModelUpdate, Shape, TensorScheme
from secagg.compression.model_update.scales import Made, length, reach
from secagg.compression.peak import NORM_LEVELS, KnownLengths, LevelCode, PeakCode, level_votes
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import Gains, JoinedRotation
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import Aggregate
from secagg.contract.layout import RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Reason

# --- Values that are summed -------------------------------------------------------------------------------------------

UPDATE: Final = weighting.UPDATE
LENGTHS: Final = "secagg/lengths"
"""Name of the clients' votes: for the length of the whole update and of each tensor."""
TOLD: Final[Mapping[str, Callable[[npt.NDArray[Any]], float]]] = {"secagg/reach": reach, "secagg/length": length}
"""Statistics that clients report of each float tensor with more than one dimension, by the name of their vector; their
means over the clients are the next round's scales."""
_KEY_BYTES: Final = 32
_COINS: Final = Ring(32)
Values = dict[str, npt.NDArray[Any]]
Range = tuple[int, int]


def peaks(places: int, known: KnownLengths) -> Made:
    """Return the recipe of a round's peak code, with scales from the known lengths."""
    return Made(lambda place: PeakCode(rotation=known.rotation(place), places=places))


def bounded_noise(cohort: int, noise: float, known: KnownLengths) -> Made:
    """Return the recipe of a code of the whole update with at most about this noise."""
    return Made(lambda place: code_within(known.rotation(place), cohort, noise))


def votes() -> Made:
    """Return the recipe in which a client votes once for the length of each tensor."""
    return Made(lambda place: level_votes(place.shape[0]))


def known_lengths(sent: Arrays, joined: Sequence[str], lengths: Sequence[float]) -> KnownLengths:
    """Return the known lengths of the joined tensors, from a round's lengths.

    Raises:
        MalformedMessage: the number of lengths is not one plus the number of tensors, or one is invalid.
    """
    if lengths and (len(lengths) != 1 + len(joined) or not all(isfinite(one) and one >= 0 for one in lengths)):
        raise MalformedMessage(
            f"{len(joined)} tensors need {1 + len(joined)} lengths, each a number of at least 0; got {len(lengths)} "
            "or an invalid one",
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
    """Return the names of the tensors with reported statistics, in order."""
    floats = {TENSOR + name for name, array in sent.items() if not is_integer(array)}
    return tuple(name for name, shape in shapes.items() if name in floats and len(shape) > 1)


def with_told(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]], sent: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return the values with the statistics that the update requests."""
    found = dict(values)
    names = told_names({tensor.name: tensor.shape for tensor in update.tensors}, sent)
    for kind, measure in TOLD.items():
        if kind in update.names:
            found[kind] = np.array([measure(values[name]) for name in names], dtype=np.float64)
    return found


def taken_told(mean: dict[str, npt.NDArray[Any]], sent: Arrays) -> dict[str, float]:
    """Remove the clients' statistics from a mean, and return them by tensor name."""
    names = told_names({name: array.shape for name, array in mean.items()}, sent)
    for kind in TOLD:
        if kind in mean:
            return dict(zip(names, map(float, mean.pop(kind)), strict=True))
    return {}


def with_joined(values: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the values with these tensors joined to one vector."""
    found, parts = dict(values), [TENSOR + name for name in names if TENSOR + name in values]
    if parts:
        found[UPDATE] = np.concatenate([found.pop(name).astype(np.float32).reshape(-1) for name in parts])
    return found


def part(mean: dict[str, npt.NDArray[Any]], names: Sequence[str], sent: Arrays) -> None:
    """Replace the joined vector by its tensors."""
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
    """Return the values with a client's votes, if the update has any."""
    found = dict(values)
    if LENGTHS in update.names:
        known = known_lengths(sent, joined, lengths)
        found[LENGTHS] = known.votes(known.told(whole_code(update).rotation, found[UPDATE], with_tensors=True))
    return found


@dataclass(frozen=True, slots=True)
class ToldLengths:
    """Lengths of a round's updates according to clients' votes."""

    middle: float
    """Length of the mean update."""
    alike: float
    """Squared mean over mean square; 1 if all are equal."""
    known: tuple[float, ...]
    """Reference lengths of the next round: of the update, and of each tensor."""


def take_lengths(  # noqa: PLR0913 -- a round's values
    update: ModelUpdate, mean: Values, sent: Arrays, joined: Sequence[str], lengths: Sequence[float], *, trained: float
) -> ToldLengths | None:
    """Remove the votes from a mean, and scale its update to the middle length; None without votes.

    Args:
        trained: the share of clients whose training succeeded; the others vote as well.
    """
    if LENGTHS not in update.names:
        return None
    known, shares = known_lengths(sent, joined, lengths), mean.pop(LENGTHS).astype(np.float64)
    # Updates of zeros vote for the lowest level; half of them would make it the median.
    shares[:, 0] = np.maximum(shares[:, 0] - (1 - trained), 0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    relative = known.middle(shares)
    if relative[0] >= known.longest:
        LOG.warning(
            "at least half of the updates are longer than the longest level, %.3g times the known length; the model "
            "moves by that level, and the next round uses a longer one",
            known.longest,
        )
    length, after = known.after(relative, whole_code(update).rotation)
    mean[UPDATE] = mean[UPDATE] * np.float32(length)
    return ToldLengths(length, known.alike(shares[0]), (after.common or 0.0, *(after.tensors or ())))


@dataclass(frozen=True, slots=True)
class PeakSum:
    """Sums of a code's signs or levels, and the factors that turn them into a mean of updates."""

    sums: Sums
    rotation: JoinedRotation
    gains: Gains


def peak_sum(update: ModelUpdate, aggregate: Aggregate, length: float) -> PeakSum:
    """Return the sums and factors in a sum of peaks or levels, for updates of this length."""
    code = whole_code(update)
    sums = code.signs(update.part(aggregate, UPDATE)).astype(np.int32)
    return PeakSum(sums, code.rotation, code.gains.times(length / update.counted(aggregate).divisor(UPDATE, code)))


def rounded_at_random(coins: Coins, tensor: TensorScheme, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values with fixed-point ones rounded up or down at random, without bias.

    The bias is at most 2^-32 of a step. Rounding to nearest would lose values that are small in every round.
    """
    if (scheme := fixed_point(tensor)) is None:
        return given
    with Secret.random("rounding_key", _KEY_BYTES, coins) as key:
        drawn = expand(key, _COINS, given.size)
    steps = np.ldexp(given.astype(np.float64).ravel(), scheme.fraction_bits)
    steps += np.ldexp(drawn.astype(np.float64), -_COINS.modulus_bits)
    rounded: npt.NDArray[Any] = np.ldexp(np.floor(steps, out=steps), -scheme.fraction_bits, out=steps)
    return rounded.reshape(given.shape)


def steps_in(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return the root mean square, in steps, of changes sent in fixed point; infinity if there are none."""
    squares, count = 0.0, 0
    for tensor in update.tensors:
        scheme = fixed_point(tensor)
        # Integers are exact, and metrics have a different step.
        if scheme is not None and scheme.fraction_bits and tensor.name != METRICS and tensor.name in values:
            found = np.asarray(values[tensor.name], dtype=np.float64).ravel()
            squares += float(np.dot(found, found)) * 4.0**scheme.fraction_bits
            count += found.size
    return math.sqrt(squares / count) if count else math.inf


def fixed_point(tensor: TensorScheme) -> FixedPoint | None:
    """Return a tensor's fixed-point scheme, also within pruning; None if it has another scheme."""
    scheme: object = tensor.scheme
    if isinstance(scheme, RandomPruning):
        scheme = scheme.inner
    return scheme if isinstance(scheme, FixedPoint) else None


def clipped_share(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return the share of a client's floats that its schemes clip, for the client's own log."""
    beyond, count = 0, 0
    for tensor in update.tensors:
        if tensor.name in values and (limit := _limit(tensor)) is not None:
            found = values[tensor.name]
            count += found.size
            # Two passes without a copy; most tensors need no more.
            if found.max() > limit or found.min() < -limit:
                beyond += int(np.count_nonzero(np.abs(found) > limit))
    return beyond / count if count else 0.0


def value_bounds(update: ModelUpdate) -> tuple[Range | None, ...]:
    """Return the range of one value in each segment of the layout, if all its schemes declare it."""
    found = dict[Segment, list[Range | None]]()
    for tensor in update.tensors:
        for segment in tensor.scheme.layout.segments:
            found.setdefault(_kind(segment), []).append(range_of(tensor))
    return tuple(_joined(found[_kind(segment)]) for segment in update.layout.segments)


def _kind(segment: Segment) -> Segment:
    return replace(segment, length=1) if isinstance(segment, RingSegment) else replace(segment, blocks=1)


def range_of(tensor: TensorScheme) -> Range | None:
    """Return the range of one value; None if its scheme does not declare it."""
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
    """Return the maximum change of an integer tensor."""
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
    """Return the code of all float tensors as one vector, if clients also vote for lengths."""
    return cast("PeakCode | LevelCode", next(tensor.scheme for tensor in update.tensors if tensor.name == UPDATE))
