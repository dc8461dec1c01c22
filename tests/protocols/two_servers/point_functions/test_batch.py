"""Two servers' shares add up to beta at alpha, whatever the shape, the chunks, the threads and the ranges."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.opened_upload import HistogramShare
from secagg.protocols.two_servers.point_functions import shares as shares_module
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.point_functions.lanes import LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import GROUP_BLOCKS, PointFunctionShape
from secagg.protocols.two_servers.point_functions.shares import ExplicitShare, SeedShare, TreeShare
from secagg.simulation.insecure_coins import InsecureSeededCoins

Share = Callable[..., tuple[ServerShare, ServerShare]]
Reconstruct = Callable[[ServerShare, ServerShare], npt.NDArray[np.int64]]

GROUPS: list[LaneGroup] = [
    *(RingLanes(bits) for bits in (1, 7, 8, 13, 16, 17, 32, 33)),
    *(LaneField(modulus) for modulus in (127, 8191, 131071)),
]


EXPLICIT = PointFunctionShape(codewords=6, group=RingLanes(7), depth=0)
FIELD = PointFunctionShape(codewords=6, group=LaneField(127), depth=0)
TREE = PointFunctionShape(codewords=20, group=RingLanes(17), depth=2)
FIELD_TREE = PointFunctionShape(codewords=20, group=LaneField(127), depth=1)
FOUR = [EXPLICIT, FIELD, TREE, FIELD_TREE]
MANY_BLOCKS = GROUP_BLOCKS + 5000


@pytest.mark.parametrize("codewords", [256, 1000, 4096])
@pytest.mark.parametrize("group", [RingLanes(7), LaneField(8191)], ids=str)
def test_large_codebooks_at_their_default_depth(
    codewords: int, group: LaneGroup, share: Share, reconstruct: Reconstruct
) -> None:
    shape = PointFunctionShape.cheapest(codewords, group)
    assert shape.depth
    alpha = np.array([0, 1, codewords // 2 - 1, codewords // 2, codewords - 2, codewords - 1])
    assert (reconstruct(*share(shape, alpha)) == (np.arange(codewords) == alpha[:, np.newaxis])).all()


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_shares_add_up_to_one_at_alpha(group: LaneGroup, depth: int, share: Share, reconstruct: Reconstruct) -> None:
    alpha = np.array([0, 6, 3, 3, 5, 0, 2])
    shape = PointFunctionShape(codewords=7, group=group, depth=depth)
    assert (reconstruct(*share(shape, alpha)) == np.eye(7, dtype=np.int64)[alpha]).all()


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_last_lane_is_left_out_where_there_is_no_tree(group: LaneGroup, share: Share) -> None:
    _, sent = share(PointFunctionShape(codewords=5, group=group, depth=0), np.arange(5))
    assert isinstance(sent, ExplicitShare)
    assert len(sent.encode()) == -(-5 * 4 * group.bits // 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_any_range_of_blocks_can_be_evaluated_alone(data: st.DataObject, share: Share) -> None:
    shape = data.draw(st.sampled_from(FOUR))
    alpha = np.arange(MANY_BLOCKS) % shape.codewords
    server = data.draw(st.sampled_from([0, 1]))
    mine = share(shape, alpha)[server]
    whole = mine.lanes(0, MANY_BLOCKS)
    first = data.draw(st.integers(0, MANY_BLOCKS - 1))
    count = data.draw(st.integers(1, MANY_BLOCKS - first))
    assert (mine.lanes(first, count) == whole[first : first + count]).all()


@pytest.mark.parametrize("shape", [TREE, FIELD_TREE], ids=str)
@pytest.mark.parametrize("chunk_nodes", [1, 7, 300, GROUP_BLOCKS - 1, 1 << 20])
def test_the_size_of_chunks_changes_nothing(
    shape: PointFunctionShape, chunk_nodes: int, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = GROUP_BLOCKS + 30
    mine = share(shape, np.arange(blocks) % 20)[1]
    first = GROUP_BLOCKS - 50
    expected = mine.lanes(0, blocks)[first:]
    monkeypatch.setattr(shares_module, "_CHUNK_NODES", chunk_nodes)
    assert (mine.lanes(first, 80) == expected).all()


@pytest.mark.parametrize("shape", FOUR, ids=str)
@pytest.mark.parametrize("threads", [3, 64])
def test_the_number_of_threads_changes_nothing(shape: PointFunctionShape, threads: int, share: Share) -> None:
    alpha = np.arange(MANY_BLOCKS) % shape.codewords
    alone, together = share(shape, alpha), share(shape, alpha, threads=threads)
    for server, (one, other) in enumerate(zip(alone, together, strict=True)):
        assert one.digest == other.digest
        total = HistogramShare(shape, MANY_BLOCKS, server)
        total.add(other, threads=threads)
        assert (total.rows() == one.lanes(0, MANY_BLOCKS)).all()


@pytest.mark.parametrize("group", [RingLanes(7), LaneField(127)], ids=str)
@pytest.mark.parametrize("depth", [0, 1])
def test_many_sums_stay_below_the_order(group: LaneGroup, depth: int, share: Share) -> None:
    shape = PointFunctionShape(codewords=4, group=group, depth=depth)
    total = [HistogramShare(shape, 3, server) for server in (0, 1)]
    for client in range(300):
        for server, mine in enumerate(share(shape, [0, 1, 3], seed=client.to_bytes(2, "big"))):
            total[server].add(mine)
    rows = [one.rows().astype(int) for one in total]
    assert max(int(row.max()) for row in rows) < group.order
    assert ((rows[0] + rows[1]) % group.order == np.eye(4, dtype=int)[[0, 1, 3]] * 300 % group.order).all()


def test_what_a_share_is_made_from_shows_in_its_digest(share: Share) -> None:
    alpha = np.arange(20)
    for shape in (EXPLICIT, TREE):
        many = [
            share(shape, alpha % shape.codewords),
            share(shape, alpha % shape.codewords, seed=b"other"),
            share(shape, alpha % shape.codewords, client=6),
            share(shape, alpha % shape.codewords, context=bytes(32)),
            share(shape, alpha[:-1] % shape.codewords),
        ]
        digests = {mine.digest for shares in many for mine in shares}
        assert len(digests) == 2 * len(many)
        assert share(shape, alpha % shape.codewords)[1].digest in digests


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "error"),
    [
        ([0, 6], CapacityExceeded),
        ([0, -1], CapacityExceeded),
        ([0.0, 1.0], Misuse),
        ([[0, 1]], Misuse),
        (np.zeros(0, dtype=int), InvalidParameters),
    ],
)
def test_values_out_of_their_range_are_refused(alpha: Any, error: type[Exception], share: Share) -> None:
    with pytest.raises(error):
        share(EXPLICIT, alpha)


def test_an_error_does_not_tell_the_value(share: Share) -> None:
    with pytest.raises(CapacityExceeded) as caught:
        share(EXPLICIT, [0, 4711])
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("threads", [0, -1, 1.0, True])
def test_threads_that_are_none_are_refused_before_coins_are_drawn(threads: Any) -> None:
    class NoCoins:
        def draw(self, count: int) -> bytearray:
            raise AssertionError(count)

    with pytest.raises(InvalidParameters, match="threads"):
        generate_shares(TREE, np.arange(3), context=bytes(32), client=ClientId(0), coins=NoCoins(), threads=threads)


def test_a_share_of_another_kind_is_not_added(share: Share) -> None:
    shares = share(TREE, np.arange(20))
    for total in (HistogramShare(TREE, 20, 1), HistogramShare(TREE, 19, 0), HistogramShare(FIELD_TREE, 20, 0)):
        with pytest.raises(Misuse):
            total.add(shares[0])


@pytest.mark.parametrize("shape", FOUR, ids=str)
@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 7), (6, 1), (-1, 2), (0.0, 1)])
def test_blocks_that_a_share_does_not_have_are_refused(
    shape: PointFunctionShape, first: Any, count: Any, share: Share
) -> None:
    for mine in share(shape, np.arange(6)):
        with pytest.raises(InvalidParameters):
            mine.lanes(first, count)


@pytest.mark.parametrize("blocks", [3, 700])
def test_no_node_stays_in_memory_that_is_kept(blocks: int, share: Share) -> None:
    for mine in share(TREE, np.arange(blocks) % 20):
        assert mine.lanes(0, blocks).any()
        scratch: Any = shares_module._kept.scratch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        # Beyond the last node is memory that was never written to.
        used = scratch.nodes * 16
        assert not any(level[: used if not depth else 2 * used].any() for depth, level in enumerate(scratch.levels))
        assert not any(words.view(np.uint8)[:used].any() for words in (scratch.lanes, scratch.control, scratch.shared))


def test_a_sum_that_holds_part_of_a_share_is_given_up(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = share(FIELD_TREE, np.arange(GROUP_BLOCKS + 9) % 20)
    total = HistogramShare(FIELD_TREE, GROUP_BLOCKS + 9, 0)
    total.add(shares[0])
    with pytest.raises(InvalidParameters):
        total.add(shares[0], threads=0)
    assert total.rows().any()
    held = total._total  # noqa: SLF001 -- what must not remain  # pyright: ignore[reportPrivateUsage]
    add_into, calls = LaneField.add_into, list[int]()

    def fails_late(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        add_into(*arguments)

    monkeypatch.setattr(LaneField, "add_into", fails_late)
    with pytest.raises(MemoryError):
        total.add(shares[0])
    monkeypatch.undo()
    assert not held.rows().any()
    for use in (total.rows, lambda: total.add(shares[0])):
        with pytest.raises(Misuse) as caught:
            use()
        assert caught.value.reason is Reason.ALREADY_SPENT


def test_seeds_of_a_failed_generation_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Secret]()
    draw = Secret.random

    def recorded(*arguments: Any) -> Secret:
        made.append(draw(*arguments))
        return made[-1]

    monkeypatch.setattr(Secret, "random", recorded)
    for shape in (EXPLICIT, TREE):
        with pytest.raises(InvalidParameters):
            generate_shares(shape, np.arange(3), context=b"short", client=ClientId(0), coins=InsecureSeededCoins(b""))

    def fails(*_: Any) -> Any:
        raise ArithmeticError

    monkeypatch.setattr("secagg.protocols.two_servers.point_functions.generation.CounterStream", fails)
    with pytest.raises(ArithmeticError):
        generate_shares(TREE, np.arange(3), context=bytes(32), client=ClientId(0), coins=InsecureSeededCoins(b""))
    assert len(made) == 2
    assert all(secret.is_wiped for secret in made)


def test_a_share_without_its_seed_is_refused_when_it_is_made(share: Share) -> None:
    share_0, share_1 = share(TREE, np.arange(20))
    assert isinstance(share_1, TreeShare)
    assert isinstance(share_0, TreeShare)
    short = Secret("seed", bytes(15))
    with pytest.raises(InvalidParameters, match="16 bytes"):
        TreeShare(0, share_0.binding, short, share_0.correction)
    share_1.seed.wipe()
    with pytest.raises(Misuse):
        TreeShare(1, share_1.binding, share_1.seed, share_1.correction)
    with pytest.raises(InvalidParameters, match="0 or 1"):
        TreeShare(2, share_0.binding, share_0.seed, share_0.correction)
    with pytest.raises(InvalidParameters, match="depth"):
        SeedShare(TREE, 20, share_0.binding, Secret("seed", bytes(16)))


def test_a_sum_that_is_wiped_is_zero_and_given_up(share: Share) -> None:
    total = HistogramShare(TREE, 20, 0)
    total.add(share(TREE, np.arange(20))[0])
    held = total._total  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    assert np.asarray(held.rows()).any()
    total.wipe()
    assert not np.asarray(held.rows()).any()
    with pytest.raises(Misuse):
        total.rows()
