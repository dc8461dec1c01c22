"""The shape of a point function: how many codewords, in which group, how deep its tree, and what that costs.

At depth 0 there is no tree: server 0 expands a seed into its share, and server 1 is sent its own share. At depth t the
codewords are divided among 2^t leaves of ceil(k / 2^t) lanes, and every level costs one correction word of 130 bits:

    bits a block = 130 t + ceil(k / 2^t) p

The explicit share may leave out the last lane where the lanes of every block add up to 1, because both servers can
then compute theirs. That does not carry over to trees, whose correction word is shared by all leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.fields import LaneField
from secagg.protocols.two_servers.lanes.groups import LaneGroup, RingLanes
from secagg.protocols.two_servers.lanes.streams import AES_BLOCK_BYTES

LEAST_CODEWORDS: Final = 2
MAXIMUM_CODEWORDS: Final = 1 << 12
MAXIMUM_BLOCKS: Final = 1 << 26
SEED_BITS: Final = 126
"""A node is 128 bits, of which two are control bits."""
CORRECTION_BITS: Final = SEED_BITS + 4
RUN_BLOCKS: Final = 1 << 14
"""Lanes are laid out in runs of so many blocks, the last of which may be shorter; part of the explicit share's bytes.

Measured: in shorter runs the interpreter takes a large part of the time, and longer ones leave the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFunctionShape:
    """Everything about point functions that is public and the same for all clients; make one with ``cheapest``."""

    codewords: int
    group: LaneGroup
    depth: int
    derives_last_lane: bool = False
    """Whether the last lane is computed by the servers, per client; only at depth 0, and for unit vectors alone."""

    def __post_init__(self) -> None:
        require_integer("codewords", self.codewords, LEAST_CODEWORDS, MAXIMUM_CODEWORDS)
        if type(self.group) not in (RingLanes, LaneField):
            raise Misuse(f"the group is RingLanes or a LaneField; got {type(self.group).__name__}")
        deepest = greatest_depth(self.codewords)
        if type(self.depth) is not int or not 0 <= self.depth <= deepest:
            raise InvalidParameters(f"{self.codewords} codewords have a depth in 0..{deepest}; got {self.depth!r}")
        if type(self.derives_last_lane) is not bool:
            raise Misuse(f"derives_last_lane is a bool; got {self.derives_last_lane!r}")
        if self.derives_last_lane and self.depth:
            raise InvalidParameters("the last lane can be left out at depth 0 only; a tree's lanes share a correction")

    @classmethod
    def cheapest(cls, codewords: int, group: LaneGroup, *, unit_vectors: bool = True) -> PointFunctionShape:
        """Return the shape with the shortest upload; of two equally short ones the one with fewer cipher calls.

        Args:
            unit_vectors: whether every block's lanes add up to 1, so that depth 0 may leave out one of them.
        """
        shapes = [
            cls(codewords=codewords, group=group, depth=depth, derives_last_lane=unit_vectors and depth == 0)
            for depth in range(greatest_depth(codewords) + 1)
        ]
        return min(shapes, key=lambda shape: (shape.upload_bits, shape.cipher_calls))

    @property
    def leaves(self) -> int:
        """How many leaves the tree has."""
        return 1 << self.depth

    @property
    def leaf_lanes(self) -> int:
        """How many lanes a leaf has; the last leaves may have lanes beyond the codewords."""
        return -(-self.codewords // self.leaves)

    @property
    def sent_lanes(self) -> int:
        """How many lanes a block has on the wire."""
        return self.leaf_lanes - self.derives_last_lane

    @property
    def upload_bits(self) -> int:
        """The bits a block that both servers are sent together, if one relays the correction words to the other."""
        return tree_bits(self.codewords, self.group.bits, self.depth) - self.derives_last_lane * self.group.bits

    @property
    def lanes_per_piece(self) -> int:
        """How many lanes one cipher call gives a leaf."""
        return AES_BLOCK_BYTES // self.group.word.itemsize

    @property
    def pieces(self) -> int:
        """How many cipher calls fill the lanes of a leaf."""
        return -(-self.leaf_lanes // self.lanes_per_piece)

    @property
    def cipher_calls(self) -> float:
        """How many cipher calls a block costs server 0: its roots, its nodes and its lanes; without repeated attempts.

        At depth 0 the stream runs on from block to block, so this need not be whole.
        """
        if not self.depth:
            return self.sent_lanes * self.group.word.itemsize / AES_BLOCK_BYTES
        return 1 + 2 * (self.leaves - 1) + self.leaves * self.pieces

    def encode(self) -> tuple[bytes, ...]:
        """Return (k, order, depth, last lane) as keys are bound to them."""
        return (
            self.codewords.to_bytes(4, "big"),
            self.group.order.to_bytes(9, "big"),
            bytes([self.depth]),
            bytes([self.derives_last_lane]),
        )


def greatest_depth(codewords: int) -> int:
    """Return the depth at which every leaf has one lane."""
    return (codewords - 1).bit_length()


def tree_bits(codewords: int, lane_bits: int, depth: int) -> int:
    """Return the correction bits a block for a tree of this depth, or the explicit share's with all of its lanes."""
    return CORRECTION_BITS * depth + -(-codewords // (1 << depth)) * lane_bits


def least_cipher_calls(codewords: int, lane_bits: int, depth: int) -> int:
    """Return the cipher calls of a full evaluation, roots aside, if lanes took exactly their bits in memory too."""
    leaves = 1 << depth
    leaf_lanes = -(-codewords // leaves)
    return 2 * (leaves - 1) + leaves * -(-leaf_lanes * lane_bits // (8 * AES_BLOCK_BYTES))
