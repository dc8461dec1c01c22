"""Vectors over the fields of 127, 8191 and 131071 elements: the lanes of a histogram whose clients are checked.

The three moduli are Mersenne primes q = 2^p - 1. A lane has p bits on the wire and the smallest word that holds them in
memory, as in ``secagg.crypto.ring``; unlike there the word of p ones, which would be a second zero, is no lane.

Lane n of a key's stream is the first that is below q among word n of the streams of the attempts 0, 1, 2, ...: any
range of lanes can be made alone, in chunks of any size, on any thread. The stream of attempt a is AES-CTR from the
counter block IV + a * 2^64 modulo 2^128 [SP 800-38A] §6.5, read as little-endian words whose lowest p bits count; key
and IV are the halves of the 32 bytes from which the stream is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.ring import Ring, low_bits
from secagg.crypto.secret import Confined, Secret, overwrite, require_secret
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason

MODULI: Final = (127, 8191, 131071)
STREAM_KEY_BYTES: Final = 32
ATTEMPTS: Final = 32
"""A uniform stream needs more for one of 2^64 lanes with probability below 2^-160."""
_LIMIT_LANES: Final = 1 << 60
"""The streams of two attempts begin 2^64 blocks apart, so none reaches the next."""
_CHUNK_LANES: Final = 1 << 15
_KEY_BYTES = 16
_BLOCK_BYTES = 16

LaneVector = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class LaneField:
    """The integers modulo a Mersenne prime, and arrays of them in canonical form."""

    modulus: int

    def __post_init__(self) -> None:
        if type(self.modulus) is not int or self.modulus not in MODULI:
            raise InvalidParameters(f"the modulus of a lane is one of {MODULI}; got {self.modulus!r}")

    @classmethod
    def for_total_weight(cls, total_weight: int) -> LaneField:
        """Return the smallest field in which no histogram over this total weight can wrap.

        Raises:
            CapacityExceeded: there is none.
        """
        if type(total_weight) is not int or total_weight < 1:
            raise InvalidParameters(f"a total weight is an integer of at least 1; got {total_weight!r}")
        for modulus in MODULI:
            if total_weight < modulus:
                return cls(modulus)
        raise CapacityExceeded(
            f"a total weight of {total_weight} exceeds {MODULI[-1] - 1}, the most that checked lanes can count; use "
            "fewer clients or smaller weights"
        )

    @property
    def bits(self) -> int:
        """How many bits a lane has on the wire."""
        return self.modulus.bit_length()

    @property
    def ring(self) -> Ring:
        """The ring whose words hold a lane; only packing uses it."""
        return Ring(self.bits)

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of lanes in memory."""
        return self.ring.word

    def zeros(self, count: int) -> LaneVector:
        """Return lanes that are zero."""
        return self.ring.zeros(count)

    def require_lanes(self, lanes: Any) -> LaneVector:  # noqa: ANN401 -- checked here
        """Return an array of any shape if it holds lanes.

        Raises:
            Misuse: it is no array of this field's words.
            CapacityExceeded: a word is no lane.
        """
        if type(lanes) is not np.ndarray or lanes.dtype != self.word:
            raise Misuse(f"lanes modulo {self.modulus} are an array of {self.word}; got another {type(lanes).__name__}")
        if lanes.size and int(lanes.max()) >= self.modulus:
            raise CapacityExceeded(f"a lane is not below {self.modulus}", reason=Reason.INPUT_OUT_OF_RANGE)
        checked: LaneVector = lanes
        return checked

    def add_into(self, total: LaneVector, lanes: LaneVector) -> None:
        """Add in place; the total holds lanes, and what is added holds lanes or q, as complements of lanes do."""
        total += lanes
        total += wraps(total, self.bits)
        total &= self.word.type(self.modulus)

    def subtract(self, left: LaneVector, right: LaneVector) -> LaneVector:
        """Return the difference of two arrays of lanes."""
        difference: LaneVector = subtract(left, right, self.bits)
        return difference

    def packed_bytes(self, count: int) -> int:
        """Return how many bytes packed lanes have."""
        return self.ring.packed_bytes(count)

    def pack(self, lanes: LaneVector) -> bytes:
        """Write each lane in exactly ``bits`` bits; the bits that fill the last byte are zero."""
        return self.ring.pack(self.require_lanes(lanes).reshape(-1))

    def unpack(self, data: bytes | memoryview, count: int) -> LaneVector:
        """Read lanes back.

        Raises:
            MalformedMessage: the number of bytes is wrong, checked before anything is allocated; a filling bit is set;
                or ``bits`` ones, which would be a second zero.
        """
        lanes = self.ring.unpack(data, count)
        if lanes.size and int(lanes.max()) >= self.modulus:
            raise MalformedMessage(f"a lane is not below {self.modulus}", reason=Reason.NOT_CANONICAL)
        return lanes


