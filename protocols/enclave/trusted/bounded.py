"""Sums of vectors that the enclave scales down to a norm and adds itself.

A client seals all its values at once, so the host can neither replace some of them nor stop halfway. Every upload takes
the same work, and the result does not show which ones were scaled: a refusal, a count or a running time would reveal to
the host on which side of the bound a client's norm is.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract.layout import RingSegment
from secagg.crypto.ring import RingVector, add_into, low_bits, reduce_into
from secagg.crypto.secret import Confined

Signed = npt.NDArray[np.int32]
LANES: Final = 32
"""Number of runs of consecutive values that are packed side by side: the i-th values of all runs share words."""
WORD: Final = np.dtype("<u4")
_BITS: Final = 32
_BLOCK: Final = 1 << 20
"""Values that are packed together; their runs fit into the L2 cache."""
_ROW: Final = 1 << 10
_CHUNK: Final = 1 << 16
_EXACT_BITS: Final = 21
"""Widest values whose squares in a row add up exactly in a double."""
_SINGLE_BITS: Final = 24
"""Widest values that a 32-bit float represents exactly."""
_LOWER: Final = 1.0 - 2.0**-20
"""Margin for rounding errors of the factor and the products, so that no scaled norm exceeds its bound."""


def runs(length: int) -> Iterator[tuple[slice, int]]:
    """Yield the blocks of a segment's values, each with the length of its runs."""
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        yield slice(start, stop), -(-(stop - start) // LANES)


def packed_bytes(segment: RingSegment) -> int:
    """Return the number of bytes of a client's packed values."""
    return sum(run for _, run in runs(segment.length)) * segment.modulus_bits * WORD.itemsize


class BoundedSum(Confined):
    """Sum of one ring segment's values over many clients; each moves it by at most the norm."""

    def __init__(self, segment: RingSegment, norm: int, zero: int, clients: int) -> None:
        """Start from zeros.

        Args:
            norm: the maximum norm of one client's values about the zero point, in steps; 0 for no limit.
            zero: the element that represents 0.
            clients: the maximum number of clients; values are limited so that their sum cannot wrap.
        """
        self._segment, self._norm, self._zero = segment, norm, zero
        self._low, self._high = -segment.ring.least // clients + zero, segment.ring.greatest // clients - zero
        self._total: Signed = np.zeros(segment.length, np.int32)
        lanes = sum(run for _, run in runs(segment.length)) * LANES
        self._values: Signed = np.zeros(-(-lanes // _ROW) * _ROW, np.int32)
        """One client's values, relative to the zero point; zeros between uploads."""

    def measure(self, packed: memoryview) -> float:
        """Unpack one client's values, and return the factor that scales them down: 1 if they are within all bounds."""
        values, bits, length = self._values, self._segment.modulus_bits, self._segment.length
        words, at = np.frombuffer(packed, WORD), 0
        for block, run in runs(length):
            lanes = values[block.start : block.start + LANES * run].reshape(LANES, run)
            unpack_into(lanes, words[at : at + bits * run].reshape(bits, run), bits)
            at += bits * run
        square, least, greatest, wide = 0, 0, 0, np.empty(_CHUNK, np.float64)
        # The client chose the padding of the last lanes; it must not count.
        values[length:] = self._zero
        for start in range(0, values.size, _CHUNK):
            chunk = values[start : start + _CHUNK]
            if self._zero:
                chunk -= self._zero
            square += squared(chunk, wide[: chunk.size], bits)
            least, greatest = min(least, int(chunk.min())), max(greatest, int(chunk.max()))
        wide[:] = 0
        norm = isqrt(max(0, square - 1)) + 1
        bound = self._norm or norm
        limits = (self._low, -least), (self._high, greatest)
        factor = min(bound / max(bound, norm), *((limit + 1) / (max(limit, size) + 1) for limit, size in limits))
        return 1.0 if factor == 1.0 else factor * _LOWER

    def add(self, factor: float) -> None:
        """Scale the measured values, truncate them towards the zero point, and add them to the sum."""
        kind: Any = np.float32 if self._segment.modulus_bits <= _SINGLE_BITS else np.float64
        scaled, whole = np.empty(_CHUNK, kind), np.empty(_CHUNK, np.int32)
        for start in range(0, self._total.size, _CHUNK):
            total = self._total[start : start + _CHUNK]
            part = self._values[start : start + total.size]
            scale_into(whole[: total.size], scaled[: total.size], part, kind(factor))
            add_into(total, whole[: total.size])
        scaled[:], whole[:] = 0, 0
        self.forget()

    def forget(self) -> None:
        """Overwrite the last client's values."""
        self._values[:] = 0

    def released(self, clients: int) -> RingVector:
        """Return the sum, including one zero point for each client."""
        # Casting to the ring's word keeps the low bits, which represent the same element.
        total = self._total.astype(self._segment.ring.word)
        add_into(total, total.dtype.type(self._zero * clients & low_bits(self._segment.modulus_bits)))
        reduce_into(total, self._segment.modulus_bits)
        return total

    def wipe(self) -> None:
        self.forget()
        self._total[:] = 0

    def __repr__(self) -> str:
        return f"<BoundedSum, {self._total.size} values>"


# --- Kernels ----------------------------------------------------------------------------------------------------------

Words = Any
"""Arrays of words or floats."""


def unpack_into(lanes: Words, words: Words, bits: int) -> None:
    """Unpack lanes of ``bits`` bits, as written by ``pack_group``, into signed integers."""
    spare = _BITS - bits
    for number, lane in enumerate(lanes):
        place, bit = divmod(number * bits, _BITS)
        # Shift the lane's highest bits to the top of the word; the arithmetic shift back then extends the sign.
        beyond = max(0, bit + bits - _BITS)
        np.left_shift(words[place + (beyond > 0)], spare - bit if not beyond else _BITS - beyond, out=lane.view(WORD))
        if spare:
            np.right_shift(lane, spare, out=lane)
        if beyond:
            np.bitwise_or(lane.view(WORD), words[place] >> bit, out=lane.view(WORD))


def squared(values: Words, wide: Words, bits: int) -> int:
    """Return the exact sum of squares of a whole number of rows.

    A row's sum is below 2^72, and the double is within 2^30 of it; the sum modulo 2^32 determines the rest.
    """
    rows = values.reshape(-1, _ROW)
    np.copyto(wide, values)
    sums = np.vecdot(wide.reshape(-1, _ROW), wide.reshape(-1, _ROW))
    if bits <= _EXACT_BITS:
        return int(sums.astype(np.int64).sum())
    low = np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    high = np.rint((sums - low) / 2.0**_BITS)
    return (int(high.sum()) << _BITS) + int(low.sum())


def scale_into(whole: Words, scaled: Words, values: Words, factor: Words) -> None:
    """Multiply by the factor, even if it is 1, and truncate towards zero."""
    np.copyto(scaled, values, casting="same_kind")
    np.multiply(scaled, factor, out=scaled)
    np.copyto(whole, scaled, casting="unsafe")
