"""Indices shared modulo the number of codewords, and vectors that are turned by public differences.

Everything here is vectors of small integers below k, one for each block, for any k from 2 to 4096.

What a key expands into is uniform up to a distance that nobody can notice: an index is a word of 128 uniform bits
modulo k, whose distance from uniform is at most k / 2^130, below 2^-118; a segment of 2^26 blocks has at most 2^-92.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract.layout import IndexSegment
from secagg.crypto.ring import low_bits
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Reason
from secagg.protocols.two_servers.lanes.groups import AES_BLOCK_BYTES, CounterStream, Lanes
from secagg.protocols.two_servers.point_functions.tree_hash import SLACK_BYTES

INDEX: Final = np.dtype("<u2")
"""Twice the largest number of codewords is far below its highest bit."""
_BORROW_BIT: Final = 15
_HALF: Final = np.dtype("<u8")
_CHUNK_BLOCKS: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 19
"""Lanes that are turned at a time, so that all passes over them find them in the cache."""

Indices = npt.NDArray[np.unsignedinteger[Any]]


def uniform_indices(key: Secret, codewords: int, first: int, count: int) -> Indices:
    """Return indices [first, first + count) of those that 32 bytes expand into: block n of AES-CTR, modulo k.

    Security: a key is used for one vector of indices, once; derive it from whatever they belong to.
    """
    stream, made = CounterStream(key), np.empty(count, dtype=INDEX)
    memory = np.empty(min(count, _CHUNK_BLOCKS) * AES_BLOCK_BYTES + SLACK_BYTES, dtype=np.uint8)
    for start in range(0, count, _CHUNK_BLOCKS):
        stop = min(count, start + _CHUNK_BLOCKS)
        size = (stop - start) * AES_BLOCK_BYTES
        stream.fill(memory, first + start, size)
        halves: Any = memory[:size].view(_HALF).reshape(-1, 2)
        made[start:stop] = reduce_halves(halves[:, 0], halves[:, 1], codewords)
    memory.fill(0)
    return made


def pack_indices(segment: IndexSegment, indices: Indices) -> bytes:
    """Write each index in exactly the bits that the number of codewords needs."""
    return segment.ring.pack(indices.astype(segment.ring.word))


def unpack_indices(segment: IndexSegment, packed: bytes | bytearray | memoryview) -> Indices:
    """Read indices back.

    Raises:
        MalformedMessage: the number of bytes is wrong, which is checked before anything is allocated; a bit that fills
            the last byte is set; or an index is not below the number of codewords.
    """
    indices: Indices = segment.ring.unpack(packed, segment.blocks).astype(INDEX)
    if int(indices.max()) >= segment.codewords:
        raise MalformedMessage(f"the share of an index is not below {segment.codewords}", reason=Reason.NOT_CANONICAL)
    return indices


def turn_into(lanes: Lanes, differences: Indices) -> None:
    """Turn the vector of each block by its difference, in place: what stood at m stands at m + difference modulo k.

    One pass for each bit of the differences, which are public to whoever holds the lanes; nothing is looked up.

    Args:
        lanes: codewords by blocks.
        differences: one for each block.
    """
    codewords, blocks = lanes.shape
    step = max(64, _CHUNK_BYTES // (codewords * lanes.itemsize))
    changed = np.empty((codewords, min(step, blocks)), dtype=lanes.dtype)
    for start in range(0, blocks, step):
        part, turned = lanes[:, start : start + step], differences[start : start + step]
        for bit in range((codewords - 1).bit_length()):
            chosen: Indices = (turned >> INDEX.type(bit)) & INDEX.type(1)
            _turn_where(part, chosen, 1 << bit, changed[:, : turned.size])
    changed.fill(0)


def _turn_where(part: Lanes, chosen: Indices, places: int, changed: Lanes) -> None:
    """Turn the vectors of the blocks whose entry of ``chosen`` is 1, by so many places."""
    np.bitwise_xor(part[:-places], part[places:], out=changed[places:])
    np.bitwise_xor(part[-places:], part[:places], out=changed[:places])
    changed &= chosen.astype(part.dtype) * part.dtype.type(low_bits(8 * part.itemsize))
    part ^= changed


# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------

Words = Any
"""Arrays of words, or solver terms."""


def reduce_halves(low: Words, high: Words, codewords: int) -> Words:
    """Return (high * 2^64 + low) modulo k, for k up to 2^12."""
    return ((high % codewords) * ((1 << 64) % codewords) + low % codewords) % codewords


def add_indices(left: Words, right: Words, codewords: int) -> Words:
    """Return the sum modulo k of indices below k, in words of 16 bits: what is below zero has its highest bit set."""
    beyond = left + right - codewords
    return beyond + (beyond >> _BORROW_BIT) * codewords


def subtract_indices(left: Words, right: Words, codewords: int) -> Words:
    """Return the difference modulo k of indices below k, in words of 16 bits."""
    return add_indices(left, codewords - right, codewords)
