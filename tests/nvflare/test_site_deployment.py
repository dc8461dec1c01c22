"""A deployment of five sites whose operators enforce nothing: every byte that arrives at the server is searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from secagg.analytics import summed
from tests.harness.town_of_sites import declared, functions, people
from tests.nvflare.test_jobs import lab

pytestmark = pytest.mark.nvflare
Found = dict[str, dict[str, Any]]


def jobs_under(kit: str, folder: Path) -> Found:
    """Return the outcomes of a kit's jobs, by name."""
    lines = lab(folder, "lab_sites.py", kit).splitlines()
    found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("RESULT ")]
    return {one["job"]: one for one in found}


@pytest.fixture(scope="module")
def open_sites(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Run the jobs of five sites whose operators enforce nothing."""
    return jobs_under("open", tmp_path_factory.mktemp("open"))


def test_without_the_operators_files_a_plain_job_gets_every_update(open_sites: Found) -> None:
    job = open_sites["plain"]
    assert "COMPLETED" in job["ended"]
    # The search finds these bytes, so it searches the right data.
    assert job["updates"] == 5
    assert job["tracking"]


def test_statistics_of_deployed_sites_are_those_of_all_their_people(open_sites: Found) -> None:
    (path,) = Path(open_sites["statistics"]["result"]).rglob("statistics.json")
    here = summed(declared(), [functions(people(number, 20 * number)) for number in range(1, 6)])
    assert json.loads(path.read_text())["statistics"] == json.loads(json.dumps(here.statistics))


def test_a_deployment_goes_on_without_a_site_that_is_killed_while_it_trains(open_sites: Found) -> None:
    job = open_sites["killed"]
    # NVFlare's verdict on the job depends on when the killed site is back, so it is not checked.
    found = Path(job["result"]) / "workspace"
    log = (found / "log.txt").read_text()
    assert "round 1, sum: 5 clients, 5 trained, with 2560 examples in all" in log
    assert "round 2, masked input: sent 5" in log
    assert "round 2, sum: 4 clients, 4 trained, with 1792 examples in all" in log
    model = np.load(found / "models" / "server.npy")
    first = np.array([[1, 2], [3, 4]], np.float32)
    moved = [sum(n * (1 + n) for n in sites) / sum(1 + n for n in sites) / 16 for sites in (range(1, 6), range(1, 5))]
    assert np.abs(model - first - sum(moved)).max() < 2 * 2.0**-16
    # A script's tracking logs are in the clear, and are found: the search covers the right bytes.
    assert job["tracking"]
    assert (job["updates"], job["differences"]) == (0, 0)
