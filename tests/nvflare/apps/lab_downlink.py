"""Run a job of four rounds whose sites have a compressed downlink: ``lab_downlink.py sums <workspace>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.nvflare import secure
from secagg.session.identities import make_identities

SITES = 3
GOAL = np.random.default_rng(3).normal(size=(60, 200)).astype(np.float32)


def main(workspace: str) -> None:
    """Run the job, and print the folder of its results."""
    keys = Path(workspace, "keys")
    make_identities(keys, map(ClientId, range(1, SITES + 1)), SystemCoins())
    recipe = NumpyFedAvgRecipe(
        name="told", model=np.zeros_like(GOAL).tolist(), min_clients=SITES, num_rounds=4, train_script="lab_goal.py"
    )
    secure(
        recipe,
        protocol="enclave",
        roster=str(keys / "roster.txt"),
        policy={"identity": str(keys), "allow_simulated_enclave": True},
        weighting="uniform",
        minimum_cohort=SITES,
        compression="peak-2",
        down="sums",
    )
    result = recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace)).get_result(clean_up=False)
    Path(workspace, "result.json").write_text(json.dumps(str(result)))


if __name__ == "__main__":
    main(sys.argv[2])
