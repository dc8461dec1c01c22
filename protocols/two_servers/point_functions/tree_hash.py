"""The hash that grows trees: AES as a public permutation with feed-forward, under keys that change.

    H_role(s) = AES_K(s) xor s,    K = SHA-256(label, context, client, nonce, group, role)[:16]

The two children of a node and each piece of a leaf's lanes have a role of their own, and a key that is published to
both servers with the correction words. Only pseudo-randomness on fresh, independent seeds is asked of H; nothing is
asked of related inputs, as a tree of correlated nodes would.

Multi-target attacks are why keys change. Whoever computes AES_K once compares the result with every unknown node that
is hashed under K, so with T such nodes, of 126 bits each, the work is about 2^126 / T. A key serves one client and
16,384 blocks, and of a block the nodes on one path: T is 2^14 times the depth, whatever the number of clients and
blocks, which leaves 110 bits at depth 4 and 108 at depth 12. The nonce is fresh, so that nothing can be computed before
the keys are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import CONTEXT_BYTES, ClientId
from secagg.protocols.two_servers.lanes.streams import AES_BLOCK_BYTES

NONCE_BYTES: Final = 16
GROUP_BLOCKS: Final = 1 << 14
"""How many blocks of one client share the keys of the hash; part of the definition of every key."""
SLACK_BYTES: Final = AES_BLOCK_BYTES - 1
"""Room that the backend insists on beyond what it writes."""

NodeWords = npt.NDArray[np.uint64]
"""Nodes as two little-endian words each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBinding:
    """Everything public that one client's point functions are bound to, beside their shape."""

    context: bytes
    """The digest of the attempt, the round, the layout and the segment: of all that the three parties agree on."""
    client: ClientId
    """The client as its identity key is certified; never as the upload calls itself."""
    nonce: bytes

    def __post_init__(self) -> None:
        if type(self.context) is not bytes or len(self.context) != CONTEXT_BYTES:
            raise InvalidParameters(f"a context is a digest of {CONTEXT_BYTES} bytes")
        if type(self.client) is not ClientId:
            raise Misuse(f"a client is a ClientId; got {type(self.client).__name__}")
        if type(self.nonce) is not bytes or len(self.nonce) != NONCE_BYTES:
            raise InvalidParameters(f"a nonce has {NONCE_BYTES} bytes")

    def encode(self) -> tuple[bytes, ...]:
        """Return the parts that labels bind."""
        return (self.context, self.client.encode(), self.nonce)


@dataclass(frozen=True, slots=True)
class Role:
    """What a hash is for: the left child (0), the right child (1), or lanes (2)."""

    use: int
    piece: int = 0
    """Which piece of a leaf's lanes."""
    attempt: int = 0
    """Lanes that a field does not have are made again under the next attempt's key."""

    def encode(self) -> bytes:
        """Return five bytes; pieces and attempts are far below 2^16."""
        return bytes([self.use]) + self.piece.to_bytes(2, "big") + self.attempt.to_bytes(2, "big")


LEFT: Final = Role(0)
RIGHT: Final = Role(1)


def lanes_role(piece: int, attempt: int = 0) -> Role:
    """Return the role of a piece of a leaf's lanes."""
    return Role(2, piece, attempt)


class NodeHash(Protocol):
    """A hash of nodes within one group of blocks."""

    def permute_into(self, role: Role, nodes: NodeWords, target: npt.NDArray[np.uint8]) -> None:
        """Write H_role(s) xor s for each node s to the beginning of ``target``.

        The feed-forward is left to the kernels, which have the nodes at hand anyway. ``target`` does not overlap
        ``nodes`` and has ``SLACK_BYTES`` more than is written.
        """
        ...


HashFamily = Callable[[KeyBinding, int], NodeHash]
"""Given the binding and the number of a group of blocks, return a hash; it is used by one thread."""


class AesHash:
    """The hash that this module describes."""

    def __init__(self, binding: KeyBinding, group: int) -> None:
        self._binding = binding
        self._group = group
        self._ciphers = dict[Role, CipherContext]()

    def permute_into(self, role: Role, nodes: NodeWords, target: npt.NDArray[np.uint8]) -> None:
        """Write AES_K(s) for each node s, all in one call."""
        cipher = self._ciphers.get(role)
        if cipher is None:
            key = node_key(self._binding, self._group, role)
            # Safe because: the key is public and the mode is a permutation of nodes, not an encryption of messages.
            cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- as said above
            self._ciphers[role] = cipher
        data: npt.NDArray[Any] = nodes.reshape(-1).view(np.uint8)
        cipher.update_into(data.data, target[: data.size + SLACK_BYTES].data)


def node_key(binding: KeyBinding, group: int, role: Role) -> bytes:
    """Return the public AES key of a client, a group of blocks and a role."""
    parts = (*binding.encode(), group.to_bytes(8, "big"), role.encode())
    return hashlib.sha256(bind(Label.POINT_FUNCTION_NODE_KEY, *parts)).digest()[:16]
