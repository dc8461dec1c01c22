"""Whole sessions on one page, their memory, and platforms' usage: threads, and reused buffers."""

from __future__ import annotations

import hashlib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from time import sleep

import numpy as np
import pytest

from secagg.choices import Topology
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.ring import low_bits
from secagg.errors import Fault, InvalidParameters, PeerError, PeerMisbehaved, Reason, SecAggError, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.member import ClientState
from secagg.protocols.pairwise_mask.plan import PairwiseOptions
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import SurvivorSet
from secagg.protocols.pairwise_mask.run import run
from secagg.protocols.pairwise_mask.session import PairwiseHelpers, Server, ServerState, open_session
from secagg.session.certificates import SigningKey
from secagg.wire import HEADER_BYTES, MessageKind, message_kind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    same_sum,
    stored,
    unmask,
)

OPEN_STATES: list[ServerState] = [
    state for state in ServerState if state not in {ServerState.COMPLETED, ServerState.ABORTED}
]
SECURITIES = [(mode, topology) for mode in SecurityMode for topology in Topology]


# --- Strategies -------------------------------------------------------------------------------------------------------


def constant_payload(layout: Layout, value: int) -> Payload:
    rings = layout.require_rings()
    vectors = (np.full(s.length, value & low_bits(s.modulus_bits), dtype=s.ring.word) for s in rings)
    return Payload(layout, tuple(vectors))


