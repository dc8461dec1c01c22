"""A server that follows the protocol, and computes all sums that follow from its data at any moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random  # noqa: TID251 -- the same sessions in every run

import pytest

from secagg.errors import InvalidParameters, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology, Transcript, revealed_sets
from secagg.protocols.pairwise_mask.graph import Graph, _ring  # pyright: ignore[reportPrivateUsage]
from secagg.protocols.pairwise_mask.relay import Settled
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import SurvivorSet, UnmaskingRequest
from secagg.protocols.pairwise_mask.session import Server
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, close_round, same_sum

Clients = frozenset[ClientId]
STAGES = (
    ServerState.AWAITING_ENCRYPTED_SHARES,
    *(ServerState.AWAITING_MASKED_INPUTS,) * 4,
    ServerState.AWAITING_UNMASKING_SHARES,
)
"""Points at which a client leaves; mostly between its shares and its upload, which cuts the contributors' graph."""
NEIGHBOURHOODS = [(4, 2), (4, 2), (4, 3), (6, 2), (6, 4)]
"""Degrees and thresholds of sparse graphs."""
SESSIONS = {SecurityMode.SEMI_HONEST: 24, SecurityMode.ACTIVE: 8}


def smallest_known_sum(server: Server) -> int | None:
    """Return the number of clients in the smallest sum that follows from the server's data, if any."""
    settled, answers = server.settled, server._answers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    shown = Counter(
        dealer
        for answer in answers.values()
        for dealer in settled.roster.graph.neighbours(answer.sender)
        if dealer in settled.sharers and answer.share_of(dealer) is not None
    )
    known = {position for position, count in shown.items() if count >= settled.configuration.threshold}
    return min(map(len, sums_that_follow(settled, known)), default=None)


def sums_that_follow(settled: Settled, known: set[int]) -> frozenset[Clients]:
    """Return the smallest sets whose sums follow from the uploads and from the secrets of these clients."""
    clients, sharers, contributors = settled.roster.clients, settled.sharers, settled.contributors
    return revealed_sets(
        Transcript(
            masked_with={
                clients[u]: frozenset(clients[v] for v in settled.roster.graph.neighbours(u) if v in sharers)
                for u in contributors
            },
            self_mask_seeds=frozenset(clients[u] for u in known if u in contributors),
            mask_roots=frozenset(clients[u] for u in known if u not in contributors),
        )
    )


def random_session(chance: Random, mode: SecurityMode) -> InsecurePairwiseSession:
    """Return a session of a random graph that protects its clients, unless more drop out than it is planned for."""
    while True:
        population = chance.randint(12, 20)
        setup = SessionSetup(
            population=population,
            corrupted=chance.choice((0, 0, 1)),
            dropped=0,
            mode=mode,
            suite=chance.choice((*(Suite.CLASSIC,) * 7, Suite.HYBRID)),
            topology=Topology.SPARSE,
            minimum_cohort=population // 2,
            seed=chance.randbytes(8),
        )
        degree, threshold = chance.choice(NEIGHBOURHOODS)
        try:
            session = InsecurePairwiseSession(setup)
            session.replan(replace(session.server.configuration, degree=degree, threshold=threshold))
        except InvalidParameters:
            continue
        if session.server._is_protected(population):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return session


