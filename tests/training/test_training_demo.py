"""The demo: it shows its runs' progress, and fails if README has other figures."""

from __future__ import annotations

import copy
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def demo(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(repository / "benchmarks"), *sys.path])
    return importlib.import_module("training_demo")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_progress_shows_rounds_and_the_accuracy_of_each_run(
    demo: Any, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(demo, "perf_counter", iter([49.0, 50.0, 58.0]).__next__)
    shown = demo.Shown(dict.fromkeys(demo.RUNS, 10))
    shown.add("fashion-none", 1, None, 79_000.0)
    shown.add("fashion-peak", 1, None, 1300.0)
    shown.add("fashion-none", 5, 0.5, 79_000.0)
    shown.add("fashion-peak", 6, 0.625, 1300.0)
    shown.close()
    told = stream.getvalue()
    if stream.isatty():
        assert "[############............] 10 s left; accuracy: uncompressed 50.0 %, peak code 62.5 %" in told
        assert "\n" not in told.rstrip("\n")
    else:
        assert told.splitlines() == [
            "uncompressed, pairwise masks: round 5 of 10, accuracy 50.0 %, 79.0 kB sent",
            "peak code, blocks of 128, enclave: round 6 of 10, accuracy 62.5 %, 1.3 kB sent",
        ]


def test_other_bytes_and_much_other_accuracy_than_those_of_readme_are_told(demo: Any, repository: Path) -> None:
    committed = json.loads((repository / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))
    found = copy.deepcopy(committed)
    was = committed["runs"][1]["accuracy"]
    found["runs"][1]["accuracy"] -= 1.5
    assert demo.differences(found, committed) == [], "floats round differently on other processors"
    found["runs"][1]["accuracy"] -= 1.0
    found["runs"][0]["bytes"] += 1000
    assert demo.differences(found, committed) == [
        "uncompressed, pairwise masks: README has 79.1 kB, and this run 80.1 kB",
        f"peak code, blocks of 128, enclave: README has {was:.1f} %, and this run {was - 2.5:.1f} %",
    ]
