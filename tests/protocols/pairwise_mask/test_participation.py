"""A server between two messages: the clients it awaits, whether closing can succeed, and its errors otherwise."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.errors import Misuse, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import relay
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.protocols.pairwise_mask.session import OpenRound, ServerState
from secagg.session.roles import Participation
from secagg.wire import MessageKind, Writer
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, close_round, same_sum

MODES = list(SecurityMode)
STRANGER = ClientId(1)


def session_of(minimum_cohort: int, mode: SecurityMode = SecurityMode.ACTIVE) -> InsecurePairwiseSession:
    """Return a session of eight, whose threshold of 5 protects at least six."""
    return InsecurePairwiseSession(SessionSetup(population=8, mode=mode, minimum_cohort=minimum_cohort))


def advertising(session: InsecurePairwiseSession, count: int) -> None:
    session.deliver(session.pending[:count])
    session.pending = session.pending[count:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("cohort", "least"), [(3, 6), (7, 7)])
def test_advertisers_are_enough_when_they_are_a_cohort_that_is_protected(
    mode: SecurityMode, cohort: int, least: int
) -> None:
    session = session_of(cohort, mode)
    for count in range(8):
        expected = Participation.ENOUGH if count >= least else Participation.TOO_FEW
        assert [session.server.participation for _ in range(2)] == [expected] * 2, count
        advertising(session, 1)
    assert session.server.participation is Participation.COMPLETE


@pytest.mark.parametrize("mode", MODES)
def test_a_round_is_enough_at_the_cohort_and_complete_without_who_was_dropped(mode: SecurityMode) -> None:
    session = session_of(6, mode)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    server, (gone, *others) = session.server, session.client_ids
    assert server.awaited == frozenset(session.client_ids)
    server.drop(gone)
    session.deliver(session.pending[:1])
    assert server.message_to(gone) is None
    for count, (client, outgoing) in enumerate(zip(others, session.pending[1:], strict=True)):
        assert server.participation is (Participation.ENOUGH if count >= 6 else Participation.TOO_FEW), count
        assert server.awaited == frozenset(others[count:])
        assert server.message_to(client) == outgoing.message
        session.deliver([outgoing])
    assert server.participation is Participation.COMPLETE
    assert server.awaited == frozenset()
    assert server.message_to(STRANGER) is None


@pytest.mark.parametrize("mode", MODES)
def test_who_left_without_a_word_has_no_message(mode: SecurityMode) -> None:
    session = session_of(6, mode)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    gone = session.client_ids[3]
    session.drop(gone)
    session.step()
    assert session.server.message_to(gone) is None
    assert session.server.message_to(session.client_ids[2]) is not None
    for client in (gone, STRANGER):
        with pytest.raises(PeerMisbehaved, match="not invited, or has left") as caught:
            session.server.receive(client, Writer(MessageKind.MASKED_INPUT).finish())
        assert caught.value.reason is Reason.NOT_ELIGIBLE


def test_before_the_first_round_is_closed_everybody_is_sent_the_offer() -> None:
    server = session_of(6).server
    assert server.awaited is None
    assert server.message_to(STRANGER) == server.invitation
    with pytest.raises(Misuse, match="does not exist before the first round is closed"):
        _ = server.roster
    server.drop(STRANGER)
    assert server.message_to(STRANGER) is None


def test_advertisers_whom_the_parameters_do_not_protect_end_the_session() -> None:
    session = session_of(3)
    advertising(session, 5)
    with pytest.raises(ThresholdNotMet, match="for the planned graph") as caught:
        close_round(session.server)
    assert (caught.value.needed, caught.value.present) == (6, 5)
    assert session.server.state is ServerState.ABORTED


def test_a_finished_session_forgets_what_was_collected() -> None:
    session = session_of(6)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.drop(session.client_ids[0])
    session.finish()
    server = session.server
    record = server._kept  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert server.awaited == frozenset()
    assert server.participation is Participation.COMPLETE
    assert record.total is None
    for kept in (record.answers, record.shares, server._answers, server._relayed):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        assert not kept


def test_an_aborted_session_forgets_what_was_collected() -> None:
    session = session_of(6)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending)
    server = session.server
    record = server._kept  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    total = record.total
    assert total is not None
    vectors = total.vectors
    assert any(vector.any() for vector in vectors)
    server.abort()
    assert not any(vector.any() for vector in vectors)
    assert record.total is None
    assert not record.shares
    assert not server._relayed  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert server.awaited == frozenset()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("reached", "kind"),
    [
        (ServerState.AWAITING_MASKED_INPUTS, MessageKind.COMPLAINT),
        (ServerState.AWAITING_UNMASKING_SHARES, MessageKind.UNMASKING_SHARES),
    ],
)
def test_a_few_bytes_cost_a_server_no_hash_of_all_that_it_relayed(
    reached: ServerState, kind: MessageKind, mode: SecurityMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(6, mode)
    session.reach(reached)
    hashed = list[ClientId]()

    def hash_all(receiver: ClientId, _: object) -> bytes:
        hashed.append(receiver)
        return bytes(32)

    monkeypatch.setattr(relay, "delivered_root", hash_all)
    for body in (b"", bytes(8), bytes(100)):
        with pytest.raises(PeerError):
            session.server.receive(session.client_ids[0], Writer(kind).borrowed(body).finish())
    assert not hashed


# --- An open round ----------------------------------------------------------------------------------------------------


def message(position: int) -> bytes:
    return bytes([position % 256])


def members(*positions: int) -> dict[ClientId, int]:
    return {ClientId(1 + position): position for position in positions}


@given(st.data())
def test_counting_says_what_looking_says(data: st.DataObject) -> None:
    population = data.draw(st.integers(4, 14))
    topology = data.draw(st.sampled_from(Topology))
    degree = population - 1 if topology is Topology.FULL else 2 * data.draw(st.integers(1, (population - 1) // 2))
    graph = Graph(topology, population, degree, bytes(31) + bytes([data.draw(st.integers(0, 255))]))
    positions = st.lists(st.integers(0, population - 1), unique=True)
    present = tuple(sorted(data.draw(positions)))
    some = tuple(sorted({*present, *data.draw(positions)}))
    due: tuple[int, ...] | None = data.draw(st.sampled_from([(), None, some]))
    needed, threshold = data.draw(st.integers(0, population)), data.draw(st.integers(1, degree))
    opened = OpenRound(members(*present), message, needed=needed, due=due, threshold=threshold, graph=graph)
    assert dict(opened) == {client: message(position) for client, position in members(*present).items()}
    answered = set[int]()
    for position in data.draw(st.permutations(present)):
        answered.add(position)
        opened.count(ClientId(1 + position))
        around = answered if due is None else set(due)
        is_covered = all(len(answered.intersection(graph.neighbours(one))) >= threshold for one in around)
        if topology is Topology.FULL and due != ():
            # In a full graph a number is enough: the clients that reveal shares also have their shares revealed.
            is_covered = len(answered) > threshold
        is_enough = len(answered) >= needed and is_covered
        assert opened.is_enough == is_enough


@pytest.mark.parametrize(("topology", "due"), [(Topology.FULL, None), (Topology.FULL, (1,)), (Topology.SPARSE, ())])
def test_nobodys_neighbours_are_looked_at_where_a_number_says_it_all(
    topology: Topology, due: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(topology, 5, 4 if topology is Topology.FULL else 2, bytes(32))
    opened = OpenRound(members(0, 1, 2, 3, 4), message, needed=2, due=due, threshold=2, graph=graph)
    monkeypatch.delattr(Graph, "neighbours")
    for position in range(5):
        opened.count(ClientId(1 + position))
    assert opened.is_enough


@pytest.mark.parametrize("due", [None, (0, 1, 2, 3, 4)])
def test_the_last_answer_around_a_client_may_come_before_or_after_its_own(due: tuple[int, ...] | None) -> None:
    graph = Graph(Topology.SPARSE, 5, 2, bytes(32))
    opened = OpenRound(members(0, 1, 2, 3, 4), message, needed=0, due=due, threshold=2, graph=graph)
    enough = list[bool]()
    for position in range(5):
        opened.count(ClientId(1 + position))
        enough.append(opened.is_enough)
    assert enough == [False, False, False, False, True]


@pytest.mark.parametrize("topology", Topology)
def test_ten_thousand_clients_ask_after_each_answer(topology: Topology) -> None:
    count = 10_000
    degree = count - 1 if topology is Topology.FULL else 120
    graph = Graph(topology, count, degree, bytes(32))
    everybody = tuple(range(count))
    opened = OpenRound(members(*everybody), message, needed=5_000, due=everybody, threshold=60, graph=graph)
    started = perf_counter()
    for position in everybody:
        opened.count(ClientId(1 + position))
        assert opened.is_enough in {True, False}
    assert opened.is_enough
    # A loop over all clients for each question takes minutes here.
    assert perf_counter() - started < 20


@pytest.mark.parametrize(("due", "least"), [((), 1), (None, 4), ((0,), 4)])
def test_of_a_full_graph_shares_are_asked_for_where_somebodys_are_due(due: tuple[int, ...] | None, least: int) -> None:
    opened = OpenRound(members(0, 1, 2, 3, 4), message, needed=1, due=due, threshold=3, graph=full_graph(5))
    enough = list[bool]()
    for position in range(5):
        opened.count(ClientId(1 + position))
        enough.append(opened.is_enough)
    assert enough.index(True) + 1 == least


def full_graph(population: int) -> Graph:
    return Graph(Topology.FULL, population, population - 1, bytes(32))


def test_signatures_are_counted_against_the_quorum_and_answers_of_the_last_round_against_nothing() -> None:
    """The cohort counts contributors; whether the shares suffice is checked at reconstruction."""
    session = session_of(7)
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    advertising(session, 5)
    assert session.server.configuration.quorum == 5
    close_round(session.server)
    session = session_of(7)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    everybody = session.client_ids
    session.drop(*everybody[:2])
    assert same_sum(session.finish(), session.sum_of(everybody))


def test_fewer_signatures_than_the_quorum_end_the_session() -> None:
    session = session_of(3)
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    advertising(session, 4)
    with pytest.raises(ThresholdNotMet) as caught:
        close_round(session.server)
    assert (caught.value.needed, caught.value.present) == (5, 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_cohort_of_everybody_is_one(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(population=6, dropped=0, mode=mode, minimum_cohort=6))
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert not session.errors
