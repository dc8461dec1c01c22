"""Pairwise masks: a plan for so many dropouts stands them in any round, also before the graph is drawn."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest

from secagg.contract import Layout, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, usual_corrupted
from secagg.protocols.pairwise_mask import PairwiseSettings, Topology
from secagg.protocols.pairwise_mask.simulation import ENTRY
from secagg.session.roles import LateUpdate, Released, Subject, Update
from tests.harness.pairwise_sessions import insecure_payload

LAYOUT = Layout((RingSegment(16, 4),))
MODEL = bytes(32)
SUBJECT = Subject(task=b"leavers", round_number=0, layout=LAYOUT, capacity=1 << 10, model_digest=MODEL)


def planned(mode: SecurityMode, topology: Topology, population: int, dropped: int) -> PairwiseSettings:
    return PairwiseSettings(
        mode=mode, topology=topology, population=population, corrupted=usual_corrupted(population), dropped=dropped
    )


def finished(settings: PairwiseSettings, leaving: int) -> Released:
    """Play a session that is opened for these settings; those who leave do so before they answer in one stage."""
    clients = [ClientId(number) for number in range(1, (settings.population or 0) + 1)]
    with closing(
        ENTRY.simulate(settings, coins=SystemCoins(), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    ) as world:
        session = world.open(SUBJECT, frozenset(clients))
        updates = {client: Update(insecure_payload(LAYOUT, client.encode()), MODEL) for client in clients}
        sessions = {
            client: world.member(client).join(SUBJECT, LateUpdate(partial(updates.__getitem__, client)))
            for client in clients
        }
        stage = 0
        while session.stage is not None:
            if stage == leaving:
                for client in clients[1 : 1 + settings.dropped]:
                    session.drop(client)
                    sessions.pop(client).abort()
            for client, joined in sessions.items():
                if (message := session.message_to(client)) is not None:
                    session.receive(client, joined.answer(message))
            session.close_stage()
            stage += 1
        return session.release()


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("dropped", [1, 2])
def test_as_many_as_were_planned_for_leave_in_any_stage(mode: SecurityMode, topology: Topology, dropped: int) -> None:
    stood = 0
    # Of fewer no graph stands them all before it is drawn.
    for population in (6, 7, 8, 10, 13) if dropped == 1 else (8, 10, 13):
        settings = planned(mode, topology, population, dropped)
        if not ENTRY.takes(settings, population):
            continue
        stood += 1
        for leaving in range(5 if mode is SecurityMode.ACTIVE else 4):
            released = finished(settings, leaving)
            uploaded = leaving > 2
            assert len(released.counted) == population - (0 if uploaded else dropped)
            ideal = ideal_aggregate(LAYOUT, [insecure_payload(LAYOUT, client.encode()) for client in released.counted])
            assert (released.aggregate.values[0] == ideal.values[0]).all()
    assert stood


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("mode", SecurityMode)
def test_what_a_plan_takes_is_what_opens(mode: SecurityMode, topology: Topology) -> None:
    for population in range(2, 14):
        for dropped in range(4):
            settings = planned(mode, topology, population, dropped)
            with closing(ENTRY.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
                try:
                    world.open(SUBJECT, None).abort()
                except InvalidParameters:
                    assert not ENTRY.takes(settings, population), (population, dropped)
                else:
                    assert ENTRY.takes(settings, population), (population, dropped)
