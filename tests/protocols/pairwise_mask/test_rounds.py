"""The messages of every round: one encoding each, and no bytes that get past the taxonomy's errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from threading import get_ident
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.blame import unverified
from secagg.contract import Layout, RingSegment
from secagg.crypto.merkle import MerkleTree
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, Party, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import (
    CLIENT_TRANSITIONS,
    Client,
    ClientState,
    PairwiseMember,
    charged_elsewhere,
)
from secagg.protocols.pairwise_mask.configuration import (
    ClientSet,
    Roster,
    SessionConfiguration,
    encode_clients,
    entry_digest,
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
    Endorsement,
    SurvivorSet,
    SurvivorSignature,
    UnmaskingRequest,
    UnmaskingShares,
)
from secagg.protocols.pairwise_mask.session import Server, ServerState
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    restored,
    same_sum,
    stored,
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
    delivered = DeliveredShares.decode(own[MessageKind.DELIVERED_SHARES], roster, position)
    request = UnmaskingRequest.decode(own[MessageKind.UNMASKING_REQUEST], roster)
    answered = AnsweredFor.by(roster, delivered.sharers, request.contributors, position)
    decoders: dict[MessageKind, Callable[[bytes], bytes]] = {
        MessageKind.SESSION_OFFER: lambda m: SessionConfiguration.decode(m).encode(),
        MessageKind.KEY_ADVERTISEMENT: lambda m: KeyAdvertisement.decode(m, configuration).encode(),
        MessageKind.ADVERTISED_KEYS: lambda m: AdvertisedKeys.decode(m, configuration).encode(),
        MessageKind.ENCRYPTED_SHARES: lambda m: EncryptedShares.decode(m, roster, position).encode(),
        MessageKind.DELIVERED_SHARES: lambda m: DeliveredShares.decode(m, roster, position).encode(),
        MessageKind.MASKED_INPUT: lambda m: MaskedInput.decode(m, roster).encode(),
        MessageKind.SURVIVOR_SET: lambda m: SurvivorSet.decode(m, roster).encode(),
        MessageKind.SURVIVOR_SIGNATURE: lambda m: SurvivorSignature.decode(m).encode(),
        MessageKind.UNMASKING_REQUEST: lambda m: UnmaskingRequest.decode(m, roster).encode(),
        MessageKind.UNMASKING_SHARES: lambda m: UnmaskingShares.decode(m, roster, answered).encode(),
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


@settings(max_examples=150)
@given(st.sampled_from(FORMS), st.data())
def test_whatever_decodes_encodes_to_the_same_bytes(form: Form, data: st.DataObject) -> None:
    one = recorded(form)[1][data.draw(st.sampled_from(KINDS[form[0]]))]
    mutated = data.draw(mutations(one.message))
    try:
        again = one.decode(mutated)
    except SecAggError:
        return
    assert again == mutated


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
    delivered = DeliveredShares.decode(messages[MessageKind.DELIVERED_SHARES].message, session.server.roster, position)
    return len(delivered.entries[-1].path)


def test_a_semi_honest_request_with_signatures_is_refused() -> None:
    form = (SecurityMode.SEMI_HONEST, Suite.CLASSIC, Topology.FULL)
    session, messages = recorded(form)
    request = messages[MessageKind.UNMASKING_REQUEST].message
    client = session.enrol(_owner(form))
    for kind in (MessageKind.SESSION_OFFER, MessageKind.ADVERTISED_KEYS, MessageKind.DELIVERED_SHARES):
        client.answer(messages[kind].message)
    with pytest.raises(MalformedMessage, match="semi_honest"):
        client.answer(request[:-4] + b"\x00\x00\x00\x01" + bytes(96))
    assert client.state is ClientState.ABORTED


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
    delivered = DeliveredShares.decode(messages[MessageKind.DELIVERED_SHARES].message, roster, position)
    request = UnmaskingRequest.decode(messages[MessageKind.UNMASKING_REQUEST].message, roster)
    answered = AnsweredFor.by(roster, delivered.sharers, request.contributors, position)
    answer = UnmaskingShares.decode(messages[MessageKind.UNMASKING_SHARES].message, roster, answered)
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


# --- What a server that lies may tell ---------------------------------------------------------------------------------

ACTIVE: Form = (SecurityMode.ACTIVE, Suite.CLASSIC, Topology.FULL)
SEMI_HONEST: Form = (SecurityMode.SEMI_HONEST, Suite.CLASSIC, Topology.FULL)
OTHER = b"x" * 32
SERVER: frozenset[Party] = frozenset({ServerId()})
Edit = Callable[[Any, Roster, int], Any]
"""Change a decoded message, of a roster, to the client at a position."""


def told(form: Form, kind: MessageKind, edit: Edit) -> tuple[Client, SecAggError]:
    """Bring a client to where a message is due, tell it an edited one, and return what it raises."""
    session, messages = recorded(form)
    client = session.enrol(_owner(form))
    configuration, roster = session.server.configuration, session.server.roster
    position = roster.position_of(client.client)
    assert position is not None
    for due, _ in CLIENT_TRANSITIONS.values():
        if due is kind:
            break
        if due in messages:
            client.answer(messages[due].message)
    original = messages[kind].message
    decoders: dict[MessageKind, Callable[[], Any]] = {
        MessageKind.ADVERTISED_KEYS: lambda: AdvertisedKeys.decode(original, configuration),
        MessageKind.DELIVERED_SHARES: lambda: DeliveredShares.decode(original, roster, position),
        MessageKind.SURVIVOR_SET: lambda: SurvivorSet.decode(original, roster),
        MessageKind.UNMASKING_REQUEST: lambda: UnmaskingRequest.decode(original, roster),
    }
    decoded = decoders[kind]()
    with pytest.raises(SecAggError) as caught:
        client.answer(edit(decoded, roster, position).encode())
    assert client.state is ClientState.ABORTED
    with pytest.raises(UnexpectedMessage):
        client.answer(original)
    return client, caught.value


def with_clients(message: AdvertisedKeys, clients: list[ClientId]) -> AdvertisedKeys:
    return replace(message, clients=encode_clients(sorted(clients)))


def with_entries(message: AdvertisedKeys, roster: Roster, own: tuple[int, bytes], entries: list[bytes]) -> Any:
    """Show other entries under a root that holds them, as a server could that makes up a roster."""
    position, own_entry = own
    everybody = [*entries[:position], own_entry, *entries[position:]]
    leaves = [entry_digest(client, entry) for client, entry in zip(roster.clients, everybody, strict=True)]
    return replace(message, entries=tuple(entries), root=MerkleTree(leaves).root)


def own_entry(form: Form) -> bytes:
    session, messages = recorded(form)
    message = messages[MessageKind.KEY_ADVERTISEMENT].message
    return KeyAdvertisement.decode(message, session.server.configuration).entry


BAD_ROSTERS: list[tuple[Edit, Reason, str]] = [
    (lambda m, _, __: replace(m, attempt=OTHER[:CONTEXT_TAG_BYTES]), Reason.WRONG_SESSION, "another attempt"),
    (lambda m, _, __: replace(m, opening=OTHER), Reason.ROSTER_INVALID, "commits to"),
    (lambda m, _, __: replace(m, clients=b"\x80\x00"), Reason.ROSTER_INVALID, "not a roster"),
    (lambda m, r, p: with_clients(m, [r.clients[p]]), Reason.ROSTER_INVALID, "not a roster"),
    (lambda m, r, _: with_clients(m, [*r.clients, ClientId(1)]), Reason.ROSTER_INVALID, "not a roster"),
    (lambda m, r, p: with_clients(m, [r.clients[p], *r.clients[4:]]), Reason.BELOW_FLOOR, "do not protect"),
    (
        lambda m, r, p: with_clients(m, [ClientId(1), *r.clients[:p], *r.clients[p + 1 :]]),
        Reason.ROSTER_INVALID,
        "is not on the roster",
    ),
    (lambda m, _, __: replace(m, entries=m.entries[1:]), Reason.ROSTER_INVALID, "6 neighbours have 5 entries"),
    (lambda m, _, __: replace(m, proof=(OTHER,)), Reason.ROSTER_INVALID, "root"),
    (lambda m, _, __: replace(m, root=OTHER), Reason.ROSTER_INVALID, "root"),
    (lambda m, _, __: replace(m, entries=m.entries[::-1]), Reason.ROSTER_INVALID, "root"),
]


@pytest.mark.parametrize("form", [ACTIVE, SEMI_HONEST], ids="-".join)
@pytest.mark.parametrize(
    ("edit", "reason", "sentence"), BAD_ROSTERS, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_roster_that_is_not_what_it_must_be_is_refused(form: Form, edit: Edit, reason: Reason, sentence: str) -> None:
    _, error = told(form, MessageKind.ADVERTISED_KEYS, edit)
    assert isinstance(error, PeerMisbehaved)
    assert sentence in str(error)
    assert error.reason is reason
    assert error.culprits == SERVER
    assert error.round_name == "advertise_keys"


def test_a_roster_smaller_than_the_cohort_is_refused() -> None:
    _, error = told(ACTIVE, MessageKind.ADVERTISED_KEYS, lambda m, r, p: with_clients(m, [r.clients[p], r.clients[6]]))
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (3, 2)


def test_one_key_for_two_clients_is_refused() -> None:
    def neighbours_alike(message: AdvertisedKeys, roster: Roster, position: int) -> Any:
        entries = [*message.entries[:4], message.entries[5], message.entries[5]]
        return with_entries(message, roster, (position, own_entry(SEMI_HONEST)), entries)

    def like_oneself(message: AdvertisedKeys, roster: Roster, position: int) -> Any:
        entries = [*message.entries[:5], own_entry(SEMI_HONEST)]
        return with_entries(message, roster, (position, own_entry(SEMI_HONEST)), entries)

    def for_two_roles(message: AdvertisedKeys, roster: Roster, position: int) -> Any:
        entries = [*message.entries[:5], 2 * message.entries[5][:32]]
        return with_entries(message, roster, (position, own_entry(SEMI_HONEST)), entries)

    clients = [c for c in recorded(SEMI_HONEST)[0].server.roster.clients if c != _owner(SEMI_HONEST)]
    cases: list[tuple[Edit, set[Party]]] = [
        (neighbours_alike, {clients[4], clients[5], ServerId()}),
        (like_oneself, {clients[5], ServerId()}),
        (for_two_roles, {clients[5], ServerId()}),
    ]
    for edit, culprits in cases:
        _, error = told(SEMI_HONEST, MessageKind.ADVERTISED_KEYS, edit)
        assert isinstance(error, PeerMisbehaved)
        assert error.reason is Reason.PUBLIC_KEY_REUSED
        assert error.culprits == culprits


def with_sharers(message: DeliveredShares, roster: Roster, position: int, sharers: list[int]) -> DeliveredShares:
    """Say that only some shared, and deliver what they sent."""
    neighbours = [n for n in roster.graph.neighbours(position) if n in message.sharers]
    kept = [item for n, item in zip(neighbours, message.entries, strict=True) if n in sharers]
    return replace(message, sharers=roster.set_of(sharers), entries=tuple(kept))


@pytest.mark.parametrize("form", [ACTIVE, SEMI_HONEST], ids="-".join)
def test_shares_of_another_session_or_without_ones_own_are_refused(form: Form) -> None:
    _, error = told(form, MessageKind.DELIVERED_SHARES, lambda m, _, __: replace(m, context=OTHER[:CONTEXT_TAG_BYTES]))
    assert isinstance(error, PeerMisbehaved)
    assert (error.reason, error.culprits) == (Reason.WRONG_SESSION, SERVER)
    _, error = told(
        form,
        MessageKind.DELIVERED_SHARES,
        lambda m, r, p: with_sharers(m, r, p, [n for n in range(POPULATION) if n != p]),
    )
    assert isinstance(error, PeerMisbehaved)
    assert (error.reason, error.culprits) == (Reason.SURVIVORS_INVALID, SERVER)


@pytest.mark.parametrize(("others", "needed", "present"), [(1, 3, 2), (3, 5, 3)])
def test_too_few_sharers_are_refused(others: int, needed: int, present: int) -> None:
    _, error = told(
        ACTIVE,
        MessageKind.DELIVERED_SHARES,
        lambda m, r, p: with_sharers(m, r, p, [p, *(n for n in range(POPULATION) if n != p)][: 1 + others]),
    )
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (needed, present)


@pytest.mark.parametrize("part", ["entry", "signature", "a short path", "a long path", "another path"])
@pytest.mark.parametrize("form", [ACTIVE, (SecurityMode.ACTIVE, Suite.HYBRID, Topology.FULL)], ids="-".join)
def test_an_entry_that_is_not_signed_by_its_sender_is_refused(form: Form, part: str) -> None:
    entry_too = part == "entry" or form is ACTIVE

    def edit(message: DeliveredShares, _: Roster, __: int) -> DeliveredShares:
        first, *rest = message.entries
        if entry_too:
            # In the classic suite a pair that opens is its sender's, whatever stands beside it.
            first = replace(first, entry=OTHER + first.entry[32:])
        match part:
            case "entry":
                pass
            case "signature":
                first = replace(first, signature=OTHER + first.signature[32:])
            case "a short path":
                first = replace(first, path=first.path[1:])
            case "a long path":
                first = replace(first, path=(*first.path, OTHER))
            case _:
                first = replace(first, path=(OTHER, *first.path[1:]))
        return replace(message, entries=(first, *rest))

    client, error = told(form, MessageKind.DELIVERED_SHARES, edit)
    first = next(c for c in recorded(form)[0].server.roster.clients if c != client.client)
    assert isinstance(error, AuthenticationFailed)
    assert error.culprits == frozenset[Party]({first, ServerId()})


def everybody_but(roster: Roster, *absent: int) -> ClientSet:
    return roster.set_of(n for n in range(POPULATION) if n not in absent)


BAD_SURVIVORS: list[tuple[Edit, Reason]] = [
    (lambda m, _, __: replace(m, context=OTHER[:CONTEXT_TAG_BYTES]), Reason.WRONG_SESSION),
    (lambda m, r, p: replace(m, contributors=everybody_but(r, 0, p)), Reason.SURVIVORS_INVALID),
]


@pytest.mark.parametrize("kind", [MessageKind.SURVIVOR_SET, MessageKind.UNMASKING_REQUEST], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("edit", "reason"), BAD_SURVIVORS)
def test_survivors_of_another_session_or_without_oneself_are_refused(
    kind: MessageKind, edit: Edit, reason: Reason
) -> None:
    _, error = told(ACTIVE, kind, edit)
    assert isinstance(error, PeerMisbehaved)
    assert (error.reason, error.culprits) == (reason, SERVER)
    assert error.round_name == ("consistency_check" if kind is MessageKind.SURVIVOR_SET else "unmasking")


def test_survivors_that_contradict_what_came_before_are_refused() -> None:
    last = POPULATION - 1
    cases: list[tuple[MessageKind, Edit]] = [
        (MessageKind.SURVIVOR_SET, lambda m, r, _: replace(m, sharers=everybody_but(r, 0))),
        (MessageKind.UNMASKING_REQUEST, lambda m, r, _: replace(m, contributors=everybody_but(r, 0, last))),
        (MessageKind.UNMASKING_REQUEST, lambda m, r, _: replace(m, contributors=everybody_but(r))),
    ]
    for kind, edit in cases:
        _, error = told(ACTIVE, kind, edit)
        assert isinstance(error, PeerMisbehaved)
        assert (error.reason, error.culprits) == (Reason.SURVIVORS_INVALID, SERVER)


def test_a_contributor_that_never_shared_is_refused() -> None:
    session = InsecurePairwiseSession(SessionSetup(population=POPULATION))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    session.drop(session.client_ids[0])
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    roster, receiver = session.server.roster, session.client_ids[3]
    survivors = SurvivorSet.decode(session.take(receiver), roster)
    with pytest.raises(PeerMisbehaved, match="without having shared") as caught:
        session.clients[receiver].answer(replace(survivors, contributors=everybody_but(roster)).encode())
    assert caught.value.reason is Reason.SURVIVORS_INVALID


def test_too_few_contributors_are_refused() -> None:
    _, error = told(
        ACTIVE, MessageKind.SURVIVOR_SET, lambda m, r, p: replace(m, contributors=r.set_of([p, POPULATION - 1]))
    )
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (3, 2)
    _, error = told(
        SEMI_HONEST,
        MessageKind.UNMASKING_REQUEST,
        lambda m, r, p: replace(m, contributors=r.set_of([p, *(n for n in range(1, 7) if n != p)][:4])),
    )
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (4, 3)


def beyond(endorsement: Endorsement) -> Endorsement:
    return replace(endorsement, position=POPULATION)


UNCERTIFIED: list[tuple[Edit, str]] = [
    (lambda m, _, __: replace(m, endorsements=m.endorsements[1:]), "4 of 5 signatures"),
    (lambda m, _, __: replace(m, endorsements=m.endorsements[::-1]), "out of order"),
    (lambda m, _, __: replace(m, endorsements=(m.endorsements[0], *m.endorsements)), "twice"),
    (lambda m, _, __: replace(m, endorsements=(*m.endorsements[:4], beyond(m.endorsements[4]))), "outside"),
    (lambda m, _, __: replace(m, views=m.views[1:]), "5 contributing neighbours have 4 signed views"),
]


@pytest.mark.parametrize(("edit", "sentence"), UNCERTIFIED, ids=lambda value: value if isinstance(value, str) else None)
def test_survivors_that_the_committee_did_not_certify_are_refused(edit: Edit, sentence: str) -> None:
    _, error = told(ACTIVE, MessageKind.UNMASKING_REQUEST, edit)
    assert isinstance(error, PeerMisbehaved)
    assert sentence in str(error)
    assert (error.reason, error.culprits) == (Reason.QUORUM_NOT_MET, SERVER)


@pytest.mark.parametrize("part", ["identity_key", "certificate", "signature", "both keys", "view", "upload"])
def test_a_signature_under_the_survivors_that_does_not_verify_is_refused(part: str) -> None:
    def edit(message: UnmaskingRequest, _: Roster, __: int) -> UnmaskingRequest:
        first, *rest = message.endorsements
        if part == "view":
            view, *others = message.views
            return replace(message, views=(replace(view, signature=OTHER + view.signature[32:]), *others))
        if part == "upload":
            view, *others = message.views
            return replace(message, views=(replace(view, upload=OTHER), *others))
        if part == "both keys":
            first = replace(first, identity_key=rest[0].identity_key, signature=rest[0].signature)
        elif part == "certificate":
            first = replace(first, identity_key=rest[0].identity_key, certificate=OTHER * 2)
        else:
            spoilt: Any = {part: OTHER + getattr(first, part)[32:]}
            first = replace(first, **spoilt)
        return replace(message, endorsements=(first, *rest))

    client, error = told(ACTIVE, MessageKind.UNMASKING_REQUEST, edit)
    assert isinstance(error, AuthenticationFailed)
    contributors = [c for c in recorded(ACTIVE)[0].server.roster.clients[1:] if c != client.client]
    assert error.culprits == (unverified(contributors[0]) if part in {"view", "upload"} else SERVER)


# --- What a client that lies may tell ---------------------------------------------------------------------------------


def test_an_advertisement_for_another_attempt_or_for_somebody_else_is_refused() -> None:
    session, messages = recorded(SEMI_HONEST)
    configuration, owner = session.server.configuration, _owner(SEMI_HONEST)
    own = KeyAdvertisement.decode(messages[MessageKind.KEY_ADVERTISEMENT].message, configuration)
    for spoilt, reason in (
        (replace(own, attempt=OTHER[:CONTEXT_TAG_BYTES]), Reason.WRONG_SESSION),
        (replace(own, client=ClientId(3)), Reason.NOT_ELIGIBLE),
        (replace(own, mask_key=own.channel_key), Reason.PUBLIC_KEY_REUSED),
    ):
        server = Server(session.setup.plan())
        with pytest.raises(PeerMisbehaved) as caught:
            server.receive(owner, spoilt.encode())
        assert caught.value.reason is reason
        assert caught.value.culprits == unverified(owner)


def test_somebody_elses_key_and_one_advertiser_too_many_are_refused() -> None:
    session = InsecurePairwiseSession(SessionSetup(population=5, corrupted=0, mode=SecurityMode.SEMI_HONEST))
    configuration, (first, *_, last) = session.server.configuration, session.client_ids
    own_offer = session.take(last)
    session.deliver(session.pending)
    message = session.clients[last].answer(own_offer)
    own = KeyAdvertisement.decode(message, configuration)
    firsts = next(d.message for d in session.log if d.sender == first)
    theirs = KeyAdvertisement.decode(firsts, configuration)
    thief = restored(stored(session.server))
    with pytest.raises(PeerMisbehaved) as caught:
        thief.receive(last, replace(own, mask_key=theirs.mask_key).encode())
    assert caught.value.reason is Reason.PUBLIC_KEY_REUSED
    assert caught.value.culprits == unverified(first) | {last}
    session.server.receive(last, message)
    with pytest.raises(PeerMisbehaved, match="5 clients have done so") as caught:
        session.server.receive(ClientId(9), replace(own, client=ClientId(9)).encode())
    assert caught.value.reason is Reason.NOT_ELIGIBLE
    assert caught.value.culprits == unverified(ClientId(9))
