"""Vectors over the integers modulo 65521, the largest prime below 2^16: words, matrices and interpolation.

Sums of products stay below 2^53, so matrix products in floating point are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason

FIELD: Final = 65521
WORD: Final = np.dtype("<u2")
_BLOCK_BYTES = 16
_SLACK_WORDS = 64
"""A word is passed over with chance 15 / 65536; 65 of 16,384 and as many of fewer have a chance below 2^-128."""

Matrix = npt.NDArray[np.float64]
Elements = npt.NDArray[np.uint16]


def holder_point(position: int) -> int:
    """Return where the holder at a position evaluates."""
    return position + 1


def slot_points(packing: int) -> tuple[int, ...]:
    """Return where the secrets stand: 0, -1, -2, ...; no holder is there."""
    return tuple(-slot % FIELD for slot in range(packing))


def expand_words(key: Secret, count: int) -> Elements:
    """Return uniform elements from a uniform key of 32 bytes: the words of its AES-CTR stream that are below 65521.

    Security: a key expands once. Which words are passed over depends on coins alone and tells nothing of those kept.
    """
    stream = bytearray(2 * (count + _SLACK_WORDS + count // 1024))
    Cipher(algorithms.AES(key.expose()), modes.CTR(bytes(_BLOCK_BYTES))).encryptor().update_into(
        bytes(len(stream)), stream
    )
    words = np.frombuffer(stream, WORD)
    kept = words[words < FIELD][:count].copy()
    stream[:] = bytes(len(stream))
    if kept.size < count:
        raise Misuse("a stream of words holds too many above 65520; its key is not uniform")
    return kept


def decode_words(data: bytes | bytearray | memoryview, count: int) -> Elements:
    """Read elements from their one encoding.

    Raises:
        MalformedMessage: the length differs, or a word is not below 65521.
    """
    if len(data) != count * WORD.itemsize:
        reason = Reason.TRUNCATED if len(data) < count * WORD.itemsize else Reason.TRAILING_BYTES
        raise MalformedMessage(f"{count * WORD.itemsize} bytes of words are due; got {len(data)}", reason=reason)
    words = np.frombuffer(data, WORD).copy()
    if int(words.max(initial=0)) >= FIELD:
        raise MalformedMessage("a word is not below 65521; encode reduced elements", reason=Reason.SHARE_OUT_OF_RANGE)
    return words


def multiply(left: Matrix, right: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the product of two matrices of elements, reduced; exact below 2^21 terms."""
    product: npt.NDArray[np.int64] = (left @ right.astype(np.float64)).astype(np.int64) % FIELD
    return product


@lru_cache(maxsize=16)
def power_matrix(points: tuple[int, ...], count: int) -> Matrix:
    """Return the first powers of the points, a row for each."""
    rows = [[pow(point, exponent, FIELD) for exponent in range(count)] for point in points]
    return np.array(rows, np.float64).reshape(len(points), count)


@lru_cache(maxsize=64)
def interpolation_matrix(points: tuple[int, ...]) -> Matrix:
    """Return what takes a polynomial's values at the points to its coefficients."""
    if len({point % FIELD for point in points}) < len(points):
        raise InvalidParameters("points of interpolation are distinct; one is given twice")
    product = [1]
    for point in points:
        shifted, scaled = [0, *product], [*(coefficient * point for coefficient in product), 0]
        product = [(a - b) % FIELD for a, b in zip(shifted, scaled, strict=True)]
    columns = np.zeros((len(points), len(points)))
    for index, point in enumerate(points):
        quotient = _divided(product, point)
        scale = pow(_evaluated(quotient, point), -1, FIELD)
        columns[:, index] = [coefficient * scale % FIELD for coefficient in quotient]
    return columns


@lru_cache(maxsize=64)
def transfer_matrix(sources: tuple[int, ...], targets: tuple[int, ...]) -> Matrix:
    """Return what takes a polynomial's values at as many points as it has coefficients to its values at others."""
    return multiply(power_matrix(targets, len(sources)), interpolation_matrix(sources)).astype(np.float64)


def _divided(polynomial: Sequence[int], root: int) -> list[int]:
    """Return the polynomial divided by X - root, lowest coefficient first."""
    quotient = [0] * (len(polynomial) - 1)
    carry = 0
    for index in range(len(polynomial) - 1, 0, -1):
        carry = (polynomial[index] + carry * root) % FIELD
        quotient[index - 1] = carry
    return quotient


def _evaluated(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % FIELD
    return value
