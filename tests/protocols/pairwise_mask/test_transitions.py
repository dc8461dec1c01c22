"""Every message in every state, for both roles, from the tables: only the expected one changes the state."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from secagg.blame import unverified
from secagg.crypto.entropy import Coins
from secagg.crypto.prime_field import ELEMENT_BYTES, random_root
from secagg.crypto.secret import Secret
from secagg.errors import (
    NOBODY,
    AuthenticationFailed,
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
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import round0_advertise_keys, round2_masked_input
from secagg.protocols.pairwise_mask.client import Client, PairwiseMember
from secagg.protocols.pairwise_mask.configuration import NO_DIGEST, Seat
from secagg.protocols.pairwise_mask.member import CLIENT_TRANSITIONS, ClientState, advance
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement, authenticate
from secagg.protocols.pairwise_mask.round1_share_keys import EncryptedShares
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedVector, share_place
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import UnmaskingRequest, reveal_shares
from secagg.protocols.pairwise_mask.session import SENT_INSTEAD, SERVER_TRANSITIONS, Server, ServerState
from secagg.session.ledger import uncharged
from secagg.session.roles import LazyUpdate, Update
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    Outgoing,
    SessionSetup,
    close_round,
    restored,
    same_sum,
    stored,
    unmask,
)
from tests.harness.secrets_held import held_by, left_over, secrets_from_now

MODES = list(SecurityMode)
CONTEXT_AT = 7
"""Every message after the offer has the context right after its header."""
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
    """A successful session: the server's messages to each client and the answers, round by round."""

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
    """Change the first byte after the header: the session that the message names, or the length in an offer."""
    return message[:CONTEXT_AT] + bytes([message[CONTEXT_AT] ^ 1]) + message[CONTEXT_AT + 1 :]


def of_kind(kind: MessageKind, known: list[bytes]) -> bytes:
    """Return a message of a kind: a known one, if any, or only a header."""
    return next((message for message in known if message_kind(message) is kind), Writer(kind).finish())


# --- The tables -------------------------------------------------------------------------------------------------------


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


# --- The client -------------------------------------------------------------------------------------------------------


def client_in(mode: SecurityMode, state: ClientState | str) -> tuple[Client, list[tuple[bytes, bytes]]]:
    """Bring a fresh client into a state; return it with its received messages and answers."""
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
    """Check that a client continues exactly as if nothing had happened."""
    steps = recording(mode).sent_to(client.client)
    for down, up in steps[CLIENT_PATHS[mode].index(client.state) :]:
        assert client.answer(down) == up
    assert client.state is ClientState.COMPLETED


@pytest.mark.parametrize(("mode", "state"), CLIENT_CASES)
def test_a_client_answers_what_is_due_and_nothing_else(mode: SecurityMode, state: ClientState | str) -> None:
    """Send one client all messages without effect, kind by kind, and then the expected one."""
    client, steps = client_in(mode, state)
    before = client.state
    due = CLIENT_TRANSITIONS.get(before)
    known = messages_to_client(mode)
    for kind in MessageKind:
        message = of_kind(kind, known)
        answered = [up for down, up in steps if message_kind(down) is kind]
        if answered and kind is MessageKind.DELIVERED_SHARES:
            with pytest.raises(UnexpectedMessage, match="already returned"):
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


@pytest.fixture
def secrets_made(monkeypatch: pytest.MonkeyPatch) -> list[Secret]:
    return secrets_from_now(monkeypatch)


def unusable(message: bytes) -> Iterator[bytes]:
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
            held = held_by(client)
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
                # This client need not understand the last byte of some messages.
                failed += 1
                assert client.faults or client.state is not ClientState.ABORTED
    assert failed >= 5


@pytest.mark.parametrize("suite", Suite)
def test_a_client_that_uploaded_holds_what_others_recover_with_and_nothing_of_its_own(suite: Suite) -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST, suite))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    clients = len(session.clients)
    held = [secret for client in session.clients.values() for secret in held_by(client)]
    # A share of each neighbour's secrets, and the seed of each edge, to be revealed if the other end drops out.
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
        held += [secret for client in session.clients.values() for secret in held_by(client)]
        session.pending = close_round(session.server)
    assert held
    assert left_over(held) == []
    # Values that were needed for only one step, and that no client holds any more, are wiped too.
    assert len(made) > len(held)
    assert left_over(made) == []
    for client in session.clients.values():
        assert client.state is ClientState.COMPLETED
        assert held_by(client) == []
    secrets_made.clear()
    unmask(session.server)
    assert secrets_made
    assert left_over(secrets_made) == []


