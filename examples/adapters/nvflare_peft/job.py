"""An NVFlare job that trains LoRA adapters of PEFT in a separate process at each site."""

import sys

from adapted import RATE, STEPS, Adapter, make_plan
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from secagg.nvflare import secure

SITES, ROUNDS = 3, 2


def made() -> FedAvgRecipe:
    """Return the recipe; without its last line it is a job in the clear."""
    recipe = FedAvgRecipe(
        name="adapters",
        model=Adapter(),
        min_clients=SITES,
        num_rounds=ROUNDS,
        train_script="client.py",
        launch_external_process=True,
        command=f"{sys.executable} -u",
        server_expected_format=ExchangeFormat.PYTORCH,
        enable_tensor_disk_offload=True,
    )
    recipe.add_client_file("adapted.py")
    secure(recipe, adapter=make_plan(), rates=[RATE] * STEPS, metrics="loss")
    return recipe


if __name__ == "__main__":
    made().execute(SimEnv(num_clients=SITES, workspace_root="build"))
