"""Run the example's job in the simulator, with a spy at the server: ``lab_job.py simulator <workspace>``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import job
from lab_spy import Spy
from nvflare.recipe import SimEnv

from secagg.nvflare import secure


def main(workspace: str) -> None:
    """Run the job, and print the folder of its results."""
    # On a busy machine a site may be late for a stage, and the mean is then over four.
    vars(job)["secure"] = partial(secure, stage_patience=60.0)
    recipe, env = job.made(), SimEnv(num_clients=job.SITES, workspace_root=workspace)
    recipe.add_server_file("lab_spy.py")
    recipe._job.to_server(Spy(), id="spy")  # noqa: SLF001 -- a recipe has no door for a server's component
    result = recipe.execute(env).get_result(clean_up=False)
    Path(workspace, "result.json").write_text(json.dumps(str(result)))


if __name__ == "__main__":
    main(sys.argv[2])
