"""Which scheme each tensor travels by, with public parameters that the server computes from the previous aggregate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import EXACT_FLOAT, FixedPoint
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    ModelUpdate,
    Plain,
    Pruned,
    Quantized,
    Recipe,
    TensorScheme,
    UpdatePlan,
)
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.crypto.entropy import Coins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters

from .model_tensors import METRICS, TENSOR, Arrays, aggregated_names, is_integer
from .settings import PREFIX, SecAggSettings

HEADROOM: Final = 4.0
"""How far scales reach beyond the previous mean: one client's update is larger than the mean of many."""
CODEBOOK_HEADROOM: Final = 1.5
"""How far codewords do; less, because what is between codewords is lost, and more than 1, or sums shrink each round."""
COARSE: Final = 4.0
"""Changes whose root mean square is fewer steps than this are mostly rounding; both ends are warned."""
_WIDE_RING: Final = 64
_MOST_FRACTION_BITS: Final = 40
_LEAST_METRIC_BITS: Final = 8
_INTEGER_BOUND: Final = 1 << 31
_LEAST_RING: Final = 8
_KEY_BYTES: Final = 32
_COINS: Final = Ring(32)


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """How a model is encoded in a session whose total weight is at most ``total_weight``."""

    settings: SecAggSettings
    total_weight: int

    def parameters(
        self,
        sent: Arrays,
        *,
        seed: bytes,
        epoch: int,
        mean: Mapping[str, npt.NDArray[Any]] | None,
        previous: ModelUpdate | None = None,
    ) -> ModelUpdate:
        """Return the public parameters of a round.

        Args:
            mean: the previous round's mean difference; without one nothing is quantized.
            previous: the parameters of an earlier round, from which codebooks go on.
        Raises:
            InvalidParameters: the ring is too narrow for the clip and the weights; the message names the keys.
        """
        names = aggregated_names(sent, self.settings.tensor_patterns)
        shapes = {TENSOR + name: sent[name].shape for name in names}
        integers = {TENSOR + name: self._integers for name in names if is_integer(sent[name])}
        shapes[METRICS] = (1 + len(self.settings.metric_names),)
        chosen: dict[str, Recipe] = {**integers, METRICS: self._metrics}
        calibration = None
        if mean is not None and self.settings.is_calibrated:
            headroom = CODEBOOK_HEADROOM if self.settings.codebook else HEADROOM
            sample = {name: np.asarray(mean.get(name, np.zeros(shape))) * headroom for name, shape in shapes.items()}
            # What did not move has no scale; it may move in this round, and fixed point carries it.
            chosen |= {name: self._plain for name in shapes if name not in chosen and not sample[name].any()}
            calibration = Calibration(CalibrationSource.PREVIOUS_AGGREGATE, sample)
        compressed: Recipe = self._plain
        if self.settings.sparsity is not None:
            compressed = Pruned(sparsity=self.settings.sparsity, inner=self._plain)
        elif calibration is not None:
            compressed = self._compressed
        plan = UpdatePlan(shapes=shapes, plain=self._plain, compressed=compressed, chosen=chosen, seed=seed)
        return plan.parameters(
            epoch=epoch, calibration=calibration, previous=previous if calibration is not None else None
        )

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
        bound = max(1.0, self.settings.metric_bound)
        room = EXACT_FLOAT // (math.ceil(bound) * self.total_weight)
        bits = min(_MOST_FRACTION_BITS, room.bit_length() - 1)
        if bits < _LEAST_METRIC_BITS:
            raise InvalidParameters(
                f"metrics up to {bound} and a total weight of {self.total_weight} leave steps of 2^-{max(0, bits)}; "
                f"lower {PREFIX}metric-bound or {PREFIX}maximum-weight, or raise {PREFIX}weight-unit"
            )
        return Plain(clip=bound, fraction_bits=bits, modulus_bits=_WIDE_RING)

    @property
    def _integers(self) -> Plain:
        bound = min(_INTEGER_BOUND, EXACT_FLOAT // self.total_weight)
        return Plain(clip=float(bound), fraction_bits=0, modulus_bits=_WIDE_RING)

    @property
    def _compressed(self) -> Recipe:
        if self.settings.codebook is not None:
            codewords, block_size = self.settings.codebook
            return Codebooks(block_size=block_size, codewords=codewords)
        bits = self.settings.scalar_bits
        ring = bits + (self.total_weight - 1).bit_length()
        if ring > _WIDE_RING:
            raise InvalidParameters(
                f"codes of {bits} bits and a total weight of {self.total_weight} need a ring of {ring} bits; lower "
                f"{PREFIX}maximum-weight, or raise {PREFIX}weight-unit"
            )
        return Quantized(bits=bits, modulus_bits=ring, rounding=Rounding.STOCHASTIC)


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
