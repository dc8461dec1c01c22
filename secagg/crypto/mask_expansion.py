"""Mask expansion: expands seeds by AES in counter mode, and adds the masks to an accumulator.

The stream of a key is cut into segments of ``SEGMENT_BYTES``. Block j of segment s is

    AES_K(s as 12 bytes || j + 2 as 4 bytes),        big-endian,

which is AES-CTR from the initial counter block s || 00000002 [SP 800-38A] §6.5, and at the same time the ciphertext
that AES-GCM gives for zeros under the nonce s [SP 800-38D] §7.1. Counter mode is the specification. The processor
decides which of the two is faster, by a factor of two either way, so a process measures it once; a test compares their
output. Segments are independent, so any range of coordinates can be generated separately.

The stream is read as little-endian words of the ring's word size and reduced modulo 2^p. 2^p divides the range of a
word, so the reduction keeps it uniform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from time import perf_counter
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.errors import InvalidParameters, Misuse

from .ring import CACHE_LINE_BYTES, Ring, RingVector, add_into, bytes_to_cache_line, reduce_into, subtract_into
from .secret import Secret, overwrite, require_secret

SEGMENT_BYTES: Final = 1 << 20
"""Part of the stream's definition; large enough that threads rarely contend for the interpreter's lock."""
KEY_LIMIT_BYTES: Final = 1 << 36
"""Maximum length of a key's stream."""
MASKS_PER_PASS: Final = 256
"""Number of cipher states in memory; each group of keys reads and writes the accumulator once."""
MEASURED_BYTES: Final = 1 << 24
"""Minimum stream length for comparing the generators, which takes about two milliseconds."""
_KEY_BYTES = (16, 32)
_NONCE_BYTES = 12
_TAG_BYTES = 16
_BLOCK_BYTES = 16
_FIRST_COUNTER = 2
_ZEROS = bytes(SEGMENT_BYTES)

_Fill = Callable[[bytes, memoryview, memoryview], object]
_Combine = Callable[[RingVector, RingVector], object]


class Generator(Enum):
    """Two ways to generate the same stream."""

    CTR = "ctr"
    """The specification."""
    GCM = "gcm"
    """The same bytes from the authenticated mode, whose tag is discarded."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of stream generated at a time: whole segments for GCM, the size of a second-level cache for CTR."""
        return SEGMENT_BYTES // (4 if self is Generator.CTR else 1)


