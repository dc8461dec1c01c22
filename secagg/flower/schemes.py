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
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.crypto.ring import capacity_between
from secagg.errors import CapacityExceeded, InvalidParameters

from .model_tensors import METRICS, TENSOR, Arrays, aggregated_names, is_integer
from .settings import PREFIX, SecAggSettings

HEADROOM: Final = 4.0
"""How far scales reach beyond the previous mean: one client's update is larger than the mean of many."""
CODEBOOK_HEADROOM: Final = 1.5
"""How far codewords do; less, because what is between codewords is lost, and more than 1, or sums shrink each round."""
_WIDE_RING: Final = 64
_MOST_FRACTION_BITS: Final = 40
_LEAST_STEPS: Final = 64
"""A clip of fewer steps loses more than a warning should have to explain."""
_INTEGER_BOUND: Final = 1 << 31


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
        shapes = {TENSOR + name: sent[name].shape for name in aggregated_names(sent)}
        integers = {TENSOR + name: self._integers for name in aggregated_names(sent) if is_integer(sent[name])}
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

    @property
    def _plain(self) -> Plain:
        bits, clip = self.settings.modulus_bits, self.settings.clip
        return Plain(clip=clip, fraction_bits=self._fraction_bits(clip, bits), modulus_bits=bits)

    @property
    def _metrics(self) -> Plain:
        bound = max(1.0, self.settings.metric_bound)
        return Plain(clip=bound, fraction_bits=self._fraction_bits(bound, _WIDE_RING), modulus_bits=_WIDE_RING)

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

    def _fraction_bits(self, clip: float, modulus_bits: int) -> int:
        """Return how fine the steps can be so that no sum leaves the ring."""
        for fraction_bits in range(_MOST_FRACTION_BITS, -1, -1):
            bound = round(math.ldexp(clip, fraction_bits))
            if bound < _LEAST_STEPS:
                break
            if bound * self.total_weight <= EXACT_FLOAT and self._fits(bound, modulus_bits):
                return fraction_bits
        raise InvalidParameters(
            f"a ring of {modulus_bits} bits is too narrow for changes up to {clip} and a total weight of "
            f"{self.total_weight}; lower {PREFIX}maximum-weight or {PREFIX}clip, or raise {PREFIX}weight-unit or "
            f"{PREFIX}modulus-bits"
        )

    def _fits(self, bound: int, modulus_bits: int) -> bool:
        try:
            return capacity_between(-bound, bound, modulus_bits) >= self.total_weight
        except (CapacityExceeded, InvalidParameters):
            return False


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
