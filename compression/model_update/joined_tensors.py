"""Small tensors in fixed point, encoded in one go: of a bias, the calls cost more than the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.compression.fixed_point import FixedPoint
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector
from secagg.errors import Misuse

from .merged_segments import Part, Parts
from .tensors import Tensors, TensorScheme

_MOST_VALUES: Final = 1 << 15
"""Of one tensor; copying a larger one beside others costs more than its calls."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Tensors of one model, in any number, and the scheme that encodes all of them at once where there is one."""

    tensors: tuple[TensorScheme, ...]
    parts: tuple[tuple[Part, ...], ...]
    """Where the segments of each tensor's scheme lie."""
    scheme: FixedPoint | None

    @property
    def place(self) -> Part:
        """Where the values of all tensors lie, one after another."""
        (segment, first), (_, last) = self.parts[0][0], self.parts[-1][0]
        return segment, slice(first.start, last.stop)

    def encoded(self, update: Tensors, coins: Coins) -> RingVector | None:
        """Return the values of all tensors, or None where each has to be encoded by itself, if only for its error."""
        if self.scheme is None:
            return None
        try:
            flat = [update[tensor.name].reshape(-1) for tensor in self.tensors]
            if any(values.dtype != flat[0].dtype for values in flat):
                return None
            return self.scheme.encode(np.concatenate(flat), coins).values[0]
        except Misuse:
            return None


def joined(tensors: Sequence[TensorScheme], parts: Parts) -> tuple[Joined, ...]:
    """Put together what one scheme can encode: tensors of one fixed-point format whose values lie side by side.

    Everything else stays by itself and in its order. Fixed point draws no coins, so that those of others do not move.
    """
    groups = list[tuple[list[TensorScheme], list[tuple[Part, ...]]]]()
    growing = dict[tuple[int, int, int, float], int]()
    for tensor, own in zip(tensors, parts, strict=True):
        scheme = tensor.scheme
        if type(scheme) is FixedPoint and scheme.length <= _MOST_VALUES:
            segment, place = own[0]
            key = (segment, scheme.modulus_bits, scheme.fraction_bits, scheme.clip)
            at = growing.get(key)
            if at is not None and groups[at][1][-1][0][1].stop == place.start:
                groups[at][0].append(tensor)
                groups[at][1].append(own)
                continue
            growing[key] = len(groups)
        groups.append(([tensor], [own]))
    return tuple(Joined(tuple(some), tuple(places), _scheme_of(some)) for some, places in groups)


def _scheme_of(tensors: Sequence[TensorScheme]) -> FixedPoint | None:
    first = tensors[0].scheme
    if len(tensors) == 1 or not isinstance(first, FixedPoint):
        return None
    return FixedPoint(
        length=sum(tensor.scheme.length for tensor in tensors if isinstance(tensor.scheme, FixedPoint)),
        clip=first.clip,
        fraction_bits=first.fraction_bits,
        modulus_bits=first.modulus_bits,
    )
