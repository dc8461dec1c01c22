"""Fixed-point numbers in a wide ring: for uncompressed values, such as biases, norms and unpruned ones."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring, capacity_between, reduce_into
from secagg.errors import CapacityExceeded, InvalidParameters

from .checks import finite, require_floats, require_sum

Floats = npt.NDArray[np.float64]
MAXIMUM_FRACTION_BITS: Final = 52
MAXIMUM_STEPS: Final = (1 << 52) - 1
EXACT_FLOAT: Final = 1 << 53
"""Every integer up to here is a float64, so rounding and decoding give the number that is meant."""
_PIECE: Final = 1 << 15
"""Number of values that are encoded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """A vector of floats as integers of step 2^-fraction_bits, clipped to [-clip, clip].

    The error of a decoded sum is at most half a step for each contributor, plus what clipping took away.
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
            raise InvalidParameters(f"clip is a positive number; got {self.clip}")
        if type(self.fraction_bits) is not int or not 0 <= self.fraction_bits <= MAXIMUM_FRACTION_BITS:
            raise InvalidParameters(f"fraction_bits is in 0..{MAXIMUM_FRACTION_BITS}; got {self.fraction_bits!r}")
        if self.clip > math.ldexp(MAXIMUM_STEPS, -self.fraction_bits) or self.bound < 1:
            raise InvalidParameters(
                f"clip {self.clip} is not 1 to 2^52 - 1 steps of 2^-{self.fraction_bits}; change clip or fraction_bits"
            )
        if self.bound > Ring(self.modulus_bits).greatest:
            raise CapacityExceeded(
                f"one value of {self.bound} steps leaves a ring of {self.modulus_bits} bits; use fewer fraction bits, "
                "a smaller clip or a wider ring"
            )
        encoded = struct.pack(">QdII", self.length, self.clip, self.fraction_bits, self.modulus_bits)
        version = public_parameters_digest("fixed_point", encoded)
        object.__setattr__(self, "layout", Layout((segment,), version))

    @property
    def bound(self) -> int:
        """The largest integer that a value is encoded as."""
        return round(math.ldexp(self.clip, self.fraction_bits))

    @property
    def capacity(self) -> int:
        """The largest total weight whose sum fits the ring, and is a float64, with every contributor at the clip."""
        return min(capacity_between(-self.bound, self.bound, self.modulus_bits), EXACT_FLOAT // self.bound)

    def encode(self, update: npt.NDArray[np.floating[Any]], coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        """Clip, scale and round to nearest, ties to even."""
        require_floats(update, (self.length,))
        ring, wide = Ring(self.modulus_bits), np.promote_types(update.dtype, np.float64)
        encoded = ring.zeros(self.length)
        signed = encoded.view(f"<i{ring.word_bytes}")
        # Piece by piece, so that the values between two steps stay in the processor's cache.
        for start in range(0, self.length, _PIECE):
            piece = finite(update[start : start + _PIECE]).astype(wide)
            np.minimum(piece, self.clip, out=piece)
            clipped = np.maximum(piece, -self.clip, out=piece).astype(np.float64, copy=False)
            scaled = np.rint(np.ldexp(clipped, self.fraction_bits, out=clipped), out=clipped)
            # What Ring.from_integers does, without its temporaries; it would refuse nothing, because steps are clipped
            # and the ring holds ``bound``.
            np.copyto(signed[start : start + _PIECE], scaled, casting="unsafe")
            reduce_into(encoded[start : start + _PIECE], self.modulus_bits)
        return Payload(self.layout, (encoded,))

    def decode(self, aggregate: Aggregate) -> Floats:
        """Return the sum of the contributors' clipped and rounded updates."""
        require_sum(aggregate, self.layout, self.capacity)
        sums = Ring(self.modulus_bits).lift(aggregate.values[0])
        return np.ldexp(sums.astype(np.float64), -self.fraction_bits)
