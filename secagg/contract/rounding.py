"""Masked rounding in the clear: the reference with which protocols and schemes are compared."""

from __future__ import annotations

import numpy as np

from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector

from .decoder import Aggregate
from .layout import Payload, RingSegment, Segment


def has_fine_bits(segment: Segment) -> bool:
    """Whether masked values of a segment are rounded."""
    return isinstance(segment, RingSegment) and bool(segment.fine_bits)


def rounded_payload(payload: Payload, coins: Coins) -> Payload:
    """Return what counts of a payload: values with fine bits are masked, rounded and unmasked; others stay as they are.

    It protects nobody.
    """
    pairs = zip(payload.layout.segments, payload.values, strict=True)
    return Payload(payload.layout, tuple(_rounded(segment, vector, coins) for segment, vector in pairs))


def unbiased_aggregate(total: Aggregate) -> Aggregate:
    """Take from a sum of rounded payloads what one rounding for each contributor adds on average."""
    values = tuple(
        segment.unbiased(vector, total.contributors) if isinstance(segment, RingSegment) else vector
        for segment, vector in zip(total.layout.segments, total.values, strict=True)
    )
    return Aggregate(total.layout, values, total.contributors, total.total_weight)


def rounded_values(segment: RingSegment, vector: RingVector, coins: Coins) -> RingVector:
    """Return what counts of values that are rounded under a mask from these coins; without fine bits, themselves."""
    if not segment.fine_bits:
        return vector
    ring = segment.ring
    mask = np.frombuffer(coins.draw(segment.length * ring.word_bytes), ring.word)
    return ring.subtract(segment.rounded(ring.add(vector, mask)), mask)


def _rounded(segment: Segment, vector: RingVector, coins: Coins) -> RingVector:
    return rounded_values(segment, vector, coins) if isinstance(segment, RingSegment) else vector
