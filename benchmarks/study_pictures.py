"""Figures of the studies from committed results, without training.

python benchmarks/study_pictures.py benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from noise_accuracy import draw as draw_noise
from scale import draw as draw_scale
from secagg.training.configuration import Configuration, Scheme, changed, to_toml
from secagg.training.presets import preset
from secagg.training.records import Accuracy, RoundRecord
from secagg.training.reports import (
    STYLES,
    Cell,
    FinishedRun,
    conditions,
    figures_of,
    label_apart,
    names_of,
    new_figure,
    plain_ticks,
)
from training_attacks import draw as draw_attacks
from training_demo import draw as draw_demo
from training_study import CELLS as STUDIED

Cells = Sequence[Mapping[str, Any]]
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#3c8d53", "#8f5bb0", "#c79a1b", "#3aa6a6")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_GREY: Final = "#777777"
_FASHION: Final = "Fashion-MNIST, 12,000 images of 200 clients"
_SHOWN: Final = (
    *("none", "sq b=4 p=8", "sq b=6 p=8", "sq b=8 p=8", "pruning 0.9", "pruning 0.95", "pruning 0.98", "pruning 0.99"),
    *("pq 64/4", "pq 64/9", "pq 16/9", "pq 16/18", "pq 30x", "pq 50x"),
)
"""Cells of the study of schemes in its figure."""
_WORDS: Final = (
    (r"^peak ", "blocks of "),
    (r"^pq (\d+)x", r"\1 times smaller"),
    (r"^sketch ", ""),
    (r"^none", "uncompressed"),
    (r", falling [0-9./]+|, falling", ""),
    (r", (100)$", r", \1 clients a round"),
)
"""Label of a cell of the study of whole updates; the legend has the scheme."""


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of a study in a figure."""

    name: str
    x: float
    y: float
    interval: tuple[float, float] | None
    """Interval of y; None for a single seed."""

    @property
    def scheme(self) -> Scheme:
        """Scheme, from the first word of the name; unknown schemes count as custom."""
        first = self.name.replace(",", " ").split()[0]
        return Scheme(first) if first in set(Scheme) else Scheme.CUSTOM

    @property
    def is_falling(self) -> bool:
        """Whether the server's rate falls."""
        return "falling" in self.name

    @property
    def words(self) -> str:
        """The name in words."""
        found = self.name
        for pattern, by in _WORDS:
            found = re.sub(pattern, by, found)
        return found


