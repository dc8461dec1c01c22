"""``secure``: its changes to a recipe, and the recipes it refuses."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.aggregators import CollectAndAssembleAggregator, InTimeAccumulateWeightedAggregator
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.ccwf import SwarmServerController
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.workflows.cyclic import Cyclic
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.recipe.utils import add_cross_site_evaluation

from secagg.adapters import AdapterPlan
from secagg.errors import InvalidParameters
from secagg.nvflare import secure
from secagg.nvflare.controller import SecureScaffold, SecureScatterAndGather

pytestmark = [pytest.mark.nvflare, pytest.mark.filterwarnings("ignore::UserWarning")]


class Takes(ModelAggregator):
    """An aggregator that receives each update."""

    def accept_model(self, model: Any) -> None:
        """Accept an update."""

    def aggregate_model(self) -> Any:
        """Return nothing."""

    def reset_stats(self) -> None:
        """Forget."""


def swarm() -> Any:
    """Return a swarm workflow."""
    return SwarmServerController(num_rounds=1)


def replace(app: Any, controller: Any) -> None:
    """Put another workflow into a server's app."""
    controller.set_communicator(app.workflows[0].controller.communicator)
    app.workflows[0].controller = controller


def recipe(folder: Path, **more: Any) -> NumpyFedAvgRecipe:
    script = folder / "client.py"
    script.write_text("import nvflare.client as flare\n")
    given: dict[str, Any] = {"min_clients": 5, "num_rounds": 2, "train_script": str(script), **more}
    return NumpyFedAvgRecipe(name="lab", model=[1.0, 2.0], **given)