@pytest.mark.parametrize("state", CLIENT_PATHS[SecurityMode.ACTIVE][1:-1])
def test_a_client_that_leaves_holds_no_secret(state: ClientState) -> None:
    client, steps = client_in(SecurityMode.ACTIVE, state)
    held = held_by(client)
    assert held
    client.abort()
    client.abort()
    assert left_over(held) == []
    assert client.state is ClientState.ABORTED
    for down, _ in steps:
        with pytest.raises(UnexpectedMessage, match="aborted"):
            client.answer(down)


@pytest.mark.parametrize("missing", ["authority", "signing_key", "certificate", "another authority"])
def test_an_active_offer_needs_a_certified_client(missing: str) -> None:
    session = recording(SecurityMode.ACTIVE).session
    complete = session.enrol(session.client_ids[2])
    other = InsecurePairwiseSession(SessionSetup(seed=b"elsewhere")).authority
    member = complete._member  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    lacking = PairwiseMember(
        session.client_ids[2],
        policy=session.policy,
        coins=session.setup.coins_of("a client"),
        authority=other if missing == "another authority" else None if missing == "authority" else member.authority,
        signing_key=None if missing == "signing_key" else member.signing_key,
        certificate=None if missing == "certificate" else member.certificate,
        charge=uncharged,
    )
    client = Client(lacking, session.setup.subject, session.update_of(session.client_ids[2]))
    with pytest.raises(InvalidParameters, match="authority"):
        client.answer(session.server.invitation)
    assert client.state is ClientState.AWAITING_OFFER


def test_a_client_whose_key_was_wiped_draws_nothing(secrets_made: list[Secret]) -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE))
    client = session.enrol(session.client_ids[2])
    session.signing_keys[client.client].wipe()
    secrets_made.clear()
    with pytest.raises(Misuse, match="was wiped"):
        client.answer(session.server.invitation)
    assert client.state is ClientState.AWAITING_OFFER
    assert secrets_made == []


@pytest.mark.parametrize("threads", [0, -1, True, 1.0])
def test_a_number_of_threads_is_at_least_one(threads: Any) -> None:
    session = recording(SecurityMode.SEMI_HONEST).session
    with pytest.raises(InvalidParameters, match="threads must be at least 1"):
        PairwiseMember(
            session.client_ids[0],
            policy=session.policy,
            coins=session.setup.coins_of("a client"),
            charge=uncharged,
            threads=threads,
        )
    with pytest.raises(InvalidParameters, match="threads must be at least 1"):
        Server(session.setup.plan(), threads=threads)


@pytest.mark.parametrize("end", [Client.suspend, Client.abort])
def test_a_completed_client_that_leaves_stays_completed(end: Callable[[Client], object]) -> None:
    client, steps = client_in(SecurityMode.ACTIVE, ClientState.COMPLETED)
    assert end(client) is None
    assert client.state is ClientState.COMPLETED
    with pytest.raises(UnexpectedMessage, match="the session is completed"):
        client.answer(steps[-1][0])


def test_a_copy_in_another_process_waits_for_no_thread_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    client, steps = client_in(SecurityMode.ACTIVE, ClientState.AWAITING_ADVERTISED_KEYS)
    answers = list[object]()

    def ask() -> None:
        with pytest.raises(Misuse, match="process"):
            client.answer(steps[0][0])
        with pytest.raises(Misuse, match="process"):
            client.suspend()
        client.abort()
        answers.append(client.state)

    with vars(client)["_lock"]:  # As a thread of the parent holds it at the fork.
        monkeypatch.setattr(client, "_process", -1)
        child = Thread(target=ask, daemon=True)
        child.start()
        child.join(10)
        assert answers == [ClientState.ABORTED]


@pytest.mark.parametrize("broken", ["MaskKeys", "sign_advertisement"])
def test_what_was_drawn_for_keys_is_overwritten_where_they_cannot_be_made_or_signed(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE)), list[Secret]()

    def fails(*_: object) -> None:
        raise MemoryError

    def drawn(kind: str, coins: Coins) -> Secret:
        made.append(random_root(kind, coins))
        return made[-1]

    monkeypatch.setattr(round0_advertise_keys, broken, fails)
    monkeypatch.setattr(round0_advertise_keys, "random_root", drawn)
    with pytest.raises(MemoryError):
        session.step()
    assert [secret.is_wiped for secret in made[:2]] == [True, True]


