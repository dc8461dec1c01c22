"""One server's view tells nothing about alpha: statistics on fixed coins, and a published attack that must fail."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.point_functions.lanes import LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import LEFT, AesHash, PointFunctionShape, Role, node_key
from secagg.protocols.two_servers.point_functions.shares import TreeShare
from secagg.simulation.insecure_coins import InsecureSeededCoins

Share = Callable[..., tuple[ServerShare, ServerShare]]
Bits = npt.NDArray[np.uint8]

BLOCKS = 20_000
SIGMAS = 6


def trees(share: Share, group: LaneGroup, alpha: npt.NDArray[np.int64], **rest: object) -> list[TreeShare]:
    shape = PointFunctionShape(codewords=8, group=group, depth=2)
    shares = [mine for mine in share(shape, alpha, **rest) if isinstance(mine, TreeShare)]
    assert len(shares) == 2
    return shares


def bits_of(array: npt.NDArray[np.unsignedinteger]) -> Bits:
    """Return one row of bits for each block."""
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return np.unpackbits(flat.view(np.uint8), axis=1, bitorder="little")


def view(mine: TreeShare) -> Bits:
    """Return what a server sees of each block, as bits: correction words, and its own lanes."""
    correction = mine.correction
    lanes = correction.leaf.transpose(1, 0, 2)[:, :, : mine.shape.leaf_lanes]
    return np.concatenate(
        [
            bits_of(correction.left.transpose(1, 0, 2)),
            bits_of(correction.difference.transpose(1, 0, 2).astype(np.uint8)),
            bits_of(lanes),
            bits_of(mine.lanes(0, mine.blocks)),
        ],
        axis=1,
    )


@pytest.mark.parametrize("group", [RingLanes(8), RingLanes(7), LaneField(127)], ids=str)
@pytest.mark.parametrize("server", [0, 1])
def test_every_bit_of_the_view_is_as_frequent_for_one_alpha_as_for_another(
    group: LaneGroup, server: int, share: Share
) -> None:
    ones = [
        view(trees(share, group, np.full(BLOCKS, alpha), seed=b"view %d" % alpha)[server]).sum(axis=0)
        for alpha in range(8)
    ]
    deviation = (BLOCKS / 2) ** 0.5
    for alpha in range(1, 8):
        assert np.abs(ones[alpha].astype(int) - ones[0].astype(int)).max() < SIGMAS * deviation


@pytest.mark.parametrize("server", [0, 1])
def test_no_two_bits_of_the_view_agree_more_often_for_one_alpha_than_for_another(server: int, share: Share) -> None:
    agreements = list[npt.NDArray[np.float32]]()
    for alpha in (0, 5):
        bits = view(trees(share, RingLanes(8), np.full(BLOCKS, alpha), seed=b"pair %d" % alpha)[server])
        signs = bits.astype(np.float32) * 2 - 1
        agreements.append(signs.T @ signs)
    assert np.abs(agreements[0] - agreements[1]).max() < SIGMAS * 1.2 * (2 * BLOCKS) ** 0.5


def test_the_lowest_bits_of_leaf_corrections_do_not_tell_the_lane(share: Share) -> None:
    """They would if control bits reached a lane: with beta = 1, the lowest bit is set in alpha's lane."""
    blocks = 250_000
    correlation = np.zeros((8, 2))
    for alpha in range(8):
        mine = trees(share, RingLanes(7), np.full(blocks, alpha), seed=b"lowest %d" % alpha)[0]
        correlation[alpha] = (mine.correction.leaf[0, :, :2] & 1).mean(axis=0) - 0.5
    assert np.abs(correlation).max() < SIGMAS * 0.5 / blocks**0.5


def test_roots_and_lanes_of_the_two_servers_are_independent_of_each_other(share: Share) -> None:
    alpha = np.zeros(BLOCKS, dtype=int)
    shares = trees(share, RingLanes(8), alpha)
    rows = [mine.lanes(0, BLOCKS) for mine in shares]
    # The shares of a zero are each other's negatives; those of alpha as well, but for beta.
    assert ((rows[0] + rows[1])[:, 1:] == 0).all()
    lowest = rows[0] & 1
    assert abs(float(lowest.mean()) - 0.5) < SIGMAS * 0.5 / lowest.size**0.5


# --- A tree of correlated nodes, whose hash has no protection against related inputs ----------------------------------


def aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)  # noqa: S305 -- one block


def inverse_aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).decryptor().update(block)  # noqa: S305 -- one block


def number(block: bytes) -> int:
    return int.from_bytes(block, "little")


def block_of(value: int) -> bytes:
    return value.to_bytes(16, "little")


@dataclass(frozen=True)
class Level:
    """What server 0 holds of a level: its node on the path so far, and the public correction word of left children."""

    key: bytes
    node: int
    correction: int


Hash = Callable[[bytes, int], int]


def plain_hash(key: bytes, node: int) -> int:
    return number(aes(key, block_of(node))) ^ node


