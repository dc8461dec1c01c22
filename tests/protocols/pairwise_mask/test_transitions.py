"""Every message in every state, for both roles, from the tables: what is due leads on, and nothing else counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.diagrams import diagram_of
from secagg.blame import unverified
from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import (
    NOBODY,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, Party, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import CLIENT_TRANSITIONS, Client, ClientState, PairwiseMember, advance
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.session import SENT_INSTEAD, SERVER_TRANSITIONS, Server, ServerState
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    Outgoing,
    SessionSetup,
    close_round,
    insecure_payload,
    restored,
    same_sum,
    stored,
    unmask,
    update_of,
)

MODES = list(SecurityMode)
CONTEXT_AT = 7
"""Every message after the offer has the context right behind its header."""
CLIENT_PATHS: dict[SecurityMode, list[ClientState]] = {
    SecurityMode.ACTIVE: [state for state in ClientState if state is not ClientState.ABORTED],
    SecurityMode.SEMI_HONEST: [
        state for state in ClientState if state not in {ClientState.ABORTED, ClientState.AWAITING_SURVIVOR_SET}
    ],
}
"""The states that a client goes through, in order."""
SERVER_PATHS: dict[SecurityMode, list[ServerState]] = {
    SecurityMode.ACTIVE: [state for state in ServerState if state is not ServerState.ABORTED],
    SecurityMode.SEMI_HONEST: [
        state for state in ServerState if state not in {ServerState.ABORTED, ServerState.AWAITING_SURVIVOR_SIGNATURES}
    ],
}
CLIENT_CASES = [
    pytest.param(mode, state, id=f"{mode}-{state}") for mode in MODES for state in [*CLIENT_PATHS[mode], "aborted"]
]
SERVER_CASES = [
    pytest.param(mode, state, id=f"{mode}-{state}") for mode in MODES for state in [*SERVER_PATHS[mode], "aborted"]
]


def setup_of(mode: SecurityMode, suite: Suite = Suite.CLASSIC) -> SessionSetup:
    return SessionSetup(population=6, dropped=1, mode=mode, suite=suite)


@dataclass(frozen=True)
class Recording:
    """A session that went well: what the server sent to each client, and what it sent back, round by round."""

    session: InsecurePairwiseSession
    rounds: tuple[tuple[ServerState, dict[ClientId, tuple[bytes, bytes]]], ...]

    def sent_to(self, client: ClientId) -> list[tuple[bytes, bytes]]:
        return [deliveries[client] for _, deliveries in self.rounds]


@cache
def recording(mode: SecurityMode) -> Recording:
    session = InsecurePairwiseSession(setup_of(mode))
    rounds = list[tuple[ServerState, dict[ClientId, tuple[bytes, bytes]]]]()
    while True:
        state, down = session.server.state, {item.receiver: item.message for item in session.pending}
        seen = len(session.log)
        session.deliver(session.pending)
        up = {item.sender: item.message for item in session.log[seen:] if isinstance(item.sender, ClientId)}
        rounds.append((state, {client: (down[client], up[client]) for client in session.client_ids}))
        if state is ServerState.AWAITING_UNMASKING_SHARES:
            break
        session.pending = close_round(session.server)
    assert same_sum(unmask(session.server), session.sum_of(session.client_ids))
    return Recording(session, tuple(rounds))


def altered(message: bytes) -> bytes:
    """Change the first byte behind the header: the session that the message names, or the length in an offer."""
    return message[:CONTEXT_AT] + bytes([message[CONTEXT_AT] ^ 1]) + message[CONTEXT_AT + 1 :]


def of_kind(kind: MessageKind, known: list[bytes]) -> bytes:
    """Return a message of a kind: one of the known ones, if there is one, or a header alone."""
    return next((message for message in known if message_kind(message) is kind), Writer(kind).finish())


# --- The tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [CLIENT_TRANSITIONS, SERVER_TRANSITIONS], ids=["client", "server"])
def test_every_state_but_the_last_two_awaits_one_kind_of_its_own(
    table: dict[ClientState, tuple[MessageKind, frozenset[ClientState]]],
) -> None:
    states = list(type(next(iter(table))))
    assert set(table) == set(states[:-2])
    kinds = [kind for kind, _ in table.values()]
    assert len(set(kinds)) == len(kinds)
    for state, (_, following) in table.items():
        assert following
        assert all(states.index(state) < states.index(after) for after in following)
        # A client that complains in place of uploading is out; nothing else that is answered leads there.
        assert (states[-1] in following) == (state is ClientState.AWAITING_DELIVERED_SHARES)


@pytest.mark.parametrize("table", [CLIENT_TRANSITIONS, SERVER_TRANSITIONS], ids=["client", "server"])
def test_a_role_moves_where_its_table_says_and_nowhere_else(
    table: dict[ClientState, tuple[MessageKind, frozenset[ClientState]]],
) -> None:
    states = list(type(next(iter(table))))
    for state in states:
        due, following = table.get(state, (None, frozenset[ClientState]()))
        for kind in MessageKind:
            for chosen in states:
                if kind is due and chosen in following:
                    assert advance(table, state, kind, chosen) is chosen
                    continue
                with pytest.raises(InternalError, match=f" to {chosen}$"):
                    advance(table, state, kind, chosen)
            if kind is due and len(following) == 1:
                assert {advance(table, state, kind)} == following
            else:
                with pytest.raises(InternalError):
                    advance(table, state, kind)


def test_a_step_that_a_table_lacks_is_refused() -> None:
    awaiting, shares = ClientState.AWAITING_OFFER, ClientState.AWAITING_DELIVERED_SHARES
    for state, kind, chosen, said in (
        (awaiting, MessageKind.SESSION_OFFER, ClientState.COMPLETED, "completed"),
        (awaiting, MessageKind.SURVIVOR_SET, None, "awaiting_advertised_keys"),
        (shares, MessageKind.DELIVERED_SHARES, None, "one state"),
    ):
        with pytest.raises(InternalError, match=f"no {kind.name} leads from {state} to {said}"):
            advance(CLIENT_TRANSITIONS, state, kind, chosen)


# --- The client -------------------------------------------------------------------------------------------------------


def client_in(mode: SecurityMode, state: ClientState | str) -> tuple[Client, list[tuple[bytes, bytes]]]:
    """Bring a fresh client into a state; return it with what it was sent and has answered on the way."""
    recorded = recording(mode)
    who = recorded.session.client_ids[2]
    client = recorded.session.enrol(who)
    path = CLIENT_PATHS[mode]
    steps = recorded.sent_to(who)[: path.index(ClientState(state))] if state != "aborted" else []
    if state == "aborted":
        client.abort()
    for down, up in steps:
        assert client.answer(down) == up
    assert client.state == state
    return client, steps


def messages_to_client(mode: SecurityMode) -> list[bytes]:
    recorded = recording(mode)
    known = [message for pair in recorded.sent_to(recorded.session.client_ids[2]) for message in pair]
    return [*known, *(message for pair in recording(SecurityMode.ACTIVE).sent_to(known_client()) for message in pair)]


def known_client() -> ClientId:
    return recording(SecurityMode.ACTIVE).session.client_ids[2]


def go_on(client: Client, mode: SecurityMode) -> None:
    """See that a client goes on exactly as if nothing had happened."""
    steps = recording(mode).sent_to(client.client)
    for down, up in steps[CLIENT_PATHS[mode].index(client.state) :]:
        assert client.answer(down) == up
    assert client.state is ClientState.COMPLETED


@pytest.mark.parametrize(("mode", "state"), CLIENT_CASES)
def test_a_client_answers_what_is_due_and_nothing_else(mode: SecurityMode, state: ClientState | str) -> None:
    """What changes nothing is handed to one client, kind after kind, and what is due then to it as well."""
    client, steps = client_in(mode, state)
    before = client.state
    due = CLIENT_TRANSITIONS.get(before)
    known = messages_to_client(mode)
    for kind in MessageKind:
        message = of_kind(kind, known)
        answered = [up for down, up in steps if message_kind(down) is kind]
        if answered and kind is MessageKind.DELIVERED_SHARES:
            with pytest.raises(UnexpectedMessage, match="handed over before"):
                client.answer(message)
        elif answered:
            assert [client.answer(message)] == answered
        elif due is None or kind is not due[0]:
            with pytest.raises(UnexpectedMessage) as caught:
                client.answer(message)
            assert due is None or caught.value.received == kind.name
            assert due is None or caught.value.expected == due[0].name
        assert client.state is before
    if before is not ClientState.ABORTED:
        go_on(client, mode)
    if due is not None:
        other, _ = client_in(mode, state)
        other.answer(of_kind(due[0], known))
        assert other.state in due[1]


@pytest.mark.parametrize(("mode", "state"), CLIENT_CASES)
def test_a_second_different_message_ends_the_session_for_a_client(mode: SecurityMode, state: ClientState | str) -> None:
    for index in range(len(client_in(mode, state)[1])):
        client, steps = client_in(mode, state)
        with pytest.raises(PeerMisbehaved) as caught:
            client.answer(altered(steps[index][0]))
        assert caught.value.reason is Reason.ALREADY_ANSWERED
        assert caught.value.culprits == {ServerId()}
        assert client.state is ClientState.ABORTED
        for down, _ in steps:
            with pytest.raises(UnexpectedMessage):
                client.answer(down)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_off_the_committee_is_not_asked_to_sign(mode: SecurityMode) -> None:
    """A committee of some is exercised with a roster large enough for one."""
    recorded = recording(mode)
    path = [state for state in CLIENT_PATHS[mode] if state in CLIENT_TRANSITIONS]
    kinds = [message_kind(down) for down, _ in recorded.sent_to(recorded.session.client_ids[0])]
    assert kinds == [CLIENT_TRANSITIONS[state][0] for state in path]


@pytest.fixture
def secrets_made(monkeypatch: pytest.MonkeyPatch) -> list[Secret]:
    """Collect every secret from here on."""
    made = list[Secret]()
    initialise = Secret.__init__

    def collect(self: Secret, kind: str, data: bytes | bytearray | memoryview) -> None:
        initialise(self, kind, data)
        made.append(self)

    monkeypatch.setattr(Secret, "__init__", collect)
    return made


def left_over(made: list[Secret]) -> list[str]:
    return [secret.kind for secret in made if not secret.is_wiped]


def unusable(message: bytes) -> Iterator[bytes]:
    """Spoil a message that is due, in several ways."""
    yield message[:-1]
    yield message + b"\x00"
    yield message[: len(message) // 2]
    if message_kind(message) is not MessageKind.SESSION_OFFER:
        yield altered(message)
    yield message[:-1] + bytes([message[-1] ^ 0x80])
    yield message[:CONTEXT_AT]


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize(("mode", "state"), CLIENT_CASES)
def test_after_a_peer_error_a_client_has_aborted_and_holds_no_secret(
    mode: SecurityMode, state: ClientState | str, suite: Suite, secrets_made: list[Secret]
) -> None:
    if state not in CLIENT_TRANSITIONS:
        return
    session = InsecurePairwiseSession(setup_of(mode, suite))
    for _ in range(CLIENT_PATHS[mode].index(ClientState(state))):
        session.step()
    failed = 0
    for outgoing in session.pending:
        message = outgoing.message
        for spoiled in list(unusable(message))[failed : failed + 1]:
            client = session.clients[outgoing.receiver]
            secrets_made.clear()
            held = _held_by(client)
            try:
                client.answer(spoiled)
            except (PeerError, ThresholdNotMet):
                failed += 1
                assert client.state is ClientState.ABORTED
                assert left_over(secrets_made) == []
                assert left_over(held) == []
                with pytest.raises(UnexpectedMessage):
                    client.answer(message)
            else:
                # The last byte of some messages is one that this client need not understand.
                failed += 1
                assert client.faults or client.state is not ClientState.ABORTED
    assert failed >= 5


def _held_by(client: Client) -> list[Secret]:
    """Find every secret that a client can reach."""
    found, seen, queue = list[Secret](), set[int](), list[object]([client])
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | type):
            continue
        seen.add(id(item))
        if isinstance(item, Secret):
            found.append(item)
        elif isinstance(item, dict):
            queue += [*item.values()]  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, list | tuple | set | frozenset):
            queue += [*item]  # pyright: ignore[reportUnknownArgumentType]
        elif type(item).__module__.startswith("secagg."):
            names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
            queue += [getattr(item, name) for name in [*names, *getattr(item, "__dict__", {})] if hasattr(item, name)]
    return found


@pytest.mark.parametrize("suite", Suite)
def test_a_client_that_uploaded_holds_what_others_recover_with_and_nothing_of_its_own(suite: Suite) -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST, suite))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    clients = len(session.clients)
    held = [secret for client in session.clients.values() for secret in _held_by(client)]
    # A share of each neighbour's secrets; and the seed of each edge, to be shown if the other end drops out.
    shares = seeds = clients * (clients - 1)
    seeds *= suite is Suite.HYBRID
    assert len(held) == shares + seeds
    assert len(left_over(held)) == len(held)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_completed_has_wiped_every_secret(
    mode: SecurityMode, suite: Suite, secrets_made: list[Secret]
) -> None:
    session = InsecurePairwiseSession(setup_of(mode, suite))
    held, made = list[Secret](), list[Secret]()
    while True:
        for outgoing in session.pending:
            client = session.clients[outgoing.receiver]
            secrets_made.clear()
            answer = client.answer(outgoing.message)
            made += secrets_made
            session.server.receive(client.client, answer)
        if session.server.state is ServerState.AWAITING_UNMASKING_SHARES:
            break
        held += [secret for client in session.clients.values() for secret in _held_by(client)]
        session.pending = close_round(session.server)
    assert held
    assert left_over(held) == []
    # What no client holds any more, because it was needed for one step alone, is wiped as well.
    assert len(made) > len(held)
    assert left_over(made) == []
    for client in session.clients.values():
        assert client.state is ClientState.COMPLETED
        assert _held_by(client) == []
    secrets_made.clear()
    unmask(session.server)
    assert secrets_made
    assert left_over(secrets_made) == []


@pytest.mark.parametrize("state", CLIENT_PATHS[SecurityMode.ACTIVE][1:-1])
def test_a_client_that_leaves_holds_no_secret(state: ClientState) -> None:
    client, steps = client_in(SecurityMode.ACTIVE, state)
    held = _held_by(client)
    assert held
    client.abort()
    client.abort()
    assert left_over(held) == []
    assert client.state is ClientState.ABORTED
    for down, _ in steps:
        with pytest.raises(UnexpectedMessage, match="aborted"):
            client.answer(down)


@pytest.mark.parametrize("mode", MODES)
def test_an_offer_that_is_refused_leaves_a_client_as_it_was(mode: SecurityMode, secrets_made: list[Secret]) -> None:
    recorded = recording(mode)
    who = recorded.session.client_ids[2]
    offer = recorded.session.server.invitation
    narrow = recorded.session.enrol(who, capacity=5)
    secrets_made.clear()
    for _ in range(2):
        with pytest.raises(InvalidParameters) as caught:
            narrow.answer(offer)
        assert caught.value.reason is Reason.BELOW_FLOOR
        assert narrow.state is ClientState.AWAITING_OFFER
    assert secrets_made == []


@pytest.mark.parametrize("weight", [0, 2])
def test_an_update_that_does_not_fit_the_session_is_fitted_and_never_refused(weight: int) -> None:
    """A refusal would tell the server of the client's data."""
    setup = setup_of(SecurityMode.SEMI_HONEST)
    session = InsecurePairwiseSession(setup, weight_of=lambda _: weight)
    stranger = session.client_ids[2]
    other = update_of(insecure_payload(Layout((RingSegment(20, 6),)), b"other"))
    session.clients[stranger] = session.enrol(stranger, update=other)
    zeros = Payload(setup.layout, tuple(one.ring.zeros(one.length) for one in setup.layout.require_rings()))
    session.payloads[stranger], session.weights = zeros, dict.fromkeys(session.client_ids, 1)
    assert same_sum(session.finish(), session.sum_of(session.client_ids))


