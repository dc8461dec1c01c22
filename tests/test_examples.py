"""The examples run as they stand, and a notebook shows what comes out of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 600


@pytest.mark.parametrize("script", ["analytics.py", "lora_adapter.py", "statistics/three_sites.py"])
def test_a_script_runs(repository: Path, tmp_path: Path, script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-W", "error", str(repository / "examples" / script)]
    child = subprocess.run(  # noqa: S603 -- a script of this repository
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout


def test_a_notebook_shows_what_it_prints(repository: Path) -> None:
    notebook = json.loads((repository / "examples" / "first_sum.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    cells: list[dict[str, Any]] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        printed = io.StringIO()
        program = compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)  # noqa: S102 -- the notebook of this repository is what is tested
        shown = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed.getvalue() == shown, f"run cell {number} again, and save the notebook with its outputs"
        assert cell["execution_count"] == number
    assert len(cells) > 1


def test_every_example_stands_in_the_readme(repository: Path) -> None:
    folder = repository / "examples"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    missing = [
        entry.name for entry in folder.iterdir() if entry.name != "README.md" and f"]({entry.name}" not in listed
    ]
    assert not missing, f"describe these in examples/README.md: {missing}"
