"""Jobs that train an adapter at closed sites, in separate processes: ``lab_lasting.py all <workspace>``.

One site starts late, one trainer is slow, one is killed, and the last job continues another job's model. It prints a
line of JSON for each job: its outcome, every round's outcome, and the model.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from lab_sites import ADMIN, APPS, prepared, run
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.recipe.fedavg import FedAvgRecipe
from nvflare.tool.poc.poc_commands import _start_poc

from secagg.adapters import AdapterPlan
from secagg.nvflare import secure

SITES, LATE = 4, "site-4"
SLOW_SECONDS, STAGE_SECONDS = 25, 10.0
SHAPES = {"model.lora_A.weight": (4, 12), "model.lora_B.weight": (10, 4)}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["model"]}
JOBS: dict[str, tuple[int, int, str]] = {"late": (3, 3, ""), "killed": (4, 3, ""), "resumed": (4, 1, "killed")}
"""For each job: the number of invited sites, its rounds, and the job whose model it continues."""


class Saved(ModelPersistor):  # type: ignore[misc] # NVFlare has no types
    """Keeps the model in a file, and begins with another job's."""

    def __init__(self, file: str, begins: str) -> None:
        super().__init__()
        self.file, self.begins = file, begins

    def load_model(self, fl_ctx: FLContext) -> Any:
        """Return zeros, or the model in a file."""
        del fl_ctx
        weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        if self.begins:
            read = json.loads(Path(self.begins).read_text(encoding="utf-8"))
            weights = {name: np.array(values, np.float32) for name, values in read.items()}
        return make_model_learnable(weights, {})

    def save_model(self, model: Any, fl_ctx: FLContext) -> None:
        """Write the model."""
        del fl_ctx
        found = {name: np.asarray(values).tolist() for name, values in model["weights"].items()}
        Path(self.file).write_text(json.dumps(found), encoding="utf-8")


def job(name: str, folder: Path) -> str:
    """Write a job without code, and return its folder."""
    invited, rounds, begins = JOBS[name]
    recipe = FedAvgRecipe(
        name=name,
        model_persistor=Saved(str(folder / f"{name}.model"), str(folder / f"{begins}.model") if begins else ""),
        framework=FrameworkType.NUMPY,
        min_clients=3,
        num_rounds=rounds,
        train_script="lab_lasting_script.py",
        launch_external_process=True,
    )
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    plan = AdapterPlan.of_state(weights, CONFIG, "alternate")
    exact: dict[str, Any] = {"compression": "fixed-point", "stage_timeout": STAGE_SECONDS, "stage_patience": 1000.0}
    secure(recipe, adapter=plan, rates=[0.1], invited=invited, training_timeout=120.0, metrics="loss", **exact)
    recipe.export(str(folder))
    written = folder / name
    (custom,) = written.rglob("custom")
    shutil.rmtree(custom)
    (config,) = written.rglob("config_fed_client.json")
    client = json.loads(config.read_text())
    script = str(APPS / "lab_lasting_script.py")
    client["executors"][0]["executor"]["args"]["command"] = [sys.executable, "-u", script, name, str(SLOW_SECONDS)]
    config.write_text(json.dumps(client))
    return str(written)


def join_late(workspace: Path, kits: Path) -> None:
    """Start a site after a job's first round."""
    while not list(kits.glob("server/*/secagg_rounds.json")):
        time.sleep(0.2)
    _start_poc(poc_workspace=str(workspace), gpu_ids=[], excluded=[], services_list=[LATE])
    log = kits / LATE / "log.txt"
    while not (log.exists() and f"Successfully registered client:{LATE}" in log.read_text(encoding="utf-8")):
        time.sleep(0.2)


def main(home: Path) -> None:
    """Run every job."""
    workspace, folder = home / "poc", home / "jobs"
    folder.mkdir()
    kits = prepared("lasting", workspace)
    _start_poc(poc_workspace=str(workspace), gpu_ids=[], excluded=[ADMIN, LATE], services_list=[])
    late = threading.Thread(target=join_late, args=[workspace, kits], daemon=True)
    late.start()
    for name in JOBS:
        ended, result = run(kits, job(name, folder))
        late.join()
        (rounds,) = Path(result).rglob("secagg_rounds.json")
        logs = [path.read_text(errors="replace") for path in kits.glob(f"site-*/{ended.split()[-1]}/log.txt")]
        found = {
            "job": name,
            "ended": ended,
            "rounds": json.loads(rounds.read_text(encoding="utf-8")),
            "model": json.loads((folder / f"{name}.model").read_text(encoding="utf-8")),
            "log": next(Path(result).rglob("log.txt")).read_text(encoding="utf-8"),
            "sites": logs,
        }
        print("RESULT", json.dumps(found), flush=True)  # noqa: T201 -- the test reads it


if __name__ == "__main__":
    # A job names its components by module, so this file must be imported as one.
    import_module("lab_lasting").main(Path(sys.argv[2]))