def segment_count(ring: Ring, length: int) -> int:
    """Return the number of segments of a key's stream that a vector uses."""
    return -(-length * ring.word_bytes // SEGMENT_BYTES)


def expand(  # noqa: PLR0913 -- all but three have defaults
    key: Secret, ring: Ring, length: int, *, start: int = 0, first_segment: int = 0, generator: Generator | None = None
) -> RingVector:
    """Return coordinates [start, start + length) of a key's mask."""
    _check_range(ring, start, length, first_segment)
    mask = ring.zeros(length)
    accumulate(mask, ring, add=[key], subtract=[], start=start, first_segment=first_segment, generator=generator)
    return mask


def accumulate(  # noqa: PLR0913 -- all but four have defaults
    total: RingVector,
    ring: Ring,
    *,
    add: Iterable[Secret],
    subtract: Iterable[Secret],
    start: int = 0,
    first_segment: int = 0,
    threads: int = 1,
    generator: Generator | None = None,
) -> None:
    """Add and subtract the masks of many keys in place, without storing whole masks.

    Args:
        total: coordinates [start, start + total.size) of the vector; on return reduced modulo 2^p.
        add: keys of 16 bytes (AES-128) or 32 bytes (AES-256).
        first_segment: start of the vector in each key's stream; vectors that share a key must not overlap.
        threads: number of threads that share the coordinates.
        generator: None for the faster one; all generators give the same stream.

    Raises:
        InvalidParameters: a key of the wrong length, a range outside the stream, fewer than one thread.
        Misuse: ``total`` is not a writeable, contiguous vector over the ring; a key is not a ``Secret``, was wiped, or
        is repeated, so its masks would cancel or double. In both cases nothing was added.

    Security: use a key for only one mask, once. Two vectors under one mask reveal their difference. After any other
    error ``total`` is overwritten with zeros, so that no partially masked vector remains.
    """
    _check_target(total, ring)
    _check_range(ring, start, total.size, first_segment)
    signed_keys = [(add_into, key) for key in add] + [(subtract_into, key) for key in subtract]
    _check_keys([key for _, key in signed_keys])
    if type(threads) is not int or threads < 1:
        raise InvalidParameters(f"threads must be an integer of at least 1; got {threads!r}")
    if generator is not None and type(generator) is not Generator:
        raise Misuse(f"generator must be a Generator; got {generator!r}")
    is_long = total.size * ring.word_bytes * len(signed_keys) >= MEASURED_BYTES
    chosen = generator or (fastest(len(signed_keys[0][1])) if is_long else Generator.GCM)
    job = _Job(ring, signed_keys, first_segment, chosen)
    parts = _cut_at_segments(start, total.size, SEGMENT_BYTES // ring.word_bytes, threads)
    try:
        if len(parts) == 1:
            job.run(total, start)
            return
        with ThreadPoolExecutor(len(parts)) as pool:
            for finished in [pool.submit(job.run, total[part], start + part.start) for part in parts]:
                finished.result()
    except BaseException:
        total[:] = 0
        raise


@dataclass(frozen=True, slots=True)
class _Job:
    """Work of one thread on its own part of the accumulator."""

    ring: Ring
    signed_keys: Sequence[tuple[_Combine, Secret]]
    first_segment: int
    generator: Generator

    def run(self, total: RingVector, start: int) -> None:
        """Accumulate all masks, one group of keys at a time; ``total`` starts at coordinate ``start``."""
        per_chunk = self.generator.chunk_bytes // self.ring.word_bytes
        widest = min(per_chunk, start % per_chunk + total.size) * self.ring.word_bytes
        buffer = bytearray(widest + _TAG_BYTES + CACHE_LINE_BYTES)
        try:
            for first in range(0, max(1, len(self.signed_keys)), MASKS_PER_PASS):
                group = self.signed_keys[first : first + MASKS_PER_PASS]
                masks = [(combine, _filler(key, self.generator)) for combine, key in group]
                self._pass(total, start, masks, buffer)
        finally:
            overwrite(buffer)

    def _pass(self, total: RingVector, start: int, masks: Sequence[tuple[_Combine, _Fill]], buffer: bytearray) -> None:
        """For each chunk, add all masks while its part of the sum is in the cache."""
        offset = bytes_to_cache_line(np.frombuffer(buffer, dtype=np.uint8))
        stream, zeros = memoryview(buffer)[offset:], memoryview(_ZEROS)
        filled_words = (len(buffer) - _TAG_BYTES - CACHE_LINE_BYTES) // self.ring.word_bytes
        words = np.frombuffer(buffer, dtype=self.ring.word, offset=offset, count=filled_words)
        per_chunk = self.generator.chunk_bytes // self.ring.word_bytes
        first_chunk = self.first_segment * (SEGMENT_BYTES // self.generator.chunk_bytes)
        position = 0
        while position < total.size:
            chunk, skip = divmod(start + position, per_chunk)
            count = min(per_chunk - skip, total.size - position)
            filled = (skip + count) * self.ring.word_bytes
            plain, made = zeros[:filled], stream[: filled + _TAG_BYTES]
            part, mask = total[position : position + count], words[skip : skip + count]
            place = _place_in_stream(self.generator, first_chunk + chunk)
            for combine, fill in masks:
                fill(place, plain, made)
                combine(part, mask)
            if self.ring.modulus_bits < self.ring.word_bits:
                reduce_into(part, self.ring.modulus_bits)
            position += count


@cache
def fastest(key_bytes: int) -> Generator:
    """Return the faster generator on this processor: the best of three runs, measured once per process."""
    stream, zeros = memoryview(bytearray(SEGMENT_BYTES + _TAG_BYTES)), memoryview(_ZEROS)
    seconds = dict[Generator, float]()
    with Secret("no mask's key", bytes(key_bytes)) as key:
        for generator in Generator:
            fill, place, size = _filler(key, generator), _place_in_stream(generator, 0), generator.chunk_bytes
            for _ in range(3):
                began = perf_counter()
                for _ in range(SEGMENT_BYTES // size):
                    fill(place, zeros[:size], stream[: size + _TAG_BYTES])
                seconds[generator] = min(seconds.get(generator, 1.0), perf_counter() - began)
    return min(seconds, key=lambda generator: seconds[generator])


def _filler(key: Secret, generator: Generator) -> _Fill:
    match generator:
        case Generator.CTR:
            encryptor = Cipher(algorithms.AES(key.expose()), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()

            def fill_by_ctr(counter_block: bytes, zeros: memoryview, stream: memoryview) -> None:
                encryptor.reset_nonce(counter_block)
                encryptor.update_into(zeros, stream)

            return fill_by_ctr
        case Generator.GCM:
            encrypt_into = AESGCM(key.expose()).encrypt_into

            # Safe because: the nonce is the segment number, the plaintext is always zeros and the tag is not released,
            # so generating a segment again, as both ends of a pair do, gives the same bytes and reveals nothing new.
            def fill_by_gcm(nonce: bytes, zeros: memoryview, stream: memoryview) -> None:
                encrypt_into(nonce, zeros, None, stream)

            return fill_by_gcm


def _place_in_stream(generator: Generator, chunk: int) -> bytes:
    """Return the start of a chunk: the nonce of its segment for GCM, with the counter for CTR."""
    segment, part = divmod(chunk, SEGMENT_BYTES // generator.chunk_bytes)
    nonce = segment.to_bytes(_NONCE_BYTES, "big")
    if generator is Generator.GCM:
        return nonce
    counter = _FIRST_COUNTER + part * (generator.chunk_bytes // _BLOCK_BYTES)
    return nonce + counter.to_bytes(_BLOCK_BYTES - _NONCE_BYTES, "big")


def _cut_at_segments(start: int, length: int, per_segment: int, parts: int) -> list[slice]:
    """Divide [0, length) into at most ``parts`` ranges, at segment boundaries."""
    first, last = start // per_segment, -(-(start + length) // per_segment)
    parts = max(1, min(parts, last - first))
    edges = {first + (last - first) * index // parts for index in range(parts + 1)}
    inside = sorted(min(max(edge * per_segment - start, 0), length) for edge in edges)
    return [slice(low, high) for low, high in pairwise(inside) if low < high] or [slice(0, 0)]


def _check_target(total: RingVector, ring: Ring) -> None:
    ring.require_form(total)
    if not (total.flags.c_contiguous and total.flags.writeable):
        raise Misuse("an accumulator must be contiguous and writeable; pass a copy of the vector")


def _check_range(ring: Ring, start: int, length: int, first_segment: int) -> None:
    if any(type(value) is not int or value < 0 for value in (start, length, first_segment)):
        raise InvalidParameters(
            f"start, length and first_segment must be integers of at least 0; got {start}, {length}, {first_segment}"
        )
    if (first_segment + segment_count(ring, start + length)) * SEGMENT_BYTES > KEY_LIMIT_BYTES:
        raise InvalidParameters(
            f"coordinates up to {start + length} from segment {first_segment} need more than {KEY_LIMIT_BYTES} bytes "
            "of one key's stream; divide the vector among several keys"
        )


def _check_keys(keys: Sequence[Secret]) -> None:
    for key in keys:
        require_secret(key)
        if len(key) not in _KEY_BYTES:
            raise InvalidParameters(f"a mask key must be 16 or 32 bytes; {key!r} is {len(key)}")
    # Safe because: the digests are of uniform keys and are only compared with each other, so neither they nor the time
    # to find two equal ones help to guess a key.
    if len({hashlib.sha256(key.expose()).digest() for key in keys}) < len(keys):
        raise Misuse("a mask key occurs twice; its masks would cancel or double, and expose the vector")
