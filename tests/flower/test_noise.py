"""Noise of a Flower run's clients: its presence, each client's requirement, and settings that exclude it."""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.errors import InvalidParameters, ThresholdNotMet
from secagg.platforms.schemes import SchemeChoice, noise_settings
from secagg.platforms.settings import SecAggSettings
from tests.flower.test_one_message import mod
from tests.flower.test_rounds_in_memory import CLIENTS, MemoryGrid, adding, folders, grid_of, lenient, log, settings_of
from tests.harness.platform_keys import holding

__all__ = ["folders", "log"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

MODEL: dict[str, Any] = {"w": np.zeros((40, 50), dtype=np.float32)}
NOISE: dict[str, Any] = {"noise": 2.0, "norm": 0.5}
LEAST = CLIENTS - 1
STEPS: dict[str, Any] = {"fraction_bits": 12, "minimum_cohort": LEAST}


def deviation_of(arrays: dict[str, Any], plain: float) -> float:
    return float((arrays["w"] - plain).std())


def due() -> float:
    """Return the deviation of the mean's noise: five clients add shares planned for three."""
    return 2 * 2 * 0.5 * sqrt(CLIENTS / (LEAST - 1)) / CLIENTS


def test_the_mean_has_the_noise_and_the_log_its_epsilon(folders: Path, log: Any) -> None:
    inner = MemoryGrid(lenient(folders, **NOISE), adding(0.001))
    arrays, metrics = inner.round(grid_of(inner, settings_of(folders, "pairwise", **NOISE, **STEPS)), MODEL)
    assert deviation_of(arrays, 0.003) == pytest.approx(due(), rel=0.1)
    assert metrics["num-examples"] == CLIENTS
    assert re.search(r"round 1, noise of clients, 2 times .*: epsilon .* after 1 sum with one client", log.text)
    assert "noise dominates the model" in log.text
    assert "out of range" not in log.text


def test_a_round_in_which_all_trainings_failed_is_not_without_a_word(folders: Path, log: Any) -> None:
    """The model changes by noise, and no count in the sum shows that no client trained."""
    given, said = {**NOISE, "noise": 0.01}, "the sum is no longer than its noise alone, so perhaps no client trained"

    def failing(*_: Any) -> Any:
        raise RuntimeError("the data of this node are gone")

    for train, is_said in ((adding(0.002), False), (failing, True)):
        log.clear()
        inner = MemoryGrid(lenient(folders, **given), train)
        inner.round(grid_of(inner, settings_of(folders, "pairwise", **given, **STEPS)), MODEL)
        assert (said in log.text) is is_said


def test_clients_of_standing_holders_add_it_too(folders: Path) -> None:
    inner = MemoryGrid(mod(folders, **NOISE), adding(0.001))
    settings = settings_of(folders, "one-message", **holding(folders), **NOISE, **STEPS)
    arrays, _ = inner.round(grid_of(inner, settings), MODEL)
    assert deviation_of(arrays, 0.003) == pytest.approx(due(), rel=0.1)


def test_a_longer_update_is_clipped(folders: Path) -> None:
    given = {**NOISE, "noise": 0.01}
    inner = MemoryGrid(lenient(folders, **given), adding(0.1))
    arrays, _ = inner.round(grid_of(inner, settings_of(folders, "pairwise", **given, **STEPS)), MODEL)
    assert float(np.linalg.norm(arrays["w"])) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ({}, NOISE),
        (NOISE, {}),
        ({**NOISE, "noise": 1.0}, NOISE),
        ({**NOISE, "norm": 1.0}, NOISE),
        ({**NOISE, "corrupted": 2}, NOISE),
        (NOISE, {**NOISE, "assumed_corrupted": 2}),
    ],
    ids=["none offered", "none insisted on", "less noise", "another norm", "more corrupted", "fewer corrupted"],
)
def test_a_client_leaves_where_the_noise_is_another(
    folders: Path, log: Any, server: dict[str, Any], client: dict[str, Any]
) -> None:
    inner = MemoryGrid(lenient(folders, **client), adding(0.001))
    with pytest.raises(ThresholdNotMet):
        inner.round(grid_of(inner, settings_of(folders, "pairwise", **STEPS, **server)), MODEL)
    assert f"{CLIENTS} clients left with code 'terms'" in log.text


