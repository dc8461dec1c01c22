"""Run jobs with failing rounds in the simulator, with a process per site: ``lab_failing.py NAME <workspace>``.

It prints a line of JSON for each job: the saved models, the metrics of each round, and the job's outcome.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.recipe import SimEnv
from nvflare.recipe.fedavg import FedAvgRecipe

from secagg.nvflare import secure
from secagg.nvflare.client import STAGE_TASK
from secagg.platforms.terms import RECORD

SITES = 4
NEVER = 99
JOBS: dict[str, dict[str, Any]] = {
    "skip": {"rounds": 7, "half_fails": 1, "all_fail": 5, "lost": {"train": 3, STAGE_TASK: 4}},
    "retry": {"rounds": 4, "lost": {STAGE_TASK: 2, "train": 3}, "on_failure": "retry", "begins": "skip"},
    "stop": {"rounds": 4, "lost": {"train": 2}, "on_failure": "stop"},
}
"""Jobs by name; ``lost`` is the task, or the session's first message, at which half of the sites leave."""


class Losing(Filter):  # type: ignore[misc] # NVFlare has no types
    """Makes a site of the second half leave."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.count = at, 0

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Count trainings or sessions, and refuse one."""
        is_stage = fl_ctx.get_prop(FLContextKey.TASK_NAME) == STAGE_TASK
        is_first = not is_stage or "terms" in shareable[RECORD]
        self.count += is_first
        if is_first and self.count == self.at and int(fl_ctx.get_identity_name()[-1]) > SITES // 2:
            raise RuntimeError("this site is gone")
        return shareable


class Saved(ModelPersistor):  # type: ignore[misc] # NVFlare has no types
    """Writes every model and every round's metrics to a file; begins with another file's last model."""

    def __init__(self, file: str, begins: str) -> None:
        super().__init__()
        self.file, self.begins = file, begins

    def load_model(self, fl_ctx: FLContext) -> Any:
        """Return a model of floats and a counter; another job's file has only floats, as optimizers make them."""
        del fl_ctx
        weights: dict[str, Any] = {"w": np.zeros(6, np.float32), "count": np.array([3], np.int64)}
        if self.begins:
            last = json.loads(Path(self.begins).read_text(encoding="utf-8").splitlines()[-1])
            weights = {"w": np.array(last["w"], np.float32), "count": np.array(last["count"], np.float64)}
        return make_model_learnable(weights, {})

    def save_model(self, model: Any, fl_ctx: FLContext) -> None:
        """Write a line."""
        del fl_ctx
        self._write({name: np.asarray(values).tolist() for name, values in model["weights"].items()})

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Write the metrics of a round."""
        if event_type == AppEventType.AFTER_AGGREGATION:
            self._write({"metrics": fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT).metrics})

    def _write(self, line: dict[str, Any]) -> None:
        with Path(self.file).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def made(name: str, workspace: Path) -> FedAvgRecipe:
    """Return a job."""
    job = JOBS[name]
    begins = str(workspace / f"{job['begins']}.models") if "begins" in job else ""
    recipe = FedAvgRecipe(
        name=name,
        model_persistor=Saved(str(workspace / f"{name}.models"), begins),
        framework=FrameworkType.NUMPY,
        min_clients=SITES,
        num_rounds=job["rounds"],
        train_script="lab_failing_script.py",
        train_args=json.dumps([job.get("half_fails", NEVER), job.get("all_fail", NEVER)]).replace(" ", ""),
    )
    for task, at in job["lost"].items():
        recipe.add_client_input_filter(Losing(at), tasks=[task])
    recipe.add_server_file("lab_failing.py")
    recipe.add_client_file("lab_failing.py")
    secure(
        recipe,
        metrics="loss",
        weighting="uniform",
        on_failure=job.get("on_failure", "skip"),
        stage_patience=1000.0,
        poll=0.1,
    )
    return recipe


def main(names: str, workspace: Path) -> None:
    """Run the jobs, and print their outcomes."""
    for name in names.split(","):
        said = ""
        try:
            made(name, workspace).execute(SimEnv(num_clients=SITES, workspace_root=str(workspace)))
        except RuntimeError as error:
            said = str(error)
        lines = [json.loads(line) for line in (workspace / f"{name}.models").read_text(encoding="utf-8").splitlines()]
        (rounds,) = workspace.joinpath(name).rglob("secagg_rounds.json")
        found = {
            "job": name,
            "error": said,
            "models": [line for line in lines if "w" in line],
            "losses": [(line["metrics"] or {}).get("loss") for line in lines if "metrics" in line],
            "rounds": json.loads(rounds.read_text(encoding="utf-8")),
        }
        print("RESULT", json.dumps(found), flush=True)  # noqa: T201 -- the test reads it


if __name__ == "__main__":
    # A job names its components by module, so this file must be imported as one.
    import_module("lab_failing").main(sys.argv[1], Path(sys.argv[2]))