def test_after_a_refused_offer_another_one_may_come() -> None:
    session = recording(SecurityMode.ACTIVE).session
    floors = setup_of(SecurityMode.ACTIVE).floors
    weak = InsecurePairwiseSession(SessionSetup(population=8, dropped=1)).server.invitation
    client = session.enrol(session.client_ids[2], floors=floors)
    with pytest.raises(InvalidParameters, match="population of 8"):
        client.answer(weak)
    go_on(client, SecurityMode.ACTIVE)


@pytest.mark.parametrize("missing", ["authority", "signing_key", "certificate", "another authority"])
def test_an_active_offer_needs_a_certified_client(missing: str) -> None:
    session = recording(SecurityMode.ACTIVE).session
    complete = session.enrol(session.client_ids[2])
    other = InsecurePairwiseSession(SessionSetup(seed=b"elsewhere")).authority
    member = complete._member  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    lacking = PairwiseMember(
        session.client_ids[2],
        floors=session.floors,
        coins=session.setup.coins_of("a client"),
        authority=other if missing == "another authority" else None if missing == "authority" else member.authority,
        signing_key=None if missing == "signing_key" else member.signing_key,
        certificate=None if missing == "certificate" else member.certificate,
    )
    client = Client(lacking, session.setup.subject, session.update_of(session.client_ids[2]))
    with pytest.raises(InvalidParameters, match="authority"):
        client.answer(session.server.invitation)
    assert client.state is ClientState.AWAITING_OFFER


