"""Reports of finished runs: figures, a table and a conclusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from secagg.errors import InvalidParameters

from .configuration import FILE_NAME as CONFIGURATION_NAME
from .configuration import Configuration, Scheme, read, to_toml
from .records import METRICS_NAME, RoundRecord, read_records, summarise, write_text


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One run; it may be under way still."""

    folder: Path
    configuration: Configuration
    records: tuple[RoundRecord, ...]
    parameters: int

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(self.records, parameters=self.parameters)


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that differ in their seeds alone."""

    name: str
    runs: tuple[FinishedRun, ...]

    @property
    def configuration(self) -> Configuration:
        return self.runs[0].configuration

    def over_seeds(self, value: Callable[[dict[str, Any]], float | None]) -> tuple[float, float] | None:
        """Return the mean and the standard deviation of something in the summaries; None where there is nothing."""
        found = [number for run in self.runs if (number := value(run.summary)) is not None]
        if not found:
            return None
        return fmean(found), stdev(found) if len(found) > 1 else 0.0

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """The final accuracy in percent."""
        found = self.over_seeds(lambda summary: summary["final accuracy"])
        return None if found is None else (100 * found[0], 100 * found[1])

    @property
    def kilobytes(self) -> float | None:
        """Payload of a client, in units of 1,024 bytes."""
        found = self.over_seeds(lambda summary: summary["payload bytes"])
        return None if found is None else found[0] / 1024

    @property
    def kilobytes_both_ways(self) -> float | None:
        """Payload of a client and what it receives to have the model, in units of 1,024 bytes."""
        up, found = self.kilobytes, self.over_seeds(lambda summary: summary["model bytes"])
        return None if found is None or up is None else up + found[0] / 1024

    def curve(self) -> list[tuple[int, float]]:
        """Return the rounds that were evaluated, with the mean accuracy in percent over the seeds that got there."""
        rounds = dict[int, list[float]]()
        for run in self.runs:
            for record in run.records:
                if record.test is not None:
                    rounds.setdefault(record.round, []).append(100 * record.test.accuracy)
        return [(number, fmean(found)) for number, found in sorted(rounds.items())]


def read_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """Read the runs of these folders, and of the folders in them."""
    runs = list[FinishedRun]()
    for folder in folders:
        candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []
        found = [_read(path) for path in candidates if (path / METRICS_NAME).exists()]
        if not found:
            raise InvalidParameters(f"{folder} holds no run: there is no {METRICS_NAME} in it; name a run or a sweep")
        runs += found
    return runs


def cells_of(runs: Sequence[FinishedRun]) -> list[Cell]:
    """Put runs together that differ in their seeds alone; of copies of a run the longest counts, and as one seed."""
    cells = dict[str, dict[int, FinishedRun]]()
    for run in sorted(runs, key=lambda one: len(one.records)):
        cells.setdefault(to_toml(replace(run.configuration, seed=0, workers=0)), {})[run.configuration.seed] = run
    ordered = sorted(cells.values(), key=lambda seeds: min(map(runs.index, seeds.values())))
    return [Cell(next(iter(seeds.values())).configuration.name, tuple(seeds.values())) for seeds in ordered]


def _read(folder: Path) -> FinishedRun:
    configuration, records = read(folder / CONFIGURATION_NAME), tuple(read_records(folder))
    first = next((record for record in records if record.paper_bytes), None)
    # Every client receives the model in each round, before anything else.
    parameters = 0 if first is None else first.parameters
    return FinishedRun(folder, configuration, records, parameters)


STYLES: Final = {
    Scheme.NONE: ("#222222", "*", "uncompressed"),
    Scheme.SCALAR: ("#1b6ca8", "o", "scalar quantization"),
    Scheme.PRUNING: ("#c8553d", "s", "random pruning"),
    Scheme.PRODUCT: ("#3c8d53", "D", "product quantization"),
    Scheme.PEAK: ("#8f5bb0", "^", "peak code"),
    Scheme.SKETCH: ("#c79a1b", "v", "linear sketch"),
    Scheme.ROTATED: ("#7a5230", "X", "rotated, for noise"),
    Scheme.CUSTOM: ("#3aa6a6", "P", "custom scheme"),
}
"""The colour, the marker and the name of each scheme, the same in every picture."""
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#3c8d53", "#8f5bb0", "#c79a1b", "#3aa6a6", "#7a5230", "#777777")
_GRID: Final = "#dddddd"
_MOST_CURVES: Final = 10
_LEAST_PERIODS: Final = 2
_DECADE: Final = 10
_NEAR: Final = 1.5  # Kilobytes that differ by less than this factor have labels that would touch.
_LEAST_SPAN: Final = 6.0
"""Points of accuracy that an axis shows at least: noise is not a finding."""
_LEAST_POINTS: Final = 2

Drawn = Any
"""A matplotlib figure; matplotlib is imported when a figure is drawn."""


def figures_of(cells: Sequence[Cell]) -> Iterator[tuple[str, str, Drawn]]:
    """Yield a file name, a title and a figure for everything that these cells show."""
    label = "payload and model of a client in one round, KB"
    both = partial(_accuracy_against, label=label, size=lambda cell: cell.kilobytes_both_ways)
    up = partial(_accuracy_against, label="payload of a client in one round, KB", size=lambda cell: cell.kilobytes)
    drawers: tuple[tuple[str, str, Callable[[Sequence[Cell]], Drawn | None]], ...] = (
        ("accuracy-uplink", "Accuracy against payload", up),
        ("accuracy-both-ways", "Accuracy against bytes both ways", both),
        ("convergence", "Convergence", convergence),
        ("overflow", "Overflow against the margin of the ring", overflow_against_margin),
        ("refresh", "Rounds between refreshes", refresh_ablation),
    )
    for name, title, draw in drawers:
        figure = draw(cells)
        if figure is not None:
            yield name, title, figure


def _accuracy_against(cells: Sequence[Cell], label: str, size: Callable[[Cell], float | None]) -> Drawn | None:
    """Draw final accuracy over bytes; the star is the uncompressed run."""
    points = [
        (cell, kilobytes, found)
        for cell in cells
        if (kilobytes := size(cell)) is not None and (found := cell.accuracy) is not None
    ]
    if not points:
        return None
    figure, axes = new_figure(7.2, 4.6)
    for scheme, (colour, marker, name) in STYLES.items():
        some = sorted(
            ((kilobytes, *found, cell.name) for cell, kilobytes, found in points if _scheme(cell) is scheme),
        )
        if not some:
            continue
        if scheme is Scheme.NONE:
            axes.axhline(some[0][1], color=colour, linewidth=0.8, linestyle="--", zorder=1)
        axes.errorbar(
            [kilobytes for kilobytes, *_ in some],
            [mean for _, mean, _, _ in some],
            yerr=[deviation for _, _, deviation, _ in some],
            fmt=marker,
            color=colour,
            markersize=13 if scheme is Scheme.NONE else 6,
            capsize=3,
            linewidth=1,
            label=name,
            zorder=3,
        )
    if len(points) <= 2 * _MOST_CURVES:
        _label_points(axes, [(kilobytes, found[0], cell.name) for cell, kilobytes, found in points])
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.12)
    plain_ticks(axes)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy after the last round, %")
    # Outside of the axes, where no marker reads as a run.
    figure.legend(frameon=False, loc="outside upper center", ncols=4, fontsize=8)
    return figure


def convergence(cells: Sequence[Cell]) -> Drawn | None:
    """Draw accuracy over rounds; of many cells, those that end best and the uncompressed ones."""
    curves = [(cell, cell.curve()) for cell in cells]
    curves = [(cell, curve) for cell, curve in curves if len(curve) > 1]
    if not curves:
        return None
    curves.sort(key=lambda pair: (_scheme(pair[0]) is not Scheme.NONE, -pair[1][-1][1]))
    shown = [_scheme(cell) for cell, _ in curves[:_MOST_CURVES]]
    are_alone = len(set(shown)) == len(shown)
    figure, axes = new_figure(7.2, 4.2)
    for number, (cell, curve) in enumerate(curves[:_MOST_CURVES]):
        is_plain = _scheme(cell) is Scheme.NONE
        colour = STYLES[_scheme(cell)][0] if is_plain or are_alone else _COLOURS[number % len(_COLOURS)]
        axes.plot(
            [at for at, _ in curve],
            [accuracy for _, accuracy in curve],
            color=colour,
            linewidth=2 if is_plain else 1.3,
            linestyle="--" if number >= len(_COLOURS) else "-",
            label=cell.name,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def overflow_against_margin(cells: Sequence[Cell]) -> Drawn | None:
    """Draw, over the bits that the ring has beyond a code, the share of overflowed coordinates and the accuracy."""
    points = list[tuple[int, float, float, str]]()
    for cell in cells:
        compression, overflow = cell.configuration.compression, cell.over_seeds(lambda summary: summary["overflow"])
        if overflow is not None and cell.accuracy is not None:
            name = f"b={compression.bits} p={compression.modulus_bits}"
            points.append((compression.modulus_bits - compression.bits, 100 * overflow[0], cell.accuracy[0], name))
    if len(points) < _LEAST_POINTS:
        return None
    figure, axes = new_figure(7.2, 3.6, columns=2)
    left, right = axes
    for margin, share, accuracy, _ in points:
        left.plot(margin, max(share, 1e-3), "o", color=STYLES[Scheme.SCALAR][0])
        right.plot(margin, accuracy, "o", color=STYLES[Scheme.SCALAR][0])
    left.set_yscale("log")
    _label_points_beside(left, [(margin, max(share, 1e-3), name) for margin, share, _, name in points])
    _label_points_beside(right, [(margin, accuracy, name) for margin, _, accuracy, name in points])
    left.set_ylabel("coordinates whose sum leaves the ring, %\n(none is drawn at 0.001)")
    right.set_ylabel("test accuracy, %")
    for one in axes:
        one.set_xlabel("margin p - b, bits")
        one.set_xticks(range(min(p[0] for p in points), max(p[0] for p in points) + 1))
        one.margins(x=0.3, y=0.15)
    return figure


def refresh_ablation(cells: Sequence[Cell]) -> Drawn | None:
    """Draw accuracy over the rounds between refreshes, for schemes that were run with more than one period."""
    groups = dict[str, list[Cell]]()
    for cell in cells:
        run, compression = cell.configuration, cell.configuration.compression
        if cell.accuracy is not None and (compression.source is not None or _scheme(cell) is Scheme.PRUNING):
            alike = replace(run, name="", seed=0, workers=0, compression=replace(compression, refresh=1))
            groups.setdefault(to_toml(alike), []).append(cell)
    shown = [sorted(some, key=_period) for some in groups.values() if len(some) >= _LEAST_PERIODS]
    if not shown:
        return None
    figure, axes = new_figure(6.4, 4.0)
    for number, some in enumerate(shown):
        found = [cell.accuracy or (0.0, 0.0) for cell in some]
        axes.errorbar(
            [_period(cell) for cell in some],
            [mean for mean, _ in found],
            yerr=[deviation for _, deviation in found],
            marker="o",
            capsize=3,
            color=_COLOURS[number % len(_COLOURS)],
            label=some[0].name,
        )
    axes.set_xscale("log")
    periods = sorted({_period(cell) for some in shown for cell in some})
    axes.set_xticks(periods, [str(period) for period in periods])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    missing = max(0.0, _LEAST_SPAN - (high - low)) / 2
    axes.set_ylim(low - missing, high + missing)
    axes.set_xlabel("rounds from one refresh to the next")
    axes.set_ylabel("test accuracy after the last round, %")
    axes.legend(frameon=False)
    return figure


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, one or a row of them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 -- an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra
    except ImportError:
        raise InvalidParameters("figures need matplotlib: pip install 'secagg[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(1, columns)
    for one in [axes] if columns == 1 else axes:
        one.grid(visible=True, color=_GRID, linewidth=0.6)
        one.set_axisbelow(True)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    return figure, axes


def plain_ticks(axes: Any) -> None:  # noqa: ANN401 -- matplotlib's
    """Write the ticks of a logarithmic axis as plain numbers: at 1, 2 and 5, and at all digits within a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 -- an extra

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high > _DECADE * low else range(1, _DECADE)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


