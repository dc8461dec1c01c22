"""Run a secure job, with a spy at the server: ``lab_job.py simulator|poc <workspace>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab_spy import Spy
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv

from secagg.nvflare import secure

SITES = 5
FATAL_ROUND = 1


def killed() -> Any:
    """Return a job of two rounds, in the second of which a site is killed."""
    recipe = NumpyFedAvgRecipe(
        name="lab",
        model=[[1.0, 2.0], [3.0, 4.0]],
        min_clients=SITES - 1,
        num_rounds=2,
        train_script="lab_script.py",
        train_args=str(FATAL_ROUND),
    )
    secure(recipe, invited=SITES, metrics="accuracy", training_patience=1.0)
    return recipe


def main(kind: str, workspace: str) -> None:
    """Run a job, and write where its results are; the simulator has that of the example."""
    if kind == "simulator":
        import job  # noqa: PLC0415 -- the example's

        recipe, env = job.made(), SimEnv(num_clients=job.SITES, workspace_root=workspace)
    else:
        recipe, env = killed(), PocEnv(num_clients=SITES)
    recipe.add_server_file("lab_spy.py")
    recipe._job.to_server(Spy(), id="spy")  # noqa: SLF001 -- a recipe has no door for a server's component
    try:
        result = recipe.execute(env).get_result(clean_up=False)
        Path(workspace, "result.json").write_text(json.dumps(str(result)))
    finally:
        env.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
