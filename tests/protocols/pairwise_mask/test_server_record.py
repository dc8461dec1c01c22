"""A server stopped and resumed at any point continues, byte for byte, like one that never stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from secagg.choices import Topology
from secagg.contract import Layout, RingSegment
from secagg.errors import MalformedMessage, Reason
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.session import Server, ServerState
from secagg.wire import MessageKind, message_kind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    outgoing,
    restored,
    same_sum,
    stored,
    unmask,
)

SECURITIES = [(mode, topology) for mode in SecurityMode for topology in Topology]
OPEN_STATES = [state for state in ServerState if state not in {ServerState.COMPLETED, ServerState.ABORTED}]
LAYOUT = Layout((RingSegment(5, 7), RingSegment(33, 2)))
HEADER_BYTES = 7


def setup_of(mode: SecurityMode, topology: Topology, suite: Suite = Suite.CLASSIC) -> SessionSetup:
    return SessionSetup(population=8, mode=mode, topology=topology, suite=suite, layout=LAYOUT)


def resumed(server: Server) -> Server:
    snapshot = stored(server)
    again = restored(snapshot)
    assert stored(again) == snapshot
    assert (again.state, again.invitation, again.awaited) == (server.state, server.invitation, server.awaited)
    assert again.participation is server.participation
    return again


# --- Going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize(("mode", "topology"), SECURITIES)
def test_a_server_resumed_before_every_message_goes_on_as_if_nothing_had_been(
    mode: SecurityMode, topology: Topology, suite: Suite
) -> None:
    session = InsecurePairwiseSession(replace(setup_of(mode, topology, suite), population=11, dropped=2))
    server, twin = session.server, resumed(session.server)
    pending = session.pending
    while True:
        # One drops out after sharing, and one before it reveals its shares.
        if server.state is ServerState.AWAITING_MASKED_INPUTS:
            session.drop(session.client_ids[1])
        if server.state is ServerState.AWAITING_UNMASKING_SHARES:
            session.drop(session.client_ids[2])
        for sent in pending:
            client = session.clients.get(sent.receiver)
            if client is not None:
                answer = client.answer(sent.message)
                server.receive(sent.receiver, answer)
                twin.receive(sent.receiver, answer)
                twin = resumed(twin)
                assert (stored(twin), twin.participation) == (stored(server), server.participation)
        if server.state is ServerState.AWAITING_UNMASKING_SHARES:
            break
        pending = close_round(server)
        assert close_round(twin) == pending
        twin = resumed(twin)
        assert stored(twin) == stored(server)
    total = unmask(server)
    assert same_sum(unmask(twin), total)
    others = [client for client in session.client_ids if client != session.client_ids[1]]
    assert same_sum(total, session.sum_of(others))
    assert twin.revealed == server.revealed == {frozenset(others)}


def test_uploads_are_in_a_snapshot_as_their_sum_alone() -> None:
    session = InsecurePairwiseSession(
        SessionSetup(population=6, mode=SecurityMode.SEMI_HONEST, layout=Layout((RingSegment(32, 5000),)))
    )
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    before, sizes = len(stored(session.server)), list[int]()
    for sent in session.pending:
        upload = session.clients[sent.receiver].answer(sent.message)
        session.server.receive(sent.receiver, upload)
        snapshot = stored(session.server)
        sizes.append(len(snapshot))
        # After one upload the sum is that upload; after the second, the sum shows neither of them.
        assert (upload[-20_000:-100] in snapshot) == (len(sizes) == 1)
    assert sizes[0] - before > 20_000
    assert all(later - earlier < 100 for earlier, later in pairwise(sizes))


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_session_that_is_over_is_not_written_down() -> None:
    for end in ("complete", "abort"):
        session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE, Topology.FULL))
        session.reach(ServerState.AWAITING_UNMASKING_SHARES)
        session.deliver(session.pending)
        unmask(session.server) if end == "complete" else session.server.abort()
        assert session.server.snapshot() is None


@cache
def some_snapshots() -> tuple[bytes, ...]:
    """Return the server in every round, with some of the round's messages."""
    found = list[bytes]()
    for mode in SecurityMode:
        session = InsecurePairwiseSession(setup_of(mode, Topology.FULL))
        for state in OPEN_STATES:
            if mode is SecurityMode.SEMI_HONEST and state is ServerState.AWAITING_SURVIVOR_SIGNATURES:
                continue
            session.reach(state)
            session.deliver(session.pending[:3])
            found.append(stored(session.server))
            session.pending = session.pending[3:]
    return tuple(found)