def orthomorphic_hash(key: bytes, node: int) -> int:
    low, high = node & ((1 << 64) - 1), node >> 64
    mixed = (low ^ high) << 64 | high
    return number(aes(key, block_of(mixed))) ^ mixed


def correlated_levels(hashed: Hash, alpha: int, coins: InsecureSeededCoins) -> Iterator[list[Level]]:
    """Grow a half tree ([GYW+23]) in which the nodes of the path differ by one secret; yield server 0's whole view.

    The view has, level by level, the nodes of all prefixes; a real server computes them from its seed.
    """
    key, depth = hashlib.sha256(b"public").digest()[:16], 6
    delta = number(bytes(coins.draw(16))) | 1
    node_0 = number(bytes(coins.draw(16))) & ~1
    node_1 = node_0 ^ delta
    views = {0: node_0}
    for level in range(depth):
        bit = alpha >> (depth - 1 - level) & 1
        correction = hashed(key, node_0) ^ hashed(key, node_1) ^ (0 if bit else delta)
        yield [Level(key, views[prefix], correction) for prefix in sorted(views)]
        grown = dict[int, int]()
        for prefix, node in views.items():
            left = hashed(key, node) ^ (correction if node & 1 else 0)
            grown |= {2 * prefix: left, 2 * prefix + 1: left ^ node}
        views = grown
        children = list[int]()
        for node in (node_0, node_1):
            left = hashed(key, node) ^ (correction if node & 1 else 0)
            children.append(left ^ node if bit else left)
        node_0, node_1 = children


def candidates(levels: list[Level]) -> set[int]:
    """Return the secret difference, as it would be if the path went to the left from each node.

    In that case CW = AES(n) ^ n ^ AES(n ^ D) ^ (n ^ D) ^ D, so that server 0 knows AES(n ^ D), and AES's key is public.
    """
    found = set[int]()
    for level in levels:
        permuted = level.correction ^ plain_hash(level.key, level.node) ^ level.node
        found.add(number(inverse_aes(level.key, block_of(permuted))) ^ level.node)
    return found


def attack(levels: list[list[Level]]) -> set[int]:
    """Return the differences that two levels agree on."""
    guesses = [candidates(level) for level in levels]
    return set[int]().union(*(one & other for at, one in enumerate(guesses) for other in guesses[at + 1 :]))


def recovered(levels: list[list[Level]], delta: int) -> int:
    """Return the bits of alpha that the difference gives: to the left wherever some node of the level gives it."""
    bits = 0
    for level in levels:
        bits = bits << 1 | (delta not in candidates(level))
    return bits


ALPHAS = [0b000000, 0b101001, 0b011010, 0b110100, 0b010101, 0b001111]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_attack_reads_alpha_from_one_key_of_the_weakened_tree(alpha: int) -> None:
    coins = InsecureSeededCoins(b"half tree %d" % alpha)
    levels = list(correlated_levels(plain_hash, alpha, coins))
    found = attack(levels)
    assert len(found) == 1
    assert recovered(levels, found.pop()) == alpha


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_attack_finds_nothing_where_the_hash_stands_related_inputs(alpha: int) -> None:
    coins = InsecureSeededCoins(b"half tree %d" % alpha)
    levels = correlated_levels(orthomorphic_hash, alpha, coins)
    assert not attack(list(levels))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("server", [0, 1])
def test_the_attack_finds_nothing_in_a_key_of_the_shipped_tree(alpha: int, server: int, share: Share) -> None:
    """The shipped hash has no orthomorphism either, and needs none: the nodes of its path are not related."""
    shape = PointFunctionShape(codewords=64, group=RingLanes(7), depth=6)
    shares = share(shape, np.array([alpha]))
    mine = shares[server]
    assert isinstance(mine, TreeShare)
    levels = [
        [Level(node_key(mine.binding, 0, LEFT), node, correction) for node in nodes]
        for nodes, correction in all_nodes(mine)
    ]
    assert sum(len(level) for level in levels) == 63
    assert not attack(levels)


def all_nodes(mine: TreeShare) -> Iterator[tuple[list[int], int]]:
    """Return the nodes of each level of the first block, and the left correction word, as a server computes them."""
    grown = list[npt.NDArray[np.uint64]]()

    class Watching(AesHash):
        def permute_into(self, role: Role, nodes: npt.NDArray[np.uint64], target: Bits) -> None:
            if role == LEFT:
                grown.append(nodes.copy())
            super().permute_into(role, nodes, target)

    TreeShare(mine.server_index, mine.binding, mine.seed, mine.correction, hash_family=Watching).lanes(0, 1)
    for level, nodes in enumerate(grown):
        pairs = nodes.reshape(-1, 2)
        low, high = (int(word) for word in mine.correction.left[level, 0])
        yield [int(pair[0]) | int(pair[1]) << 64 for pair in pairs], low | high << 64
