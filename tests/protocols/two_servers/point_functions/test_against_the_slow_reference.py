"""The batched point functions against one that is written block by block, from the definition alone."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.point_functions.lanes import LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import (
    GROUP_BLOCKS,
    KeyBinding,
    PointFunctionShape,
    Role,
    greatest_depth,
)
from secagg.protocols.two_servers.point_functions.shares import CorrectionWords, ExplicitShare, SeedShare, TreeShare
from tests.harness.suites import VARIABLE, folder, read

Share = Callable[..., tuple[ServerShare, ServerShare]]
Modules = Callable[[str], ModuleType]

GROUPS = [RingLanes(1), RingLanes(7), RingLanes(13), RingLanes(17), RingLanes(64), LaneField(127), LaneField(131071)]
CASES = [
    pytest.param(codewords, group, depth, id=f"k={codewords}-{group}-depth={depth}")
    for codewords in (2, 3, 8, 11)
    for group in GROUPS
    for depth in range(1, greatest_depth(codewords) + 1)
]


def definition(slow: Modules, share: ServerShare) -> Any:
    shape = share.shape
    binding = share.binding
    return slow("scalar").Definition(
        codewords=shape.codewords,
        order=shape.group.order,
        depth=shape.depth,
        blocks=share.blocks,
        context=binding.context,
        client=binding.client.value,
        nonce=binding.nonce,
    )


def words_of(correction: CorrectionWords, block: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the correction words of a block as the slow implementation has them."""
    pairs = list[tuple[int, int]]()
    for left, difference in zip(correction.left[:, block], correction.difference[:, block], strict=True):
        low, high = (int(word) for word in left)
        one = low | high << 64
        pairs.append((one, one ^ (int(difference[0]) | int(difference[1]) << 64)))
    lanes = correction.leaf[:, block].reshape(-1)[: correction.shape.leaf_lanes]
    return pairs, [int(lane) for lane in lanes]


def compare(slow: Modules, shares: tuple[ServerShare, ServerShare], alpha: Any, blocks: Any) -> None:
    """Compare the correction words and both servers' rows of some blocks."""
    defined = definition(slow, shares[0])
    for block in blocks:
        hashed = defined.hash_of(block)
        trees = [share for share in shares if isinstance(share, TreeShare)]
        roots = tuple(defined.root(tree.server_index, bytes(tree.seed.expose()), block) for tree in trees)
        words = defined.generate(hashed, int(alpha[block]), roots)
        assert words_of(trees[0].correction, block) == words
        for tree, root in zip(trees, roots, strict=True):
            expected = defined.evaluate(hashed, tree.server_index, root, *words)
            assert [int(lane) for lane in tree.lanes(block, 1)[0]] == expected


@pytest.mark.parametrize(("codewords", "group", "depth"), CASES)
def test_every_alpha_gives_the_words_and_lanes_of_the_slow_reference(
    codewords: int, group: LaneGroup, depth: int, share: Share, slow_reference: Modules
) -> None:
    shape = PointFunctionShape(codewords=codewords, group=group, depth=depth)
    alpha = np.arange(codewords)
    compare(slow_reference, share(shape, alpha), alpha, range(codewords))


@pytest.mark.parametrize("group", [RingLanes(7), RingLanes(33), LaneField(127), LaneField(8191)], ids=str)
def test_the_explicit_share_is_the_one_of_the_slow_reference(
    group: LaneGroup, share: Share, slow_reference: Modules
) -> None:
    shape = PointFunctionShape(codewords=5, group=group, depth=0)
    alpha = np.arange(GROUP_BLOCKS + 40) % 5
    share_0, share_1 = share(shape, alpha)
    assert isinstance(share_0, SeedShare)
    assert isinstance(share_1, ExplicitShare)
    defined = definition(slow_reference, share_0)
    seed = bytes(share_0.seed.expose())
    for block in (0, 1, 777, GROUP_BLOCKS - 1, GROUP_BLOCKS, GROUP_BLOCKS + 39):
        expected = [defined.explicit(seed, block, lane) for lane in range(4)]
        others = [(int(alpha[block] == lane) - value) % group.order for lane, value in enumerate(expected)]
        expected.append((1 - sum(expected)) % group.order)
        others.append(-sum(others) % group.order)
        assert share_0.lanes(block, 1)[0].tolist() == expected
        assert share_1.lanes(block, 1)[0].tolist() == others


def test_groups_of_blocks_have_their_own_keys_as_in_the_slow_reference(share: Share, slow_reference: Modules) -> None:
    alpha = np.arange(2 * GROUP_BLOCKS + 3) % 8
    shares = share(PointFunctionShape(codewords=8, group=RingLanes(7), depth=2), alpha)
    edges = [0, GROUP_BLOCKS - 1, GROUP_BLOCKS, 2 * GROUP_BLOCKS - 1, 2 * GROUP_BLOCKS, 2 * GROUP_BLOCKS + 2]
    compare(slow_reference, shares, alpha, edges)


# --- The public vectors -----------------------------------------------------------------------------------------------


