"""The example with PyTorch and BatchNorm in NVFlare's simulator, in an environment with torch."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.nvflare.conftest import written

pytestmark = pytest.mark.nvflare_torch
ROUNDS = 4
CHANGES = {
    "as it is": [],
    "tensors on the wire": ["server_expected_format=ExchangeFormat.PYTORCH"],
    "differences": ["params_transfer_type=TransferType.DIFF"],
}


@pytest.mark.parametrize("changes", CHANGES)
def test_the_example_with_torch_trains_through_batch_norm(repository: Path, tmp_path: Path, changes: str) -> None:
    torch: Any = import_module("torch")
    app = shutil.copytree(repository / "examples" / "nvflare_torch", tmp_path / "app")
    given = "".join(f"{change}, " for change in CHANGES[changes])
    job = (app / "job.py").read_text(encoding="utf-8").replace('name="torch", ', f'name="torch", {given}')
    imported = "from nvflare.client.config import ExchangeFormat, TransferType\n"
    (app / "job.py").write_text(job.replace("from nvflare.recipe", f"{imported}from nvflare.recipe"), encoding="utf-8")
    log = written(app, "job.py", home=tmp_path)
    (said,) = re.findall(r"round 1(, sum: .*)", (app / "README.md").read_text(encoding="utf-8"))
    for number in range(1, ROUNDS + 1):
        assert f"round {number}{said}" in log
    assert "full-weight" not in log
    (stored,) = (app / "build").rglob("FL_global_model.pt")
    model = torch.load(stored, weights_only=False)["model"]
    # Ten batches a round at every site: the integer counter is a mean of equal values, and stays an integer.
    counter = model["layers.1.num_batches_tracked"]
    assert (counter.dtype, int(counter)) == (torch.int64, 10 * ROUNDS)
    assert {name for name, tensor in model.items() if tensor.dtype != torch.float32} == {"layers.1.num_batches_tracked"}
    # Sites report the received model's accuracy, and NVFlare keeps the best model by its mean.
    best = [float(found) for found in re.findall(r"new best validation metric at round \d+: ([0-9.]+)", log)]
    assert best[-1] > 0.9
