"""Whole sessions: the exact sum or nothing, whoever drops out and when, in whatever order the messages arrive."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.ring import low_bits
from secagg.errors import (
    InvalidParameters,
    MalformedMessage,
    Misuse,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import Client, ClientState, PairwiseMember, charged_elsewhere
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.run import run
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.wire import MessageKind, message_kind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    SessionSetup,
    insecure_payload,
    same_sum,
    stored,
    unmask,
)

OPEN_STATES: list[ServerState] = [
    state for state in ServerState if state not in {ServerState.COMPLETED, ServerState.ABORTED}
]
SECURITIES = [(mode, topology) for mode in SecurityMode for topology in Topology]


# --- Strategies -------------------------------------------------------------------------------------------------------

layouts = st.lists(st.builds(RingSegment, st.integers(1, 64), st.integers(1, 40)), min_size=1, max_size=4).map(
    lambda segments: Layout(tuple(segments))
)


@st.composite
def setups(draw: st.DrawFn, topologies: Iterable[Topology] = tuple(Topology)) -> SessionSetup:
    """Draw a session for which safe parameters exist."""
    population = draw(st.integers(3, 9))
    setup = SessionSetup(
        population=population,
        corrupted=draw(st.integers(0, 1)),
        dropped=draw(st.integers(0, population // 3)),
        late=draw(st.integers(0, 1)),
        mode=draw(st.sampled_from(SecurityMode)),
        suite=draw(st.sampled_from(Suite)),
        topology=draw(st.sampled_from(list(topologies))),
        layout=draw(layouts),
        maximum_weight=draw(st.sampled_from([1, 2, 1000])),
        minimum_cohort=2,
        seed=draw(st.binary(min_size=1, max_size=4)),
    )
    try:
        setup.plan(b"a" * 32)
    except InvalidParameters:
        reject()
    return setup


def constant_payload(layout: Layout, value: int) -> Payload:
    rings = layout.require_rings()
    vectors = (np.full(s.length, value & low_bits(s.modulus_bits), dtype=s.ring.word) for s in rings)
    return Payload(layout, tuple(vectors))


def drawn_payload(layout: Layout, choice: int, client: ClientId) -> Payload:
    """Return an input at an end of every ring, or a uniform one."""
    match choice:
        case 0:
            return constant_payload(layout, 0)
        case 1:
            return constant_payload(layout, -1)
        case _:
            return insecure_payload(layout, choice.to_bytes(2, "big") + client.encode())


def drawn_session(setup: SessionSetup, data: st.DataObject, **options: Any) -> InsecurePairwiseSession:
    clients = setup.client_ids
    payloads = {client: drawn_payload(setup.layout, data.draw(st.integers(0, 9)), client) for client in clients}
    weights = {client: data.draw(st.integers(1, setup.maximum_weight)) for client in clients}
    return InsecurePairwiseSession(setup, payload_of=payloads.__getitem__, weight_of=weights.__getitem__, **options)


def cutting(uploads: Mapping[ClientId, int]) -> Callable[[Delivery], tuple[Delivery, ...]]:
    """Cut the uploads of some clients off after so many bytes."""

    def cut(delivery: Delivery) -> tuple[Delivery, ...]:
        length = uploads.get(delivery.sender) if isinstance(delivery.sender, ClientId) else None
        if length is None or delivery.kind is not MessageKind.MASKED_INPUT:
            return (delivery,)
        return (replace(delivery, message=delivery.message[: max(7, len(delivery.message) - 1 - length)]),)

    return cut


def play(session: InsecurePairwiseSession, gone: Mapping[ServerState, Iterable[ClientId]]) -> Aggregate:
    """Play to the end; in each round some clients are gone before they send what the server awaits."""
    while session.server.state is not ServerState.AWAITING_UNMASKING_SHARES:
        session.drop(*gone.get(session.server.state, ()))
        session.step()
    session.drop(*gone.get(session.server.state, ()))
    return session.finish()


def uploaded(session: InsecurePairwiseSession, cut: Iterable[ClientId] = ()) -> frozenset[ClientId]:
    uploads = (delivery.sender for delivery in session.log if delivery.kind is MessageKind.MASKED_INPUT)
    return frozenset(sender for sender in uploads if isinstance(sender, ClientId)) - frozenset(cut)


# --- The sum ----------------------------------------------------------------------------------------------------------


@given(setups(), st.data())
def test_whoever_drops_out_the_sum_is_exact_or_nothing_is_released(setup: SessionSetup, data: st.DataObject) -> None:
    leaving = data.draw(st.dictionaries(st.sampled_from(setup.client_ids), st.sampled_from(OPEN_STATES), max_size=5))
    cut = data.draw(st.dictionaries(st.sampled_from(setup.client_ids), st.integers(0, 50), max_size=1))
    gone: dict[ServerState, list[ClientId]] = {state: [] for state in OPEN_STATES}
    for client, state in leaving.items():
        gone[state].append(client)
    session = drawn_session(setup, data, adversary=cutting(cut))
    try:
        total = play(session, gone)
    except (ThresholdNotMet, InvalidParameters) as error:
        # With fewer advertisers than were planned for, the parameters may be unsafe; the server says so and stops.
        early = isinstance(error, InvalidParameters)
        assert session.server.state is ServerState.ABORTED
        assert not early or gone[ServerState.AWAITING_KEY_ADVERTISEMENTS]
        with pytest.raises(Misuse):
            unmask(session.server)
        return
    contributors = uploaded(session, cut)
    assert same_sum(total, session.sum_of(contributors))
    assert frozenset[ClientId]().union(*session.server.revealed) == contributors
    # In a sparse semi_honest session more dropouts than planned may cut the graph apart, but into large parts only.
    assert len(session.server.revealed) == 1 or (setup.mode, setup.topology) == (
        SecurityMode.SEMI_HONEST,
        Topology.SPARSE,
    )
    assert min(map(len, session.server.revealed)) >= setup.minimum_cohort
    raised = [error for errors in session.errors.values() for error in errors]
    assert all(isinstance(error, ThresholdNotMet) for error in raised)
    assert all(client in cut and isinstance(error, MalformedMessage) for client, error in session.refusals)


@given(setups([Topology.FULL]), st.data())
def test_a_full_graph_survives_every_dropout_that_was_planned_for(setup: SessionSetup, data: st.DataObject) -> None:
    order = data.draw(st.permutations(setup.client_ids))
    late, dropped = order[: setup.late], order[setup.late : setup.late + setup.dropped]
    gone: dict[ServerState, list[ClientId]] = {state: [] for state in OPEN_STATES}
    gone[ServerState.AWAITING_KEY_ADVERTISEMENTS] += late
    for client in dropped:
        gone[data.draw(st.sampled_from(OPEN_STATES[1:]))].append(client)
    session = drawn_session(setup, data)
    total = play(session, gone)
    assert same_sum(total, session.sum_of(uploaded(session)))
    assert total.contributors >= setup.population - setup.late - setup.dropped
    assert not session.errors


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    setup = SessionSetup(population=5, layout=Layout((RingSegment(13, 3000),)), mode=SecurityMode.SEMI_HONEST)
    session = InsecurePairwiseSession(setup)
    clients = [
        Client(
            PairwiseMember(
                client,
                floors=setup.floors,
                coins=setup.coins_of(str(client)),
                charge=charged_elsewhere,
                threads=threads,
            ),
            setup.subject,
            session.update_of(client),
        )
        for client in setup.client_ids
    ]
    total, _ = run(setup.plan(), clients, threads=threads)
    assert same_sum(total, session.sum_of(setup.client_ids))


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
        # A copy that is made here is seen if somebody keeps it.
        arrived = bytes(memoryview(upload))
        session.server.receive(outgoing.receiver, arrived)
        del arrived
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept, highest = kept + left, max(highest, peak)
    assert kept < 1.5 * vector, kept / vector
    assert highest < 5 * vector
    assert len(stored(session.server)) < 2 * vector
