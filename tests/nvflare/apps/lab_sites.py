"""A deployment of sites with their operators' files, and jobs: ``lab_sites.py open|scope|closed <workspace>``.

It prints a line of JSON for each job: its outcome, which of the searched bytes reached the server, and the logs. The
test ends the deployment's processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.lighter.provision import gen_default_project_config
from nvflare.lighter.utils import load_yaml
from nvflare.tool.poc.poc_commands import (
    _start_poc,
    get_prod_dir,
    prepare_poc_provision,
    save_project_config,
    setup_service_config,
    update_clients,
    update_server_name,
)

from secagg.nvflare import secure, statistics_job
from tests.harness.town_of_sites import declared, people, write_declaration, write_people

SITES = {"open": 5, "scope": 3, "closed": 3, "lasting": 4}
PORTS = {"open": 8002, "scope": 8012, "closed": 8022, "lasting": 8032}
"""Kits run side by side."""
ADMIN = "admin@nvidia.com"
APPS = Path(__file__).resolve().parent
MARKER = "a-marker-in-the-clear"
FIRST = np.array([[1, 2], [3, 4]], np.float32)
Config = dict[str, Any]
Change = Callable[[Path, Config, Config], None]


def with_the_sites_script(app: Path, client: Config, meta: Config) -> None:
    """Ship no code, and run the script installed at the site."""
    del meta
    shutil.rmtree(app / "custom")
    arguments = client["executors"][0]["executor"]["args"]
    arguments["task_script_path"] = str(APPS / "lab_script.py")


def with_another_script(app: Path, client: Config, meta: Config) -> None:
    """Ship no code, and run another file of the site."""
    with_the_sites_script(app, client, meta)
    client["executors"][0]["executor"]["args"]["task_script_path"] = str(APPS / "lab_job.py")


def with_a_command(app: Path, client: Config, meta: Config) -> None:
    """Ship no code, and start a program of the site."""
    with_the_sites_script(app, client, meta)
    mark = Path(os.environ["HOME"], "leak-of-command")
    client["executors"][0]["executor"]["args"] = {"execution_mode": "external_process", "command": f"touch {mark}"}


def with_a_hidden_command(app: Path, client: Config, meta: Config) -> None:
    """Ship no code, and start a program by arguments that replace the checked ones."""
    with_a_command(app, client, meta)
    defined = client["executors"][0]["executor"]
    defined["args"] = {"execution_mode": "in_process", "class_attributes": defined["args"]}


def hostile(app: Path, client: Config, meta: Config) -> None:
    """Ship code that leaks everything everywhere."""
    del meta
    shutil.copy(APPS / "lab_hostile.py", app / "custom")
    client["executors"] = [{"tasks": ["*"], "executor": {"path": "lab_hostile.Hostile", "args": {}}}]


def with_its_own_filter(app: Path, client: Config, meta: Config) -> None:
    """Ship a filter that would run after the site's."""
    del app, meta
    weak = {"path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy", "args": {}}
    client["task_result_filters"][0]["filters"].append(weak)


def with_our_id(app: Path, client: Config, meta: Config) -> None:
    """Ship a component with the id of the operator's."""
    del app, meta
    client["components"].append({"id": "secagg-site", "path": "secagg.nvflare.client.SecAggClient", "args": {}})


def in_another_scope(app: Path, client: Config, meta: Config) -> None:
    """Request a privacy scope that the operator does not have."""
    del app, client
    meta["scope"] = "other"


def unchanged(app: Path, client: Config, meta: Config) -> None:
    """Leave the recipe's job unchanged."""
    del app, client, meta


JOBS: dict[str, list[tuple[str, bool, Change]]] = {
    "open": [("plain", False, unchanged)],
    "scope": [
        ("secure", True, unchanged),
        ("plain", False, unchanged),
        ("own filter", True, with_its_own_filter),
        ("our id", True, with_our_id),
        ("other scope", True, in_another_scope),
        ("hostile", True, hostile),
    ],
    "closed": [
        ("secure", True, with_the_sites_script),
        ("hostile", True, hostile),
        ("other script", True, with_another_script),
        ("command", True, with_a_command),
        ("hidden command", True, with_a_hidden_command),
    ],
}
"""For each of the operator's kits: jobs by name, whether they are secure, and their changes."""


def training(sites: int, rounds: int = 1, fatal_round: int = 99) -> NumpyFedAvgRecipe:
    """Return a job in the clear."""
    return NumpyFedAvgRecipe(
        name="lab",
        model=FIRST.tolist(),
        min_clients=sites,
        num_rounds=rounds,
        train_script="lab_script.py",
        train_args=str(fatal_round),
    )


def deployed(folder: Path) -> list[tuple[str, str]]:
    """Write unchanged jobs: statistics, and two rounds, with a site killed in the second."""
    sites = SITES["open"]
    killed = training(sites - 1, rounds=2, fatal_round=1)
    secure(killed, invited=sites, metrics="accuracy", training_patience=1.0)
    made: list[tuple[str, Any]] = [("statistics", statistics_job(declared())), ("killed", killed)]
    for name, recipe in made:
        recipe.export(str(folder / name))
    return [(name, str(folder / name / recipe.name)) for name, recipe in made]


