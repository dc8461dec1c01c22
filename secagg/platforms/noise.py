"""Noise that the clients of a run add: the same settings at both ends, from what each end says for itself.

Clients insist on their own multiplier and norm, and refuse a session that is about others; nothing that a server says
lowers them. What is noised is one vector of floats in fixed point, because its norm bounds what a client can change.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate
from secagg.contract.layout import RingSegment
from secagg.errors import InvalidParameters
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.privacy.rounding import WORST_DEVIATIONS

from .model_tensors import METRICS

_REPLACED: Final = 2
"""How many bounds stand between neighbours of which one client's update was replaced."""
_ROOM: Final = 1.01


def bound_in_steps(norm: float, fraction_bits: int, length: int) -> int:
    """Return the largest norm of a client's values; rounding moves each by less than a step."""
    return math.ceil(math.hypot(math.ldexp(norm, fraction_bits) + math.sqrt(length), 1))


def bits_with_noise(multiplier: float, bound: int, clients: int) -> int:
    """Return how wide a ring is that holds a sum of so many clients, each with as much noise as all of them owe."""
    deviation = multiplier * _REPLACED * bound * math.sqrt(clients)
    return math.ceil(_ROOM * (clients * bound + WORST_DEVIATIONS * deviation)).bit_length() + 1


def noise_settings(multiplier: float, norm: float, update: ModelUpdate) -> NoiseSettings:
    """Return what one end insists on, for the public parameters of a round.

    Raises:
        InvalidParameters: there is something in the round that has no norm.
    """
    if not multiplier:
        return NO_NOISE
    schemes = {tensor.name: tensor.scheme for tensor in update.tensors}
    told: object = schemes.pop(METRICS, None)
    bits = {scheme.fraction_bits if isinstance(scheme, FixedPoint) else None for scheme in schemes.values()}
    segments = update.layout.segments
    if (
        len(bits) != 1
        or None in bits
        or len(segments) != 1
        or not isinstance(segments[0], RingSegment)
        or not isinstance(told, FixedPoint)
        or (told.length, told.fraction_bits, told.clip) != (1, 0, 1.0)
    ):
        raise InvalidParameters(
            "noise is for tensors of floats in fixed point alone, without metrics: name no metrics, and in "
            "secagg-tensors no tensors of integers"
        )
    (fraction_bits,) = bits
    return NoiseSettings(
        noise_multiplier=Fraction(str(multiplier)),
        l2_bounds=(bound_in_steps(norm, fraction_bits or 0, segments[0].length),),
    )