def test_a_certificate_of_somebody_else_or_for_another_key_is_refused_at_once() -> None:
    session = recording(SecurityMode.ACTIVE).session
    own, other = session.client_ids[:2]
    others = session.enrol(other)._member.certificate  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    assert others is not None
    with pytest.raises(InvalidParameters, match="certificate is that of"):
        session.enrol(own, certificate=others)
    with pytest.raises(InvalidParameters, match="another key"):
        session.enrol(own, certificate=type(others)(own, others.public_key, others.signature))


def test_a_forked_client_refuses_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for state in CLIENT_PATHS[SecurityMode.ACTIVE][:-1]:
        client, _ = client_in(SecurityMode.ACTIVE, state)
        held = _held_by(client)
        down, _ = recording(SecurityMode.ACTIVE).sent_to(client.client)[
            CLIENT_PATHS[SecurityMode.ACTIVE].index(client.state)
        ]
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(Misuse, match="forked"):
                client.answer(down)
        assert client.state is ClientState.ABORTED
        assert left_over(held) == []
        twin, _ = client_in(SecurityMode.ACTIVE, state)
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(Misuse, match="forked"):
                twin.suspend()
        assert twin.state is ClientState.ABORTED


# --- The server -------------------------------------------------------------------------------------------------------


def server_in(mode: SecurityMode, state: ServerState | str, *, without: ClientId | None = None) -> Server:
    """Bring a fresh server into a state; in that state everybody has answered but for the one that is left out."""
    recorded = recording(mode)
    server = Server(setup_of(mode).plan(recorded.session.authority.public_key))
    for reached, deliveries in recorded.rounds:
        assert server.state is reached
        last = reached == state
        for client, (_, up) in deliveries.items():
            if not (last and client == without):
                server.receive(client, up)
        if last:
            return server
        if reached is ServerState.AWAITING_UNMASKING_SHARES:
            if state == "aborted":
                server.abort()
            else:
                unmask(server)
        else:
            close_round(server)
    assert server.state == state
    return server


