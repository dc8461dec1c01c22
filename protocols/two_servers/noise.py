"""Noise that each server adds to its own share of the sum, enough alone against the other one.

A server draws from a seed of its own, which follows from the round's root and from the list that it signed: the other
server has no root of it, and a list has one noise. Each adds the variance V, and what is released has 2 V; epsilon is
that of V, because the other server subtracts its own or never added any, which nobody can see.

What is released of a histogram is no histogram any more: counts with noise, of which the session makes sums of
codewords, as everybody could.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, Final

from secagg.contract.layout import IndexSegment, Layout, Payload, RingSegment
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Reason
from secagg.privacy.kinds import GREATEST_VARIANCE, NoiseKind, require_variance
from secagg.privacy.norm import clip_into
from secagg.privacy.rounding import room_for_noise
from secagg.wire import Reader, Writer

from .lanes.fields import MODULI

_DEVIATIONS: Final = 6
"""Of the sum of both servers' noise, beside the largest count: 10^7 lanes leave that once in 50 rounds, at one lane."""
_VARIANCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNoise:
    """What each server adds to every segment, as both servers and all clients agree on it."""

    kind: NoiseKind
    variances: tuple[int, ...]
    """Of one server's noise, for each segment of the layout."""
    l2_bounds: tuple[int, ...]
    """For each ring segment the largest norm of a client's values, which it clips to."""
    is_rotated: bool = False
    """Whether ring segments hold coordinates of rotated updates that were rounded at random."""

    def check(self, layout: Layout, weights: tuple[int, ...], total_weight: int) -> None:
        """Refuse noise that a layout's rings and no field hold, or that is for other segments.

        Raises:
            InvalidParameters, CapacityExceeded: saying what to change.
        """
        rings = len(layout.ring_positions)
        if len(self.variances) != len(layout.segments) or len(self.l2_bounds) != rings:
            raise InvalidParameters(f"noise is for {len(layout.segments)} segments, and bounds for {rings} rings")
        if weights != (1,):
            raise InvalidParameters("with noise every client weighs 1: take weights = 1")
        for variance in self.variances:
            require_variance(Fraction(variance), self.kind)
        for place, (variance, most) in enumerate(zip(self.variances, self.most(layout, total_weight), strict=True)):
            if variance > most:
                raise CapacityExceeded(
                    f"segment {place} has room for a variance of {most} of each server's noise beside a sum of "
                    f"{total_weight} clients, and {variance} are asked for: take less noise, or a wider ring"
                )

    def most(self, layout: Layout, total_weight: int) -> list[int]:
        """Return the greatest variance of one server's noise that each segment holds, where both add theirs."""
        bounds = iter(self.l2_bounds)
        rings = (
            room_for_noise(segment, next(bounds), total_weight, is_rotated=self.is_rotated)
            if isinstance(segment, RingSegment)
            else (max(0, MODULI[-1] // 2 - total_weight) / Fraction(_DEVIATIONS)) ** 2
            for segment in layout.segments
        )
        return [min(int(room / 2), int(GREATEST_VARIANCE[self.kind])) for room in rings]

    def lane_weight(self, layout: Layout, total_weight: int) -> int:
        """Return how many values a lane has to tell apart, less one: counts with noise, of either sign."""
        lanes = [v for s, v in zip(layout.segments, self.variances, strict=True) if isinstance(s, IndexSegment)]
        return 2 * (total_weight + ceil(_DEVIATIONS * sqrt(2 * max(lanes, default=0))))

    def write(self, writer: Writer) -> None:
        """Write the encoding; the layout says how many numbers there are."""
        writer.integer(self.kind.value, 1).integer(self.is_rotated, 1)
        for number in (*self.variances, *self.l2_bounds):
            writer.integer(number, _VARIANCE_BYTES)

    @classmethod
    def read(cls, reader: Reader, layout: Layout) -> ServerNoise | None:
        """Read what ``write`` wrote, or the zero of no noise.

        Raises:
            MalformedMessage: there is no such kind, or no such choice.
        """
        if (number := reader.integer(1)) == 0:
            return None
        try:
            kind, is_rotated = NoiseKind(number), (False, True)[reader.integer(1)]
        except (ValueError, IndexError):
            raise MalformedMessage("there is no such kind of noise or of rings", reason=Reason.NOT_CANONICAL) from None
        numbers = [reader.integer(_VARIANCE_BYTES) for _ in range(len(layout.segments) + len(layout.ring_positions))]
        count = len(layout.segments)
        return cls(kind=kind, variances=tuple(numbers[:count]), l2_bounds=tuple(numbers[count:]), is_rotated=is_rotated)


def clipped(payload: Payload, noise: ServerNoise | None) -> Payload:
    """Return a client's values with each ring segment within its bound, in integers; without noise as they are."""
    if noise is None:
        return payload
    values, bounds = list[Any](), iter(noise.l2_bounds)
    for segment, vector in zip(payload.layout.segments, payload.values, strict=True):
        if isinstance(segment, RingSegment):
            own = vector.copy()
            clip_into(segment.ring, own, next(bounds))
            values.append(own)
        else:
            values.append(vector)
    return Payload(payload.layout, tuple(values))
