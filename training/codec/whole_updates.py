"""Codecs for the whole update as one vector: peak code, linear sketch, rounded rotation, and schemes from outside.

Every round has a rotation of its own, so each has a codec of its own, and the first round is compressed as well. Peak
code and sketch say where an update points; how long it is each client tells beside it, and every ``refresh`` rounds how
long each tensor is, from which the tensors' scales follow. Lengths are told relative to those of the rounds before:
under the peak code as indices of public levels, one block for each, so that a protocol that checks blocks checks them
too, and under the sketch in fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.cohort_bits import kept_for, places_for
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.joined_rotation import JoinedRotation
from secagg.compression.model_update import CalibrationSource, ModelUpdate, TensorScheme
from secagg.compression.model_update.tensors import Shape
from secagg.compression.model_update.told_scales import encode_scales
from secagg.compression.outside import Factory, OutsideScheme, outside_factory
from secagg.compression.peak import (
    MOST_SUMMED_PLACES,
    NORM_LEVELS,
    KnownLengths,
    PeakCode,
    block_size_for,
    level_votes,
    norm_levels,
)
from secagg.compression.public_stream import PublicStream
from secagg.compression.rounded_rotation import RoundedRotation
from secagg.compression.sketch import Sketch, sketch_ring
from secagg.contract import Aggregate, LinearDecoder, Payload
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Update
from secagg.training.settings.sections import CompressionSettings, Lengths, Scheme

from .operators import PLAIN_BITS, RoundCodec

UPDATE: Final = "secagg/update"
"""The name of the vector that all tensors are joined in."""
NORMS: Final = "secagg/norms"
"""The name of what clients tell of their lengths."""
_FRACTION_BITS: Final = 20
_SCALE_BYTES: Final = 4
_NEARLY: Final = 0.9
"""Of the longest length: a mean that is as long has hardly a client below."""

Vector = npt.NDArray[np.float32]


@dataclass(slots=True)
class WholeUpdates:
    """The codecs of a run, one for each round; it takes the place of ``Operators``."""

    settings: CompressionSettings
    shapes: Mapping[str, Shape]
    seed: bytes
    """32 public bytes of the run."""
    maximum_total_weight: int
    cohort: int
    """How many clients a sum is expected to hold, from which the rate follows."""
    made_by: Factory | None = None
    """Makes the scheme of each round, where it is neither peak code nor sketch."""
    current: ModelUpdate | None = field(default=None, init=False)
    warning: str | None = field(default=None, init=False)
    """What the round that was decoded last gives reason to change."""
    _known: KnownLengths = field(init=False)
    _round: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.settings.scheme is Scheme.OUTSIDE:
            self.made_by = outside_factory(self.settings.outside)
        self._known = KnownLengths(sizes=self._sizes)
        self._made(0)

    @property
    def values(self) -> int:
        """How many values the model has."""
        return sum(self._sizes)

    def begin(self, round_number: int, sample: Callable[[], Update]) -> RoundCodec:  # noqa: ARG002 -- as of Operators
        """Return the codec of a round; nothing is calibrated on anybody's update."""
        self._round = round_number
        self.current = self._made(round_number)
        told = [] if self._known.common is None else [self._known.common]
        if round_number % self.settings.refresh == min(1, self.settings.refresh - 1):
            told += self._known.tensors or ()
        return RoundCodec(
            update=self.current,
            is_fresh=True,
            is_compressed=True,
            broadcast_bytes=len(encode_scales(round_number, told)),
            paper_broadcast_bytes=_SCALE_BYTES * len(told),
        )

    def planned(self) -> ModelUpdate:
        """Return a codec that is laid out as the longest of the run will be, for judging a run before it begins."""
        return self._made(0)

    @property
    def codec(self) -> ModelUpdate:
        """The codec in force."""
        if self.current is None:
            raise InvalidParameters("no round has begun; call begin() first")
        return self.current

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Encode one client's update, with its lengths."""
        vector = self._joined(update)
        if self.made_by is not None or self._is_fixed:
            return self.codec.encode({UPDATE: vector}, coins)
        is_refreshed = self._is_refreshed(self._round)
        relative = self._known.told(self._rotation(self._round), vector, with_tensors=is_refreshed)
        norms = self._known.votes(relative) if self._is_median else relative[:, np.newaxis]
        return self.codec.encode({UPDATE: vector, NORMS: norms.astype(np.float32)}, coins)

    def decode(self, aggregate: Aggregate) -> dict[str, Vector]:
        """Return the mean update, and keep what it tells for the next codec."""
        mean = self.codec.mean(aggregate)
        vector = mean[UPDATE].astype(np.float32)
        if self._is_fixed:
            vector *= np.float32(self.settings.length)
        elif self.made_by is None:
            told = mean[NORMS].astype(np.float64)
            relative = self._known.middle(told) if self._is_median else told[:, 0]
            self.warning = self._warning(float(relative[0]))
            # The common length of the round before is in the codec, where there is one.
            is_common = self._is_common
            length, self._known = self._known.after(relative, self._rotation(self._round))
            if not is_common:
                vector *= np.float32(length)
        return self._parted(vector)

    # --- Storing --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything that a resumed run needs, as arrays; codecs are made anew from it."""
        stored = dict[str, npt.NDArray[Any]]()
        if self._known.common is not None:
            stored["common"] = np.array([self._known.common])
        if self._known.tensors is not None:
            stored["norms"] = np.array(self._known.tensors)
        return stored

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take back what ``state`` returned."""
        self._known = KnownLengths(
            sizes=self._sizes,
            common=float(stored["common"][0]) if "common" in stored else None,
            tensors=tuple(stored["norms"].tolist()) if "norms" in stored else None,
        )

    # --- Private --------------------------------------------------------------------------------------------------

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes.values())

    @property
    def _is_common(self) -> bool:
        return self.settings.told is Lengths.COMMON and self._known.common is not None

    @property
    def _is_median(self) -> bool:
        return self.settings.told is Lengths.MEDIAN

    @property
    def _is_fixed(self) -> bool:
        """Whether clients tell nothing beside their updates."""
        return self.settings.told is Lengths.FIXED and self.made_by is None

    def _is_refreshed(self, round_number: int) -> bool:
        """Whether clients tell in a round how long each tensor is."""
        return round_number % self.settings.refresh == 0 or self._known.tensors is None

    def _stream(self, round_number: int) -> PublicStream:
        return PublicStream(seed=self.seed, round_number=round_number, tensor_name=UPDATE, shape=(self.values,))

    def _rotation(self, round_number: int) -> JoinedRotation:
        current = self.current
        if current is not None and current.epoch == round_number:
            scheme = current.tensors[0].scheme
            return cast("PeakCode | Sketch", scheme).rotation
        return self._known.rotation(self._stream(round_number))

    def _made(self, round_number: int) -> ModelUpdate:
        shape = (self.values,)
        if self.made_by is not None:
            given: dict[str, Any] = {
                "values": self.values,
                "cohort": self.maximum_total_weight,
                "seed": self.seed,
                "epoch": round_number,
            }
            named = self.settings.outside
            scheme = OutsideScheme(name=named, factory=self.made_by, **given) if named else self.made_by(**given)
            return ModelUpdate(tensors=(TensorScheme(name=UPDATE, shape=shape, scheme=scheme),), epoch=round_number)
        tensors = [TensorScheme(name=UPDATE, shape=shape, scheme=self._direction(self._rotation(round_number)))]
        if not self._is_fixed:
            count = 1 + len(self.shapes) * self._is_refreshed(round_number)
            columns = NORM_LEVELS if self._is_median else 1
            tensors.append(TensorScheme(name=NORMS, shape=(count, columns), scheme=self._norms(count)))
        return ModelUpdate(
            tensors=tuple(tensors),
            epoch=round_number,
            source=CalibrationSource.NONE if self._known.common is None else CalibrationSource.PREVIOUS_AGGREGATE,
        )

    def _direction(self, rotation: JoinedRotation) -> LinearDecoder[Any]:
        settings, unit = self.settings, (self._known.common or 1.0) if self._is_common else 1.0
        if settings.scheme is Scheme.PEAK:
            places = settings.places or min(places_for(self.cohort, settings.cohort_bits), MOST_SUMMED_PLACES)
            return PeakCode(rotation=rotation, places=places, unit=unit)
        bits = settings.bits
        kept = settings.kept or kept_for(self.values, self.cohort, settings.cohort_bits, bits)
        ring = sketch_ring(bits, self.maximum_total_weight)
        return Sketch(rotation=rotation, kept=kept, bits=bits, modulus_bits=ring, unit=unit)

    def _warning(self, relative: float) -> str | None:
        """Say that updates are longer than can be told: the middle one, or nearly all where a mean is told."""
        scheme = self.codec.tensors[1].scheme
        longest = scheme.clip if isinstance(scheme, FixedPoint) else self._known.longest
        if relative < longest * (1.0 if self._is_median else _NEARLY):
            return None
        known = " times those of the rounds before" if self._known.is_informed else ""
        return (
            f"clients' updates are longer than they can tell, {longest:.3g}{known}, and the model moves less than it "
            "should until lengths have caught up; leave out rounds in which nobody moves, such as a warm-up, lower "
            "local.rate, or set compression.lengths = 'fixed' and compression.length"
        )

    def _norms(self, count: int) -> LinearDecoder[Any]:
        if self._is_median:
            return level_votes(count)
        if self.settings.scheme is Scheme.PEAK:
            return norm_levels(count, references=self._known.is_informed)
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.maximum_total_weight
        return FixedPoint(
            length=count,
            clip=math.ldexp(steps, -_FRACTION_BITS),
            fraction_bits=_FRACTION_BITS,
            modulus_bits=PLAIN_BITS,
        )

    def _joined(self, update: Update) -> Vector:
        parts = [np.asarray(update[name], dtype=np.float32).reshape(-1) for name in self.shapes]
        return np.concatenate(parts)

    def _parted(self, vector: Vector) -> dict[str, Vector]:
        edges = np.cumsum(self._sizes)[:-1].tolist()
        parts = zip(self.shapes.items(), np.split(vector, edges), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


def rounded_factory(*, clip: float, modulus_bits: int, noise_share: float) -> Factory:
    """Return what makes a clipped, rotated and rounded scheme of each round; see ``RoundedRotation.planned``."""

    def made(*, values: int, cohort: int, seed: bytes, epoch: int) -> RoundedRotation:
        stream = PublicStream(seed=seed, round_number=epoch, tensor_name=UPDATE, shape=(values,))
        rotation = JoinedRotation(stream=stream, block_size=block_size_for(values))
        return RoundedRotation.planned(
            rotation, clip=clip, modulus_bits=modulus_bits, clients=cohort, noise_share=noise_share
        )

    return made