@pytest.mark.parametrize("protocol", ["enclave", "two-servers"])
def test_a_client_that_insists_on_noise_leaves_a_protocol_whose_clients_add_none(
    folders: Path, log: Any, protocol: str
) -> None:
    inner = MemoryGrid(lenient(folders, **NOISE), adding(0.001))
    with pytest.raises(ThresholdNotMet):
        inner.round(grid_of(inner, settings_of(folders, protocol)), MODEL)
    assert f"clients add under pairwise and one-message, but the server asks for {protocol}" in log.text


def test_tensors_of_integers_have_no_norm() -> None:
    settings = SecAggSettings(weighting="uniform", **NOISE)
    with pytest.raises(InvalidParameters, match="whose norm is not bounded"):
        SchemeChoice(settings, CLIENTS).parameters({**MODEL, "steps": np.array(7)}, seed=bytes(32), epoch=1)


def test_a_client_adds_no_noise_to_a_round_whose_parameters_have_more_than_one_norm() -> None:
    """A server chooses the parameters; noise only protects values that this client bounds."""
    update = SchemeChoice(SecAggSettings(weighting="uniform", metrics="loss"), CLIENTS).parameters(
        MODEL, seed=bytes(32), epoch=1
    )
    with pytest.raises(InvalidParameters, match="name no metrics"):
        noise_settings(1.0, 0.5, update)


def test_an_operator_raises_noise_and_lowers_the_norm_and_nothing_else(folders: Path) -> None:
    own = lenient(folders, **NOISE)._settings  # noqa: SLF001 -- what an operator's keys change
    raised = own.raised_by({"secagg-noise": 3.0, "secagg-norm": 0.25})
    kept = own.raised_by({"secagg-noise": 1, "secagg-norm": 9.0})
    assert [(one.noise, one.norm) for one in (raised, kept)] == [(3.0, 0.25), (2.0, 0.5)]
    first = lenient(folders)._settings.raised_by({"secagg-noise": 1, "secagg-norm": 1})  # noqa: SLF001
    assert (first.noise, first.norm) == (1.0, 1.0)


BUDGET: dict[str, Any] = {"epsilon": 5.0}
"""A budget for three sums with this noise, not four."""


def certified(folders: Path) -> dict[str, Any]:
    return {"mode": "active", "roster": str(folders / "keys" / "roster.txt")}


def has_sum(folders: Path, number: int, client: dict[str, Any], **changes: Any) -> bool:
    """Whether a new run of one round has a sum, with new processes, a new model and new updates."""
    inner = MemoryGrid(lenient(folders, **{**NOISE, **client}), adding(0.001 * number))
    grid = grid_of(inner, settings_of(folders, "pairwise", **{**certified(folders), **NOISE, **STEPS, **changes}))
    try:
        inner.round(grid, {"w": np.full((40, 50), number, dtype=np.float32)})
    except ThresholdNotMet:
        return False
    return True


def test_a_client_leaves_when_its_budget_is_spent_whatever_the_run_is(folders: Path, log: Any) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    assert [has_sum(folders, number, BUDGET) for number in range(1, 5)] == [True, True, True, False]
    assert f"{CLIENTS} clients left with code 'left'" in log.text, "the server is not told why"
    assert "its 3 uploads so far have spent 4.4407, which leaves 0.559305" in log.text
    assert has_sum(folders, 5, {"epsilon": 9.0}), "a client may raise its own budget, and what was spent stays"


def test_a_budget_without_noise_or_without_a_key_to_keep_it_under_is_refused(folders: Path, log: Any) -> None:
    assert not has_sum(folders, 1, {"noise": 0.0, "norm": 0.0, **BUDGET}, noise=0.0, norm=0.0)
    assert "never uploads without noise" in log.text
    assert not has_sum(folders, 1, BUDGET, mode="semi_honest", roster="")
    assert "no key that identifies it" in log.text


def test_an_operator_lowers_a_budget_and_does_not_raise_it(folders: Path) -> None:
    own = lenient(folders, **NOISE, epsilon=4.0)._settings  # noqa: SLF001 -- what an operator's keys change
    lowered = own.raised_by({"secagg-epsilon": 3.0, "secagg-delta": 1e-7})
    kept = own.raised_by({"secagg-epsilon": 9, "secagg-delta": 0.1})
    assert [(one.epsilon, one.delta) for one in (lowered, kept)] == [(3.0, 1e-7), (4.0, 1e-6)]
    assert lenient(folders, **NOISE)._settings.raised_by({"secagg-epsilon": 2}).epsilon == 2.0  # noqa: SLF001
