"""Shape of a point function, the hash of its tree, and the streams into which its seeds expand.

At depth 0 there is no tree: server 0 expands a seed into its share, and server 1 receives its share. At depth t the
codewords are divided among 2^t leaves of ceil(k / 2^t) lanes, and every level costs one correction word of 130 bits:

    bits a block = 130 t + ceil(k / 2^t) p

The explicit share omits the last lane: the lanes of every block add up to 1, so both servers can compute it. Trees
cannot omit it, because all leaves share their correction word.

The hash is AES as a public permutation with feed-forward, under keys that change:

    H_role(s) = AES_K(s) xor s,    K = SHA-256(label, context, client, nonce, group, role)[:16]

Each child of a node and each piece of a leaf's lanes has a separate role and key, which both servers know with the
correction words. H only needs to be pseudo-random on fresh, independent seeds; it needs no security for related inputs,
unlike in a tree of correlated nodes.

Keys change because of multi-target attacks. One computation of AES_K can be compared with every unknown node that is
hashed under K, so with T such nodes, of 126 bits each, the work is about 2^126 / T. A key serves one client and 16,384
blocks, and in each block the nodes on one path: T is 2^14 times the depth, whatever the number of clients and blocks,
which leaves 110 bits at depth 4 and 108 at depth 12. The nonce is fresh, so that nothing can be computed before the
keys are known. For the same reason a stream's key and IV are derived together from its whole context: an attacker must
guess seeds for one client and round at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, require_secret
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import CONTEXT_BYTES, ClientId
from secagg.parameters import require_integer

from .lanes import AES_BLOCK_BYTES, STREAM_KEY_BYTES, LaneField, LaneGroup, RingLanes

LEAST_CODEWORDS: Final = 2
MAXIMUM_CODEWORDS: Final = 1 << 12
MAXIMUM_BLOCKS: Final = 1 << 26
SEED_BITS: Final = 126
"""A node is 128 bits, two of them control bits."""
CORRECTION_BITS: Final = SEED_BITS + 4
RUN_BLOCKS: Final = 1 << 14
"""Lanes are laid out in runs of this many blocks; the last run may be shorter. Part of the explicit share's bytes.

