"""Shares of point functions, the lanes to which they evaluate, and the kernels that grow a level of a tree.

Implements: [BGI16] Fig. 1, with early termination: a leaf has many lanes.

A tree's node is 128 bits in two words, and the lowest bit of each word is a control bit. Off the path to alpha the
servers hold the same node. On the path they hold independent seeds, and control bits, exactly one of them set in
each word. Let H_0, H_1 be the hashes of the two children, and t the control bits:

    child_c = H_c(s) xor (t times CW_c)        in each word

CW_c holds the difference of the children that leave the path, so that these become equal, and control bits such that
exactly one stays set on the path. At a leaf the same control bits decide, for the lanes of each word, which server adds
the leaf's correction word:

    lanes of server b = (-1)^b (C(s) + t times CW),    CW = (-1)^(t_1) (beta e_lane - C(s_0) + C(s_1))

The control bits of the two words follow the same rule independently, so that "t times CW" is one multiplication of
words, without an inner loop over pairs. No bit of a node becomes part of a lane: lanes are hashes.

Shares are generated and added in an order that suits vector units: long runs of blocks for one lane, or for one piece
of a leaf, adjacent in memory. A histogram has rows of codewords, so the aggregate is transposed once, rather than each
client's share.

Without a tree, server 0 expands a seed into its lanes, and server 1 receives its lanes, lane by lane in runs of
``RUN_BLOCKS`` blocks. The last lane is omitted: each server computes it as the difference of the others' sum from 1 at
server 0 and from 0 at server 1, separately for each client. An explicit share is secret: together with the seed of
server 0, it reveals the assignments.

Per block, a tree has one correction word per level and one for the leaf, which are public to both servers:

    level by level, block by block: 126 bits of seed and 2 control bits of the left child, 16 bytes
    level by level, block by block: how the right child's 2 control bits differ from those
    block by block: the lanes of the leaf's correction word, each in exactly p bits

The second and the third part each pad their last byte with zeros. A client sends them to one server, which relays them;
the other compares their digest with the one that came with its seed. A relay that could alter a correction word would
learn from the changed sum whether the altered node was on the path.

A chunk of blocks is grown level by level until a level fills its memory, and depth first below. A level's left children
are stored before its right children, so that every cipher call and every pass over memory is contiguous; nodes of one
path and their siblings stay in a second-level cache.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring, low_bits
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.parameters import require_integer

from .lanes import Bytes, CounterStream, LaneGroup, Lanes
from .shape import (
    GROUP_BLOCKS,
    LEFT,
    MAXIMUM_BLOCKS,
    RIGHT,
    RUN_BLOCKS,
    SLACK_BYTES,
    AesHash,
    HashFamily,
    KeyBinding,
    NodeHash,
    NodeWords,
    PointFunctionShape,
    lanes_key,
    lanes_role,
    roots_key,
    share_digest,
)

# --- Kernels: no dtype, no branch and no index that depends on data ---------------------------------------------------
# The same code runs on machine words and on solver terms. A kernel also returns what it changes in place.

Words = Any
"""Arrays of words of a node, or solver terms: * wraps at the word, and one factor is always 0, 1 or all ones."""

Pair = tuple[Any, Any]
"""Words for the left child and for the right."""

WORD_BITS: Final = 64


def root_into(uniform: Words, control: int) -> Words:
    """Turn a uniform word into a root's: 63 bits of its seed, and the control bit, which is 0 or 1."""
    uniform &= low_bits(WORD_BITS) - 1
    uniform ^= control
    return uniform


def control_bits(node: Words) -> Words:
    """Return the control bit of each word."""
    return node & 1


def feed_forward_into(permuted: Words, node: Words) -> Words:
    """Complete a hash."""
    permuted ^= node
    return permuted


