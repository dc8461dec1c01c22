"""Codebooks as integer tables, with which a protocol releases sums of codewords instead of histograms.

A histogram shows how often each codeword was chosen for each block. A model needs only the sum of the chosen codewords,
which reveals less. A scheme provides its layout and tables; a protocol sums and releases in ``summed_layout``.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, require_capacity
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason, require_length
from secagg.wire import owned_bytes

from .layout import LEAST_CODEWORDS, MAXIMUM_CODEWORDS, MAXIMUM_LENGTH, IndexSegment, Layout, RingSegment

MAXIMUM_ENTRY: Final = (1 << 31) - 1
_ENTRY_BYTES: Final = 4
_EXACT_FLOAT: Final = 1 << 53
_GREATEST_SUM: Final = Ring(MAXIMUM_MODULUS_BITS).greatest
_COUNTS_AT_A_TIME: Final = 1 << 16
"""Number of counts that, as floats, fit the second-level cache."""
_HEADER = struct.Struct(">QII")


@dataclass(frozen=True, slots=True, eq=False)
class CodewordTable:
    """The codebook of a run of consecutive blocks, in the integer steps of its scheme; one codeword in each row."""

    blocks: int
    entries: npt.NDArray[np.int64]
    largest: int = field(init=False, repr=False)
    """Maximum magnitude of an entry."""
    _digest: bytes = field(default=b"", init=False, repr=False)
    """Cached: a client needs it several times in a round."""

    def __post_init__(self) -> None:
        given = self.entries
        if type(given) is not np.ndarray or given.dtype != np.int64 or given.ndim != 2:  # noqa: PLR2004 -- a matrix
            raise Misuse("entries must be a plain two-dimensional array of int64, one codeword in each row")
        codewords, width = given.shape
        if not LEAST_CODEWORDS <= codewords <= MAXIMUM_CODEWORDS or width < 1:
            raise InvalidParameters(
                f"a table must have {LEAST_CODEWORDS} to {MAXIMUM_CODEWORDS} codewords of at least one entry; got "
                f"{codewords} of {width}"
            )
        if type(self.blocks) is not int or self.blocks < 1 or self.blocks * width > MAXIMUM_LENGTH:
            raise InvalidParameters(
                f"blocks times {width} entries must be an integer in 1..2^40; got {self.blocks!r} blocks"
            )
        object.__setattr__(self, "largest", max(int(given.max()), -int(given.min())))
        if self.largest > MAXIMUM_ENTRY:
            raise InvalidParameters("an entry must be below 2^31 in magnitude; use a coarser grid for the codebook")
        # Bytes are immutable, so a table whose digest is in a layout cannot change.
        own = np.frombuffer(given.tobytes(), dtype=np.int64).reshape(codewords, width)
        object.__setattr__(self, "entries", own)

    @property
    def codewords(self) -> int:
        """Number of codewords."""
        return len(self.entries)

    @property
    def width(self) -> int:
        """Number of entries of a codeword."""
        return int(self.entries.shape[1])

    @property
    def digest(self) -> bytes:
        """SHA-256 of the encoding."""
        if not self._digest:
            object.__setattr__(self, "_digest", hashlib.sha256(self.encode()).digest())
        return self._digest

    def encode(self) -> bytes:
        """Blocks (8 bytes), codewords and width (4 each), entries (4 each, signed)."""
        return _HEADER.pack(self.blocks, *self.entries.shape) + self.entries.astype(">i4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the canonical encoding."""
        data = owned_bytes(data)
        if len(data) < _HEADER.size:
            raise MalformedMessage("the table ends before its dimensions do", reason=Reason.TRUNCATED)
        blocks, codewords, width = _HEADER.unpack_from(data)
        due = _HEADER.size + codewords * width * _ENTRY_BYTES
        require_length(f"a table of {codewords} codewords of {width} entries", len(data), due)
        entries = np.frombuffer(data, dtype=">i4", offset=_HEADER.size).astype(np.int64)
        try:
            return cls(blocks, entries.reshape(codewords, width))
        except InvalidParameters as error:
            raise MalformedMessage(f"the table is invalid: {error}", reason=Reason.NOT_CANONICAL) from None


Tables = tuple[tuple[CodewordTable, ...], ...]
"""Tables of a layout: for each index segment, in order, those of its blocks, in order."""


def require_tables(layout: Layout, tables: Tables) -> None:
    """Refuse tables that do not cover every block of every index segment once, with its number of codewords."""
    segments = [segment for segment in layout.segments if isinstance(segment, IndexSegment)]
    if type(tables) is not tuple or any(type(some) is not tuple for some in tables) or len(tables) != len(segments):
        raise InvalidParameters(f"tables must be a tuple of {len(segments)} tuples, one for each index segment")
    for segment, some in zip(segments, tables, strict=True):
        if any(type(table) is not CodewordTable for table in some):
            raise InvalidParameters("a codebook must be a CodewordTable")
        if sum(table.blocks for table in some) != segment.blocks:
            raise InvalidParameters(f"the tables of a segment must cover {segment.blocks} blocks")
        if any(table.codewords != segment.codewords for table in some):
            raise InvalidParameters(f"the tables of a segment must have its {segment.codewords} codewords")


