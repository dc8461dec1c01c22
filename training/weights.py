"""Weights of a run's clients; they multiply values before rounding, or codes after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.model_update.scales import STATISTICS
from secagg.compression.model_update.summed_values import rounded_at_random
from secagg.compression.model_update.weighting import (
    COUNTS,
    clamped_examples,
    count_scheme,
    require_weighable,
    weighted,
)
from secagg.contract import Aggregate, Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import low_bits
from secagg.training.configuration import Configuration, Weighting

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of clients; they multiply values before rounding, or codes after it."""

    weighting: Weighting = Weighting.EQUAL
    full: int = 1
    """Number of examples with full weight, for weights before rounding."""
    largest: int = 1
    """Number of examples of the largest client."""
    heaviest: int = 1
    """Weight of that client, for weights after rounding."""

    @classmethod
    def of(cls, configuration: Configuration, largest: int) -> Weights:
        server = configuration.server
        return cls(
            weighting=server.weighting,
            full=server.full or largest,
            largest=largest,
            heaviest=configuration.maximum_weight,
        )

    def with_counts(self, update: ModelUpdate, uploads: int) -> ModelUpdate:
        """Return the codec with the denominators of means, for this many uploads of weight 1."""
        if self.weighting is Weighting.EQUAL:
            return update
        is_before = self.weighting is Weighting.EXAMPLES
        if is_before:
            require_weighable(update.schemes)
        counts = count_scheme(self.full if is_before else 1, uploads, has_trained=STATISTICS in update.names)
        tensor = TensorScheme(name=COUNTS, shape=(counts.length,), scheme=counts)
        return ModelUpdate(tensors=(*update.tensors, tensor), epoch=update.epoch, source=update.source)

    def encode(self, update: ModelUpdate, values: Arrays, examples: int, coins: Coins) -> Payload:
        match self.weighting:
            case Weighting.EQUAL:
                return update.encode(values, coins)
            case Weighting.EXAMPLES:
                values = weighted(update.schemes, values, clamped_examples(examples, self.full), coins)
                return update.encode(values, coins, partial(rounded_at_random, coins))
            case Weighting.AFTER:
                weight = max(1, round(self.heaviest * examples / self.largest))
                payload = update.encode({**values, COUNTS: np.ones(1)}, coins)
                masks = [low_bits(segment.ring.modulus_bits) for segment in payload.layout.require_rings()]
                pairs = zip(masks, payload.values, strict=True)
                codes = (own * own.dtype.type(weight & mask) & own.dtype.type(mask) for mask, own in pairs)
                return Payload(payload.layout, tuple(codes))

    def mean(self, update: ModelUpdate, aggregate: Aggregate) -> Arrays:
        if self.weighting is Weighting.AFTER:
            # Here a client counts more than once, which ``counted`` would treat as false.
            total = round(float(update.schemes[COUNTS].decode(update.part(aggregate, COUNTS))[0])) or 1
            aggregate = Aggregate(aggregate.layout, aggregate.values, total)
        return update.mean(aggregate)
