"""A deployment of three closed sites, which run their own script and no code of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.nvflare.test_site_deployment import jobs_under
from tests.nvflare.test_site_scope import require_nothing_arrived

pytestmark = pytest.mark.nvflare


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
