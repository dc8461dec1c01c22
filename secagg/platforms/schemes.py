"""Chooses each tensor's scheme, with public parameters that the server computes from clients' earlier reports.

Scales are means over the clients: of the range of values for scalar codes, and of the length for data-free codebooks,
as ``stat`` and ``prior`` in training. Peak codes and custom schemes encode all floats as one vector.

Both ends configure the same noise independently: clients require their own multiplier and norm, and refuse a session
with other values, so a server cannot lower them. The noised update is one vector of floats in fixed point, because its
norm bounds what a client can change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

from secagg.compression.custom import Factory
from secagg.compression.fixed_point import EXACT_FLOAT, FixedPoint
from secagg.compression.model_update import CalibrationSource, ModelUpdate, Plain, Pruned, Recipe, UpdatePlan
from secagg.compression.model_update.arrays import METRICS, TENSOR, Arrays, aggregated_names, is_integer
from secagg.compression.model_update.codec import Shape
from secagg.compression.model_update.scales import Made, ScaledCodebooks, reaching_quantizer
from secagg.compression.model_update.summed_values import (
    LENGTHS,
    TOLD,
    UPDATE,
    bounded_noise,
    custom_scheme,
    known_lengths,
    peaks,
    told_names,
    votes,
    votes_shape,
)
from secagg.compression.model_update.weighting import COUNTS, count_scheme, norms_with_counts, require_weighable
from secagg.compression.scalar_quantization import Rounding
from secagg.contract.layout import RingSegment
from secagg.errors import InvalidParameters
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.privacy.rounding import WORST_DEVIATIONS

from .settings import PREFIX, SecAggSettings

HEADROOM: Final = 1.5
"""Range of scalar codes relative to the mean of the reported ranges: some clients exceed the mean."""
FINER: Final = "lower secagg-clip to about the largest change of one value, or raise secagg-fraction-bits"
"""Advice for both ends about changes of only a few steps."""
COARSE: Final = 4.0
"""Changes with a root mean square below this number of steps are mostly rounding noise; both ends are warned."""
_WIDE_RING: Final = 64
_BOUNDED_RING: Final = 32
_MOST_FRACTION_BITS: Final = 40
_USUAL_FRACTION_BITS: Final = 16
_CLIP_BITS: Final = 18
"""A planned step is 2^-18 of the clip, or 2^-16 if that is less."""
_LEAST_CLIP_BITS: Final = 8
"""No planned step is coarser than 2^-8 of the clip, however short the model's type is."""
_LEAST_METRIC_BITS: Final = 8
_INTEGER_BOUND: Final = 1 << 31
_LEAST_RING: Final = 8
_REPLACED: Final = 2
"""Distance between neighbouring inputs (one client's update replaced), in units of a client's bound."""
_ROOM: Final = 1.01


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """Choice of encoding for a model in a session of at most ``clients``."""

    settings: SecAggSettings
    clients: int
    factory: Factory | None = None
    """Factory of the custom scheme, if the settings name one."""
    noise: float | None = None
    """Allowed noise of the code, if losses determined it."""
    turn: int = 0
    """Number of the round, if rounds take turns in summing parts of a model."""

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
            told: scales of the previous round, by tensor name; without them nothing is quantized.
            lengths: of the previous round, for the peak code.
        """
        settings = self.settings
        if settings.noise:
            return self._noised(sent, seed=seed, epoch=epoch)
        joined, plain = self.joined(sent), self._plain(sent)
        names = [name for name in self._names(sent) if name not in joined]
        shapes: dict[str, Shape] = {TENSOR + name: sent[name].shape for name in names}
        integers = [TENSOR + name for name in names if is_integer(sent[name])]
        chosen: dict[str, Recipe] = dict.fromkeys(integers, self._integers)
        if joined:
            shapes[UPDATE] = (sum(sent[name].size for name in joined),)
        if joined and self.factory is not None:
            chosen[UPDATE] = custom_scheme(settings.compression, self.factory, self.clients)
        elif joined:
            known = known_lengths(sent, joined, lengths)
            chosen[UPDATE] = (
                peaks(settings.places_for(self.clients), known)
                if self.noise is None
                else bounded_noise(self.clients, self.noise, known)
            )
            shapes[LENGTHS], chosen[LENGTHS] = votes_shape(joined), votes()
        scaled = told_names(shapes, sent) if settings.is_calibrated else ()
        if scaled:
            kind = "secagg/length" if settings.codebook else "secagg/reach"
            shapes[kind], chosen[kind] = (len(scaled),), self._fine(settings.clip)
            # A tensor that did not change has no scale; use fixed point, because it may change in this round.
            moved = {name: scale for name in scaled if told is not None and (scale := told.get(name, 0.0)) > 0}
            recipes = {name: self._scaled(scale) for name, scale in moved.items()}
            chosen |= {name: recipe for name, recipe in recipes.items() if recipe.fits(shapes[name])}
        if settings.metric_names:
            shapes[METRICS], chosen[METRICS] = (len(settings.metric_names),), self._metrics
        shapes[COUNTS], chosen[COUNTS] = self._counts(
            is_trained=bool({METRICS, *TOLD} & shapes.keys()) or bool(integers) or settings.minimum_trained > 1,
            plain=plain,
        )
        compressed: Recipe = plain
        if settings.sparsity is not None:
            compressed = Pruned(sparsity=settings.sparsity, inner=plain)
        plan = UpdatePlan(shapes=shapes, plain=plain, compressed=compressed, chosen=chosen, seed=seed)
        made = plan.parameters(epoch=epoch)
        if settings.full > 1:
            require_weighable(made.schemes)
        source = CalibrationSource.PREVIOUS_AGGREGATE if told else CalibrationSource.NONE
        return ModelUpdate(tensors=made.tensors, epoch=epoch, source=source)

    def _noised(self, sent: Arrays, *, seed: bytes, epoch: int) -> ModelUpdate:
        """Return the parameters of a round in which clients add noise: one vector, in a ring that holds both."""
        settings = self.settings
        shapes = {TENSOR + name: sent[name].shape for name in self._names(sent)}
        if integers := [name for name in sent if TENSOR + name in shapes and is_integer(sent[name])]:
            raise InvalidParameters(
                f"{integers[0]} contains integers, whose norm is not bounded; leave it out of {PREFIX}tensors"
            )
        fraction_bits = settings.fraction_bits or _USUAL_FRACTION_BITS
        bound = bound_in_steps(settings.norm, fraction_bits, sum(map(math.prod, shapes.values())))
        needed = bits_with_noise(settings.noise, bound, self.clients)
        if needed > EXACT_FLOAT.bit_length():
            raise InvalidParameters(
                f"an exact sum is too narrow for noise of {settings.noise:g} times a norm of {settings.norm:g} in "
                f"steps of 2^-{fraction_bits}; lower {PREFIX}fraction-bits to "
                f"{max(1, fraction_bits - needed + EXACT_FLOAT.bit_length())}"
            )
        ring = settings.modulus_bits or max(_LEAST_RING, needed)
        values = Plain(clip=min(settings.clip, settings.norm), fraction_bits=fraction_bits, modulus_bits=ring)
        plan = UpdatePlan(shapes=shapes, plain=values, compressed=values, seed=seed)
        return ModelUpdate(tensors=plan.parameters(epoch=epoch).tensors, epoch=epoch, source=CalibrationSource.NONE)

    def joined(self, sent: Arrays) -> tuple[str, ...]:
        """Return the names of the tensors that some schemes encode as one vector, in order."""
        if self.factory is None and not self.settings.has_peaks:
            return ()
        names = self._names(sent)
        return tuple(name for name in names if not is_integer(sent[name]))

    def _names(self, sent: Arrays) -> tuple[str, ...]:
        return aggregated_names(sent, self.settings.tensor_patterns(self.turn), self.settings.excluded_patterns)

    def of_metrics(self) -> ModelUpdate:
        shape, counts = self._counts(full=1)
        named = {METRICS: (len(names),)} if (names := self.settings.evaluated_names) else {}
        plan = UpdatePlan(
            shapes={**named, COUNTS: shape},
            plain=self._metrics,
            compressed=self._metrics,
            chosen={COUNTS: counts},
            seed=bytes(32),
        )
        return plan.parameters()

    def _counts(self, *, full: int = 0, is_trained: bool = False, plain: Plain | None = None) -> tuple[Shape, Recipe]:
        others = (_BOUNDED_RING, plain.modulus_bits if plain else 0) if self.settings.max_norm else ()
        scheme = count_scheme(full or self.settings.full, self.clients, has_trained=is_trained, apart_from=others)
        return (scheme.length,), Made(lambda _: scheme)

    def _fraction_bits(self, sent: Arrays) -> int:
        """Return the configured bits, or bits fine enough that the upload is as short as the model in its own type."""
        if bits := self.settings.fraction_bits:
            return bits
        floats = [sent[name] for name in self._names(sent) if not is_integer(sent[name])]
        width = 8 * sum(each.nbytes for each in floats) // max(1, sum(each.size for each in floats))
        power = math.ceil(math.log2(self.settings.clip))
        room = width - 2 - (self.clients - 1).bit_length() - power
        wanted = min(max(room, _LEAST_CLIP_BITS - power), max(_USUAL_FRACTION_BITS, _CLIP_BITS - power))
        return max(1, min(_MOST_FRACTION_BITS, wanted))

    def _plain(self, sent: Arrays) -> Plain:
        clip, bits = self.settings.clip, self._fraction_bits(sent)
        total = max(1, round(math.ldexp(clip, bits))) * self.clients
        needed = total.bit_length() + 1
        ring = self.settings.modulus_bits or max(_LEAST_RING, needed)
        if total > EXACT_FLOAT or needed > ring:
            what = f"a ring of {ring} bits" if needed > ring else "an exact sum"
            raise InvalidParameters(
                f"{what} is too narrow for changes up to {clip} in steps of 2^-{bits} from {self.clients} clients; "
                f"lower {PREFIX}clip or {PREFIX}fraction-bits, or remove {PREFIX}modulus-bits"
            )
        return Plain(clip=clip, fraction_bits=bits, modulus_bits=ring)

    @property
    def _metrics(self) -> Plain:
        return self._fine(max(1.0, self.settings.metric_bound), "metric-bound")

    def _fine(self, bound: float, key: str = "clip") -> Plain:
        # An enclave bounds norms only in narrower rings.
        ring = _BOUNDED_RING if self.settings.max_norm else _WIDE_RING
        room = min(EXACT_FLOAT, (1 << (ring - 1)) - 1) // (math.ceil(bound) * self.clients)
        bits = min(_MOST_FRACTION_BITS, room.bit_length() - 1)
        if bits < _LEAST_METRIC_BITS:
            raise InvalidParameters(
                f"numbers up to {bound} of {self.clients} clients leave steps of 2^-{max(0, bits)}; lower {PREFIX}{key}"
            )
        return Plain(clip=bound, fraction_bits=bits, modulus_bits=ring)

    @property
    def _integers(self) -> Plain:
        bound = min(_INTEGER_BOUND, EXACT_FLOAT // self.clients)
        return Plain(clip=float(bound), fraction_bits=0, modulus_bits=_WIDE_RING)

    def _scaled(self, scale: float) -> Recipe:
        if self.settings.codebook is not None:
            codewords, block_size = self.settings.codebook
            return ScaledCodebooks(length=scale, codewords=codewords, block_size=block_size, stages=1)
        bits = self.settings.scalar_bits
        ring = bits + (self.clients - 1).bit_length()
        return reaching_quantizer(HEADROOM * scale, bits, ring, Rounding.STOCHASTIC)


def bound_in_steps(norm: float, fraction_bits: int, length: int) -> int:
    """Return the maximum norm of a client's values; rounding moves each by less than a step."""
    return math.ceil(math.hypot(math.ldexp(norm, fraction_bits) + math.sqrt(length), 1))