def answers_of(mode: SecurityMode, client: ClientId) -> list[bytes]:
    return [up for _, up in recording(mode).sent_to(client)]


@pytest.mark.parametrize(("mode", "state"), SERVER_CASES)
def test_a_server_takes_what_is_due_and_nothing_else(mode: SecurityMode, state: ServerState | str) -> None:
    """What changes nothing is handed to one server, kind after kind, and what is due then to it as well."""
    session = recording(mode).session
    last = session.client_ids[-1]
    server = server_in(mode, state, without=last)
    before = stored(server) if server.state in SERVER_TRANSITIONS else b""
    foreign = [message for pair in recording(SecurityMode.ACTIVE).sent_to(last) for message in pair]
    known = [*answers_of(mode, last), *foreign]
    due = SERVER_TRANSITIONS.get(server.state)
    taken = {SENT_INSTEAD.get(server.state), due[0] if due else None}
    reached = SERVER_PATHS[mode].index(ServerState(state)) if state != "aborted" else len(SERVER_PATHS[mode])
    sent = [message_kind(up) for up in answers_of(mode, last)][:reached]
    for kind in MessageKind:
        if kind in taken:
            continue
        if kind in sent:
            server.receive(last, of_kind(kind, known))
        else:
            with pytest.raises(UnexpectedMessage) as caught:
                server.receive(last, of_kind(kind, known))
            assert due is None or caught.value.received == kind.name
            assert caught.value.culprits == (NOBODY if due is None else unverified(last))
            assert due is None or caught.value.expected == due[0].name
            assert not server.faults
        assert server.state == state
        assert not before or stored(server) == before
    if due is not None:
        assert not reached or last in (server.awaited or ())
        server.receive(last, of_kind(due[0], known))
        assert server.state == state
        assert last not in (server.awaited or ())
        assert stored(server) != before
    if (instead := SENT_INSTEAD.get(server.state)) is not None:
        another = server_in(mode, state, without=last)
        with pytest.raises(MalformedMessage):
            another.receive(last, of_kind(instead, known))
        assert another.state == state
        assert last in (another.awaited or ()), "nothing of it is signed"


