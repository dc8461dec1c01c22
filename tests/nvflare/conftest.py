"""NVFlare for tests: sites in memory behind NVFlare's own filters and encoding, and jobs in separate processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 600
HAS_NVFLARE = importlib.util.find_spec("nvflare") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("nvflare") and not HAS_NVFLARE:
            item.add_marker(pytest.mark.skip(reason="needs pip install 'secagg[nvflare]'"))


def written(folder: Path, *command: str, home: Path, **more: str) -> str:
    """Run a Python script in a folder to its end, and return its output."""
    done = subprocess.run(  # noqa: S603 -- our own job
        [sys.executable, *command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the ledgers of clients with keys."""
    monkeypatch.setenv("SECAGG_LEDGER_DIRECTORY", str(tmp_path / "ledgers"))
    return tmp_path
