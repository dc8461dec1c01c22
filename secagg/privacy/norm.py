"""The norm of a client's own values, exactly: what noise is chosen for, and what only the client itself can bound."""

from __future__ import annotations

from math import isqrt

import numpy as np

from secagg.crypto.ring import Ring, RingVector, low_bits, reduce_into

_PIECE = 1 << 14
_LOW_BITS = 24
_SIGNED_BITS = 63
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


def clip_into(ring: Ring, vector: RingVector, l2_bound: int) -> None:
    """Scale a vector down to the bound, in integers and towards zero; one within the bound stays as it is.

    The same work is done in both cases, piece by piece: each value times the bound, divided by the larger of bound and
    norm. Values are whole steps, so that a direction can change by less than a step in each coordinate.
    """
    # No smaller than the root.
    norm = isqrt(max(0, squared_norm(ring, vector) - 1)) + 1
    divisor = max(norm, l2_bound)
    is_narrow = max(ring.modulus_bits - 1 + l2_bound.bit_length(), divisor.bit_length()) < _SIGNED_BITS
    for start in range(0, vector.size, _PIECE):
        values = ring.lift(vector[start : start + _PIECE])
        wide = values.astype(np.int64 if is_narrow else np.object_)
        scaled = np.sign(wide) * (np.abs(wide) * l2_bound // divisor)
        vector[start : start + _PIECE] = scaled.astype(np.int64).astype(ring.word)
    reduce_into(vector, ring.modulus_bits)