@pytest.fixture
def xof(slow_reference: Modules) -> ModuleType:
    pytest.importorskip("Crypto.Hash.TurboSHAKE128", reason="TurboSHAKE128 is in pycryptodome, of the extra `dev`")
    return slow_reference("xof")


def vector(name: str) -> Any:
    if folder() is None:
        pytest.skip(f"set {VARIABLE} to a folder with the vectors of draft-irtf-cfrg-vdaf; its files are not ours")
    return read(f"vdaf/{name}.json")


@pytest.mark.parametrize(
    ("name", "function"), [("XofTurboShake128", "by_turbo_shake"), ("XofFixedKeyAes128", "by_fixed_key")]
)
def test_the_slow_hashes_reproduce_the_public_vectors(name: str, function: str, xof: ModuleType) -> None:
    expected = vector(name)
    seed, tag, binder = (bytes.fromhex(expected[key]) for key in ("seed", "dst", "binder"))
    expand = getattr(xof, function)
    assert expand(seed, tag, binder, len(seed)).hex() == expected["derived_seed"]
    modulus = (1 << 66) * 4611686018427387897 + 1
    elements = list(xof.field_elements(expand(seed, tag, binder, 50 * 16), modulus))[: expected["length"]]
    assert b"".join(element.to_bytes(16, "little") for element in elements).hex() == expected["expanded_vec_field128"]


def test_the_slow_tree_reproduces_the_public_vector_and_its_keys_evaluate(
    xof: ModuleType, slow_reference: Modules
) -> None:
    expected = vector("IdpfBBCGGI21_0")
    assert xof.VERSION
    betas = [[int(value) for value in level] for level in [*expected["beta_inner"], expected["beta_leaf"]]]
    context, nonce = bytes.fromhex(expected["ctx"]), bytes.fromhex(expected["nonce"])
    keys = [bytes.fromhex(key) for key in expected["keys"]]
    function = slow_reference("idpf").IncrementalPointFunction(int(expected["bits"]), len(betas[0]), context, nonce)
    levels = function.generate(expected["alpha"], betas, keys)
    assert function.encode(levels).hex() == expected["public_share"]
    for level in range(int(expected["bits"])):
        on_path = expected["alpha"][: level + 1]
        for prefix, values in ((on_path, betas[level]), ([*on_path[:-1], not on_path[-1]], [0, 0])):
            parts = [function.evaluate(server, levels, keys[server], prefix) for server in (0, 1)]
            total = [(one + other) % function.modulus(level) for one, other in zip(*parts, strict=True)]
            assert total == values


@pytest.mark.parametrize("group", [RingLanes(7), RingLanes(17), LaneField(127)], ids=str)
@pytest.mark.parametrize("depth", [1, 3])
def test_the_batch_under_the_hash_of_the_vectors_is_the_slow_tree_under_it(
    group: LaneGroup, depth: int, share: Share, slow_reference: Modules, xof: ModuleType
) -> None:
    context = b"another hash"

    def hash_of(binding: KeyBinding, block_group: int) -> Callable[[int, int, int, int], int]:
        binder = binding.nonce + block_group.to_bytes(8, "big")
        keys: dict[int, bytes] = {use: xof.fixed_key(xof.domain_tag(use, context), binder) for use in (0, 1)}

        def hashed(use: int, piece: int, attempt: int, node: int) -> int:
            # The children are the two blocks of one expansion, as in the public vectors; lanes those of another.
            key = keys[int(use == 2)]
            number = use if use < 2 else piece + (attempt << 16)
            block = (node ^ number).to_bytes(16, "little")
            return int.from_bytes(xof.hash_block(key, block), "little")

        return hashed

    class VectorHash:
        def __init__(self, binding: KeyBinding, block_group: int) -> None:
            self.hashed = hash_of(binding, block_group)

        def permute_into(self, role: Role, nodes: npt.NDArray[np.uint64], target: npt.NDArray[np.uint8]) -> None:
            data = nodes.tobytes()
            for start in range(0, len(data), 16):
                node = int.from_bytes(data[start : start + 16], "little")
                made = self.hashed(role.use, role.piece, role.attempt, node) ^ node
                target[start : start + 16] = np.frombuffer(made.to_bytes(16, "little"), dtype=np.uint8)

    shape = PointFunctionShape(codewords=11, group=group, depth=depth)
    alpha = np.arange(11)
    shares = share(shape, alpha, hash_family=VectorHash)
    defined = definition(slow_reference, shares[0])
    for block in range(11):
        hashed = hash_of(shares[0].binding, 0)
        trees = [share for share in shares if isinstance(share, TreeShare)]
        roots = tuple(defined.root(tree.server_index, bytes(tree.seed.expose()), block) for tree in trees)
        words = defined.generate(hashed, block, roots)
        assert words_of(trees[0].correction, block) == words
        for tree, root in zip(trees, roots, strict=True):
            expected = defined.evaluate(hashed, tree.server_index, root, *words)
            assert [int(lane) for lane in tree.lanes(block, 1)[0]] == expected