Measured: in shorter runs the interpreter takes a large part of the time, and longer ones leave the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFunctionShape:
    """Public parameters of point functions, the same for all clients."""

    codewords: int
    group: LaneGroup
    depth: int

    def __post_init__(self) -> None:
        require_integer("codewords", self.codewords, LEAST_CODEWORDS, MAXIMUM_CODEWORDS)
        if type(self.group) not in (RingLanes, LaneField):
            raise Misuse(f"the group must be RingLanes or a LaneField; got {type(self.group).__name__}")
        deepest = greatest_depth(self.codewords)
        if type(self.depth) is not int or not 0 <= self.depth <= deepest:
            raise InvalidParameters(f"depth must be in 0..{deepest} for {self.codewords} codewords; got {self.depth!r}")

    @classmethod
    def cheapest(cls, codewords: int, group: LaneGroup) -> PointFunctionShape:
        """Return the shape with the shortest upload; among equally short ones, the one with fewer cipher calls."""
        depths = range(greatest_depth(codewords) + 1)
        shapes = [cls(codewords=codewords, group=group, depth=depth) for depth in depths]
        return min(shapes, key=lambda shape: (shape.upload_bits, shape.cipher_calls))

    @property
    def derives_last_lane(self) -> bool:
        """Whether the servers compute the last lane, separately for each client."""
        return not self.depth

    @property
    def leaves(self) -> int:
        return 1 << self.depth

    @property
    def leaf_lanes(self) -> int:
        """Number of lanes of a leaf; the last leaf may have some beyond the codewords."""
        return -(-self.codewords // self.leaves)

    @property
    def sent_lanes(self) -> int:
        return self.leaf_lanes - self.derives_last_lane

    @property
    def upload_bits(self) -> int:
        """Bits per block that both servers receive together, if one relays the correction words to the other."""
        return tree_bits(self.codewords, self.group.bits, self.depth) - self.derives_last_lane * self.group.bits

    @property
    def lanes_per_piece(self) -> int:
        return AES_BLOCK_BYTES // self.group.word.itemsize

    @property
    def pieces(self) -> int:
        return -(-self.leaf_lanes // self.lanes_per_piece)

    @property
    def cipher_calls(self) -> float:
        """Number of server 0's cipher calls per block; fractional at depth 0, where blocks share a stream."""
        if not self.depth:
            return self.sent_lanes * self.group.word.itemsize / AES_BLOCK_BYTES
        return 1 + 2 * (self.leaves - 1) + self.leaves * self.pieces

    def encode(self) -> tuple[bytes, ...]:
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
    """Return the correction bits per block for a tree of this depth, or the explicit share's with all lanes."""
    return CORRECTION_BITS * depth + -(-codewords // (1 << depth)) * lane_bits


NONCE_BYTES: Final = 16
GROUP_BLOCKS: Final = 1 << 14
"""Number of blocks of one client that share the keys of the hash; part of the definition of every key."""
SLACK_BYTES: Final = AES_BLOCK_BYTES - 1
"""Extra room that the backend requires beyond what it writes."""

NodeWords = npt.NDArray[np.uint64]
"""Nodes as two little-endian words each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBinding:
    """Public values to which one client's point functions are bound, in addition to their shape."""

    context: bytes
    """Digest of the attempt, the round, the layout and the segment, on which the three parties agree."""
    client: ClientId
    """The client in the certificate; never the name in the upload itself."""
    nonce: bytes

    def __post_init__(self) -> None:
        if type(self.context) is not bytes or len(self.context) != CONTEXT_BYTES:
            raise InvalidParameters(f"a context must be a digest of {CONTEXT_BYTES} bytes")
        if type(self.client) is not ClientId:
            raise Misuse(f"a client must be a ClientId; got {type(self.client).__name__}")
        if type(self.nonce) is not bytes or len(self.nonce) != NONCE_BYTES:
            raise InvalidParameters(f"a nonce must be {NONCE_BYTES} bytes")

    def encode(self) -> tuple[bytes, ...]:
        return (self.context, self.client.encode(), self.nonce)


class Role(NamedTuple):
    """Purpose of a hash: the left child (0), the right child (1), or lanes (2)."""

    use: int
    piece: int = 0
    """Number of the piece of a leaf's lanes."""
    attempt: int = 0
    """Words that are not lanes of the field are drawn again under the next attempt's key."""

    def encode(self) -> bytes:
        return bytes([self.use]) + self.piece.to_bytes(2, "big") + self.attempt.to_bytes(2, "big")


LEFT: Final = Role(0)
RIGHT: Final = Role(1)


@cache
def lanes_role(piece: int, attempt: int = 0) -> Role:
    """Return the role of a piece of a leaf's lanes."""
    return Role(2, piece, attempt)


class NodeHash(Protocol):
    """A hash of nodes within one group of blocks."""

    def permute_into(self, role: Role, nodes: NodeWords, target: npt.NDArray[np.uint8]) -> None:
        """Write H_role(s) xor s for each node s to ``target``; the kernels, which have the nodes, feed forward.

        ``target`` does not overlap ``nodes`` and has ``SLACK_BYTES`` more than is written.
        """
        ...


HashFamily = Callable[[KeyBinding, int], NodeHash]
"""Given the binding and the number of a group of blocks, return a hash, which one thread uses."""


class AesHash:
    """AES hash that this module describes."""

    def __init__(self, binding: KeyBinding, group: int) -> None:
        self._binding = binding
        self._group = group
        self._ciphers = dict[Role, CipherContext]()

    def permute_into(self, role: Role, nodes: NodeWords, target: npt.NDArray[np.uint8]) -> None:
        cipher = self._ciphers.get(role)
        if cipher is None:
            key = node_key(self._binding, self._group, role)
            # Safe because: the key is public and the mode is a permutation of nodes, not an encryption of messages.
            cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- as said above
            self._ciphers[role] = cipher
        data: npt.NDArray[np.uint8] = nodes.reshape(-1).view(np.uint8)
        cipher.update_into(data.data, target[: data.size + SLACK_BYTES].data)


def node_key(binding: KeyBinding, group: int, role: Role) -> bytes:
    """Return the public AES key of a client, a group of blocks and a role."""
    parts = (*binding.encode(), group.to_bytes(8, "big"), role.encode())
    return hashlib.sha256(bind(Label.POINT_FUNCTION_NODE_KEY, *parts)).digest()[:16]


SEED_BYTES: Final = 16
DIGEST_BYTES: Final = 32


def roots_key(shape: PointFunctionShape, blocks: int, binding: KeyBinding, server_index: int, seed: Secret) -> Secret:
    """Return the key of the stream of a server's roots."""
    parts = _parts(shape, blocks, binding, server_index)
    return _derived("point function roots key", STREAM_KEY_BYTES, seed, binding, Label.POINT_FUNCTION_ROOTS, parts)


def lanes_key(shape: PointFunctionShape, blocks: int, binding: KeyBinding, seed: Secret) -> Secret:
    """Return the key of the stream that is server 0's share at depth 0."""
    parts = _parts(shape, blocks, binding, 0)
    return _derived("point function lanes key", STREAM_KEY_BYTES, seed, binding, Label.POINT_FUNCTION_LANES, parts)


def share_digest(  # noqa: PLR0913, PLR0917 -- what a share is made from
    shape: PointFunctionShape, blocks: int, binding: KeyBinding, server_index: int, seed: Secret | None, sent: bytes
) -> bytes:
    """Return the digest of all inputs of a share: equal digests mean equal shares.

    Args:
        sent: digest of what the server received in addition to its seed; empty if nothing.
    Security: the digest depends on the seed, and at depth 0 on a share that with the other one determines the
        assignments; do not show it to the other server unless a value unknown to that server blinds it.
    """
    parts = _parts(shape, blocks, binding, server_index)
    if seed is None:
        return hashlib.sha256(bind(Label.POINT_FUNCTION_SHARE_DIGEST, *parts, b"", sent)).digest()
    with _derived("seed digest", DIGEST_BYTES, seed, binding, Label.POINT_FUNCTION_SEED_DIGEST, parts) as derived:
        return hashlib.sha256(bind(Label.POINT_FUNCTION_SHARE_DIGEST, *parts, bytes(derived.expose()), sent)).digest()


def _parts(shape: PointFunctionShape, blocks: int, binding: KeyBinding, server_index: int) -> tuple[bytes, ...]:
    return (*binding.encode(), *shape.encode(), blocks.to_bytes(8, "big"), bytes([server_index]))


def _derived(  # noqa: PLR0913, PLR0917 -- one derivation
    kind: str, size: int, seed: Secret, binding: KeyBinding, label: Label, parts: tuple[bytes, ...]
) -> Secret:
    require_secret(seed)
    if len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a seed must be {SEED_BYTES} bytes; got {seed!r}")
    # Extract first, because a seed of 16 bytes is too short to expand directly.
    return derive(kind, size, seed, binding.context, label, *parts)
