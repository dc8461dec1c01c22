"""NVFlare's PyTorch recipes in its simulator: secure ones end with the same model as plain ones."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.nvflare.conftest import written

pytestmark = pytest.mark.nvflare_torch
APPS = Path(__file__).resolve().parent / "torch_apps"
ROUNDS = 3
NEAR = 2.0**-20 * 64
"""Steps of three rounds, through training that amplifies them."""


def run(folder: Path, kind: str, how: str) -> tuple[dict[str, Any], str]:
    """Return a recipe's final model, and the logs."""
    torch: Any = import_module("torch")
    app, home = folder / how / "app", folder / how / "home"
    shutil.copytree(APPS, app)
    shutil.copy(APPS.parents[2] / "examples" / "nvflare_torch" / "network.py", app)
    home.mkdir()
    log = written(app, "lab_recipes.py", kind, how, str(home), home=home)
    result = Path(json.loads((home / "result.json").read_text()))
    (stored,) = result.rglob("FL_global_model.pt")
    model: dict[str, Any] = torch.load(stored, weights_only=False)["model"]
    return model, log


@pytest.mark.parametrize("kind", ["fedopt", "scaffold", "evaluated"])
def test_a_recipe_ends_with_the_model_of_its_plain_twin(tmp_path: Path, kind: str) -> None:
    plain, _ = run(tmp_path, kind, "plain")
    secured, log = run(tmp_path, kind, "secure")
    for number in range(1, ROUNDS + 1):
        assert f"round {number}, sum: 3 clients, " in log
    for name, values in plain.items():
        assert float((secured[name].double() - values.double()).abs().max()) < NEAR, name
    # NVFlare keeps the best model by the requested mean of equal weights.
    best = re.findall(r"new best validation metric at round \d+: ([0-9.]+)", log)
    assert sorted(best) == best
    assert best


@pytest.mark.parametrize("kind", ["told", "told-tensors"])
def test_sites_with_a_compressed_downlink_train_one_model_to_the_bit(tmp_path: Path, kind: str) -> None:
    model, log = run(tmp_path, kind, "secure")
    for number in range(1, ROUNDS + 1):
        assert f"round {number}, sum: 3 clients, " in log
    sent = re.findall("sent model ([0-9a-f]{64})", log)
    assert len(sent) == 3 * ROUNDS
    assert sorted(map(sent.count, set(sent))) == [3] * ROUNDS
    whole = 3 * sum(values.element_size() * values.numel() for values in model.values()) / 1000
    down = [float(found) for found in re.findall(r"sealed upload: sent 3 \((.*?) kB\)", log)]
    assert len(down) == ROUNDS
    assert max(down[1:]) < whole / 3
    # Steps of the running statistics, and a counter that stays an integer.
    assert int(model["layers.1.num_batches_tracked"]) == 10 * ROUNDS
    best = [float(found) for found in re.findall(r"new best validation metric at round \d+: ([0-9.]+)", log)]
    assert best[-1] > 0.5