# --- Private ----------------------------------------------------------------------------------------------------------


def _label_points(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:  # noqa: ANN401 -- matplotlib's
    for x, y, name in points:
        # Below and away from a better point that is near, whose own label is above it.
        better = [u / x for u, v, other in points if (v, other) > (y, name) and 1 / _NEAR < u / x < _NEAR]
        above, aside = not better, min(better, key=lambda ratio: max(ratio, 1 / ratio), default=1.0)
        axes.annotate(
            name,
            (x, y),
            textcoords="offset points",
            xytext=(0, 8 if above else -9),
            ha="center" if aside == 1 else "right" if aside > 1 else "left",
            va="bottom" if above else "top",
            fontsize=7,
            color="#444444",
            zorder=2,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
        )


def _label_points_beside(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:  # noqa: ANN401 -- matplotlib's
    """Label points that stand above each other, on their right and left in turns."""
    for number, (x, y, name) in enumerate(sorted(points)):
        is_right = number % 2 == 0
        axes.annotate(
            name,
            (x, y),
            textcoords="offset points",
            xytext=(6 if is_right else -6, 0),
            ha="left" if is_right else "right",
            va="center",
            fontsize=7,
            color="#444444",
        )


def _scheme(cell: Cell) -> Scheme:
    return cell.configuration.compression.scheme


def _period(cell: Cell) -> int:
    return cell.configuration.compression.refresh


REPORT_NAME: Final = "report.md"
_NEAR_IN_BYTES: Final = 1.0
"""Points of accuracy that the conclusion takes for none."""
_FIGURES: Final = (
    ("best, %", "best accuracy", 100, 1),
    ("payload, KB", "payload bytes", 1 / 1024, 2),
    ("wire up, KB", "wire up", 1 / 1024, 1),
    ("wire down, KB", "wire down", 1 / 1024, 1),
    ("model down, KB", "model bytes", 1 / 1024, 1),
    ("by the paper's count, KB", "paper bytes", 1 / 1024, 2),
    ("times smaller", "factor", 1, 1),
    ("overflow, %", "overflow", 100, 2),
    ("overflow_flsim, %", "overflow_flsim", 100, 2),
    ("protocol, s a round", "seconds of the protocol in a real round", 1, 2),
    ("lost", "lost clients", 1, 0),
    ("failed rounds", "failed rounds", 1, 0),
    ("epsilon", "epsilon", 1, 2),
)
"""A column, its key in summaries, its unit and its digits."""
_NOTE: Final = (
    "KB are 1,024 bytes of one client in a round. Payload: its encoded update. Wire up and wire down: real messages "
    "of all exchanges of the protocol, in rounds in which it ran; down with the model, or what is told in its place, "
    "which model down has alone. The paper counts bits of values; times smaller is by its count. Overflow is the share "
    "of coordinates whose sum leaves the ring; overflow_flsim counts as the paper's simulator does. Best is the best "
    "evaluation on all test examples, which chooses and reports on the same ones; by validation, the model is "
    "chosen on one part of them and reported on the other. Columns that say nothing of these runs are left out."
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Draw the figures of runs as PNG and SVG, and write one report that shows them."""
    cells = cells_of(read_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Training runs", "", conclusion(cells), "", *table(cells), "", _NOTE]
    for name, title, figure in figures_of(cells):
        figure.savefig(out / f"{name}.png", dpi=160)
        # Without a date, so that the same runs give the same file.
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        lines += ["", f"## {title}", "", f"![{title}]({name}.svg)"]
    lines += ["", "## Configurations"]
    for cell in cells:
        lines += ["", f"### {cell.name}", "", "```toml", to_toml(cell.configuration).rstrip(), "```"]
    write_text(out / REPORT_NAME, "\n".join(lines) + "\n")
    return out / REPORT_NAME


def conclusion(cells: Sequence[Cell]) -> str:
    """Return what the runs show, in a sentence or two: the smallest update that costs no accuracy."""
    known = [(cell, *cell.accuracy, cell.kilobytes) for cell in cells if cell.accuracy is not None and cell.kilobytes]
    plain = next((each for each in known if each[0].configuration.compression.scheme is Scheme.NONE), None)
    if plain is None:
        return "There is no uncompressed run among these, and so nothing to compare with."
    whole, due, _, kilobytes = plain
    near = [each for each in known if each[0] is not whole and each[1] >= due - _NEAR_IN_BYTES]
    if not near:
        return f"No other run comes within {_NEAR_IN_BYTES:g} point of the uncompressed one ({due:.1f} %)."
    cell, accuracy, _, least = min(near, key=lambda each: each[3])
    seeds = min(len(cell.runs), len(whole.runs))
    caution = " One seed alone moves accuracy by about a point." if seeds == 1 else f" Over {seeds} seeds."
    return (
        f"Within {_NEAR_IN_BYTES:g} point of the uncompressed run ({due:.1f} %), **{cell.name}** sends the least: "
        f"{kilobytes / least:.1f} times less payload, at {accuracy:.1f} %.{caution}"
    )


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each cell: means over its seeds, with their standard deviation."""
    columns = {
        "run": [cell.name.replace("|", "\\|") for cell in cells],
        "seeds": [str(len(cell.runs)) for cell in cells],
        "rounds": [str(max((len(run.records) for run in cell.runs), default=0)) for cell in cells],
        "final, %": [_with_deviation(cell.accuracy) for cell in cells],
        "by validation, %": [_with_deviation(cell.over_seeds(_by_validation)) for cell in cells],
        **{title: [_mean(cell, key, unit, digits) for cell in cells] for title, key, unit, digits in _FIGURES},
    }
    columns = {title: values for title, values in columns.items() if any(values)}
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{'--:|' * (len(columns) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in zip(*columns.values(), strict=True))


def _mean(cell: Cell, key: str, unit: float, digits: int) -> str:
    found = cell.over_seeds(lambda summary: summary.get(key))
    return "" if found is None else f"{found[0] * unit:.{digits}f}"


def _by_validation(summary: dict[str, Any]) -> float | None:
    chosen = summary["best by validation"]
    return None if chosen is None else 100 * chosen["accuracy on the others"]


def _with_deviation(found: tuple[float, float] | None) -> str:
    if found is None:
        return ""
    return f"{found[0]:.1f}" + (f" ± {found[1]:.1f}" if found[1] else "")
