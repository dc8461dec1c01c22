"""A deployment of three sites with the files of ``secagg node nvflare``, and attempts to bypass them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.nvflare.test_site_deployment import jobs_under

pytestmark = pytest.mark.nvflare


def require_nothing_arrived(job: dict[str, Any]) -> None:
    assert (job["updates"], job["array"], job["tracking"], job["marks"], job["files"]) == (0, False, False, [], [])
    assert "COMPLETED" not in job["ended"]


def test_the_scope_stops_jobs_that_forgot_and_not_what_hostile_code_says_besides(tmp_path: Path) -> None:
    found = jobs_under("scope", tmp_path)
    secure = found.pop("secure")
    assert "COMPLETED" in secure["ended"]
    assert (secure["updates"], secure["tracking"]) == (0, False)
    hostile = found.pop("hostile")
    # Its result is masked like any other, but its code bypasses every filter, as documented.
    assert (hostile["updates"], hostile["array"]) == (0, False)
    assert {"cookie", "message"} <= {*hostile["marks"]}
    assert not {"result", "event", "log"} & {*hostile["marks"]}
    assert hostile["files"]
    for job in found.values():
        require_nothing_arrived({**job, "files": []})
    assert "this site answers only secure sums" in str(found["plain"]["said"])
    assert "would run after the protocol" in str(found["own filter"]["said"])
    assert "duplicate component id secagg-site" in str(found["our id"]["said"])
    assert "privacy scope 'other' is not allowed" in found["other scope"]["ended"]
