"""The example with NVFlare and PEFT: trainers in separate processes, with PyTorch tensors offloaded to disk."""

from __future__ import annotations

import importlib.util
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.nvflare.conftest import written

pytestmark = [
    pytest.mark.nvflare_torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_external_trainers_of_three_sites_train_one_part_of_an_adapter(repository: Path, tmp_path: Path) -> None:
    torch: Any = import_module("torch")
    app = shutil.copytree(repository / "examples" / "adapters" / "nvflare_peft", tmp_path / "app")
    log = written(app, "job.py", home=tmp_path, HF_HUB_OFFLINE="1")
    for number in (1, 2):
        assert f"round {number}, sum: 3 clients, 3 trained" in log
    assert "launching external trainer" in log
    spec = importlib.util.spec_from_file_location("adapted", app / "adapted.py")
    assert spec is not None
    assert spec.loader is not None
    adapted: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapted)
    before = adapted.Adapter().state_dict()
    (stored,) = (app / "build").rglob("FL_global_model.pt")
    model: dict[str, Any] = torch.load(stored, weights_only=False)["model"]
    assert model.keys() == before.keys()
    assert {tensor.dtype for tensor in model.values()} == {torch.float32}
    moved = {name for name, tensor in model.items() if not torch.equal(tensor, before[name])}
    assert moved == {*adapted.make_plan().names(0)}
