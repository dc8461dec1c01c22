"""Whole apps: the example as ``flwr run`` starts it, and an app of the legacy API."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.errors import InvalidParameters

pytestmark = pytest.mark.flower

APPS = Path(__file__).resolve().parent / "apps"


@pytest.fixture(scope="module", autouse=True)
def local(workplace: Any) -> None:
    """Let the local SuperLink of ``flwr run`` simulate as many SuperNodes as the example needs."""
    workplace.run(
        "flwr", "federation", "simulation-config", "@none/default", "local", "--num-supernodes", "5", timeout=900
    )


def test_the_example_runs_as_its_readme_says(workplace: Any, repository: Path, tmp_path: Path) -> None:
    example = Path("examples") / "flower_quickstart"
    text = (repository / example / "README.md").read_text(encoding="utf-8")
    commands = text.partition("```\n")[2].partition("```")[0]
    assert commands.startswith("pip install '.[flower]' 'flwr[simulation]>=1.41'\ncd examples/flower_quickstart\n")
    shutil.copytree(repository / example, tmp_path / example)
    # This environment already has what the first line installs; the distributions' own check installs them elsewhere.
    script = commands.partition("\n")[2]
    written = workplace.run("bash", "-eu", "-c", script, timeout=900, cwd=tmp_path)
    (said,) = re.findall(r"round 1(, sum: .*)", text)
    assert re.findall(r"round \d, sum: .*", written)[:3] == [f"round {number}{said}" for number in (1, 2, 3)]
    accuracies = [float(found) for found in re.findall(r"'accuracy': ([0-9.]+)", written)]
    assert min(accuracies[-1:] + accuracies[2:3]) > 0.9
    assert "ERROR" not in written


def test_a_wrong_key_ends_the_example_with_a_message_that_names_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flwr = pytest.importorskip("flwr.app")
    monkeypatch.syspath_prepend(  # pyright: ignore[reportUnknownMemberType]
        repository / "examples" / "flower_quickstart"
    )
    server = importlib.import_module("quickstart.server_app")
    context = flwr.Context(1, 0, {}, flwr.RecordDict(), {"secagg-topology": "ring"})
    with pytest.raises(InvalidParameters, match="secagg-topology must be one of full, sparse; got 'ring'"):
        server.app(SimpleNamespace(), context)


def test_a_legacy_app_gives_the_mean_that_plain_averaging_gives(workplace: Any, tmp_path: Path, lab: Any) -> None:
    workplace.run(sys.executable, str(APPS / "legacy_server.py"), str(tmp_path / "outcome.json"), timeout=900)
    outcome = json.loads((tmp_path / "outcome.json").read_text(encoding="utf-8"))
    secure, moved = outcome["secure"], lab.expected(range(6), 2, {}, {})["layer"] - lab.initial_model()["layer"]
    assert np.abs(moved - np.array(secure["layer"])).max() < 2**-14
    assert secure["steps"] == [4, 5]
    assert secure["counts"] == [sum(map(lab.examples, range(6)))]
    assert set(secure["metrics"][0]) == {"loss", "secagg-trained", "secagg-failed"}
    assert outcome["median"].startswith("FedMedian cannot work under secure aggregation")
