"""Run a job of statistics in the simulator: ``lab_statistics.py <workspace> <result>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nvflare.recipe import SimEnv

from secagg.nvflare import statistics_job
from tests.harness.town_of_sites import declared

SITES = 5


def main(workspace: str, result: str) -> None:
    """Run it, and write where its results are."""
    env = SimEnv(num_clients=SITES, workspace_root=workspace)
    try:
        found = statistics_job(declared()).execute(env).get_result(clean_up=False)
        Path(result).write_text(json.dumps(str(found)))
    finally:
        env.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
