"""The messages of every round: one encoding each, and no bytes that get past the taxonomy's errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from threading import get_ident

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.blame import unverified
from secagg.contract import Layout, RingSegment
from secagg.errors import (
    InvalidParameters,
    MalformedMessage,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import (
    CLIENT_TRANSITIONS,
    Client,
    ClientState,
    PairwiseMember,
    charged_elsewhere,
)
from secagg.protocols.pairwise_mask.configuration import (
    Seat,
    SessionConfiguration,
    set_bytes,
)
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.round0_advertise_keys import (
    AdvertisedKeys,
    KeyAdvertisement,
    entry_bytes,
    in_parallel,
)
from secagg.protocols.pairwise_mask.round1_share_keys import DeliveredShares, EncryptedShares
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import (
    AnsweredFor,
    Asked,
    SurvivorSet,
    SurvivorSignature,
    UnmaskingRequest,
    UnmaskingShares,
)
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    same_sum,
)

HEADER_BYTES = 7
POPULATION = 7
FORMS = [
    (mode, suite, topology)
    for mode in SecurityMode
    for suite in Suite
    for topology in (Topology if suite is Suite.CLASSIC else [Topology.SPARSE])
]
Form = tuple[SecurityMode, Suite, Topology]


@dataclass(frozen=True)
class Recorded:
    """One message of a session, how to decode it, and what went before it at its receiver."""

    message: bytes
    decode: Callable[[bytes], bytes]
    """Decode, and encode again."""


@cache
def recorded(form: Form) -> tuple[InsecurePairwiseSession, dict[MessageKind, Recorded]]:
    """Play a session in which one client drops out after sharing, and keep one message of each kind.

    The messages are those to and from a neighbour of the client that dropped out.
    """
    mode, suite, topology = form
    layout = Layout((RingSegment(5, 7), RingSegment(33, 2)))
    session = InsecurePairwiseSession(
        SessionSetup(population=POPULATION, mode=mode, suite=suite, topology=topology, layout=layout)
    )
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    roster = session.server.roster
    session.drop(roster.clients[0])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    senders = [p for p in roster.graph.neighbours(0) if roster.graph.sends_edge_seed(0, p)]
    position = senders[0]
    client = roster.clients[position]
    own = {item.kind: item.message for item in session.log if client in {item.sender, item.receiver}}
    configuration = session.server.configuration
    delivered = DeliveredShares.decode(own[MessageKind.DELIVERED_SHARES], Seat(roster, position))
    request = UnmaskingRequest.decode(own[MessageKind.UNMASKING_REQUEST], roster)
    answered = AnsweredFor.by(roster, delivered.sharers, request.contributors, position)
    decoders: dict[MessageKind, Callable[[bytes], bytes]] = {
        MessageKind.SESSION_OFFER: lambda m: SessionConfiguration.decode(m).encode(),
        MessageKind.KEY_ADVERTISEMENT: lambda m: KeyAdvertisement.decode(m, configuration).encode(),
        MessageKind.ADVERTISED_KEYS: lambda m: AdvertisedKeys.decode(m, configuration).encode(),
        MessageKind.ENCRYPTED_SHARES: lambda m: EncryptedShares.decode(m, Seat(roster, position)).encode(),
        MessageKind.DELIVERED_SHARES: lambda m: DeliveredShares.decode(m, Seat(roster, position)).encode(),
        MessageKind.MASKED_INPUT: lambda m: MaskedInput.decode(m, roster).encode(),
        MessageKind.SURVIVOR_SET: lambda m: SurvivorSet.decode(m, roster).encode(),
        MessageKind.SURVIVOR_SIGNATURE: lambda m: SurvivorSignature.decode(m).encode(),
        MessageKind.UNMASKING_REQUEST: lambda m: UnmaskingRequest.decode(m, roster).encode(),
        MessageKind.UNMASKING_SHARES: lambda m: UnmaskingShares.decode(m, Asked(roster, answered)).encode(),
    }
    return session, {kind: Recorded(own[kind], decoders[kind]) for kind in own}


KINDS = {
    mode: [
        MessageKind(kind)
        for kind in range(MessageKind.SESSION_OFFER, MessageKind.UNMASKING_SHARES + 1)
        if mode is SecurityMode.ACTIVE or kind not in {MessageKind.SURVIVOR_SET, MessageKind.SURVIVOR_SIGNATURE}
    ]
    for mode in SecurityMode
}
# --- One encoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_every_kind_of_the_protocol_was_recorded(form: Form) -> None:
    assert set(recorded(form)[1]) == set(KINDS[form[0]])


@st.composite
def mutations(draw: st.DrawFn, message: bytes) -> bytes:
    """Change some bytes behind the header, and perhaps cut a piece out or put one in."""
    body = bytearray(message[HEADER_BYTES:])
    places = st.integers(0, min(120, len(body) - 1)) | st.integers(0, len(body) - 1)
    for place in draw(st.lists(places, max_size=3)):
        body[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    if draw(st.booleans()):
        start = draw(places)
        body[start : start + draw(st.sampled_from([0, 1, 8, 32]))] = draw(st.binary(max_size=4))
    return message[:HEADER_BYTES] + bytes(body)


# --- What the sessions make of it -------------------------------------------------------------------------------------


CLASSIC_FORMS = [form for form in FORMS if form[1] is Suite.CLASSIC]


@settings(max_examples=120)
@given(st.sampled_from(CLASSIC_FORMS), st.data())
def test_mutated_bytes_give_a_client_only_the_taxonomys_errors(form: Form, data: st.DataObject) -> None:
    session, messages = recorded(form)
    path = [state for state in ClientState if state in CLIENT_TRANSITIONS and CLIENT_TRANSITIONS[state][0] in messages]
    due = data.draw(st.integers(0, len(path) - 1))
    sender = next(d.receiver for d in session.log if d.message == messages[MessageKind.ADVERTISED_KEYS].message)
    assert isinstance(sender, ClientId)
    client = session.enrol(sender)
    for state in path[:due]:
        client.answer(messages[CLIENT_TRANSITIONS[state][0]].message)
    message = messages[CLIENT_TRANSITIONS[path[due]][0]].message
    mutated = data.draw(mutations(message))
    try:
        client.answer(mutated)
    except (PeerError, ThresholdNotMet):
        assert client.state is ClientState.ABORTED
        return
    except InvalidParameters:
        assert client.state is path[due] is ClientState.AWAITING_OFFER
        return
    assert client.state in CLIENT_TRANSITIONS[path[due]][1]


# --- Limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_list_that_declares_too_many_items_is_refused_before_it_is_read(form: Form) -> None:
    session, messages = recorded(form)
    greatest = b"\xff\xff\xff\xff"
    population = session.server.roster.population
    entries = messages[MessageKind.ADVERTISED_KEYS].message
    position = session.server.roster.position_of(_owner(form))
    assert position is not None
    nodes_at = len(entries) - 32 * int.from_bytes(_node_count(form), "big") - 4
    entries_at = nodes_at - entry_bytes(session.server.configuration) * session.server.roster.graph.degree - 4
    for at in (entries_at, nodes_at):
        with pytest.raises(MalformedMessage, match="4294967295 items") as caught:
            messages[MessageKind.ADVERTISED_KEYS].decode(entries[:at] + greatest + entries[at + 4 :])
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
    request = messages[MessageKind.UNMASKING_REQUEST].message
    at = HEADER_BYTES + CONTEXT_TAG_BYTES + set_bytes(population)
    for count in (greatest, (population + 1).to_bytes(4, "big")):
        with pytest.raises(MalformedMessage) as caught:
            messages[MessageKind.UNMASKING_REQUEST].decode(request[:at] + count + request[at + 4 :])
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
    if form[0] is SecurityMode.ACTIVE:
        delivered = messages[MessageKind.DELIVERED_SHARES].message
        path = 32 * _path_nodes(form)
        at = len(delivered) - path - 1
        with pytest.raises(MalformedMessage, match="65 nodes") as caught:
            messages[MessageKind.DELIVERED_SHARES].decode(delivered[:at] + b"\x41" + delivered[at + 1 :])
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
        longest = delivered[:at] + b"\x40" + bytes(64 * 32)
        assert messages[MessageKind.DELIVERED_SHARES].decode(longest) == longest


def _owner(form: Form) -> ClientId:
    session, messages = recorded(form)
    owner = next(d.receiver for d in session.log if d.message == messages[MessageKind.ADVERTISED_KEYS].message)
    assert isinstance(owner, ClientId)
    return owner


def _node_count(form: Form) -> bytes:
    session, messages = recorded(form)
    keys = AdvertisedKeys.decode(messages[MessageKind.ADVERTISED_KEYS].message, session.server.configuration)
    return len(keys.proof).to_bytes(4, "big")


def _path_nodes(form: Form) -> int:
    session, messages = recorded(form)
    position = session.server.roster.position_of(_owner(form))
    assert position is not None
    delivered = DeliveredShares.decode(
        messages[MessageKind.DELIVERED_SHARES].message, Seat(session.server.roster, position)
    )
    return len(delivered.entries[-1].path)


@pytest.mark.parametrize("suite", Suite)
def test_a_client_with_an_identity_signs_nothing_where_nobody_does(suite: Suite) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST, suite=suite))
    client = session.client_ids[0]
    member = PairwiseMember(
        client,
        floors=session.floors,
        coins=session.setup.coins_of(str(client)),
        signing_key=session.signing_keys[client],
        charge=charged_elsewhere,
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


# --- What a message says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_nobody_sends_an_edge_seed_in_the_classic_suite(form: Form) -> None:
    session, messages = recorded(form)
    roster = session.server.roster
    position = roster.position_of(_owner(form))
    assert position is not None
    delivered = DeliveredShares.decode(messages[MessageKind.DELIVERED_SHARES].message, Seat(roster, position))
    request = UnmaskingRequest.decode(messages[MessageKind.UNMASKING_REQUEST].message, roster)
    answered = AnsweredFor.by(roster, delivered.sharers, request.contributors, position)
    answer = UnmaskingShares.decode(messages[MessageKind.UNMASKING_SHARES].message, Asked(roster, answered))
    assert len(answer.edge_seeds) == (32 if form[1] is Suite.HYBRID else 0)
    assert list(answered.neighbours) == list(roster.graph.neighbours(position))
    assert len(answer.held) == roster.graph.degree


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_an_upload_is_the_packed_vector_and_a_fixed_frame(form: Form) -> None:
    session, messages = recorded(form)
    configuration = session.server.configuration
    # Elements, check words, and the weight with its own: exactly their bits, segment by segment.
    weight_bits = configuration.maximum_total_weight.bit_length()
    bits = [(7 + 13) * 5, (2 + 8) * 33, (1 + -(-64 // weight_bits)) * weight_bits]
    packed = sum(-(-count // 8) for count in bits)
    signature = 64 if form[0] is SecurityMode.ACTIVE else 0
    assert configuration.masked_bytes == packed
    assert len(messages[MessageKind.MASKED_INPUT].message) == HEADER_BYTES + CONTEXT_TAG_BYTES + signature + packed


# --- What a client that lies may tell ---------------------------------------------------------------------------------


def test_one_advertiser_too_many_is_refused() -> None:
    session = InsecurePairwiseSession(SessionSetup(population=5, corrupted=0, mode=SecurityMode.SEMI_HONEST))
    session.deliver(session.pending)
    message = session.sent_by(session.client_ids[-1], MessageKind.KEY_ADVERTISEMENT)
    own = KeyAdvertisement.decode(message, session.server.configuration)
    with pytest.raises(PeerMisbehaved, match="5 clients have done so") as caught:
        session.server.receive(ClientId(9), replace(own, client=ClientId(9)).encode())
    assert caught.value.reason is Reason.NOT_ELIGIBLE
    assert caught.value.culprits == unverified(ClientId(9))
