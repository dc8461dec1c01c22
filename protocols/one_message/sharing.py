"""Shares of one upload's secret: packed, partly from seeds, and checked against one published polynomial.

Implements: packed secret sharing [FY92] over the integers modulo 65521. Each polynomial of degree below T holds rho
coefficients of the secret, at the points 0, -1, ..., and holder j evaluates at j. Its rho secrets and its values at T -
rho holders fix the polynomial, so those values are drawn, and their holders get a seed; the others get words. Drawing
coefficients would give the same distribution.

A dealer adds a masking polynomial g, uniform with all its coefficients, over the eighth power of the field, and
publishes h = g + sum of r_k f_k for a challenge r that is hashed from everything else. h is as uniform as g.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import key_derivation
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason

from .parameters import CHECK_WORDS, FIELD, SEED_BYTES, Parameters

WORD: Final = np.dtype("<u2")
_BLOCK_BYTES = 16
_SLACK_WORDS = 64
"""A word is skipped with probability 15 / 65536; 65 skips in 16,384 words, or in fewer, have probability below
2^-128."""

Matrix = npt.NDArray[np.float64]
Elements = npt.NDArray[np.uint16]


def holder_point(position: int) -> int:
    """Return the point at which the holder at a position evaluates."""
    return position + 1


def slot_points(packing: int) -> tuple[int, ...]:
    """Return the points of the secrets: 0, -1, -2, ...; no holder has one of them."""
    return tuple(-slot % FIELD for slot in range(packing))


def expand_words(key: Secret, count: int) -> Elements:
    """Return uniform elements from a uniform key: the words of its AES-CTR stream that are below 65521.

    Security: a key expands once. Which words are skipped depends only on coins, and reveals nothing about the others.
    """
    stream = bytearray(2 * (count + _SLACK_WORDS + count // 1024))
    Cipher(algorithms.AES(key.expose()), modes.CTR(bytes(_BLOCK_BYTES))).encryptor().update_into(
        bytes(len(stream)), stream
    )
    words = np.frombuffer(stream, WORD)
    kept = words[words < FIELD][:count].copy()
    stream[:] = bytes(len(stream))
    if kept.size < count:
        raise Misuse("too many words of a stream are above 65520; its key is not uniform")
    return kept


def decode_words(data: bytes | bytearray | memoryview, count: int) -> Elements:
    """Decode elements; refuses words that are not reduced."""
    if len(data) != count * WORD.itemsize:
        reason = Reason.TRUNCATED if len(data) < count * WORD.itemsize else Reason.TRAILING_BYTES
        raise MalformedMessage(f"expected {count * WORD.itemsize} bytes of words; got {len(data)}", reason=reason)
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
    """Return the matrix that maps a polynomial's values at the points to its coefficients."""
    count = len(points)
    if len({point % FIELD for point in points}) < count:
        raise InvalidParameters("interpolation points must be distinct")
    inverted, _ = reduced(np.concatenate([power_matrix(points, count), np.eye(count)], axis=1).astype(np.int64))
    return inverted[:, count:].astype(np.float64)


