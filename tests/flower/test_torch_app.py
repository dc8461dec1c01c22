"""The example with PyTorch and BatchNorm, as ``flwr run`` starts it, where torch stands beside Flower."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flower_torch


def test_the_example_with_torch_trains_through_batch_norm(workplace: Any, repository: Path, tmp_path: Path) -> None:
    app = shutil.copytree(repository / "examples" / "flower_torch", tmp_path / "app")
    local = ("@none/default", "local", "--num-supernodes", "5")
    workplace.run("flwr", "federation", "simulation-config", *local, timeout=900)
    written = workplace.run("flwr", "run", str(app), "local", "--stream", timeout=900)
    for number in (1, 2, 3):
        assert f"round {number}, sum: 5 clients, " in written
    # Ten batches a round at every client: the counter of whole numbers is a mean of equal ones, and stays exact.
    assert re.findall(r"'batches': (\d+)", written)[:4] == ["0", "10", "20", "30"]
    assert float(re.findall(r"'accuracy': ([0-9.]+)", written)[3]) > 0.9
    assert "ERROR" not in written
