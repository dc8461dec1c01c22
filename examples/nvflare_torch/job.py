"""A PyTorch job with BatchNorm whose server learns only means, never one site's model."""

from network import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from secagg.nvflare import secure

SITES, ROUNDS = 5, 4


def made() -> FedAvgRecipe:
    """Return the recipe; without one of its lines it is a job in the clear."""
    recipe = FedAvgRecipe(name="torch", model=Network(), min_clients=SITES, num_rounds=ROUNDS, train_script="client.py")
    secure(recipe, metrics="accuracy", clip=8.0, full_weight=256)
    return recipe


if __name__ == "__main__":
    made().execute(SimEnv(num_clients=SITES, workspace_root="build"))
