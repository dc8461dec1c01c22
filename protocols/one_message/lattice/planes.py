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

from secagg.protocols.one_message.parameters import Parameters

from .coefficients import WORD_BITS, field_of
from .packing import Word

BYTE_BITS: Final = 8

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
                place = self._sent[start : start + -(-run.size * bits // BYTE_BITS)]
                start += place.size
                plane: Plane = place.view(f"<u{bits // 8}") if bits >= BYTE_BITS else np.empty(run.size, np.uint8)
                self._planes[-1].append(plane)
                if bits < BYTE_BITS:
                    self._narrow.append((place, plane, bits))

    def write(self, run: int, words: Sequence[Word], start: int, plane_bits: Sequence[int]) -> None:
        """Write rounded coefficients of a run, of which the first is number ``start`` of it, into its planes."""
        offset = 0
        for bits, plane in zip(plane_bits, self._planes[run], strict=True):
            end = start + words[0].size
            # The cast to a plane of whole bytes cuts its bits out of a word.
            aligned = bits >= BYTE_BITS and offset % WORD_BITS + bits <= WORD_BITS
            word = words[offset // WORD_BITS]
            shifted = word >> np.uint64(offset % WORD_BITS) if offset % WORD_BITS else word
            plane[start:end] = shifted if aligned else field_of(words, offset, bits)
            offset += bits

    def encode(self) -> bytes:
        """Return the bytes of all planes."""
        for place, plane, bits in self._narrow:
            _fold(place, plane, bits)
        return self._sent.tobytes()


def _fold(folded: Plane, values: Plane, bits: int) -> None:
    """Fill bytes that hold several narrow values each."""
    folded[:] = 0
    for part, shift in parts_of(values, folded.size, bits):
        folded[: part.size] |= part << np.uint8(shift)


def parts_of(values: Any, size: int, bits: int) -> list[tuple[Any, int]]:  # noqa: ANN401 -- an array of any word
    """Return the runs of values that share bytes, each with its place in them."""
    return [(values[start * size : (start + 1) * size], start * bits) for start in range(BYTE_BITS // bits)]
