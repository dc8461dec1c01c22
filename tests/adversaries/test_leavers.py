"""Pairwise masks: a plan for some dropouts tolerates them in any round, even before the graph is drawn."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from secagg.conformance.rehearsal import Rehearsal
from secagg.errors import InvalidParameters
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import PairwiseOptions, Topology
from secagg.protocols.pairwise_mask.simulation import ENTRY
from secagg.session.client_policy import usual_corrupted
from tests.harness.session_worlds import candidate_of, client_ids


def planned(mode: SecurityMode, topology: Topology, population: int, dropped: int) -> PairwiseOptions:
    return PairwiseOptions(
        mode=mode, topology=topology, population=population, corrupted=usual_corrupted(population), dropped=dropped
    )


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("dropped", [1, 2])
def test_as_many_as_were_planned_for_leave_in_any_stage(mode: SecurityMode, topology: Topology, dropped: int) -> None:
    stood = 0
    # With fewer clients no graph tolerates all of them before it is drawn.
    for population in (6, 7, 8) if dropped == 1 else (8, 10):
        settings, clients = planned(mode, topology, population, dropped), client_ids(population)
        if not ENTRY.takes(settings, population):
            continue
        stood += 1
        candidate = replace(candidate_of("pairwise, active, full"), settings=settings, clients=clients)
        for leaving in range(5 if mode is SecurityMode.ACTIVE else 4):
            rehearsal, gone = Rehearsal.begin(candidate), frozenset(clients[1 : 1 + dropped])
            rehearsal.reach(leaving)
            rehearsal.require_exact(rehearsal.finish(gone), set(clients) - (gone if leaving <= 2 else set()))
    assert stood


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("mode", SecurityMode)
def test_what_a_plan_takes_is_what_opens(mode: SecurityMode, topology: Topology) -> None:
    candidate: Any = candidate_of("pairwise, active, full")
    for population in range(2, 14):
        for dropped in range(4):
            settings = planned(mode, topology, population, dropped)
            with closing(replace(candidate, settings=settings).world()) as world:
                try:
                    world.open(candidate.subject, None).abort()
                except InvalidParameters:
                    assert not ENTRY.takes(settings, population), (population, dropped)
                else:
                    assert ENTRY.takes(settings, population), (population, dropped)
