"""Lanes: integers modulo a Mersenne prime or modulo 2^p, and the streams they are drawn from.

The moduli 127, 8191 and 131071 are Mersenne primes q = 2^p - 1. A lane has p bits on the wire and the smallest word
that holds them in memory, as in ``secagg.crypto.ring``; unlike there the word of p ones, which would be a second zero,
is not a lane. Lanes of a field are kept below q at all times. Lanes of a ring are added without reducing, and reduced
once at the end, because 2^p divides the range of their word.

Lane n of a key's stream is the first that is below q among word n of the streams of the attempts 0, 1, 2, ...: any
range of lanes can be made alone, in chunks of any size, on any thread. The stream of attempt a is AES-CTR from the
counter block IV + a * 2^64 modulo 2^128 [SP 800-38A] §6.5, read as little-endian words whose lowest p bits count; key
and IV are the halves of the 32 bytes from which the stream is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import ring as ring_kernels
from secagg.crypto.ring import Ring, low_bits
from secagg.crypto.secret import Confined, Secret, overwrite, require_secret
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.parameters import require_integer

AES_BLOCK_BYTES: Final = 16
STREAM_KEY_BYTES: Final = 32
_AES_KEY_BYTES: Final = 16
_ZEROS: Final = memoryview(bytes(1 << 20))

Bytes = npt.NDArray[np.uint8]


class CounterStream:
    """Blocks of a stream; any range can be made."""

    def __init__(self, key: Secret) -> None:
        require_secret(key)
        if len(key) != STREAM_KEY_BYTES:
            raise InvalidParameters(f"a stream is made from {STREAM_KEY_BYTES} bytes; got {key!r}")
        exposed = key.expose()
        self._origin = int.from_bytes(exposed[_AES_KEY_BYTES:], "big")
        cipher = Cipher(algorithms.AES(exposed[:_AES_KEY_BYTES]), modes.CTR(bytes(AES_BLOCK_BYTES)))
        self._encryptor = cipher.encryptor()

    def fill(self, target: Bytes, first_block: int, size: int) -> None:
        """Write ``size`` bytes from a block on; the backend needs room for 15 more, and leaves them alone."""
        counter = (self._origin + first_block) % (1 << (8 * AES_BLOCK_BYTES))
        self._encryptor.reset_nonce(counter.to_bytes(AES_BLOCK_BYTES, "big"))
        for start in range(0, size, len(_ZEROS)):
            count = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:count], target.data[start : start + count + AES_BLOCK_BYTES - 1])


class WordStream:
    """Words of a counter stream, made into one buffer that is used again and overwritten at the end."""

    def __init__(self, word: np.dtype[np.unsignedinteger[Any]], key: Secret) -> None:
        self._buffer = bytearray()
        self._word, self._stream = word, CounterStream(key)

    def __del__(self) -> None:
        overwrite(self._buffer)

    def lanes(self, start: int, count: int, attempt: int = 0) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return words [start, start + count) of an attempt; they hold until the next call."""
        block, skip = divmod(start * self._word.itemsize, AES_BLOCK_BYTES)
        size = skip + count * self._word.itemsize
        if len(self._buffer) < size + AES_BLOCK_BYTES:
            overwrite(self._buffer)
            self._buffer = bytearray(size + AES_BLOCK_BYTES)
        self._stream.fill(np.frombuffer(self._buffer, dtype=np.uint8), (attempt << 64) + block, size)
        return np.frombuffer(self._buffer, dtype=self._word, count=count, offset=skip)


MODULI: Final = (127, 8191, 131071)
ATTEMPTS: Final = 32
"""A uniform stream needs more for one of 2^64 lanes with probability below 2^-160."""
_LIMIT_LANES: Final = 1 << 60
"""The streams of two attempts begin 2^64 blocks apart, so none reaches the next."""
_CHUNK_LANES: Final = 1 << 15
_WIDE = np.dtype("<u8")
"""The word of products and row sums: (2^17)^2 and 4096 lanes of 17 bits are far below 2^64."""

Lanes = npt.NDArray[np.unsignedinteger[Any]]
Retry = Callable[[int, npt.NDArray[np.intp]], Lanes]
"""Given an attempt and the positions of lanes that are still missing, return new words for them."""


