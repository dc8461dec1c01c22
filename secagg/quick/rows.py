"""Rows of tensors: withheld if only few clients changed them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.common import require_sum
from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.contract.layout import RowSegment, Segment
from secagg.crypto.ring import RingVector
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, require_integer
from secagg.session.registry import ProtocolEntry

from .trees import Shapes, matches


@dataclass(frozen=True, slots=True)
class Rows:
    """The tensors that have rows, and the layout of an upload with them; a row is an index of the first axis."""

    paths: tuple[str, ...]
    layout: Layout
    """A ring segment for each tensor, followed by a row segment if it has rows."""
    whole: Layout
    """The codec's layout: all values in one ring segment."""

    @classmethod
    def of(cls, shapes: Shapes, whole: Layout, patterns: tuple[str, ...], least: int) -> Rows:
        """Return the rows of tensors that match a pattern; without patterns, of tensors with two or more dimensions."""
        if unused := [one for one in patterns if not any(matches(path, (one,)) for path in shapes.paths)]:
            raise InvalidParameters(f"rows has the pattern {unused[0]!r}, which matches no summed tensor")
        bits, paths, segments = whole.segments[0].ring.modulus_bits, list[str](), list[Segment]()
        for path, shape in zip(shapes.paths, shapes.shapes, strict=True):
            if not (size := math.prod(shape)):
                continue
            segments.append(RingSegment(bits, size))
            if matches(path, patterns) if patterns else len(shape) > 1:
                paths.append(path)
                segments.append(RowSegment((*shape, 1)[0], least=least))
        if not paths:
            raise InvalidParameters("no tensor has two dimensions; name tensors whose values are rows with rows=")
        return cls(tuple(paths), Layout(tuple(segments), whole.version), whole)

    def split(self, payload: Payload) -> Payload:
        """Return the codec's payload in this layout, with a bit for each row that is not all zeros."""
        ends = np.cumsum([each.length for each in self.layout.segments if isinstance(each, RingSegment)])[:-1]
        rings, pieces = iter(np.split(payload.values[0], ends)), list[RingVector]()
        for segment in self.layout.segments:
            if isinstance(segment, RowSegment):
                rows: Any = pieces[-1].reshape(segment.blocks, -1)
                pieces.append(rows.any(axis=1).astype(segment.ring.word))
            else:
                pieces.append(next(rings))
        return Payload(self.layout, tuple(pieces))

    def joined(self, aggregate: Aggregate) -> Aggregate:
        """Return a release in the codec's layout, with zeros for withheld rows."""
        values = np.concatenate(self._released(aggregate, RingSegment))
        return Aggregate(self.whole, (values,), aggregate.contributors)

    def released(self, aggregate: Aggregate) -> dict[str, npt.NDArray[np.bool_]]:
        marks = self._released(aggregate, RowSegment)
        return {path: mark.astype(np.bool_) for path, mark in zip(self.paths, marks, strict=True)}

    def _released(self, aggregate: Aggregate, kind: type[Segment]) -> list[npt.NDArray[Any]]:
        segments = self.layout.segments
        rings = tuple(RingSegment(1, each.blocks) if isinstance(each, RowSegment) else each for each in segments)
        require_sum(aggregate, Layout(rings, self.layout.version))
        return [value for each, value in zip(segments, aggregate.values, strict=True) if isinstance(each, kind)]


def require_floor(least: int, entry: ProtocolEntry, clients: int, corrupted: int) -> None:
    """Refuse a row minimum that the protocol cannot enforce, or that is too small to hide a client."""
    require_integer("at_least", least, LEAST_COHORT, clients)
    if RowSegment not in entry.segments:
        raise InvalidParameters(
            f"{entry.name} reveals the whole sum to its server, including rows that only one client changed: use "
            "protocol='enclave', which withholds them, or leave out at_least and add noise"
        )
    if least - corrupted < LEAST_COHORT:
        raise InvalidParameters(
            f"{corrupted} of a row's {least} clients may collude with the server, which then learns the other's row: "
            f"set at_least={LEAST_COHORT + corrupted}, or corrupted={least - LEAST_COHORT} if you trust them"
        )
