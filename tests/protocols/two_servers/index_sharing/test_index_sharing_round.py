"""Whole rounds of index sharing: the sums are exact, the upload is as short as it can be, and modes do not mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, MalformedMessage, PeerError, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from secagg.protocols.two_servers.index_sharing import index_halves
from secagg.protocols.two_servers.index_sharing.index_shares import Indices, subtract_indices
from secagg.protocols.two_servers.run import check, run
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

Begin = Callable[..., InsecureIndexingRound]


def finish(made: InsecureIndexingRound, numbers: list[int], weights: list[int] | None = None) -> None:
    """Let these clients upload, and compare what both servers release with the sum in the clear."""
    for place, number in enumerate(numbers):
        made.upload(number, weight=weights[place] if weights else 1)
    made.check()
    ideal = made.ideal(numbers, weights).encode()
    for result in made.finish():
        assert result.aggregate.encode() == ideal
        assert result.counted == tuple(ClientId(number) for number in sorted(numbers))
        assert result.rejected == {}


@pytest.mark.parametrize("k", [2, 3, 5, 31, 32, 33, 127, 128, 200, 256, 257, 1000, 4095, 4096])
def test_the_sum_is_exact_for_any_number_of_codewords(k: int, begin: Begin) -> None:
    made = begin(layout=Layout((IndexSegment(k, 7),)))
    made.deal()
    finish(made, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("suite", list(Suite))
def test_the_sum_is_exact_with_several_segments_and_batches(suite: Suite, begin: Begin) -> None:
    made = begin(suite=suite)
    made.deal([2, 4, 5])
    made.deal([3, 1])
    finish(made, [5, 3, 1, 2])


def test_the_sum_is_exact_where_blocks_of_clients_lie_across_runs(begin: Begin) -> None:
    made = begin(layout=Layout((IndexSegment(3, 20_001), IndexSegment(5, 11))), population=3)
    made.deal()
    finish(made, [3, 1, 2])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(
    threads: int, begin: Begin, opener_of: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(layout=Layout((IndexSegment(3, 40_000),)), population=2)
    for index in (0, 1):
        monkeypatch.setattr(opener_of(made, index), "_threads", threads)
    made.deal()
    finish(made, [1, 2])


@pytest.mark.parametrize("cohort", [20, 126, 127, 9000])
def test_the_sum_is_exact_in_every_field(cohort: int, begin: Begin) -> None:
    made = begin(maximum_cohort=cohort)
    assert made.configuration.group.order == {20: 127, 126: 127, 127: 8191, 9000: 131071}[cohort]
    made.deal()
    finish(made, [1, 2, 3])


def test_a_dealt_vote_serves_any_weight(begin: Begin) -> None:
    made = begin(weights=(1, 3))
    made.deal()
    finish(made, [1, 2, 3, 4, 5], [3, 1, 1, 3, 1])


def test_a_weight_that_too_few_have_is_left_out(begin: Begin) -> None:
    made = begin(weights=(1, 3))
    made.deal()
    for number in (1, 2, 3):
        made.upload(number, weight=3 if number == 2 else 1)
    made.check()
    for result in made.finish():
        assert (result.counted, result.left_out) == ((ClientId(1), ClientId(3)), (ClientId(2),))
        assert result.aggregate.encode() == made.ideal([1, 3]).encode()


def test_a_round_of_rings_alone_needs_no_votes(begin: Begin) -> None:
    made = begin(layout=Layout((RingSegment(20, 6),)))
    made.deal()
    finish(made, [1, 2])


def test_the_page_that_runs_a_whole_round_runs_this_one(dealt: InsecureIndexingRound) -> None:
    updates = [(client, dealt.setup.payload_of(number), 1) for number, client in enumerate(dealt.clients, start=1)]
    for result in run(dealt.zero, dealt.one, updates, now=NOW):
        assert result.aggregate.encode() == dealt.ideal(range(1, 6)).encode()


# --- What waits for what ----------------------------------------------------------------------------------------------


def test_an_upload_waits_until_both_servers_have_checked_its_batch(begin: Begin) -> None:
    made = begin()
    halves = made.dealer().deal([ClientId(1), ClientId(2)])
    batch_id, _ = (server.deal(half.encode()) for server, half in zip(made.servers, halves, strict=True))
    made.upload(1)
    assert made.one.waiting() == (batch_id,)
    conclusion = made.one.conclude(made.zero.answer(made.one.propose([batch_id])))
    # Server 1 has taken the batch, and asks; server 0 has not, and says nothing of the upload yet.
    asked = made.one.waiting()
    proposal = made.one.propose(asked)
    made.zero.settle(made.one.conclude(made.zero.answer(proposal)))
    assert made.one.waiting() == asked
    made.zero.settle(conclusion)
    made.zero.settle(made.one.conclude(made.zero.answer(made.one.propose(asked))))
    assert made.one.waiting() == made.zero.waiting() == ()


def test_a_client_for_whom_nothing_was_dealt_is_refused(begin: Begin) -> None:
    made = begin()
    made.deal([1, 2])
    halves = made.share(3)
    for server, half in zip(made.servers, halves, strict=True):
        with pytest.raises(UnexpectedMessage) as caught:
            server.receive(half.encode())
        assert caught.value.culprits == {ClientId(3)}
    made.deal([3])
    made.deliver(halves)
    made.upload(1)
    made.check()
    for result in made.finish():
        assert result.aggregate.encode() == made.ideal([1, 3]).encode()


# --- What it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "bits"), [(8, 3), (16, 4), (32, 5), (64, 6), (100, 7), (256, 8), (1024, 10), (4096, 12)])
def test_an_upload_has_as_many_bits_a_block_as_an_index_has(k: int, bits: int, begin: Begin) -> None:
    lengths = list[tuple[int, int]]()
    for blocks in (800, 1600):
        made = begin(layout=Layout((IndexSegment(k, blocks),)), population=2)
        zero, one = made.share(1)
        lengths.append((len(zero.encode()), len(one.encode())))
    assert lengths[0][0] == lengths[1][0] < 400
    assert lengths[1][1] - lengths[0][1] == 800 * bits // 8
    assert lengths[0][1] - lengths[0][0] == 800 * bits // 8


def test_the_servers_say_log_k_bits_a_block_each(begin: Begin) -> None:
    made = begin(layout=Layout((IndexSegment(32, 800),)), population=2)
    made.deal()
    made.upload(1)
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    conclusion = made.one.conclude(answer)
    assert len(proposal) == len(answer) == len(conclusion) + 500
    assert len(conclusion) < 150


def test_the_dealer_sends_one_seed_and_the_lanes_but_one(begin: Begin) -> None:
    sizes = list[list[int]]()
    for blocks in (800, 1600):
        made = begin(layout=Layout((IndexSegment(32, blocks),)), population=2, maximum_cohort=100)
        halves = made.dealer().deal([ClientId(1), ClientId(2)])
        sizes.append([len(half.encode()) for half in halves])
    assert sizes[0][0] == sizes[1][0] < 500
    lanes = 2 * 800 * 31 * 7 // 8
    assert lanes <= sizes[1][1] - sizes[0][1] < lanes + 700


# --- No other mode ----------------------------------------------------------------------------------------------------


def test_no_tree_is_configured_for_a_dealer(setup: IndexingSetup) -> None:
    with pytest.raises(InvalidParameters, match="no trees"):
        _ = replace(setup, depth=1).configuration
    configuration = replace(setup, layout=Layout((IndexSegment(4096, 4),)), depth=0).configuration
    assert {configuration.shape(segment).depth for _, segment in configuration.index_segments} == {0}
    cheapest = replace(setup, layout=Layout((IndexSegment(4096, 4),))).configuration
    assert {cheapest.shape(segment).depth for _, segment in cheapest.index_segments} == {0}


def test_default_floors_refuse_the_mode(dealt: InsecureIndexingRound) -> None:
    floors = dealt.floors
    default = IndexingFloors(
        suites=floors.suites,
        authority=floors.authority,
        server_keys=floors.server_keys,
        minimum_cohort=floors.minimum_cohort,
        maximum_length=floors.maximum_length,
    )
    with pytest.raises(InvalidParameters, match="semi_honest_index_sharing is not accepted") as caught:
        default.admit(dealt.configuration, layout=dealt.setup.layout, now=NOW)
    assert caught.value.reason is Reason.BELOW_FLOOR


@pytest.mark.parametrize("dealer_key", [None, bytes(range(32))])
def test_floors_refuse_another_dealer(dealer_key: bytes | None, dealt: InsecureIndexingRound) -> None:
    with pytest.raises(InvalidParameters, match="the dealer is not the one"):
        replace(dealt.floors, dealer_key=dealer_key).admit(dealt.configuration, layout=dealt.setup.layout, now=NOW)


@pytest.mark.parametrize("mode", [SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS])
def test_uploads_of_two_modes_are_never_taken_for_each_other(
    mode: SharingMode, begin: Begin, dealt: InsecureIndexingRound
) -> None:
    other = begin(mode=mode)
    for receiver, sender in ((dealt, other), (other, dealt)):
        for server, half in zip(receiver.servers, sender.share(1), strict=True):
            with pytest.raises(PeerError):
                server.receive(half.encode())
            assert server.waiting() == ()


def test_only_index_sharing_has_a_dealer(begin: Begin, dealt: InsecureIndexingRound) -> None:
    other = begin(mode=SharingMode.CHECKED_POINT_FUNCTIONS)
    half = dealt.dealer().deal([ClientId(1)])[0]
    with pytest.raises(UnexpectedMessage):
        other.zero.deal(half.encode())
    with pytest.raises(InvalidParameters, match="has no dealer"):
        other.dealer()


def test_the_mode_and_the_dealer_are_part_of_what_everything_is_bound_to(setup: IndexingSetup) -> None:
    configuration = setup.configuration
    assert IndexingConfiguration.decode(configuration.encode()) == configuration
    another = replace(configuration, dealer_key=setup.signing_key_of("another dealer").public_key)
    assert another.context != configuration.context


def test_a_closed_round_takes_no_batch(dealt: InsecureIndexingRound) -> None:
    for number in (1, 2):
        dealt.upload(number)
    check(dealt.zero, dealt.one, dealt.one.waiting())
    dealt.finish()
    half = dealt.dealer().deal([ClientId(9)])[0]
    with pytest.raises(UnexpectedMessage):
        dealt.zero.deal(half.encode())


def test_a_share_that_is_no_index_is_the_clients_doing(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin()
    made.deal()

    def shared(left: Indices, right: Indices, codewords: int) -> Indices:
        return np.full_like(left, 100) if codewords == 100 else subtract_indices(left, right, codewords)

    with monkeypatch.context() as patch:
        patch.setattr(index_halves, "subtract_indices", shared)
        halves = made.share(1)
    made.zero.receive(halves[0].encode())
    with pytest.raises(MalformedMessage, match="not below 100") as caught:
        made.one.receive(halves[1].encode())
    assert caught.value.reason is Reason.NOT_CANONICAL
    assert caught.value.culprits == {ClientId(1)}
    assert made.one.waiting() == ()
