"""Vectors over the integers modulo 2^31 - 1, and the code that splits a mask into pieces.

A mask is U - T vectors; T uniform ones are added, and a polynomial of degree below U takes these U values at the points
-1, -2, ..., -U. Client j's piece is its value at j + 1. Any U pieces recover the mask, and any T pieces are uniform.

Implements: [SHY+22] §4.1, the T-private MDS code, as Lagrange interpolation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly, overwrite
from secagg.errors import MalformedMessage, Misuse, Reason, require_length

FIELD: Final = 2**31 - 1
ELEMENT_BYTES: Final = 4
_WORD: Final = np.dtype("<u4")
_SLACK: Final = 16
"""One word in 2^31 is skipped; in 2^28 words, more than 16 skips have probability below 2^-90."""

Vector = npt.NDArray[np.int64]


def uniform(count: int, coins: Coins) -> Vector:
    """Draw elements: 31 bits of a word each, skipping the one word in 2^31 that is the modulus."""
    drawn = draw_exactly(ELEMENT_BYTES * (count + _SLACK), coins)
    words = np.frombuffer(drawn, _WORD) & np.uint32(FIELD)
    kept: Vector = words[words != FIELD][:count].astype(np.int64)
    words[:] = 0
    overwrite(drawn)
    if kept.size < count:
        raise Misuse("the coins are not uniform; repair their draw()")
    return kept


def encode_vector(vector: Vector) -> bytes:
    """Return elements as words of 32 bits."""
    return vector.astype(_WORD).tobytes()


def decode_vector(data: bytes | bytearray | memoryview, count: int) -> Vector:
    """Decode elements; refuse words that are not reduced."""
    require_length(f"a vector of {count} elements", len(data), ELEMENT_BYTES * count)
    vector: Vector = np.frombuffer(data, _WORD).astype(np.int64)
    if vector.size and int(vector.max()) >= FIELD:
        raise MalformedMessage("a word is not below 2^31 - 1", reason=Reason.SHARE_OUT_OF_RANGE)
    return vector


def pieces_of(parts: Vector, clients: int) -> Vector:
    """Return a piece for each client, of U rows; the last T rows are uniform."""
    return _combined(_lagrange(_slots(parts.shape[0]), tuple(range(1, clients + 1))), parts)


def mask_from(pieces: Vector, positions: Sequence[int], count: int) -> Vector:
    """Return the first ``count`` rows from the pieces of U clients."""
    return _combined(_lagrange(tuple(position + 1 for position in positions), _slots(count)), pieces)


def _slots(count: int) -> tuple[int, ...]:
    return tuple(-slot % FIELD for slot in range(1, count + 1))


def _combined(matrix: tuple[tuple[int, ...], ...], rows: Vector) -> Vector:
    result = np.zeros((len(matrix), rows.shape[1]), np.int64)
    for index, factors in enumerate(matrix):
        for factor, row in zip(factors, rows, strict=True):
            result[index] += factor * row % FIELD
    return result % FIELD


def _product(factors: Iterable[int]) -> int:
    return reduce(lambda product, factor: product * factor % FIELD, factors, 1)


@lru_cache(maxsize=8)
def _lagrange(sources: tuple[int, ...], targets: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the matrix that maps a polynomial's values at the sources to its values at the targets, one row each."""
    scales = [pow(_product(source - other for other in sources if other != source), -1, FIELD) for source in sources]
    rows = list[tuple[int, ...]]()
    for target in targets:
        top = _product(target - source for source in sources)
        rows.append(
            tuple(
                top * pow(target - source, -1, FIELD) * scale % FIELD
                for source, scale in zip(sources, scales, strict=True)
            )
        )
    return tuple(rows)
