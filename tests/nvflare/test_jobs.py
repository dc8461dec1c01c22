"""Real jobs: NVFlare's simulator, and a deployment of processes in which a site is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

pytestmark = pytest.mark.nvflare
APPS = Path(__file__).resolve().parent / "apps"
MARKER = b"a-marker-in-the-clear"
FIRST = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
STEP = 2.0**-16
SECONDS = 400


def run(folder: Path, kind: str, rounds: int, fatal_round: int) -> tuple[Path, str]:
    """Run a job, and return where its results are, and all that it wrote."""
    apps, home = folder / "apps", folder / "home"
    shutil.copytree(APPS, apps)
    home.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "NVFLARE_POC_WORKSPACE": str(home),
        "LAB_REACHED": str(folder / "reached"),
    }
    done = subprocess.run(  # noqa: S603 -- our own job
        [sys.executable, "lab_job.py", kind, str(home), str(rounds), str(fatal_round)],
        cwd=apps,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return Path(json.loads((home / "result.json").read_text())["result"]), done.stdout


def mean_step(sites: range) -> float:
    return sum(number * number for number in sites) / sum(sites) / 16


def require_no_update(reached: bytes, model: np.ndarray, sites: range) -> None:
    """Look for what each site trained in everything that reached the server."""
    # What a script logs as analytics is in the clear, and is found: the search looks at the right bytes.
    assert MARKER in reached
    for number in sites:
        trained = (model + np.float32(number / 16)).astype(np.float32)
        assert trained.tobytes() not in reached
        assert np.full(4, number / 16, np.float32).tobytes() not in reached


def test_the_simulator_gives_the_mean_of_fedavg_and_no_update_reaches_its_server(tmp_path: Path) -> None:
    found, log = run(tmp_path, "simulator", rounds=2, fatal_round=9)
    model = np.load(found / "server" / "simulate_job" / "models" / "server.npy")
    step, sites = mean_step(range(1, 6)), range(1, 6)
    assert np.abs(model - FIRST - 2 * step).max() < 2 * STEP
    assert "round 2, sum: 5 clients of total weight 15" in log
    assert "new best validation metric at round 1: 0.36" in log
    require_no_update((tmp_path / "reached").read_bytes(), FIRST, sites)
