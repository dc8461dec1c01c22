"""Several values in one coefficient, and coefficients of one or two machine words.

A coefficient is an integer modulo 2^w in one word of 64 bits, or in two, lowest first. From the lowest bit it holds g
guard bits and then k fields, each wide enough for the sum of its values over a full list, so that no field reaches the
next. A value that wraps stands in the highest bits alone, and its carry leaves the coefficient. A value with fine bits
stands in the lowest, and what is above it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secagg.crypto.ring import Ring, RingVector
from secagg.errors import CapacityExceeded, Misuse, Reason
from secagg.protocols.one_message.parameters import Parameters

from .coefficients import WORD_BITS, add_shifted, low_bits
from .values import Values

VALUES_AT_ONCE = 1 << 15
"""Few enough that what is made of them stays in a second-level cache."""
Word = npt.NDArray[np.uint64]


def word_count(modulus_bits: int) -> int:
    """Return how many machine words hold a coefficient."""
    return -(-modulus_bits // WORD_BITS)


def lowest_bit(parameters: Parameters, segment: int) -> int:
    """Return where the fields of a segment begin; everything below is noise, which fine steps take in."""
    values = parameters.segments[segment]
    if values.fine_bits:
        return 0
    return parameters.modulus_bits - values.ring_bits if values.bounds is None else parameters.guard_bits


def pack(parameters: Parameters, vectors: Sequence[RingVector], weight: int) -> list[Word]:
    """Return the coefficients that hold these values, each times a weight, above zero guard bits.

    Args:
        parameters: the layout and its packing.
        vectors: a ring vector for each segment but check words, modulo 2^ring_bits in two's complement.
        weight: multiplies every value.

    Raises:
        Misuse: a vector is missing, or is not one over its segment's ring, or the weight is not a positive integer.
        CapacityExceeded: a value leaves its bounds, or the weight the capacity.
    """
    if len(vectors) != parameters.inputs:
        raise Misuse(f"the layout has {parameters.inputs} segments; got {len(vectors)} vectors")
    if type(weight) is not int or weight < 1:
        raise Misuse(f"a weight is an integer of at least 1; got {weight!r}")
    if weight > parameters.capacity_weight:
        raise CapacityExceeded(f"a weight of {weight} exceeds {parameters.capacity_weight}, all that a sum may have")
    words = [np.zeros(parameters.coefficients, np.uint64) for _ in range(word_count(parameters.modulus_bits))]
    for index, (segment, vector) in enumerate(zip(parameters.segments, vectors, strict=False)):
        Ring(segment.ring_bits).require_vector(vector, segment.length)
        first, end = parameters.starts[index : index + 2]
        bits = segment.field_bits(parameters.capacity_weight)
        for position in range(parameters.per_coefficient[index]):
            shift = lowest_bit(parameters, index) + position * bits
            field = vector[position * (end - first) : (position + 1) * (end - first)]
            for start in range(0, field.size, VALUES_AT_ONCE):
                values = _from_zero(segment, field[start : start + VALUES_AT_ONCE])
                values *= np.uint64(weight)
                place = first + start
                add_shifted([word[place : place + values.size] for word in words], values, shift)
    return words


def _from_zero(segment: Values, vector: RingVector) -> Word:
    """Return x - lo for values with bounds, which they must keep, and x itself for those without."""
    if segment.bounds is None:
        return vector.astype(np.uint64)
    low, high = segment.bounds
    shifted = vector.astype(np.uint64) - np.uint64(low & low_bits(WORD_BITS))
    shifted &= np.uint64(low_bits(segment.ring_bits))
    if int(shifted.max()) > high - low:
        raise CapacityExceeded(
            f"a value leaves {low}..{high}, the bounds of its segment; clamp the values or widen the bounds",
            reason=Reason.INPUT_OUT_OF_RANGE,
        )
    return shifted
