"""A linear sketch: a few coordinates of the turned update in 1 to 8 bits, in rings as narrow as the cohort permits.

All clients send the same coordinates of one common rotation, as ring elements, which every protocol that masks can add
up. A client divides by its own length first, so that values are near normal ones and one public step fits everybody.

A code c of q bits stands for the value (2c - 2^q + 1) s / 2 for the step s. Sums of codes are never negative, so a ring
of p bits holds (2^p - 1) / (2^q - 1) clients: 31 clients of 1 bit in 5 bits. Dividing by what rounding keeps of normal
values, 2 / pi for 1 bit, and by the share of coordinates that are sent makes the sum of directions unbiased over the
rotations, for updates with many values that differ from zero.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .checks import require_sum
from .random_pruning import pruning_mask
from .rotation import Floats, JoinedRotation, Update

MOST_BITS: Final = 8
_MOST_RING_BITS: Final = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Sketch:
    """One vector of all values of a model as codes of a few coordinates of its rotation."""

    rotation: JoinedRotation
    kept: int
    """Number of sent coordinates of the turned update."""
    bits: int
    modulus_bits: int
    unit: float = 1.0
    """The length that each client's scaled update is taken to have, such as the mean of the round before."""
    layout: Layout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        padded = self.rotation.padded
        require_integer("kept", self.kept, 1, padded)
        require_integer("bits", self.bits, 1, MOST_BITS)
        require_integer("modulus_bits", self.modulus_bits, self.bits, _MOST_RING_BITS)
        if type(self.unit) is not float or not 2.0**-100 <= self.unit <= 2.0**100:
            raise InvalidParameters(f"unit is a float in 2^-100..2^100; got {self.unit!r}")
        encoded = self.rotation.encode() + struct.pack(">QBBd", self.kept, self.bits, self.modulus_bits, self.unit)
        version = public_parameters_digest("sketch", encoded)
        object.__setattr__(self, "layout", Layout((RingSegment(self.modulus_bits, self.kept),), version))

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        padded = self.rotation.padded
        turned = replace(self.rotation.stream, shape=(padded,))
        return np.flatnonzero(pruning_mask(turned, Fraction(padded - self.kept, padded)))

    @property
    def length(self) -> int:
        return self.rotation.size

    @property
    def capacity(self) -> int:
        return ((1 << self.modulus_bits) - 1) // self._greatest

    @property
    def largest_norm(self) -> float:
        """The greatest length of a decoded update whose codes are in range; masks alone do not hold a client to it."""
        return max(self.rotation.scales) * self._gain * self._greatest * math.sqrt(self.kept)

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Divide by the update's own length, turn, and round; zeros draw their codes from the coins."""
        turned, norm = self.rotation.turned_with_norm(update)
        sent = turned[self._positions].astype(np.float64)
        if norm:
            sent *= math.sqrt(self.rotation.padded) / (norm * normal_step(self.bits)[0])
        codes = np.clip(np.floor(sent) + (1 << (self.bits - 1)), 0, self._greatest)
        zeros = np.flatnonzero(sent == 0)
        if len(zeros):
            # The code above zero has a direction, and all clients have it in common where nobody's values moved.
            codes[zeros] -= np.frombuffer(coins.draw(len(zeros)), dtype=np.uint8) & 1
        return Payload(self.layout, (codes.astype(self.layout.segments[0].ring.word),))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        sums = 2 * aggregate.values[0].astype(np.int64) - aggregate.total_weight * self._greatest
        turned = np.zeros(self.rotation.padded, np.float32)
        turned[self._positions] = sums * self._gain
        return self.rotation.turned_back(turned)

    @property
    def _greatest(self) -> int:
        return (1 << self.bits) - 1

    @property
    def _gain(self) -> float:
        """Return half a step, over what rounding and leaving out keep, for an update of length ``unit``."""
        step, keeps = normal_step(self.bits)
        padded = self.rotation.padded
        return self.unit / math.sqrt(padded) * step / 2 / keeps * padded / self.kept


def sketch_ring(bits: int, total_weight: int) -> int:
    """Return the width of the narrowest ring that no sum of codes leaves."""
    most = ((1 << _MOST_RING_BITS) - 1) // ((1 << bits) - 1)
    if type(total_weight) is not int or not 1 <= total_weight <= most:
        raise InvalidParameters(f"the total weight of codes of {bits} bits is in 1..{most}; got {total_weight!r}")
    return (total_weight * ((1 << bits) - 1)).bit_length()


@lru_cache(maxsize=16)
def normal_step(bits: int) -> tuple[float, float]:
    """Return the step for normal values whose unbiased estimate has the least noise, and the share that it keeps."""
    if bits == 1:
        # Signs have no step; this one makes each as large as the mean magnitude.
        return 2 * math.sqrt(2 / math.pi), 2 / math.pi
    return min((_noise(bits, step), step, keeps) for step, keeps in _steps(bits))[1:]


def rounding_noise(bits: int) -> float:
    """Return the energy of the noise of the unbiased estimate of a normal value: 0.57 for 1 bit."""
    step, keeps = normal_step(bits)
    return _noise(bits, step) if bits > 1 else step**2 / 4 / keeps**2 - 1


def _steps(bits: int) -> list[tuple[float, float]]:
    steps = np.linspace(0.5, 8.0, 301) / (1 << bits)
    return [(float(step), _moments(bits, float(step))[0]) for step in steps]


def _noise(bits: int, step: float) -> float:
    keeps, energy = _moments(bits, step)
    return energy / keeps**2 - 1


def _moments(bits: int, step: float) -> tuple[float, float]:
    """Return E[x c] and E[c^2] of a normal value x and what it is rounded to, by sums over the cells."""
    half = 1 << (bits - 1)
    values: npt.NDArray[Any] = (np.arange(half) + 0.5) * step
    edges = np.append(np.arange(half) * step, np.inf)
    density = np.exp(-np.square(edges) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erf(edge / math.sqrt(2)) / 2 for edge in edges.tolist()])
    return 2 * float(values @ (density[:-1] - density[1:])), 2 * float(np.square(values) @ (below[1:] - below[:-1]))