@pytest.mark.parametrize(("mode", "state"), SERVER_CASES)
def test_closing_a_round_leads_where_the_table_says(mode: SecurityMode, state: ServerState | str) -> None:
    server = server_in(mode, state)
    before = server.state
    path = SERVER_PATHS[mode]
    if before in path[:-2]:
        recorded = dict(recording(mode).rounds)
        messages = close_round(server)
        assert server.state in SERVER_TRANSITIONS[before][1]
        following = path[path.index(before) + 1]
        assert server.state is following
        assert messages == [Outgoing(client, down) for client, (down, _) in recorded[following].items()]
        return
    if before is ServerState.AWAITING_UNMASKING_SHARES:
        server.close_stage()
    with pytest.raises(Misuse):
        close_round(server)
    assert server.state is before


@pytest.mark.parametrize(("mode", "state"), SERVER_CASES)
def test_only_the_last_round_is_unmasked(mode: SecurityMode, state: ServerState | str) -> None:
    server = server_in(mode, state)
    if server.state is ServerState.AWAITING_UNMASKING_SHARES:
        assert same_sum(unmask(server), recording(mode).session.sum_of(setup_of(mode).client_ids))
        assert SERVER_TRANSITIONS[ServerState.AWAITING_UNMASKING_SHARES][1] == {server.state}
    with pytest.raises(Misuse):
        unmask(server)
    assert state in {server.state, ServerState.AWAITING_UNMASKING_SHARES}