def leavers(graph: Graph, chance: Random) -> set[int]:
    """Return some runs of half a neighbourhood on the ring, which may disconnect it, and a few others."""
    order, _ = _ring(graph.seed, graph.population)
    starts = chance.sample(range(graph.population), chance.choice((0, 1, 2, 2, 2)))
    runs = {order[(start + step) % graph.population] for start in starts for step in range(graph.degree // 2)}
    return runs | set(chance.sample(range(graph.population), chance.choice((0, 0, 1))))


def play(session: InsecurePairwiseSession, chance: Random) -> SecAggError | None:
    """Run a session in which honest clients leave at any stage; return the error that ended it early, if any."""
    server = session.server
    try:
        session.step()
        clients = session.server.roster.clients
        leaves_at = {clients[position]: chance.choice(STAGES) for position in leavers(server.roster.graph, chance)}
        while server.stage is not None:
            session.drop(*(client for client, stage in leaves_at.items() if stage is server.state))
            for outgoing in session.pending:
                session.deliver([outgoing])
                if server.state is ServerState.AWAITING_UNMASKING_SHARES:
                    smallest = smallest_known_sum(server)
                    assert smallest is None or smallest >= session.setup.minimum_cohort
            session.pending = close_round(server)
        total = server.release().aggregate
    except SecAggError as error:
        return error
    assert same_sum(total, session.sum_of(server.contributors))
    assert min(map(len, server.revealed)) >= session.setup.minimum_cohort
    return None


@pytest.mark.parametrize("mode", SecurityMode)
def test_nothing_that_a_server_holds_gives_a_sum_below_the_cohort(mode: SecurityMode) -> None:
    chance = Random(str(mode))  # noqa: S311
    ends = [play(random_session(chance, mode), chance) for _ in range(SESSIONS[mode])]
    assert None in ends


# --- A server that asks nevertheless ----------------------------------------------------------------------------------


def cut_apart(mode: SecurityMode, reached: ServerState) -> tuple[InsecurePairwiseSession, set[int]]:
    """Return a session of twelve, and the eight that remain after dropouts, in two parts of four on the ring."""
    setup = SessionSetup(
        population=12, corrupted=0, dropped=1, mode=mode, topology=Topology.SPARSE, minimum_cohort=5, privacy_bits=100
    )
    session = InsecurePairwiseSession(setup)
    assert session.server.configuration.degree == 4
    session.reach(reached)
    graph = session.server.roster.graph
    order, _ = _ring(graph.seed, 12)
    return session, {position for place, position in enumerate(order) if place % 6 < 4}


def refuses(session: InsecurePairwiseSession, position: int, message: bytes) -> None:
    client = session.clients[session.server.roster.clients[position]]
    with pytest.raises(ThresholdNotMet, match="have split") as caught:
        client.answer(message)
    assert (caught.value.needed, caught.value.present) == (5, 4)
    assert client.state is ClientState.ABORTED


@pytest.mark.parametrize("mode", SecurityMode)
def test_clients_upload_nothing_that_only_a_sum_below_the_cohort_could_hold(mode: SecurityMode) -> None:
    session, left = cut_apart(mode, ServerState.AWAITING_MASKED_INPUTS)
    for position in left:
        refuses(session, position, session.delivery(position, left))


@pytest.mark.parametrize("mode", SecurityMode)
def test_clients_show_no_share_for_contributors_that_dropouts_have_cut_apart(mode: SecurityMode) -> None:
    session, left = cut_apart(mode, ServerState.AWAITING_UNMASKING_SHARES)
    roster = session.server.roster
    for position in left:
        message = UnmaskingRequest(
            context=roster.context.tag, contributors=roster.set_of(left), endorsements=(), views=()
        )
        refuses(session, position, message.encode())


def test_the_committee_certifies_no_contributors_that_dropouts_have_cut_apart() -> None:
    session, left = cut_apart(SecurityMode.ACTIVE, ServerState.AWAITING_SURVIVOR_SIGNATURES)
    roster = session.server.roster
    for position in left & set(roster.committee):
        message = SurvivorSet(
            context=roster.context.tag,
            sharers=roster.set_of(range(roster.population)),
            contributors=roster.set_of(left),
        )
        refuses(session, position, message.encode())


def test_a_server_asks_nobody_for_a_share_of_contributors_that_dropouts_have_cut_apart() -> None:
    session, left = cut_apart(SecurityMode.SEMI_HONEST, ServerState.AWAITING_MASKED_INPUTS)
    clients = session.server.roster.clients
    session.drop(*(clients[position] for position in range(12) if position not in left))
    with pytest.raises(ThresholdNotMet, match="have split"):
        session.step()
    assert session.server.state is ServerState.ABORTED
    assert session.server.stage is None


def test_a_part_that_is_a_cohort_has_its_sum_and_the_others_upload_nothing() -> None:
    session, _ = cut_apart(SecurityMode.SEMI_HONEST, ServerState.AWAITING_ENCRYPTED_SHARES)
    roster = session.server.roster
    order, _ = _ring(roster.graph.seed, 12)
    session.drop(*(roster.clients[order[place]] for place in (0, 1, 5, 6)))
    ahead, behind = [*order[2:5]], [*order[7:]]
    session.step()
    total = session.finish()
    small = {roster.clients[position] for position in ahead}
    assert same_sum(total, session.sum_of(roster.clients[position] for position in behind))
    assert session.errors.keys() == small
