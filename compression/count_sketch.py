"""Count sketch: a table of signed sums, much smaller than the update, that can be summed like the update itself.

Every coordinate is added, with a sign, to one cell in each row of a table, which a common inner scheme encodes.
The cells and signs come from a public seed of 32 bytes, the same for every client. Let

    key = SHA-256(bind(COUNT_SKETCH_HASHES, seed)),

and let W(r, i) be the i-th little-endian word of 32 bits of the stream of that key (``secagg.crypto.mask_expansion``),
starting at segment r * ceil(4 length / 2^20). In row r, coordinate i belongs to the cell W(r, i) mod columns and has
the sign (-1)^floor(W(r, i) / columns). The number of columns is a power of two, so cells and signs are uniform.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, LinearDecoder, Payload, encode_update, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import KEY_LIMIT_BYTES, SEGMENT_BYTES, expand, segment_count
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer

from .common import finite, inner_decoded, require_floats, require_seed

Floats = npt.NDArray[np.float64]
MAXIMUM_ROWS: Final = 32
MAXIMUM_COLUMNS: Final = 1 << 30
_HASHES: Final = Ring(32)
_BLOCK: Final = SEGMENT_BYTES // _HASHES.word_bytes
"""Number of coordinates processed at a time: a segment of each row's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSketch:
    """Maps a vector of floats to a table of ``rows`` times ``columns`` cells, which an inner scheme encodes.

    Implements: [CCF02] §3; [RPU+20] for updates.

    ``decode`` estimates each coordinate by the mean over the rows, which is linear. Over the choice of the seed, and
    apart from the inner scheme's rounding and clipping, it is unbiased; its variance is at most the squared norm of the
    sum, divided by rows times columns. Estimates by the median resist large coordinates elsewhere but are not linear:
    ``medians`` computes them from the summed table.
    """

    length: int
    rows: int
    columns: int
    seed: bytes
    inner: LinearDecoder[Any]
    """Encodes the table row by row, one ring element for each cell: fixed point, or a quantizer."""

    def __post_init__(self) -> None:
        require_integer("rows", self.rows, 1, MAXIMUM_ROWS)
        if type(self.columns) is not int or self.columns.bit_count() != 1 or not 1 <= self.columns <= MAXIMUM_COLUMNS:
            raise InvalidParameters(f"columns must be a power of two in 1..2^30; got {self.columns!r}")
        require_integer("length", self.length, 1)
        if self.rows * segment_count(_HASHES, self.length) * SEGMENT_BYTES > KEY_LIMIT_BYTES:
            raise InvalidParameters(
                f"{self.rows} rows of hashes for {self.length} coordinates exceed one key's stream; use fewer rows, or "
                "sketch the update in parts"
            )
        require_seed(self.seed)
        carried = sum(segment.length for segment in self.inner.layout.require_rings())
        if carried != self.cells:
            raise InvalidParameters(
                f"the inner scheme carries {carried} values but the table has {self.cells} cells; make it for a vector "
                "of rows times columns"
            )

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def layout(self) -> Layout:
        inner = self.inner.layout
        parameters = struct.pack(">QBI", self.length, self.rows, self.columns) + self.seed + inner.version
        return Layout(inner.segments, public_parameters_digest("count_sketch", parameters))

    @property
    def capacity(self) -> int:
        """The inner scheme's capacity: every cell of the sum is a sum of the clients' cells."""
        return self.inner.capacity

    def encode(self, update: npt.NDArray[np.floating[Any]], coins: Coins) -> Payload:
        payload = encode_update(self.inner, self.sketch(update).reshape(-1), coins)
        return Payload(self.layout, payload.values)

    def decode(self, aggregate: Aggregate) -> Floats:
        """Return the linear estimate of the sum: for each coordinate, the mean of its signed cells."""
        estimate = np.zeros(self.length)
        for block, rows in self._estimates(self.table_of(aggregate)):
            np.mean(rows, axis=0, out=estimate[block])
        return estimate

    def table_of(self, aggregate: Aggregate) -> Floats:
        """Return the summed table, of shape (rows, columns), as the inner scheme decodes it."""
        table = inner_decoded(aggregate, self.layout, self.inner, self.cells)
        return np.asarray(table, dtype=np.float64).reshape(self.rows, self.columns)

    def sketch(self, update: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return the table of one vector, before the inner scheme rounds it."""
        require_floats(update, (self.length,))
        signed = np.zeros((self.rows, 2 * self.columns))
        # No cell overflows, whichever coordinates are added to it.
        limit = float(np.finfo(np.float64).max) / (2 * self.length)
        for block, hashes in self._hashes():
            values = finite(finite(update[block]).astype(np.float64), limit)
            for row, places in enumerate(hashes):
                signed[row] += np.bincount(places, weights=values, minlength=2 * self.columns)
        table: Floats = signed[:, : self.columns] - signed[:, self.columns :]
        return table

    def medians(self, table: Floats) -> Floats:
        """Return the median over the rows for each coordinate: robust against heavy cells, but not linear."""
        if type(table) is not np.ndarray or table.shape != (self.rows, self.columns):
            raise Misuse(f"a table must have the shape {(self.rows, self.columns)}")
        middle = ((self.rows - 1) // 2, self.rows // 2)
        estimate = np.empty(self.length)
        for block, rows in self._estimates(table):
            rows.sort(axis=0)
            np.mean(rows[middle, :], axis=0, out=estimate[block])
        return estimate

    def _estimates(self, table: Floats) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of coordinates with each row's estimates; the caller may overwrite these."""
        signed = np.concatenate([table, -table], axis=1)
        for block, hashes in self._hashes():
            yield block, np.stack([row.take(places) for row, places in zip(signed, hashes, strict=True)])

    def _hashes(self) -> Iterator[tuple[slice, list[npt.NDArray[np.intp]]]]:
        """Yield blocks of coordinates with their cells in each row; a negated coordinate adds ``columns``."""
        key = Secret("count_sketch_key", hashlib.sha256(bind(Label.COUNT_SKETCH_HASHES, self.seed)).digest())
        segments = segment_count(_HASHES, self.length)
        cell_and_sign = _HASHES.word.type(2 * self.columns - 1)
        for segment in range(segments):
            block = slice(segment * _BLOCK, min((segment + 1) * _BLOCK, self.length))
            words = (
                expand(key, _HASHES, block.stop - block.start, first_segment=row * segments + segment)
                for row in range(self.rows)
            )
            yield block, [(word & cell_and_sign).astype(np.intp) for word in words]
