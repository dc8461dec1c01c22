"""Values that are rounded under the mask: what counts of them, and the check words that stand for guard bits.

An upload holds y = round((a s + e + x) / 2^f) modulo 2^p. What counts of it is 2^f y - a s modulo 2^(p + f): the value,
the noise e, and an error that is uniform because the mask is. There is no room in it to see a wrong secret, which would
leave uniform garbage, so its check words travel in exact coefficients of their own. Modulo 2^(p + f) a sample is a
function of the one modulo 2^w, so the lattice is the same.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from secagg.crypto import key_derivation
from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.labels import Label
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.errors import InternalError
from secagg.protocols.one_message.parameters import Parameters

from .coefficients import add_shifted, counted, low_bits
from .packing import Word, lowest_bit


class Rounding:
    """The masks a s of one upload's rounded values, kept until the check words of these values are known."""

    def __init__(self, parameters: Parameters, seed: bytes) -> None:
        """Begin with no mask."""
        self._parameters, self._seed = parameters, seed
        self.end = parameters.starts[parameters.inputs]
        """The end of what can be written before check words are known."""
        self._places = [slice(*parameters.starts[fine : fine + 2]) for fine, _ in parameters.checked]
        self._masks = [np.zeros(place.stop - place.start, np.uint64) for place in self._places]
        self._left = sum(mask.size for mask in self._masks)

    @contextmanager
    def masking(self, words: Word, start: int, end: int) -> Generator[None]:
        """Keep what is added to some coefficients meanwhile: their masks."""
        parts = [
            (masks[low - place.start : high - place.start], words[low:high])
            for place, masks in zip(self._places, self._masks, strict=True)
            if (low := max(start, place.start)) < (high := min(end, place.stop))
        ]
        for masks, part in parts:
            np.subtract(masks, part, out=masks)
        yield
        for masks, part in parts:
            np.add(masks, part, out=masks)
            self._left -= masks.size

    def add_check_words(self, words: Sequence[Word]) -> None:
        """Add the check words of 2^f y - a s, from coefficients to which writing added half a step.

        Raises:
            InternalError: not every rounded value was masked once.
        """
        if self._left:
            raise InternalError("check words are of all values of an upload, each masked once")
        for (fine, check), place, masks in zip(self._parameters.checked, self._places, self._masks, strict=True):
            segment = self._parameters.segments[fine]
            values = counted(words[0][place], masks, segment.fine_bits)
            found = check_words_of(self._parameters, self._seed, fine, values)
            first, end = self._parameters.starts[check : check + 2]
            add_shifted([word[first:end] for word in words], found, lowest_bit(self._parameters, check))
            masks[:], values[:] = 0, 0


def check_words_of(parameters: Parameters, seed: bytes, segment: int, values: Word) -> Word:
    """Return the check words of a segment under the public vector of this epoch and segment."""
    chosen = parameters.segments[segment]
    ring = Ring(chosen.ring_bits)
    elements: RingVector = (values & np.uint64(low_bits(chosen.ring_bits))).astype(ring.word)
    number = segment.to_bytes(4, "big")
    # The epoch's seed is public; a Secret is merely what a key is handed over in.
    with (
        Secret("epoch seed", seed) as source,
        key_derivation.expand("check_key", CHECK_KEY_BYTES, source, Label.ONE_MESSAGE_CHECK_VECTOR, number) as key,
    ):
        found = check_words(ring, elements, chosen.check_words.length, key)
    elements[:] = 0
    return np.array(found, np.uint64)
