"""A survival curve and a histogram over three hospitals; no patient data leaves a hospital.

Run it as `python three_sites.py`; in a checkout it needs `pip install '.[plot]'`. It makes up three files of visits,
sums their statistics with pairwise masks in this process, and writes `three_sites.json` and `three_sites.png`.
"""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from secagg.analytics import Declaration, read_site, summed

BLUE, GREY = "#3b6ea5", "#b8b8b8"
SIZES = {"north": 180, "harbour": 90, "valley": 45}


def make_up(place: Path, people: int, draw: np.random.Generator) -> None:
    """Write a hospital's file; as in practice, some cells are empty."""
    age = np.clip(draw.normal(66, 12, people), 18, 104)
    stage = draw.choice(3, people, p=[0.4, 0.35, 0.25])
    lived = draw.exponential(70 * np.exp(-0.55 * stage - 0.02 * (age - 66)))
    seen = draw.uniform(12, 80, people)
    with place.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "sex", "stage", "months", "state"])
        for number in range(people):
            state = "dead" if lived[number] <= seen[number] else "alive"
            months = round(min(lived[number], seen[number]), 1)
            known = "" if draw.random() < 0.03 else round(float(age[number]), 1)
            sex = draw.choice(["f", "m"])
            rows.writerow([known, sex, "I" * (stage[number] + 1), months, state])


def draw_survival(axes: Axes, found: dict[str, Any], sites: int) -> None:
    """Draw the steps of a curve, with the interval of two standard errors."""
    rows = found["curve"]
    times = [found["start"], *(row["end"] for row in rows)]
    curve = np.array([1.0, *(row["survival"] for row in rows)])
    error = 1.96 * np.array([0.0, *(row["standard_error"] for row in rows)])
    low, high = np.clip(curve - error, 0, 1), np.clip(curve + error, 0, 1)
    axes.fill_between(times, low, high, step="post", color=BLUE, alpha=0.2, linewidth=0)
    axes.step(times, curve, where="post", color=BLUE)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("months")
    axes.set_ylabel("share alive, with its 95 % interval")
    axes.set_title(f"survival of {rows[0]['at_risk']} people at {sites} sites", fontsize=10)


def draw_histogram(axes: Axes, found: dict[str, Any], sites: int, least: int) -> None:
    """Draw the bins, and mark hidden ones."""
    for (low, high), count in zip(pairwise(found["edges"]), found["counts"], strict=True):
        if count is None:
            axes.axvspan(low, high, color=GREY, alpha=0.3, linewidth=0)
            middle = (low + high) / 2
            axes.text(middle, 2, "hidden", rotation=90, ha="center", va="bottom", fontsize=8)
        else:
            axes.bar(low, count, width=high - low, align="edge", color=BLUE, edgecolor="white")
    axes.set_xlabel("age")
    axes.set_ylabel("people")
    axes.set_title(f"age at {sites} sites; bins of fewer than {least} are hidden", fontsize=10)


def main(folder: Path = Path(), out: Path = Path("three_sites.png")) -> None:
    """Make up the files, sum their statistics, and draw two of them."""
    declaration = Declaration.read(Path(__file__).parent / "outcomes.toml")
    draw, sites = np.random.default_rng(7), {}
    for name, people in SIZES.items():
        make_up(folder / f"{name}.csv", people, draw)
        sites[name] = read_site(declaration, str(folder / f"{name}.csv"), "2026-11").functions
    results = summed(declaration, sites)
    out.with_suffix(".json").write_text(json.dumps(results.record, indent=2) + "\n", encoding="utf-8")
    figure = Figure(figsize=(10.4, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_survival(left, results.statistics["survival"], results.sites)
    draw_histogram(right, results.statistics["age"], results.sites, results.least_count)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110)
    print(f"{out}: {results.sites} sites")
    quartiles = results.statistics["age"]["quantiles"].values()
    print("quartiles of age:", *(f"{age:.1f}" for age in quartiles))


if __name__ == "__main__":
    main()
