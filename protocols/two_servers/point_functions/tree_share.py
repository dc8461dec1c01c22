"""One server's share of a tree's point functions: the evaluation of a key, for any range of blocks.

A chunk of blocks is grown level by level. The children of a level are stored as all left ones and then all right ones,
so that every cipher call and every pass over memory is contiguous; chunks are chosen so that the widest level stays in
a second-level cache. The result is added into a grid, which may hold one client's share or the sum of many.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.groups import LaneGroup, Lanes
from secagg.protocols.two_servers.lanes.streams import Bytes, CounterStream

from .correction_words import NODE_BYTES, NODE_WORDS, CorrectionWords
from .grid import LaneGrid, require_range
from .kernels import feed_forward_into, grow_into, root_into
from .seeds import require_weight, roots_key, share_digest
from .shape import PointFunctionShape
from .tree_hash import (
    GROUP_BLOCKS,
    LEFT,
    RIGHT,
    SLACK_BYTES,
    AesHash,
    HashFamily,
    KeyBinding,
    NodeHash,
    NodeWords,
    lanes_role,
)

_WIDEST_NODES: Final = 1 << 16
_LEAST_CHUNK: Final = 16


class TreeShare(Confined):
    """What one server holds of a client's keys: its seed and the public correction words."""

    def __init__(  # noqa: PLR0913 -- all but four are keywords with defaults
        self,
        server_index: int,
        binding: KeyBinding,
        seed: Secret,
        correction: CorrectionWords,
        *,
        chunk_blocks: int | None = None,
        hash_family: HashFamily = AesHash,
    ) -> None:
        """Take the parts of a key; the caller keeps the seed and wipes it.

        Args:
            chunk_blocks: how many blocks are grown at a time; the result does not depend on it.
            hash_family: the hash of the tree; another than the default is for tests against other implementations.
        """
        if server_index not in (0, 1) or type(server_index) is not int:
            raise InvalidParameters(f"a server index is 0 or 1; got {server_index!r}")
        if type(binding) is not KeyBinding or type(correction) is not CorrectionWords:
            raise Misuse("a tree's share is made from a KeyBinding, a seed and CorrectionWords")
        if chunk_blocks is not None:
            require_integer("chunk_blocks", chunk_blocks, 1)
        self.server_index = server_index
        self.binding = binding
        self.seed = seed
        self.correction = correction
        self._chunk_blocks = chunk_blocks or default_chunk(correction.shape)
        self._hash_family = hash_family
        with self._roots_key() as key:
            # A wiped seed, or one of another length, is refused here and not on the way.
            CounterStream(key)

    @property
    def shape(self) -> PointFunctionShape:
        """The shape of the point functions."""
        return self.correction.shape

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.correction.blocks

    @property
    def digest(self) -> bytes:
        """The digest of everything that the share is made from."""
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, self.seed, self.correction.digest)

    def lanes(self, first: int, count: int) -> Lanes:
        """Return this client's share of blocks [first, first + count) as rows of codewords."""
        require_range(first, first + count, 0, self.blocks)
        grid = LaneGrid.zeros(self.shape, count, first)
        self.accumulate(grid)
        return grid.rows()

    def accumulate(self, grid: LaneGrid, weight: int = 1) -> None:
        """Add the share of the grid's blocks, times a public weight, into the grid.

        Raises:
            MalformedMessage: a lane of the field was not found in any attempt; the client's key is refused. The grid
                then holds part of its share.
        """
        require_range(grid.first, grid.stop, 0, self.blocks)
        require_weight(weight, self.shape.group)
        nodes_at_once = min(self._chunk_blocks, grid.blocks) * self.shape.leaves
        scratch = _scratch(nodes_at_once)
        try:
            with self._roots_key() as key:
                roots = CounterStream(key)
                for start, stop, node_hash in self._chunks(grid.first, grid.stop):
                    nodes, control = self._leaves(roots, node_hash, start, stop, scratch)
                    self._add_lanes(grid.part(start, stop), nodes, control, node_hash, scratch, weight)
        finally:
            scratch.wipe(nodes_at_once)

    def _roots_key(self) -> Secret:
        return roots_key(self.shape, self.blocks, self.binding, self.server_index, self.seed)

    def _chunks(self, first: int, stop: int) -> Iterator[tuple[int, int, NodeHash]]:
        """Cut a range into chunks that lie within one group of blocks, whose hash comes with each."""
        while first < stop:
            group = first // GROUP_BLOCKS
            node_hash = self._hash_family(self.binding, group)
            end = min(stop, (group + 1) * GROUP_BLOCKS)
            while first < end:
                yield first, min(end, first + self._chunk_blocks), node_hash
                first = min(end, first + self._chunk_blocks)

    def _leaves(
        self, roots: CounterStream, node_hash: NodeHash, start: int, stop: int, scratch: _Scratch
    ) -> tuple[NodeWords, NodeWords]:
        """Grow the trees of a chunk and return their leaves, with the control bits of these."""
        count = stop - start
        node = scratch.words(count)
        roots.fill(scratch.memory, start, node.nbytes)
        root_into(node, self.server_index)
        for level in range(self.shape.depth):
            half = (count << level) * NODE_BYTES
            scratch.swap()
            # The right half comes first, because the slack of the left one lies in it.
            node_hash.permute_into(RIGHT, node, scratch.memory[half:])
            node_hash.permute_into(LEFT, node, scratch.memory)
            parents = node.reshape(1 << level, -1)
            children = scratch.words(count << (level + 1)).reshape(2, 1 << level, -1)
            control = control_bits_in(scratch.control, parents)
            shared = masked_in(scratch.shared, control, self.correction.left[level, start:stop].reshape(-1))
            difference = self.correction.difference[level, start:stop].reshape(-1).astype(node.dtype)
            grow_into(parents, (children[0], children[1]), control, shared, difference)
            node = children.reshape(-1)
        return node, control_bits_in(scratch.control, node.reshape(self.shape.leaves, -1))

    def _add_lanes(  # noqa: PLR0913, PLR0917 -- the pieces of one step
        self,
        part: LaneGrid,
        nodes: NodeWords,
        control: NodeWords,
        node_hash: NodeHash,
        scratch: _Scratch,
        weight: int,
    ) -> None:
        """Turn the leaves into lanes and add these to the grid's part, piece by piece."""
        group, leaves = self.shape.group, self.shape.leaves
        combine = group.subtract_into if self.server_index else group.add_into
        scratch.swap()
        for piece in range(self.shape.pieces):
            lanes = leaf_lanes(node_hash, group, piece, nodes, scratch.memory)
            correction: Any = self.correction.leaf[piece, part.first : part.stop].reshape(-1).view(nodes.dtype)
            group.add_into(lanes, masked_in(scratch.shared, control, correction).view(group.word).reshape(-1))
            if weight != 1:
                group.scale_into(lanes, weight)
            made = lanes.reshape(leaves, part.blocks, -1)
            for start, stop, array in part.located():
                combine(array[piece * leaves : (piece + 1) * leaves], made[:, start - part.first : stop - part.first])


