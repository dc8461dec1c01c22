"""The example with PyTorch and BatchNorm under ``flwr run``, in an environment with torch and Flower."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flower_torch


def test_the_example_with_torch_trains_through_batch_norm(workplace: Any, repository: Path, tmp_path: Path) -> None:
    example = Path("examples") / "flower_torch"
    text = (repository / example / "README.md").read_text(encoding="utf-8")
    commands = text.partition("```\n")[2].partition("```")[0]
    assert commands.startswith("pip install '.[flower]' 'flwr[simulation]>=1.41' torch\ncd examples/flower_torch\n")
    shutil.copytree(repository / example, tmp_path / example)
    # This environment already has what the first line installs; the distributions' own check installs them elsewhere.
    written = workplace.run("bash", "-eu", "-c", commands.partition("\n")[2], timeout=900, cwd=tmp_path)
    (said,) = re.findall(r"round 1(, sum: .*)", text)
    assert re.findall(r"round \d, sum: .*", written) == [f"round {number}{said}" for number in (1, 2, 3)]
    # Ten batches a round at every client: the integer counter is a mean of equal values, and stays exact.
    assert re.findall(r"'batches': (\d+)", written)[:4] == ["0", "10", "20", "30"]
    assert float(re.findall(r"'accuracy': ([0-9.]+)", written)[3]) > 0.9
    assert "ERROR" not in written
    assert "full-weight" not in written
    assert "UserWarning" not in written