def test_an_input_is_overwritten_where_it_cannot_be_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    session, made = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST)), list[MaskedVector]()
    session.reach(ServerState.AWAITING_MASKED_INPUTS)

    def fails(vector: MaskedVector, *_: object) -> None:
        made.append(vector)
        assert any(each.any() for each in vector.vectors)
        raise MemoryError

    monkeypatch.setattr(round2_masked_input, "_apply_masks", fails)
    asked = session.client_ids[2]
    with pytest.raises(MemoryError):
        session.clients[asked].answer(session.take(asked))
    (vector,) = made
    assert not any(each.any() for each in vector.vectors)


@pytest.mark.parametrize("refusing", ["the update's ledger", "the member's ledger", "room", "an update that was taken"])
def test_a_budget_is_not_spent_on_an_upload_that_is_refused(refusing: str) -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST))
    asked, payload, charged = session.client_ids[2], session.payloads[session.client_ids[2]], list[str]()

    def charge(name: str) -> Callable[..., None]:
        def charged_or_refused(*_: object) -> None:
            if name == refusing:
                raise PeerMisbehaved(name, reason=Reason.ALREADY_ANSWERED, culprits=NOBODY)
            charged.append(name)

        return charged_or_refused

    update = LazyUpdate(lambda: Update(payload, NO_DIGEST), NO_DIGEST, charge=charge("the update's ledger"))
    member = session.member(asked)
    budget: Any = SimpleNamespace(require_room=print, charge=charge("a budget"))
    member.charge, member.privacy = charge("the member's ledger"), budget
    session.clients[asked] = Client(member, session.setup.subject, update)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    if refusing == "an update that was taken":
        update.take(payload.layout)
    charged.clear()
    budget.require_room = charge("room")
    with pytest.raises(SecAggError):
        session.clients[asked].answer(session.take(asked))
    assert "a budget" not in charged
    assert charged == {"the member's ledger": ["room", "the update's ledger"], "room": []}.get(refusing, ["room"])


def test_a_certificate_of_somebody_else_or_for_another_key_is_refused_at_once() -> None:
    session = recording(SecurityMode.ACTIVE).session
    own, other = session.client_ids[:2]
    others = session.enrol(other)._member.certificate  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    assert others is not None
    with pytest.raises(InvalidParameters, match="certificate belongs to"):
        session.enrol(own, certificate=others)
    with pytest.raises(InvalidParameters, match="does not match the signing key"):
        session.enrol(own, certificate=type(others)(own, others.public_key, others.grant))


def test_a_forked_client_refuses_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for state in CLIENT_PATHS[SecurityMode.ACTIVE][:-1]:
        client, _ = client_in(SecurityMode.ACTIVE, state)
        held = held_by(client)
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
    """Bring a fresh server into a state in which all clients except the given one have answered."""
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
    """Send one server all messages without effect, kind by kind, and then the expected one."""
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
        if kind in sent and due is None:
            server.receive(last, of_kind(kind, known))
        else:
            is_repeated = kind in sent
            with pytest.raises(UnexpectedMessage) as caught:
                server.receive(last, of_kind(kind, known))
            if due is not None:
                expected = f"an answer to the open stage ({getattr(server.stage, 'name', '')})"
                assert caught.value.received == ("an answer to an earlier stage" if is_repeated else kind.name)
                assert caught.value.expected == (expected if is_repeated else due[0].name)
            assert caught.value.culprits == (NOBODY if due is None or is_repeated else unverified(last))
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


def test_a_committee_of_some_signs_alone() -> None:
    """Its other clients go directly from uploading to unmasking."""
    session = InsecurePairwiseSession()
    session.replan(replace(session.server.configuration, committee_size=5, quorum=4))
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    members = {outgoing.receiver for outgoing in session.pending}
    assert len(members) == 5
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
    with pytest.raises(Misuse, match="sender must be an authenticated ClientId"):
        session.server.receive(wrong, session.clients[session.client_ids[0]].answer(session.server.invitation))
    assert stored(restored(stored(session.server))) == stored(session.server)


# --- What a client brings ---------------------------------------------------------------------------------------------


class RepeatingCoins:
    """Coins of a broken machine: always the same bytes."""

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