@pytest.mark.parametrize(("mode", "state"), SERVER_CASES)
def test_a_second_different_message_changes_nothing(mode: SecurityMode, state: ServerState | str) -> None:
    server = server_in(mode, state)
    before = stored(server) if server.state in SERVER_TRANSITIONS else b""
    for client in recording(mode).session.client_ids[:2]:
        reached = SERVER_PATHS[mode].index(ServerState(state)) + 1 if state != "aborted" else len(SERVER_PATHS[mode])
        for number, up in enumerate(answers_of(mode, client)[:reached], 1):
            with pytest.raises(PeerError) as caught:
                server.receive(client, altered(up))
            # What came before this round is late, and not read.
            is_late = number < reached or state not in SERVER_TRANSITIONS
            assert isinstance(caught.value, UnexpectedMessage) == is_late
            assert caught.value.culprits == (unverified(client) if state in SERVER_TRANSITIONS else NOBODY)
    assert not before or stored(server) == before
    assert len(server.faults) == (2 if state in SERVER_TRANSITIONS else 0)


@pytest.mark.parametrize(("mode", "state"), SERVER_CASES)
def test_a_message_that_was_altered_on_the_way_leaves_its_sender_awaited(
    mode: SecurityMode, state: ServerState | str
) -> None:
    if state not in SERVER_TRANSITIONS:
        return
    session = recording(mode).session
    last, others = session.client_ids[-1], frozenset(session.client_ids[:-1])
    up = dict(recording(mode).rounds)[ServerState(state)][last][1]
    for spoilt in (altered(up), up[:-1], up + b"\x00"):
        server = server_in(mode, state, without=last)
        with pytest.raises(PeerError) as caught:
            server.receive(last, spoilt)
        assert isinstance(caught.value, PeerMisbehaved | MalformedMessage)
        assert caught.value.culprits == unverified(last)
        assert server.faults == (caught.value,)
        assert server.state == state
        assert state == SERVER_PATHS[mode][0] or last in (server.awaited or ())
        server.receive(last, up)
        assert last not in (server.awaited or ())
        finished = _finish(server, mode, others | {last})
        assert same_sum(finished, session.sum_of(others | {last}))
        assert server.revealed == {others | {last}}


