"""One server's side of one upload of shared indices: each correlation once, and nothing that is no index."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secagg.contract import Payload
from secagg.contract.layout import IndexSegment, Layout
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.class_totals import ClassTotals
from secagg.protocols.two_servers.index_sharing.dealt_batches import Correlations
from secagg.protocols.two_servers.index_sharing.index_halves import (
    IndexSharingExchange,
    index_body_bytes,
    masked_indices,
)
from secagg.protocols.two_servers.round_rules import Entry
from tests.harness.indexing_rounds import InsecureIndexingRound

Begin = Callable[..., InsecureIndexingRound]
DIGEST = bytes(range(32))
ENTRY = Entry(ClientId(1), bytes(32), 1)


Sides = Callable[..., tuple[IndexSharingExchange, IndexSharingExchange]]


@pytest.fixture
def exchanges(correlations_of: Callable[[InsecureIndexingRound, int], Correlations]) -> Sides:
    """Return a function that shares the first client's input, and returns both servers' sides of it."""

    def make(made: InsecureIndexingRound, entry: Entry = ENTRY) -> tuple[IndexSharingExchange, IndexSharingExchange]:
        seed = Secret("upload seed", bytes(range(32)))
        shared = b"".join(masked_indices(made.configuration, made.setup.payload_of(1), seed, DIGEST))
        zero, one = (
            IndexSharingExchange(
                made.configuration,
                ServerId(index),
                entry,
                bytearray(shared if index else b""),
                seed=seed,
                header_digest=DIGEST,
                correlations=correlations_of(made, index),
            )
            for index in (0, 1)
        )
        return zero, one

    return make


def totals_of(made: InsecureIndexingRound, index: int) -> ClassTotals:
    """Begin sums of one server."""
    return ClassTotals(made.configuration, ServerId(index))


def test_the_four_steps_add_the_clients_votes(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    zero, one = exchanges(dealt)
    answer = zero.answer(one.propose())
    conclusion = one.conclude(answer)
    zero.settle(conclusion)
    assert conclusion == b""
    sums = list[Any]()
    for index, exchange in enumerate((zero, one)):
        totals = totals_of(dealt, index)
        exchange.add_to(totals)
        sums.append(totals.weighted([1]))
    group, payload = dealt.configuration.group, dealt.setup.payload_of(1)
    for number, segment in dealt.configuration.index_segments:
        group.add_into(sums[0][number], sums[1][number])
        votes = np.eye(segment.codewords)[payload.values[number]]
        assert (sums[0][number].reshape(segment.blocks, -1) == votes).all()


@pytest.mark.parametrize("index", [0, 1])
def test_a_correlation_is_never_used_for_a_second_upload(
    index: int, dealt: InsecureIndexingRound, exchanges: Sides
) -> None:
    first, second = exchanges(dealt), exchanges(dealt, Entry(ClientId(1), bytes([1]) * 32, 1))
    proposal = first[1].propose()
    first[0].answer(proposal)
    with pytest.raises(Misuse) as caught:
        (second[1].propose if index else lambda: second[0].answer(proposal))()
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_the_same_upload_says_the_same_again(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    first, again = exchanges(dealt), exchanges(dealt)
    assert first[1].propose() == first[1].propose() == again[1].propose()
    assert first[0].answer(first[1].propose()) == again[0].answer(first[1].propose())


@pytest.mark.parametrize("index", [0, 1])
def test_a_correlation_of_a_batch_that_was_not_checked_is_not_used(index: int, begin: Begin, exchanges: Sides) -> None:
    made = begin()
    for server, half in zip(made.servers, made.dealer().deal([ClientId(1)]), strict=True):
        server.deal(half.encode())
    sides = exchanges(made)
    assert not sides[index].is_ready
    with pytest.raises(Misuse, match="after its whole batch was checked"):
        (sides[1].propose if index else lambda: sides[0].answer(bytes(6)))()


def test_without_a_correlation_nothing_is_said(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    one = exchanges(dealt, Entry(ClientId(77), bytes(32), 1))[1]
    assert not one.is_ready
    with pytest.raises(Misuse, match="were dealt and checked"):
        one.propose()


def test_nothing_is_added_before_both_servers_spoke(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    with pytest.raises(Misuse, match="when both servers have said how far"):
        exchanges(dealt)[0].add_to(totals_of(dealt, 0))


@pytest.mark.parametrize("index", [0, 1])
def test_a_difference_that_is_no_index_is_the_other_servers_doing(
    index: int, dealt: InsecureIndexingRound, exchanges: Sides
) -> None:
    side = exchanges(dealt)[index]
    size = index_body_bytes(dealt.configuration, ServerId(1))
    for blob in (b"\xff" * size, bytes(size - 1), bytes(size + 1)):
        with pytest.raises(MalformedMessage) as caught:
            (side.conclude if index else side.answer)(blob)
        assert caught.value.culprits == {ServerId(1 - index)}


@pytest.mark.parametrize("index", [0, 1])
def test_the_other_server_says_its_differences_once(index: int, dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    side = exchanges(dealt)[index]
    blob = bytes(index_body_bytes(dealt.configuration, ServerId(1)))
    side.learn(blob)
    side.learn(blob)
    with pytest.raises(PeerMisbehaved) as caught:
        side.learn(b"\1" + blob[1:])
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {ServerId(1 - index)}


def test_a_conclusion_says_nothing(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    with pytest.raises(MalformedMessage) as caught:
        exchanges(dealt)[0].settle(b"\0")
    assert caught.value.culprits == {ServerId(1)}


def test_server_0_is_sent_nothing_but_its_seed(
    dealt: InsecureIndexingRound, correlations_of: Callable[[InsecureIndexingRound, int], Correlations]
) -> None:
    assert index_body_bytes(dealt.configuration, ServerId(0)) == 0
    with pytest.raises(MalformedMessage) as caught:
        IndexSharingExchange(
            dealt.configuration,
            ServerId(0),
            ENTRY,
            bytearray(1),
            seed=Secret("upload seed", bytes(32)),
            header_digest=DIGEST,
            correlations=correlations_of(dealt, 0),
        )
    assert caught.value.culprits == {ClientId(1)}


def test_what_server_1_is_sent_alone_is_uniform(dealt: InsecureIndexingRound) -> None:
    payload, k = dealt.setup.payload_of(1), 8
    sent = np.zeros(k)
    for number in range(2000):
        seed = Secret("upload seed", number.to_bytes(32, "big"))
        first = next(iter(masked_indices(dealt.configuration, payload, seed, DIGEST)))
        sent[first[0] & 7] += 1
    assert float(((sent - 250) ** 2 / 250).sum()) < k + 6 * (2 * k) ** 0.5


def test_a_segment_an_upload_and_a_seed_have_masks_of_their_own(begin: Begin) -> None:
    made = begin()
    payload = made.setup.payload_of(1)
    seeds = [Secret("upload seed", bytes([value]) * 32) for value in (1, 2)]
    sent = [
        tuple(masked_indices(made.configuration, payload, seed, digest))
        for seed in seeds
        for digest in (DIGEST, bytes(32))
    ]
    assert len(set(sent)) == 4


def test_equal_segments_with_equal_indices_are_sent_otherwise(begin: Begin) -> None:
    layout = Layout((IndexSegment(256, 16), IndexSegment(256, 16)))
    same = np.zeros(16, dtype=np.uint8)
    seed = Secret("upload seed", bytes(32))
    configuration = begin(layout=layout).configuration
    first, second = masked_indices(configuration, Payload(layout, (same, same)), seed, DIGEST)
    assert first != second


def test_seeds_and_shares_are_overwritten_and_shown_to_nobody(dealt: InsecureIndexingRound, exchanges: Sides) -> None:
    zero, one = exchanges(dealt)
    for side in (zero, one):
        assert "array" not in repr(side)
        assert "Secret" not in repr(side)
        with pytest.raises(Misuse):
            pickle.dumps(side)
        side.wipe()
    assert all(key.is_wiped for key in vars(zero)["_mask_keys"])
    assert not any(share.any() for share in vars(one)["_shares"])


def test_a_server_that_ends_overwrites_what_it_was_dealt(
    dealt: InsecureIndexingRound, correlations_of: Callable[[InsecureIndexingRound, int], Correlations]
) -> None:
    batches = [correlations_of(dealt, index).of(ClientId(1)) for index in (0, 1)]
    for server in dealt.servers:
        server.wipe()
    for batch in batches:
        for part in vars(batch)["_segments"].values():
            assert part.mask_key.is_wiped
            assert part.proof.seed.is_wiped
            assert part.lanes is None or not part.lanes.any()
            assert part.lanes is not None or part.share.seed.is_wiped
