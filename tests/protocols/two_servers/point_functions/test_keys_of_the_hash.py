"""AES keys of the tree: bound to everything, never twice; lanes that a field does not have are made again, and end."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.point_functions.lanes import ATTEMPTS, LaneField, RingLanes
from secagg.protocols.two_servers.point_functions.shape import (
    GROUP_BLOCKS,
    LEFT,
    RIGHT,
    AesHash,
    KeyBinding,
    PointFunctionShape,
    Role,
    lanes_key,
    lanes_role,
    node_key,
    roots_key,
)
from secagg.protocols.two_servers.point_functions.shares import TreeShare

Share = Callable[..., tuple[ServerShare, ServerShare]]


def binding(context: int = 0, client: int = 0, nonce: int = 0) -> KeyBinding:
    return KeyBinding(context=context.to_bytes(32, "big"), client=ClientId(client), nonce=nonce.to_bytes(16, "big"))


ROLES = [LEFT, RIGHT, *(lanes_role(piece, attempt) for piece in range(40) for attempt in range(ATTEMPTS))]


def test_all_keys_differ_across_context_client_nonce_group_and_role() -> None:
    keys = Counter(
        node_key(binding(context, client, nonce), group, role)
        for context, client, nonce, group in product(range(2), range(2), range(2), (0, 1, 256))
        for role in ROLES
    )
    assert set(keys.values()) == {1}
    assert len(keys) == 8 * 3 * len(ROLES)


def test_streams_differ_across_everything_that_they_are_bound_to() -> None:
    seed = Secret("seed", bytes(16))
    ring = PointFunctionShape(codewords=8, group=RingLanes(7), depth=1)
    shapes = [
        ring,
        PointFunctionShape(codewords=9, group=RingLanes(7), depth=1),
        PointFunctionShape(codewords=8, group=RingLanes(8), depth=1),
        PointFunctionShape(codewords=8, group=LaneField(127), depth=1),
        PointFunctionShape(codewords=8, group=RingLanes(7), depth=2),
        PointFunctionShape(codewords=8, group=RingLanes(7), depth=0),
    ]
    made = [
        *(roots_key(shape, 10, binding(), server, seed) for shape in shapes for server in (0, 1)),
        *(lanes_key(shape, 10, binding(), seed) for shape in shapes),
        roots_key(ring, 11, binding(), 0, seed),
        *(roots_key(ring, 10, binding(*where), 0, seed) for where in ((1, 0, 0), (0, 1, 0), (0, 0, 1))),
        roots_key(ring, 10, binding(), 0, Secret("seed", bytes(15) + b"\1")),
    ]
    assert len({bytes(key.expose()) for key in made}) == len(made)


def test_keys_change_exactly_where_groups_of_blocks_meet(share: Share) -> None:
    used = list[tuple[int, Role]]()

    class Recording(AesHash):
        def __init__(self, bound: KeyBinding, group: int) -> None:
            super().__init__(bound, group)
            self.group = group

        def permute_into(self, role: Role, nodes: npt.NDArray[np.uint64], target: npt.NDArray[np.uint8]) -> None:
            used.append((self.group, role))
            super().permute_into(role, nodes, target)

    blocks = 2 * GROUP_BLOCKS + 1
    shape = PointFunctionShape(codewords=40, group=RingLanes(7), depth=1)
    mine = share(shape, np.arange(blocks) % 40)[0]
    assert isinstance(mine, TreeShare)
    watched = TreeShare(0, mine.binding, mine.seed, mine.correction, hash_family=Recording)
    for first, groups in (
        (0, {0}),
        (GROUP_BLOCKS - 1, {0}),
        (GROUP_BLOCKS, {1}),
        (2 * GROUP_BLOCKS - 1, {1}),
        (2 * GROUP_BLOCKS, {2}),
    ):
        used.clear()
        watched.lanes(first, 1)
        assert {group for group, _ in used} == groups
        assert {role for _, role in used} == {LEFT, RIGHT, lanes_role(0), lanes_role(1)}


def test_a_binding_that_is_none_is_refused() -> None:
    good = {"context": bytes(32), "client": ClientId(0), "nonce": bytes(16)}
    for wrong, error in (
        ({"context": bytes(31)}, InvalidParameters),
        ({"context": bytearray(32)}, InvalidParameters),
        ({"client": 0}, Misuse),
        ({"nonce": bytes(15)}, InvalidParameters),
    ):
        with pytest.raises(error):
            KeyBinding(**(good | wrong))  # type: ignore[arg-type]


# --- Lanes of a field -------------------------------------------------------------------------------------------------


class Stubborn(AesHash):
    """A hash whose lanes are all ones before a certain attempt, which never comes where it is None."""

    succeeds_at: int | None = None

    def __init__(self, bound: KeyBinding, group: int) -> None:
        super().__init__(bound, group)
        self.attempts = set[int]()

    def permute_into(self, role: Role, nodes: npt.NDArray[np.uint64], target: npt.NDArray[np.uint8]) -> None:
        super().permute_into(role, nodes, target)
        if role.use == 2:
            self.attempts.add(role.attempt)
            if self.succeeds_at is None or role.attempt < self.succeeds_at:
                ones = ~nodes.reshape(-1)
                target[: nodes.nbytes] = ones.view(np.uint8)


FIELD_TREE = PointFunctionShape(codewords=16, group=LaneField(127), depth=1)


def stubborn(share: Share, succeeds_at: int | None) -> TreeShare:
    mine = share(FIELD_TREE, np.arange(50) % 16)[0]
    assert isinstance(mine, TreeShare)
    family: Any = type("Stubborn", (Stubborn,), {"succeeds_at": succeeds_at})
    return TreeShare(0, mine.binding, mine.seed, mine.correction, hash_family=family)


def test_a_key_without_a_lane_is_refused_after_a_fixed_number_of_attempts(share: Share) -> None:
    for succeeds_at in (None, ATTEMPTS):
        with pytest.raises(MalformedMessage) as caught:
            stubborn(share, succeeds_at).lanes(0, 50)
        assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_lane_that_comes_late_is_taken(share: Share) -> None:
    rows = stubborn(share, ATTEMPTS - 2).lanes(0, 50)
    assert rows.max() < 127
