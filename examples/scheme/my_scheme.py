"""Rounds each value at random to -1, 0 or 1 quarter; without bias for values within a quarter."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.contract.decoder import capacity_between
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.errors import Misuse

STEP = 0.25


@dataclass(frozen=True)
class Ternary:
    """The scheme of one round, for an update as one vector of float32."""

    values: int  # Number of values of an update.
    cohort: int  # The largest number of uploads in a sum; the ring must hold it.
    seed: bytes  # 32 public bytes of the run, for common randomness.
    epoch: int  # The number of the round.

    @property
    def segment(self) -> RingSegment:
        return RingSegment(1 + self.cohort.bit_length(), self.values)

    @property
    def layout(self) -> Layout:
        # A unique name, and the canonical encoding of every parameter.
        numbers = (self.values, self.cohort, self.epoch)
        encoded = self.seed + b"".join(number.to_bytes(8, "big") for number in numbers)
        return Layout((self.segment,), public_parameters_digest("example.org/ternary", encoded))

    @property
    def capacity(self) -> int:
        return capacity_between(-1, 1, self.segment.modulus_bits)

    def encode(self, update: npt.NDArray[np.float32], coins: Coins) -> Payload:
        if getattr(update, "dtype", None) != np.float32 or update.shape != (self.values,):
            raise Misuse(f"an update is a vector of {self.values} float32")
        update = np.nan_to_num(update)
        share = np.minimum(np.abs(update.astype(np.float64)) / STEP, 1)
        drawn = np.frombuffer(coins.draw(4 * self.values), dtype="<u4")
        codes = np.where(drawn < np.floor(share * 2.0**32), np.sign(update), 0).astype(np.int8)
        return Payload(self.layout, (self.segment.ring.from_integers(codes),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.floating[Any]]:
        if aggregate.layout != self.layout:
            raise Misuse("the aggregate belongs to another layout")
        require_capacity(aggregate.contributors, self.capacity)
        return self.segment.ring.lift(aggregate.values[0]) * STEP