def grow_into(node: Words, children: Pair, control: Words, shared: Words, difference: Words) -> Pair:
    """Turn the permuted nodes into the children.

    Args:
        node: the parents.
        children: the parents, permuted under the left and under the right child's key; they become the children.
        control: the parents' control bits; overwritten.
        shared: the left child's correction word where a control bit is set, and 0 elsewhere; overwritten.
        difference: what the right child's correction word differs in; 0 or 1 in each word.
    Claim DP-1: off the path the servers' children are equal; on it their control bits differ.
    """
    left, right = children
    # The feed-forward is the same for both children.
    shared ^= node
    left ^= shared
    control &= difference
    shared ^= control
    right ^= shared
    return left, right


def correction_of(children_0: Pair, children_1: Pair, goes_right: Words) -> Pair:
    """Return the left correction word and the difference of the right one.

    Args:
        children_0: server 0's hashes of its node on the path, for the left and the right child.
        children_1: server 1's.
        goes_right: 1 where the path goes to the right, 0 elsewhere.
    """
    left = children_0[0] ^ children_1[0]
    right = children_0[1] ^ children_1[1]
    lost = select(right, left, goes_right)
    seed = lost ^ (lost & 1)
    left_control = (left & 1) ^ goes_right ^ 1
    right_control = (right & 1) ^ goes_right
    return seed ^ left_control, left_control ^ right_control


def kept_child(node: Words, children: Pair, correction: Pair, goes_right: Words) -> Words:
    """Return the child on the path, from a server's node there, its two hashes and the level's correction."""
    chosen = select(children[0], children[1], goes_right)
    return chosen ^ (node & 1) * (correction[0] ^ (correction[1] & goes_right))


def select(zero: Words, one: Words, bit: Words) -> Words:
    """Return ``one`` where the bit is set and ``zero`` elsewhere."""
    return zero ^ ((zero ^ one) & (bit * low_bits(WORD_BITS)))


def masked(control: Words, correction: Words) -> Words:
    """Return the correction word where the control bit is set, and 0 elsewhere."""
    return control * correction


def spread(control: Words) -> Words:
    """Return all ones where the control bit is set, and 0 elsewhere."""
    return control * low_bits(WORD_BITS)


# --- Shares -----------------------------------------------------------------------------------------------------------

Source = Callable[[int, int], Lanes]
"""Lanes [start, start + count) of a share without a tree."""
_PIECE: Any = np.complex128
"""A type of 16 bytes, the size of a piece; values of it are moved and never looked at."""


