"""Run a FedAvg recipe that was made secure: ``lab_job.py simulator|poc <workspace> <rounds> <fatal round>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lab_spy import Spy
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv

from secagg.nvflare import secure

SITES = 5


def main(kind: str, workspace: str, rounds: int, fatal_round: int) -> None:
    """Run a job, and write where its results are."""
    recipe = NumpyFedAvgRecipe(
        name="lab",
        model=[[1.0, 2.0], [3.0, 4.0]],
        min_clients=SITES - 1,
        num_rounds=rounds,
        train_script="lab_script.py",
        train_args=str(fatal_round),
    )
    recipe.add_server_file("lab_spy.py")
    recipe._job.to_server(Spy(), id="spy")  # noqa: SLF001 -- a recipe has no door for a server's component
    secure(recipe, invited=SITES, metrics="accuracy", training_patience=1.0)
    env = SimEnv(num_clients=SITES, workspace_root=workspace) if kind == "simulator" else PocEnv(num_clients=SITES)
    try:
        run = recipe.execute(env)
        result = run.get_result()
        Path(workspace, "result.json").write_text(json.dumps({"result": str(result), "status": str(run.get_status())}))
    finally:
        env.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