def bits_with_noise(multiplier: float, bound: int, clients: int) -> int:
    """Return the ring width for a sum over all clients, each with the noise of the whole cohort."""
    deviation = multiplier * _REPLACED * bound * math.sqrt(clients)
    return math.ceil(_ROOM * (clients * bound + WORST_DEVIATIONS * deviation)).bit_length() + 1


def norms_in_steps(norm: float, update: ModelUpdate) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the maximum norm of one client's values in each ring segment, with its elements; 0 means unbounded.

    Raises:
        InvalidParameters: tensors are not in one ring with one step, or the norm leaves less than a step per value.
    """
    tensors = {name: scheme for name, scheme in update.schemes.items() if name.startswith(TENSOR)}
    if not norm or not tensors:
        return (), ()
    bits = {scheme.fraction_bits if isinstance(scheme, FixedPoint) else 0 for scheme in tensors.values()}
    rings = [segment for segment in update.layout.segments if isinstance(segment, RingSegment)]
    length = sum(math.prod(tensor.shape) for tensor in update.tensors if tensor.name in tensors)
    if len(bits) != 1 or 0 in bits or rings[0].length != length or len(rings) != len(update.layout.segments):
        raise InvalidParameters(
            f"{PREFIX}max-norm is for float tensors in a separate ring: name no tensors of integers in "
            f"{PREFIX}tensors, or set another {PREFIX}modulus-bits"
        )
    (fraction_bits,) = bits
    steps = min(math.floor(math.ldexp(norm, fraction_bits)), (1 << 40) - 1)
    if steps * steps < length:
        raise InvalidParameters(
            f"{PREFIX}max-norm is {norm:g}, which leaves {length} values less than a step of 2^-{fraction_bits} each; "
            f"raise it to {math.ldexp(math.sqrt(length), -fraction_bits):.6g}, or raise {PREFIX}fraction-bits"
        )
    return norms_with_counts(steps, update.layout, cast("FixedPoint | None", update.schemes.get(COUNTS)))


def noise_settings(multiplier: float, norm: float, update: ModelUpdate) -> NoiseSettings:
    """Return the noise that one end requires; refuses public parameters with parts that have no norm."""
    if not multiplier:
        return NO_NOISE
    schemes = update.schemes
    bits = {scheme.fraction_bits if isinstance(scheme, FixedPoint) else None for scheme in schemes.values()}
    segments = update.layout.segments
    if (
        len(bits) != 1
        or None in bits
        or len(segments) != 1
        or not isinstance(segments[0], RingSegment)
        or {METRICS, COUNTS} & schemes.keys()
    ):
        raise InvalidParameters(
            "noise is only for float tensors in fixed point, without metrics: name no metrics, and in "
            "secagg-tensors no tensors of integers"
        )
    (fraction_bits,) = bits
    return NoiseSettings(
        noise_multiplier=Fraction(str(multiplier)),
        l2_bounds=(bound_in_steps(norm, fraction_bits or 0, segments[0].length),),
    )
