"""Long jobs: adapters at closed sites, with trainers in separate processes that are late, slow or killed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.nvflare.test_jobs import lab

pytestmark = [pytest.mark.nvflare, pytest.mark.long]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run three jobs in one deployment of closed sites."""
    lines = lab(tmp_path_factory.mktemp("lasting"), "lab_lasting.py", "all").splitlines()
    found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("RESULT ")]
    return {one["job"]: one for one in found}


def require(job: dict[str, Any], trained: list[int], **parts: list[set[int]]) -> None:
    """Check the number of trainings in each round, and a model by the sites that trained each part."""
    assert "COMPLETED" in job["ended"]
    assert [one["secagg-trained"] for one in job["rounds"]] == trained
    for part, rounds in parts.items():
        due = sum(float(np.mean([number / 16 for number in who])) for who in rounds)
        assert np.abs(np.array(job["model"][f"model.lora_{part}.weight"]) - due).max() < 1e-5


def test_a_site_that_joins_late_takes_part_in_the_next_job(jobs: dict[str, dict[str, Any]]) -> None:
    """NVFlare adds no site to a running job."""
    first = {1, 2, 3}
    require(jobs["late"], [3, 3, 3], B=[first, first], A=[first])
    assert len(jobs["late"]["sites"]) == 3
    assert len(jobs["killed"]["sites"]) == 4


def test_a_trainer_that_loads_for_longer_than_a_stage_is_waited_for(jobs: dict[str, dict[str, Any]]) -> None:
    assert jobs["killed"]["rounds"][0]["secagg-trained"] == 4
    assert "launching external trainer" in str(jobs["killed"]["sites"])


def test_a_killed_trainer_is_in_no_mean_and_both_ends_say_so(jobs: dict[str, dict[str, Any]]) -> None:
    everybody, others = {1, 2, 3, 4}, {1, 2, 4}
    require(jobs["killed"], [4, 3, 3], B=[everybody, others], A=[others])
    assert "round 2: training failed at 1 of 4 clients; their own logs say why" in jobs["killed"]["log"]
    (log,) = (text for text in jobs["killed"]["sites"] if "TRAINING FAILED" in text)
    assert "run=" in log
    assert "trainer process exited" in log


def test_a_job_goes_on_from_the_model_of_another(jobs: dict[str, dict[str, Any]]) -> None:
    everybody, others = {1, 2, 3, 4}, {1, 2, 4}
    require(jobs["resumed"], [4], B=[everybody, others, everybody], A=[others])
