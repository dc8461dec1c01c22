"""Generation of point functions by a client: for every block, shares of the vector that is 1 at alpha and 0 elsewhere.

Implements: [BGI16] Fig. 1, Gen, for all blocks at once, with early termination.

Only the nodes on the path to alpha are computed, once for each server. No memory access depends on alpha:
its bits select by masks, and its lane is found by comparing all lanes. Threads divide the blocks; ciphers and array
operations release the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret, abandoned_on_error, draw_exactly
from secagg.errors import CapacityExceeded, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.parameters import require_integer

from .lanes import CounterStream, Lanes
from .shape import (
    GROUP_BLOCKS,
    LEFT,
    NONCE_BYTES,
    RIGHT,
    RUN_BLOCKS,
    SEED_BYTES,
    SLACK_BYTES,
    AesHash,
    HashFamily,
    KeyBinding,
    NodeHash,
    NodeWords,
    PointFunctionShape,
    Role,
    lanes_key,
    roots_key,
)
from .shares import (
    NODE_BYTES,
    NODE_WORDS,
    CorrectionWords,
    ExplicitShare,
    SeedShare,
    TreeShare,
    control_bits,
    correction_of,
    feed_forward_into,
    kept_child,
    leaf_lanes,
    require_blocks,
    root_into,
    runs,
    spread,
)

CHUNK_BLOCKS: Final = 1 << 12
"""Number of blocks whose trees are generated at a time; divides both a run and a group of blocks."""


def over_threads(shape: PointFunctionShape, blocks: int, threads: int, job: Callable[[int, int], None]) -> None:
    """Call ``job(first, stop)`` for ranges that cover all blocks, on at most ``threads`` threads.

    Ranges end at the ends of runs (with a tree: of chunks), so that no two threads make one run.
    """
    require_integer("threads", threads, 1)
    parts = _cut(blocks, threads, CHUNK_BLOCKS if shape.depth else RUN_BLOCKS)
    if len(parts) == 1:
        job(0, blocks)
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        for finished in [pool.submit(job, first, stop) for first, stop in parts]:
            finished.result()


def _cut(blocks: int, parts: int, edge: int) -> list[tuple[int, int]]:
    edges = -(-blocks // edge)
    cuts = sorted({min(blocks, edges * index // parts * edge) for index in range(parts + 1)})
    return list(pairwise(cuts))


_POSITION: Final = np.dtype("<u8")

ServerShare = SeedShare | ExplicitShare | TreeShare
Integers = npt.NDArray[np.integer[Any]]


def generate_shares(  # noqa: PLR0913 -- all but four have defaults
    shape: PointFunctionShape,
    alpha: Integers,
    *,
    context: bytes,
    client: ClientId,
    coins: Coins,
    threads: int = 1,
    hash_family: HashFamily = AesHash,
) -> tuple[ServerShare, ServerShare]:
    """Share, for every block b, the vector that is 1 at alpha[b] and 0 elsewhere; return the servers' shares.

    Args:
        context: digest of everything on which the client and the servers agree.
    Raises:
        CapacityExceeded: a codeword is out of range; the error does not say which one.
    Security: seeds are fresh in every call, so no two vectors are shared under one. The caller sends each server its
        share, over a channel that the other server cannot read, and wipes the seeds.
    """
    if type(shape) is not PointFunctionShape:
        raise Misuse(f"a shape must be a PointFunctionShape; got {type(shape).__name__}")
    require_integer("threads", threads, 1)
    place = _Place.of(shape, alpha)
    binding = KeyBinding(context=context, client=client, nonce=bytes(draw_exactly(NONCE_BYTES, coins)))
    seed_0 = Secret.random("point function seed", SEED_BYTES, coins)
    if not shape.depth:
        with abandoned_on_error(seed_0):
            sent = _explicit(place, binding, seed_0)
            return SeedShare(shape, place.blocks, binding, seed_0), ExplicitShare(shape, place.blocks, binding, sent)
    with abandoned_on_error(seed_0):
        seed_1 = Secret.random("point function seed", SEED_BYTES, coins)
    with abandoned_on_error(seed_0, seed_1):
        correction = CorrectionWords.zeros(shape, place.blocks)
        job = _Tree(place, binding, (seed_0, seed_1), correction, hash_family)
        over_threads(shape, place.blocks, threads, job.run)
        correction = correction.freeze()
        share_0 = TreeShare(0, binding, seed_0, correction, hash_family=hash_family)
        return share_0, TreeShare(1, binding, seed_1, correction, hash_family=hash_family)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Place:
    """Codeword number of each block."""

    shape: PointFunctionShape
    alpha: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, shape: PointFunctionShape, alpha: Any) -> _Place:  # noqa: ANN401 -- checked here
        places: Any = alpha
        if type(alpha) is not np.ndarray or places.ndim != 1 or places.dtype.kind not in "iu":
            raise Misuse("alpha must be a one-dimensional array of integers, one per block")
        require_blocks(int(places.size))
        if int(places.min()) < 0 or int(places.max()) >= shape.codewords:
            raise CapacityExceeded(f"alpha must be in 0..{shape.codewords - 1}", reason=Reason.INPUT_OUT_OF_RANGE)
        return cls(shape, places.astype(_POSITION))

    @property
    def blocks(self) -> int:
        return int(self.alpha.size)


def _explicit(place: _Place, binding: KeyBinding, seed_0: Secret) -> Lanes:
    """Return server 1's share at depth 0: the vectors minus server 0's expansion of its seed."""
    shape, group, sent = place.shape, place.shape.group, place.shape.sent_lanes
    stream = group.stream(lanes_key(shape, place.blocks, binding, seed_0))
    lanes = np.empty(place.blocks * sent, dtype=group.word)
    for first, stop in runs(0, place.blocks):
        run = lanes[first * sent : stop * sent].reshape(sent, -1)
        np.equal(place.alpha[first:stop], np.arange(sent, dtype=_POSITION)[:, np.newaxis], out=run, casting="unsafe")
        group.subtract_into(run, stream.lanes(first * sent, run.size).reshape(run.shape))
    group.reduce_into(lanes)
    return lanes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Tree:
    """Correction words of a range of blocks."""

    place: _Place
    binding: KeyBinding
    seeds: tuple[Secret, Secret]
    correction: CorrectionWords
    hash_family: HashFamily

    def run(self, first: int, stop: int) -> None:
        shape, blocks = self.place.shape, self.place.blocks
        streams = list[CounterStream]()
        for server_index, seed in enumerate(self.seeds):
            with roots_key(shape, blocks, self.binding, server_index, seed) as key:
                streams.append(CounterStream(key))
        for start in range(first, stop, CHUNK_BLOCKS):
            node_hash = self.hash_family(self.binding, start // GROUP_BLOCKS)
            self._chunk(start, min(stop, start + CHUNK_BLOCKS), streams, node_hash)

    def _chunk(self, start: int, stop: int, streams: list[CounterStream], node_hash: NodeHash) -> None:
        shape = self.place.shape
        alpha = self.place.alpha[start:stop]
        leaf, lane = np.divmod(alpha, _POSITION.type(shape.leaf_lanes))
        nodes = list[NodeWords]()
        for server_index, stream in enumerate(streams):
            memory = np.empty(alpha.size * NODE_BYTES + SLACK_BYTES, dtype=np.uint8)
            root = memory[: alpha.size * NODE_BYTES].view(_POSITION)
            stream.fill(memory, start, root.nbytes)
            root_into(root, server_index)
            nodes.append(root)
        for level in range(shape.depth):
            bit = np.repeat((leaf >> _POSITION.type(shape.depth - 1 - level)) & _POSITION.type(1), NODE_WORDS)
            children = [(_hashed(node_hash, LEFT, node), _hashed(node_hash, RIGHT, node)) for node in nodes]
            words: tuple[NodeWords, NodeWords] = correction_of(children[0], children[1], bit)
            nodes = [kept_child(node, pair, words, bit) for node, pair in zip(nodes, children, strict=True)]
            correction, difference = words
            self.correction.left[level, start:stop] = correction.reshape(-1, NODE_WORDS)
            self.correction.difference[level, start:stop] = difference.reshape(-1, NODE_WORDS)
        self._leaf(slice(start, stop), lane, nodes, node_hash)

    def _leaf(self, blocks: slice, lane: npt.NDArray[np.uint64], nodes: list[NodeWords], node_hash: NodeHash) -> None:
        shape, group = self.place.shape, self.place.shape.group
        negative: Any = spread(control_bits(nodes[1])).view(group.word).reshape(lane.size, -1)
        memories = [np.empty(node.nbytes + SLACK_BYTES, dtype=np.uint8) for node in nodes]
        for piece in range(shape.pieces):
            lanes_0, lanes_1 = (
                leaf_lanes(node_hash, group, piece, node, memory).reshape(lane.size, -1)
                for node, memory in zip(nodes, memories, strict=True)
            )
            held = range(piece * shape.lanes_per_piece, (piece + 1) * shape.lanes_per_piece)
            numbers = np.arange(held.start, held.stop, dtype=_POSITION)
            target = (lane[:, np.newaxis] == numbers).astype(group.word)
            corrected = group.correction(target, lanes_0, lanes_1, negative)
            # Unused lanes of a leaf are not sent, and are zero at every receiver.
            corrected[:, max(0, shape.leaf_lanes - held.start) :] = 0
            self.correction.leaf[piece, blocks] = corrected


def _hashed(node_hash: NodeHash, role: Role, nodes: NodeWords) -> NodeWords:
    memory = np.empty(nodes.nbytes + SLACK_BYTES, dtype=np.uint8)
    node_hash.permute_into(role, nodes, memory)
    hashed: NodeWords = feed_forward_into(memory[: nodes.nbytes].view(_POSITION), nodes)
    return hashed
