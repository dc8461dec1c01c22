"""The groups that the lanes of a histogram are counted in: integers modulo 2^p, or modulo a Mersenne prime.

Both offer the same few operations on arrays of words, so that nothing else asks which of them it has. Lanes of a ring
are added without reducing, and reduced once at the end, because 2^p divides the range of their word; lanes of a field
are kept below q at all times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import ring as ring_kernels
from secagg.crypto.ring import Ring, low_bits
from secagg.crypto.secret import Secret, overwrite, require_secret
from secagg.errors import InvalidParameters, MalformedMessage, Reason

from .fields import ATTEMPTS, STREAM_KEY_BYTES, LaneField, LaneStream, reduce, reduce_once
from .fields import add as add_lanes
from .fields import subtract as subtract_lanes

AES_BLOCK_BYTES: Final = 16
_AES_KEY_BYTES = 16
_ZEROS = memoryview(bytes(1 << 20))
_WIDE = np.dtype("<u8")
"""The word of products and row sums: (2^17)^2 and 4096 lanes of 17 bits are far below 2^64."""

Lanes = npt.NDArray[np.unsignedinteger[Any]]
Bytes = npt.NDArray[np.uint8]
Retry = Callable[[int, npt.NDArray[np.intp]], Lanes]
"""Given an attempt and the positions of lanes that are still missing, return new words for them."""


class LaneGroup(Protocol):
    """What a point function needs of the group that its values lie in."""

    @property
    def order(self) -> int:
        """How many elements there are."""
        ...

    @property
    def bits(self) -> int:
        """How many bits a lane has on the wire."""
        ...

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of lanes in memory."""
        ...

    def settle(self, words: Lanes, retry: Retry) -> None:
        """Turn uniform words into uniform lanes in place; ``retry`` makes words where one gives no lane."""
        ...

    def stream(self, key: Secret) -> LaneSource:
        """Return the uniform lanes that 32 bytes expand into."""
        ...

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place."""
        ...

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        """Subtract in place."""
        ...

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        """Multiply by a public integer in [0, order) in place."""
        ...

    def reduce_into(self, total: Lanes) -> None:
        """Bring sums into [0, order) in place."""
        ...

    def column_sums(self, lanes: Lanes) -> Lanes:
        """Return the sums over the first axis."""
        ...

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        """Return target - lanes_0 + lanes_1, negated where ``negative`` is all ones, below the order."""
        ...

    def pack(self, lanes: Lanes) -> bytes:
        """Write each lane in exactly ``bits`` bits; the bits that fill the last byte are zero."""
        ...

    def unpack(self, data: memoryview, count: int) -> Lanes:
        """Read lanes back; whatever ``pack`` would not have written is refused."""
        ...


class LaneSource(Protocol):
    """Uniform lanes of which any range can be made."""

    def lanes(self, start: int, count: int) -> Lanes:
        """Return lanes [start, start + count)."""
        ...


@dataclass(frozen=True, slots=True)
class RingLanes:
    """The integers modulo 2^``modulus_bits``; sums in memory may be above the modulus until they are reduced."""

    modulus_bits: int

    def __post_init__(self) -> None:
        Ring(self.modulus_bits)

    @property
    def order(self) -> int:
        """How many elements there are."""
        return 1 << self.modulus_bits

    @property
    def bits(self) -> int:
        """How many bits a lane has on the wire."""
        return self.modulus_bits

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of lanes in memory."""
        return _word(self.modulus_bits)

    def settle(self, words: Lanes, retry: Retry) -> None:
        """Leave the words as they are: modulo 2^p a uniform word is a uniform lane."""

    def stream(self, key: Secret) -> LaneSource:
        """Return the uniform lanes that 32 bytes expand into."""
        return _RingStream(self.word, key)

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place."""
        ring_kernels.add_into(total, lanes)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        """Subtract in place."""
        ring_kernels.subtract_into(total, lanes)

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        """Multiply by a public integer in place."""
        lanes *= self.word.type(factor)

    def reduce_into(self, total: Lanes) -> None:
        """Bring sums below the modulus in place."""
        ring_kernels.reduce_into(total, self.modulus_bits)

    def column_sums(self, lanes: Lanes) -> Lanes:
        """Return the sums over the first axis."""
        sums: Lanes = np.add.reduce(lanes, axis=0, dtype=self.word)
        return sums

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        """Return target - lanes_0 + lanes_1, negated where ``negative`` is all ones."""
        corrected: Lanes = ring_correction(target, lanes_0, lanes_1, negative, self.modulus_bits)
        return corrected

    def pack(self, lanes: Lanes) -> bytes:
        """Write each lane in exactly ``bits`` bits."""
        return Ring(self.modulus_bits).pack(lanes)

    def unpack(self, data: memoryview, count: int) -> Lanes:
        """Read lanes back."""
        return Ring(self.modulus_bits).unpack(data, count)


@dataclass(frozen=True, slots=True)
class FieldLanes:
    """The integers modulo one of the Mersenne primes 127, 8191 and 131071, for histograms whose clients are checked."""

    modulus: int

    def __post_init__(self) -> None:
        LaneField(self.modulus)

    @property
    def field(self) -> LaneField:
        """The field, as the check of the clients knows it."""
        return LaneField(self.modulus)

    @property
    def order(self) -> int:
        """How many elements there are."""
        return self.modulus

    @property
    def bits(self) -> int:
        """How many bits a lane has on the wire."""
        return self.modulus.bit_length()

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of lanes in memory."""
        return _word(self.bits)

    def settle(self, words: Lanes, retry: Retry) -> None:
        """Keep the lowest p bits of each word, and make anew those that are all ones, which are no lane.

        Raises:
            MalformedMessage: a lane is missing after ``ATTEMPTS`` attempts; whoever chose the key is refused. That
                happens to a uniform word with probability 2^-224 at most.
        Security: Not constant time: how many attempts were made shows in time. They depend on pseudo-random words
            alone, whose distribution is the same for every input.
        """
        modulus = self.word.type(self.modulus)
        words &= modulus
        flat = words.reshape(-1)
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

    def stream(self, key: Secret) -> LaneSource:
        """Return the uniform lanes that 32 bytes expand into."""
        return LaneStream(self.field, key)

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place."""
        self.field.add_into(total, lanes)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        """Subtract in place."""
        # The complement of a lane is q minus it, and leaves the sum below 2q; one reduction settles both.
        self.field.add_into(total, lanes ^ self.word.type(self.modulus))

    def scale_into(self, lanes: Lanes, factor: int) -> None:
        """Multiply by a public integer in place."""
        lanes[...] = reduce(lanes.astype(_WIDE) * factor, self.bits, self.modulus**2)

    def reduce_into(self, total: Lanes) -> None:
        """Do nothing: sums are reduced as they are made."""

    def column_sums(self, lanes: Lanes) -> Lanes:
        """Return the sums over the first axis."""
        sums: Lanes = np.add.reduce(lanes, axis=0, dtype=_WIDE)
        reduced: Lanes = reduce(sums, self.bits, max(1, len(lanes)) * self.modulus)
        return reduced.astype(self.word)

    def correction(self, target: Lanes, lanes_0: Lanes, lanes_1: Lanes, negative: Lanes) -> Lanes:
        """Return target - lanes_0 + lanes_1, negated where ``negative`` is all ones."""
        corrected: Lanes = field_correction(target, lanes_0, lanes_1, negative, self.bits)
        return corrected

    def pack(self, lanes: Lanes) -> bytes:
        """Write each lane in exactly ``bits`` bits."""
        return self.field.pack(lanes)

    def unpack(self, data: memoryview, count: int) -> Lanes:
        """Read lanes back."""
        return self.field.unpack(data, count)


@cache
def _word(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype of lanes; asked for in every step of an evaluation."""
    return Ring(bits).word


