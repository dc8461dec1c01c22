"""Updates for noise that clients add: clipped, rotated, and rounded at random to integers of a bounded norm.

Noise has to hide how far one client can move a sum. So a client scales its update down to a public length,
turns it by the round's rotation, and rounds each of the padded coordinates to a whole step, up or down at random, until
the norm in steps is within the public bound. The length, the bound and all else here are in the layout's version, which
a session's configuration binds.

The ring is narrow: behind a rotation coordinates are near normal ones, and four deviations of the largest sum with its
noise fit (``secagg.privacy.rounding``). A sum that wraps costs accuracy and no privacy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import reduce_into
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer
from secagg.privacy.rounding import bound_for_ring, rounded, unrounded_norm

from .checks import require_sum
from .joined_rotation import Floats, Gains, JoinedRotation, Update


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundedRotation:
    """One vector of all values of a model as whole steps of its rotation, of a bounded norm."""

    rotation: JoinedRotation
    clip: float
    """The greatest length of a scaled update; longer ones are shortened to it."""
    l2_bound: int
    """The greatest norm of what a client sends, in steps: what its noise is in proportion to."""
    modulus_bits: int
    clients: int
    """Number of clients that the ring is planned for."""
    layout: Layout = field(init=False, repr=False)

    @classmethod
    def planned(
        cls, rotation: JoinedRotation, *, clip: float, modulus_bits: int, clients: int, noise_share: float
    ) -> RoundedRotation:
        """Return the code of the finest steps whose sums a ring holds with their noise.

        Args:
            noise_share: the greatest variance of the sum's noise over the square of the bound.
        Raises:
            InvalidParameters: the ring is too narrow; the message names one that is not.
        """
        bound = bound_for_ring(modulus_bits, rotation.padded, clients, noise_share)
        return cls(rotation=rotation, clip=clip, l2_bound=bound, modulus_bits=modulus_bits, clients=clients)

    def __post_init__(self) -> None:
        if type(self.clip) is not float or not 2.0**-100 <= self.clip <= 2.0**100:
            raise InvalidParameters(f"clip is a float in 2^-100..2^100; got {self.clip!r}")
        require_integer("clients", self.clients, 1)
        unrounded_norm(self.l2_bound, self.rotation.padded)
        encoded = self.rotation.encode()
        encoded += struct.pack(">dQBQ", self.clip, self.l2_bound, self.modulus_bits, self.clients)
        version = public_parameters_digest("rounded_rotation", encoded)
        object.__setattr__(self, "layout", Layout((RingSegment(self.modulus_bits, self.rotation.padded),), version))

    @property
    def length(self) -> int:
        """Number of values of an update."""
        return self.rotation.size

    @property
    def capacity(self) -> int:
        """The largest total weight that the ring is planned for."""
        return self.clients

    @property
    def step(self) -> float:
        """Length of one step of a coordinate."""
        return self.clip / unrounded_norm(self.l2_bound, self.rotation.padded)

    @property
    def largest_norm(self) -> float:
        """The greatest length of a decoded update, if its client rounds as it should; nothing here holds it to that."""
        return max(self.rotation.scales) * self.l2_bound * self.step

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Clip, turn and round."""
        turned, norm = self.rotation.turned_with_norm(update)
        steps = turned.astype(np.float64)
        steps *= min(1.0, self.clip / norm if norm else 1.0) / self.step
        ring = self.layout.segments[0].ring
        vector = rounded(steps, self.l2_bound, coins).astype(ring.word)
        reduce_into(vector, ring.modulus_bits)
        return Payload(self.layout, (vector,))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        (segment,) = self.layout.require_rings()
        return self.rotation.turned_back(segment.ring.lift(aggregate.values[0]).astype(np.float32), self.gains)

    @property
    def gains(self) -> Gains:
        """Length of a step."""
        return Gains(self.step)
