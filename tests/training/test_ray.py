"""A sweep on a local Ray: what comes back is what would have been trained here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.training.runs.ray_cluster import cluster
from secagg.training.runs.rounds import Pieces
from secagg.training.runs.sweep import read_grid, sweep
from secagg.training.settings.configuration import Configuration

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
GRID = """
preset = "fashion-none"
set = ["rounds=1", "clients_per_round=3", "data.clients=400"]
[[cell]]
name = "pruned"
set = ["compression.scheme=pruning"]
[[cell]]
name = "too few clients"
set = ["clients_per_round=401"]
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start Ray on this machine once, with one process beside this one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("OMP_NUM_THREADS", "1")
        with cluster(processes=1) as connected:
            yield connected


@pytest.mark.usefixtures("ray")
def test_a_sweep_on_ray_leaves_what_one_in_this_process_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    assert main(["sweep", str(grid), "--out", str(tmp_path / "there"), "--ray"]) == 1
    assert "failed: a round takes 401 clients" in capsys.readouterr().out
    here = sweep(read_grid(grid), tmp_path / "here")
    there = [json.loads(line) for line in (tmp_path / "there" / "results.jsonl").read_text().splitlines()]
    timed = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in timed} for row in there] == [
        {k: v for k, v in row.items() if k not in timed} for row in here
    ]
    models = [np.load(tmp_path / place / "pruned-seed0" / "model.npz") for place in ("here", "there")]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    # What is finished is not trained again.
    lines = list[str]()
    sweep(read_grid(grid), tmp_path / "there", ray="", told=lines.append)
    assert lines[0] == "2 runs, 1 of them finished"


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidParameters, match=r"secagg\[ray\]"), cluster():
        pass
