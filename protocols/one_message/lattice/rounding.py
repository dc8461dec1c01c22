"""Values that are rounded under the mask: what counts of them, and the check words that stand for guard bits.

An upload holds y = round((a s + e + x) / 2^f) modulo 2^p. What counts of it is 2^f y - a s modulo 2^(p + f): the value,
the noise e, and an error that is uniform because the mask is. There is no room in it to see a wrong secret, which would
leave uniform garbage, so its check words travel in exact coefficients of their own. Modulo 2^(p + f) a sample is a
function of the one modulo 2^w, so the lattice is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secagg.crypto import key_derivation
from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.labels import Label
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.protocols.one_message.parameters import Parameters

from .coefficients import add_shifted, counted, low_bits
from .packing import Word, lowest_bit, unpack


class Rounding:
    """What a client keeps of one upload, until the check words of its rounded values are known."""

    def __init__(self, parameters: Parameters, seed: bytes, values: Word) -> None:
        """Keep the values of every segment with fine bits, as coefficients hold them before the mask."""
        self._parameters, self._seed = parameters, seed
        self.end = parameters.starts[parameters.inputs]
        """The end of what can be written before check words are known."""
        self._places = [slice(*parameters.starts[fine : fine + 2]) for fine, _ in parameters.checked]
        self._masks = [np.negative(values[place]) for place in self._places]

    def keep_products(self, words: Word, start: int, end: int) -> None:
        """Take in some coefficients that hold a s + x, before noise is added: kept are the masks a s."""
        for place, masks in zip(self._places, self._masks, strict=True):
            low, high = max(start, place.start), min(end, place.stop)
            if low < high:
                masks[low - place.start : high - place.start] += words[low:high]

    def add_check_words(self, words: Sequence[Word]) -> None:
        """Add the check words of 2^f y - a s, from coefficients to which writing added half a step."""
        for (fine, check), place, masks in zip(self._parameters.checked, self._places, self._masks, strict=True):
            segment = self._parameters.segments[fine]
            values = counted(words[0][place], masks, segment.fine_bits)
            found = _check_words(self._parameters, self._seed, fine, values)
            first, end = self._parameters.starts[check : check + 2]
            add_shifted([word[first:end] for word in words], found, lowest_bit(self._parameters, check))
            masks[:], values[:] = 0, 0


def agrees(parameters: Parameters, seed: bytes, words: Sequence[Word]) -> bool:
    """Whether sums of rounded values are what their check words say, which were centred before."""
    return all(
        (
            _check_words(parameters, seed, fine, _coefficients(parameters, words, fine))
            == unpack(parameters, words, check, 1)
        ).all()
        for fine, check in parameters.checked
    )


def remove_bias(parameters: Parameters, words: Sequence[Word], count: int) -> None:
    """Take off what so many roundings add on average: half a fine step each."""
    for fine, _ in parameters.checked:
        part = _coefficients(parameters, words, fine)
        part -= np.uint64(count // 2)


def _coefficients(parameters: Parameters, words: Sequence[Word], segment: int) -> Word:
    first, end = parameters.starts[segment : segment + 2]
    return words[0][first:end]


def _check_words(parameters: Parameters, seed: bytes, segment: int, values: Word) -> Word:
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