# --- run() ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "topology"), SECURITIES)
def test_the_protocol_on_one_page_gives_the_sum(
    mode: SecurityMode, topology: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    setup = SessionSetup(population=9, dropped=2, mode=mode, topology=topology)
    session = InsecurePairwiseSession(setup)
    gone = {
        ServerState.AWAITING_MASKED_INPUTS: frozenset(setup.client_ids[:1]),
        ServerState.AWAITING_UNMASKING_SHARES: frozenset(setup.client_ids[4:5]),
    }
    heard = list[tuple[ServerState, MessageKind, MessageKind]]()

    def sent(state: ServerState, client: ClientId, down: bytes, up: bytes) -> None:
        assert client in setup.client_ids
        heard.append((state, message_kind(down), message_kind(up)))

    steps = list[tuple[int, int]]()
    total, server = run(
        setup.plan(session.authority.public_key),
        session.clients.values(),
        dropouts=gone,
        sent=sent,
        progress=lambda done, count: steps.append((done, count)),
    )
    assert same_sum(total, session.sum_of(setup.client_ids[1:]))
    assert server.revealed == {frozenset(setup.client_ids[1:])}
    assert "reveals the sums of 1 sets of clients, of sizes [8]" in caplog.text
    kinds = {state: (down, up) for state, down, up in heard}
    assert len(kinds) == len(set(heard)) == (5 if mode is SecurityMode.ACTIVE else 4)
    counts = [sum(state is other for other, _, _ in heard) for state in OPEN_STATES]
    assert counts[:3] == [9, 9, 8]
    assert counts[4] == 7
    assert steps[-1][0] == steps[-1][1]


def test_a_client_that_fails_has_dropped_out_for_the_others() -> None:
    setup = SessionSetup(population=6, dropped=1, mode=SecurityMode.SEMI_HONEST)
    session = InsecurePairwiseSession(setup)
    broken = session.clients[setup.client_ids[2]]
    answer = broken.answer

    def abort_in_the_middle(message: bytes) -> bytes:
        if message_kind(message) is MessageKind.DELIVERED_SHARES:
            message = message[:-1]
        return answer(message)

    broken.answer = abort_in_the_middle  # type: ignore[method-assign]
    total, server = run(setup.plan(), session.clients.values())
    others = frozenset(setup.client_ids) - {broken.client}
    assert broken.state is ClientState.ABORTED
    assert server.revealed == {others}
    assert same_sum(total, session.sum_of(others))


# --- Progress ---------------------------------------------------------------------------------------------------------


def test_progress_rises_to_the_number_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.protocols.pairwise_mask.recovery.MASKS_PER_STEP", 4)
    setup = SessionSetup(population=8, dropped=2, mode=SecurityMode.SEMI_HONEST)
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(*setup.client_ids[:2])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    steps = list[tuple[int, int]]()
    unmask(session.server, lambda done, count: steps.append((done, count)))
    # Six self masks, and two dropped clients with six edges to contributors each.
    assert steps == [(done, 18) for done in (4, 8, 12, 16, 18)]


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_uploads_are_added_and_not_kept() -> None:
    length, population = 100_000, 30
    setup = SessionSetup(
        population=population,
        mode=SecurityMode.SEMI_HONEST,
        topology=Topology.SPARSE,
        layout=Layout((RingSegment(32, length),)),
    )
    vector = 4 * length
    session = InsecurePairwiseSession(setup, payload_of=lambda _: constant_payload(setup.layout, 1))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    kept, highest = 0, 0
    for outgoing in session.pending:
        upload = session.clients[outgoing.receiver].answer(outgoing.message)
        assert len(upload) > vector
        tracemalloc.start()
        # A copy made here is detected if it is kept.
        arrived = bytes(memoryview(upload))
        session.server.receive(outgoing.receiver, arrived)
        del arrived
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept, highest = kept + left, max(highest, peak)
    assert kept < 1.5 * vector, kept / vector
    assert highest < 5 * vector
    assert len(stored(session.server)) < 2 * vector


# --- What platforms do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
def test_an_upload_is_hashed_once_when_it_arrives(mode: SecurityMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a signature its vector is, which it signs; without, the message is, which then identifies it."""
    setup = SessionSetup(mode=mode, dropped=0, layout=Layout((RingSegment(20, 5000),)))
    server, uploads = _server_before_uploads(setup)
    hashed, sha256 = list[int](), hashlib.sha256

    class Counted:
        def __init__(self, data: bytes = b"") -> None:
            self.hash = sha256()
            self.digest = self.hash.digest
            self.update(data)

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self.hash.update(data)

    monkeypatch.setattr(hashlib, "sha256", Counted)
    for client, upload in uploads.items():
        hashed.clear()
        server.receive(client, upload)
        assert len(upload) - 200 < sum(hashed) < len(upload) + 1000
        assert (len(upload) in hashed) is (mode is SecurityMode.SEMI_HONEST)
        assert bool(server.evidence_of(client)) is (mode is SecurityMode.ACTIVE)


@pytest.mark.parametrize("mode", SecurityMode)
def test_an_upload_that_arrives_again_changes_nothing_and_another_is_refused(mode: SecurityMode) -> None:
    server, uploads = _server_before_uploads(SessionSetup(mode=mode, dropped=0))
    client, upload = next(iter(uploads.items()))
    for _ in range(2):
        server.receive(client, upload)
    assert server.contributors == {client}
    assert not server.faults
    other = bytearray(upload)
    other[-1] ^= 1
    for _ in range(2):
        with pytest.raises(PeerError):
            server.receive(client, bytes(other))
    (fault,) = server.faults
    assert fault.reason is (Reason.AUTHENTICATION_FAILED if mode is SecurityMode.ACTIVE else Reason.ALREADY_ANSWERED)


@pytest.mark.parametrize("mode", SecurityMode)
def test_what_is_not_the_upload_that_was_taken_is_refused(mode: SecurityMode) -> None:
    """Not its evidence, which neighbours see, alone or behind a header, nor the upload with another session's tag."""
    server, uploads = _server_before_uploads(SessionSetup(mode=mode, dropped=0))
    client, upload = next(iter(uploads.items()))
    server.receive(client, upload)
    evidence = server.evidence_of(client)
    tagged = upload[:HEADER_BYTES] + bytes(8) + upload[HEADER_BYTES + 8 :]
    for other in (evidence, upload[:HEADER_BYTES] + evidence, upload[:HEADER_BYTES], tagged):
        with pytest.raises(PeerError):
            server.receive(client, other)
    assert server.contributors == {client}


@pytest.mark.parametrize("mode", SecurityMode)
def test_an_answer_to_an_earlier_stage_is_no_answer_to_the_open_one(mode: SecurityMode) -> None:
    """Anyone can send an old one again; a transport that counted it would wait for no other."""
    server, uploads = _server_before_uploads(SessionSetup(mode=mode, dropped=0))
    for client, upload in uploads.items():
        server.receive(client, upload)
    server.close_stage()
    client, upload = next(iter(uploads.items()))
    with pytest.raises(UnexpectedMessage, match="an answer to an earlier stage"):
        server.receive(client, upload)
    assert client in (server.awaited or ())
    assert not server.faults


def test_two_survivor_sets_at_once_get_one_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecurePairwiseSession(SessionSetup(dropped=2, minimum_cohort=3))
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    member = session.client_ids[0]
    first = session.take(member)
    sets = SurvivorSet.decode(first, session.server.roster)
    fewer = session.server.roster.set_of(position for position in sets.contributors if position != 3)
    second = SurvivorSet(context=sets.context, sharers=sets.sharers, contributors=fewer).encode()
    together, sign = Barrier(2), SigningKey.sign

    def slowly(self: SigningKey, label: Label, *parts: bytes) -> bytes:
        sleep(0.2)
        return sign(self, label, *parts)

    def deliver(client: Client, message: bytes) -> object:
        together.wait()
        try:
            return client.answer(message)
        except SecAggError as error:
            return error

    monkeypatch.setattr(SigningKey, "sign", slowly)
    client = session.clients[member]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(deliver, (client, client), (first, second)))
    assert sum(isinstance(answer, bytes) for answer in answers) == 1
    assert sum(isinstance(answer, PeerMisbehaved) for answer in answers) == 1
    assert client.state is ClientState.ABORTED


def test_what_a_neighbour_sent_wrong_does_not_keep_the_input_alive() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    receiver = session.client_ids[0]

    def alter(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.receiver, delivery.kind) != (receiver, MessageKind.DELIVERED_SHARES):
            return (delivery,)
        # The last byte is of the tag of the last neighbour's shares.
        return (replace(delivery, message=delivery.message[:-1] + bytes([delivery.message[-1] ^ 1])),)

    session.adversary = alter
    session.finish()
    (complaint,) = session.clients[receiver].faults
    # An exception's traceback would lead to the frames in which the input was masked.
    assert type(complaint) is Fault


def test_a_buffer_that_the_transport_reuses_is_not_kept() -> None:
    session = InsecurePairwiseSession()
    for client_id, client in session.clients.items():
        buffer = bytearray(client.answer(session.server.invitation))
        session.server.receive(client_id, memoryview(buffer))  # type: ignore[arg-type]
        buffer[:] = bytes(len(buffer))
    assert len(close_round(session.server)) == len(session.clients)


def test_a_session_is_planned_for_the_invited_or_for_as_many_as_the_settings_say() -> None:
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST)
    settings = PairwiseOptions(mode=SecurityMode.SEMI_HONEST, topology=Topology.FULL, population=9)
    helpers = PairwiseHelpers(coins=setup.coins_of("plan"))
    for invited, population in ((frozenset(setup.client_ids), 8), (None, 9)):
        opened = open_session(setup.subject, settings, invited, helpers)
        assert opened.configuration.maximum_population == population
        assert opened.awaited == invited
    with pytest.raises(InvalidParameters, match=r"settings\.population"):
        open_session(setup.subject, replace(settings, population=None), None, helpers)


# --- Helpers ----------------------------------------------------------------------------------------------------------


def _server_before_uploads(setup: SessionSetup) -> tuple[Server, dict[ClientId, bytes]]:
    """Return a server that awaits uploads, and the uploads, which went to another of the same session."""
    session, twin = InsecurePairwiseSession(setup), InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    twin.finish()
    return session.server, {client: twin.sent_by(client, MessageKind.MASKED_INPUT) for client in setup.client_ids}
