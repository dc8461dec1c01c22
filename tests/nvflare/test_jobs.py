"""The example in NVFlare's simulator, and a runner for the lab's scripts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.nvflare.conftest import written

pytest.importorskip("nvflare")

pytestmark = pytest.mark.nvflare
APPS = Path(__file__).resolve().parent / "apps"
EXAMPLE = APPS.parents[2] / "examples" / "nvflare_quickstart"
STEP = 2.0**-16


def lab(folder: Path, script: str, kind: str) -> str:
    """Run a script of the lab, and return its output."""
    apps, home = folder / "apps", folder / "home"
    shutil.copytree(APPS, apps)
    shutil.copytree(EXAMPLE, apps, dirs_exist_ok=True)
    home.mkdir()
    own = {
        # NVFlare's own processes find the operator's spy and scripts there.
        "PYTHONPATH": os.pathsep.join([str(apps), str(APPS.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "NVFLARE_POC_WORKSPACE": str(home),
        "LAB_REACHED": str(folder / "reached"),
    }
    try:
        return written(apps, script, kind, str(home), home=home, **own)
    finally:
        end(folder)


def end(folder: Path) -> None:
    """End a job's remaining processes: NVFlare restarts a killed site."""
    began = time.monotonic()
    while (left := [pid for pid in pids() if belongs(pid, folder)]) and time.monotonic() < began + 60:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    assert not left, f"still there: {left}"


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def belongs(pid: int, folder: Path) -> bool:
    try:
        started = f"LAB_REACHED={folder / 'reached'}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return started and not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


def test_the_example_gives_the_mean_of_fedavg_and_no_update_reaches_its_server(tmp_path: Path) -> None:
    log = lab(tmp_path, "lab_job.py", "simulator")
    (said,) = re.findall("round 1(, sum: .*)", (EXAMPLE / "README.md").read_text(encoding="utf-8"))
    assert [f"round {number}{said}" in log for number in (1, 2)] == [True, True]
    found = Path(json.loads((tmp_path / "home" / "result.json").read_text()))
    example = runpy.run_path(str(EXAMPLE / "client.py"), run_name="example")
    reached, model = (tmp_path / "reached").read_bytes(), np.zeros(3, np.float32)
    assert b"site-3" in reached
    sites = [f"site-{number}" for number in range(1, 6)]
    for _ in range(2):
        trained = [example["trained"](model, site) for site in sites]
        for weights, error, _ in trained:
            assert weights.tobytes() not in reached
            assert (weights - model).tobytes() not in reached
            assert repr(error).encode() not in reached
        model = np.average([weights for weights, _, _ in trained], axis=0, weights=[n for _, _, n in trained])
        model = model.astype(np.float32)
    assert np.abs(np.load(found / "server" / "simulate_job" / "models" / "server.npy") - model).max() < 4 * STEP
