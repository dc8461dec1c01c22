"""NVFlare's example of Hugging Face in the simulator: ``lab_hugging.py plain|METHOD <workspace>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lora_model import made
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from secagg.adapters import AdapterPlan
from secagg.nvflare import secure

SITES, RATE, STEPS = 3, 1e-3, 4


def main(how: str, workspace: str) -> None:
    """Run it, and print the folder of its results."""
    recipe = FedAvgRecipe(
        name="hugging",
        model={"class_path": "lora_model.LoRAModel", "args": {}},
        min_clients=SITES,
        num_rounds=1 if how == "ffa" else 2,
        train_script="lab_trainer.py",
        launch_external_process=True,
        command=f"{sys.executable} -u",
        server_expected_format=ExchangeFormat.PYTORCH,
        key_metric="",
        enable_tensor_disk_offload=True,
    )
    recipe.add_client_file("lora_model.py")
    if how != "plain":
        secure(recipe, adapter=AdapterPlan.of(made(), how), rates=[RATE] * STEPS)
    result = recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace)).get_result()
    Path(workspace, "result.json").write_text(json.dumps(str(result)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
