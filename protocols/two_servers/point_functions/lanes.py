"""Lanes: integers modulo a Mersenne prime or modulo 2^p, streams of them, extension fields, and exact matrix products.

The moduli 127, 8191 and 131071 are Mersenne primes q = 2^p - 1. A lane has p bits on the wire, and in memory the
smallest word that holds them, as in ``secagg.crypto.ring``; unlike there, the word of p ones, which would be a second
zero, is not a lane. Field lanes always stay below q. Ring lanes are added without reducing, and reduced once at the
end, because 2^p divides the range of their word.

Lane n of a key's stream is the first that is below q among word n of the streams of the attempts 0, 1, 2, ...: any
range of lanes can be generated separately, in chunks of any size, on any thread. The stream of attempt a is AES-CTR
from the counter block IV + a * 2^64 modulo 2^128 [SP 800-38A] §6.5, read as little-endian words whose lowest p bits
count; key and IV are the halves of the 32 bytes from which the stream is made.

Matrix products on the floating-point units are exact. A float32 holds every integer up to 2^24 in magnitude and a
float64 every integer up to 2^53. Let every product of two entries be at most g. Each partial sum of n products, in
whatever order, with or without fused operations, is then an integer of magnitude at most n g; within the limit nothing
is rounded, and the result does not depend on the library, the blocking or the number of threads. A longer sum is split
into pieces of at most limit // g terms, which are added as 64-bit integers. With lanes in [0, q) on one side and
centred ones on the other, g = (q - 1)^2 / 2.

The extensions F = F_q[x] / (x^s - c) are large enough that a random element cannot be guessed:

    q = 127, s = 18, c = 3 (2^125.8 elements)    q = 8191, s = 10, c = 17 (2^130)    q = 131071, s = 9, c = 3 (2^153)

c is primitive, so its order is q - 1; every prime factor of s divides q - 1, and s is not a multiple of 4. Then x^s - c
is irreducible [LN97] Theorem 3.75. An element is s lanes, the coefficient of x^0 first, along the last axis of an array
of int64 in canonical form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
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
    """Blocks of a stream, with random access."""

    def __init__(self, key: Secret) -> None:
        require_secret(key)
        if len(key) != STREAM_KEY_BYTES:
            raise InvalidParameters(f"the key of a stream must have {STREAM_KEY_BYTES} bytes; got {key!r}")
        exposed = key.expose()
        self._origin = int.from_bytes(exposed[_AES_KEY_BYTES:], "big")
        cipher = Cipher(algorithms.AES(exposed[:_AES_KEY_BYTES]), modes.CTR(bytes(AES_BLOCK_BYTES)))
        self._encryptor = cipher.encryptor()

    def fill(self, target: Bytes, first_block: int, size: int) -> None:
        """Write ``size`` bytes from a block on; the backend needs room for 15 more bytes, and does not write them."""
        counter = (self._origin + first_block) % (1 << (8 * AES_BLOCK_BYTES))
        self._encryptor.reset_nonce(counter.to_bytes(AES_BLOCK_BYTES, "big"))
        for start in range(0, size, len(_ZEROS)):
            count = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:count], target.data[start : start + count + AES_BLOCK_BYTES - 1])


class WordStream:
    """Words of a counter stream, generated into one reused buffer that is overwritten at the end."""

    def __init__(self, word: np.dtype[np.unsignedinteger[Any]], key: Secret) -> None:
        self._buffer = bytearray()
        self._word, self._stream = word, CounterStream(key)

    def __del__(self) -> None:
        overwrite(self._buffer)

    def lanes(self, start: int, count: int, attempt: int = 0) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return words [start, start + count) of an attempt; valid until the next call."""
        block, skip = divmod(start * self._word.itemsize, AES_BLOCK_BYTES)
        size = skip + count * self._word.itemsize
        if len(self._buffer) < size + AES_BLOCK_BYTES:
            overwrite(self._buffer)
            self._buffer = bytearray(size + AES_BLOCK_BYTES)
        self._stream.fill(np.frombuffer(self._buffer, dtype=np.uint8), (attempt << 64) + block, size)
        return np.frombuffer(self._buffer, dtype=self._word, count=count, offset=skip)


MODULI: Final = (127, 8191, 131071)
ATTEMPTS: Final = 32
"""A uniform stream needs more attempts for one of 2^64 lanes with probability below 2^-160."""
_LIMIT_LANES: Final = 1 << 60
"""The streams of two attempts begin 2^64 blocks apart, so none reaches the next."""
_CHUNK_LANES: Final = 1 << 15
_WIDE = np.dtype("<u8")
"""The word of products and row sums: (2^17)^2 and 4096 lanes of 17 bits are far below 2^64."""

