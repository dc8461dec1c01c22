"""Epsilon against accuracy on the bundled images, for cohorts of 20, 200 and 1,000 simulated clients.

Every client is in every round, and clients add the noise: clipped, rotated and rounded updates, in sums in the clear.
``none`` is the same without noise. The table has the energy of a mean's noise (nu) and the smallest cohort where it is
at most 0.6; the figure draws that line. Runs are kept in the folder, so a stopped study can be resumed.

    python benchmarks/noise_accuracy.py build/noise --json benchmarks/results/noise_accuracy.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.client_noise import MOST_NOISE
from secagg.privacy.kinds import NoiseKind
from secagg.training.configuration import changed, versions_here
from secagg.training.driver import Cell, Grid, sweep
from secagg.training.presets import preset
from secagg.training.reports import label_apart, new_figure, plain_ticks

DELTA: Final = 1e-5
EPSILONS: Final = (8.0, 2.0, 32.0)
VALUES: Final = 19_456
"""Values of the bundled net, padded."""


@cache
def multiplier_for(target: float, releases: int) -> float:
    """Return the minimum multiplier, to 1 in 1,000, whose releases cost at most an epsilon."""
    low, high = 0.01, 1000.0
    while high > low * 1.001:
        middle = sqrt(low * high)
        part = ReleasePart(l2_squared=10**12, l1=None, variance=Fraction(f"{middle:.4f}") ** 2 * 10**12)
        spent = epsilon(NoiseKind.DISCRETE_GAUSSIAN, [part], releases, DELTA)
        low, high = (low, middle) if spent <= target else (middle, high)
    return ceil(high * 1000) / 1000


def cells(cohorts: Sequence[int], rounds: int, clip: float) -> list[Cell]:
    """Return a cell for each cohort and epsilon, and one without noise."""
    made = list[Cell]()
    for cohort in cohorts:
        always = (
            f"data.clients={cohort}",
            f"clients_per_round={cohort}",
            f"local.clip={clip}",
            "compression.scheme=rotated",
            "compression.modulus_bits=24",
            f"privacy.delta={DELTA}",
            "privacy.zero_out=true",
        )
        made.append(Cell(f"{cohort} none", always))
        for target in EPSILONS:
            noise = f"privacy.noise_multiplier={multiplier_for(target, rounds)}"
            made.append(Cell(f"{cohort} {target:g}", (*always, noise)))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing cells; print, draw and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="the folder of the runs")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--finished", action="store_true", help="only collect finished runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    base = changed(preset("fashion-none"), [f"rounds={options.rounds}", f"evaluation.every={options.rounds}"])
    chosen = cells(options.cohorts, options.rounds, options.clip)
    results = list[dict[str, Any]]()
    for seed in range(options.seeds):
        due = [cell for cell in chosen if not options.finished or _is_finished(options.out, cell.name, seed)]
        grid = Grid(replace(base, name="noise"), tuple(due), (seed,))
        results += sweep(
            grid, options.out, jobs=options.jobs, told=lambda line: print(line, file=sys.stderr, flush=True)
        )
    rows = _rows(results, options.rounds)
    print("cohort  epsilon      z       nu  clients for 0.6  accuracy  points lost")
    for row in rows:
        print(
            f"{row['cohort']:>6,}  {row['epsilon'] or 'none':>7}  {row['multiplier']:>5.2f}  {row['nu']:>7.3g}  "
            f"{row['least cohort']:>15,}  {row['accuracy']:>8.2%}  {row['points lost']:>11.1f}"
        )
    summary = {"versions": versions_here(), "rounds": options.rounds, "rows": rows}
    draw(summary).savefig((options.json or options.out / "noise_accuracy").with_suffix(".png"), dpi=150)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


def _is_finished(folder: Path, name: str, seed: int) -> bool:
    return (folder / f"{name.replace(' ', '-')}-seed{seed}" / "summary.json").exists()


def _rows(results: Sequence[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    by_name = dict[str, list[float]]()
    for result in results:
        by_name.setdefault(result["name"], []).append(result["final accuracy"])
    plain = {int(name.split()[0]): fmean(found) for name, found in by_name.items() if name.endswith("none")}
    rows = list[dict[str, Any]]()
    for name, found in by_name.items():
        cohort, target = int(name.split()[0]), name.split()[1]
        if cohort not in plain:
            continue
        multiplier = 0.0 if target == "none" else multiplier_for(float(target), rounds)
        rows.append(
            {
                "cohort": cohort,
                "epsilon": None if target == "none" else float(target),
                "multiplier": multiplier,
                "nu": multiplier**2 * VALUES / cohort**2,
                "least cohort": ceil(multiplier * sqrt(VALUES / MOST_NOISE)),
                "seeds": len(found),
                "accuracy": round(fmean(found), 4),
                "points lost": round(100 * (plain[cohort] - fmean(found)), 2),
            }
        )
    return rows


def draw(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw points lost over the energy of the noise, with the line above which it drowns the model."""
    rows: Sequence[dict[str, Any]] = found["rows"]
    cohorts, seeds = sorted({row["cohort"] for row in rows}), max(row["seeds"] for row in rows)
    title = (
        "Accuracy that noise of the clients costs\nFashion-MNIST, 12,000 images; every client in each of "
        f"{found['rounds']} rounds, {seeds} seed{'s' if seeds > 1 else ''}, delta {DELTA:g}; sums in the clear"
    )
    figure, axes = new_figure(7.2, 4.6, title=title)
    axes.set_xscale("log")
    points = list[tuple[str, float, float, float, float]]()
    for cohort, colour in zip(cohorts, ("#1b6ca8", "#c8553d", "#3c8d53"), strict=True):
        noised = sorted(
            (row["nu"], row["points lost"], row["epsilon"])
            for row in rows
            if row["cohort"] == cohort and row["epsilon"]
        )
        axes.plot([x for x, *_ in noised], [y for _, y, _ in noised], "o-", color=colour, label=f"{cohort:,} clients")
        points += [(f"epsilon {target:g}", x, y, y, y) for x, y, target in noised]
    axes.axvline(MOST_NOISE, color="#777777", linestyle="--", label=f"most that a model stands: {MOST_NOISE:g}")
    axes.margins(x=0.12, y=0.12)
    plain_ticks(axes)
    axes.set_xlabel("energy of the mean's noise over that of the longest update")
    axes.set_ylabel("points of accuracy lost")
    axes.legend(frameon=False, loc="upper center", fontsize=9)
    label_apart(figure, axes, points)
    return figure


if __name__ == "__main__":
    sys.exit(main())
