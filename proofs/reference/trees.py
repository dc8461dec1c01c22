"""Keys of point functions and both servers' shares, made by the library with a hash that the reference has too."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from questions import Question, listed
from secagg.identifiers import CONTEXT_BYTES, ClientId
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.lanes import CounterStream, LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import (
    SLACK_BYTES,
    KeyBinding,
    NodeWords,
    PointFunctionShape,
    Role,
    greatest_depth,
    roots_key,
)
from secagg.protocols.two_servers.point_functions.shares import NODE_BYTES, NODE_WORDS, TreeShare, root_into

SHAPES: Final = 50
BLOCKS: Final = 12
GROUPS: Final = (*map(RingLanes, (1, 5, 8, 13, 16, 24, 32, 47, 64)), *map(LaneField, (127, 8191, 131071)))


class Md5Hash:
    """Any hash works; this one is available on both sides and depends on every bit of a node."""

    def __init__(self, binding: KeyBinding, group: int) -> None:
        """Take the arguments of the library's own hash."""

    def permute_into(self, role: Role, nodes: NodeWords, target: npt.NDArray[np.uint8]) -> None:
        """Write the hash, without the feed-forward that the kernels add."""
        data, name = nodes.reshape(-1).tobytes(), role.encode()
        hashed = b"".join(
            hashlib.md5(name + data[start : start + NODE_BYTES], usedforsecurity=False).digest()
            for start in range(0, len(data), NODE_BYTES)
        )
        target[: len(data)] = np.frombuffer(hashed, np.uint8) ^ np.frombuffer(data, np.uint8)


class SeededCoins:
    """Coins of one case."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def draw(self, count: int) -> bytearray:
        """Return bytes."""
        return bytearray(self._chance.randbytes(count))


def trees(chance: random.Random) -> Iterator[Question]:
    """Yield keys of trees of any depth, with any number of lanes per leaf, in any group."""
    for _ in range(SHAPES):
        codewords = chance.choice((2, 3, chance.randint(4, 40), chance.randint(4, 40)))
        depth = chance.randint(1, min(4, greatest_depth(codewords)))
        yield _tree(chance, PointFunctionShape(codewords=codewords, group=chance.choice(GROUPS), depth=depth))


def _tree(chance: random.Random, shape: PointFunctionShape) -> Question:
    group: LaneGroup = shape.group
    alpha = np.array([chance.randrange(shape.codewords) for _ in range(BLOCKS)], np.int64)
    context, client, coins = bytes(CONTEXT_BYTES), ClientId(1), SeededCoins(chance)
    shares = generate_shares(shape, alpha, context=context, client=client, coins=coins, hash_family=Md5Hash)
    roots, rows = list[list[list[int]]](), list[list[list[int]]]()
    for share in shares:
        if not isinstance(share, TreeShare):
            raise TypeError("a shape with a depth has trees")
        roots.append((_roots(share) >> np.uint64(1)).tolist())
        rows.append(share.lanes(0, BLOCKS).tolist())
        correction = share.correction
    is_field = isinstance(group, LaneField)
    header = f"tree {shape.depth} {shape.leaf_lanes} {group.word.itemsize} {group.order:x} {is_field:d}"
    asked, due = [f"{header} {shape.codewords} {BLOCKS}"], list[str]()
    for block in range(BLOCKS):
        asked.append(listed([int(alpha[block]), 1, *roots[0][block], *roots[1][block]]))
        words = np.stack([correction.left[:, block], correction.difference[:, block].astype(np.uint64)], axis=-1)
        last = correction.leaf[:, block].reshape(-1)[: shape.leaf_lanes]
        due.append(listed([*words.reshape(-1).tolist(), *last.tolist(), *rows[0][block], *rows[1][block]]))
    return Question("trees of point functions", asked, due)


def _roots(share: TreeShare) -> npt.NDArray[np.uint64]:
    """Return a server's roots, one row of words for each block."""
    memory = np.empty(share.blocks * NODE_BYTES + SLACK_BYTES, np.uint8)
    with roots_key(share.shape, share.blocks, share.binding, share.server_index, share.seed) as key:
        CounterStream(key).fill(memory, 0, share.blocks * NODE_BYTES)
    words: npt.NDArray[np.uint64] = memory[: share.blocks * NODE_BYTES].view("<u8")
    return root_into(words, share.server_index).reshape(-1, NODE_WORDS)