class CounterStream:
    """The AES-CTR stream of 32 bytes, a key and an IV, of which any range of blocks can be made [SP 800-38A] §6.5."""

    def __init__(self, key: Secret) -> None:
        """Take the bytes; both halves are derived together, so guessing for many streams at once gains nothing."""
        require_secret(key)
        if len(key) != STREAM_KEY_BYTES:
            raise InvalidParameters(f"a stream is made from {STREAM_KEY_BYTES} bytes; got {key!r}")
        exposed = key.expose()
        self._origin = int.from_bytes(exposed[_AES_KEY_BYTES:], "big")
        cipher = Cipher(algorithms.AES(exposed[:_AES_KEY_BYTES]), modes.CTR(bytes(AES_BLOCK_BYTES)))
        self._encryptor = cipher.encryptor()

    def fill(self, target: Bytes, first_block: int, size: int) -> None:
        """Write ``size`` bytes, from a block of the stream on, to the beginning of ``target``.

        The backend insists on room for 15 bytes more and does not touch them.
        """
        counter = (self._origin + first_block) % (1 << (8 * AES_BLOCK_BYTES))
        self._encryptor.reset_nonce(counter.to_bytes(AES_BLOCK_BYTES, "big"))
        for start in range(0, size, len(_ZEROS)):
            count = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:count], target.data[start : start + count + AES_BLOCK_BYTES - 1])


class _RingStream:
    """The words of a counter stream, as lanes of a ring that are yet to be reduced."""

    def __init__(self, word: np.dtype[np.unsignedinteger[Any]], key: Secret) -> None:
        self._buffer = bytearray()
        self._word = word
        self._stream = CounterStream(key)

    def __del__(self) -> None:
        overwrite(self._buffer)

    def lanes(self, start: int, count: int) -> Lanes:
        """Return lanes [start, start + count); they hold until the next call."""
        block, skip = divmod(start * self._word.itemsize, AES_BLOCK_BYTES)
        size = skip + count * self._word.itemsize
        if len(self._buffer) < size + AES_BLOCK_BYTES:
            overwrite(self._buffer)
            self._buffer = bytearray(size + AES_BLOCK_BYTES)
        self._stream.fill(np.frombuffer(self._buffer, dtype=np.uint8), block, size)
        return np.frombuffer(self._buffer, dtype=self._word, count=count, offset=skip)


# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------

Words = Any
"""Arrays of words, or solver terms."""


def ring_correction(target: Words, lanes_0: Words, lanes_1: Words, negative: Words, bits: int) -> Words:
    """Return (target - lanes_0 + lanes_1) modulo 2^p, negated where ``negative`` is all ones and not where it is 0."""
    difference = target - lanes_0 + lanes_1
    return ((difference ^ negative) - negative) & low_bits(bits)


def field_correction(target: Words, lanes_0: Words, lanes_1: Words, negative: Words, bits: int) -> Words:
    """Return the same modulo q = 2^p - 1, for lanes below q: the complement of a lane's p bits is its negative."""
    difference = add_lanes(subtract_lanes(target, lanes_0, bits), lanes_1, bits)
    return reduce_once(difference ^ (negative & low_bits(bits)), bits)
