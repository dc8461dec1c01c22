"""The one line: what it makes of a recipe, and which recipes it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.workflows.cyclic import Cyclic
from nvflare.recipe.utils import add_cross_site_evaluation

from secagg.errors import InvalidParameters
from secagg.nvflare import secure

pytestmark = [pytest.mark.nvflare, pytest.mark.filterwarnings("ignore::UserWarning")]


class Takes(ModelAggregator):
    """An aggregator that is given each update."""

    def accept_model(self, model: Any) -> None:
        """Take one."""

    def aggregate_model(self) -> Any:
        """Give nothing."""

    def reset_stats(self) -> None:
        """Forget."""


def recipe(folder: Path, **more: Any) -> NumpyFedAvgRecipe:
    script = folder / "client.py"
    script.write_text("import nvflare.client as flare\n")
    given: dict[str, Any] = {"min_clients": 5, "num_rounds": 2, "train_script": str(script), **more}
    return NumpyFedAvgRecipe(name="lab", model=[1.0, 2.0], **given)


def exported(made: NumpyFedAvgRecipe, folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return what the server and a site are configured with, and which code the job brings."""
    made.export(str(folder / "job"))
    app = folder / "job" / "lab" / "app"
    server, client = (
        json.loads((app / "config" / f"config_fed_{side}.json").read_text()) for side in ("server", "client")
    )
    return server, client, sorted(path.name for path in (app / "custom").rglob("*.py"))


def test_one_line_changes_the_controller_and_leaves_everything_else(tmp_path: Path) -> None:
    made = recipe(tmp_path, num_rounds=7)
    secure(made, clip=2.0, metrics="accuracy")
    server, client, code = exported(made, tmp_path)
    (workflow,) = server["workflows"]
    assert workflow["path"] == "secagg.nvflare.controller.SecureFedAvg"
    assert workflow["args"]["secagg"] == {"clip": 2.0, "metrics": "accuracy"}
    assert workflow["args"]["num_rounds"] == 7
    assert workflow["args"]["num_clients"] == 5
    assert code == ["client.py"]
    tasks = {executor["executor"]["path"].rpartition(".")[2]: executor["tasks"] for executor in client["executors"]}
    # What a server would call otherwise has nobody who does it: nothing would mask what it returned.
    assert sorted(map(tuple, tasks.values())) == [("secagg",), ("train",)]
    for chain in (client["task_data_filters"], client["task_result_filters"]):
        assert [(part["tasks"], part["filters"][-1]["path"]) for part in chain] == [
            (["train"], "secagg.nvflare.client.SecAggFilter")
        ]


def test_a_round_may_ask_more_sites_than_the_job_needs(tmp_path: Path) -> None:
    made = recipe(tmp_path, min_clients=4)
    secure(made, invited=5)
    assert exported(made, tmp_path)[0]["workflows"][0]["args"]["num_clients"] == 5


def test_what_no_sum_can_do_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match="aggregator is given the update of each site"):
        secure(recipe(tmp_path, aggregator=Takes()))
    with pytest.raises(InvalidParameters, match="aggregation_weights weigh sites on the server"):
        secure(recipe(tmp_path, aggregation_weights={"site-1": 2.0}))
    with pytest.raises(InvalidParameters, match="2 clients are too few"):
        secure(recipe(tmp_path, min_clients=2))
    with pytest.raises(InvalidParameters, match="secagg-clip is a positive number"):
        secure(recipe(tmp_path), clip=-1.0)
    for given in ({"poll": 0.0}, {"training_timeout": -1.0}, {"training_patience": float("nan")}):
        with pytest.raises(InvalidParameters, match=f"{next(iter(given))} is a number of seconds"):
            secure(recipe(tmp_path), **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameters, match="sites do nothing but train here"):
        secure(recipe(tmp_path), evaluation_metrics="loss")
    with pytest.raises(InvalidParameters, match="0 clients are too few"):
        secure(recipe(tmp_path), invited=0)
    with pytest.raises(InvalidParameters, match="least is not a floor of a client; there are minimum_cohort"):
        secure(recipe(tmp_path), floors={"least": 3})
    with pytest.raises(InvalidParameters, match="stop_cond waits for 'accuracy', which no sum holds"):
        secure(recipe(tmp_path, stop_cond="accuracy >= 80"), metrics="loss")
    secure(recipe(tmp_path, stop_cond="accuracy >= 80"), metrics="accuracy")
    evaluated = recipe(tmp_path)
    add_cross_site_evaluation(evaluated)
    with pytest.raises(InvalidParameters, match="cross-site evaluation hands single models on"):
        secure(evaluated)
    other = recipe(tmp_path)
    other._job._deploy_map["server"].app_config.workflows[0].controller = Cyclic()  # noqa: SLF001
    with pytest.raises(InvalidParameters, match="runs Cyclic, and FedAvg alone"):
        secure(other)
    twice = recipe(tmp_path)
    secure(twice)
    with pytest.raises(InvalidParameters, match="secure already"):
        secure(twice)