class LaneGrid(Confined):
    """One server's lanes for blocks [first, stop), one array per run of blocks.

    An array has, at depth 0, the axes (codeword, block, 1). For a tree they are (piece and leaf, block, lane): the
    pieces of all leaves come one after another, and among the leaves the lowest bit of their number is the slowest.
    """

    def __init__(self, shape: PointFunctionShape, first: int, arrays: tuple[Lanes, ...]) -> None:
        self.shape = shape
        self.first = first
        self.arrays = arrays
        self.blocks = sum(array.shape[1] for array in arrays)
        self.stop = first + self.blocks

    @classmethod
    def zeros(cls, shape: PointFunctionShape, blocks: int, first: int = 0) -> LaneGrid:
        if type(shape) is not PointFunctionShape:
            raise Misuse(f"a shape must be a PointFunctionShape; got {type(shape).__name__}")
        require_blocks(blocks)
        width, height = (shape.lanes_per_piece, shape.pieces * shape.leaves) if shape.depth else (1, shape.codewords)
        flat = Ring(shape.group.bits).zeros(height * blocks * width)
        arrays = list[Lanes]()
        for start, stop in runs(first, first + blocks):
            low, high = ((edge - first) * height * width for edge in (start, stop))
            arrays.append(flat[low:high].reshape(height, stop - start, width))
        return cls(shape, first, tuple(arrays))

    def located(self) -> Iterator[tuple[int, int, Lanes]]:
        """Yield each array with its first block and the block after its last."""
        start = self.first
        for array in self.arrays:
            yield start, start + array.shape[1], array
            start += array.shape[1]

    def part(self, first: int, stop: int) -> LaneGrid:
        """Return blocks [first, stop) of this grid; changes to the part change the whole."""
        require_range(first, stop, self.first, self.stop)
        arrays = tuple(
            array[:, max(first, low) - low : min(stop, high) - low]
            for low, high, array in self.located()
            if low < stop and first < high
        )
        return LaneGrid(self.shape, first, arrays)

    def wipe(self) -> None:
        for array in self.arrays:
            array[...] = 0

    def rows(self) -> Lanes:
        """Return the lanes as one row of ``codewords`` for each block, reduced."""
        rows = np.empty((self.blocks, self.shape.codewords), dtype=self.shape.group.word)
        for start, stop, array in self.located():
            part = rows[start - self.first : stop - self.first]
            if self.shape.depth:
                part[...] = self._tree_rows(array)
            else:
                # Column by column, which is several times faster than assigning the transposed array.
                for codeword, lanes in enumerate(array[:, :, 0]):
                    part[:, codeword] = lanes
        self.shape.group.reduce_into(rows)
        return rows

    def _tree_rows(self, array: Lanes) -> Lanes:
        shape, depth, blocks = self.shape, self.shape.depth, array.shape[1]
        pieces: Any = array.view(_PIECE).reshape(shape.pieces, *(2,) * depth, blocks)
        # From (piece, bits of the leaf from the lowest up, block) to (block, bits from the highest down, piece).
        turned = np.ascontiguousarray(pieces.transpose(depth + 1, *range(depth, 0, -1), 0))
        lanes = turned.view(shape.group.word).reshape(blocks, shape.leaves, -1)[:, :, : shape.leaf_lanes]
        rows: Lanes = lanes.reshape(blocks, -1)[:, : shape.codewords]
        return rows


