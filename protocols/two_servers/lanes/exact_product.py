"""Products of matrices of small integers on the floating-point units, which are exact as long as no sum is too large.

A float32 holds every integer up to 2^24 in magnitude and a float64 every integer up to 2^53. Let every product of two
entries be at most g. Then each partial sum of n products, in whatever order, with or without fused operations, is an
integer of magnitude at most n g; if n g is within the limit, each is represented, nothing is ever rounded, and the
result does not depend on the library, the blocking or the number of threads. A longer sum is cut into pieces of at most
limit // g terms, which are added as 64-bit integers.

With lanes in [0, q) on one side and centred ones on the other, g = (q - 1)^2 / 2: float32 takes 2113 terms at q = 127,
and float64 takes 2^53 / 2^33 = 2^20 at q = 131071.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters

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
