"""Point functions, one block at a time, over integers and bytes, as the protocol's definition reads.

Implements: [BGI16] Fig. 1, with two control bits in a node (the lowest bit of each little-endian half) and many lanes
in a leaf. Shares nothing with the library, not even its labels.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK = 16
GROUP = 1 << 14
RUN = 1 << 14
ATTEMPTS = 32
LOW = 1 << 0 | 1 << 64
"""The control bits of a node."""
HALF = (1 << 64) - 1

Hash = Callable[[int, int, int, int], int]
"""(use, piece, attempt, node) to a node; uses are left (0), right (1) and lanes (2)."""


def bind(label: str, *parts: bytes) -> bytes:
    return b"secagg/1/" + label.encode() + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def derive(seed: bytes, salt: bytes, info: bytes) -> bytes:
    """Return one block of HKDF-SHA256."""
    return hmac.digest(hmac.digest(salt, seed, "sha256"), info + b"\1", "sha256")


def aes(key: bytes, block: bytes) -> int:
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- a permutation of one block
    return int.from_bytes(encryptor.update(block), "little")


@dataclass(frozen=True)
class Definition:
    """All that is public about one client's point functions."""

    codewords: int
    order: int
    depth: int
    blocks: int
    context: bytes
    client: int
    nonce: bytes

    @property
    def bound(self) -> tuple[bytes, ...]:
        return (self.context, self.client.to_bytes(8, "big"), self.nonce)

    @property
    def lane_bits(self) -> int:
        return (self.order - 1).bit_length()

    @property
    def word_bits(self) -> int:
        return next(bits for bits in (8, 16, 32, 64) if bits >= self.lane_bits)

    @property
    def leaf_lanes(self) -> int:
        return -(-self.codewords // (1 << self.depth))

    def stream_key(self, label: str, seed: bytes, server: int) -> bytes:
        shape = (
            self.codewords.to_bytes(4, "big"),
            self.order.to_bytes(9, "big"),
            bytes([self.depth]),
            bytes([not self.depth]),
        )
        rest = (self.blocks.to_bytes(8, "big"), bytes([server]))
        return derive(seed, self.context, bind(label, *self.bound, *shape, *rest))

    def stream_block(self, key: bytes, number: int) -> int:
        counter = (int.from_bytes(key[BLOCK:], "big") + number) % (1 << 128)
        return aes(key[:BLOCK], counter.to_bytes(BLOCK, "big"))

    def root(self, server: int, seed: bytes, block: int) -> int:
        uniform = self.stream_block(self.stream_key("point-function-roots", seed, server), block)
        return (uniform & ~LOW) | (LOW if server else 0)

    def hash_of(self, block: int) -> Hash:
        group = (block // GROUP).to_bytes(8, "big")

        def hashed(use: int, piece: int, attempt: int, node: int) -> int:
            role = bytes([use]) + piece.to_bytes(2, "big") + attempt.to_bytes(2, "big")
            key = hashlib.sha256(bind("point-function-node-key", *self.bound, group, role)).digest()[:BLOCK]
            return aes(key, node.to_bytes(BLOCK, "little")) ^ node

        return hashed

    def lane(self, words: Iterator[int]) -> int:
        """Return the first of the words that gives a lane."""
        for _ in range(ATTEMPTS):
            lane = next(words) & ((1 << self.lane_bits) - 1)
            if lane < self.order:
                return lane
        raise ValueError

    def explicit(self, seed: bytes, block: int, lane: int) -> int:
        """Return a lane of server 0 at depth 0: lane by lane within runs of blocks, one word after another."""
        key = self.stream_key("point-function-lanes", seed, 0)
        sent = self.codewords - 1
        first = block // RUN * RUN
        position = first * sent + lane * min(RUN, self.blocks - first) + block - first
        number, within = divmod(position * self.word_bits, 8 * BLOCK)
        words = (
            self.stream_block(key, number + (attempt << 64)) >> within & ((1 << self.word_bits) - 1)
            for attempt in range(ATTEMPTS)
        )
        return self.lane(words)

    def leaf(self, hashed: Hash, node: int) -> list[int]:
        per_piece = 8 * BLOCK // self.word_bits
        lanes = list[int]()
        for lane in range(self.leaf_lanes):
            piece, within = divmod(lane, per_piece)
            words = (
                hashed(2, piece, attempt, node) >> (within * self.word_bits) & ((1 << self.word_bits) - 1)
                for attempt in range(ATTEMPTS)
            )
            lanes.append(self.lane(words))
        return lanes

    def control_of_lane(self, node: int, lane: int) -> int:
        within = lane * self.word_bits % (8 * BLOCK)
        return node >> (64 * (within // 64)) & 1

    def generate(self, hashed: Hash, alpha: int, roots: tuple[int, int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the correction words of both children, level by level, and the leaf's."""
        nodes = list(roots)
        leaf, lane = divmod(alpha, self.leaf_lanes)
        words = list[tuple[int, int]]()
        for level in range(self.depth):
            keep = leaf >> (self.depth - 1 - level) & 1
            children = [[hashed(side, 0, 0, node) for side in (0, 1)] for node in nodes]
            seed = (children[0][1 - keep] ^ children[1][1 - keep]) & ~LOW
            corrections = [seed, seed]
            for side in (0, 1):
                controls = (children[0][side] ^ children[1][side]) & LOW
                corrections[side] |= controls ^ LOW if side == keep else controls
            nodes = [corrected(node, pair[keep], corrections[keep]) for node, pair in zip(nodes, children, strict=True)]
            words.append((corrections[0], corrections[1]))
        values = list[int]()
        leaves = [self.leaf(hashed, node) for node in nodes]
        for index, (one, other) in enumerate(zip(*leaves, strict=True)):
            value = (index == lane) - one + other
            values.append((-value if self.control_of_lane(nodes[1], index) else value) % self.order)
        return words, values

    def evaluate(
        self, hashed: Hash, server: int, root: int, words: list[tuple[int, int]], values: list[int]
    ) -> list[int]:
        """Return a server's share of one block."""
        nodes = [root]
        for pair in words:
            nodes = [corrected(node, hashed(side, 0, 0, node), pair[side]) for node in nodes for side in (0, 1)]
        lanes = list[int]()
        for node in nodes:
            for index, (lane, value) in enumerate(zip(self.leaf(hashed, node), values, strict=True)):
                sign = -1 if server else 1
                lanes.append(sign * (lane + self.control_of_lane(node, index) * value) % self.order)
        return lanes[: self.codewords]


def corrected(node: int, child: int, correction: int) -> int:
    """Return the child with the correction word in each half whose control bit is set in the parent."""
    for shift in (0, 64):
        if node >> shift & 1:
            child ^= correction & (HALF << shift)
    return child
