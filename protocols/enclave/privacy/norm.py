"""The norm of a client's own values, exactly: what noise is chosen for, and what only the client itself can bound."""

from __future__ import annotations

import numpy as np

from secagg.crypto.ring import Ring, RingVector, low_bits
from secagg.errors import CapacityExceeded, Reason

_PIECE = 1 << 14
_LOW_BITS = 24
_EXACT_BITS = 2 * _LOW_BITS
"""Up to this width, products of halves of 24 bits, added up over a piece, stay below 2^63."""


def squared_norm(ring: Ring, vector: RingVector) -> int:
    """Return the sum of the squares of the integers that the elements stand for, exactly."""
    total = 0
    for start in range(0, vector.size, _PIECE):
        values = ring.lift(vector[start : start + _PIECE])
        if ring.modulus_bits > _EXACT_BITS:
            total += sum(value * value for value in values.tolist())
            continue
        wide = values.astype(np.int64)
        high, low = wide >> _LOW_BITS, wide & low_bits(_LOW_BITS)
        squares = int(np.dot(high, high)), int(np.dot(high, low)), int(np.dot(low, low))
        total += (squares[0] << 2 * _LOW_BITS) + (squares[1] << _LOW_BITS + 1) + squares[2]
    return total


def require_norm(ring: Ring, vector: RingVector, l2_bound: int) -> None:
    """Refuse values whose L2 norm is above the bound.

    Raises:
        CapacityExceeded: clip the update before it is encoded, with room for rounding.
    """
    if squared_norm(ring, vector) > l2_bound * l2_bound:
        raise CapacityExceeded(
            f"the update's norm is above {l2_bound} steps, which the noise was chosen for; clip it before it is "
            "encoded, with room for rounding",
            reason=Reason.INPUT_OUT_OF_RANGE,
        )