def frontier(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the loss against the uncompressed run of the same seeds, over a client's packed update."""
    points = [
        Point(str(cell["name"]), float(cell["payload bytes"]), float(cell.get("loss", 0)), _interval(cell))
        for cell in found["cells"]
    ]
    seeds = max((len(cell.get("seeds", ())) for cell in found["cells"]), default=0)
    title = (
        f"Accuracy that compression costs\n{_FASHION}, 20 of them in each of {found.get('rounds')} rounds unless said, "
        f"{seeds} seeds; sums in the clear"
    )
    figure, axes = new_figure(8.0, 5.2, title=title)
    axes.set_xscale("log")
    axes.axhline(0, color=STYLES[Scheme.NONE][0], linewidth=0.7, zorder=1)
    _draw(figure, axes, points)
    axes.set_xlabel("bytes of a client's packed update (messages to the enclave have 1.1 kB more)")
    axes.set_ylabel("points of accuracy lost, with 95 % intervals over seeds")
    return figure


def noise_law(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the measured noise of decoded means over block sizes, one line of the law for each cohort."""
    points: Cells = found["points"]
    title = (
        f"Noise of a mean that the peak code sums\n{found['values']:,} random values a client; "
        f"points: measured, the mean of {found['tries']} tries; lines: the law"
    )
    figure, axes = new_figure(8.0, 5.2, title=title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for cohort, colour in zip(sorted({point["cohort"] for point in points}), _COLOURS, strict=True):
        mine = [point for point in points if point["cohort"] == cohort]
        places = [point["places"] for point in mine]
        axes.plot(places, [point["law"] for point in mine], color=colour, linewidth=1)
        measured = [point["measured"] for point in mine]
        axes.plot(places, measured, "o", color=colour, markersize=6, label=f"{cohort} clients")
    places = sorted({point["places"] for point in points})
    axes.set_xticks(places, [str(place) for place in places])
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.minorticks_off()
    axes.set_xlabel("values in a block of the code")
    axes.set_ylabel("energy of the noise, in units of one client's update")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def harm_law(cells: Cells) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the loss that codes add on each task, over the harm of their noise and over the noise itself."""
    told = [cell for cell in cells if "harm at half" in cell]
    title = (
        "Loss that the noise of a code adds, over its harm and over its energy\n"
        "six tasks, points are the mean of 3 seeds; sums in the clear"
    )
    figure, both = new_figure(10.0, 4.8, 2, title=title)
    kinds = (
        ("harm at half", 1000, "harm: how much the noise of a round raises the loss, in thousandths"),
        ("noise at half", 1, "energy of that noise, in units of one client's update"),
    )
    for axes, (key, unit, said) in zip(both, kinds, strict=True):
        for task, colour, marker in zip(sorted({cell["task"] for cell in told}), _COLOURS, _MARKERS, strict=True):
            mine = [cell for cell in told if cell["task"] == task]
            added = [cell["added train loss"] for cell in mine]
            axes.plot([unit * cell[key] for cell in mine], added, marker, color=colour, markersize=6, label=task)
        axes.axhline(0, color=STYLES[Scheme.NONE][0], linewidth=0.7)
        axes.set_xlabel(said)
    both[0].set_ylabel("training loss added to the uncompressed run")
    both[1].legend(frameon=False, fontsize=8, loc="best")
    return figure


# --- The study of schemes ---------------------------------------------------------------------------------------------


def studied(found: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of the study of schemes, with a record of each run's results."""
    known = {cell.name: cell.changes for cell in STUDIED}
    return [
        _cell(changed(preset("fashion-none"), (f"rounds={found['rounds']}", *known[row["name"]])), row)
        for row in found["cells"]
    ]


def _cell(run: Configuration, row: Mapping[str, Any]) -> Cell:
    record = RoundRecord(
        round=run.rounds,
        epoch=0,
        parameters=0,
        clients=run.clients_per_round,
        contributors=run.clients_per_round,
        payload_bytes=row["payload bytes"],
        overflow=row["overflow"],
    )
    runs = (replace(record, test=Accuracy(accuracy=accuracy, loss=0.0)) for accuracy in row["accuracy"])
    name = str(row["name"])
    return Cell(name, tuple(FinishedRun(Path(), replace(run, name=name), (one,), 0) for one in runs))


def schemes(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw accuracy over the packed update of a client."""
    shown = (cell for cell in studied(found) if cell.name in _SHOWN)
    cells = [replace(cell, name=re.sub(r"^pq (\d+)x$", r"\1 times smaller", cell.name)) for cell in shown]
    return next(figure for name, _, figure in figures_of(cells) if name == "accuracy-uplink")


def overflow_against_margin(cells: Sequence[Cell]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the share of overflowed coordinates and the accuracy over the ring's bits beyond a code."""
    some = [cell for cell in cells if cell.name.startswith("sq") and "," not in cell.name]
    title = f"Scalar quantization in narrow rings\n{conditions(some)}"
    figure, (left, right) = new_figure(8.0, 4.0, columns=2, title=title)
    for axes, of in ((left, _overflow), (right, _accuracy)):
        points = list[tuple[str, float, float, float, float]]()
        for cell in some:
            compression, (y, deviation) = cell.configuration.compression, of(cell)
            name = f"{compression.bits} bits in a ring of {compression.modulus_bits}"
            points.append((name, compression.modulus_bits - compression.bits, y, y - deviation, y + deviation))
        axes.errorbar(
            [x for _, x, *_ in points],
            [y for _, _, y, *_ in points],
            yerr=[high - y for _, _, y, _, high in points] if of is _accuracy else None,
            fmt="o",
            color=STYLES[Scheme.SCALAR][0],
            capsize=3,
        )
        if of is _overflow:
            axes.set_yscale("log")
            axes.set_yticks([1e-3, 0.01, 0.1, 1, 10, 100], ["none", "0.01", "0.1", "1", "10", "100"])
        axes.set_xlabel("bits of the ring beyond those of a code")
        axes.set_xticks(sorted({int(x) for _, x, *_ in points}))
        axes.margins(x=0.45, y=0.15)
        label_apart(figure, axes, points)
    left.set_ylabel("coordinates whose sum leaves the ring, %")
    right.set_ylabel("test accuracy, %\nbars: standard deviation of seeds")
    return figure


def _overflow(cell: Cell) -> tuple[float, float]:
    found = cell.over_seeds(lambda summary: summary["overflow"])
    return (max(100 * found[0], 1e-3) if found else 1e-3), 0.0


def _accuracy(cell: Cell) -> tuple[float, float]:
    return cell.accuracy or (0.0, 0.0)


def refresh_ablation(cells: Sequence[Cell]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw accuracy over the rounds between refreshes, for schemes with more than one period."""
    groups = dict[str, list[Cell]]()
    for cell in cells:
        run = cell.configuration
        alike = replace(run, name="", compression=replace(run.compression, refresh=1))
        groups.setdefault(to_toml(alike), []).append(cell)
    shown = [sorted(some, key=_period) for some in groups.values() if len(some) > 1]
    firsts = [some[0] for some in shown]
    title = f"Rounds between new scales, codebooks or masks\n{conditions(firsts)}"
    figure, axes = new_figure(7.2, 4.4, title=title)
    for some, colour, marker, name in zip(shown, _COLOURS, _MARKERS, names_of(firsts), strict=False):
        found = [_accuracy(cell) for cell in some]
        axes.errorbar(
            [_period(cell) for cell in some],
            [mean for mean, _ in found],
            yerr=[deviation for _, deviation in found],
            marker=marker,
            capsize=3,
            color=colour,
            label=name,
        )
    axes.set_xscale("log")
    periods = sorted({_period(cell) for some in shown for cell in some})
    axes.set_xticks(periods, [str(period) for period in periods])
    axes.minorticks_off()
    axes.set_xlabel("rounds from one refresh to the next")
    axes.set_ylabel("test accuracy after the last round, %\nbars: standard deviation of seeds")
    axes.legend(frameon=False)
    return figure


def _period(cell: Cell) -> int:
    return cell.configuration.compression.refresh


DRAWN: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "demo": ("demo", draw_demo),
    "iso_frontier": ("iso_accuracy", frontier),
    "noise_law": ("noise_law", noise_law),
    "harm_law": ("transfer", lambda found: harm_law(found["gpu"]["cells"])),
    "training_attacks": ("training_attacks", draw_attacks),
    "noise_accuracy": ("noise_accuracy", draw_noise),
    "scale": ("scale", draw_scale),
    "training_study": ("training_study", schemes),
    "training_overflow": ("training_study", lambda found: overflow_against_margin(studied(found))),
    "training_refresh": ("training_study", lambda found: refresh_ablation(studied(found))),
}
"""For each figure: its JSON file, and the function that draws it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all figures with existing results, and fail if there are none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("results", type=Path, help="folder of the JSON files and the pictures")
    folder: Path = parser.parse_args(arguments).results
    drawn = 0
    for picture, (source, draw) in DRAWN.items():
        if not (folder / f"{source}.json").exists():
            print(f"{source}.json is not in {folder}: no {picture}.png", file=sys.stderr)
            continue
        draw(json.loads((folder / f"{source}.json").read_text(encoding="utf-8"))).savefig(
            folder / f"{picture}.png", dpi=150
        )
        print(folder / f"{picture}.png")
        drawn += 1
    return 0 if drawn else 1


def _interval(cell: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the interval of the loss; None for a cell with one seed or without a baseline."""
    found = cell.get("loss, interval")
    return None if found is None else (float(found[0]), float(found[1]))


def _draw(figure: Any, axes: Any, points: Sequence[Point]) -> None:  # noqa: ANN401 -- matplotlib's
    """Draw points with their intervals (hollow if the rate falls) and labels without overlaps."""
    named = set[Scheme]()
    for point in points:
        (colour, marker, label), interval = STYLES[point.scheme], point.interval
        axes.errorbar(
            [point.x],
            [point.y],
            yerr=None if interval is None else [[point.y - interval[0]], [interval[1] - point.y]],
            fmt=marker,
            color=colour,
            markerfacecolor="white" if point.is_falling else colour,
            markersize=7,
            capsize=3,
            linewidth=1,
            zorder=3,
        )
        if point.scheme not in named:
            axes.plot([], [], marker, color=colour, markersize=7, label=label)
        named.add(point.scheme)
    if any(point.is_falling for point in points):
        axes.plot([], [], "o", color=_GREY, markerfacecolor="white", markersize=7, label="hollow: the rate falls")
    axes.margins(x=0.15, y=0.15)
    plain_ticks(axes)
    axes.legend(frameon=False, fontsize=8, loc="best")
    label_apart(
        figure, axes, [(point.words, point.x, point.y, *(point.interval or (point.y, point.y))) for point in points]
    )


if __name__ == "__main__":
    sys.exit(main())
