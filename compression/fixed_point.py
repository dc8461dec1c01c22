"""Fixed-point numbers in a wide ring, for uncompressed values such as biases and norms; integers are unchanged.

No exact scheme exists for floats: a sum of floats depends on their order, and no ring holds it exactly.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.contract.decoder import capacity_between
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse

from .common import LOG, encoded, require_floats, require_sum

Floats = npt.NDArray[np.float64]
MAXIMUM_FRACTION_BITS: Final = 52
MAXIMUM_STEPS: Final = (1 << 52) - 1
EXACT_FLOAT: Final = 1 << 53
"""Every integer up to here is exact in float64, so rounding and decoding are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Encodes a vector of floats as integer multiples of 2^-fraction_bits, clipped to [-clip, clip].

    The error of a decoded sum is at most half a step for each contributor, plus the clipped excess.
    """

    length: int
    clip: float
    fraction_bits: int
    modulus_bits: int
    layout: Layout = field(init=False, repr=False, compare=False)
    """One ring segment."""

    def __post_init__(self) -> None:
        segment = RingSegment(self.modulus_bits, self.length)
        if not 0 < self.clip < math.inf:
            raise InvalidParameters(f"clip must be a positive number; got {self.clip}")
        if type(self.fraction_bits) is not int or not 0 <= self.fraction_bits <= MAXIMUM_FRACTION_BITS:
            raise InvalidParameters(f"fraction_bits must be in 0..{MAXIMUM_FRACTION_BITS}; got {self.fraction_bits!r}")
        if self.clip > math.ldexp(MAXIMUM_STEPS, -self.fraction_bits) or self.bound < 1:
            raise InvalidParameters(
                f"clip {self.clip} must be 1 to 2^52 - 1 steps of 2^-{self.fraction_bits}; change clip or fraction_bits"
            )
        if self.bound > Ring(self.modulus_bits).greatest:
            raise CapacityExceeded(
                f"one value of {self.bound} steps exceeds a ring of {self.modulus_bits} bits; use fewer fraction bits, "
                "a smaller clip or a wider ring"
            )
        parameters = struct.pack(">QdII", self.length, self.clip, self.fraction_bits, self.modulus_bits)
        version = public_parameters_digest("fixed_point", parameters)
        object.__setattr__(self, "layout", Layout((segment,), version))

    @property
    def bound(self) -> int:
        """Maximum of an encoded value."""
        return round(math.ldexp(self.clip, self.fraction_bits))

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sum fits the ring and a float64, with every contributor at the clip."""
        return min(capacity_between(-self.bound, self.bound, self.modulus_bits), EXACT_FLOAT // self.bound)

    def encode(self, update: npt.NDArray[np.floating[Any]], coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        """Clip, scale and round to nearest, ties to even."""
        require_floats(update, (self.length,))
        wide = np.promote_types(update.dtype, np.float64)

        def steps(piece: npt.NDArray[Any]) -> Floats:
            values = piece.astype(wide)
            clipped: Floats = np.clip(values, -self.clip, self.clip, out=values).astype(np.float64, copy=False)
            return np.rint(np.ldexp(clipped, self.fraction_bits, out=clipped), out=clipped)

        return Payload(self.layout, (encoded(update, Ring(self.modulus_bits), steps),))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        sums = Ring(self.modulus_bits).lift(aggregate.values[0])
        return np.ldexp(sums.astype(np.float64), -self.fraction_bits)


# --- Integers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A vector of integers in [-bound, bound], such as counts, votes or a trainer's codes; the sum is exact."""

    length: int
    bound: int
    modulus_bits: int

    def __post_init__(self) -> None:
        RingSegment(self.modulus_bits, self.length)
        if type(self.bound) is not int or not 1 <= self.bound <= Ring(self.modulus_bits).greatest:
            raise InvalidParameters(
                f"bound must be an integer in 1..{Ring(self.modulus_bits).greatest} for {self.modulus_bits} bits; "
                f"got {self.bound!r}"
            )

    @property
    def layout(self) -> Layout:
        encoded = struct.pack(">QQI", self.length, self.bound, self.modulus_bits)
        version = public_parameters_digest("identity", encoded)
        return Layout((RingSegment(self.modulus_bits, self.length),), version)

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sum fits the ring, with every contributor at the bound."""
        return capacity_between(-self.bound, self.bound, self.modulus_bits)

    def encode(self, update: npt.NDArray[np.integer[Any]], coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        """Map the integers to the ring; values out of bounds are clamped, and logged."""
        if getattr(update, "dtype", np.dtype(bool)).kind not in "iu" or update.shape != (self.length,):
            raise Misuse(f"an update must be a vector of {self.length} integers; use FixedPoint for floats")
        ends = np.iinfo(update.dtype)
        within = np.clip(update, max(-self.bound, int(ends.min)), min(self.bound, int(ends.max)))
        if changed := int(np.count_nonzero(within != update)):
            LOG.warning("%d values are outside -%d..%d and were clamped", changed, self.bound, self.bound)
        return Payload(self.layout, (Ring(self.modulus_bits).from_integers(within),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.int64]:
        require_sum(aggregate, self.layout, self.capacity)
        return Ring(self.modulus_bits).lift(aggregate.values[0]).astype(np.int64)