Lanes = npt.NDArray[np.unsignedinteger[Any]]
Retry = Callable[[int, npt.NDArray[np.intp]], Lanes]
"""Given an attempt and the positions of missing lanes, return new words for them."""


@dataclass(frozen=True, slots=True)
class LaneField:
    """The integers modulo a Mersenne prime, and arrays of them in canonical form."""

    modulus: int

    def __post_init__(self) -> None:
        if type(self.modulus) is not int or self.modulus not in MODULI:
            raise InvalidParameters(f"the modulus of a lane must be one of {MODULI}; got {self.modulus!r}")

    @classmethod
    def for_count(cls, largest_count: int) -> LaneField:
        """Return the smallest field in which counts up to this one do not wrap."""
        require_integer("a largest count", largest_count, 1)
        for modulus in MODULI:
            if largest_count < modulus:
                return cls(modulus)
        raise CapacityExceeded(
            f"counts up to {largest_count} exceed {MODULI[-1] - 1}, the maximum of checked lanes; use fewer "
            "clients or less noise"
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
        """Return an array of any shape; refuses values that are not lanes."""
        if type(lanes) is not np.ndarray or lanes.dtype != self.word:
            raise Misuse(f"lanes modulo {self.modulus} must be {self.word}; got a different {type(lanes).__name__}")
        if lanes.size and int(lanes.max()) >= self.modulus:
            raise CapacityExceeded(f"a lane is not below {self.modulus}", reason=Reason.INPUT_OUT_OF_RANGE)
        checked: Lanes = lanes
        return checked

    def add_into(self, total: Lanes, lanes: Lanes) -> None:
        """Add in place; the total holds lanes, and the addend holds lanes or q, like complements of lanes."""
        total += lanes
        total += wraps(total, self.bits)
        total &= self.word.type(self.modulus)

    def subtract_into(self, total: Lanes, lanes: Lanes) -> None:
        # The complement of a lane is q minus it, and leaves the sum below 2q; one reduction settles both.
        self.add_into(total, lanes ^ self.word.type(self.modulus))

    def reduce_into(self, total: Lanes) -> None:
        """Do nothing: each addition already reduces."""

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
        """Keep the lowest p bits of each word, and replace words of all ones, which are not lanes.

        Raises:
            MalformedMessage: a lane is missing after ``ATTEMPTS`` attempts, which happens for a uniform word with
                probability at most 2^-224; the party that chose the key is refused.
        Security: Not constant time: timing reveals the number of attempts. That number depends only on pseudo-random
            words, whose distribution is the same for every input.
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

    Security: a key is derived for one owner and one purpose, and used once. Not constant time: the number of attempts
        depends only on the stream, never on the values that its lanes hide.
    """

    def __init__(self, field: LaneField, key: Secret) -> None:
        """Take a key and an IV from one source, so that guessing for many streams at once gains nothing."""
        WordStream(field.word, key)  # The constructor refuses an invalid key.
        self.field = field
        self._key = key

    def lanes(self, start: int, count: int) -> Lanes:
        if type(start) is not int or type(count) is not int or min(start, count) < 0 or start + count > _LIMIT_LANES:
            raise InvalidParameters(f"lanes must be within 0..2^60; got {start!r} and {count!r} lanes from there")
        made = self.field.zeros(count)
        words = WordStream(self.field.word, self._key)
        for first in range(0, count, _CHUNK_LANES):
            self._fill(made[first : first + _CHUNK_LANES], start + first, words)
        return made

    def _fill(self, part: Lanes, start: int, words: WordStream) -> None:
        def again(attempt: int, missing: npt.NDArray[np.intp]) -> Lanes:
            # Regenerate only the words between the first and the last missing lane.
            first, last = int(missing[0]), int(missing[-1])
            return words.lanes(start + first, last - first + 1, attempt)[missing - first]

        self.field.settle(words.lanes(start, part.size), again, part)


@cache
def word_of(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype of lanes; cached, because every step of an evaluation needs it."""
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
    """The integers modulo 2^``modulus_bits``; sums in memory may exceed the modulus until they are reduced."""

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


# --- Exact products, and extension fields -----------------------------------------------------------------------------

FLOAT32_LIMIT: Final = 1 << 24
FLOAT64_LIMIT: Final = 1 << 53
MAXIMUM_TERMS: Final = 1 << 28
"""With at most this many terms of at most 2^34 each, the 64-bit sums cannot wrap either."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


def exact_product(left: Floats, right: Floats, greatest: int) -> Integers:
    """Return ``left @ right`` exactly, for integers whose products are at most ``greatest`` in magnitude."""
    limit = FLOAT32_LIMIT if left.dtype == np.float32 else FLOAT64_LIMIT
    terms, reach = left.shape[-1], limit // greatest
    if left.dtype != right.dtype or not reach or terms > MAXIMUM_TERMS:
        raise InvalidParameters(f"{terms} products of up to {greatest} are not exact in {left.dtype} by {right.dtype}")
    total: Integers = np.matmul(left[..., :reach], right[..., :reach, :]).astype(np.int64)
    for first in range(reach, terms, reach):
        piece: npt.NDArray[Any] = np.matmul(left[..., first : first + reach], right[..., first : first + reach, :])
        total += piece.astype(np.int64)
    return total


def settle(values: npt.NDArray[np.float64], modulus: int) -> npt.NDArray[np.float64]:
    """Return integers congruent to these modulo q and below q in magnitude; |values| <= 2^52.

    Two roundings change the quotient by less than 2^-51 |v| / q <= 2 / q, so the nearest integer k is within
    1/2 + 2/q of v / q, and |v - k q| <= q / 2 + 2 < q. |k q| < 2^52 + q is represented, and so is the difference.
    """
    settled: npt.NDArray[np.float64] = values - modulus * np.rint(values * (1.0 / modulus))
    return settled


DEGREES_AND_CONSTANTS: Final = {127: (18, 3), 8191: (10, 17), 131071: (9, 3)}
"""s and c by q. Fields have 2^120 elements or more: a client of 2^64 hashes passes with probability 2^-54 at most."""

Elements = Integers
"""Array of int64 in [0, q) whose last axis holds the coefficients of one element."""


@dataclass(frozen=True)
class ExtensionField:
    """A field F_q[x] / (x^degree - constant)."""

    base: LaneField
    degree: int
    constant: int

    @classmethod
    def over(cls, base: LaneField) -> ExtensionField:
        """Return the extension of a lane field."""
        return cls(base, *DEGREES_AND_CONSTANTS[base.modulus])

    def packed_bytes(self, count: int) -> int:
        return self.base.packed_bytes(count * self.degree)

    def zeros(self, *shape: int) -> Elements:
        return np.zeros((*shape, self.degree), dtype=np.int64)

    def scalar(self, value: int) -> Elements:
        element = self.zeros()
        element[0] = value % self.base.modulus
        return element

    def is_in_base_field(self, element: Elements) -> bool:
        """Whether an element is in F_q, like every point at which a polynomial is given by its values."""
        return not element[..., 1:].any()

    # --- Arithmetic ---------------------------------------------------------------------------------------------------

    def add(self, left: Elements, right: Elements) -> Elements:
        return self._reduced(left + right, 2 * self.base.modulus - 1)

    def subtract(self, left: Elements, right: Elements) -> Elements:
        return self._reduced(left + (self.base.modulus - right), 2 * self.base.modulus - 1)

    def multiply(self, left: Elements, right: Elements) -> Elements:
        """Return the product, element by element; leading axes are broadcast."""
        degree = self.degree
        wide = np.zeros((*np.broadcast_shapes(left.shape[:-1], right.shape[:-1]), 2 * degree), dtype=np.int64)
        for power in range(degree):
            wide[..., power : power + degree] += left[..., power : power + 1] * right
        return self._fold(wide, degree * (self.base.modulus - 1) ** 2)

    def powers(self, element: Elements, count: int) -> Elements:
        """Return the powers 0 to count - 1 of one element."""
        result, step = self.scalar(1)[np.newaxis], element
        while len(result) < count:
            result = np.concatenate([result, self.multiply(result, step)])
            step = self.multiply(step, step)
        return result[:count]

    def matrices(self, elements: Elements) -> Elements:
        """Return the matrix of each element a: the row vector v times the matrix is v * a.

        Row i holds the coefficients of x^i a: those of a shifted by i, with the part beyond x^s multiplied by c.
        """
        wrapped = self._reduced(elements * self.constant, self.constant * self.base.modulus)
        both = np.concatenate([wrapped, elements], axis=-1)
        windows = np.lib.stride_tricks.sliding_window_view(both, self.degree, axis=-1)
        return np.ascontiguousarray(windows[..., self.degree : 0 : -1, :])

    def scale(self, elements: Elements, factor: Elements) -> Elements:
        """Multiply many elements by one, with a single matrix product."""
        right = centre(self.matrices(factor), self.base.bits)
        return self.product(elements.astype(np.float64), right.astype(np.float64))

    def inner_product(self, left: Elements, right: Elements) -> Elements:
        """Return the sum of the products over the axis before the last."""
        columns = left.swapaxes(-1, -2).astype(np.float64)
        return self.contract(exact_product(columns, right.astype(np.float64), (self.base.modulus - 1) ** 2))

    def contract(self, outer: Integers) -> Elements:
        """Return the elements from sums of outer products, where entry (i, j) belongs to x^(i + j)."""
        q, degree = self.base.modulus, self.degree
        entries = self._reduced_signed(outer, 1 << 61)
        wide = np.zeros((*outer.shape[:-2], 2 * degree), dtype=np.int64)
        for power in range(degree):
            wide[..., power : power + degree] += entries[..., power, :]
        return self._fold(wide, degree * q)

    def product(self, left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> Elements:
        """Return a matrix product modulo q; one side holds lanes, the other centred lanes."""
        q = self.base.modulus
        greatest = (q - 1) ** 2 // 2
        return self._reduced_signed(exact_product(left, right, greatest), left.shape[-1] * greatest)

    # --- Coins and bytes ----------------------------------------------------------------------------------------------

    def sample(self, stream: LaneStream, start: int, count: int) -> Elements:
        if stream.field != self.base:
            raise Misuse(f"elements over {self.base.modulus} are sampled from lanes modulo {self.base.modulus}")
        lanes = stream.lanes(start * self.degree, count * self.degree)
        return lanes.astype(np.int64).reshape(count, self.degree)

    def pack(self, elements: Elements) -> bytes:
        return self.base.pack(elements.astype(self.base.word))

    def unpack(self, data: bytes | memoryview, count: int) -> Elements:
        return self.base.unpack(data, count * self.degree).astype(np.int64).reshape(count, self.degree)

    # --- Reduction ----------------------------------------------------------------------------------------------------

    def _fold(self, wide: Integers, greatest: int) -> Elements:
        """Reduce polynomials of 2s coefficients of at most ``greatest`` modulo x^s - c and modulo q."""
        high = self._reduced(wide[..., self.degree :], greatest)
        return self._reduced(
            wide[..., : self.degree] + self.constant * high, greatest + self.constant * self.base.modulus
        )

    def _reduced(self, words: Integers, greatest: int) -> Elements:
        reduced: Elements = reduce(words, self.base.bits, greatest)
        return reduced

    def _reduced_signed(self, words: Integers, greatest: int) -> Elements:
        reduced: Elements = reduce_signed(words, self.base.bits, greatest)
        return reduced


@dataclass(frozen=True)
class EvaluationPoints:
    """Polynomials over F that are given by their values at 0, 1, ..., count - 1."""

    field: ExtensionField
    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count < self.field.base.modulus:
            raise InvalidParameters(
                f"{self.count!r} evaluation points; use 1 to {self.field.base.modulus - 1} in the base field"
            )

    def weights_at(self, point: Elements) -> Elements:
        """Return the weights of the values in the value at a point; a base-field point would reveal a value."""
        if self.field.is_in_base_field(point):
            raise InvalidParameters("a polynomial must be queried outside the base field; draw another query point")
        powers = centre(self.field.powers(point, self.count), self.field.base.bits)
        return self.field.product(self._coefficients.astype(np.float64), powers.astype(np.float64))

    def extrapolation(self, more: int) -> Integers:
        """Return the matrix over F_q that turns the values into those at the next ``more`` points."""
        q = self.field.base.modulus
        if self.count + more > q:
            raise InvalidParameters(f"{self.count} points and {more} more exceed {q}; use fewer columns")
        rows = [[pow(point, power, q) for power in range(self.count)] for point in range(self.count, self.count + more)]
        product: npt.NDArray[Any] = np.array(rows, dtype=np.int64) @ self._coefficients.T
        return product % q

    @cached_property
    def _coefficients(self) -> Integers:
        """Coefficients of the Lagrange polynomials: row j is 1 at j and 0 at the other points."""
        q, count = self.field.base.modulus, self.count
        vanishing = [1]
        for point in range(count):
            shifted = [0, *vanishing]
            for power, coefficient in enumerate(vanishing):
                shifted[power] = (shifted[power] - point * coefficient) % q
            vanishing = shifted
        rows = list[list[int]]()
        for point in range(count):
            # Synthetic division by X - point removes the factor that vanishes at the point itself.
            quotient, carry = [0] * count, 0
            for power in range(count - 1, -1, -1):
                carry = (vanishing[power + 1] + point * carry) % q
                quotient[power] = carry
            value = sum(coefficient * pow(point, power, q) for power, coefficient in enumerate(quotient)) % q
            inverse = pow(value, -1, q)
            rows.append([coefficient * inverse % q for coefficient in quotient])
        return np.array(rows, dtype=np.int64)
