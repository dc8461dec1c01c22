"""The pictures of the studies: made only from JSON, and self-explanatory."""

from __future__ import annotations

import importlib
import json
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.text import Annotation
from PIL import Image

from secagg.training.reports import text_box

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
    """Return the command, which imports its neighbouring modules."""
    monkeypatch.setattr(sys, "path", [str(repository / "benchmarks"), *sys.path])
    return importlib.import_module("study_pictures")


def cell(number: int, name: str) -> dict[str, Any]:
    """Return one of several cells that are as close together as a study's."""
    return {
        "name": name,
        "payload bytes": 100 + number,
        "wire bytes": 400.0 + 10 * number,
        "mean": 86 + 0.05 * number,
        **({} if name.startswith("none") else {"loss": 0.3 + 0.02 * number, "loss, interval": [0.1, 0.7]}),
    }


CELLS = [cell(number, name) for number, name in enumerate(NAMES)]


def boxes_of(figure: Any) -> list[Any]:
    """Return the positions of the labels of a figure's points."""
    figure.draw_without_rendering()
    return [text_box(text) for axes in figure.axes for text in axes.texts if isinstance(text, Annotation)]


def test_labels_touch_neither_each_other_nor_the_edge(pictures: Any) -> None:
    figure, axes = pictures.new_figure(8.0, 5.0)
    points = [(f"peak {number}, falling", x := 1 + 0.01 * number, x / 9, x / 9, x / 9) for number in range(6)]
    axes.plot([0, 2], [-1, 1])
    boxes = [text_box(label) for label in pictures.label_apart(figure, axes, points)]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def test_a_label_covers_no_bar(pictures: Any) -> None:
    figure, axes = pictures.new_figure(8.0, 5.0)
    axes.plot([0, 1, 2], [0, 0, 0])
    axes.set_ylim(-1, 1)
    beside, tall = ("a point with a name", 1.0, 0.0, 0.0, 0.0), ("", 1.1, 0.9, -0.9, 0.9)
    boxes = [text_box(label) for label in pictures.label_apart(figure, axes, [beside, tall])]
    bar = axes.transData.transform([(1.1, -0.9), (1.1, 0.9)])
    assert not boxes[0].x0 < bar[0][0] < boxes[0].x1


@pytest.mark.parametrize(
    "name",
    [
        *("demo", "iso_frontier", "noise_law", "harm_law", "training_attacks", "noise_accuracy", "scale"),
        *("training_study", "training_overflow", "training_refresh"),
    ],
)
def test_a_committed_picture_is_of_committed_figures_and_explains_itself(
    pictures: Any, repository: Path, tmp_path: Path, name: str
) -> None:
    results = repository / "benchmarks" / "results"
    source, draw = pictures.DRAWN[name]
    figure = draw(json.loads((results / f"{source}.json").read_text(encoding="utf-8")))
    title, _, of = figure.get_suptitle().partition("\n")
    assert title
    assert re.search(r"clients?\b", of) or "seeds" in of, "of what data, clients, rounds and seeds is it?"
    boxes = boxes_of(figure)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    for box in (*boxes, figure._suptitle.get_window_extent()):  # noqa: SLF001 -- matplotlib has no other way
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
    for axes in figure.axes:
        low, high = axes.dataLim.intervalx
        assert sum(low * 0.99 <= tick <= high * 1.01 for tick in axes.get_xticks()) >= 2, "no ticks where points are"
        shown = " ".join(text.get_text() for text in axes.get_xticklabels() + axes.texts)
        assert not re.search(r"\b(pq|sq) |b=\d|\^", shown), "plain names and numbers"
    figure.savefig(tmp_path / "again.png", dpi=150)
    again, committed = Image.open(tmp_path / "again.png"), Image.open(results / f"{name}.png")
    assert again.size == committed.size, "draw it again: python benchmarks/study_pictures.py benchmarks/results"
    apart = np.abs(np.asarray(again, dtype=int) - np.asarray(committed, dtype=int)) > 16
    assert apart.mean() < 1e-5, "draw it again"


def test_every_committed_picture_is_drawn_by_the_command(pictures: Any, repository: Path) -> None:
    committed = {file.stem for file in (repository / "benchmarks" / "results").glob("*.png")}
    assert committed == set(pictures.DRAWN)


def test_committed_figures_of_noise_and_harm_are_all_drawn(pictures: Any, repository: Path) -> None:
    results = repository / "benchmarks" / "results"
    found = json.loads((results / "noise_law.json").read_text())
    points = found["points"]
    assert all(abs(point["measured"] / point["law"] - 1) < 0.05 for point in points)
    (axes,) = pictures.noise_law(found).axes
    assert sum(len(line.get_xdata()) for line in axes.lines) == 2 * len(points)
    cells = json.loads((results / "transfer.json").read_text())["gpu"]["cells"]
    told = sum("harm at half" in cell for cell in cells)
    for axes in pictures.harm_law(cells).axes:
        assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() != "None") == told


def test_one_command_draws_what_is_there_and_says_what_is_not(
    pictures: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pictures.main([str(tmp_path)]) == 1
    (tmp_path / "iso_accuracy.json").write_text(json.dumps({"rounds": 300, "cells": CELLS}))
    assert pictures.main([str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.glob("*.png")} == {"iso_frontier.png"}
    assert "training_attacks.json is not in" in capsys.readouterr().err


@pytest.mark.usefixtures("pictures")
def test_the_table_of_attacks_pairs_seeds_and_is_drawn() -> None:
    attacks = importlib.import_module("training_attacks")
    found = [
        {"name": f"peak, mean length, {kind}, 20", "seed": seed, "final accuracy": accuracy}
        for kind, seed, accuracy in (("none", 0, 0.8), ("none", 1, 0.9), ("sign-flip", 0, 0.7), ("sign-flip", 2, 0.1))
    ]
    rows = list(attacks.table(found, ["peak, mean length"], [20, 100]))
    assert [(row["attack"], row["seeds"], row["cost"]) for row in rows] == [("none", 2, 0.0), ("sign-flip", 1, 10.0)]
    figure = attacks.draw({"rows": rows, "share": 0.2, "rounds": 40})
    assert [len(axes.patches) for axes in figure.axes] == [2]


@pytest.mark.usefixtures("pictures")
def test_every_run_of_the_attacks_is_a_configuration() -> None:
    attacks = importlib.import_module("training_attacks")
    runs = list(attacks.runs(list(attacks.SCHEMES), attacks.COHORTS, 1, 40))
    assert len({(run.name, run.seed) for run in runs}) == len(runs) == 2 * 6 * len(attacks.SCHEMES)
