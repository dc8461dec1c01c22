"""Noise that each server adds to its own share of the sum, enough alone against the other one.

A server draws from a seed of its own, which follows from the root that its journal holds from the first record on and
from the list that it signed: the other server has neither, and a server that was killed draws the same again. Each adds
the variance V, and what is released has 2 V; epsilon is that of V, because the other server subtracts its own or never
added any, which nobody can see.

What is released of a histogram is no histogram any more: counts with noise, of which the session makes sums of
codewords, as everybody could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, Final

import numpy as np

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import Tables, summed_layout
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Reason
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.client_noise import NoiseSettings
from secagg.privacy.noise import GREATEST_VARIANCE, NoiseKind, require_variance
from secagg.privacy.noise_table import add_noise_into, pieces
from secagg.privacy.norm import clip_into
from secagg.privacy.rounding import room_for_noise, rounded_root
from secagg.privacy.seeded_coins import SeededCoins
from secagg.privacy.sensitivity import of_histogram, of_vector
from secagg.wire import Reader, Writer

from .lanes.fields import MODULI
from .lanes.groups import LaneGroup, Lanes

_DEVIATIONS: Final = 6
"""Of the sum of both servers' noise, beside the largest count: 10^7 lanes leave that once in 50 rounds, at one lane."""
_VARIANCE_BYTES: Final = 12
_COUNT_BITS: Final = 32


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

    @classmethod
    def of(cls, settings: NoiseSettings, layout: Layout) -> ServerNoise | None:
        """Return the noise of settings whose bounds are those of ring segments alone; None without.

        Raises:
            InvalidParameters: they do not fit the layout.
        """
        multiplier = settings.noise_multiplier
        if multiplier is None:
            return None
        squared = squared_sensitivities(settings, layout)
        if multiplier <= 0:
            raise InvalidParameters(f"noise_multiplier is positive; got {multiplier}")
        variances = tuple(ceil(multiplier**2 * len(squared) * one) for one in squared)
        return cls(
            kind=settings.noise_kind,
            variances=variances,
            l2_bounds=settings.l2_bounds,
            is_rotated=settings.is_rotated,
        )

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

    def add_to(self, values: Sequence[Lanes | RingVector], layout: Layout, group: LaneGroup, seed: Secret) -> None:
        """Add this server's noise to its share of the sum, in place."""
        coins = SeededCoins(seed)
        for segment, vector, variance in zip(layout.segments, values, self.variances, strict=True):
            if isinstance(segment, RingSegment):
                add_noise_into(vector, segment.ring, self.kind, Fraction(variance), coins)
                continue
            position = 0
            for piece in pieces(self.kind, Fraction(variance), vector.size, coins):
                part = vector[position : position + piece.size]
                group.add_into(part, np.mod(piece.astype(np.int64), group.order).astype(group.word))
                group.reduce_into(part)
                position += piece.size

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


@dataclass(frozen=True, slots=True)
class ReleasedNoise:
    """The noise of one round, as a platform needs to know it."""

    noise: ServerNoise
    settings: NoiseSettings
    layout: Layout
    tables: Tables

    @property
    def deviations(self) -> tuple[float, ...]:
        """Of each released segment, where both servers add theirs; a table's is that of its widest coordinate."""
        found, remaining = list[float](), iter(self.tables)
        for segment, variance in zip(self.layout.segments, self.noise.variances, strict=True):
            if isinstance(segment, RingSegment):
                found.append(sqrt(2 * variance))
                continue
            for table in next(remaining):
                widest = float((table.entries.astype(np.float64) ** 2).sum(axis=0).max())
                found.append(sqrt(2 * variance * widest))
        return tuple(found)

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the epsilon against one server, whose own noise hides nothing from it."""
        parts = [
            ReleasePart(l2_squared=squared, l1=None, variance=Fraction(variance))
            for squared, variance in zip(
                squared_sensitivities(self.settings, self.layout), self.noise.variances, strict=True
            )
        ]
        return epsilon(self.noise.kind, parts, releases, delta)


def require_held(settings: NoiseSettings, layout: Layout, total_weight: int) -> ServerNoise | None:
    """Return the noise of settings; refuse what rings and fields do not hold by the multiplier that they do.

    Raises:
        InvalidParameters: the settings do not fit the layout.
        CapacityExceeded: naming the greatest multiplier, or that there is none.
    """
    noise = ServerNoise.of(settings, layout)
    if noise is None or settings.noise_multiplier is None:
        return None
    squared = squared_sensitivities(settings, layout)
    most = min(
        Fraction(variance, len(squared) * max(1, one))
        for variance, one in zip(noise.most(layout, total_weight), squared, strict=True)
    )
    if settings.noise_multiplier**2 > most:
        held = rounded_root(most, ROUND_DOWN)
        raise CapacityExceeded(
            f"rings and fields do not hold sums of {total_weight} clients with this noise of both servers: "
            + (f"take noise_multiplier = {held:f} at most, or wider rings" if held else "take wider rings, or none")
        )
    return noise


def squared_sensitivities(settings: NoiseSettings, layout: Layout) -> list[int]:
    """Return how far one client moves each segment, squared.

    Raises:
        InvalidParameters: there are not as many bounds as ring segments.
    """
    rings = sum(isinstance(segment, RingSegment) for segment in layout.segments)
    if len(settings.l2_bounds) != rings:
        raise InvalidParameters(f"l2_bounds are {rings}, one for each ring segment; got {len(settings.l2_bounds)}")
    bounds = iter(settings.l2_bounds)
    return [
        of_vector(next(bounds), 1, settings.adjacency)
        if isinstance(segment, RingSegment)
        else of_histogram(segment.blocks, 1, settings.adjacency)
        for segment in layout.segments
    ]


def counts_layout(layout: Layout) -> Layout:
    """Return the layout of counts with noise, in place of histograms."""
    segments = tuple(
        segment if isinstance(segment, RingSegment) else RingSegment(_COUNT_BITS, segment.blocks * segment.codewords)
        for segment in layout.segments
    )
    return Layout(segments, layout.version)


def centred(lanes: Lanes, order: int) -> RingVector:
    """Return counts with noise as elements of a ring, from lanes of which half stand for negative ones."""
    signed = lanes.astype(np.int64)
    signed[signed > order // 2] -= order
    return RingSegment(_COUNT_BITS, 1).ring.from_integers(signed)


def sums_of_counts(noised: Aggregate, layout: Layout, tables: Tables) -> Aggregate:
    """Return sums of codewords, each as often as counts with noise say."""
    counts = [
        None
        if isinstance(segment, RingSegment)
        else noised_segment.ring.lift(vector).astype(np.int64).reshape(segment.blocks, segment.codewords)
        for segment, noised_segment, vector in zip(
            layout.segments, noised.layout.require_rings(), noised.values, strict=True
        )
    ]
    heaviest = max((int(np.abs(one).sum(axis=1).max()) for one in counts if one is not None), default=0)
    summed = summed_layout(layout, tables, max(noised.total_weight, heaviest))
    values, released, remaining = list[RingVector](), iter(summed.require_rings()), iter(tables)
    for one, vector in zip(counts, noised.values, strict=True):
        if one is None:
            next(released)
            values.append(vector)
            continue
        first = 0
        for table in next(remaining):
            total = one[first : first + table.blocks] @ table.entries
            values.append(next(released).ring.from_integers(total.reshape(-1)))
            first += table.blocks
    return Aggregate(summed, tuple(values), noised.contributors, noised.total_weight)


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
