"""The sum of a round in the clear, one payload at a time: what every protocol must compute, and how far it overflows.

It holds one sum, however many clients there are. Indices are added up as the integer codewords that they stand for, so
that no histogram of a large model is held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.model_update import ModelUpdate
from secagg.compression.scalar_quantization import overflowed
from secagg.contract import Aggregate, IndexSegment, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables, summed_layout
from secagg.contract.rounding import rounded_values
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import add_into, low_bits, reduce_into
from secagg.errors import Misuse, ThresholdNotMet

_Sums = npt.NDArray[Any]


class ClearSum:
    """Adds payloads up; it protects nobody."""

    def __init__(
        self, codec: ModelUpdate, maximum_total_weight: int, minimum_cohort: int = 1, rounding: Coins | None = None
    ) -> None:
        """Begin an empty sum of a codec's payloads.

        Args:
            rounding: in place of masks, for segments with fine bits; without them nothing is rounded.
        """
        self._layout, self._rounding = codec.layout, rounding
        has_indices = any(isinstance(segment, IndexSegment) for segment in self._layout.segments)
        tables: Tables = codec.tables if has_indices else ()
        self._released = summed_layout(self._layout, tables, maximum_total_weight) if has_indices else self._layout
        remaining = iter(tables)
        self._tables: list[tuple[CodewordTable, ...]] = [
            next(remaining) if isinstance(segment, IndexSegment) else () for segment in self._layout.segments
        ]
        self._sums: list[list[_Sums]] = [
            [np.zeros((table.blocks, table.width), dtype=np.int64) for table in some]
            if isinstance(segment, IndexSegment)
            else [segment.ring.zeros(segment.length)]
            for segment, some in zip(self._layout.segments, self._tables, strict=True)
        ]
        self._minimum_cohort = minimum_cohort
        self._contributors = 0
        self._total_weight = 0

    @property
    def contributors(self) -> int:
        """How many payloads were added."""
        return self._contributors

    def add(self, payload: Payload, weight: int = 1) -> None:
        """Add one client's payload, as often as its weight says."""
        if payload.layout != self._layout:
            raise Misuse("a payload belongs to another layout; encode all of a round with one codec")
        for segment, some, sums, values in zip(
            self._layout.segments, self._tables, self._sums, payload.values, strict=True
        ):
            match segment:
                case RingSegment():
                    ring = segment.ring
                    added = values if weight == 1 else values * ring.word.type(weight & low_bits(ring.modulus_bits))
                    if self._rounding is not None:
                        added = rounded_values(segment, added, self._rounding)
                    reduce_into(add_into(sums[0], added), ring.modulus_bits)
                case IndexSegment():
                    first = 0
                    for table, total in zip(some, sums, strict=True):
                        chosen = table.entries[values[first : first + table.blocks]]
                        np.add(total, chosen if weight == 1 else chosen * weight, out=total)
                        first += table.blocks
        self._contributors += 1
        self._total_weight += weight

    def finish(self) -> Aggregate:
        """Return the sum, in the layout that a protocol releases.

        Raises:
            ThresholdNotMet: fewer payloads than the minimum cohort.
        """
        if self._contributors < max(1, self._minimum_cohort):
            raise ThresholdNotMet(needed=self._minimum_cohort, present=self._contributors, what="contributors")
        values = list[_Sums]()
        released = iter(self._released.require_rings())
        for segment, sums in zip(self._layout.segments, self._sums, strict=True):
            for total in sums:
                ring = next(released).ring
                if isinstance(segment, RingSegment):
                    values.append(segment.unbiased(total, 0 if self._rounding is None else self._contributors))
                else:
                    values.append(ring.from_integers(total.reshape(-1)))
        return Aggregate(self._released, tuple(values), self._contributors, self._total_weight)


class OverflowMeter:
    """How many coordinates of a round's true sums leave the ring of the codes; simulations alone can know it.

    ``share`` counts final sums, of both signs: a partial sum that leaves a ring comes back. ``flsim_share`` counts as
    the simulator behind the paper does: after every addition, positive sums alone, reduced modulo half the ring, and
    divided by coordinates and clients.
    """

    def __init__(self, codec: ModelUpdate, modulus_bits: int, *, with_flsim: bool = True) -> None:
        """Meter the segments whose ring has this width."""
        self._modulus_bits = modulus_bits
        self._positions = [
            position
            for position, segment in enumerate(codec.layout.segments)
            if isinstance(segment, RingSegment) and segment.modulus_bits == modulus_bits
        ]
        lengths = [codec.layout.segments[position].length for position in self._positions]
        self._true = [np.zeros(length, dtype=np.int64) for length in lengths]
        self._simulated = [np.zeros(length, dtype=np.int64) for length in lengths] if with_flsim else []
        self._events = 0
        self._clients = 0

    @property
    def is_metering(self) -> bool:
        """Whether there is anything to overflow."""
        return bool(self._positions)

    def add(self, payload: Payload, weight: int = 1) -> None:
        """Count one client's codes."""
        half = 1 << (self._modulus_bits - 1)
        for number, position in enumerate(self._positions):
            segment = payload.layout.segments[position]
            codes = segment.ring.lift(payload.values[position]).astype(np.int64) * weight
            self._true[number] += codes
            if self._simulated:
                total = self._simulated[number]
                total += codes
                # Halves of the ring are taken off towards zero, and counted where the sum is positive.
                beyond = np.flatnonzero((total >= half) | (total <= -half))
                halves = np.sign(total[beyond]) * (np.abs(total[beyond]) // half)
                self._events += int(np.maximum(halves, 0).sum())
                total[beyond] -= halves * half
        self._clients += 1

    @property
    def share(self) -> float:
        """The share of coordinates whose true sum leaves the ring."""
        size = sum(total.size for total in self._true)
        wrapped = sum(int(overflowed(total, self._modulus_bits).sum()) for total in self._true)
        return wrapped / size if size else 0.0

    @property
    def flsim_share(self) -> float:
        """The events that the paper's simulator would count, for each coordinate and client."""
        size = sum(total.size for total in self._true) * self._clients
        return self._events / size if size else 0.0
