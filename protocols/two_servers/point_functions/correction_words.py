"""The public part of a tree's keys: one correction word a level and one for the leaf, for every block, and its bytes.

Both servers hold the same public part. A client may send it to one of them, who relays it; the other then compares its
digest with the one that came with its seed. A relay that could alter a correction word would learn from the changed
sum whether the altered node was on the path.

    level by level, block by block: 126 bits of seed and 2 control bits of the left child, 16 bytes
    level by level, block by block: how the right child's 2 control bits differ from those
    block by block: the lanes of the leaf's correction word, each in exactly p bits

The bits of the second and the third part each fill up their last byte with zeros.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.two_servers.lanes.groups import Lanes

from .grid import require_blocks
from .shape import PointFunctionShape
from .tree_hash import NodeWords

NODE_WORDS: Final = 2
NODE_BYTES: Final = 16
_NODE_WORD = np.dtype("<u8")
_BITS: Final = Ring(1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CorrectionWords:
    """The correction words of all blocks; public, and the same for both servers."""

    shape: PointFunctionShape
    left: NodeWords
    """(level, block, word)."""
    difference: npt.NDArray[np.uint8]
    """(level, block, word): 0 or 1."""
    leaf: Lanes
    """(piece, block, lane), with zeros in lanes that a leaf does not have."""
    encoded: bytes = b""
    """Kept where they were made, for whoever sends them; see ``freeze``."""
    digest: bytes = b""
    """What is compared where another party relayed the bytes, and what a proof is bound to."""

    def __post_init__(self) -> None:
        require_tree(self.shape)
        blocks = self.leaf.shape[1]
        require_blocks(blocks)
        levels = (self.shape.depth, blocks, NODE_WORDS)
        if self.left.shape != levels or self.difference.shape != levels:
            raise Misuse(f"correction words of {blocks} blocks have the form {levels}")
        if self.leaf.shape != (self.shape.pieces, blocks, self.shape.lanes_per_piece):
            raise Misuse("the leaves' correction words have another form than their shape says")

    @classmethod
    def zeros(cls, shape: PointFunctionShape, blocks: int) -> CorrectionWords:
        """Return correction words to be filled in."""
        require_tree(shape)
        require_blocks(blocks)
        levels = (shape.depth, blocks, NODE_WORDS)
        leaf = np.zeros((shape.pieces, blocks, shape.lanes_per_piece), dtype=shape.group.word)
        return cls(shape, np.zeros(levels, dtype=_NODE_WORD), np.zeros(levels, dtype=np.uint8), leaf)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return int(self.leaf.shape[1])

    def freeze(self) -> CorrectionWords:
        """Return them with their encoding and digest, which are computed once; nothing may change afterwards."""
        encoded = self._pack()
        return replace(self, encoded=encoded, digest=_digest(self.shape, encoded))

    def _pack(self) -> bytes:
        lanes = self.leaf.transpose(1, 0, 2).reshape(self.blocks, -1)[:, : self.shape.leaf_lanes]
        bits = _BITS.pack(self.difference.reshape(-1))
        return b"".join([self.left.tobytes(), bits, self.shape.group.pack(lanes.reshape(-1))])

    @staticmethod
    def encoded_bytes(shape: PointFunctionShape, blocks: int) -> int:
        """Return how many bytes ``encode`` gives."""
        return sum(_parts(shape, blocks))

    def encode(self) -> bytes:
        """Return the canonical encoding; the shape and the number of blocks are known from the session."""
        return self.encoded or self._pack()

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, shape: PointFunctionShape, blocks: int) -> CorrectionWords:
        """Read correction words back.

        Raises:
            MalformedMessage: the number of bytes is wrong, which is checked before anything is allocated; a bit that
                fills a last byte is set; or a lane is not below the group's order.
        """
        require_tree(shape)
        require_blocks(blocks)
        view = memoryview(data)
        if not view.c_contiguous:
            raise Misuse("correction words are contiguous bytes; pass a copy of the view")
        view = view.cast("B")
        sizes = _parts(shape, blocks)
        if view.nbytes != sum(sizes):
            reason = Reason.TRUNCATED if view.nbytes < sum(sizes) else Reason.TRAILING_BYTES
            raise MalformedMessage(
                f"correction words of {blocks} blocks are {sum(sizes)} bytes; got {view.nbytes}", reason=reason
            )
        levels = (shape.depth, blocks, NODE_WORDS)
        left = np.frombuffer(view[: sizes[0]], dtype=_NODE_WORD).reshape(levels)
        bits = _BITS.unpack(view[sizes[0] : sizes[0] + sizes[1]], shape.depth * blocks * NODE_WORDS)
        lanes = shape.group.unpack(view[sizes[0] + sizes[1] :], blocks * shape.leaf_lanes)
        words = cls.zeros(shape, blocks)
        padded = np.zeros((blocks, shape.pieces * shape.lanes_per_piece), dtype=shape.group.word)
        padded[:, : shape.leaf_lanes] = lanes.reshape(blocks, -1)
        words.leaf[...] = padded.reshape(blocks, shape.pieces, -1).transpose(1, 0, 2)
        difference = bits.astype(np.uint8, copy=False).reshape(levels)
        return cls(shape, left, difference, words.leaf, digest=_digest(shape, bytes(view)))


def _digest(shape: PointFunctionShape, encoded: bytes) -> bytes:
    return hashlib.sha256(bind(Label.POINT_FUNCTION_CORRECTION_DIGEST, *shape.encode(), encoded)).digest()


def require_tree(shape: PointFunctionShape) -> None:
    """Refuse a shape without a tree."""
    if type(shape) is not PointFunctionShape:
        raise Misuse(f"a shape is a PointFunctionShape; got {type(shape).__name__}")
    if not shape.depth:
        raise InvalidParameters("there are no correction words at depth 0; one server is sent its share")


def _parts(shape: PointFunctionShape, blocks: int) -> tuple[int, int, int]:
    levels = shape.depth * blocks
    lanes = (blocks * shape.leaf_lanes * shape.group.bits + 7) // 8
    return levels * NODE_BYTES, _BITS.packed_bytes(levels * NODE_WORDS), lanes
