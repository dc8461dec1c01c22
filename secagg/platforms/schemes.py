"""Which scheme each tensor travels by, with public parameters that the server computes from what clients told before.

Scales are means over the clients: how far their values reach for scalar codes, how long they are for codebooks of no
data, as ``stat`` and ``prior`` have it in training. Peak code and schemes from outside have all floats as one vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import EXACT_FLOAT, FixedPoint
from secagg.compression.model_update import (
    CalibrationSource,
    ModelUpdate,
    Plain,
    Pruned,
    Recipe,
    TensorScheme,
    UpdatePlan,
)
from secagg.compression.model_update.tensors import Shape
from secagg.compression.model_update.told_scales import ReachingQuantizer, ScaledCodebooks, length, reach
from secagg.compression.outside import Factory, OutsideScheme
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract.layout import RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters

from .model_tensors import METRICS, TENSOR, Arrays, aggregated_names, is_integer
from .noise import bits_with_noise, bound_in_steps
from .peaks import LENGTHS, UPDATE, Made, known_lengths, peaks, votes, votes_shape
from .settings import PREFIX, SecAggSettings

TOLD: Final[Mapping[str, Callable[[npt.NDArray[Any]], float]]] = {"secagg/reach": reach, "secagg/length": length}
"""What clients tell of every tensor of floats of more than one dimension, by the name of the vector that it stands in;
the means over the clients are the scales of the next round."""
HEADROOM: Final = 1.5
"""How far scalar codes reach beyond the mean of what clients told: some clients reach further than the mean."""
COARSE: Final = 4.0
"""Changes whose root mean square is fewer steps than this are mostly rounding; both ends are warned."""
_WIDE_RING: Final = 64
_MOST_FRACTION_BITS: Final = 40
_LEAST_METRIC_BITS: Final = 8
_INTEGER_BOUND: Final = 1 << 31
_LEAST_RING: Final = 8
_KEY_BYTES: Final = 32
_COINS: Final = Ring(32)
Range = tuple[int, int]


def from_outside(name: str, factory: Factory, cohort: int) -> Made:
    """Return the recipe of a scheme of a factory from outside."""
    return Made(
        lambda place: OutsideScheme(
            name=name, values=place.size, cohort=cohort, seed=place.seed, epoch=place.round_number, factory=factory
        )
    )


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """How a model is encoded in a session whose total weight is at most ``total_weight``."""

    settings: SecAggSettings
    total_weight: int
    factory: Factory | None = None
    """Of the scheme from outside, where the settings name one."""
    clients: int = 1
    """How many are invited, from which the rate of a peak code follows."""

    def parameters(
        self,
        sent: Arrays,
        *,
        seed: bytes,
        epoch: int,
        told: Mapping[str, float] | None = None,
        lengths: Sequence[float] = (),
    ) -> ModelUpdate:
        """Return the public parameters of a round.

        Args:
            told: of the round before, by the names of tensors; without it nothing is quantized.
            lengths: of the round before, under the peak code.
        Raises:
            InvalidParameters: the ring is too narrow for the clip and the weights; the message names the keys.
        """
        settings = self.settings
        if settings.noise:
            return self._noised(sent, seed=seed, epoch=epoch)
        joined = self.joined(sent)
        names = [name for name in aggregated_names(sent, settings.tensor_patterns) if name not in joined]
        shapes: dict[str, Shape] = {TENSOR + name: sent[name].shape for name in names}
        chosen: dict[str, Recipe] = {TENSOR + name: self._integers for name in names if is_integer(sent[name])}
        if joined:
            shapes[UPDATE] = (sum(sent[name].size for name in joined),)
        if joined and self.factory is not None:
            chosen[UPDATE] = from_outside(settings.compression, self.factory, self.total_weight)
        elif joined:
            known = known_lengths(sent, joined, lengths)
            chosen[UPDATE] = peaks(settings.places_for(self.clients), known)
            shapes[LENGTHS], chosen[LENGTHS] = votes_shape(joined), votes()
        scaled = told_names(shapes, sent) if settings.is_calibrated else ()
        if scaled:
            kind = "secagg/length" if settings.codebook else "secagg/reach"
            shapes[kind], chosen[kind] = (len(scaled),), self._fine(settings.clip)
            # What did not move has no scale; it may move in this round, and fixed point carries it.
            moved = {name: scale for name in scaled if told is not None and (scale := told.get(name, 0.0)) > 0}
            recipes = {name: self._scaled(scale) for name, scale in moved.items()}
            chosen |= {name: recipe for name, recipe in recipes.items() if recipe.fits(shapes[name])}
        shapes[METRICS], chosen[METRICS] = (1 + len(settings.metric_names),), self._metrics
        compressed: Recipe = self._plain
        if settings.sparsity is not None:
            compressed = Pruned(sparsity=settings.sparsity, inner=self._plain)
        plan = UpdatePlan(shapes=shapes, plain=self._plain, compressed=compressed, chosen=chosen, seed=seed)
        made = plan.parameters(epoch=epoch)
        source = CalibrationSource.PREVIOUS_AGGREGATE if told else CalibrationSource.NONE
        return ModelUpdate(tensors=made.tensors, epoch=epoch, source=source)

    def _noised(self, sent: Arrays, *, seed: bytes, epoch: int) -> ModelUpdate:
        """Return the parameters of a round in which clients add noise: one vector, in a ring that holds both."""
        settings = self.settings
        shapes = {TENSOR + name: sent[name].shape for name in aggregated_names(sent, settings.tensor_patterns)}
        shapes[METRICS] = (1,)
        if integers := [name for name in sent if TENSOR + name in shapes and is_integer(sent[name])]:
            raise InvalidParameters(
                f"{integers[0]} holds integers, of which no norm is bounded; leave it out of {PREFIX}tensors"
            )
        bound = bound_in_steps(settings.norm, settings.fraction_bits, sum(map(math.prod, shapes.values())))
        needed = bits_with_noise(settings.noise, bound, self.total_weight)
        if needed > EXACT_FLOAT.bit_length():
            raise InvalidParameters(
                f"an exact sum is too narrow for noise of {settings.noise:g} times a norm of {settings.norm:g} in "
                f"steps of 2^-{settings.fraction_bits}; lower {PREFIX}fraction-bits to "
                f"{max(1, settings.fraction_bits - needed + EXACT_FLOAT.bit_length())}"
            )
        ring = settings.modulus_bits or max(_LEAST_RING, needed)
        values = Plain(clip=min(settings.clip, settings.norm), fraction_bits=settings.fraction_bits, modulus_bits=ring)
        told = Plain(clip=1.0, fraction_bits=0, modulus_bits=ring)
        plan = UpdatePlan(shapes=shapes, plain=values, compressed=values, chosen={METRICS: told}, seed=seed)
        return ModelUpdate(tensors=plan.parameters(epoch=epoch).tensors, epoch=epoch, source=CalibrationSource.NONE)

    def joined(self, sent: Arrays) -> tuple[str, ...]:
        """Return the names of the tensors that are encoded as one vector, in their order; by some schemes alone."""
        if self.factory is None and not self.settings.has_peaks:
            return ()
        names = aggregated_names(sent, self.settings.tensor_patterns)
        return tuple(name for name in names if not is_integer(sent[name]))

    def of_metrics(self) -> ModelUpdate:
        """Return the public parameters of a sum of evaluation metrics alone."""
        shapes = {METRICS: (1 + len(self.settings.evaluated_names),)}
        return UpdatePlan(shapes=shapes, plain=self._metrics, compressed=self._metrics, seed=bytes(32)).parameters()

    @property
    def _plain(self) -> Plain:
        clip, bits = self.settings.clip, self.settings.fraction_bits
        total = max(1, round(math.ldexp(clip, bits))) * self.total_weight
        needed = total.bit_length() + 1
        ring = self.settings.modulus_bits or max(_LEAST_RING, needed)
        if total > EXACT_FLOAT or needed > ring:
            what = f"a ring of {ring} bits" if needed > ring else "an exact sum"
            raise InvalidParameters(
                f"{what} is too narrow for changes up to {clip} in steps of 2^-{bits} and a total weight of "
                f"{self.total_weight}; lower {PREFIX}maximum-weight or {PREFIX}clip, raise {PREFIX}weight-unit, lower "
                f"{PREFIX}fraction-bits, or leave {PREFIX}modulus-bits out"
            )
        return Plain(clip=clip, fraction_bits=bits, modulus_bits=ring)

    @property
    def _metrics(self) -> Plain:
        return self._fine(max(1.0, self.settings.metric_bound), "metric-bound")

    def _fine(self, bound: float, key: str = "clip") -> Plain:
        room = EXACT_FLOAT // (math.ceil(bound) * self.total_weight)
        bits = min(_MOST_FRACTION_BITS, room.bit_length() - 1)
        if bits < _LEAST_METRIC_BITS:
            raise InvalidParameters(
                f"numbers up to {bound} and a total weight of {self.total_weight} leave steps of 2^-{max(0, bits)}; "
                f"lower {PREFIX}{key} or {PREFIX}maximum-weight, or raise {PREFIX}weight-unit"
            )
        return Plain(clip=bound, fraction_bits=bits, modulus_bits=_WIDE_RING)

    @property
    def _integers(self) -> Plain:
        bound = min(_INTEGER_BOUND, EXACT_FLOAT // self.total_weight)
        return Plain(clip=float(bound), fraction_bits=0, modulus_bits=_WIDE_RING)

    def _scaled(self, scale: float) -> Recipe:
        if self.settings.codebook is not None:
            codewords, block_size = self.settings.codebook
            return ScaledCodebooks(length=scale, codewords=codewords, block_size=block_size, stages=1)
        bits = self.settings.scalar_bits
        ring = bits + (self.total_weight - 1).bit_length()
        if ring > _WIDE_RING:
            raise InvalidParameters(
                f"codes of {bits} bits and a total weight of {self.total_weight} need a ring of {ring} bits; lower "
                f"{PREFIX}maximum-weight, or raise {PREFIX}weight-unit"
            )
        return ReachingQuantizer(
            reach=HEADROOM * scale,
            bits=bits,
            modulus_bits=ring,
            rounding=Rounding.STOCHASTIC,
            wrapping_weight=None,
        )


def told_names(shapes: Mapping[str, Shape], sent: Arrays) -> tuple[str, ...]:
    """Return the names of the tensors of which clients tell something, in their order."""
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
    found, parts = dict(values), [TENSOR + name for name in names]
    if parts:
        found[UPDATE] = np.concatenate([found.pop(name).astype(np.float32).reshape(-1) for name in parts])
    return found


def part(mean: dict[str, npt.NDArray[Any]], names: Sequence[str], sent: Arrays) -> None:
    """Put tensors in the place of the vector that they were joined to."""
    if names:
        edges = np.cumsum([sent[name].size for name in names])[:-1].tolist()
        for name, values in zip(names, np.split(mean.pop(UPDATE), edges), strict=True):
            mean[TENSOR + name] = values.reshape(sent[name].shape)


def rounded_at_random(
    update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]], coins: Coins
) -> dict[str, npt.NDArray[Any]]:
    """Return the values with those of fixed point moved to a step above or below, so that the mean is the value.

    The bias is at most 2^-32 of a step. Rounding to the nearest step would lose what is small in every round.
    """
    rounded = dict(values)
    for tensor in update.tensors:
        scheme = _fixed_point(tensor)
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
        scheme = _fixed_point(tensor)
        # Integers are exact, and metrics have a step of their own.
        if scheme is not None and scheme.fraction_bits and tensor.name != METRICS and tensor.name in values:
            found = np.asarray(values[tensor.name], dtype=np.float64).ravel()
            squares += float(np.dot(found, found)) * 4.0**scheme.fraction_bits
            count += found.size
    return math.sqrt(squares / count) if count else math.inf


def _fixed_point(tensor: TensorScheme) -> FixedPoint | None:
    scheme: object = tensor.scheme
    if isinstance(scheme, RandomPruning):
        scheme = scheme.inner
    return scheme if isinstance(scheme, FixedPoint) else None


def clipped_share(update: ModelUpdate, values: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return which part of a client's floats the schemes cut off; it is summed too, and the server logs the mean."""
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
            found.setdefault(_kind(segment), []).append(_range_of(tensor))
    return tuple(_joined(found[_kind(segment)]) for segment in update.layout.segments)


def _kind(segment: Segment) -> Segment:
    """Return what segments have in common that are merged."""
    return replace(segment, length=1) if isinstance(segment, RingSegment) else replace(segment, blocks=1)


def _range_of(tensor: TensorScheme) -> Range | None:
    scheme: object = tensor.scheme
    if (fixed := _fixed_point(tensor)) is not None:
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
