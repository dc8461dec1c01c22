"""A FedAvg job whose server learns only means, never one site's model."""

from __future__ import annotations

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from secagg.nvflare import secure

SITES, ROUNDS = 5, 2


def made() -> NumpyFedAvgRecipe:
    """Return the recipe; without one of its lines it is a job in the clear."""
    recipe = NumpyFedAvgRecipe(
        name="quickstart", model=[0.0, 0.0, 0.0], min_clients=SITES, num_rounds=ROUNDS, train_script="client.py"
    )
    secure(recipe, metrics="error")
    return recipe


if __name__ == "__main__":
    made().execute(SimEnv(num_clients=SITES, workspace_root="build"))
