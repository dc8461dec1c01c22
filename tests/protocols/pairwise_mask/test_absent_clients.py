"""The number of absent clients that a small session tolerates: by the plan, by the README, and in a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.plan import PairwiseOptions
from secagg.protocols.pairwise_mask.session import ServerState
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup

POPULATIONS = (3, 5, 6, 8, 10, 20)


def settings_in(mode: SecurityMode, dropped: int = 0) -> PairwiseOptions:
    return PairwiseOptions(mode=mode, corrupted=1, dropped=dropped)


def test_the_readme_has_how_many_absent_clients_a_session_stands(repository: Path) -> None:
    def row(population: int) -> str:
        most = [settings_in(mode).most_dropped(population) for mode in (SecurityMode.SEMI_HONEST, SecurityMode.ACTIVE)]
        return f"| {population} | {most[0]} | {most[1]} |"

    due = "\n".join(map(row, POPULATIONS))
    readme = repository / "protocols" / "pairwise_mask" / "README.md"
    assert due in readme.read_text(encoding="utf-8"), f"{readme} should have\n{due}"


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("stage", [ServerState.AWAITING_ENCRYPTED_SHARES, ServerState.AWAITING_UNMASKING_SHARES])
def test_a_session_stands_as_many_dropouts_as_its_plan_says(
    stage: ServerState, population: int, mode: SecurityMode
) -> None:
    most = settings_in(mode).most_dropped(population)
    assert most is not None
    setup = SessionSetup(population=population, dropped=most, mode=mode, minimum_cohort=population - most)
    plan = settings_in(mode, most).plan(setup.subject, population, b"\1" * 32, SystemCoins())
    session = InsecurePairwiseSession(replace(setup, topology=plan.configuration.topology))
    session.reach(stage)
    session.drop(*session.client_ids[:most])
    total = session.finish()
    assert total.contributors == (population if stage is ServerState.AWAITING_UNMASKING_SHARES else population - most)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("population", POPULATIONS)
def test_a_plan_for_more_dropouts_says_how_many_there_may_be(population: int, mode: SecurityMode) -> None:
    most = settings_in(mode).most_dropped(population)
    assert most is not None
    greedy = settings_in(mode, most + 1)
    assert not greedy.takes(population)
    said = f"tolerate at most {most} {'dropout' if most == 1 else 'dropouts'} in {mode} mode; plan"
    with pytest.raises(InvalidParameters, match=f"{population} clients with 1 corrupted {said}"):
        greedy.plan(SessionSetup().subject, population, b"\1" * 32, SystemCoins())


def test_only_a_plan_for_few_clients_says_how_many_dropouts_there_may_be() -> None:
    """For many, the search would take long."""
    greedy, subject = PairwiseOptions(corrupted=1, dropped=100, minimum_cohort=20), SessionSetup(population=200).subject
    with pytest.raises(InvalidParameters, match="128 clients with 1 corrupted tolerate at most"):
        greedy.plan(subject, 128, b"\1" * 32, SystemCoins())
    with pytest.raises(InvalidParameters) as caught:
        greedy.plan(subject, 129, b"\1" * 32, SystemCoins())
    assert "tolerate at most" not in str(caught.value)


def test_a_cohort_without_any_session_is_told_so() -> None:
    assert PairwiseOptions(corrupted=4, mode=SecurityMode.ACTIVE).most_dropped(5) is None
    with pytest.raises(InvalidParameters, match="5 clients with 4 corrupted cannot run a session in active mode"):
        PairwiseOptions(corrupted=4).plan(SessionSetup().subject, 5, b"\1" * 32, SystemCoins())
