"""Messages in another client's name, too late, or to a server that was rolled back; and sums of too few.

Messages again, in another order or round, late, of strangers, and of other attempts are laws of every session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from secagg.conformance.sessions.rehearsal import Rehearsal
from secagg.errors import Misuse, PeerError, PeerMisbehaved, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology, Transcript, revealed_sets
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.wire import HEADER_BYTES
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    is_spent,
    restored,
    stored,
    unmask,
)
from tests.harness.session_worlds import SETTINGS, candidate_of

# --- Too late ---------------------------------------------------------------------------------------------------------


def with_a_late_upload(mode: SecurityMode) -> tuple[InsecurePairwiseSession, ClientId]:
    """Close the upload round without one client, whose upload then arrives after all."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    late = session.client_ids[5]
    message = session.take(late)
    session.step()
    assert session.clients[late].answer(message)
    return session, late


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_server_that_keeps_a_late_upload_learns_nothing_from_it(mode: SecurityMode) -> None:
    session, late = with_a_late_upload(mode)
    session.finish()
    everybody = frozenset(session.client_ids)
    contributors = everybody - {late}
    # It knows what was reconstructed: the seeds of the contributors and the root of the late one.
    transcript = Transcript(
        masked_with={client: everybody - {client} for client in everybody},
        self_mask_seeds=contributors,
        mask_roots=frozenset({late}),
    )
    assert revealed_sets(transcript) == {contributors}
    # With the seed of the late client's self mask it would learn its input.
    greedy = replace(transcript, self_mask_seeds=everybody)
    assert frozenset({late}) in revealed_sets(greedy)


# --- A server that is restored ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
def test_two_servers_from_one_snapshot_do_not_get_two_answers(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending[:7])
    snapshot = stored(session.server)
    session.deliver(session.pending[7:])
    session.pending = close_round(session.server)
    session.finish()
    assert session.server.revealed == {frozenset(session.client_ids)}
    # The other server closes the round without the last upload, and asks the same clients.
    session.server = restored(snapshot)
    session.pending = close_round(session.server)
    before = len(session.log)
    with pytest.raises(ThresholdNotMet):
        session.finish()
    assert [d for d in session.log[before:] if d.receiver == ServerId()] == [], "nobody answers"
    assert {type(error) for errors in session.errors.values() for error in errors} == {PeerMisbehaved}
    assert all(session.clients[client].state is ClientState.ABORTED for client in session.client_ids[:7])


# --- Small sums -------------------------------------------------------------------------------------------------------


def ring_of(graph: Graph) -> list[int]:
    """Return the positions in the order of the ring; its degree is 4."""
    after = {
        position: [n for n in graph.neighbours(position) if graph.sends_edge_seed(position, n)]
        for position in range(graph.population)
    }
    order = [0]
    while len(order) < graph.population:
        one, other = after[order[-1]]
        order.append(one if other in after[one] else other)
    return order


def test_a_sum_of_fewer_than_the_minimum_cohort_is_not_released_where_dropouts_cut_the_graph_apart() -> None:
    setup = SessionSetup(
        population=12, mode=SecurityMode.SEMI_HONEST, topology=Topology.SPARSE, minimum_cohort=4, dropped=1
    )
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    assert session.server.roster.graph.degree == 4
    order = ring_of(session.server.roster.graph)
    # Two neighbouring clients drop out on either side of three: the sum falls into one of three and one of five.
    island, gone = order[2:5], [*order[:2], *order[5:7]]
    session.drop(*(session.client_ids[position] for position in gone))
    with pytest.raises(ThresholdNotMet) as caught:
        session.finish()
    assert (caught.value.needed, caught.value.present) == (4, 3)
    assert len(island) == caught.value.present
    assert not session.server.revealed
    assert session.server.state is ServerState.ABORTED
    with pytest.raises(Misuse):
        unmask(session.server)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize(
    "state",
    [
        ServerState.AWAITING_KEY_ADVERTISEMENTS,
        ServerState.AWAITING_ENCRYPTED_SHARES,
        ServerState.AWAITING_MASKED_INPUTS,
    ],
    ids=lambda state: state.name,
)
def test_the_server_ends_a_session_of_fewer_than_the_minimum_cohort(mode: SecurityMode, state: ServerState) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, minimum_cohort=7))
    own = [session.update_of(client) for client in session.client_ids]
    for client, unspent in zip(session.client_ids, own, strict=True):
        session.clients[client] = session.enrol(client, update=unspent)
    session.reach(state)
    session.drop(*session.client_ids[:2])
    with pytest.raises(ThresholdNotMet) as caught:
        session.step()
    assert (caught.value.needed, caught.value.present) == (7, 6)
    assert session.server.state is ServerState.ABORTED
    assert sum(map(is_spent, own)) == (6 if state is ServerState.AWAITING_MASKED_INPUTS else 0)


# --- A second upload --------------------------------------------------------------------------------------------------


NAMES = [
    name for name in SETTINGS if name.startswith(("pairwise", "enclave", "two servers", "plain", "one message, a"))
]
"""Other servers say themselves what is wrong with an upload before they look whether it came before."""
MOST_FLIPS = 400
"""Of a short message every byte is altered."""


def altered(message: bytes) -> Iterator[bytes]:
    """Alter a message behind its header: each byte of it, or each so many."""
    for at in range(HEADER_BYTES, len(message), 1 + len(message) // MOST_FLIPS):
        yield message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
    yield from (message[:-1], message + b"\0", message[:HEADER_BYTES])


@pytest.mark.parametrize("name", NAMES)
def test_a_second_upload_is_refused_whichever_byte_of_it_is_another(name: str) -> None:
    candidate = candidate_of(name)
    rehearsal = Rehearsal.begin(candidate)
    server = rehearsal.server
    while server.stage is not None and not server.stage.takes_update:
        rehearsal.step()
    answers = rehearsal.all_answers()
    rehearsal.deliver(answers)
    first, other = candidate.clients[:2]
    before = server.turnout, server.awaited
    for second in (*altered(answers[first]), answers[other]):
        try:
            server.receive(first, second)
        except PeerError as error:
            assert first in error.culprits <= {first, ServerId()}  # noqa: PT017
    server.receive(first, answers[first])
    assert (server.turnout, server.awaited) == before
    rehearsal.require_exact(rehearsal.finish(), candidate.clients)
    rehearsal.world.close()
