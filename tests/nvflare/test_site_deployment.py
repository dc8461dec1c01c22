"""Deployments of three sites under files of `secagg nvflare site`: each way around, and every byte that arrives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.nvflare.test_jobs import lab

pytestmark = pytest.mark.nvflare
Found = dict[str, dict[str, Any]]


def jobs_under(kit: str, folder: Path) -> Found:
    """Return what came of each job of a kit, by name."""
    lines = lab(folder, "lab_sites.py", kit).splitlines()
    found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("RESULT ")]
    return {one["job"]: one for one in found}


def require_nothing_arrived(job: dict[str, Any]) -> None:
    assert (job["updates"], job["array"], job["analytics"], job["marks"], job["files"]) == (0, False, False, [], [])
    assert "COMPLETED" not in job["ended"]


def test_without_the_operators_files_a_plain_job_gets_every_update(tmp_path: Path) -> None:
    job = jobs_under("open", tmp_path)["plain"]
    assert "COMPLETED" in job["ended"]
    # The search for bytes finds them: it looks at the right ones.
    assert job["updates"] == 3
    assert job["analytics"]


def test_the_scope_stops_jobs_that_forgot_and_not_what_hostile_code_says_besides(tmp_path: Path) -> None:
    found = jobs_under("scope", tmp_path)
    secure = found.pop("secure")
    assert "COMPLETED" in secure["ended"]
    assert (secure["updates"], secure["analytics"]) == (0, False)
    hostile = found.pop("hostile")
    # Its result is masked like any other, and its code talks around every filter: the documentation says so.
    assert (hostile["updates"], hostile["array"]) == (0, False)
    assert {"cookie", "message"} <= {*hostile["marks"]}
    assert not {"result", "event", "log"} & {*hostile["marks"]}
    assert hostile["files"]
    for job in found.values():
        require_nothing_arrived({**job, "files": []})
    assert "this site answers secure sums alone" in str(found["plain"]["said"])
    assert "would come after the protocol" in str(found["own filter"]["said"])
    assert "duplicate component id secagg-site" in str(found["our id"]["said"])
    assert "privacy scope 'other' is not allowed" in found["other scope"]["ended"]


def test_a_closed_site_runs_its_own_script_and_no_code_of_a_job(tmp_path: Path) -> None:
    found = jobs_under("closed", tmp_path)
    secure = found.pop("secure")
    assert "COMPLETED" in secure["ended"]
    require_nothing_arrived({**secure, "ended": ""})
    for job in found.values():
        require_nothing_arrived(job)
    assert "BYOC not permitted" in found["hostile"]["ended"]
    assert "is not a script that this site allows" in str(found["other script"]["said"])
    for name in ("command", "hidden command"):
        assert "is not allowed at this site" in str(found[name]["said"])
