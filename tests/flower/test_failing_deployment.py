"""Rounds and trainings that fail on a SuperLink and SuperNodes, each a process, and one that outlives its round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.harness.flower_federation import Federation

pytestmark = [pytest.mark.flower, pytest.mark.long]
NODES = 5


@pytest.fixture(scope="module")
def federation(workplace: Any) -> Federation:
    made = Federation(workplace, "failing")
    made.register(range(NODES))
    for number in range(NODES):
        made.add(number)
    return made


@pytest.fixture(scope="module")
def app(workplace: Any, make_app: Callable[..., Any]) -> Any:
    return make_app(workplace.folder)


def means(lab: Any, rounds: list[tuple[int, list[int]]]) -> Any:
    """Return the layer after rounds, each given by its number and the clients that trained."""
    layer = lab.initial_model()["layer"].astype(np.float64)
    for number, who in rounds:
        layer += np.mean([lab.change(p, number, "layer") for p in who], axis=0)
    return layer.ravel()[:1000]


def test_rounds_and_trainings_that_fail_are_in_the_result_and_the_run_in_which_nobody_trains_fails(
    federation: Federation, workplace: Any, app: Any, lab: Any
) -> None:
    roster, everybody = str(workplace.folder / "keys" / "roster.txt"), list(range(NODES))
    (found,) = federation.run(
        app, nodes=NODES, ways="failing:", secagg_protocol="enclave", secagg_roster=roster, secagg_weighting="uniform"
    )
    counts = [(one.get("secagg-trained"), one.get("secagg-failed")) for one in found["metrics"]]
    assert counts == [(5, 0), (3, 2), (None, None), (5, 0)]
    assert [one.get("secagg-skipped") for one in found["metrics"]] == [None, None, 1, None]
    assert found["metrics"][1]["loss"] == pytest.approx(np.mean([lab.loss(p) for p in (2, 3, 4)]), abs=1e-6)
    first = [(1, everybody), (2, [2, 3, 4])]
    for layer, due in zip(found["layers"], (means(lab, first), means(lab, [*first, (1, everybody)])), strict=True):
        assert np.abs(np.array(layer) - due).max() < 2**-14
    assert found["types"] == ["int64", "int64"]
    moved = [round(float(np.mean([lab.counted(p) for p in who]))) for _, who in [*first, (1, everybody)]]
    start = int(lab.initial_model()["steps"])
    assert found["steps"] == [start + sum(moved[:2]), start + sum(moved)]
    log = (workplace.folder / "secagg.log").read_text(encoding="utf-8")
    assert "ERROR round 5 failed: training failed at too many clients: of 5 uploads 0 trained" in log
    assert "finished:failed" in federation.runs()


def test_a_training_that_outlives_its_round_keeps_its_node_in_the_next_one(
    federation: Federation, app: Any, lab: Any
) -> None:
    (found,) = federation.run(
        app, nodes=NODES, ways="overlapping:semi_honest", secagg_weighting="uniform", secagg_stage_patience=2.0
    )
    assert "finished:completed" in federation.runs()
    assert [one["secagg-trained"] for one in found["metrics"]] == [NODES - 1, NODES]
    due = means(lab, [(1, list(range(NODES - 1))), (2, list(range(NODES)))])
    assert np.abs(np.array(found["layer"]) - due).max() < 2**-14
    assert [stage[1:3] for stage in found["stages"]] == [[NODES, NODES]] * 4
