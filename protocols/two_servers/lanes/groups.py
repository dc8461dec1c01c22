"""The groups that the lanes of a histogram are counted in: integers modulo 2^p, or modulo a Mersenne prime.

Both offer the same few operations on arrays of words, so that nothing else asks which of them it has. Lanes of a ring
are added without reducing, and reduced once at the end, because 2^p divides the range of their word; lanes of a field
are kept below q at all times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from secagg.crypto import ring as ring_kernels
from secagg.crypto.ring import Ring, low_bits
from secagg.crypto.secret import Secret

from .fields import LaneField, Retry, word_of
from .streams import WordStream

Lanes = npt.NDArray[np.unsignedinteger[Any]]


class LaneSource(Protocol):
    """Uniform lanes of which any range can be made."""

    def lanes(self, start: int, count: int) -> Lanes:
        """Return lanes [start, start + count)."""
        ...


@dataclass(frozen=True, slots=True)
class RingLanes:
    """The integers modulo 2^``modulus_bits``; sums in memory may be above the modulus until they are reduced."""

    modulus_bits: int

    def __post_init__(self) -> None:
        Ring(self.modulus_bits)

    @property
    def order(self) -> int:
        """How many elements there are."""
        return 1 << self.modulus_bits

    @property
    def bits(self) -> int:
        """How many bits a lane has on the wire."""
        return self.modulus_bits

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of lanes in memory."""
        return word_of(self.modulus_bits)

    def settle(self, words: Lanes, retry: Retry) -> None:
        """Leave the words as they are: modulo 2^p a uniform word is a uniform lane."""

    def stream(self, key: Secret) -> WordStream:
        """Return the words that 32 bytes expand into, as lanes that are yet to be reduced."""
        return WordStream(self.word, key)

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place."""
        ring_kernels.add_into(total, lanes)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        """Subtract in place."""
        ring_kernels.subtract_into(total, lanes)

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        """Multiply by a public integer in place."""
        lanes *= self.word.type(factor)

    def reduce_into(self, total: Lanes) -> None:
        """Bring sums below the modulus in place."""
        ring_kernels.reduce_into(total, self.modulus_bits)

    def column_sums(self, lanes: Lanes) -> Lanes:
        """Return the sums over the first axis."""
        sums: Lanes = np.add.reduce(lanes, axis=0, dtype=self.word)
        return sums

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        """Return target - lanes_0 + lanes_1, negated where ``negative`` is all ones."""
        corrected: Lanes = ring_correction(target, lanes_0, lanes_1, negative, self.modulus_bits)
        return corrected

    def pack(self, lanes: Lanes) -> bytes:
        """Write each lane in exactly ``bits`` bits."""
        return Ring(self.modulus_bits).pack(lanes)

    def unpack(self, data: memoryview, count: int) -> Lanes:
        """Read lanes back."""
        return Ring(self.modulus_bits).unpack(data, count)


LaneGroup = RingLanes | LaneField
"""What the values of point functions lie in."""


# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------

Words = Any
"""Arrays of words, or solver terms."""


def ring_correction(target: Words, lanes_0: Words, lanes_1: Words, negative: Words, bits: int) -> Words:
    """Return (target - lanes_0 + lanes_1) modulo 2^p, negated where ``negative`` is all ones and not where it is 0."""
    difference = target - lanes_0 + lanes_1
    return ((difference ^ negative) - negative) & low_bits(bits)