class _Scratch:
    """Two buffers for nodes, which take turns as parents and children, and two for what is computed on the way.

    Memory that is kept: fresh memory of this size may be mapped anew by the system for every operation, which was
    measured to take as long as the operation.
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.control = np.empty(nodes * NODE_WORDS, dtype="<u8")
        self.shared = np.empty(nodes * NODE_WORDS, dtype="<u8")
        self.memory = np.empty(nodes * NODE_BYTES + SLACK_BYTES + 1, dtype=np.uint8)
        self._other = np.empty_like(self.memory)

    def swap(self) -> None:
        """Write to the other buffer from here on."""
        self.memory, self._other = self._other, self.memory

    def words(self, nodes: int) -> NodeWords:
        """Return the first nodes of the buffer that is written to."""
        return self.memory[: nodes * NODE_BYTES].view("<u8")

    def wipe(self, nodes: int) -> None:
        """Overwrite what so many nodes have used."""
        for words in (self.control, self.shared):
            words[: nodes * NODE_WORDS] = 0
        for memory in (self.memory, self._other):
            memory[: nodes * NODE_BYTES] = 0


_kept = threading.local()


def _scratch(nodes: int) -> _Scratch:
    """Return this thread's scratch memory, of at least so many nodes; whoever uses it wipes it."""
    scratch: _Scratch | None = getattr(_kept, "scratch", None)
    if scratch is None or scratch.nodes < nodes:
        scratch = _kept.scratch = _Scratch(nodes)
    return scratch


def default_chunk(shape: PointFunctionShape) -> int:
    """Return how many blocks are grown at a time: as many as a cache holds at the widest level."""
    return max(_LEAST_CHUNK, min(GROUP_BLOCKS, _WIDEST_NODES >> shape.depth))


def control_bits_in(memory: NodeWords, nodes: NodeWords) -> NodeWords:
    """Return what ``control_bits`` gives, in memory that is there already."""
    return np.bitwise_and(nodes, nodes.dtype.type(1), out=memory[: nodes.size].reshape(nodes.shape))


def masked_in(memory: NodeWords, control: NodeWords, correction: NodeWords) -> NodeWords:
    """Return what ``masked`` gives, in memory that is there already."""
    return np.multiply(control, correction, out=memory[: control.size].reshape(control.shape))


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
