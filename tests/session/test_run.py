"""The driver: exact sums of every protocol, with dropouts, weights and cost figures."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.conformance.sessions import MODEL
from secagg.contract import Aggregate, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, ThresholdNotMet, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import Topology
from secagg.protocols.pairwise_mask.plan import PairwiseOptions
from secagg.protocols.pairwise_mask.session import STAGES
from secagg.protocols.pairwise_mask.simulation import PairwiseSimulation
from secagg.session.registry import Simulation
from secagg.session.roles import ClientSession, LazyUpdate, Subject, Update
from secagg.session.run import Measured, run
from tests.harness.session_worlds import LAYOUT, NOW, SETTINGS, candidate_of, client_ids, payload_of


def joined(world: Simulation, subject: Subject, clients: tuple[ClientId, ...]) -> list[ClientSession]:
    def late(client: ClientId) -> LazyUpdate:
        return LazyUpdate(lambda: Update(payload_of(client), MODEL))

    return [world.member(client).join(subject, late(client)) for client in clients]


def same(one: Aggregate, other: Aggregate) -> bool:
    return one.contributors == other.contributors and all(
        np.array_equal(left, right) for left, right in zip(one.values, other.values, strict=True)
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_sum_is_that_of_the_remaining_clients(name: str) -> None:
    candidate = candidate_of(name)
    first, gone = candidate.entry.stages[0].name, candidate.clients[0]
    with closing(candidate.world()) as world:
        opened = world.open(candidate.subject, frozenset(candidate.clients))
        before = world.bytes_between
        session = Measured(opened, lambda: world.bytes_between)
        clients = joined(world, candidate.subject, candidate.clients)
        told = list[tuple[str, int, int]]()

        def progress(stage: str, done: int, count: int) -> None:
            told.append((stage, done, count))

        released = run(session, clients, {first: frozenset({gone})}, progress=progress)
    left = candidate.clients[1:]
    assert released.counted == frozenset(left)
    assert same(released.aggregate, ideal_aggregate(LAYOUT, [payload_of(client) for client in left]))
    figures = {stage.name: stage for stage in session.figures}
    assert figures[first].answered == frozenset(left)
    assert figures[first].failed == {gone: "left"}
    assert figures[first].bytes_up > 0
    assert figures[first].largest_up <= figures[first].bytes_up
    assert figures[first].slowest_client_seconds <= figures[first].client_seconds
    assert list(figures)[-1] == "release"
    between = sum(stage.bytes_between for stage in session.figures)
    assert between == world.bytes_between - before
    assert (between > 0) == (not name.startswith(("pairwise", "LightSecAgg", "plain")))
    assert told


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("topology", Topology)
def test_pairwise_masks_with_a_dropout_before_each_stage_give_the_sum(mode: SecurityMode, topology: Topology) -> None:
    clients = client_ids(14 if topology is Topology.FULL else 40)
    settings = PairwiseOptions(mode=mode, topology=topology, dropped=4, late=1)
    subject = replace(candidate_of("plain").subject, capacity=1 << 12)
    lost = {stage.name: frozenset({clients[place]}) for place, stage in enumerate(STAGES.values())}
    world = PairwiseSimulation(settings, coins=SystemCoins(), clock=lambda: NOW)
    opened = Measured(world.open(subject, frozenset(clients)))
    released = run(opened, joined(world, subject, clients), lost)
    # Clients lost before the upload are not counted; only active mode has the consistency check as a stage.
    counted = clients[3:]
    assert released.counted == frozenset(counted)
    ideal = ideal_aggregate(LAYOUT, [payload_of(c) for c in counted], [1] * len(counted))
    assert same(released.aggregate, ideal)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_open_session_is_closed_by_the_platform(name: str) -> None:
    candidate = candidate_of(name)
    with closing(candidate.world()) as world:
        session = world.open(candidate.subject, None)
        assert session.awaited is None
        released = run(Measured(session), joined(world, candidate.subject, candidate.clients))
    assert released.counted == frozenset(candidate.clients)


@pytest.mark.parametrize("name", SETTINGS)
def test_too_few_clients_end_a_run_and_everything_is_wiped(name: str) -> None:
    candidate = candidate_of(name)
    with closing(candidate.world()) as world:
        session = Measured(world.open(candidate.subject, frozenset(candidate.clients)))
        clients = joined(world, candidate.subject, candidate.clients)
        everybody = frozenset(candidate.clients)
        with pytest.raises((ThresholdNotMet, InvalidParameters)):
            run(session, clients, {candidate.entry.stages[0].name: everybody})
        assert session.stage is None
        for client in clients:
            with pytest.raises((Misuse, UnexpectedMessage)):
                client.answer(session.invitation)


@pytest.mark.parametrize("name", ["plain", "pairwise, active, full"])
def test_clients_are_created_when_their_first_message_is_due(name: str) -> None:
    """A generator of clients is advanced one at a time, so a driver holds no more clients than it must."""
    candidate = candidate_of(name)
    pulled, most = list[ClientId](), 0
    with closing(candidate.world()) as world:
        session = Measured(world.open(candidate.subject, frozenset(candidate.clients)))

        def clients() -> Any:
            nonlocal most
            for client in joined(world, candidate.subject, candidate.clients):
                pulled.append(client.client)
                most = max(most, len(pulled) - len(session.now.answered))
                yield client

        run(session, clients())
    assert pulled == list(candidate.clients)
    assert most == 1


def test_time_for_making_updates_is_not_counted() -> None:
    candidate = candidate_of("plain")
    with closing(candidate.world()) as world:
        session = Measured(world.open(candidate.subject, None))
        made = iter(range(1000))
        run(session, joined(world, candidate.subject, candidate.clients), making=lambda: 1000.0 * next(made))
    assert session.figures[0].client_seconds < 0


@pytest.mark.parametrize(
    "name",
    ["pairwise, semi-honest, full", "pairwise, active, full", "two servers", "one message", "LightSecAgg, semi-honest"],
)
def test_a_session_that_every_client_would_refuse_is_not_opened(name: str) -> None:
    """Such a session used to be opened, and every client left it."""
    candidate = candidate_of(name)
    most = getattr(candidate.settings, "capacity", None) or len(candidate.clients)
    heavy = replace(candidate.subject, capacity=most - 1)
    with closing(candidate.world()) as world:
        with pytest.raises((CapacityExceeded, InvalidParameters), match=f"capacity of {most - 1}"):
            world.open(heavy, frozenset(candidate.clients))
        world.open(replace(heavy, capacity=most), frozenset(candidate.clients)).abort()


def test_a_buffer_with_too_few_invited_clients_is_not_opened() -> None:
    candidate = candidate_of("enclave")
    with closing(candidate.world()) as world, pytest.raises(InvalidParameters, match="1 clients are invited"):
        world.open(candidate.subject, frozenset(candidate.clients[:1]))