def chosen_lengths(snapshot: bytes) -> Iterator[int]:
    yield from range(HEADER_BYTES + 30)
    yield from range(HEADER_BYTES + 30, len(snapshot), 101)
    yield from range(len(snapshot) - 80, len(snapshot))


@pytest.mark.parametrize("index", range(9))
def test_a_snapshot_that_ends_early_or_goes_on_is_refused(index: int) -> None:
    snapshot = some_snapshots()[index]
    assert len(some_snapshots()) == 9
    assert message_kind(snapshot) is MessageKind.SERVER_SNAPSHOT
    for length in chosen_lengths(snapshot):
        with pytest.raises(MalformedMessage):
            restored(snapshot[:length])
    with pytest.raises(MalformedMessage) as caught:
        restored(snapshot + b"\x00")
    assert caught.value.reason is Reason.TRAILING_BYTES


def test_a_round_of_signatures_without_active_mode_is_refused() -> None:
    """Its signatures would never be verified."""
    session = InsecurePairwiseSession(setup_of(SecurityMode.SEMI_HONEST, Topology.FULL))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    snapshot = stored(session.server)
    assert snapshot[HEADER_BYTES] == 4
    with pytest.raises(MalformedMessage, match="cannot be restored from state awaiting_survivor_signatures"):
        restored(snapshot[:HEADER_BYTES] + bytes([3]) + snapshot[HEADER_BYTES + 1 :])


@pytest.mark.parametrize("state", [7, 255])
def test_a_state_that_there_is_not_is_refused(state: int) -> None:
    snapshot = some_snapshots()[0]
    with pytest.raises(MalformedMessage, match=f"{state} is not one of 7 values") as caught:
        restored(snapshot[:HEADER_BYTES] + bytes([state]) + snapshot[HEADER_BYTES + 1 :])
    assert caught.value.reason is Reason.NOT_CANONICAL


def completed(snapshot: bytes) -> bytes:
    """Mark the session as completed, which no server writes."""
    state = list(ServerState).index(ServerState.COMPLETED)
    return snapshot[:HEADER_BYTES] + bytes([state]) + snapshot[HEADER_BYTES + 1 :]


def out_of_order(snapshot: bytes) -> bytes:
    """Swap the first two advertisements, which have equal length."""
    first, second = (ClientId(1000 + 7 * index).encode() for index in (0, 1))
    start, middle = snapshot.index(first), snapshot.index(second)
    end = 2 * middle - start
    return snapshot[:start] + snapshot[middle:end] + snapshot[start:middle] + snapshot[end:]


def twice(snapshot: bytes) -> bytes:
    first, second = (ClientId(1000 + 7 * index).encode() for index in (0, 1))
    start, middle = snapshot.index(first), snapshot.index(second)
    count = int.from_bytes(snapshot[start - 4 : start], "big") + 1
    return snapshot[: start - 4] + count.to_bytes(4, "big") + snapshot[start:middle] + snapshot[start:]


def under_another_name(snapshot: bytes) -> bytes:
    """Store an advertisement under a client other than the one that it names."""
    first, second = (ClientId(1000 + 7 * index).encode() for index in (0, 1))
    at = snapshot.index(first)
    return snapshot[:at] + ClientId(999).encode() + snapshot[at + len(second) :]


@pytest.mark.parametrize(("index", "spoil"), [(0, completed), (0, out_of_order), (0, twice), (2, under_another_name)])
def test_what_no_server_would_have_written_is_refused(index: int, spoil: Callable[[bytes], bytes]) -> None:
    spoilt = spoil(some_snapshots()[index])
    assert spoilt != some_snapshots()[index]
    with pytest.raises(MalformedMessage):
        restored(spoilt)


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_restored_server_gives_the_messages_of_the_open_round_again(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    assert not outgoing(session.server), "who is invited, the platform knows"
    while session.server.state is not ServerState.AWAITING_UNMASKING_SHARES:
        session.step()
        sent = list(session.pending)
        for server in (session.server, restored(stored(session.server))):
            assert outgoing(server) == sent
    session.finish()
    assert not outgoing(session.server)


def test_a_client_that_was_dropped_stays_dropped_in_a_server_that_is_resumed() -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE, Topology.FULL))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    gone = session.client_ids[0]
    session.server.drop(gone)
    again = resumed(session.server)
    assert again.message_to(gone) is None
    assert gone not in (again.awaited or ())


def test_what_a_server_shows_of_an_upload_is_its_first_segment() -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE, Topology.FULL))
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    uploads = [one.message for one in session.log if one.kind is MessageKind.MASKED_INPUT]
    shown = [session.server.masked_vector(upload) for upload in uploads]
    assert {len(vector) for vector in shown} == {7}
    assert len({vector.tobytes() for vector in shown}) == len(uploads)
