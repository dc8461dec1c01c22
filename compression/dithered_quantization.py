"""Dithered quantization: values on a fine grid, which a protocol that masks rounds to whole steps once they are masked.

A step has 2^f fine steps. The protocol adds a uniform mask to fine steps and rounds to whole ones, which alone travel:
a subtractive dither, whose error is uniform between -1/2 and 1/2 step, whatever the value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import capacity_between
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .checks import encoded, require_floats, require_sum
from .public_stream import require_shape

Tensor = npt.NDArray[np.floating[Any]]
DEFAULT_FINE_BITS: Final = 8
MOST_FINE_BITS: Final = 24
MOST_BITS: Final = 16
_FLOAT_BITS: Final = 53
"""Every integer of so many bits is a float64, so decoding gives the number that is meant."""
_LEAST_SCALE: Final = 2.0**-100


@dataclass(frozen=True, slots=True, kw_only=True)
class DitheredQuantization:
    """A tensor of floats in steps of ``scale``, clamped to 2^(bits - 1) steps on both sides of zero.

    The capacity keeps room for half a step that rounding under the mask may add for each client.
    """

    shape: tuple[int, ...]
    bits: int
    modulus_bits: int
    scale: float
    fine_bits: int = DEFAULT_FINE_BITS
    layout: Layout = field(init=False, repr=False, compare=False)
    """One ring segment with fine bits; the version covers every parameter."""

    def __post_init__(self) -> None:
        require_shape(self.shape)
        require_integer("bits", self.bits, 1, MOST_BITS)
        require_integer("fine_bits", self.fine_bits, 1, MOST_FINE_BITS)
        require_integer("modulus_bits", self.modulus_bits, 2, _FLOAT_BITS - MOST_FINE_BITS)
        if type(self.scale) is not float or not isfinite(self.scale) or not self.scale >= _LEAST_SCALE:
            raise InvalidParameters(f"scale is a float of at least 2^-100; got {self.scale!r}")
        segment = RingSegment(self.modulus_bits, prod(self.shape), self.fine_bits)
        if self.bound + segment.head_room > segment.ring.greatest:
            raise InvalidParameters(
                f"{self.bits} bits and the room for rounding leave a ring of {self.modulus_bits} bits; use a ring of "
                f"at least {dithered_ring(self.bits, 1, self.fine_bits)} bits"
            )
        parameters = struct.pack(
            f">I{len(self.shape)}QBBBd",
            *(len(self.shape), *self.shape, self.bits, self.modulus_bits, self.fine_bits, self.scale),
        )
        version = public_parameters_digest("dithered_quantization", parameters)
        object.__setattr__(self, "layout", Layout((segment,), version))

    @property
    def bound(self) -> int:
        """The largest number of fine steps that a value becomes."""
        return 1 << (self.bits - 1 + self.fine_bits)

    @property
    def capacity(self) -> int:
        """The largest total weight whose sum stays in the ring, with every value at an end and every rounding too."""
        reach = self.bound + self._segment.head_room
        return capacity_between(-reach, reach, self._segment.ring.modulus_bits)

    @property
    def _segment(self) -> RingSegment:
        (segment,) = self.layout.require_rings()
        return segment

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's; the mask dithers
        require_floats(update, self.shape)

        def steps(piece: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
            # A value beyond a float becomes infinite here, and is clamped like every other.
            with np.errstate(over="ignore"):
                fine = piece.astype(np.float64)
                fine /= self.scale
                fine *= 1 << self.fine_bits
            return np.rint(np.clip(fine, -self.bound, self.bound, out=fine), out=fine)

        return Payload(self.layout, (encoded(update.reshape(-1), self._segment.ring, steps),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        require_sum(aggregate, self.layout, self.capacity)
        sums = self._segment.ring.lift(aggregate.values[0]).astype(np.float64)
        sums *= self.scale / (1 << self.fine_bits)
        return sums.astype(np.float32).reshape(self.shape)


def dithered_ring(bits: int, total_weight: int, fine_bits: int = DEFAULT_FINE_BITS) -> int:
    """Return the width of the narrowest ring that holds this total weight, rounding included."""
    require_integer("a total weight", total_weight, 1)
    reach = total_weight * ((1 << (bits - 1 + fine_bits)) + RingSegment(1, 1, fine_bits).head_room)
    return max(2, reach.bit_length() + 1 - fine_bits)


def calibrate(
    sample: Tensor, *, bits: int, modulus_bits: int, fine_bits: int = DEFAULT_FINE_BITS
) -> DitheredQuantization:
    """Return the scheme whose ends are the largest value of a sample."""
    largest = float(np.abs(sample).max(initial=0))
    if not 0 < largest < np.inf:
        raise InvalidParameters("a scale is calibrated on finite values, not all of them zero; give another sample")
    scale = float(np.float32(largest / (1 << (bits - 1))))
    return DitheredQuantization(
        shape=sample.shape, bits=bits, modulus_bits=modulus_bits, scale=max(scale, _LEAST_SCALE), fine_bits=fine_bits
    )
