"""The pictures of the studies: made from JSON alone, one colour for one scheme, labels that do not collide."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
NAMES = (
    "none",
    "none, falling",
    "peak 128",
    "peak 128, falling",
    "peak 234, falling",
    "pq 30x",
    "count sketch, FetchSGD",
)


@pytest.fixture
def pictures(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the command, which imports what stands beside it."""
    monkeypatch.setattr(sys, "path", [str(repository / "benchmarks"), *sys.path])
    return importlib.import_module("study_pictures")


def cell(number: int, name: str) -> dict[str, Any]:
    """Return one of cells that are as near to each other as those of a study."""
    return {
        "name": name,
        "payload bytes": 100 + number,
        "wire bytes": 400.0 + 10 * number,
        "mean": 86 + 0.05 * number,
        **({} if name.startswith("none") else {"loss": 0.3 + 0.02 * number, "loss, interval": [0.1, 0.7]}),
    }


CELLS = [cell(number, name) for number, name in enumerate(NAMES)]


def point(pictures: Any, name: str, x: float, y: float) -> Any:
    return pictures.Point(name, x, y, (y, y))


def test_labels_touch_neither_each_other_nor_the_edge(pictures: Any) -> None:
    figure, axes = pictures.new_figure(8.0, 5.0)
    points = [point(pictures, f"peak {number}, falling", 1 + 0.01 * number, 0.01 * number) for number in range(6)]
    axes.plot([0, 2], [-1, 1])
    labels = pictures.label_apart(figure, axes, points)
    boxes = [pictures.text_box(label) for label in labels]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def test_committed_figures_of_noise_and_harm_are_all_drawn(pictures: Any, repository: Path) -> None:
    results = repository / "benchmarks" / "results"
    points = json.loads((results / "noise_law.json").read_text())["points"]
    assert all(abs(point["measured"] / point["law"] - 1) < 0.05 for point in points)
    (axes,) = pictures.noise_law(points).axes
    assert sum(len(line.get_xdata()) for line in axes.lines) == 2 * len(points)
    cells = json.loads((results / "transfer.json").read_text())["gpu"]["cells"]
    told = sum("harm at half" in cell for cell in cells)
    for axes in pictures.harm_law(cells).axes:
        assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() != "None") == told


def test_one_command_draws_what_is_there_and_says_what_is_not(
    pictures: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pictures.main([str(tmp_path)]) == 1
    (tmp_path / "iso_accuracy.json").write_text(json.dumps({"cells": CELLS}))
    assert pictures.main([str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.glob("*.png")} == {"iso_frontier.png"}
    assert "training_attacks.json is not in" in capsys.readouterr().err


@pytest.mark.usefixtures("pictures")
def test_the_table_of_attacks_pairs_seeds_and_is_drawn(tmp_path: Path) -> None:
    attacks = importlib.import_module("training_attacks")
    found = [
        {"name": f"peak, mean length, {kind}, 20", "seed": seed, "final accuracy": accuracy}
        for kind, seed, accuracy in (("none", 0, 0.8), ("none", 1, 0.9), ("sign-flip", 0, 0.7), ("sign-flip", 2, 0.1))
    ]
    rows = list(attacks.table(found, ["peak, mean length"], [20, 100]))
    assert [(row["attack"], row["seeds"], row["cost"]) for row in rows] == [("none", 2, 0.0), ("sign-flip", 1, 10.0)]
    attacks.draw({"rows": rows, "share": 0.2}, tmp_path / "attacks.png")
    assert (tmp_path / "attacks.png").stat().st_size > 1000


@pytest.mark.usefixtures("pictures")
def test_every_run_of_the_attacks_is_a_configuration() -> None:
    attacks = importlib.import_module("training_attacks")
    runs = list(attacks.runs(list(attacks.SCHEMES), attacks.COHORTS, 1, 40))
    assert len({(run.name, run.seed) for run in runs}) == len(runs) == 2 * 6 * len(attacks.SCHEMES)
