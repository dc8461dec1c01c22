"""The messages of every round: limits on declared sizes, and what their senders may state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import get_ident

import pytest

from secagg.choices import Topology
from secagg.errors import NOBODY, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import Client, PairwiseMember
from secagg.protocols.pairwise_mask.configuration import Seat, set_bytes
from secagg.protocols.pairwise_mask.round0_advertise_keys import (
    AdvertisedKeys,
    KeyAdvertisement,
    entry_bytes,
    in_parallel,
)
from secagg.protocols.pairwise_mask.round1_share_keys import DeliveredShares
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import UnmaskingRequest
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.session.ledger import uncharged
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, same_sum

HEADER_BYTES = 7
GREATEST = b"\xff\xff\xff\xff"


# --- Limits -----------------------------------------------------------------------------------------------------------


def is_too_many(decode: Callable[[bytes], object], message: bytes, at: int, count: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(message[:at] + count + message[at + len(count) :])
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_list_that_declares_too_many_items_is_refused_before_it_is_read(
    mode: SecurityMode, topology: Topology
) -> None:
    session = InsecurePairwiseSession(SessionSetup(population=7, mode=mode, topology=topology))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    roster, configuration, client = session.server.roster, session.server.configuration, session.client_ids[3]
    entries = session.sent_to(client, MessageKind.ADVERTISED_KEYS)
    nodes_at = len(entries) - 32 * len(AdvertisedKeys.decode(entries, configuration).proof) - 4
    for at in (nodes_at - entry_bytes(configuration) * roster.graph.degree - 4, nodes_at):
        is_too_many(lambda message: AdvertisedKeys.decode(message, configuration), entries, at, GREATEST)
    request = session.sent_to(client, MessageKind.UNMASKING_REQUEST)
    at = HEADER_BYTES + CONTEXT_TAG_BYTES + set_bytes(roster.population)
    for count in (GREATEST, (roster.population + 1).to_bytes(4, "big")):
        is_too_many(lambda message: UnmaskingRequest.decode(message, roster), request, at, count)
    if mode is SecurityMode.ACTIVE:

        def read(message: bytes) -> DeliveredShares:
            return DeliveredShares.decode(message, Seat(roster, 3))

        delivered = session.sent_to(client, MessageKind.DELIVERED_SHARES)
        at = len(delivered) - 32 * len(read(delivered).entries[-1].path or ()) - 1
        is_too_many(read, delivered, at, b"\x41")
        longest = delivered[:at] + b"\x40" + bytes(64 * 32)
        assert read(longest).encode() == longest


@pytest.mark.parametrize("suite", Suite)
def test_a_client_with_an_identity_signs_nothing_where_nobody_does(suite: Suite) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST, suite=suite))
    client = session.client_ids[0]
    member = PairwiseMember(
        client,
        policy=session.policy,
        coins=session.setup.coins_of(str(client)),
        signing_key=session.signing_keys[client],
        charge=uncharged,
    )
    session.clients[client] = Client(member, session.setup.subject, session.update_of(client))
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert not session.refusals


def test_many_checks_are_shared_among_threads_and_few_are_the_callers() -> None:
    def where(_: int) -> int:
        return get_ident()

    caller = get_ident()
    assert in_parallel(where, [0, 1], 1) == [caller, caller]
    assert in_parallel(where, [0], 2) == [caller]
    assert caller not in in_parallel(where, [0, 1], 2)


# --- What a client that lies may tell ---------------------------------------------------------------------------------


def test_one_advertiser_too_many_is_refused() -> None:
    session = InsecurePairwiseSession(SessionSetup(population=5, corrupted=0, mode=SecurityMode.SEMI_HONEST))
    session.deliver(session.pending)
    message = session.sent_by(session.client_ids[-1], MessageKind.KEY_ADVERTISEMENT)
    own = KeyAdvertisement.decode(message, session.server.configuration)
    with pytest.raises(PeerMisbehaved, match="5 clients already did") as caught:
        session.server.receive(ClientId(9), replace(own, client=ClientId(9)).encode())
    assert caught.value.reason is Reason.NOT_ELIGIBLE
    assert caught.value.culprits is NOBODY
