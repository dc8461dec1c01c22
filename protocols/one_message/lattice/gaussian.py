"""Discrete Gaussian integers of width 4.5, from integers alone.

A draw is a number of 144 uniform bits; its value is how many of 128 thresholds it reaches, less 64. The first 16 bits
decide it for all but a few values of theirs, so a table gives those, and only the rest are refined by 128 bits more.
The thresholds are made with decimal arithmetic, so that they are the same on every machine, and the weights are
symmetric to the last bit: each is within 2^-144 of the Gaussian's, but the one of zero, which takes what is left.

Not constant time: which draws are refined depends on the first 16 bits, and the table is indexed by them.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from secagg.crypto.secret import Secret, overwrite

from .estimator import SIGMA

LARGEST: Final = 64
"""Values beyond 14 deviations are never drawn; they would be with a chance of 2^-145."""
INDEX_BITS: Final = 16
REFINING_BITS: Final = 128
_DIGITS = 100
_BLOCK_BYTES = 16
_REFINING_COUNTER = bytes([1]) + bytes(_BLOCK_BYTES - 1)
"""Refining bits come from the upper half of the key's counters, which no stream of indices reaches."""

SmallVector = npt.NDArray[np.int8]


def weights(largest: int = LARGEST) -> list[int]:
    """Return the weights of -largest..largest, out of 2^144."""
    total = 1 << (INDEX_BITS + REFINING_BITS)
    with localcontext() as context:
        context.prec = _DIGITS
        mass = [(-Decimal(value * value) / (2 * Decimal(SIGMA) ** 2)).exp() for value in range(largest + 1)]
        whole = mass[0] + 2 * sum(mass[1:])
        side = [int(total * part / whole) for part in mass[1:]]
    return [*reversed(side), total - 2 * sum(side), *side]


def thresholds() -> list[int]:
    """Return the numbers from which on a draw is above -64, above -63, ...; a weight of zero repeats one."""
    sums, reached = list[int](), 0
    for weight in weights()[:-1]:
        reached += weight
        sums.append(reached)
    return sums


def _tables() -> tuple[SmallVector, npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
    """Return the value at the start of each bucket, whether it is open, and the thresholds as rows of three words."""
    edges, size = thresholds(), 1 << INDEX_BITS
    starts = np.array([-(-edge >> REFINING_BITS) for edge in edges])
    first = np.bincount(starts, minlength=size + 1)[:size].cumsum() - LARGEST
    is_open = np.zeros(size, np.bool_)
    is_open[[edge >> REFINING_BITS for edge in edges if edge % (1 << REFINING_BITS)]] = True
    words = [[t >> REFINING_BITS, t >> 64 & (1 << 64) - 1, t & (1 << 64) - 1] for t in edges]
    return first.astype(np.int8), is_open, np.array(words, np.uint64).T.copy()


FIRST, IS_OPEN, _THRESHOLDS = _tables()
_REFINE: Final = np.int8(-128)
_VALUES: Final = np.where(IS_OPEN, _REFINE, FIRST)


class Sampler:
    """A stream of draws from a key of 32 bytes, in order; the key serves nothing else."""

    __slots__ = ("_indices", "_refining")

    def __init__(self, key: Secret) -> None:
        self._indices = _stream(key, bytes(_BLOCK_BYTES))
        self._refining = _stream(key, _REFINING_COUNTER)

    def draw(self, count: int) -> SmallVector:
        """Return the next draws; the caller overwrites them."""
        drawn = _bytes(self._indices, 2 * count)
        buckets = np.frombuffer(drawn, "<u2")
        values: SmallVector = _VALUES.take(buckets)
        refined = np.flatnonzero(values == _REFINE)
        fine = _bytes(self._refining, REFINING_BITS // 8 * refined.size)
        values[refined] = refine(buckets[refined].astype(np.uint64), np.frombuffer(fine, "<u8").reshape(-1, 2))
        overwrite(drawn)
        overwrite(fine)
        return values


def refine(buckets: npt.NDArray[np.uint64], fine: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return how many thresholds each number reaches, less 64; all are compared, whatever the number."""
    bucket, high, low = buckets[:, None], fine[:, :1], fine[:, 1:]
    by_bucket, by_high, by_low = _THRESHOLDS
    reached = (high > by_high) | ((high == by_high) & (low >= by_low))
    reached = (bucket > by_bucket) | ((bucket == by_bucket) & reached)
    values: npt.NDArray[np.int64] = reached.sum(axis=1) - LARGEST
    return values


def _stream(key: Secret, counter: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key.expose()), modes.CTR(counter)).encryptor()


def _bytes(stream: CipherContext, count: int) -> bytearray:
    drawn = bytearray(count)
    stream.update_into(bytes(count), drawn)
    return drawn
