"""Integers that fit the ring as they are: counts, votes, or codes that a trainer has quantised by itself.

Nothing is lost and nothing is saved. There is no such scheme for floats: a sum of floats depends on the order of its
summands, and no ring holds it exactly; ``fixed_point`` says what is rounded, and how much.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring, capacity_between
from secagg.errors import InvalidParameters, Misuse

from .checks import LOG, require_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A vector of integers in [-bound, bound], whose sum is exact."""

    length: int
    bound: int
    modulus_bits: int

    def __post_init__(self) -> None:
        RingSegment(self.modulus_bits, self.length)
        if type(self.bound) is not int or not 1 <= self.bound <= Ring(self.modulus_bits).greatest:
            raise InvalidParameters(
                f"bound is an integer in 1..{Ring(self.modulus_bits).greatest}, for {self.modulus_bits} bits; "
                f"got {self.bound!r}"
            )

    @property
    def layout(self) -> Layout:
        encoded = struct.pack(">QQI", self.length, self.bound, self.modulus_bits)
        version = public_parameters_digest("identity", encoded)
        return Layout((RingSegment(self.modulus_bits, self.length),), version)

    @property
    def capacity(self) -> int:
        """The largest total weight whose sum fits the ring with every contributor at the bound."""
        return capacity_between(-self.bound, self.bound, self.modulus_bits)

    def encode(self, update: npt.NDArray[np.integer[Any]], coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        """Map the integers to the ring; a value out of bounds counts as the bound, and a log line says so."""
        if getattr(update, "dtype", np.dtype(bool)).kind not in "iu" or update.shape != (self.length,):
            raise Misuse(f"an update is an array of {self.length} integers in one dimension; FixedPoint takes floats")
        ends = np.iinfo(update.dtype)
        within = np.clip(update, max(-self.bound, int(ends.min)), min(self.bound, int(ends.max)))
        if changed := int(np.count_nonzero(within != update)):
            LOG.warning("%d values are outside of -%d..%d, and count as its ends", changed, self.bound, self.bound)
        return Payload(self.layout, (Ring(self.modulus_bits).from_integers(within),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.int64]:
        require_sum(aggregate, self.layout, self.capacity)
        return Ring(self.modulus_bits).lift(aggregate.values[0]).astype(np.int64)
