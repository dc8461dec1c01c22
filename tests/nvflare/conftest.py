"""NVFlare for tests: sites in memory behind NVFlare's own filters and encoding, and jobs in processes of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HAS_NVFLARE = importlib.util.find_spec("nvflare") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("nvflare") and not HAS_NVFLARE:
            item.add_marker(pytest.mark.skip(reason="needs pip install 'secagg[nvflare]'"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which clients with keys remember what they uploaded."""
    monkeypatch.setenv("SECAGG_LEDGER_DIRECTORY", str(tmp_path / "ledgers"))
    return tmp_path
