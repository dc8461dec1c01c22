"""Vectors over the ring of integers modulo 2^p, for p from 1 to 64.

``Ring`` is the interface: it chooses the word type of elements and checks its arguments. The kernels below it use plain
operators: they name no dtype and never branch or index on data, so the same source runs on machine words and on solver
terms.

In memory an element occupies the smallest unsigned word that holds p bits, little-endian on every platform; on the
wire it occupies exactly p bits, the first element in the lowest bits of the first byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import gcd
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason, require_length

MAXIMUM_MODULUS_BITS = 64
CACHE_LINE_BYTES = 64
_PACK_BLOCK = 1 << 18
"""Elements packed at a time: a block and its packed form fit the second-level cache."""

LANES = 8
"""Elements unpacked together: they start and end at a byte, for every width."""

_LONG_VECTOR = 1 << 12
"""Number of elements from which aligning a vector pays off."""

_PLAIN_ARRAYS = (np.ndarray, np.memmap)
"""Other array types, such as masked arrays, do not apply operations to all elements."""

RingVector = npt.NDArray[np.unsignedinteger[Any]]
SignedVector = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Ring:
    """The integers modulo 2^``modulus_bits``, and vectors of them."""

    modulus_bits: int
    word_bits: int = field(init=False, repr=False, compare=False)
    """Bits of the word that holds one element in memory: 8, 16, 32 or 64."""
    word_bytes: int = field(init=False, repr=False, compare=False)
    word: np.dtype[np.unsignedinteger[Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.modulus_bits) is not int or not 1 <= self.modulus_bits <= MAXIMUM_MODULUS_BITS:
            raise InvalidParameters(f"modulus_bits must be in 1..{MAXIMUM_MODULUS_BITS}; got {self.modulus_bits!r}")
        word_bits = max(8, 1 << (self.modulus_bits - 1).bit_length())
        object.__setattr__(self, "word_bits", word_bits)
        object.__setattr__(self, "word_bytes", word_bits // 8)
        object.__setattr__(self, "word", np.dtype(f"<u{word_bits // 8}"))

    @property
    def least(self) -> int:
        """The smallest integer that the centred lift returns."""
        return -(1 << (self.modulus_bits - 1))

    @property
    def greatest(self) -> int:
        """The largest integer that the centred lift returns."""
        return (1 << (self.modulus_bits - 1)) - 1

    def zeros(self, length: int) -> RingVector:
        """Return the zero vector; a long one starts at a cache line, which speeds up adding by a few percent."""
        if type(length) is not int or length < 0:
            raise InvalidParameters(f"a length must be an integer of at least 0; got {length!r}")
        if length < _LONG_VECTOR:
            return np.zeros(length, dtype=self.word)
        spacious = np.zeros(length * self.word_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
        start = bytes_to_cache_line(spacious)
        return spacious[start : start + length * self.word_bytes].view(self.word)

    def from_integers(self, values: npt.ArrayLike) -> RingVector:
        """Map integers in [least, greatest] to ring elements.

        Raises:
            Misuse: the values are not a one-dimensional array of integers; a scheme must quantize floats first.
            CapacityExceeded: a value is out of range, so lifting it would give another integer.
        """
        try:
            array = np.asarray(values)
        except ValueError:
            raise Misuse("a ring vector needs one dimension of integers; got rows of different lengths") from None
        if array.size == 0 and array.ndim == 1:
            return self.zeros(0)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise Misuse(f"a ring vector needs one dimension of integers; got {array.ndim} of {array.dtype}")
        if int(array.min()) < self.least or int(array.max()) > self.greatest:
            raise CapacityExceeded(
                f"an input is outside [{self.least}, {self.greatest}], the range of {self.modulus_bits} bits; "
                "clamp the inputs or choose a wider ring",
                reason=Reason.INPUT_OUT_OF_RANGE,
            )
        elements: RingVector = reduce(array.astype(self.word), self.modulus_bits)
        return elements

    def require_form(self, vector: Any, length: int | None = None) -> None:  # noqa: ANN401 -- checked here
        """Refuse anything but a one-dimensional array of this ring's words, with the given length if any."""
        if type(vector) not in _PLAIN_ARRAYS or vector.dtype != self.word or vector.ndim != 1:
            raise Misuse(f"a vector over {self.modulus_bits} bits must be a vector of {self.word}; got {_form(vector)}")
        if length is not None and vector.size != length:
            raise Misuse(f"expected a vector of {length} elements; got {vector.size}")

    def require_vector(self, vector: RingVector, length: int | None = None) -> RingVector:
        """Return the vector if ``require_form`` passes it and every element is below 2^modulus_bits."""
        self.require_form(vector, length)
        if self.modulus_bits < self.word_bits and vector.size and int(vector.max()) >> self.modulus_bits:
            raise CapacityExceeded(
                f"an element is not below 2^{self.modulus_bits}; create vectors with Ring.from_integers",
                reason=Reason.INPUT_OUT_OF_RANGE,
            )
        return vector

    def add(self, left: RingVector, right: RingVector) -> RingVector:
        """Return the sum of two vectors."""
        self.require_form(left)
        self.require_form(right, left.size)
        total: RingVector = add(left, right, self.modulus_bits)
        return total

    def subtract(self, left: RingVector, right: RingVector) -> RingVector:
        """Return the difference of two vectors."""
        self.require_form(left)
        self.require_form(right, left.size)
        difference: RingVector = subtract(left, right, self.modulus_bits)
        return difference

    def sum(self, vectors: Iterable[RingVector], length: int) -> RingVector:
        """Return the sum of any number of vectors of one length; memory stays at one vector."""
        total = self.zeros(length)
        for vector in vectors:
            self.require_form(vector, length)
            add_into(total, vector)
        reduce_into(total, self.modulus_bits)
        return total

    def inner_product(self, left: RingVector, right: RingVector) -> int:
        """Return the sum of the products of two vectors' elements, as an element of the ring."""
        self.require_form(left)
        self.require_form(right, left.size)
        # The sum has its operands' word type and may wrap, because 2^p divides 2^word_bits.
        product: Any = np.einsum("i,i->", left, right)
        return int(product) & low_bits(self.modulus_bits)

    def lift(self, vector: RingVector) -> SignedVector:
        """Return the integers in [least, greatest] that the elements represent."""
        self.require_form(vector)
        signed = np.dtype(f"<i{self.word_bytes}")
        lifted: SignedVector = lift(reduce(vector, self.modulus_bits), self.modulus_bits).view(signed)
        return lifted

    def packed_bytes(self, length: int) -> int:
        """Return the number of bytes of a packed vector of this length."""
        return (length * self.modulus_bits + 7) // 8

    def pack(self, vector: RingVector) -> bytes:
        """Write each element in exactly ``modulus_bits`` bits; padding bits of the last byte are zero."""
        return bytes(self.pack_view(vector))

    def pack_view(self, vector: RingVector) -> memoryview:
        """Return the result of ``pack`` without a copy; if elements fill their words, do not change the vector then."""
        self.require_vector(vector)
        if self.modulus_bits == self.word_bits:
            return np.ascontiguousarray(vector).view(np.uint8).data.toreadonly()
        lanes, words = _group(self.modulus_bits, self.word_bits)
        packed = np.empty((-(-vector.size // lanes), words), dtype=self.word)
        for block in _blocks(len(packed), lanes):
            grouped = _padded(vector[block.start * lanes : block.stop * lanes], lanes)
            columns = pack_group(list(grouped.T), self.modulus_bits, self.word_bits)
            for index, column in enumerate(columns):
                packed[block, index] = column
        return packed.view(np.uint8).reshape(-1)[: self.packed_bytes(vector.size)].data.toreadonly()

    def unpack(self, data: bytes | bytearray | memoryview, length: int) -> RingVector:
        """Unpack ``length`` elements; the number of bytes is checked before any allocation."""
        data = memoryview(data)
        if not data.c_contiguous:
            raise Misuse("packed bytes must be contiguous; pass a copy of the view")
        self._require_packed(data, length)
        if self.modulus_bits == self.word_bits:
            return np.frombuffer(data, dtype=self.word).copy()
        groups, size, array = -(-length // LANES), self.modulus_bits, cast("Any", np.ndarray)
        packed, unpacked = np.frombuffer(data, dtype=np.uint8), np.empty((groups, LANES), dtype=self.word)
        for block in _blocks(groups, LANES):
            rows, first = unpacked[block], block.start * size
            due = len(rows) * size + self.word_bytes  # A word may start in the last byte.
            part = packed[first : first + due]
            if part.size < due:
                part = np.concatenate([part, np.zeros(due - part.size, dtype=np.uint8)])
            word_at = partial(array, len(rows), self.word, part, strides=size)
            for index, lane in enumerate(unpack_lanes(word_at, size, self.word_bits)):
                rows[:, index] = lane
        return unpacked.reshape(-1)[:length]

    def _require_packed(self, data: memoryview, length: int) -> None:
        if length < 0:
            raise InvalidParameters(f"a length must not be negative; got {length}")
        due = self.packed_bytes(length)
        require_length(f"a vector of {length} elements of {self.modulus_bits} bits", data.nbytes, due)
        spare = due * 8 - length * self.modulus_bits
        if spare and data.cast("B")[-1] >> (8 - spare):
            raise MalformedMessage("the padding bits of the last byte must be zero", reason=Reason.NOT_CANONICAL)


def require_capacity(uploads: int, available: int) -> None:
    """Refuse a number of uploads whose sum could overflow the ring."""
    if type(uploads) is not int or uploads < 1:
        raise InvalidParameters(f"a number of uploads must be an integer of at least 1; got {uploads!r}")
    if uploads > available:
        raise CapacityExceeded(
            f"a sum of {uploads} uploads exceeds the capacity of {available}; use fewer clients, fewer bits per code "
            "or a wider ring"
        )


def bytes_to_cache_line(memory: npt.NDArray[np.uint8]) -> int:
    """Return the offset of the memory's first cache line."""
    return -memory.ctypes.data % CACHE_LINE_BYTES


def _form(value: Any) -> str:  # noqa: ANN401 -- any value is described
    shape = f" of {value.ndim} dimensions of {value.dtype}" if hasattr(value, "dtype") else ""
    return type(value).__name__ + shape


def _group(modulus_bits: int, word_bits: int) -> tuple[int, int]:
    """Return the smallest number of elements that fills whole words, and the number of these words."""
    common = gcd(modulus_bits, word_bits)
    return word_bits // common, modulus_bits // common


def _padded(flat: npt.NDArray[Any], row: int) -> npt.NDArray[Any]:
    """Return the array as rows of one size, the last one padded with zeros."""
    missing = -flat.size % row
    filled = np.concatenate([flat, np.zeros(missing, dtype=flat.dtype)]) if missing else np.ascontiguousarray(flat)
    return filled.reshape(-1, row)


def _blocks(groups: int, lanes: int) -> Iterable[slice]:
    step = max(1, _PACK_BLOCK // lanes)
    return (slice(start, start + step) for start in range(0, groups, step))


# --- Kernels ---------------------------------------------------------------------------------------------------------

Words = Any
"""Arrays of unsigned words, or of solver terms: + and - wrap at word_bits, << drops overflowing bits, >> is logical."""


def low_bits(count: int) -> int:
    """Return the word whose lowest ``count`` bits are set."""
    return (1 << count) - 1


def reduce(words: Words, modulus_bits: int) -> Words:
    """Reduce modulo 2^p; two's complement words become their representatives in [0, 2^p).

    Claim RI-1: this and the four kernels below are run on terms.
    """
    return words & low_bits(modulus_bits)


def add(left: Words, right: Words, modulus_bits: int) -> Words:
    """Add modulo 2^p; the word may wrap, because 2^p divides 2^word_bits."""
    return (left + right) & low_bits(modulus_bits)


def subtract(left: Words, right: Words, modulus_bits: int) -> Words:
    """Subtract modulo 2^p."""
    return (left - right) & low_bits(modulus_bits)


def add_into(total: Words, words: Words) -> Words:
    """Add in place without reducing; any number of additions may wrap the word before ``reduce_into``."""
    total += words
    return total


def subtract_into(total: Words, words: Words) -> Words:
    """Subtract in place without reducing."""
    total -= words
    return total


def reduce_into(total: Words, modulus_bits: int) -> Words:
    """Reduce modulo 2^p in place."""
    total &= low_bits(modulus_bits)
    return total


def lift(element: Words, modulus_bits: int) -> Words:
    """Map a representative in [0, 2^p) to the two's complement word in [-2^(p-1), 2^(p-1)).

    Claim RI-3: on reduced elements this is the centred representative.
    """
    half = 1 << (modulus_bits - 1)
    return (element ^ half) - half


def round_off(words: Words, modulus_bits: int, fine_bits: int) -> Words:
    """Round elements modulo 2^p to the nearest multiple of 2^f, halves upwards.

    Claim RI-5: the mask of a masked element can be removed afterwards; the remaining error is within half of 2^f,
    depends only on the low bits of the masked element, and takes each of its 2^f values for one of them.
    """
    half = (1 << fine_bits) >> 1
    return (words + half) & (low_bits(modulus_bits) ^ low_bits(fine_bits))


def pack_group(lanes: Sequence[Words], modulus_bits: int, word_bits: int) -> list[Words]:
    """Write consecutive lanes of p bits into words of word_bits bits, lowest bits first.

    Claim RI-2: packing and unpacking are run on terms.
    """
    packed = list[Words]()
    for start in range(0, len(lanes) * modulus_bits, word_bits):
        first, last = start // modulus_bits, (start + word_bits - 1) // modulus_bits
        word = _shifted(lanes[first], modulus_bits * first - start)
        for index in range(first + 1, last + 1):
            word = word | _shifted(lanes[index], modulus_bits * index - start)
        packed.append(word)
    return packed


def unpack_lanes(word_at: Callable[[int], Words], modulus_bits: int, word_bits: int) -> list[Words]:
    """Read eight lanes of p bits from p bytes; the inverse of ``pack_group``.

    Args:
        word_at: returns the word that starts at a byte; bits after the lanes do not matter.
    """
    lanes = list[Words]()
    for byte, bit in (divmod(modulus_bits * index, 8) for index in range(LANES)):
        lane = word_at(byte) >> bit
        if bit + modulus_bits > word_bits:
            lane = lane | word_at(byte + 1) << 8 - bit
        lanes.append(lane & low_bits(modulus_bits))
    return lanes


def _shifted(word: Words, by: int) -> Words:
    """Shift left by a public amount, or right if it is negative."""
    return word << by if by >= 0 else word >> -by
