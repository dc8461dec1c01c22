"""The pictures of the studies, made from the figures that are committed: nothing is trained.

`iso_frontier.png` has the accuracy that codes lose over the bytes that a client really sends, `noise_law.png` the
noise of decoded means over the law of the cohort, `harm_law.png` what noise does to the loss of six tasks, and
`training_attacks.png` what attacks cost.

    python benchmarks/study_pictures.py benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secagg.training.configuration import Scheme
from secagg.training.reports import STYLES, new_figure, plain_ticks
from training_attacks import draw as draw_attacks
from training_demo import draw as draw_demo

Cells = Sequence[Mapping[str, Any]]
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#3c8d53", "#8f5bb0", "#c79a1b", "#3aa6a6")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_GREY: Final = "#777777"
_MARKER: Final = 5
"""Half of the width of a marker, in points."""
_PLACES: Final = tuple(
    (right, up)
    for away in (9, 20, 32, 46, 62)
    for right, up in ((away, 0), (-away, 0), (away, away), (-away, away), (away, -away), (-away, -away), (0, away))
)
"""Where a label may stand beside its point, in points of the picture, the best first."""


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of a study in a picture."""

    name: str
    x: float
    y: float
    interval: tuple[float, float]
    """Of y."""

    @property
    def scheme(self) -> Scheme:
        """By the first word of the name; what is no scheme of the library stands with custom ones."""
        first = self.name.replace(",", " ").split()[0]
        return Scheme(first) if first in set(Scheme) else Scheme.CUSTOM

    @property
    def is_falling(self) -> bool:
        """Whether the server's rate falls."""
        return "falling" in self.name


def frontier(cells: Cells) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw what is lost against the uncompressed run of the same seeds over the wire bytes of a client in a round."""
    points = [
        Point(str(cell["name"]), float(cell["wire bytes"]), float(cell.get("loss", 0)), _interval(cell))
        for cell in cells
    ]
    figure, axes = new_figure(8.0, 5.0)
    axes.set_xscale("log")
    axes.axhline(0, color=STYLES[Scheme.NONE][0], linewidth=0.7, zorder=1)
    _draw(figure, axes, points)
    plain_ticks(axes)
    axes.set_xlabel("bytes that a client sends in a round, on the wire")
    axes.set_ylabel("points of accuracy lost, with 95 % intervals over seeds")
    return figure


def noise_law(points: Cells) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the measured noise of decoded means over block sizes, one line of the law for each cohort."""
    figure, axes = new_figure(8.0, 5.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for cohort, colour in zip(sorted({point["cohort"] for point in points}), _COLOURS, strict=True):
        mine = [point for point in points if point["cohort"] == cohort]
        places = [point["places"] for point in mine]
        axes.plot(places, [point["law"] for point in mine], color=colour, linewidth=1)
        measured = [point["measured"] for point in mine]
        axes.plot(places, measured, "o", color=colour, markersize=6, label=f"{cohort} clients")
    plain_ticks(axes)
    axes.set_xlabel("values in a block of the peak code (points: measured, lines: the law)")
    axes.set_ylabel("noise of the decoded mean, in units of one client's energy")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def harm_law(cells: Cells) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw the loss that codes add on each task, over the harm of their noise and over the noise itself."""
    told = [cell for cell in cells if "harm at half" in cell]
    figure, both = new_figure(10.0, 4.5, 2)
    kinds = (
        ("harm at half", 1000, "harm: how much the noise of a round raises the loss, in thousandths"),
        ("noise at half", 1, "nu: energy of that noise, in units of one client's"),
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw everything whose figures are there, and fail if there are none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("results", type=Path, help="the folder of the JSON files, where pictures go as well")
    folder: Path = parser.parse_args(arguments).results
    drawers: tuple[tuple[str, str, Callable[[Mapping[str, Any], Path], None]], ...] = (
        ("iso_accuracy", "iso_frontier", lambda found, file: frontier(found["cells"]).savefig(file, dpi=150)),
        ("noise_law", "noise_law", lambda found, file: noise_law(found["points"]).savefig(file, dpi=150)),
        ("transfer", "harm_law", lambda found, file: harm_law(found["gpu"]["cells"]).savefig(file, dpi=150)),
        ("training_attacks", "training_attacks", draw_attacks),
        ("demo", "demo", draw_demo),
    )
    drawn = 0
    for source, picture, draw in drawers:
        if not (folder / f"{source}.json").exists():
            print(f"{source}.json is not in {folder}: no {picture}.png", file=sys.stderr)
            continue
        draw(json.loads((folder / f"{source}.json").read_text(encoding="utf-8")), folder / f"{picture}.png")
        print(folder / f"{picture}.png")
        drawn += 1
    return 0 if drawn else 1


def _interval(cell: Mapping[str, Any]) -> tuple[float, float]:
    """Return the interval of the loss; of a cell with one seed, or compared with nothing, it is the loss itself."""
    low, high = cell.get("loss, interval") or (cell.get("loss", 0), cell.get("loss", 0))
    return float(low), float(high)


def _draw(figure: Any, axes: Any, points: Sequence[Point]) -> None:  # noqa: ANN401 -- matplotlib's
    """Draw points with their intervals, hollow where the rate falls, and labels that touch neither each other."""
    named = set[Scheme]()
    for point in points:
        colour, marker, label = STYLES[point.scheme]
        axes.errorbar(
            [point.x],
            [point.y],
            yerr=[[point.y - point.interval[0]], [point.interval[1] - point.y]],
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
        axes.plot([], [], "o", color=_GREY, markerfacecolor="white", markersize=7, label="hollow: with a falling rate")
    axes.margins(x=0.15, y=0.15)
    axes.legend(frameon=False, fontsize=8, loc="best")
    label_apart(figure, axes, points)


def label_apart(figure: Any, axes: Any, points: Sequence[Point]) -> list[Any]:  # noqa: ANN401 -- matplotlib's
    """Label each point inside of the axes, where its label touches neither another one nor a marker; return all."""
    from matplotlib.transforms import Bbox  # noqa: PLC0415 -- an extra

    figure.draw_without_rendering()
    inside = axes.get_window_extent()
    centres: list[tuple[float, float]] = [tuple(axes.transData.transform((one.x, one.y))) for one in points]
    half = _MARKER * figure.dpi / 72
    taken: list[Any] = [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in centres]
    labels = list[Any]()
    for point in sorted(points, key=lambda point: (point.x, point.y)):
        label: Any = None
        for right, up in _PLACES:
            if label is not None:
                label.remove()
            label = axes.annotate(
                point.name,
                (point.x, point.y),
                xytext=(right, up),
                textcoords="offset points",
                ha="left" if right > 0 else "right" if right < 0 else "center",
                va="center",
                fontsize=7,
                color="#444444",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4},
                arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.5},
            )
            label.set_in_layout(False)
            # Of the text alone: the line to the point may cross others.
            box = text_box(label)
            is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
        labels.append(label)
        taken.append(text_box(label))
    return labels


def text_box(label: Any) -> Any:  # noqa: ANN401 -- matplotlib's
    """Return where the text of an annotation stands, without its line."""
    from matplotlib.text import Text  # noqa: PLC0415 -- an extra

    label.update_positions(label.figure.canvas.get_renderer())
    return Text.get_window_extent(label)


if __name__ == "__main__":
    sys.exit(main())