class LaneStream(Confined):
    """The uniform lanes that a key expands into, of which any range can be made.

    Security: a key is used for one purpose, once; derive it from whatever the lanes belong to. How many attempts a lane
    took shows in time. Not constant time: that depends on the stream alone, and never on what its lanes hide.
    """

    def __init__(self, field: LaneField, key: Secret) -> None:
        """Take 32 bytes, of which half are an AES key and half an IV; the caller keeps them and wipes them.

        With the IV drawn from the same source as the key, guessing keys for many streams at once gains nothing.
        """
        require_secret(key)
        if len(key) != STREAM_KEY_BYTES:
            raise InvalidParameters(f"lanes are expanded from {STREAM_KEY_BYTES} bytes; got {key!r}")
        self.field = field
        self._key = key

    def lanes(self, start: int, count: int) -> LaneVector:
        """Return lanes [start, start + count).

        Raises:
            MalformedMessage: a lane has no word below q in any attempt; whoever chose the key is refused.
        """
        if type(start) is not int or type(count) is not int or min(start, count) < 0 or start + count > _LIMIT_LANES:
            raise InvalidParameters(f"a range of lanes lies in 0..2^60; got {start!r} and {count!r} lanes from there")
        made = self.field.zeros(count)
        words = _Words(self.field.word, self._key, min(count, _CHUNK_LANES))
        try:
            for first in range(0, count, _CHUNK_LANES):
                self._fill(made[first : first + _CHUNK_LANES], start + first, words)
        finally:
            words.wipe()
        return made

    def _fill(self, part: LaneVector, start: int, words: _Words) -> None:
        modulus = self.field.word.type(self.field.modulus)
        np.bitwise_and(words.of_attempt(0, start, part.size), modulus, out=part)
        missing = np.flatnonzero(part == modulus)
        for attempt in range(1, ATTEMPTS):
            if not missing.size:
                return
            # Only what lies between the first and the last missing lane is made again.
            first, last = int(missing[0]), int(missing[-1])
            again = words.of_attempt(attempt, start + first, last - first + 1)[missing - first] & modulus
            part[missing] = again
            missing = missing[again == modulus]
        if missing.size:
            raise MalformedMessage(
                f"a key has no lane below {self.field.modulus} in {ATTEMPTS} attempts", reason=Reason.NOT_CANONICAL
            )


class _Words:
    """The words of a key's attempts, made into one reused buffer."""

    def __init__(self, word: np.dtype[np.unsignedinteger[Any]], key: Secret, most: int) -> None:
        self._word = word
        exposed = key.expose()
        self._origin = int.from_bytes(exposed[_KEY_BYTES:], "big")
        self._cipher = Cipher(algorithms.AES(exposed[:_KEY_BYTES]), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
        size = most * word.itemsize + 2 * _BLOCK_BYTES
        self._zeros = memoryview(bytes(size))
        # The backend insists on room for one block more than it writes.
        self._buffer = bytearray(size + _BLOCK_BYTES)

    def of_attempt(self, attempt: int, start: int, count: int) -> LaneVector:
        """Return words [start, start + count) of an attempt; they hold until the next call."""
        block, skip = divmod(start * self._word.itemsize, _BLOCK_BYTES)
        size = skip + count * self._word.itemsize
        counter = (self._origin + (attempt << 64) + block) % (1 << (8 * _BLOCK_BYTES))
        self._cipher.reset_nonce(counter.to_bytes(_BLOCK_BYTES, "big"))
        self._cipher.update_into(self._zeros[:size], memoryview(self._buffer)[: size + _BLOCK_BYTES])
        return np.frombuffer(self._buffer, dtype=self._word, count=count, offset=skip)

    def wipe(self) -> None:
        overwrite(self._buffer)


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

    2^(jp) = 1 modulo q, so the upper part of a word is added to its lower jp bits until the bound is below 2q; about
    half of the bits go in each step.

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
