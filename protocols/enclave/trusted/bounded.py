"""Vectors that the enclave adds itself, each scaled down to a bound: the host hands every piece of an upload in twice.

The first time the enclave measures the pieces, and the second time it scales and adds them; it never holds more than
one sum, one piece, and a mark of each piece. The same work is done for every upload, and nobody is told which ones were
longer than the bound: a refusal, a count or a time would tell the host on which side of a bound a client is.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.blame import Evidence, culprits, from_server
from secagg.contract.layout import RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret, overwrite
from secagg.errors import PeerMisbehaved, Reason

from .buffer import Entry
from .configuration import EnclaveConfiguration
from .messages import TAG_BYTES, SealedUpload, open_piece, piece_key

PIECE_VALUES: Final = 1 << 16
Signed = npt.NDArray[np.int32]
_HALF_BITS: Final = 16
_LOWER: Final = 1.0 - 2.0**-50
"""Covers the rounding of the factor and of the products, so that no scaled norm exceeds its bound."""
_MARK_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one ring segment's values."""

    place: int
    """Place of its segment among the ring segments."""
    segment: RingSegment
    start: int
    stop: int

    @property
    def sealed_bytes(self) -> int:
        return self.segment.ring.packed_bytes(self.stop - self.start) + TAG_BYTES


def pieces_of(configuration: EnclaveConfiguration) -> Iterator[Piece]:
    """Return the pieces of an upload, in the order in which they are sealed and handed in."""
    for place, segment in enumerate(configuration.ring_segments):
        for start in range(0, segment.length, PIECE_VALUES):
            yield Piece(place, segment, start, min(start + PIECE_VALUES, segment.length))


class PieceReader(Confined):
    """Reads the pieces of one upload: all of them are measured, then all are added."""

    def __init__(
        self, configuration: EnclaveConfiguration, upload: SealedUpload, entry: Entry, body: Secret, coins: Coins
    ) -> None:
        """Begin with the first piece.

        Args:
            body: what the client has sealed; the reader wipes it.
        """
        self.upload, self.entry, self.body = upload, entry, body
        place = upload.header.epoch, entry.client, entry.version
        self._key, self._norms = piece_key(body, configuration.context, *place), configuration.max_norms
        self._pieces = tuple(pieces_of(configuration))
        # No sum of values within these limits can wrap.
        self._limits = [
            segment.ring.greatest // configuration.maximum_cohort for segment in configuration.ring_segments
        ]
        self._mark_key = Secret.random("mark_key", _MARK_BYTES, coins)
        self._marks, self._squares = list[bytes](), [0] * len(self._norms)
        self._factors = list[float]()
        self._next = 0

    @property
    def is_measured(self) -> bool:
        """Whether every piece was measured, and what comes next is added."""
        return len(self._marks) == len(self._pieces)

    @property
    def is_done(self) -> bool:
        return self.is_measured and self._next == len(self._pieces)

    def measure(self, number: int, sealed: bytes | memoryview) -> bool:
        """Measure the next piece, and return whether it was the last."""
        piece, mark = self._due(number), self._mark(number, sealed)
        values = self._opened(number, piece, sealed)
        self._squares[piece.place] += _squared(values)
        values[:] = 0
        self._marks.append(mark)
        self._next += 1
        if self.is_measured:
            self._next = 0
            self._factors = [_factor(square, norm) for square, norm in zip(self._squares, self._norms, strict=True)]
        return self.is_measured

    def add(self, number: int, sealed: bytes | memoryview, sums: list[RingVector]) -> None:
        """Scale the next piece and add it, if it is the one that was measured.

        Security: one key and number open to any number of pieces that a client and its host made together, so the
            marks are compared, whose key is the enclave's.
        """
        piece = self._due(number)
        if not hmac.compare_digest(self._marks[number], self._mark(number, sealed)):
            raise _refused("this is not the piece that was measured", Reason.REPLAYED)
        values = self._opened(number, piece, sealed)
        scaled = values * self._factors[piece.place]
        # The conversion truncates towards zero. An integer and its low bits are the same element of the ring.
        whole = scaled.astype(values.dtype).astype(piece.segment.ring.word)
        total = sums[piece.place][piece.start : piece.stop]
        add_into(total, whole)
        reduce_into(total, piece.segment.modulus_bits)
        values[:], scaled[:], whole[:] = 0, 0, 0
        self._next += 1

    def wipe(self) -> None:
        for secret in (self.body, self._key, self._mark_key):
            secret.wipe()
        self._squares, self._factors = [], []

    def _due(self, number: int) -> Piece:
        if number != self._next or self.is_done:
            raise _refused(f"piece {self._next} is next; got {number}", Reason.WRONG_KIND)
        return self._pieces[number]

    def _mark(self, number: int, sealed: bytes | memoryview) -> bytes:
        """Return a tag that nobody but this reader can make or see, in the place of a slower digest."""
        return AESGCM(self._mark_key.expose()).encrypt(number.to_bytes(12, "big"), b"", sealed)

    def _opened(self, number: int, piece: Piece, sealed: bytes | memoryview) -> Signed:
        refused = culprits(Evidence.UNOPENED_UPLOAD, sender=self.entry.client)
        packed = open_piece(self._key, number, sealed, culprits=refused)
        try:
            ring, limit = piece.segment.ring, self._limits[piece.place]
            vector = ring.unpack(packed, piece.stop - piece.start)
        finally:
            overwrite(packed)
        values = ring.lift(vector).astype(np.int32)
        vector[:] = 0
        np.clip(values, -limit, limit, out=values)
        return values

    def __repr__(self) -> str:
        return f"<PieceReader, {len(self._pieces)} pieces>"


def _refused(sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=from_server())


def _factor(square: int, norm: int) -> float:
    """Return what every value is multiplied by: 1 within the bound, and where there is none."""
    length = isqrt(max(0, square - 1)) + 1
    return 1.0 if not norm or length <= norm else norm / length * _LOWER


def _squared(values: Signed) -> int:
    """Return the sum of squares, exactly: each product of halves is below 2^34, and their sums below 2^53.

    Without a BLAS, whose threads would take time that depends on what else runs.
    """
    high, low = (values >> _HALF_BITS).astype(np.float64), (values & 0xFFFF).astype(np.float64)
    sums = [int(np.einsum("i,i->", one, other)) for one, other in ((high, high), (high, low), (low, low))]
    high[:], low[:] = 0, 0
    return (sums[0] << 2 * _HALF_BITS) + (sums[1] << _HALF_BITS + 1) + sums[2]