@dataclass(frozen=True, slots=True)
class LaneField:
    """The integers modulo a Mersenne prime, and arrays of them in canonical form."""

    modulus: int

    def __post_init__(self) -> None:
        if type(self.modulus) is not int or self.modulus not in MODULI:
            raise InvalidParameters(f"the modulus of a lane is one of {MODULI}; got {self.modulus!r}")

    @classmethod
    def for_total_weight(cls, total_weight: int) -> LaneField:
        """Return the smallest field in which no histogram over this total weight can wrap."""
        require_integer("a total weight", total_weight, 1)
        for modulus in MODULI:
            if total_weight < modulus:
                return cls(modulus)
        raise CapacityExceeded(
            f"a total weight of {total_weight} exceeds {MODULI[-1] - 1}, the most that checked lanes can count; use "
            "fewer clients or smaller weights"
        )

    @property
    def order(self) -> int:
        return self.modulus

    @property
    def bits(self) -> int:
        return self.modulus.bit_length()

    @property
    def ring(self) -> Ring:
        return Ring(self.bits)

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        return word_of(self.bits)

    def zeros(self, count: int) -> Lanes:
        return self.ring.zeros(count)

    def require_lanes(self, lanes: Any) -> Lanes:  # noqa: ANN401 -- checked here
        """Return an array of any shape if it holds lanes."""
        if type(lanes) is not np.ndarray or lanes.dtype != self.word:
            raise Misuse(f"lanes modulo {self.modulus} are an array of {self.word}; got another {type(lanes).__name__}")
        if lanes.size and int(lanes.max()) >= self.modulus:
            raise CapacityExceeded(f"a lane is not below {self.modulus}", reason=Reason.INPUT_OUT_OF_RANGE)
        checked: Lanes = lanes
        return checked

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place; the total holds lanes, and the addend holds lanes or q, as complements of lanes do."""
        total += lanes
        total += wraps(total, self.bits)
        total &= self.word.type(self.modulus)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        # The complement of a lane is q minus it, and leaves the sum below 2q; one reduction settles both.
        self.add_into(total, lanes ^ self.word.type(self.modulus))

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        lanes[...] = reduce(lanes.astype(_WIDE) * factor, self.bits, self.modulus**2)

    def reduce_into(self, total: Lanes) -> None:
        """Do nothing: sums are reduced as they are made."""

    def column_sums(self, lanes: Lanes) -> Lanes:
        sums: Lanes = np.add.reduce(lanes, axis=0, dtype=_WIDE)
        reduced: Lanes = reduce(sums, self.bits, max(1, len(lanes)) * self.modulus)
        return reduced.astype(self.word)

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        corrected: Lanes = field_correction(target, lanes_0, lanes_1, negative, self.bits)
        return corrected

    def stream(self, key: Secret) -> LaneStream:
        return LaneStream(self, key)

    def settle(self, words: Lanes, retry: Retry, into: Lanes | None = None) -> None:
        """Keep the lowest p bits of each word, and replace those that are all ones, which are not lanes.

        Raises:
            MalformedMessage: a lane is missing after ``ATTEMPTS`` attempts, which is the case for a uniform word with a
                probability of at most 2^-224; the party that chose the key is refused.
        Security: Not constant time: the number of attempts shows in time. It depends on pseudo-random words alone,
            whose distribution is the same for every input.
        """
        modulus = self.word.type(self.modulus)
        flat = np.bitwise_and(words, modulus, out=words if into is None else into).reshape(-1)
        missing = np.flatnonzero(flat == modulus)
        for attempt in range(1, ATTEMPTS):
            if not missing.size:
                return
            again = retry(attempt, missing) & modulus
            flat[missing] = again
            missing = missing[again == modulus]
        if missing.size:
            raise MalformedMessage(
                f"a key has no lane below {self.modulus} in {ATTEMPTS} attempts", reason=Reason.NOT_CANONICAL
            )

    def packed_bytes(self, count: int) -> int:
        return self.ring.packed_bytes(count)

    def pack(self, lanes: Lanes) -> bytes:
        return self.ring.pack(self.require_lanes(lanes).reshape(-1))

    def unpack(self, data: bytes | memoryview, count: int) -> Lanes:
        lanes = self.ring.unpack(data, count)
        if lanes.size and int(lanes.max()) >= self.modulus:
            raise MalformedMessage(f"a lane is not below {self.modulus}", reason=Reason.NOT_CANONICAL)
        return lanes


class LaneStream(Confined):
    """Uniform lanes that a key expands into.

    Security: a key is derived from the owner of its lanes, for one purpose, and used once. Not constant time: the
        number of attempts depends on the stream alone, and never on what its lanes hide.
    """

    def __init__(self, field: LaneField, key: Secret) -> None:
        """Take a key and an IV; both from one source, so that guessing for many streams at once gains nothing."""
        WordStream(field.word, key)  # It refuses what is not such a key.
        self.field = field
        self._key = key

    def lanes(self, start: int, count: int) -> Lanes:
        if type(start) is not int or type(count) is not int or min(start, count) < 0 or start + count > _LIMIT_LANES:
            raise InvalidParameters(f"a range of lanes lies in 0..2^60; got {start!r} and {count!r} lanes from there")
        made = self.field.zeros(count)
        words = WordStream(self.field.word, self._key)
        for first in range(0, count, _CHUNK_LANES):
            self._fill(made[first : first + _CHUNK_LANES], start + first, words)
        return made

    def _fill(self, part: Lanes, start: int, words: WordStream) -> None:
        def again(attempt: int, missing: npt.NDArray[np.intp]) -> Lanes:
            # Only what lies between the first and the last missing lane is made again.
            first, last = int(missing[0]), int(missing[-1])
            return words.lanes(start + first, last - first + 1, attempt)[missing - first]

        self.field.settle(words.lanes(start, part.size), again, part)


@cache
def word_of(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype of lanes; cached, because every step of an evaluation asks for it."""
    return Ring(bits).word


# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------

Words = Any
"""Arrays of words, or solver terms, whose values are below the bounds that each kernel states."""


def wraps(words: Words, bits: int) -> Words:
    """Return 1 where a word below 2q is at least q, and 0 elsewhere; ``words + 1`` must fit the word."""
    return (words + 1) >> bits


def reduce_once(words: Words, bits: int) -> Words:
    """Reduce words below 2q: adding 1 where a word is at least q turns its lowest p bits into word - q."""
    return (words + wraps(words, bits)) & low_bits(bits)


def add(left: Words, right: Words, bits: int) -> Words:
    """Add lanes; 2q - 1 fits the word of every modulus."""
    return reduce_once(left + right, bits)


def subtract(left: Words, right: Words, bits: int) -> Words:
    """Subtract lanes."""
    return reduce_once(left + (low_bits(bits) - right), bits)


def reduce(words: Words, bits: int, greatest: int) -> Words:
    """Reduce words of at most ``greatest``, a public bound that fits the word.

    2^(jp) = 1 modulo q, so the upper part of a word is added to its lower jp bits until the bound is below 2q.
    Claim DP-2: this is the remainder modulo q, and so are sums and differences.
    """
    modulus = low_bits(bits)
    while greatest >= 2 * modulus:
        shift = max(1, greatest.bit_length() // (2 * bits)) * bits
        words = (words & low_bits(shift)) + (words >> shift)
        greatest = low_bits(shift) + (greatest >> shift)
    return reduce_once(words, bits)


def reduce_signed(words: Words, bits: int, greatest: int) -> Words:
    """Reduce signed words in [-greatest, greatest]; twice the bound and q more must fit the word."""
    modulus = low_bits(bits)
    multiple = -(-greatest // modulus) * modulus
    return reduce(words + multiple, bits, greatest + multiple)


def centre(words: Words, bits: int) -> Words:
    """Map signed words in [0, q) to their representatives in [-(q - 1) / 2, (q - 1) / 2]."""
    return words - (words >> (bits - 1)) * low_bits(bits)


def field_correction(target: Words, lanes_0: Words, lanes_1: Words, negative: Words, bits: int) -> Words:
    """Return target - lanes_0 + lanes_1, negated where ``negative`` is all ones: a complement is a lane's negative."""
    difference = add(subtract(target, lanes_0, bits), lanes_1, bits)
    return reduce_once(difference ^ (negative & low_bits(bits)), bits)


def ring_correction(target: Words, lanes_0: Words, lanes_1: Words, negative: Words, bits: int) -> Words:
    """Return (target - lanes_0 + lanes_1) modulo 2^p, negated where ``negative`` is all ones and not where it is 0."""
    difference = target - lanes_0 + lanes_1
    return ((difference ^ negative) - negative) & low_bits(bits)


@dataclass(frozen=True, slots=True)
class RingLanes:
    """The integers modulo 2^``modulus_bits``; sums in memory may be above the modulus until they are reduced."""

    modulus_bits: int

    def __post_init__(self) -> None:
        Ring(self.modulus_bits)

    @property
    def order(self) -> int:
        return 1 << self.modulus_bits

    @property
    def bits(self) -> int:
        return self.modulus_bits

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        return word_of(self.modulus_bits)

    def settle(self, words: Lanes, retry: Retry) -> None:
        """Leave the words as they are: modulo 2^p a uniform word is a uniform lane."""

    def stream(self, key: Secret) -> WordStream:
        return WordStream(self.word, key)

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        ring_kernels.add_into(total, lanes)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        ring_kernels.subtract_into(total, lanes)

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        lanes *= self.word.type(factor)

    def reduce_into(self, total: Lanes) -> None:
        ring_kernels.reduce_into(total, self.modulus_bits)

    def column_sums(self, lanes: Lanes) -> Lanes:
        sums: Lanes = np.add.reduce(lanes, axis=0, dtype=self.word)
        return sums

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        corrected: Lanes = ring_correction(target, lanes_0, lanes_1, negative, self.modulus_bits)
        return corrected

    def pack(self, lanes: Lanes) -> bytes:
        return Ring(self.modulus_bits).pack(lanes)

    def unpack(self, data: memoryview, count: int) -> Lanes:
        return Ring(self.modulus_bits).unpack(data, count)


LaneGroup = RingLanes | LaneField
"""Group of the values of point functions."""
