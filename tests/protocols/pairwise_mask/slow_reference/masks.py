"""Vectors: the masked values, their check words, and the masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .encoding import client_id, number, pack, unpack
from .primitives import STREAM_SEGMENT, expand, stream

Vectors = list[list[int]]


class Frame:
    """The vectors of a session: for each segment its values and its check words, and finally a count."""

    def __init__(self, parameters: Mapping[str, Any], context: bytes) -> None:
        population: int = parameters["maximum_population"]
        self.segments: list[tuple[int, int]] = [*parameters["layout"], (population.bit_length(), 1)]
        self._check_words: int = parameters["check_words"]
        self._key_bytes = 16 if parameters["suite"] == "x25519-aes128" else 32
        self._context = context

    def of_input(self, values: Sequence[Sequence[int]]) -> Vectors:
        """Return an input and a count of 1, with their check words."""
        vectors = [
            [value % (1 << bits) for value in segment]
            for segment, (bits, _) in zip([*values, [1]], self.segments, strict=True)
        ]
        return [vector + self.check_words(index, vector) for index, vector in enumerate(vectors)]

    def words_behind(self, index: int) -> int:
        """Return a segment's number of check words."""
        bits, _ = self.segments[index]
        return max(self._check_words, -(-64 // bits))

    def check_words(self, index: int, values: Sequence[int]) -> list[int]:
        """Return the inner products of a segment with a public vector over its ring, shifted for each word."""
        bits, length = self.segments[index]
        words = self.words_behind(index)
        key = expand(self._context, 16, "check-vector", number(index, 4))
        public = _elements(key, bits, length + words - 1, 0)
        shifted = (public[word : word + length] for word in range(words))
        return [sum(a * b for a, b in zip(values, window, strict=True)) % (1 << bits) for window in shifted]

    def self_mask(self, seed: bytes, client: int) -> Vectors:
        """Return the mask of a client's own seed."""
        return self._mask(expand(seed, self._key_bytes, "self-mask-key", self._context, client_id(client)))

    def pairwise_mask(self, seed: bytes, one: int, other: int) -> Vectors:
        """Return the mask of two clients' seed."""
        ends = (client_id(min(one, other)), client_id(max(one, other)))
        return self._mask(expand(seed, self._key_bytes, "pairwise-mask-key", self._context, *ends))

    def add(self, one: Vectors, other: Vectors, sign: int = 1) -> Vectors:
        """Add or subtract, segment by segment."""
        return [
            [(a + sign * b) % (1 << bits) for a, b in zip(left, right, strict=True)]
            for left, right, (bits, _) in zip(one, other, self.segments, strict=True)
        ]

    def pack(self, vectors: Vectors) -> bytes:
        """Write the segments one after another, each padded to whole bytes."""
        return b"".join(pack(vector, bits) for vector, (bits, _) in zip(vectors, self.segments, strict=True))

    def unpack(self, packed: bytes) -> Vectors:
        """Read the segments back."""
        vectors, start = list[list[int]](), 0
        for (bits, _), length in zip(self.segments, self._lengths(), strict=True):
            end = start + (bits * length + 7) // 8
            vectors.append(unpack(packed[start:end], bits, length))
            start = end
        return vectors

    def _mask(self, key: bytes) -> Vectors:
        masks, first = list[list[int]](), 0
        for (bits, _), length in zip(self.segments, self._lengths(), strict=True):
            masks.append(_elements(key, bits, length, first))
            first += _stream_segments(bits, length)
        return masks

    def _lengths(self) -> list[int]:
        return [length + self.words_behind(index) for index, (_, length) in enumerate(self.segments)]


def _elements(key: bytes, bits: int, length: int, first_segment: int) -> list[int]:
    """Read a stream as little-endian words of 1, 2, 4 or 8 bytes, and keep the lowest bits of each."""
    word = _word_bytes(bits)
    made = stream(key, first_segment * STREAM_SEGMENT, length * word)
    return [int.from_bytes(made[at : at + word], "little") % (1 << bits) for at in range(0, length * word, word)]


def _stream_segments(bits: int, length: int) -> int:
    return -(-length * _word_bytes(bits) // STREAM_SEGMENT)


def _word_bytes(bits: int) -> int:
    return next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