def reduced(matrix: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Row-reduce a matrix up to the first column without a pivot; return it and that column's index."""
    rows = matrix % FIELD
    for column in range(rows.shape[1]):
        candidates = np.flatnonzero(rows[column:, column])
        if not candidates.size:
            return rows, column
        rows[[column, column + candidates[0]]] = rows[[column + candidates[0], column]]
        rows[column] = rows[column] * pow(int(rows[column, column]), -1, FIELD) % FIELD
        others = rows[:, column].copy()
        others[column] = 0
        rows = (rows - others[:, None] * rows[column]) % FIELD
    return rows, rows.shape[1]


@lru_cache(maxsize=64)
def transfer_matrix(sources: tuple[int, ...], targets: tuple[int, ...]) -> Matrix:
    """Return the matrix that maps a polynomial's values at some points to its values at others."""
    return multiply(power_matrix(targets, len(sources)), interpolation_matrix(sources)).astype(np.float64)


CHALLENGE_BYTES: Final = 32


class Dealing(Confined):
    """Shares of one secret and, once, the polynomial that proves them consistent."""

    def __init__(self, parameters: Parameters, shares: tuple[Secret, ...], values: npt.NDArray[np.int64]) -> None:
        self.shares = shares
        """One for each holder, in order; seal them, then hash everything into the challenge."""
        self._parameters = parameters
        self._values = values
        self._published = False

    def polynomial(self, challenge: bytes) -> bytes:
        """Return h for this challenge, once: two of them over one g reveal a combination of the secret."""
        if self._published:
            raise Misuse("a dealing answers one challenge; share a fresh secret", reason=Reason.ALREADY_SPENT)
        weights = challenge_weights(self._parameters, challenge)
        self._published = True
        columns = self._parameters.secret_columns
        combined = (multiply(self._values[:, :columns].astype(np.float64), weights) + self._values[:, columns:]) % FIELD
        coefficients = multiply(interpolation_matrix(_base_points(self._parameters)), combined)
        self._values[:] = 0
        return coefficients.astype(WORD).tobytes()

    def wipe(self) -> None:
        self._values[:] = 0
        self._published = True
        for share in self.shares:
            share.wipe()

    def __repr__(self) -> str:
        return f"<Dealing, {len(self.shares)} shares>"


def deal(secret: Secret, parameters: Parameters, contexts: Sequence[bytes], coins: Coins) -> Dealing:
    """Share the secret of an upload, one signed byte per coefficient, and wipe it.

    Args:
        contexts: one per holder's share; binds it to the epoch, the client, the holder and a nonce.
    """
    if len(set(contexts)) != parameters.holders or len(contexts) != parameters.holders:
        raise Misuse(f"each of {parameters.holders} holders needs a distinct context; got {len(set(contexts))}")
    columns, packing = parameters.secret_columns, parameters.packing
    values = np.empty((parameters.threshold, columns + CHECK_WORDS), np.int64)
    values[:packing, :columns] = np.frombuffer(secret.expose(), np.int8).reshape(packing, columns)
    values[:packing, :columns] %= FIELD
    secret.wipe()
    with Secret.random("seed of free values", SEED_BYTES, coins) as seed:
        free = expand_share(seed, Label.ONE_MESSAGE_FREE_VALUES, b"", packing * CHECK_WORDS)
    values[:packing, columns:] = free.reshape(packing, CHECK_WORDS)
    shares = [Secret.random("share of a ring secret", SEED_BYTES, coins) for _ in range(parameters.seeds)]
    for position, share in enumerate(shares):
        values[packing + position] = expand_share(
            share, Label.ONE_MESSAGE_SHARE, contexts[position], columns + CHECK_WORDS
        )
    rest = tuple(holder_point(position) for position in range(parameters.seeds, parameters.holders))
    words = multiply(transfer_matrix(_base_points(parameters), rest), values).astype(WORD)
    shares += [Secret("share of a ring secret", row.data.cast("B")) for row in words]
    words[:] = 0
    return Dealing(parameters, tuple(shares), values)


def _base_points(parameters: Parameters) -> tuple[int, ...]:
    """Return the points whose values fix the polynomials: the slots of the secrets and the holders with seeds."""
    return slot_points(parameters.packing) + tuple(map(holder_point, range(parameters.seeds)))


def expand_share(seed: Secret, label: Label, context: bytes, count: int) -> Elements:
    """Expand a seed into words, in one context."""
    with key_derivation.expand("key of share words", SEED_BYTES, seed, label, context) as key:
        return expand_words(key, count)


def challenge_weights(parameters: Parameters, challenge: bytes) -> npt.NDArray[np.float64]:
    """Return r: one row of eight elements per polynomial of the secret."""
    if type(challenge) is not bytes or len(challenge) != CHALLENGE_BYTES:
        raise InvalidParameters(f"a challenge must be a {CHALLENGE_BYTES}-byte digest; got {type(challenge).__name__}")
    columns = parameters.secret_columns
    words = expand_share(Secret("challenge", challenge), Label.ONE_MESSAGE_CHALLENGE, b"", columns * CHECK_WORDS)
    return words.reshape(columns, CHECK_WORDS).astype(np.float64)
