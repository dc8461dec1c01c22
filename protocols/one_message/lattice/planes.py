"""Masked coefficients as they travel: bit planes, which a server adds without cutting bits.

A coefficient of 52 bits is sent as a plane of its lowest 32, one of the next 16 and one of the last 4. A plane of fewer
than 8 bits has several coefficients in a byte: of 4 bits, byte j holds coefficient j below and coefficient j + half
above. Bits that fill a plane's last bytes are zero. Runs of coefficients of which other bits travel have planes of
their own, one run after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.ring import add_into
from secagg.errors import CapacityExceeded, MalformedMessage, Misuse, Reason
from secagg.protocols.one_message.parameters import Parameters

from .coefficients import WORD_BITS, add_shifted, field_of
from .packing import Word, word_count

_BYTE_BITS: Final = 8
_WIDE_PLANE: Final = 32
_SUM_OF_NARROW_PLANES: Final = 1 << 16
"""So many values of 16 bits add up in 32."""

Plane = npt.NDArray[np.unsignedinteger[Any]]


class UploadPlanes:
    """The planes of one upload while they are written: those of whole bytes stand where they are sent from."""

    def __init__(self, parameters: Parameters) -> None:
        self._sent = np.empty(parameters.upload_bytes, np.uint8)
        self._planes, self._narrow = list[list[Plane]](), list[tuple[Plane, Plane, int]]()
        start = 0
        for run in parameters.runs:
            self._planes.append([])
            for bits in run.plane_bits:
                place = self._sent[start : start + -(-run.size * bits // _BYTE_BITS)]
                start += place.size
                plane: Plane = place.view(f"<u{bits // 8}") if bits >= _BYTE_BITS else np.empty(run.size, np.uint8)
                self._planes[-1].append(plane)
                if bits < _BYTE_BITS:
                    self._narrow.append((place, plane, bits))

    def write(self, run: int, words: Sequence[Word], start: int, plane_bits: Sequence[int]) -> None:
        """Write rounded coefficients of a run, of which the first is number ``start`` of it, into its planes."""
        offset = 0
        for bits, plane in zip(plane_bits, self._planes[run], strict=True):
            end = start + words[0].size
            # The cast to a plane of whole bytes cuts its bits out of a word.
            aligned = bits >= _BYTE_BITS and offset % WORD_BITS + bits <= WORD_BITS
            word = words[offset // WORD_BITS]
            shifted = word >> np.uint64(offset % WORD_BITS) if offset % WORD_BITS else word
            plane[start:end] = shifted if aligned else field_of(words, offset, bits)
            offset += bits

    def encode(self) -> bytes:
        """Return the bytes of all planes."""
        for place, plane, bits in self._narrow:
            _fold(place, plane, bits)
        return self._sent.tobytes()


class Accumulator:
    """The sum of masked uploads, or of one piece of them, plane by plane; carries are added up when it is opened."""

    def __init__(self, parameters: Parameters, piece: int | None = None, sums: list[Plane] | None = None) -> None:
        """Begin with nothing, or go on with sums of these parameters."""
        self.parameters = parameters
        self.count = 0
        self.runs = tuple(run for run in parameters.runs if piece in (None, run.piece))
        """Of which coefficients it is the sum."""
        self._due = sum(run.sent_bytes for run in self.runs)
        self._planes = [(run, bits) for run in self.runs for bits in run.plane_bits]
        self.sums = [np.zeros(run.size, self._word(bits)) for run, bits in self._planes] if sums is None else sums

    def add(self, upload: bytes | bytearray | memoryview) -> None:
        """Add one upload; order does not matter.

        Raises:
            MalformedMessage: the length differs or a filling bit is set; nothing was added.
            CapacityExceeded: the sum is full.
        """
        planes = self._read(memoryview(upload))
        if self.count >= self.parameters.capacity:
            raise CapacityExceeded(f"a sum holds at most {self.parameters.capacity} uploads; begin another")
        for (_, bits), plane, total in zip(self._planes, planes, self.sums, strict=True):
            if bits >= _BYTE_BITS:
                add_into(total, plane)
            else:
                for part, shift in _parts(total, plane.size, bits):
                    add_into(part, (plane >> np.uint8(shift))[: part.size] & np.uint8((1 << bits) - 1))
        self.count += 1

    def check(self, upload: bytes | memoryview) -> None:
        """Refuse an upload that does not decode.

        Raises:
            MalformedMessage: as ``add`` does.
        """
        self._read(memoryview(upload))

    def merge(self, other: Accumulator) -> None:
        """Add the sum of other uploads, which another process made."""
        if other.parameters != self.parameters or other.runs != self.runs:
            raise Misuse("sums of other parameters cannot be added; use one epoch's")
        if self.count + other.count > self.parameters.capacity:
            raise CapacityExceeded(f"a sum holds at most {self.parameters.capacity} uploads; begin another")
        for total, part in zip(self.sums, other.sums, strict=True):
            add_into(total, part)
        self.count += other.count

    def coefficients(self) -> list[Word]:
        """Return the sum of what was rounded, shifted back to where it was, modulo 2^(64 words)."""
        first = self.runs[0].first
        size = self.runs[-1].end - first
        words = [np.zeros(size, np.uint64) for _ in range(word_count(self.parameters.modulus_bits))]
        sums = iter(self.sums)
        for run in self.runs:
            offset, part = run.dropped, [word[run.first - first : run.end - first] for word in words]
            for bits in run.plane_bits:
                add_shifted(part, next(sums).astype(np.uint64), offset)
                offset += bits
        return words

    def _read(self, upload: memoryview) -> list[Plane]:
        due = self._due
        if upload.nbytes != due:
            reason = Reason.TRUNCATED if upload.nbytes < due else Reason.TRAILING_BYTES
            raise MalformedMessage(f"a masked upload has {due} bytes; got {upload.nbytes}", reason=reason)
        planes, start = list[Plane](), 0
        for run, bits in self._planes:
            size = -(-run.size * bits // _BYTE_BITS)
            plane = np.frombuffer(upload[start : start + size], f"<u{max(1, bits // 8)}")
            start += size
            if bits < _BYTE_BITS and not _is_filled_with_zeros(plane, run.size, bits):
                raise MalformedMessage("the bits that fill a plane must be zero", reason=Reason.NOT_CANONICAL)
            planes.append(plane)
        return planes

    def _word(self, bits: int) -> npt.DTypeLike:
        return np.uint64 if bits == _WIDE_PLANE or self.parameters.capacity > _SUM_OF_NARROW_PLANES else np.uint32


def _fold(folded: Plane, values: Plane, bits: int) -> None:
    """Fill bytes that hold several narrow values each."""
    folded[:] = 0
    for part, shift in _parts(values, folded.size, bits):
        folded[: part.size] |= part << np.uint8(shift)


def _parts(values: Any, size: int, bits: int) -> list[tuple[Any, int]]:  # noqa: ANN401 -- an array of any word
    """Return the runs of values that share bytes, each with its place in them."""
    return [(values[start * size : (start + 1) * size], start * bits) for start in range(_BYTE_BITS // bits)]


def _is_filled_with_zeros(plane: Plane, count: int, bits: int) -> bool:
    filled = np.zeros(plane.size, np.uint8)
    for part, shift in _parts(np.empty(count, np.uint8), plane.size, bits):
        filled[: part.size] |= np.uint8(((1 << bits) - 1) << shift)
    return not (plane[-_BYTE_BITS:] & ~filled[-_BYTE_BITS:]).any()
