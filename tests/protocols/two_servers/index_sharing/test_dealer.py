"""The dealer and its batches: what it deals adds up, what it signs is bound, and nobody is dealt for twice."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout
from secagg.crypto.secret import Secret
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
)
from secagg.identifiers import CLIENT_ID_BYTES, ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.index_sharing import dealt_correlations
from secagg.protocols.two_servers.index_sharing.dealer import SemiHonestDealer
from secagg.protocols.two_servers.index_sharing.dealt_batches import Correlations, DealtBatch
from secagg.protocols.two_servers.index_sharing.dealt_correlations import DealtCorrelations, DealtHeader, most_clients
from secagg.protocols.two_servers.index_sharing.index_shares import INDEX, Indices, add_indices
from secagg.protocols.two_servers.point_functions.grid import LaneGrid
from secagg.wire import HEADER_BYTES
from tests.harness.indexing_rounds import InsecureIndexingRound

Begin = Callable[..., InsecureIndexingRound]
CLIENTS = tuple(ClientId(number) for number in (1, 2, 5))
COUNT_AT = HEADER_BYTES + 1 + 8
CLIENTS_AT = COUNT_AT + 4


@pytest.fixture
def halves(dealt: InsecureIndexingRound) -> tuple[DealtCorrelations, DealtCorrelations]:
    """Deal for three clients."""
    return dealt.dealer().deal(CLIENTS)


def decoded(made: InsecureIndexingRound, message: bytes, index: int = 0, round_number: int = 7) -> DealtCorrelations:
    """Read a half as a server does."""
    return DealtCorrelations.decode(message, made.configuration, ServerId(index), round_number)


@pytest.fixture
def batches_of(
    correlations_of: Callable[[InsecureIndexingRound, int], Correlations],
) -> Callable[[InsecureIndexingRound], list[DealtBatch]]:
    """Return a function that returns what both servers hold for the first client."""

    def find(made: InsecureIndexingRound) -> list[DealtBatch]:
        found = [correlations_of(made, index).of(ClientId(1)) for index in (0, 1)]
        return [batch for batch in found if batch is not None]

    return find


@pytest.mark.parametrize("suite", list(Suite))
def test_each_half_has_one_encoding(suite: Suite, begin: Begin) -> None:
    made = begin(suite=suite)
    for index, half in enumerate(made.dealer().deal(CLIENTS)):
        message = half.encode()
        read = decoded(made, message, index)
        assert read.encode() == message
        assert (read.header, read.batch_id(made.configuration)) == (half.header, half.batch_id(made.configuration))


def test_clients_are_listed_in_ascending_order(dealt: InsecureIndexingRound) -> None:
    half = dealt.dealer().deal(reversed(CLIENTS))[0]
    assert half.header.clients == CLIENTS


def test_what_is_dealt_is_a_vote_at_a_random_index_for_every_client_and_block(
    begin: Begin, batches_of: Callable[[InsecureIndexingRound], list[DealtBatch]]
) -> None:
    made = begin(layout=Layout((IndexSegment(100, 60), IndexSegment(4, 60))), population=20)
    made.deal()
    zero, one = batches_of(made)
    group = made.configuration.group
    for number, segment in made.configuration.index_segments:
        drawn = list[int]()
        for client in range(1, 21):
            shares = [batch.masks(ClientId(client), number) for batch in (zero, one)]
            masks: Indices = add_indices(shares[0], shares[1], segment.codewords)
            still = np.zeros(segment.blocks, dtype=INDEX)
            grids: list[LaneGrid] = [batch.turned(ClientId(client), number, still) for batch in (zero, one)]
            votes = grids[0].rows()
            group.add_into(votes, grids[1].rows())
            assert (votes == np.eye(segment.codewords, dtype=votes.dtype)[masks]).all()
            drawn += masks.tolist()
        counts = np.bincount(drawn, minlength=segment.codewords)
        even = len(drawn) / segment.codewords
        assert float(((counts - even) ** 2 / even).sum()) < segment.codewords + 6 * (2 * segment.codewords) ** 0.5


def test_no_two_clients_segments_or_servers_share_a_mask(
    begin: Begin, batches_of: Callable[[InsecureIndexingRound], list[DealtBatch]]
) -> None:
    made = begin(layout=Layout((IndexSegment(4096, 20), IndexSegment(4096, 20))), population=2)
    made.deal()
    masks = [
        tuple(batch.masks(ClientId(client), number).tolist())
        for batch in batches_of(made)
        for client in (1, 2)
        for number in (0, 1)
    ]
    assert len(set(masks)) == 8


def test_it_takes_no_data_and_one_configuration(dealt: InsecureIndexingRound) -> None:
    first, second = (dealt.dealer().deal(CLIENTS) for _ in range(2))
    assert first[1].header == second[1].header, "the same coins deal the same"


def test_seeds_are_overwritten_when_a_batch_is_sealed(
    dealt: InsecureIndexingRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealer, made = dealt.dealer(), list[Secret]()
    make: Callable[..., None] = Secret.__init__

    def make_and_record(self: Secret, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Secret, "__init__", make_and_record)
        dealer.deal(CLIENTS)
    assert {secret.kind for secret in made} >= {"dealt seed", "dealt mask key", "point function seed", "one-hot seed"}
    kept = {secret.kind for secret in made if not secret.is_wiped}
    assert not kept & {"dealt seed", "dealt mask key", "point function seed", "one-hot seed", "body_key"}


def test_everything_that_a_batch_is_for_is_bound(begin: Begin) -> None:
    made, other = begin().configuration, begin(task=b"another task").configuration
    header = DealtHeader(7, CLIENTS, (bytes(16), bytes(16)))
    headers = [
        header,
        replace(header, round_number=8),
        replace(header, clients=CLIENTS[:2]),
        replace(header, clients=(*CLIENTS[:2], ClientId(6))),
    ]
    places = {one.place_digest(made) for one in headers}
    assert len({*places, header.place_digest(other)}) == len(headers) + 1
    nonces = replace(header, nonces=(bytes(16), bytes([1]) * 16))
    assert nonces.place_digest(made) == header.place_digest(made), "known before the nonces are drawn"
    assert len({one.digest(made) for one in (*headers, nonces)}) == len(headers) + 1
    seed, keys = Secret("dealt seed", bytes(32)), set[bytes]()
    for one in headers:
        for index in (0, 1):
            for number in (0, 1):
                keys.add(bytes(one.mask_key(made, ServerId(index), number, seed).expose()))
    assert len(keys) == 4 * len(headers)


# --- Whom it refuses to deal for --------------------------------------------------------------------------------------


def test_nobody_is_dealt_for_twice_in_a_round(dealt: InsecureIndexingRound) -> None:
    dealer = dealt.dealer()
    dealer.deal(CLIENTS)
    with pytest.raises(Misuse) as caught:
        dealer.deal([ClientId(3), ClientId(5)])
    assert caught.value.reason is Reason.ALREADY_SPENT
    dealer.deal([ClientId(3)])


@pytest.mark.parametrize("clients", [[], [1, 1]])
def test_a_batch_is_for_somebody_and_lists_each_once(clients: list[int], dealt: InsecureIndexingRound) -> None:
    with pytest.raises(InvalidParameters):
        dealt.dealer().deal(ClientId(number) for number in clients)


def test_a_batch_is_for_client_ids(dealt: InsecureIndexingRound) -> None:
    numbers: Any = [1, 2]
    with pytest.raises(Misuse):
        dealt.dealer().deal(numbers)


def test_a_batch_is_no_larger_than_one_message_can_hold(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin()
    monkeypatch.setattr(dealt_correlations, "MAXIMUM_DEALT_CLIENTS", 2)
    with pytest.raises(InvalidParameters, match="deal several batches"):
        made.dealer().deal(CLIENTS)
    huge = begin(layout=Layout((IndexSegment(4096, 60_000),))).configuration
    monkeypatch.setattr(dealt_correlations, "MAXIMUM_DEALT_CLIENTS", 1 << 16)
    assert 1 <= most_clients(huge) <= 8
    with pytest.raises(InvalidParameters, match="cannot be dealt for"):
        most_clients(begin(layout=Layout((IndexSegment(4096, 1 << 20),))).configuration)


def test_the_key_is_the_one_that_the_configuration_names(dealt: InsecureIndexingRound) -> None:
    setup = dealt.setup
    with pytest.raises(InvalidParameters, match="not the one that the configuration names"):
        SemiHonestDealer(
            dealt.configuration,
            round_number=7,
            offers=(dealt.zero.offer, dealt.one.offer),
            signing_key=setup.signing_key_of("another dealer"),
            coins=setup.coins_of("dealer"),
        )


@pytest.mark.parametrize(("round_number", "order"), [(7, (1, 0)), (8, (0, 1))])
def test_the_offers_are_those_of_both_servers_for_this_round(
    round_number: int, order: tuple[int, int], dealt: InsecureIndexingRound
) -> None:
    with pytest.raises(PeerMisbehaved) as caught:
        SemiHonestDealer(
            dealt.configuration,
            round_number=round_number,
            offers=(dealt.servers[order[0]].offer, dealt.servers[order[1]].offer),
            signing_key=dealt.setup.signing_key_of("dealer"),
            coins=dealt.setup.coins_of("dealer"),
        )
    assert caught.value.reason is Reason.WRONG_SESSION


def test_a_dealer_that_was_wiped_signs_no_more(dealt: InsecureIndexingRound) -> None:
    dealer = dealt.dealer()
    dealer.wipe()
    with pytest.raises(Misuse):
        dealer.deal(CLIENTS)


def test_a_dealer_and_what_it_dealt_show_and_pickle_no_secret(
    dealt: InsecureIndexingRound, batches_of: Callable[[InsecureIndexingRound], list[DealtBatch]]
) -> None:
    dealer = dealt.dealer()
    half = dealer.deal(CLIENTS)[1]
    assert "body" not in repr(half)
    assert repr(dealer) == "<SemiHonestDealer, round 7, dealt for 3 clients>"
    batch = batches_of(dealt)[1]
    assert repr(batch) == "<DealtBatch at server/1, 5 clients, checked>"
    for confined in (dealer, batch):
        with pytest.raises(Misuse):
            pickle.dumps(confined)


# --- What a server refuses to read ------------------------------------------------------------------------------------


def test_a_half_is_for_one_server_and_one_round(
    dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    message, kind_ends = halves[0].encode(), HEADER_BYTES
    for claimed in (message, message[:kind_ends] + b"\1" + message[kind_ends + 1 :]):
        with pytest.raises(MalformedMessage, match="not for"):
            decoded(dealt, claimed, 1 - claimed[kind_ends])
    with pytest.raises(PeerMisbehaved) as caught:
        decoded(dealt, halves[0].encode(), 0, 8)
    assert caught.value.reason is Reason.WRONG_SESSION


@pytest.mark.parametrize("index", [0, 1])
def test_no_bit_of_a_half_can_be_altered(
    index: int, begin: Begin, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    made, message = begin(), halves[index].encode()
    # The setup's coins repeat, but not its encapsulations: a round of its own opens its own batch alone.
    message = made.dealer().deal(CLIENTS)[index].encode()
    step = max(1, len(message) // 400)
    for place in [*range(0, len(message), step), len(message) - 1]:
        altered = bytearray(message)
        altered[place] ^= 1 << place % 8
        with pytest.raises(SecAggError):
            made.servers[index].deal(bytes(altered))
    assert made.servers[index].waiting() == ()
    made.servers[index].deal(message)


@pytest.mark.parametrize("index", [0, 1])
def test_truncated_and_extended_halves_are_refused(
    index: int, dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    message = halves[index].encode()
    for size in range(0, len(message), max(1, len(message) // 200)):
        with pytest.raises(MalformedMessage):
            decoded(dealt, message[:size], index)
    with pytest.raises(MalformedMessage) as caught:
        decoded(dealt, message + b"\0", index)
    assert caught.value.reason is Reason.TRAILING_BYTES


@pytest.mark.parametrize("count", [0, (1 << 32) - 1, (1 << 16) + 1])
def test_an_impossible_number_of_clients_is_refused_before_anything_is_read(
    count: int, dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    message = halves[0].encode()
    with pytest.raises(MalformedMessage) as caught:
        decoded(dealt, message[:COUNT_AT] + count.to_bytes(4, "big") + message[CLIENTS_AT:])
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 0, 2), (0, 2, 1)])
def test_a_list_that_is_not_ascending_is_refused(
    order: tuple[int, ...], dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    message = halves[0].encode()
    listed = b"".join(CLIENTS[place].encode() for place in order)
    with pytest.raises(MalformedMessage, match="ascending"):
        decoded(dealt, message[:CLIENTS_AT] + listed + message[CLIENTS_AT + 3 * CLIENT_ID_BYTES :])


def test_the_dealer_signs_the_list_of_clients(
    dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    others = replace(halves[0].header, clients=(ClientId(1), ClientId(2), ClientId(6)))
    with pytest.raises(AuthenticationFailed):
        decoded(dealt, replace(halves[0], header=others).encode())


def test_a_batch_that_another_signed_is_refused(
    dealt: InsecureIndexingRound, halves: tuple[DealtCorrelations, DealtCorrelations]
) -> None:
    with pytest.raises(AuthenticationFailed):
        decoded(dealt, replace(halves[0], signature=bytes(64)).encode())


def test_the_same_batch_again_changes_nothing(begin: Begin) -> None:
    made = begin()
    message = made.dealer().deal(CLIENTS)[0].encode()
    batch_id = made.zero.deal(message)
    assert made.zero.deal(message) == batch_id
    assert made.zero.waiting() == (batch_id,)


def test_a_second_batch_for_a_client_is_refused(dealt: InsecureIndexingRound) -> None:
    half = dealt.dealer().deal([ClientId(5), ClientId(6)])[0]
    with pytest.raises(PeerMisbehaved) as caught:
        dealt.zero.deal(half.encode())
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert dealt.zero.waiting() == ()