def test_the_readme_has_what_each_state_awaits_and_answers(repository: Path) -> None:
    readme = (repository / "protocols" / "pairwise_mask" / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Order, repetition, abort")[2].partition("\n## ")[0]
    shown = [
        tuple(map(int, pair)) for pair in re.findall(r"^\| \w+ \((\d+)\).*? \| \w+ \((\d+)\)", section, re.MULTILINE)
    ]
    pairs = zip(CLIENT_TRANSITIONS.values(), SERVER_TRANSITIONS.values(), strict=True)
    assert shown == [(awaited.value, answer.value) for (awaited, _), (answer, _) in pairs]


def test_an_upload_needs_an_update_that_was_trained_from_the_sessions_model() -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST))
    without, other = session.client_ids[:2]
    subject = replace(session.setup.subject, model_digest=None)
    session.clients[without] = session.member(without).join(session.setup.subject)
    session.clients[other] = session.member(other).join(
        subject, LazyUpdate(lambda: Update(session.payloads[other], b"o" * 32), b"o" * 32)
    )
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    assert set(session.errors) == {without, other}
    for client, sentence in ((without, "must contain the model"), (other, "not the one that the update")):
        (error,) = session.errors[client]
        assert isinstance(error, InvalidParameters)
        assert sentence in str(error)


def test_an_active_advertisement_is_not_verified_without_an_authority_or_a_credential() -> None:
    session = recording(SecurityMode.ACTIVE).session
    configuration, own = session.server.configuration, session.client_ids[0]
    _, sent = recording(SecurityMode.ACTIVE).sent_to(own)[0]
    advertisement = KeyAdvertisement.decode(sent, configuration)
    assert authenticate(advertisement, configuration, session.authority) is not None
    for spoiled, authority in ((advertisement, None), (replace(advertisement, credential=None), session.authority)):
        with pytest.raises(InternalError, match="without an authority and a credential"):
            authenticate(spoiled, configuration, authority)


@pytest.mark.parametrize("spoiled", [0, 1])
def test_shares_that_are_no_elements_are_refused_when_they_come(spoiled: int) -> None:
    """If revealed later, they would be refused as their holder's fault."""
    roster = recording(SecurityMode.SEMI_HONEST).session.server.roster
    check, place = vars(round2_masked_input)["_check_shares"], share_place(roster, 0, 1)
    halves = [bytes(ELEMENT_BYTES), bytes(ELEMENT_BYTES)]
    check(Secret("shares", b"".join(halves)), place, b"")
    halves[spoiled] = b"\xff" * ELEMENT_BYTES
    with pytest.raises(PeerError):
        check(Secret("shares", b"".join(halves)), place, b"")


@pytest.mark.parametrize("state", [ServerState.AWAITING_KEY_ADVERTISEMENTS, ServerState.AWAITING_ENCRYPTED_SHARES])
@pytest.mark.parametrize("mode", MODES)
def test_keys_and_shares_of_another_attempt_are_refused(mode: SecurityMode, state: ServerState) -> None:
    setup = setup_of(mode)
    session, other = InsecurePairwiseSession(setup), InsecurePairwiseSession(setup.next_attempt())
    own = setup.client_ids[0]
    for each in (session, other):
        each.reach(state)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(own, other.clients[own].answer(other.take(own)))
    assert caught.value.reason is Reason.WRONG_SESSION


def test_shares_that_another_key_has_signed_are_refused() -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE))
    own, another = session.client_ids[:2]
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    roster = session.server.roster
    message = session.clients[own].answer(session.take(own))
    sealed = EncryptedShares.decode(message, Seat(roster, roster.clients.index(own)))
    with pytest.raises(AuthenticationFailed):
        session.server.receive(own, replace(sealed, signature=bytes(64)).encode())
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    message = session.clients[own].answer(session.take(own))
    session.signing_keys[own] = session.signing_keys[another]
    with pytest.raises(AuthenticationFailed):
        session.server.receive(own, session.signed_again(own, message))


@pytest.mark.parametrize("mode", MODES)
def test_a_client_unmasks_those_alone_who_shared_and_are_enough_around_it(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, dropped=2))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    session.drop(session.client_ids[7])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    own = session.client_ids[0]
    client, roster = session.clients[own], session.server.roster
    step = vars(client)["_step"]
    masked = getattr(step, "masked", step)
    request = UnmaskingRequest.decode(session.take(own), roster)

    def reveal(state: Any, *positions: int) -> None:
        reveal_shares(session.member(own), state, replace(request, contributors=roster.set_of(positions)))

    with pytest.raises(PeerMisbehaved, match="did not share keys"):
        reveal(masked, *range(8))
    with pytest.raises(PeerMisbehaved, match="lists it as dropped"):
        reveal(masked, *range(1, 7))
    with pytest.raises(ThresholdNotMet) as caught:
        reveal(masked, 0, 1)
    assert caught.value.needed == 3
    with pytest.raises(ThresholdNotMet) as caught:
        reveal(masked, 0, 1, 2, 3)
    assert (caught.value.needed, caught.value.present) == (5, 3)
    if mode is SecurityMode.ACTIVE:
        with pytest.raises(PeerMisbehaved, match="differ from those that this client signed"):
            reveal(step, *range(6))
