"""Masks ``a s + e`` of one upload, and kernels that add, subtract, round and read coefficients of one or two words.

A client's upload is round((a s + e + values) / 2^d): ``a`` is public and shared by the whole epoch, the secret ``s`` is
one short polynomial, and each polynomial of the upload has a separate block of ``a``. Blocks are numbered over the
whole layout: two blocks with the same number and the same s would reveal the difference of their values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import key_derivation
from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.labels import Label
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, Misuse, Reason

from . import lattice
from .lattice import Sampler, SmallVector
from .parameters import SEED_BYTES, Parameters, Values

# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------
# The same code runs on arrays of 64-bit words, lowest first, and on solver terms.

WORD_BITS: Final = 64
_ONES = (1 << WORD_BITS) - 1

Words = Any
"""Arrays of unsigned words of 64 bits, or solver terms: + and - wrap, << drops overflowing bits, >> is logical."""


def low_bits(count: int) -> int:
    """Return the word whose lowest ``count`` bits are set."""
    return (1 << count) - 1


def add_shifted(words: list[Words], value: Words, shift: int, *, signed: bool = False) -> None:
    """Add value 2^shift modulo 2^(64 words) in place; a signed value is in two's complement.

    A value may be a public integer as well as an array.

    Claim OM-1: the proof runs this and ``subtract_wide`` on terms.
    """
    if len(words) == 1:
        words[0] += value << shift
        return
    if shift >= WORD_BITS:
        words[1] += value << (shift - WORD_BITS)
        return
    part = value << shift if shift else value
    before = words[0] + part
    carry = ((words[0] & part) | ((words[0] | part) & (before ^ _ONES))) >> (WORD_BITS - 1)
    above = value >> (WORD_BITS - shift) if shift else value & 0
    if signed:
        above = above | (((value & 0) - (value >> (WORD_BITS - 1))) << shift)
    words[1] += above + carry
    words[0] += part


def subtract_wide(words: list[Words], other: Sequence[Words]) -> None:
    """Subtract modulo 2^(64 words) in place.

    Claim OM-1.
    """
    if len(words) == 1:
        words[0] -= other[0]
        return
    difference = words[0] - other[0]
    inverted = words[0] ^ _ONES
    borrow = ((inverted & other[0]) | ((inverted | other[0]) & difference)) >> (WORD_BITS - 1)
    words[1] -= other[1] + borrow
    words[0] -= other[0]


def field_of(words: Sequence[Words], start: int, bits: int) -> Words:
    """Return ``bits`` bits, at most a word, from bit ``start`` on."""
    first, offset = divmod(start, WORD_BITS)
    value = words[first] >> offset if offset else words[first]
    if offset and offset + bits > WORD_BITS and first + 1 < len(words):
        value = value | (words[first + 1] << (WORD_BITS - offset))
    return value & low_bits(bits) if bits < WORD_BITS else value


def round_off(words: list[Words], dropped_bits: int) -> list[Words]:
    """Return round(y / 2^d), after adding half a unit to ``words``; bits above the modulus stay.

    Claim OM-2: the proof runs this and ``center`` on terms.
    """
    if not dropped_bits:
        return words
    add_shifted(words, 1 << (dropped_bits - 1), 0)
    return [field_of(words, dropped_bits, 64), *(word >> dropped_bits for word in words[1:])]


def center(words: list[Words], lowest: int, bias: int) -> None:
    """Add half of the guard bits' range and subtract the bias of rounding, so that noise is never negative."""
    offset = (1 << (lowest - 1)) - bias & low_bits(64 * len(words))
    for index in range(len(words)):
        add_shifted(words, offset >> 64 * index & low_bits(64), 64 * index)


def counted(word: Words, mask: Words, fine_bits: int) -> Words:
    """Return the effective value of a coefficient to which ``round_off`` added half a step: whole steps, less its mask.

    Claim OM-7: modulo 2^(p + f) it is what a server gets when it removes the mask from the p bits that were sent.
    """
    return (word & (_ONES ^ low_bits(fine_bits))) - mask