def exported(made: NumpyFedAvgRecipe, folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the configurations of the server and a site, and the code in the job."""
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
    # No executor handles other tasks of a server: nothing would mask their results.
    assert sorted(map(tuple, tasks.values())) == [("secagg",), ("train",)]
    for chain in (client["task_data_filters"], client["task_result_filters"]):
        assert [(part["tasks"], part["filters"][-1]["path"]) for part in chain] == [
            (["train"], "secagg.nvflare.client.SecAggFilter")
        ]


def test_an_adapter_gives_a_recipe_its_settings_and_others_replace_them(tmp_path: Path) -> None:
    shapes = {f"q.lora_{part}.weight": shape for part, shape in (("A", (4, 12)), ("B", (10, 4)))}
    plan = AdapterPlan(method="ffa", shapes=shapes, rank=4, alpha=8.0, targets=("q",), dtype="bfloat16")
    made = recipe(tmp_path)
    secure(made, adapter=plan, rates=[1e-3] * 4, fraction_bits=20)
    settings = exported(made, tmp_path)[0]["workflows"][0]["args"]["secagg"]
    assert settings == plan.settings([1e-3] * 4, clients=5) | {"fraction_bits": 20}
    assert (settings["compression"], settings["weighting"], settings["tensors"]) == ("scalar-8", "uniform", "*lora_B*")
    coarse = recipe(tmp_path)
    secure(coarse, adapter=plan, rates=iter([1e-3]), bits=4, invited=300)
    settings = exported(coarse, tmp_path)[0]["workflows"][0]["args"]["secagg"]
    assert settings == plan.settings([1e-3], clients=300, bits=4)
    for given in ({"rates": [1e-3]}, {"bits": 8}):
        with pytest.raises(InvalidParameters, match="rates and bits only apply to an adapter"):
            secure(recipe(tmp_path), **given)
    with pytest.raises(InvalidParameters, match="rates, one for each step of a round, must add up"):
        secure(recipe(tmp_path), adapter=plan)


def test_where_sites_evaluate_they_are_asked_for_that_too(tmp_path: Path) -> None:
    made = recipe(tmp_path, stop_cond="loss <= 0.5")
    secure(made, evaluation_metrics="loss")
    _, client, _ = exported(made, tmp_path)
    (training,) = [each["tasks"] for each in client["executors"] if each["tasks"] != ["secagg"]]
    assert {*training} == {"train", "validate"}
    for chain in (client["task_data_filters"], client["task_result_filters"]):
        assert {*chain[-1]["tasks"]} == {"train", "validate"}


@pytest.mark.parametrize("aggregator", [None, "weighs sites", "another"])
def test_a_scatter_and_gather_becomes_secure_if_its_aggregator_needs_the_mean(
    tmp_path: Path, aggregator: str | None
) -> None:
    made = recipe(tmp_path)
    app = made._job._deploy_map["server"].app_config  # noqa: SLF001 -- as a FedOpt recipe of PyTorch has it
    replace(app, ScatterAndGather(min_clients=5, num_rounds=3, aggregator_id="aggregator"))
    weights = {"site-1": 2.0} if aggregator == "weighs sites" else None
    app.components["aggregator"] = InTimeAccumulateWeightedAggregator(aggregation_weights=weights)
    if aggregator == "another":
        app.components["aggregator"] = CollectAndAssembleAggregator("other")
    if aggregator is not None:
        with pytest.raises(InvalidParameters, match="aggregator receives each site's update, or weights"):
            secure(made)
        return
    secure(made)
    controller = app.workflows[0].controller
    assert type(controller) is SecureScatterAndGather
    assert (controller._min_clients, controller._num_rounds) == (5, 3)  # noqa: SLF001 -- NVFlare's own


def test_scaffold_becomes_secure(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    app = made._job._deploy_map["server"].app_config  # noqa: SLF001 -- as a recipe of PyTorch has it
    replace(app, Scaffold(num_clients=5, num_rounds=3))
    secure(made)
    controller = app.workflows[0].controller
    assert type(controller) is SecureScaffold
    assert (controller.num_clients, controller.num_rounds) == (5, 3)


def test_a_round_may_ask_more_sites_than_the_job_needs(tmp_path: Path) -> None:
    made = recipe(tmp_path, min_clients=4)
    secure(made, invited=5)
    assert exported(made, tmp_path)[0]["workflows"][0]["args"]["num_clients"] == 5


def test_what_no_sum_can_do_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match="aggregator receives each site's update"):
        secure(recipe(tmp_path, aggregator=Takes()))
    with pytest.raises(InvalidParameters, match="aggregation_weights cannot weight sites here"):
        secure(recipe(tmp_path, aggregation_weights={"site-1": 2.0}))
    with pytest.raises(InvalidParameters, match="2 clients are too few"):
        secure(recipe(tmp_path, min_clients=2))
    with pytest.raises(InvalidParameters, match=r"^clip must be a number above 0"):
        secure(recipe(tmp_path), clip=-1.0)
    with pytest.raises(InvalidParameters, match=r"there is no option clips; did you mean clip\?"):
        secure(recipe(tmp_path), clips=1.0)
    with pytest.raises(
        InvalidParameters, match="minimum_cohort 10, but a sum of 5 invited sites may contain only 4: lower"
    ):
        secure(recipe(tmp_path), policy={"minimum_cohort": 10})
    secure(recipe(tmp_path), policy={"minimum_cohort": 5}, minimum_cohort=5)
    secure(recipe(tmp_path), policy={"minimum_cohort": 10}, invited=14)
    for given in ({"poll": 0.0}, {"training_timeout": -1.0}, {"training_patience": float("nan")}):
        with pytest.raises(InvalidParameters, match=f"{next(iter(given))} must be a number of seconds"):
            secure(recipe(tmp_path), **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameters, match="0 clients are too few"):
        secure(recipe(tmp_path), invited=0)
    with pytest.raises(InvalidParameters, match=r"there is no option least; there are .*minimum_cohort"):
        secure(recipe(tmp_path), policy={"least": 3})
    with pytest.raises(InvalidParameters, match="stop_cond waits for 'accuracy', which is in no sum"):
        secure(recipe(tmp_path, stop_cond="accuracy >= 80"), metrics="loss")
    secure(recipe(tmp_path, stop_cond="accuracy >= 80"), metrics="accuracy")
    evaluated = recipe(tmp_path)
    add_cross_site_evaluation(evaluated)
    with pytest.raises(InvalidParameters, match=r"runs FedAvg, CrossSiteModelEval, .* each site's model is sent"):
        secure(evaluated)
    for controller, why in ((Cyclic(), "each site receives the model that"), (swarm(), "receives the updates of the")):
        other = recipe(tmp_path)
        other._job._deploy_map["server"].app_config.workflows[0].controller = controller  # noqa: SLF001
        with pytest.raises(InvalidParameters, match=f"runs {type(controller).__name__}, .* {why}"):
            secure(other)
    twice = recipe(tmp_path)
    secure(twice)
    with pytest.raises(InvalidParameters, match="already secure"):
        secure(twice)


@pytest.mark.parametrize("name", ["_ensure_client_apps_prepared", "_job", "_deploy_map", "_add_to_client_apps"])
def test_a_release_of_nvflare_without_a_private_name_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = recipe(tmp_path)
    owner = made._job if name == "_deploy_map" else made  # noqa: SLF001 -- what is looked at
    assert hasattr(owner, name), "NVFlare has it no longer: find another way before this version is allowed"
    if name in vars(owner):
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.delattr(next(kind for kind in type(owner).__mro__ if name in vars(kind)), name)
    with pytest.raises(
        InvalidParameters, match=rf"NVFlare {re.escape(version('nvflare'))} has no \w+\.{name}, which is"
    ):
        secure(made)