def runs(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Split a range of blocks at the ends of runs; yield each piece's first block and the block after its last."""
    while first < stop:
        edge = min(stop, (first // RUN_BLOCKS + 1) * RUN_BLOCKS)
        yield first, edge
        first = edge


def require_blocks(blocks: int) -> None:
    """Check a number of blocks."""
    require_integer("blocks", blocks, 1, MAXIMUM_BLOCKS)


def require_range(first: int, stop: int, least: int, greatest: int) -> None:
    """Check that a range of blocks is within another."""
    if type(first) is not int or type(stop) is not int or not least <= first < stop <= greatest:
        raise InvalidParameters(
            f"a range of blocks must be within {least}..{greatest} and not empty; got {first!r}..{stop!r}"
        )


NODE_WORDS: Final = 2
NODE_BYTES: Final = 16
_NODE_WORD = np.dtype("<u8")
_ONE: Final = np.uint64(1)
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
    """Kept for the party that makes and sends them; see ``freeze``."""
    digest: bytes = b""
    """Digest to which a proof is bound; compared if another party relayed the bytes."""

    def __post_init__(self) -> None:
        require_tree(self.shape)
        blocks = self.leaf.shape[1]
        require_blocks(blocks)
        levels = (self.shape.depth, blocks, NODE_WORDS)
        if self.left.shape != levels or self.difference.shape != levels:
            raise Misuse(f"correction words of {blocks} blocks must have the form {levels}")
        if self.leaf.shape != (self.shape.pieces, blocks, self.shape.lanes_per_piece):
            raise Misuse("the leaves' correction words do not match their shape")

    @classmethod
    def zeros(cls, shape: PointFunctionShape, blocks: int) -> CorrectionWords:
        require_tree(shape)
        require_blocks(blocks)
        levels = (shape.depth, blocks, NODE_WORDS)
        leaf = np.zeros((shape.pieces, blocks, shape.lanes_per_piece), dtype=shape.group.word)
        return cls(shape, np.zeros(levels, dtype=_NODE_WORD), np.zeros(levels, dtype=np.uint8), leaf)

    @property
    def blocks(self) -> int:
        return int(self.leaf.shape[1])

    def freeze(self) -> CorrectionWords:
        """Return the words with their encoding and digest, computed once; nothing may change afterwards."""
        encoded = self._pack()
        return replace(self, encoded=encoded, digest=_digest(self.shape, encoded))

    def _pack(self) -> bytes:
        lanes = self.leaf.transpose(1, 0, 2).reshape(self.blocks, -1)[:, : self.shape.leaf_lanes]
        bits = _BITS.pack(self.difference.reshape(-1))
        return b"".join([self.left.tobytes(), bits, self.shape.group.pack(lanes.reshape(-1))])

    @staticmethod
    def encoded_bytes(shape: PointFunctionShape, blocks: int) -> int:
        return sum(_parts(shape, blocks))

    def encode(self) -> bytes:
        return self.encoded or self._pack()

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, shape: PointFunctionShape, blocks: int) -> CorrectionWords:
        require_tree(shape)
        require_blocks(blocks)
        view = memoryview(data)
        if not view.c_contiguous:
            raise Misuse("correction words must be contiguous bytes; pass a copy of the view")
        view = view.cast("B")
        sizes = _parts(shape, blocks)
        if view.nbytes != sum(sizes):
            reason = Reason.TRUNCATED if view.nbytes < sum(sizes) else Reason.TRAILING_BYTES
            raise MalformedMessage(
                f"correction words of {blocks} blocks must be {sum(sizes)} bytes; got {view.nbytes}", reason=reason
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
    """Require a shape with a tree."""
    if type(shape) is not PointFunctionShape:
        raise Misuse(f"a shape must be a PointFunctionShape; got {type(shape).__name__}")
    if not shape.depth:
        raise InvalidParameters("there are no correction words at depth 0; server 1 receives its share instead")


def _parts(shape: PointFunctionShape, blocks: int) -> tuple[int, int, int]:
    levels = shape.depth * blocks
    lanes = (blocks * shape.leaf_lanes * shape.group.bits + 7) // 8
    return levels * NODE_BYTES, _BITS.packed_bytes(levels * NODE_WORDS), lanes


class _WithoutTree(Confined):
    """Common part of both shares: lanes in runs, and the addition of a server's lanes."""

    server_index: int

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding) -> None:
        if type(shape) is not PointFunctionShape or type(binding) is not KeyBinding:
            raise Misuse("a share needs a PointFunctionShape and a KeyBinding")
        if shape.depth:
            raise InvalidParameters(f"a shape of depth {shape.depth} has a tree; its shares are TreeShares")
        require_blocks(blocks)
        self.shape = shape
        self.blocks = blocks
        self.binding = binding

    def lanes(self, first: int, count: int) -> Lanes:
        """Return this client's share of blocks [first, first + count) as rows of codewords."""
        require_range(first, first + count, 0, self.blocks)
        grid = LaneGrid.zeros(self.shape, count, first)
        self.accumulate(grid)
        return grid.rows()

    def accumulate(self, grid: LaneGrid) -> None:
        """Add the share of the grid's blocks into the grid."""
        require_range(grid.first, grid.stop, 0, self.blocks)
        made, sent = self._source(), self.shape.sent_lanes
        for first, stop, array in grid.located():
            # A whole run is generated, even if the grid holds only part of it.
            run_first = first // RUN_BLOCKS * RUN_BLOCKS
            run_blocks = min(self.blocks - run_first, RUN_BLOCKS)
            lanes = made(run_first * sent, run_blocks * sent).reshape(sent, run_blocks)
            self._add(array[:, :, 0], lanes[:, first - run_first : stop - run_first])

    def _add(self, part: Lanes, lanes: Lanes) -> None:
        group, last = self.shape.group, part[-1]
        group.add_into(part[:-1], lanes)
        group.subtract_into(last, group.column_sums(lanes))
        if not self.server_index:
            group.add_into(last, np.ones_like(last))

    def _source(self) -> Source:
        raise NotImplementedError


class SeedShare(_WithoutTree):
    """Share of server 0: a seed and its expansion."""

    server_index = 0

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding, seed: Secret) -> None:
        """Take a seed; the caller keeps it and wipes it."""
        super().__init__(shape, blocks, binding)
        self.seed = seed
        self._source()

    @property
    def digest(self) -> bytes:
        """The digest of all inputs of the share."""
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, self.seed, b"")

    def _source(self) -> Source:
        return self.shape.group.stream(lanes_key(self.shape, self.blocks, self.binding, self.seed)).lanes


