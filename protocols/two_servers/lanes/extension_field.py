"""Extension fields over lanes, and exact matrix products on the floating-point units.

A float32 holds every integer up to 2^24 in magnitude and a float64 every integer up to 2^53. Let every product of two
entries be at most g. Each partial sum of n products, in whatever order, with or without fused operations, is then an
integer of magnitude at most n g; while that is within the limit nothing is rounded, and the result does not depend on
the library, the blocking or the number of threads. A longer sum is cut into pieces of at most limit // g terms, which
are added as 64-bit integers. With lanes in [0, q) on one side and centred ones on the other, g = (q - 1)^2 / 2.

The extensions F = F_q[x] / (x^s - c) are so large that a random element cannot be guessed:

    q = 127, s = 18, c = 3 (2^125.8 elements)    q = 8191, s = 10, c = 17 (2^130)    q = 131071, s = 9, c = 3 (2^153)

c is primitive, so its order is q - 1; every prime factor of s divides q - 1, and s is not a multiple of 4. Then x^s - c
is irreducible [LN97] Theorem 3.75. An element is s lanes, the coefficient of x^0 first, along the last axis of an array
of int64 in canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Misuse

from .fields import LaneField, LaneStream, centre, reduce, reduce_signed

FLOAT32_LIMIT: Final = 1 << 24
FLOAT64_LIMIT: Final = 1 << 53
MAXIMUM_TERMS: Final = 1 << 28
"""With at most this many terms of at most 2^34 each, the 64-bit sums cannot wrap either."""
_WORTHWHILE_TERMS: Final = 256
"""Below this reach, the many short products in single precision are slower than double precision."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


def float_type(greatest: int) -> type[np.float32 | np.float64]:
    """Return the narrowest float in which products of at most ``greatest`` are worth adding."""
    return np.float32 if FLOAT32_LIMIT // greatest >= _WORTHWHILE_TERMS else np.float64


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
"""An array of int64 in [0, q) whose last axis holds the coefficients of one element."""


@dataclass(frozen=True)
class ExtensionField:
    """A field F_q[x] / (x^degree - constant)."""

    base: LaneField
    degree: int
    constant: int

    @classmethod
    def over(cls, base: LaneField) -> ExtensionField:
        """Return the extension that is used over a lane field."""
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
        """Whether an element lies in F_q, as every point does at which a polynomial is given by its values."""
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

        Row i holds the coefficients of x^i a: those of a moved up by i, and what passes x^s multiplied by c.
        """
        wrapped = self._reduced(elements * self.constant, self.constant * self.base.modulus)
        both = np.concatenate([wrapped, elements], axis=-1)
        windows = np.lib.stride_tricks.sliding_window_view(both, self.degree, axis=-1)
        return np.ascontiguousarray(windows[..., self.degree : 0 : -1, :])

    def scale(self, elements: Elements, factor: Elements) -> Elements:
        """Return many elements times one, by a single matrix product."""
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
        """Return a matrix product modulo q; one side holds lanes, and the other centred ones."""
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
                f"{self.count!r} evaluation points; there are 1 to {self.field.base.modulus - 1} in the base field"
            )

    def weights_at(self, point: Elements) -> Elements:
        """Return the weights of the values in the value at a point; in the base field they would open one of them."""
        if self.field.is_in_base_field(point):
            raise InvalidParameters("a polynomial is queried outside the base field; draw another query point")
        powers = centre(self.field.powers(point, self.count), self.field.base.bits)
        return self.field.product(self._coefficients.astype(np.float64), powers.astype(np.float64))

    def extrapolation(self, more: int) -> Integers:
        """Return the matrix over F_q that turns the values into those at the next ``more`` points."""
        q = self.field.base.modulus
        if self.count + more > q:
            raise InvalidParameters(f"{self.count} points and {more} more are over {q}; take fewer columns")
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
            # Synthetic division by X - point; what it leaves out is the factor that vanishes at the point itself.
            quotient, carry = [0] * count, 0
            for power in range(count - 1, -1, -1):
                carry = (vanishing[power + 1] + point * carry) % q
                quotient[power] = carry
            value = sum(coefficient * pow(point, power, q) for power, coefficient in enumerate(quotient)) % q
            inverse = pow(value, -1, q)
            rows.append([coefficient * inverse % q for coefficient in quotient])
        return np.array(rows, dtype=np.int64)
