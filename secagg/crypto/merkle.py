"""Merkle trees, with one proof for any number of leaves.

A node is the hash of its two children; a node without a sibling moves up unchanged. Leaves are hashed under separate
labels, and a signature or binding of a root also covers the number of leaves, so a root has only one tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from secagg.errors import InvalidParameters, MalformedMessage, Reason

from .labels import Label, bind

NODE_BYTES: Final = 32
_BEFORE_RIGHT: Final = NODE_BYTES.to_bytes(4, "big")
_BEFORE_LEFT: Final = bind(Label.MERKLE_NODE) + _BEFORE_RIGHT


class MerkleTree:
    """The tree over a list of leaves."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise InvalidParameters("a tree needs at least one leaf")
        self._levels = [list(leaves)]
        while len(below := self._levels[-1]) > 1:
            level = [_node(below[index], below[index + 1]) for index in range(0, len(below) - 1, 2)]
            self._levels.append(level + below[len(level) * 2 :])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def path_of(self, position: int) -> tuple[bytes, ...]:
        """Return the path of one leaf: the siblings up to the root."""
        path: list[bytes] = []
        for level in self._levels[:-1]:
            if (sibling := position ^ 1) < len(level):
                path.append(level[sibling])
            position //= 2
        return tuple(path)

    def prove(self, positions: Iterable[int]) -> list[bytes]:
        """Return the nodes that are needed for the root, in addition to the leaves at these positions."""
        proof = list[bytes]()
        known = sorted(set(positions))
        for level in self._levels[:-1]:
            present = set(known)
            siblings = (index ^ 1 for index in known)
            proof += [level[sibling] for sibling in siblings if sibling not in present and sibling < len(level)]
            known = sorted({index // 2 for index in known})
        return proof


def recover_root(count: int, leaves: Mapping[int, bytes], proof: Sequence[bytes]) -> bytes:
    """Return the root of the tree of ``count`` leaves that has these leaves at these positions.

    Raises:
        MalformedMessage: the proof has too few or too many nodes.
    """
    rest = iter(proof)
    known, width = dict(leaves), count
    while width > 1:
        above = dict[int, bytes]()
        for index in sorted(known):
            if index // 2 in above:
                continue
            sibling = index ^ 1
            if sibling == width:
                above[index // 2] = known[index]
                continue
            other = known.get(sibling) or next(rest, None)
            if other is None:
                raise MalformedMessage("the proof has too few nodes", reason=Reason.TRUNCATED)
            above[index // 2] = _node(known[index], other) if index < sibling else _node(other, known[index])
        known, width = above, (width + 1) // 2
    if next(rest, None) is not None:
        raise MalformedMessage("the proof has too many nodes", reason=Reason.TRAILING_BYTES)
    return known[0]


def _node(left: bytes, right: bytes) -> bytes:
    # A faster bind(Label.MERKLE_NODE, left, right) for two hashes: clients hash thousands of nodes.
    return hashlib.sha256(b"".join((_BEFORE_LEFT, left, _BEFORE_RIGHT, right))).digest()
