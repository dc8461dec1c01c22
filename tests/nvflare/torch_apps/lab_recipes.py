"""A PyTorch recipe in the simulator: ``lab_recipes.py KIND plain|secure <workspace>``.

Kinds are ``fedopt``, ``scaffold``, ``evaluated``, and those with a compressed downlink: ``told`` as arrays,
``told-tensors`` as tensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab_network import Seeded, Wide
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes.fedopt import FedOptRecipe
from nvflare.app_opt.pt.recipes.scaffold import ScaffoldRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.nvflare import secure
from secagg.session.identities import make_identities

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
    if kind.startswith("told"):
        given |= {"model": Wide(), "train_script": "lab_wide.py"}
    if kind == "told-tensors":
        given["server_expected_format"] = ExchangeFormat.PYTORCH
    return ScaffoldRecipe(name=kind, **given) if kind == "scaffold" else FedAvgRecipe(name=kind, **given)


def told(keys: Path) -> dict[str, Any]:
    """Return the settings of the compressed downlink, with a simulated enclave."""
    make_identities(keys, map(ClientId, range(1, SITES + 1)), SystemCoins())
    return {
        "protocol": "enclave",
        "roster": str(keys / "roster.txt"),
        "policy": {"identity": str(keys), "allow_simulated_enclave": True},
        "weighting": "uniform",
        "minimum_cohort": SITES,
        "compression": "peak-8",
        "down": "sums",
    }


def main(kind: str, how: str, workspace: str) -> None:
    """Run it, and print the folder of its results."""
    recipe = made(kind)
    if kind.startswith("told"):
        secure(recipe, metrics="accuracy", **told(Path(workspace, "keys")))
    elif how == "secure":
        metrics = {"evaluation_metrics": "accuracy"} if kind == "evaluated" else {"metrics": "accuracy"}
        secure(recipe, clip=32.0, fraction_bits=20, **metrics)
    result = recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace)).get_result()
    Path(workspace, "result.json").write_text(json.dumps(str(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