class ExplicitShare(_WithoutTree):
    """Share of server 1: secret lanes."""

    server_index = 1

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding, sent: Lanes) -> None:
        """Take the lanes that are sent, in the order of runs, and below the order of the group."""
        super().__init__(shape, blocks, binding)
        if sent.dtype != shape.group.word or sent.shape != (blocks * shape.sent_lanes,):
            raise Misuse(f"an explicit share of {blocks} blocks must be {blocks * shape.sent_lanes} {shape.group.word}")
        self._sent = sent

    @property
    def digest(self) -> bytes:
        """The digest of all inputs of the share."""
        sent = hashlib.sha256(bind(Label.POINT_FUNCTION_EXPLICIT_DIGEST, self.encode())).digest()
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, None, sent)

    @staticmethod
    def encoded_bytes(shape: PointFunctionShape, blocks: int) -> int:
        """Return the length of ``encode``'s result in bytes."""
        return (blocks * shape.sent_lanes * shape.group.bits + 7) // 8

    def encode(self) -> bytes:
        """Return the canonical encoding: each lane in exactly p bits."""
        return self.shape.group.pack(self._sent)

    @classmethod
    def decode(
        cls, data: bytes | bytearray | memoryview, shape: PointFunctionShape, blocks: int, binding: KeyBinding
    ) -> ExplicitShare:
        """Decode a share.

        Raises:
            MalformedMessage: the number of bytes is wrong (checked before anything is allocated), a padding bit of the
                last byte is set, or a lane is not below the group's order.
        """
        require_blocks(blocks)
        return cls(shape, blocks, binding, shape.group.unpack(memoryview(data), blocks * shape.sent_lanes))

    def _source(self) -> Source:
        return lambda start, count: self._sent[start : start + count]


_CHUNK_NODES: Final = 1 << 13
"""Number of nodes that are grown at a time: fewer cost interpreter time, more exceed a second-level cache."""


