"""NVFlare's example of Hugging Face: transformers' Trainer and ``flare.patch`` stay unchanged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.nvflare.conftest import written

pytestmark = [
    pytest.mark.nvflare_torch,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
APPS = Path(__file__).resolve().parent / "torch_apps"
ROUNDS, VALUES = 2, 22_016
Run = tuple[dict[str, Any], str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return a function that runs a variant of the job, and returns its final adapter and the logs."""
    torch: Any = import_module("torch")

    def of(how: str) -> Run:
        folder = tmp_path_factory.mktemp(how)
        app, home = shutil.copytree(APPS, folder / "app"), folder / "home"
        home.mkdir()
        log = written(app, "lab_hugging.py", how, str(home), home=home, HF_HUB_OFFLINE="1")
        (stored,) = Path(json.loads((home / "result.json").read_text())).rglob("FL_global_model.pt")
        model: dict[str, Any] = torch.load(stored, weights_only=False)["model"]
        return {name: tensor.double() for name, tensor in model.items()}, log

    return of


def test_a_patched_trainer_ends_near_its_plain_twin_and_sends_fewer_bytes_than_bfloat16(
    run: Callable[[str], Run],
) -> None:
    plain, _ = run("plain")
    secured, log = run("fedit")
    for number in range(1, ROUNDS + 1):
        assert f"round {number}, sum: 3 clients, " in log
    assert plain.keys() == secured.keys()
    # B begins at zero, so its values are their changes.
    names = [name for name in plain if "lora_B" in name]
    change = sum(float(plain[name].square().sum()) for name in names)
    away = sum(float((plain[name] - secured[name]).square().sum()) for name in names)
    up = [float(found) for found in re.findall(r"masked input: .*?received 3 \(([0-9.]+) kB\)", log)]
    values = sum(tensor.numel() for tensor in plain.values())
    # Codes of 8 bits, in 10 for three clients, and the rest of a message.
    assert 1000 * up[1] / 3 < 10 / 8 * values + 5000 < 2 * values
    assert away < 0.15**2 * change
    assert "its change is lost" not in log


def test_a_method_that_trains_one_part_needs_its_plan_in_the_script_and_the_log_says_so(
    run: Callable[[str], Run],
) -> None:
    _, log = run("ffa")
    assert re.search(r"training changed \S*lora_A\S*, which this round does not sum, so its change is lost", log)