def job(folder: Path, name: str, change: Change, sites: int, *, is_secure: bool) -> str:
    """Write a job, and return its folder."""
    recipe = training(sites)
    if is_secure:
        secure(recipe, metrics="accuracy", training_timeout=30.0)
    to = folder / name.replace(" ", "-")
    recipe.export(str(to))
    app, meta_file = to / "lab" / "app", to / "lab" / "meta.json"
    config = app / "config" / "config_fed_client.json"
    client, meta = json.loads(config.read_text()), json.loads(meta_file.read_text())
    change(app, client, meta)
    config.write_text(json.dumps(client))
    meta_file.write_text(json.dumps(meta | {"name": name}))
    return str(to / "lab")


def planned(kit: str, folder: Path) -> Path:
    """Write NVFlare's example of a project with a kit's sites and port."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kit}.yml"
    gen_default_project_config("dummy_project.yml", str(path))
    project = update_clients([], SITES[kit], update_server_name(load_yaml(str(path))))
    for participant in project["participants"]:
        if participant["type"] == "server":
            participant["fed_learn_port"] = PORTS[kit]
    save_project_config(project, str(path))
    return path


def prepared(kit: str, workspace: Path) -> Path:
    """Provision a project, write its operators' files, and return the folder of its kits."""
    prepare_poc_provision(
        clients=[],
        number_of_clients=SITES[kit],
        workspace=str(workspace),
        docker_image=None,
        use_he=False,
        project_conf_path=str(planned(kit, workspace.parent)),
        examples_dir=None,
    )
    project, _ = setup_service_config(str(workspace))
    kits = Path(get_prod_dir(str(workspace), project.get("name")))
    closed = {
        "closed": ["--closed", "--script", str(APPS / "lab_script.py")],
        "lasting": [*("--closed", "--script", str(APPS / "lab_lasting_script.py"), "--interpreter", sys.executable)],
    }.get(kit, [])
    for number in range(1, SITES[kit] + 1):
        local = kits / f"site-{number}" / "local"
        write_declaration(local / "outcomes.toml")
        write_people(local / "people.csv", people(number, 20 * number))
        said = 'declaration = "outcomes.toml"\ndata = "people.csv"\nversion = "1"\n'
        (local / "secagg_statistics.toml").write_text(said, encoding="utf-8")
        if kit != "open":
            asked = ["node", "nvflare", str(kits / f"site-{number}"), "--policy", "minimum-cohort=3", *closed]
            assert import_module("secagg.cli").main([*asked, "--write"]) == 0
    # The server's operator inspects all that arrives, and allows all classes.
    resources = kits / "server" / "local" / "resources.json"
    found = json.loads(resources.read_text())
    found["class_allow_list"] = ["*"]
    found["components"].append({"id": "spy", "path": "lab_spy.Spy", "args": {}})
    resources.write_text(json.dumps(found))
    return kits


def run(kits: Path, job_folder: str) -> tuple[str, str]:
    """Run a job, and return its outcome and the folder of its results."""
    session = new_secure_session(username=ADMIN, startup_kit_location=str(kits / ADMIN), timeout=60)
    try:
        job_id = session.submit_job(job_folder)
        session.monitor_job(job_id, timeout=120, poll_interval=0.2)
        meta = session.get_job_meta(job_id)
        if not str(status := meta.get("status")).startswith("FINISHED"):
            session.abort_job(job_id)
            time.sleep(3)
            return f"{status} {meta.get('job_deploy_detail')} {job_id}", ""
        return f"{status} {meta.get('job_deploy_detail')} {job_id}", str(session.download_job_result(job_id))
    finally:
        session.close()


def main(kit: str, home: Path) -> None:
    """Run every job of a kit."""
    workspace, reached = home / "poc", Path(os.environ["LAB_REACHED"])
    kits = prepared(kit, workspace)
    sites, folder = SITES[kit], home / "jobs"
    jobs = [(name, job(folder, name, change, sites, is_secure=secured)) for name, secured, change in JOBS[kit]]
    if kit == "open":
        jobs += deployed(folder)
    reached.touch()
    _start_poc(poc_workspace=str(workspace), gpu_ids=[], excluded=[ADMIN], services_list=[])
    for name, written in jobs:
        mark, began = reached.stat().st_size, time.monotonic()
        ended, result = run(kits, written)
        seconds = time.monotonic() - began
        # Messages from sites may still be in transit.
        time.sleep(1)
        data = reached.read_bytes()[mark:]
        updates = [(FIRST + np.float32(number / 16)).tobytes() in data for number in range(1, sites + 1)]
        logs = [path.read_text(errors="replace") for path in kits.glob(f"site-*/{ended.split()[-1]}/log.txt")]
        # A job ends when the first site refuses, so the others may have logged nothing.
        lines = [line for text in logs for line in text.splitlines() if "Traceback" not in line]
        said = [line for line in lines if re.search("ERROR|left the round", line)]
        found = {
            "job": name,
            "ended": ended,
            "result": result,
            "seconds": round(seconds, 1),
            "updates": sum(updates),
            "array": np.full((2, 2), 7.25, np.float32).tobytes() in data,
            "differences": sum(np.full(4, n / 16, np.float32).tobytes() in data for n in range(1, sites + 1)),
            "tracking": MARKER.encode() in data,
            "marks": sorted({m.decode() for m in re.findall(rb"leak-of-([a-z]+)-site", data)}),
            "files": sorted(path.name for path in home.rglob("leak-of-*")),
            "said": [line.partition(" - ")[2] for line in said[:6]],
        }
        print("RESULT", json.dumps(found), flush=True)  # noqa: T201 -- the test reads it


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