class TreeShare(Confined):
    """One server's part of a client's keys: its seed and the public correction words."""

    def __init__(
        self,
        server_index: int,
        binding: KeyBinding,
        seed: Secret,
        correction: CorrectionWords,
        *,
        hash_family: HashFamily = AesHash,
    ) -> None:
        """Take the parts of a key; the caller wipes the seed.

        Args:
            hash_family: hash of the tree; other values are for tests against other implementations.
        """
        if server_index not in (0, 1) or type(server_index) is not int:
            raise InvalidParameters(f"a server index must be 0 or 1; got {server_index!r}")
        if type(binding) is not KeyBinding or type(correction) is not CorrectionWords:
            raise Misuse("a tree's share needs a KeyBinding, a seed and CorrectionWords")
        self.server_index = server_index
        self.binding = binding
        self.seed = seed
        self.correction = correction
        self._hash_family = hash_family
        with self._roots_key() as key:
            # Refuse a wiped seed, or one of the wrong length, here rather than during evaluation.
            CounterStream(key)

    @property
    def shape(self) -> PointFunctionShape:
        """The shape of the point functions."""
        return self.correction.shape

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.correction.blocks

    @property
    def digest(self) -> bytes:
        """The digest of all inputs of the share."""
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, self.seed, self.correction.digest)

    def lanes(self, first: int, count: int) -> Lanes:
        """Return this client's share of blocks [first, first + count) as rows of codewords."""
        require_range(first, first + count, 0, self.blocks)
        grid = LaneGrid.zeros(self.shape, count, first)
        self.accumulate(grid)
        return grid.rows()

    def accumulate(self, grid: LaneGrid) -> None:
        """Add the share of the grid's blocks into the grid.

        Raises:
            MalformedMessage: no attempt gave a lane of the field; the client's key is refused. The grid then holds part
                of its share.
        """
        require_range(grid.first, grid.stop, 0, self.blocks)
        chunk, depth = min(_CHUNK_NODES, grid.blocks), self.shape.depth
        scratch = _scratch(min(chunk << depth, _CHUNK_NODES), depth)
        try:
            with self._roots_key() as key:
                roots = CounterStream(key)
                # A run of blocks has one hash.
                for first, end, lanes in grid.located():
                    node_hash = self._hash_family(self.binding, first // GROUP_BLOCKS)
                    for start in range(first, end, _CHUNK_NODES):
                        blocks = slice(start, min(end, start + _CHUNK_NODES))
                        root = scratch.words(0, blocks.stop - start)
                        roots.fill(scratch.levels[0], start, root.nbytes)
                        root_into(root, self.server_index)
                        part = lanes[:, start - first : blocks.stop - first]
                        _Chunk(self, blocks, node_hash, part, scratch).grow(0, 0, root.reshape(1, -1))
        finally:
            scratch.wipe()

    def _roots_key(self) -> Secret:
        return roots_key(self.shape, self.blocks, self.binding, self.server_index, self.seed)


class _Chunk:
    """Trees of some blocks while they are evaluated into the grid; all nodes of a level use the same memory."""

    def __init__(self, share: TreeShare, blocks: slice, node_hash: NodeHash, part: Lanes, scratch: _Scratch) -> None:
        self._node_hash, self._part, self._memory = node_hash, part, scratch.lanes
        self._group, self._places = share.shape.group, share.shape.leaves
        self._combine = self._group.subtract_into if share.server_index else self._group.add_into
        self._levels = list[tuple[Any, ...]]()
        correction, rows, words = share.correction, 1, part.shape[1] * NODE_WORDS
        for level in range(share.shape.depth):
            half, memory = rows * words, scratch.levels[level + 1]
            children = scratch.words(level + 1, half).reshape(2, rows, words)
            targets = (memory, memory[half * _NODE_WORD.itemsize :])
            corrections = (lanes[level, blocks].reshape(1, words) for lanes in (correction.left, correction.difference))
            is_narrow = half <= scratch.nodes
            below = ((0, children.reshape(-1, words)),) if is_narrow else ((0, children[0]), (1 << level, children[1]))
            self._levels.append((targets, children, below, scratch.pair(rows, words), *corrections))
            rows <<= is_narrow
        self._pair = scratch.pair(rows, words)
        self._leaf: list[NodeWords] = [lanes[blocks].reshape(1, -1).view(_NODE_WORD) for lanes in correction.leaf]

    def grow(self, level: int, place: int, parents: NodeWords) -> None:
        """Grow nodes of a level, one row per place in the grid from ``place`` on, and add their leaves."""
        if level == len(self._levels):
            self._add(place, parents)
            return
        targets, children, below, (control, shared), correction, difference = self._levels[level]
        # Compute the right half first, because the left half's slack overlaps it.
        self._node_hash.permute_into(RIGHT, parents, targets[1])
        self._node_hash.permute_into(LEFT, parents, targets[0])
        control = control_bits_in(control, parents)
        grow_into(parents, children, control, masked_in(shared, control, correction), difference)
        for offset, nodes in below:
            self.grow(level + 1, place + offset, nodes)

    def _add(self, place: int, nodes: NodeWords) -> None:
        """Turn leaves into lanes and add these to their places, piece by piece."""
        group, flat, (control, shared) = self._group, nodes.reshape(-1), self._pair
        control_bits_in(control, nodes)
        for piece, correction in enumerate(self._leaf):
            lanes = leaf_lanes(self._node_hash, group, piece, flat, self._memory)
            group.add_into(lanes, masked_in(shared, control, correction).view(lanes.dtype).reshape(-1))
            part = self._part[piece * self._places + place :][: len(nodes)]
            self._combine(part, lanes.reshape(part.shape))


class _Scratch:
    """Nodes of one path's levels with their siblings, and intermediate values of as many nodes.

    The memory is kept: otherwise the system may map fresh memory for every operation, which was measured to take as
    long as the operation. It is aligned to cache lines, which makes a pass a quarter faster.
    """

    def __init__(self, nodes: int, depth: int) -> None:
        self.room, self.nodes, self.depth = nodes, nodes, depth
        bytes_of = Ring(8).zeros
        self.levels = [bytes_of(2 * nodes * NODE_BYTES + SLACK_BYTES) for _ in range(depth + 1)]
        self.lanes = bytes_of(nodes * NODE_BYTES + SLACK_BYTES)
        self.control, self.shared = (Ring(64).zeros(nodes * NODE_WORDS) for _ in range(2))

    def words(self, level: int, nodes: int) -> NodeWords:
        """Return the first nodes of a level."""
        return self.levels[level][: nodes * NODE_BYTES].view(_NODE_WORD)

    def pair(self, rows: int, words: int) -> tuple[NodeWords, NodeWords]:
        """Return memory for control bits and for what they mask, in rows of ``words`` words."""
        control, shared = (memory[: rows * words].reshape(rows, words) for memory in (self.control, self.shared))
        return control, shared

    def wipe(self) -> None:
        """Overwrite everything that depends on a seed."""
        for memory in (*self.levels, self.lanes, self.control, self.shared):
            memory[: 2 * self.nodes * NODE_BYTES // memory.itemsize] = 0


_kept = threading.local()


def _scratch(nodes: int, depth: int) -> _Scratch:
    """Return this thread's scratch memory for a tree with at least ``nodes`` nodes a level; the caller wipes it."""
    scratch: _Scratch | None = getattr(_kept, "scratch", None)
    if scratch is None or scratch.room < nodes or scratch.depth < depth:
        scratch = _kept.scratch = _Scratch(nodes, depth)
    scratch.nodes = nodes
    return scratch


def control_bits_in(memory: NodeWords, nodes: NodeWords) -> NodeWords:
    """Like ``control_bits``, with the result in memory of the same form."""
    return np.bitwise_and(nodes, _ONE, out=memory)


def masked_in(memory: NodeWords, control: NodeWords, correction: NodeWords) -> NodeWords:
    """Like ``masked``, with the result in memory of the same form."""
    return np.multiply(control, correction, out=memory)


def leaf_lanes(node_hash: NodeHash, group: LaneGroup, piece: int, nodes: NodeWords, memory: Bytes) -> Lanes:
    """Return the uniform lanes that leaves hash to, in ``memory``, before any correction."""
    node_hash.permute_into(lanes_role(piece), nodes, memory)
    words: Any = memory[: nodes.nbytes].view(nodes.dtype)
    lanes: Lanes = feed_forward_into(words, nodes).view(group.word)

    def retry(attempt: int, missing: npt.NDArray[np.intp]) -> Lanes:
        per_node = NODE_BYTES // group.word.itemsize
        again = nodes.reshape(-1, NODE_WORDS)[missing // per_node]
        target = np.empty(again.nbytes + SLACK_BYTES, dtype=np.uint8)
        node_hash.permute_into(lanes_role(piece, attempt), again, target)
        hashed: Any = target[: again.nbytes].view(again.dtype)
        words_again = feed_forward_into(hashed, again.reshape(-1)).view(group.word)
        chosen: Lanes = words_again.reshape(-1, per_node)[np.arange(missing.size), missing % per_node]
        return chosen

    group.settle(lanes, retry)
    return lanes
