"""Hash trees against a second implementation; any change by a prover gives another root."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.labels import Label
from secagg.crypto.merkle import NODE_BYTES, MerkleTree, recover_root
from secagg.errors import InvalidParameters, MalformedMessage, Reason


def leaf(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


def leaves_of(count: int) -> list[bytes]:
    return [leaf(number) for number in range(count)]


def documented_root(leaves: list[bytes]) -> bytes:
    """Pair neighbours level by level; a leftover node moves up unchanged."""
    if len(leaves) == 1:
        return leaves[0]
    above = list[bytes]()
    for place in range(0, len(leaves), 2):
        pair = leaves[place : place + 2]
        framed = b"".join((32).to_bytes(4, "big") + node for node in pair)
        above.append(hashlib.sha256(Label.MERKLE_NODE.value + framed).digest() if len(pair) == 2 else pair[0])
    return documented_root(above)


trees_and_positions = st.integers(1, 40).flatmap(
    lambda count: st.tuples(st.just(count), st.frozensets(st.integers(0, count - 1), min_size=1))
)


@pytest.mark.parametrize("count", range(1, 34))
def test_the_root_is_the_documented_one(count: int) -> None:
    assert MerkleTree(leaves_of(count)).root == documented_root(leaves_of(count))


@given(trees_and_positions)
def test_a_proof_for_any_leaves_gives_the_root(drawn: tuple[int, frozenset[int]]) -> None:
    count, positions = drawn
    tree = MerkleTree(leaves_of(count))
    proof = tree.prove(positions)
    assert all(len(node) == NODE_BYTES for node in proof)
    assert recover_root(count, {position: leaf(position) for position in positions}, proof) == tree.root


@given(trees_and_positions)
def test_a_proof_has_no_node_that_follows_from_the_others(drawn: tuple[int, frozenset[int]]) -> None:
    count, positions = drawn
    proof = MerkleTree(leaves_of(count)).prove(positions)
    known = {position: leaf(position) for position in positions}
    if len(positions) == count:
        assert proof == []
    for left_out in range(len(proof)):
        with pytest.raises(MalformedMessage) as caught:
            recover_root(count, known, proof[:left_out] + proof[left_out + 1 :])
        assert caught.value.reason is Reason.TRUNCATED
    with pytest.raises(MalformedMessage) as caught:
        recover_root(count, known, [*proof, leaf(1000)])
    assert caught.value.reason is Reason.TRAILING_BYTES


@given(trees_and_positions, st.data())
def test_any_other_leaf_or_node_gives_another_root(drawn: tuple[int, frozenset[int]], data: st.DataObject) -> None:
    count, positions = drawn
    tree = MerkleTree(leaves_of(count))
    proof = tree.prove(positions)
    known = {position: leaf(position) for position in positions}
    changed = data.draw(st.sampled_from(sorted(positions)))
    assert recover_root(count, known | {changed: leaf(1000)}, proof) != tree.root
    if proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        assert recover_root(count, known, [*proof[:place], leaf(1000), *proof[place + 1 :]]) != tree.root


@given(st.integers(2, 40), st.data())
def test_a_leaf_is_not_proven_at_another_position(count: int, data: st.DataObject) -> None:
    tree = MerkleTree(leaves_of(count))
    position, other = data.draw(st.permutations(range(count)))[:2]
    try:
        root = recover_root(count, {other: leaf(position)}, tree.prove([position]))
    except MalformedMessage:
        return
    assert root != tree.root


def test_a_tree_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="at least one"):
        MerkleTree([])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 33])
def test_the_path_of_one_leaf_is_its_proof(count: int) -> None:
    leaves = [bytes([number]) * NODE_BYTES for number in range(count)]
    tree = MerkleTree(leaves)
    for position, leaf in enumerate(leaves):
        path = tree.path_of(position)
        assert list(path) == tree.prove([position])
        assert recover_root(count, {position: leaf}, path) == tree.root