def _finish(server: Server, mode: SecurityMode, clients: frozenset[ClientId]) -> Aggregate:
    """Go on with these clients, which begin where they stand in the recording."""
    session = recording(mode).session
    twins = {client: session.enrol(client) for client in session.client_ids}
    path = SERVER_PATHS[mode]
    for client, twin in twins.items():
        for down, _ in recording(mode).sent_to(client)[: path.index(server.state) + 1]:
            twin.answer(down)
    while server.state is not ServerState.AWAITING_UNMASKING_SHARES:
        for outgoing in close_round(server):
            if outgoing.receiver in clients:
                server.receive(outgoing.receiver, twins[outgoing.receiver].answer(outgoing.message))
    return unmask(server)


@pytest.mark.parametrize("mode", MODES)
def test_a_stranger_is_not_part_of_any_round_after_the_first(mode: SecurityMode) -> None:
    stranger = ClientId(5)
    for state, deliveries in recording(mode).rounds[1:]:
        server = server_in(mode, state, without=setup_of(mode).client_ids[-1])
        before = stored(server)
        (_, up), *_ = deliveries.values()
        with pytest.raises(PeerMisbehaved) as caught:
            server.receive(stranger, up)
        assert caught.value.reason is Reason.NOT_ELIGIBLE
        assert caught.value.culprits == unverified(stranger)
        assert stored(server) == before


@pytest.mark.parametrize("mode", MODES)
def test_too_few_in_any_round_end_the_session(mode: SecurityMode) -> None:
    recorded = recording(mode)
    for stop, (state, _) in enumerate(recorded.rounds):
        server = Server(setup_of(mode).plan(recorded.session.authority.public_key))
        for reached, deliveries in recorded.rounds[:stop]:
            for client, (_, up) in deliveries.items():
                server.receive(client, up)
            assert server.state is reached
            close_round(server)
        for client, (_, up) in list(recorded.rounds[stop][1].items())[:2]:
            server.receive(client, up)
        last = state is ServerState.AWAITING_UNMASKING_SHARES
        with pytest.raises(ThresholdNotMet) as caught:
            unmask(server) if last else close_round(server)
        # A client's share is held by the others, so of two answers one counts for each of the two.
        assert caught.value.present == (1 if last else 2)
        quorum = state is ServerState.AWAITING_SURVIVOR_SIGNATURES
        needed = server.configuration.quorum if quorum else server.configuration.minimum_cohort
        assert caught.value.needed == (server.configuration.threshold if last else needed)
        assert server.state is ServerState.ABORTED
        with pytest.raises(Misuse, match="no stage to close"):
            close_round(server)
        with pytest.raises(Misuse, match="releases once"):
            unmask(server)


def test_a_server_waits_for_those_who_have_not_answered() -> None:
    mode = SecurityMode.ACTIVE
    recorded = recording(mode)
    server = Server(setup_of(mode).plan(recorded.session.authority.public_key))
    assert server.awaited is None
    with pytest.raises(Misuse, match="no roster"):
        _ = server.roster
    for state, deliveries in recorded.rounds:
        assert server.state is state
        waiting = set(deliveries)
        for client, (_, up) in deliveries.items():
            if state is not ServerState.AWAITING_KEY_ADVERTISEMENTS:
                assert server.awaited == waiting
            waiting.discard(client)
            server.receive(client, up)
        assert not server.awaited
        if state is not ServerState.AWAITING_UNMASKING_SHARES:
            close_round(server)
    unmask(server)
    assert server.awaited == frozenset()


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_session_releases_nothing_and_keeps_nothing(mode: SecurityMode) -> None:
    for state in SERVER_PATHS[mode][:-1]:
        server = server_in(mode, state)
        server.abort()
        assert server.state is ServerState.ABORTED
        assert server.snapshot() is None
        with pytest.raises(Misuse):
            unmask(server)


