"""Segments of one kind put together, over all the tensors of a model, and where each tensor's own lie in them.

Rings of one width, and as many fine bits, become one segment, and so do indices into codebooks of one size; segments
stand in the order in which their kinds first occur, and within each the tensors keep their order. Tables of codewords
are put together like the blocks that they are for, and stay apart as tables, because each tensor and stage has a
codebook of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

from secagg.contract import IndexedDecoder, LinearDecoder
from secagg.contract.codewords import CodewordTable, Tables, require_tables
from secagg.contract.layout import IndexSegment, RingSegment, Segment
from secagg.errors import InvalidParameters

Part = tuple[int, slice]
"""In which segment of the whole something lies, and where there."""
Parts = tuple[tuple[Part, ...], ...]
"""For each tensor, the parts of its own segments, in order."""
_Kind = tuple[type[Segment], int, int]


def merged(schemes: Sequence[tuple[Segment, ...]]) -> tuple[tuple[Segment, ...], Parts]:
    """Return the segments of the whole, and where those of each scheme lie."""
    lengths = dict[_Kind, int]()
    parts = list[list[tuple[_Kind, slice]]]()
    for segments in schemes:
        parts.append([])
        for segment in segments:
            kind = _kind_of(segment)
            start = lengths.setdefault(kind, 0)
            lengths[kind] += segment.length
            parts[-1].append((kind, slice(start, lengths[kind])))
    kinds = list(lengths)
    whole = tuple(
        RingSegment(size, length, fine) if kind is RingSegment else IndexSegment(size, length)
        for (kind, size, fine), length in lengths.items()
    )
    return whole, tuple(tuple((kinds.index(kind), part) for kind, part in own) for own in parts)


def _kind_of(segment: Segment) -> _Kind:
    if isinstance(segment, RingSegment):
        return RingSegment, segment.modulus_bits, segment.fine_bits
    return IndexSegment, segment.codewords, 0


def tables_of(scheme: LinearDecoder[Any]) -> Tables:
    """Return the tables of a scheme; one that sends no indices has none.

    Raises:
        InvalidParameters: it sends indices and does not say what they stand for, or says it of other segments.
    """
    layout = scheme.layout
    if not any(isinstance(segment, IndexSegment) for segment in layout.segments):
        return ()
    if not hasattr(scheme, "decode_summed"):
        raise InvalidParameters(
            f"its {type(scheme).__name__} sends indices and decodes nothing but histograms; have histograms released, "
            "or give the scheme `tables` and `decode_summed`"
        )
    tables = cast("IndexedDecoder[Any]", scheme).tables
    require_tables(layout, tables)
    return tables


def merged_tables(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Tables:
    """Return the tables of the whole, from those of each tensor's scheme."""
    joined = {at: list[CodewordTable]() for at, segment in enumerate(segments) if isinstance(segment, IndexSegment)}
    for own, given in zip(parts, tables, strict=True):
        indexed = [at for at, _ in own if at in joined]
        for at, some in zip(indexed, given, strict=True):
            joined[at] += some
    return tuple(tuple(some) for some in joined.values())


def summed_parts(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Parts:
    """Return where each tensor's sums lie in a summed layout of the whole, in the order of its own summed layout."""
    remaining = iter(merged_tables(segments, parts, tables))
    is_index = [isinstance(segment, IndexSegment) for segment in segments]
    sizes = [len(next(remaining)) if indexed else 1 for indexed in is_index]
    # Each table is a segment of its own there; tensors take theirs one after the other.
    following = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    summed = list[tuple[Part, ...]]()
    for own, given in zip(parts, tables, strict=True):
        places, some = list[Part](), iter(given)
        for at, part in own:
            if not is_index[at]:
                places.append((following[at], part))
                continue
            for _ in next(some):
                places.append((following[at], slice(None)))
                following[at] += 1
        summed.append(tuple(places))
    return tuple(summed)