def tables_digest(tables: Tables) -> bytes:
    """Return the digest of tables."""
    parts = [b"".join(table.digest for table in some) for some in tables]
    return hashlib.sha256(bind(Label.CODEWORD_TABLES, *parts)).digest()


def summed_layout(layout: Layout, tables: Tables, most_uploads: int) -> Layout:
    """Return the layout of released sums: for each table a ring, just wide enough for the largest sum.

    Ring segments stay as they are. The version covers the layout and the tables. The number of uploads appears only in
    the rings, so a decoder that does not know it can still check an aggregate's origin.
    """
    require_tables(layout, tables)
    require_capacity(most_uploads, _GREATEST_SUM)
    segments = tuple(
        _summed(piece, most_uploads) if isinstance(piece, CodewordTable) else piece
        for piece in summed_pieces(layout, tables)
    )
    digests = [table.digest for some in tables for table in some]
    return Layout(segments, hashlib.sha256(bind(Label.SUMMED_LAYOUT, layout.digest, *digests)).digest())


def require_summed(summed: Layout, layout: Layout, tables: Tables, uploads: int) -> None:
    """Require that the layout is these tables' sum, with room for this many uploads."""
    due = summed_layout(layout, tables, uploads)
    pieces = summed_pieces(layout, tables)
    if summed.version != due.version or len(summed.segments) != len(pieces):
        raise Misuse(
            "the layout is not the summed layout of these codewords; pass the protocol the layout and tables of the "
            "decoding object, and pass histograms to decode()",
            reason=Reason.LAYOUT_MISMATCH,
        )
    for segment, least, piece in zip(summed.segments, due.require_rings(), pieces, strict=True):
        is_wider = isinstance(piece, CodewordTable) and isinstance(segment, RingSegment) and not segment.fine_bits
        if segment.length != least.length or not (is_wider or segment == least):
            raise Misuse("a segment does not match the form of its sums", reason=Reason.LAYOUT_MISMATCH)
        if segment.ring.modulus_bits < least.modulus_bits:
            raise CapacityExceeded(
                f"a sum of {uploads} uploads needs {least.modulus_bits} bits, but a segment has "
                f"{segment.ring.modulus_bits}; create the summed layout for the largest number of uploads"
            )


def sum_of_codewords(histogram: npt.NDArray[np.uint64], table: CodewordTable) -> npt.NDArray[np.int64]:
    """Return the exact sum of codewords of each block, weighted by the histogram.

    Args:
        histogram: counts of shape (blocks, codewords), of all or some of the table's blocks.
    """
    given: Any = histogram
    if type(given) is not np.ndarray or given.dtype != np.uint64 or given.ndim != 2:  # noqa: PLR2004 -- a matrix
        raise Misuse("a histogram must be a plain two-dimensional array of uint64, one block in each row")
    if histogram.shape[1] != table.codewords:
        raise Misuse(f"the table has {table.codewords} codewords; got counts of {histogram.shape[1]}")
    # Below this, a block's counts add up without wrapping.
    if int(histogram.max(initial=0)) * table.codewords > (1 << 64) - 1:
        raise CapacityExceeded("a count exceeds the maximum of a histogram")
    bound = int(histogram.sum(axis=1).max(initial=0)) * table.largest
    if bound > _GREATEST_SUM:
        raise CapacityExceeded("a sum of codewords could leave 64 bits; use fewer clients")
    sums = np.empty((len(histogram), table.width), dtype=np.int64)
    step = max(1, _COUNTS_AT_A_TIME // table.codewords)
    # Float products are exact up to 2^53 in any order of summation, and many times faster.
    word = np.float64 if bound < _EXACT_FLOAT else np.int64
    factor = table.entries.astype(word)
    counts = np.empty((min(step, len(histogram)), table.codewords), dtype=word)
    for start in range(0, len(histogram), step):
        rows = histogram[start : start + step]
        some = counts[: len(rows)]
        np.copyto(some, rows, casting="unsafe")
        sums[start : start + step] = some @ factor
    # Counts reveal more than the released sums.
    counts.fill(0)
    return sums.reshape(-1)


def summed_pieces(layout: Layout, tables: Tables) -> list[RingSegment | CodewordTable]:
    """Return the source of each released segment: a ring segment, or the table of some blocks."""
    remaining = iter(tables)
    pieces = list[RingSegment | CodewordTable]()
    for segment in layout.segments:
        pieces += [segment] if isinstance(segment, RingSegment) else next(remaining)
    return pieces


def _summed(table: CodewordTable, weight: int) -> RingSegment:
    require_capacity(weight, _GREATEST_SUM // max(1, table.largest))
    return RingSegment((weight * table.largest).bit_length() + 1, table.blocks * table.width)