def test_garbage_is_refused_and_changes_nothing() -> None:
    session = recording(SecurityMode.ACTIVE).session
    server = server_in(SecurityMode.ACTIVE, ServerState.AWAITING_MASKED_INPUTS, without=session.client_ids[0])
    before = stored(server)
    for garbage in (b"", b"SAGG", b"\x00" * 40, b"SAGG\x01\x00\x63", b"SAGG\x02\x00\x15"):
        with pytest.raises(MalformedMessage) as caught:
            server.receive(session.client_ids[0], garbage)
        assert caught.value.culprits == unverified(session.client_ids[0])
        client, _ = client_in(SecurityMode.ACTIVE, ClientState.AWAITING_DELIVERED_SHARES)
        with pytest.raises(MalformedMessage) as refused:
            client.answer(garbage)
        assert refused.value.culprits == frozenset[Party]({ServerId()})
        go_on(client, SecurityMode.ACTIVE)
    assert stored(server) == before
    # Of what fails for one reason the first is kept; a kind that is not due is no fault.
    assert len({fault.reason for fault in server.faults}) == len(server.faults) == 3


def test_a_large_active_session_has_a_committee_of_some() -> None:
    """Its other clients go from uploading straight to unmasking."""
    setup = SessionSetup(population=140, corrupted=1, dropped=1, topology=Topology.SPARSE)
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    members = {outgoing.receiver for outgoing in session.pending}
    assert 0 < len(members) < setup.population
    for client, who in session.clients.items():
        on_committee = client in members
        assert who.state is (
            ClientState.AWAITING_SURVIVOR_SET if on_committee else ClientState.AWAITING_UNMASKING_REQUEST
        )
    outsider = next(client for client in session.client_ids if client not in members)
    with pytest.raises(UnexpectedMessage):
        session.clients[outsider].answer(session.pending[0].message)
    before = stored(session.server)
    signature = session.clients[session.pending[0].receiver].answer(session.pending[0].message)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(outsider, signature)
    assert caught.value.reason is Reason.NOT_ELIGIBLE
    assert stored(session.server) == before
    total = session.finish()
    assert same_sum(total, session.sum_of(session.client_ids))
    assert all(not isinstance(error, SecAggError) for error in session.errors.values())


def test_a_sender_that_is_no_client_id_is_misuse_and_excludes_nobody() -> None:
    session = InsecurePairwiseSession(SessionSetup())
    wrong: Any = 1000
    with pytest.raises(Misuse, match="a sender is a ClientId"):
        session.server.receive(wrong, session.clients[session.client_ids[0]].answer(session.server.invitation))
    assert stored(restored(stored(session.server))) == stored(session.server)


# --- What a client brings ---------------------------------------------------------------------------------------------


class RepeatingCoins:
    """Coins that a broken machine gives: the same bytes, over and over."""

    def __init__(self, period: bytes) -> None:
        self._period = period

    def draw(self, count: int) -> bytearray:
        return bytearray((self._period * (count // len(self._period) + 1))[:count])


@pytest.mark.parametrize("period", [b"\0", b"\x01", bytes(range(32))])
@pytest.mark.parametrize("mode", MODES)
def test_coins_that_repeat_are_refused_before_anything_is_sent(mode: SecurityMode, period: bytes) -> None:
    session = InsecurePairwiseSession(setup_of(mode))
    client = session.enrol(session.client_ids[0], coins=RepeatingCoins(period))
    with pytest.raises(Misuse, match="coins repeat"):
        client.answer(session.server.invitation)
    assert client.state is ClientState.AWAITING_OFFER


@pytest.mark.parametrize("table", [CLIENT_TRANSITIONS, SERVER_TRANSITIONS], ids=["client", "server"])
def test_the_readme_shows_the_tables(table: Any, repository: Path) -> None:
    """To make it anew: print ``diagram_of`` and put it there."""
    readme = (repository / "protocols" / "pairwise_mask" / "README.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram_of(table, 'aborted')}\n```" in readme