# --- Sizes ------------------------------------------------------------------------------------------------------------

POLYNOMIALS_AT_ONCE: Final = 16
"""Small enough that a block of transforms stays in a second-level cache."""
MOST_KEPT_BYTES: Final = 1 << 26
"""Maximum bytes of cached transforms of public polynomials."""
_BLOCK_BYTES = 16
_HALF_WORD_BYTES = 4
VALUES_AT_ONCE: Final = 1 << 15
"""Small enough that the intermediate values stay in a second-level cache."""
Word = npt.NDArray[np.uint64]
BYTE_BITS: Final = 8
Plane = npt.NDArray[np.unsignedinteger[Any]]


# --- Values in coefficients -------------------------------------------------------------------------------------------
# A coefficient is an integer modulo 2^w in one word of 64 bits, or in two, lowest first. From the lowest bit it holds g
# guard bits and then k fields, each wide enough for the sum of its values over a full list, so that no field reaches
# the next. A value that wraps occupies the highest bits without neighbours, so that its carry leaves the coefficient. A
# value with fine bits occupies the lowest bits, and the bits above it are dropped.


def word_count(modulus_bits: int) -> int:
    """Return how many machine words hold a coefficient."""
    return -(-modulus_bits // WORD_BITS)


def lowest_bit(parameters: Parameters, segment: int) -> int:
    """Return the bit where the fields of a segment begin; the bits below are noise, which fine steps absorb."""
    values = parameters.segments[segment]
    if values.fine_bits:
        return 0
    return parameters.modulus_bits - values.ring_bits if values.bounds is None else parameters.guard_bits


def spans(parameters: Parameters, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of coefficients (segment, first, end) of at most ``VALUES_AT_ONCE``."""
    for index in range(bisect_right(parameters.starts, start) - 1, len(parameters.segments)):
        first, last = parameters.starts[index : index + 2]
        if first >= end:
            return
        for low in range(max(first, start), min(last, end), VALUES_AT_ONCE):
            yield index, low, min(low + VALUES_AT_ONCE, last, end)


def fields(parameters: Parameters, index: int, vector: RingVector, low: int, high: int) -> Iterator[RingVector]:
    """Return the values that some coefficients of a segment hold, field by field; the last field may hold fewer."""
    first, last = parameters.starts[index : index + 2]
    for start in range(0, parameters.per_coefficient[index] * (last - first), last - first):
        yield vector[start + low - first : start + high - first]


def pack(parameters: Parameters, vectors: Sequence[RingVector], start: int, end: int) -> list[Word]:
    """Return coefficients that hold these values above zero guard bits.

    Args:
        vectors: one for each segment except check words, modulo 2^ring_bits in two's complement.
    """
    words = [np.zeros(end - start, np.uint64) for _ in range(word_count(parameters.modulus_bits))]
    for index, low, high in spans(parameters, start, min(end, parameters.starts[parameters.inputs])):
        segment, shift = parameters.segments[index], lowest_bit(parameters, index)
        for field in fields(parameters, index, vectors[index], low, high):
            part = [word[low - start : low - start + field.size] for word in words]
            add_shifted(part, _from_zero(segment, field), shift)
            shift += segment.field_bits(parameters.capacity)
    return words


def _from_zero(segment: Values, vector: RingVector) -> Word:
    """Return x - lo for values with bounds, which must hold, and x for values without."""
    if segment.bounds is None:
        return vector.astype(np.uint64)
    low, high = segment.bounds
    shifted = vector.astype(np.uint64) - np.uint64(low & low_bits(WORD_BITS))
    shifted &= np.uint64(low_bits(segment.ring_bits))
    if int(shifted.max(initial=0)) > high - low:
        raise CapacityExceeded(
            f"a value is outside its segment's bounds {low}..{high}; clamp the values or widen the bounds",
            reason=Reason.INPUT_OUT_OF_RANGE,
        )
    return shifted


# --- Coefficients as they are sent ------------------------------------------------------------------------------------
# A coefficient of 52 bits is sent as a plane of its lowest 32 bits, one of the next 16 and one of the last 4, which a
# server adds without extracting bits. A plane of fewer than 8 bits has several coefficients in a byte: of 4 bits, byte
# j holds coefficient j below and coefficient j + half above. Bits that fill a plane's last bytes are zero. Each run of
# coefficients with the same number of sent bits has separate planes, one run after another.


class UploadPlanes:
    """Planes of one upload while they are written; planes of whole bytes are views of the buffer that is sent."""

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
        """Write rounded coefficients of a run, beginning with its number ``start``, into its planes."""
        offset = 0
        for bits, plane in zip(plane_bits, self._planes[run], strict=True):
            end = start + words[0].size
            # The cast to a plane of whole bytes extracts its bits from a word.
            aligned = bits >= BYTE_BITS and offset % WORD_BITS + bits <= WORD_BITS
            word = words[offset // WORD_BITS]
            shifted = word >> np.uint64(offset % WORD_BITS) if offset % WORD_BITS else word
            plane[start:end] = shifted if aligned else field_of(words, offset, bits)
            offset += bits

    def encode(self) -> bytes:
        for place, plane, bits in self._narrow:
            _fold(place, plane, bits)
        return self._sent.tobytes()


def _fold(folded: Plane, values: Plane, bits: int) -> None:
    folded[:] = 0
    for part, shift in parts_of(values, folded.size, bits):
        folded[: part.size] |= part << np.uint8(shift)


def parts_of(values: Any, size: int, bits: int) -> list[tuple[Any, int]]:  # noqa: ANN401 -- an array of any word
    """Return the runs of values that share bytes, each with its position in them."""
    return [(values[start * size : (start + 1) * size], start * bits) for start in range(BYTE_BITS // bits)]


# --- Values that are rounded under the mask ---------------------------------------------------------------------------
# An upload holds y = round((a s + e + x) / 2^f) modulo 2^p. Its effective value is 2^f y - a s modulo 2^(p + f): the
# value, the noise e, and an error that is uniform because the mask is. It has no guard bits that would detect a wrong
# secret, which leaves uniform garbage, so its check words are sent in separate exact coefficients. Modulo 2^(p + f) a
# sample is a function of the one modulo 2^w, so the lattice is the same.


class Rounding:
    """Effective rounded values until their check words are known, and the coefficients after them."""

    def __init__(self, parameters: Parameters, seed: bytes) -> None:
        self._parameters, self._seed = parameters, seed
        self.end = parameters.starts[parameters.inputs]
        """End of the coefficients that can be written before the check words are known."""
        self._behind = [
            np.zeros(parameters.coefficients - self.end, np.uint64) for _ in range(word_count(parameters.modulus_bits))
        ]
        lengths = {fine: parameters.starts[fine + 1] - parameters.starts[fine] for fine, _ in parameters.checked}
        self._values = {
            fine: np.empty(length, Ring(parameters.segments[fine].ring_bits).word) for fine, length in lengths.items()
        }
        self._left = sum(lengths.values())

    def keep(self, words: Sequence[Word], masks: Word, start: int) -> None:
        """Keep the effective values of coefficients, to which writing added half a step and these masks."""
        for index, low, high in spans(self._parameters, start, start + masks.size):
            part = slice(low - start, high - start)
            if index in self._values:
                first, segment = self._parameters.starts[index], self._parameters.segments[index]
                found = counted(words[0][part], masks[part], segment.fine_bits)
                self._values[index][low - first : high - first] = found & np.uint64(low_bits(segment.ring_bits))
                self._left -= high - low
            elif low >= self.end:
                for kept, word in zip(self._behind, words, strict=True):
                    kept[low - self.end : high - self.end] = word[part]

    def with_check_words(self) -> list[Word]:
        """Return the coefficients after the values, with the check words of 2^f y - a s added."""
        if self._left:
            raise InternalError("check words need all values of an upload, each masked once")
        for fine, check in self._parameters.checked:
            found = check_words_of(self._parameters, self._seed, fine, self._values[fine])
            first, end = (place - self.end for place in self._parameters.starts[check : check + 2])
            add_shifted([word[first:end] for word in self._behind], found, lowest_bit(self._parameters, check))
            self._values[fine][:] = 0
        return self._behind


def check_words_of(parameters: Parameters, seed: bytes, segment: int, elements: RingVector) -> Word:
    """Return the check words of a segment under the public vector of this epoch and segment."""
    chosen = parameters.segments[segment]
    number = segment.to_bytes(4, "big")
    # The epoch's seed is public; it is wrapped because keys are passed as a Secret.
    with (
        Secret("epoch seed", seed) as source,
        key_derivation.expand("check_key", CHECK_KEY_BYTES, source, Label.ONE_MESSAGE_CHECK_VECTOR, number) as key,
    ):
        return np.array(check_words(Ring(chosen.ring_bits), elements, chosen.check_words.length, key), np.uint64)


# --- Masks ------------------------------------------------------------------------------------------------------------


class EpochRing:
    """Public polynomials of an epoch, and the masks that clients make with them."""

    def __init__(self, parameters: Parameters, seed: bytes) -> None:
        """Take the epoch's public seed of 32 bytes, to which every holder contributed."""
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise InvalidParameters(f"an epoch's seed must be {SEED_BYTES} bytes; got {type(seed).__name__}")
        self.parameters = parameters
        self.seed = seed
        self._limbs = lattice.limb_count(parameters.modulus_bits)
        self._limb_bits = lattice.limb_bits(parameters.modulus_bits)
        self.sum_limb_bits = lattice.sum_limb_bits(parameters.degree, parameters.modulus_bits)
        self._prepared: lattice.Spectrum | None = None
        self._is_new = True

    def prepare(self) -> None:
        """Cache the transforms of all public polynomials, 8 bytes per limb of a coefficient, if they fit the limit."""
        size = 8 * self._limbs * self.parameters.polynomials * self.parameters.degree
        if self._prepared is None and size <= MOST_KEPT_BYTES:
            self._prepared = np.concatenate([self._transform(*block) for block in self.blocks()])

    def mask(self, vectors: Sequence[RingVector], coins_seed: Secret) -> tuple[bytes, Secret]:
        """Return the masked upload of ring vectors, one per segment, and the secret to share.

        Wipes the seed. The secret is one signed byte per coefficient.

        Security: a seed masks one upload; the upload made from it is sent once or identically again.
        """
        if len(coins_seed) != SEED_BYTES:
            raise InvalidParameters(f"an upload's seed must be {SEED_BYTES} bytes; got {len(coins_seed)}")
        # An epoch has many rounds: a process that masks a second time will mask again, so cache the transforms.
        if not self._is_new:
            self.prepare()
        self._is_new = False
        segments = self.parameters.segments[: self.parameters.inputs]
        if len(vectors) != len(segments):
            raise Misuse(f"the layout has {len(segments)} segments; got {len(vectors)} vectors")
        for segment, vector in zip(segments, vectors, strict=True):
            Ring(segment.ring_bits).require_vector(vector, segment.length)
        try:
            with (
                key_derivation.expand("secret's key", SEED_BYTES, coins_seed, Label.ONE_MESSAGE_SECRET) as secret_key,
                key_derivation.expand("noise key", SEED_BYTES, coins_seed, Label.ONE_MESSAGE_NOISE) as noise_key,
            ):
                drawn = Sampler(secret_key).draw(self.parameters.degree)
                try:
                    lattice.require_short(drawn)
                    upload = self._masked(vectors, drawn, Sampler(noise_key))
                    secret = Secret("ring secret", drawn.data.cast("B"))
                finally:
                    drawn[:] = 0
        finally:
            coins_seed.wipe()
        return upload, secret

    def _masked(self, vectors: Sequence[RingVector], secret: SmallVector, noise: Sampler) -> bytes:
        """Pack, mask, round and write block by block; check words are added once their values are rounded."""
        parameters, planes = self.parameters, UploadPlanes(self.parameters)
        spectrum = lattice.spectra(secret)
        rounding = Rounding(parameters, self.seed)
        try:
            for first, count in self.blocks():
                start, end = self.range_of(first, count)
                words = pack(parameters, vectors, start, end)
                masks = words[0].copy()
                self.add_product(words, first, count, [spectrum])
                np.subtract(words[0], masks, out=masks)
                drawn = noise.draw(end - start)
                add_shifted(words, drawn.astype(np.int64).view(np.uint64), 0, signed=True)
                drawn[:] = 0
                self._write([word[: max(0, rounding.end - start)] for word in words], start, planes)
                rounding.keep(words, masks, start)
                for word in (*words, masks):
                    word[:] = 0
        finally:
            spectrum[:] = 0
        self._write(rounding.with_check_words(), rounding.end, planes)
        return planes.encode()

    def _write(self, words: Sequence[Word], start: int, planes: UploadPlanes) -> None:
        for number, run in enumerate(self.parameters.runs):
            low, high = max(start, run.first), min(start + words[0].size, run.end)
            if low < high:
                part = [word[low - start : high - start] for word in words]
                planes.write(number, round_off(part, run.dropped), low - run.first, run.plane_bits)

    # --- Also for opening ---------------------------------------------------------------------------------------------

    def blocks(self, first: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """Return runs of the polynomials of some coefficients: the first of each run, and its length."""
        degree = self.parameters.degree
        last = -(-(self.parameters.coefficients if end is None else end) // degree)
        starts = range(first // degree, last, POLYNOMIALS_AT_ONCE)
        return [(start, min(POLYNOMIALS_AT_ONCE, last - start)) for start in starts]

    def range_of(self, first: int, count: int) -> tuple[int, int]:
        """Return which coefficients some polynomials hold."""
        degree = self.parameters.degree
        return first * degree, min((first + count) * degree, self.parameters.coefficients)

    def _transform(self, first: int, count: int) -> lattice.Spectrum:
        """Return the transforms of the limbs of public polynomials: (count, limbs, n/2)."""
        degree = self.parameters.degree
        stream = bytearray(count * self._limbs * degree * _HALF_WORD_BYTES)
        counter = first * self._limbs * degree * _HALF_WORD_BYTES // _BLOCK_BYTES
        initial = modes.CTR(counter.to_bytes(_BLOCK_BYTES, "big"))
        Cipher(algorithms.AES(self.seed), initial).encryptor().update_into(bytes(len(stream)), stream)
        words = np.frombuffer(stream, "<i4").reshape(count, self._limbs, degree)
        return lattice.spectra(words >> (32 - self._limb_bits))

    def add_product(self, words: list[Word], first: int, count: int, shorts: Sequence[lattice.Spectrum]) -> None:
        """Add ``a s`` for some polynomials in place, with s split into limbs; may use only part of the last one."""
        prepared = self._prepared
        public = self._transform(first, count) if prepared is None else prepared[first : first + count]
        is_whole = words[0].size == count * self.parameters.degree
        halves = [word.reshape(count, 2, -1) if is_whole else word for word in words]
        for index, short in enumerate(shorts):
            products = lattice.products(public, short).view(np.uint64)
            for limb in range(self._limbs):
                values = products[:, limb] if is_whole else products[:, limb].reshape(-1)[: words[0].size]
                shift = limb * self._limb_bits + index * self.sum_limb_bits
                add_shifted(halves, values, shift, signed=True)


@lru_cache(maxsize=2)
def epoch_ring(parameters: Parameters, seed: bytes) -> EpochRing:
    """Return the public polynomials of an epoch, which this process caches and shares."""
    return EpochRing(parameters, seed)
