"""One server's share of the sums: for each weight that occurs, the sum of the uploads of that weight.

A weight multiplies a sum, not an upload. So what is released can leave out the weights that too few clients have: in
the sum of one client of weight 1 and many of weight 64 the remainders modulo 64 would be that one client's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secagg.contract.layout import IndexSegment
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector, add_into, low_bits, reduce_into
from secagg.crypto.secret import Confined, Secret
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.lanes.groups import Lanes
from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.point_functions.grid import LaneGrid
from secagg.protocols.two_servers.point_functions.sums import HistogramShare


@dataclass(slots=True, eq=False, repr=False)
class _Total:
    """The sum of the uploads of one weight."""

    histograms: dict[int, HistogramShare]
    vectors: list[RingVector]


class ClassTotals(Confined):
    """The sums of one round at one server; memory for a few models, however many clients there are."""

    def __init__(self, configuration: IndexingConfiguration, server: ServerId, *, threads: int = 1) -> None:
        """Begin with nothing."""
        self.configuration = configuration
        self.server = server
        self._threads = threads
        self._totals = dict[int, _Total]()

    def add_shares(self, weight: int, shares: Mapping[int, ServerShare]) -> None:
        """Add a client's shares of the index segments, by their number in the layout."""
        total = self._of(weight)
        for number, share in shares.items():
            total.histograms[number].add(share, threads=self._threads)

    def add_lanes(self, weight: int, number: int, grid: LaneGrid) -> None:
        """Add lanes of an index segment that were evaluated before."""
        self._of(weight).histograms[number].add_evaluated(grid)

    def add_vectors(self, weight: int, vectors: Sequence[RingVector]) -> None:
        """Add a client's ring segments, as server 1 is sent them."""
        for segment, total, vector in zip(
            self.configuration.ring_segments, self._of(weight).vectors, vectors, strict=True
        ):
            reduce_into(add_into(total, vector), segment.modulus_bits)

    def add_masks(self, weight: int, key: Secret) -> None:
        """Add a client's ring segments, as server 0 expands them."""
        first_segment = 0
        for segment, total in zip(self.configuration.ring_segments, self._of(weight).vectors, strict=True):
            accumulate(total, segment.ring, add=[key], subtract=[], first_segment=first_segment, threads=self._threads)
            first_segment += segment_count(segment.ring, segment.length)

    def weighted(self, weights: Sequence[int]) -> tuple[Lanes | RingVector, ...]:
        """Return the sum over the classes of these weights, each as often as it weighs, segment by segment."""
        configuration, group = self.configuration, self.configuration.group
        sums = list[Lanes | RingVector]()
        vectors = iter(range(len(configuration.ring_segments)))
        for number, segment in enumerate(configuration.layout.segments):
            if isinstance(segment, IndexSegment):
                lanes = np.zeros(segment.blocks * segment.codewords, dtype=group.word)
                for weight in weights:
                    part = self._of(weight).histograms[number].rows().reshape(-1)
                    group.scale_into(part, weight)
                    group.add_into(lanes, part)
                group.reduce_into(lanes)
                sums.append(lanes)
                continue
            place, total = next(vectors), segment.ring.zeros(segment.length)
            for weight in weights:
                factor = segment.ring.word.type(weight & low_bits(segment.modulus_bits))
                reduce_into(add_into(total, self._of(weight).vectors[place] * factor), segment.modulus_bits)
            sums.append(total)
        return tuple(sums)

    def wipe(self) -> None:
        """Overwrite all sums."""
        for total in self._totals.values():
            for vector in total.vectors:
                vector[:] = 0
            for histogram in total.histograms.values():
                histogram.wipe()
        self._totals.clear()

    def _of(self, weight: int) -> _Total:
        if weight not in self._totals:
            configuration = self.configuration
            self._totals[weight] = _Total(
                {
                    number: HistogramShare(configuration.shape(segment), segment.blocks, self.server.index)
                    for number, segment in configuration.index_segments
                },
                [segment.ring.zeros(segment.length) for segment in configuration.ring_segments],
            )
        return self._totals[weight]

    def __repr__(self) -> str:
        return f"<ClassTotals of {self.server}, weights {sorted(self._totals)}>"
