"""A recipe of PyTorch's in the simulator: ``lab_recipes.py fedopt|scaffold|evaluated plain|secure <workspace>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab_network import Seeded
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes.fedopt import FedOptRecipe
from nvflare.app_opt.pt.recipes.scaffold import ScaffoldRecipe
from nvflare.recipe import SimEnv

from secagg.nvflare import secure

SITES, ROUNDS = 3, 3
OPTIMIZER = {"path": "torch.optim.SGD", "args": {"lr": 0.9, "momentum": 0.6}, "config_type": "dict"}


def made(kind: str) -> Any:
    """Return a recipe."""
    given: dict[str, Any] = {
        "model": Seeded(),
        "min_clients": SITES,
        "num_rounds": ROUNDS,
        "train_script": "lab_torch.py",
    }
    if kind == "fedopt":
        return FedOptRecipe(name=kind, optimizer_args=OPTIMIZER, device="cpu", **given)
    return ScaffoldRecipe(name=kind, **given) if kind == "scaffold" else FedAvgRecipe(name=kind, **given)


def main(kind: str, how: str, workspace: str) -> None:
    """Run it, and write where its results are."""
    recipe = made(kind)
    if how == "secure":
        metrics = {"evaluation_metrics": "accuracy"} if kind == "evaluated" else {"metrics": "accuracy"}
        secure(recipe, clip=32.0, fraction_bits=20, **metrics)
    result = recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace)).get_result()
    Path(workspace, "result.json").write_text(json.dumps(str(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
