"""What is known of lengths from the rounds before, for codes that say where an update points and not how long it is.

Clients tell their lengths relative to what is known: how long the scaled update is, and in some rounds how long each
tensor is, from which the tensors' scales follow. Where blocks are checked each length is a vote for a public level, and
the middle vote is taken, which fewer than half of the clients cannot move beyond those of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .joined_rotation import JoinedRotation, square_root_scales
from .peak import length_levels
from .public_stream import PublicStream

_LEAST_NORM: Final = 2.0**-40
"""What is taken for a length of zero, which nothing can be relative to."""
_ROUNDING: Final = 1e-9
"""Of shares of a weight."""
_BLOCK_SIZE: Final = 1024

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLengths:
    """The lengths that clients told before; nothing in a first round."""

    sizes: tuple[int, ...]
    """How many values each tensor has."""
    common: float | None = None
    """Of the scaled update, in the round before."""
    tensors: tuple[float, ...] | None = None
    """Of each tensor, when clients were last asked."""

    @property
    def is_informed(self) -> bool:
        """Whether a round was decoded; all lengths are known from then on."""
        return self.common is not None and self.tensors is not None

    @property
    def longest(self) -> float:
        """The last level, relative to what is known; longer updates are taken to be as long."""
        return float(length_levels(references=self.is_informed)[-1])

    def rotation(self, stream: PublicStream) -> JoinedRotation:
        """Return the rotation of a round, under the scales that follow from the tensors' lengths."""
        scales = () if self.tensors is None else square_root_scales(self.sizes, self.tensors)
        return JoinedRotation(stream=stream, sizes=self.sizes, scales=scales, block_size=block_size_for(stream.size))

    def told(self, rotation: JoinedRotation, update: Floats, *, with_tensors: bool) -> Floats:
        """Return what a client tells: the lengths of its update, relative to what is known."""
        norms = [rotation.norm(update), *(rotation.norms(update) if with_tensors else ())]
        return np.array(norms) / self._references(with_tensors=with_tensors)

    def votes(self, relative: Floats) -> npt.NDArray[np.float32]:
        """Return one row for each length, with a one at the nearest level."""
        levels = np.log2(length_levels(references=self.is_informed))
        at = np.abs(np.log2(np.maximum(relative, _LEAST_NORM))[:, np.newaxis] - levels).argmin(axis=1)
        votes: npt.NDArray[np.float32] = np.eye(len(levels), dtype=np.float32)[at]
        return votes

    def middle(self, shares: Floats) -> npt.NDArray[np.float64]:
        """Return the middle level of each row of shares; between two, where half of the weight is on each side."""
        levels, below = length_levels(references=self.is_informed), np.cumsum(shares, axis=1)
        lower, upper = ((below >= half).argmax(axis=1) for half in (0.5 - _ROUNDING, 0.5 + _ROUNDING))
        middle: npt.NDArray[np.float64] = np.sqrt(levels[lower] * levels[upper])
        return middle

    def after(self, relative: Floats, rotation: JoinedRotation) -> tuple[float, KnownLengths]:
        """Return the length of a round's mean, from what its clients told, and what is known in the next round."""
        references = self._references(with_tensors=len(relative) > 1)
        norms = np.maximum(relative * references, _LEAST_NORM).tolist()
        common, tensors = float(norms[0]), tuple(norms[1:])
        if not tensors:
            return common, KnownLengths(sizes=self.sizes, common=common, tensors=self.tensors)
        # From the next round on, lengths are those under the new scales.
        changed = _scaled(tensors, square_root_scales(self.sizes, tensors)) / _scaled(tensors, rotation.scales)
        return common, KnownLengths(sizes=self.sizes, common=common * changed, tensors=tensors)

    def _references(self, *, with_tensors: bool) -> npt.NDArray[np.float64]:
        """Return what lengths are told relative to: those that are known, and ones in the first round."""
        if not self.is_informed:
            return np.ones(1)
        known = (self.common or 0.0, *((self.tensors or ()) if with_tensors else ()))
        return np.array([max(length, _LEAST_NORM) for length in known])


def block_size_for(values: int) -> int:
    """Return the blocks in which a whole update is turned."""
    return min(_BLOCK_SIZE, 1 << max(1, (values - 1).bit_length()))


def _scaled(norms: tuple[float, ...], scales: tuple[float, ...]) -> float:
    """Return the length of tensors of these lengths, each divided by its scale."""
    return math.hypot(*(norm / scale for norm, scale in zip(norms, scales, strict=True)))
