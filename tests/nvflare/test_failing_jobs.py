"""Jobs with failing rounds and trainings, in NVFlare's simulator with four sites as processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.nvflare.test_jobs import lab

pytestmark = [pytest.mark.nvflare, pytest.mark.long]
STEP = 2.0**-15


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run three jobs; the second one begins with the model of the first."""
    written = lab(tmp_path_factory.mktemp("failing"), "lab_failing.py", "skip,retry,stop")
    found = [json.loads(line.partition(" ")[2]) for line in written.splitlines() if line.startswith("RESULT ")]
    return {one["job"]: one for one in found}


def outcomes(job: dict[str, Any]) -> list[str]:
    """Return each round's outcome: the number of sites that trained, or why it was skipped."""
    return [str(one.get("secagg-trained", str(one.get("secagg-skipped")).partition(":")[0])) for one in job["rounds"]]


def require_models(job: dict[str, Any], due: list[tuple[float, int]]) -> None:
    assert [model["count"] for model in job["models"]] == [[count] for _, count in due]
    for model, (weight, _) in zip(job["models"], due, strict=True):
        assert max(abs(value - weight) for value in model["w"]) < weight * STEP


def test_failed_rounds_are_skipped_and_failed_trainings_are_in_no_mean(jobs: dict[str, dict[str, Any]]) -> None:
    job, lost = jobs["skip"], "not enough clients"
    assert outcomes(job)[:5] == ["4", "2", lost, lost, "4"]
    # Half failed in the second round: the step is that of the others, not half of it.
    require_models(job, [(1.0, 5), (2.0, 7), (2.0, 7), (2.0, 7), (3.0, 9)])
    assert job["losses"] == [pytest.approx(0.99, abs=1e-6) if trained else None for trained in (1, 1, 0, 0, 1)]


def test_a_job_in_which_nobody_trains_any_more_fails_with_its_last_good_model(jobs: dict[str, dict[str, Any]]) -> None:
    job = jobs["skip"]
    assert "failed with return code" in job["error"]
    assert outcomes(job)[5:] == ["training failed at too many clients"]
    assert job["models"][-1]["count"] == [9]


def test_a_second_phase_trains_from_counters_that_came_back_as_floats(jobs: dict[str, dict[str, Any]]) -> None:
    job = jobs["retry"]
    assert job["error"] == ""
    # A round whose first stage failed begins again; one that requested updates is skipped.
    assert outcomes(job) == ["4", "4", "not enough clients", "4"]
    require_models(job, [(4.0, 11), (5.0, 13), (5.0, 13), (6.0, 15)])


def test_a_job_that_stops_at_its_first_failed_round_keeps_its_model(jobs: dict[str, dict[str, Any]]) -> None:
    job = jobs["stop"]
    assert "failed with return code" in job["error"]
    assert outcomes(job) == ["4", "not enough clients"]
    require_models(job, [(1.0, 5)])
