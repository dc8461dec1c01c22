"""Reports of finished runs: figures, a table and a conclusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from secagg.compression.random_pruning import exact_sparsity
from secagg.errors import InvalidParameters

from .configuration import FILE_NAME as CONFIGURATION_NAME
from .configuration import CompressionSettings, Configuration, Scheme, SumMode, read, to_toml
from .records import METRICS_NAME, RoundRecord, read_records, summarise, write_text


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One run, which may still be in progress."""

    folder: Path
    configuration: Configuration
    records: tuple[RoundRecord, ...]
    parameters: int

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(self.records, parameters=self.parameters)


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that differ only in their seeds."""

    name: str
    runs: tuple[FinishedRun, ...]

    @property
    def configuration(self) -> Configuration:
        return self.runs[0].configuration

    def over_seeds(self, value: Callable[[dict[str, Any]], float | None]) -> tuple[float, float] | None:
        """Return the mean and standard deviation of a summary value; None if there is none."""
        found = [number for run in self.runs if (number := value(run.summary)) is not None]
        if not found:
            return None
        return fmean(found), stdev(found) if len(found) > 1 else 0.0

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Final accuracy in percent."""
        found = self.over_seeds(lambda summary: summary["final accuracy"])
        return None if found is None else (100 * found[0], 100 * found[1])

    @property
    def kilobytes(self) -> float | None:
        """Payload of a client, in units of 1,024 bytes."""
        found = self.over_seeds(lambda summary: summary["payload bytes"])
        return None if found is None else found[0] / 1024

    @property
    def kilobytes_both_ways(self) -> float | None:
        """Payload of a client plus its model download, in units of 1,024 bytes."""
        up, found = self.kilobytes, self.over_seeds(lambda summary: summary["model bytes"])
        return None if found is None or up is None else up + found[0] / 1024

    def curve(self) -> list[tuple[int, float]]:
        """Return the evaluated rounds, with the mean accuracy in percent over the seeds that reached them."""
        rounds = dict[int, list[float]]()
        for run in self.runs:
            for record in run.records:
                if record.test is not None:
                    rounds.setdefault(record.round, []).append(100 * record.test.accuracy)
        return [(number, fmean(found)) for number, found in sorted(rounds.items())]


def read_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """Read the runs in these folders and their subfolders."""
    runs = list[FinishedRun]()
    for folder in folders:
        candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []
        found = [_read(path) for path in candidates if (path / METRICS_NAME).exists()]
        if not found:
            raise InvalidParameters(f"{folder} has no run, as {METRICS_NAME} is missing; give a run or a sweep")
        runs += found
    return runs


def cells_of(runs: Sequence[FinishedRun]) -> list[Cell]:
    """Group runs that differ only in their seeds; of a run's copies only the longest counts."""
    cells = dict[str, dict[int, FinishedRun]]()
    for run in sorted(runs, key=lambda one: len(one.records)):
        cells.setdefault(to_toml(replace(run.configuration, seed=0, workers=0)), {})[run.configuration.seed] = run
    ordered = sorted(cells.values(), key=lambda seeds: min(map(runs.index, seeds.values())))
    return [Cell(next(iter(seeds.values())).configuration.name, tuple(seeds.values())) for seeds in ordered]


def _read(folder: Path) -> FinishedRun:
    configuration, records = read(folder / CONFIGURATION_NAME), tuple(read_records(folder))
    first = next((record for record in records if record.paper_bytes), None)
    # Every client first receives the model in each round.
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
"""Colour, marker and name of each scheme, the same in every figure."""
_DATA: Final = {"fashion": "Fashion-MNIST, 12,000 images", "fashion-full": "Fashion-MNIST", "vader": "moods of texts"}
_SUMS: Final = {SumMode.REAL: "run for real", SumMode.IDEAL: "summed in the clear"}
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#3c8d53", "#8f5bb0", "#c79a1b", "#3aa6a6", "#7a5230", "#777777")
_GRID: Final = "#dddddd"
_MOST_CURVES: Final = 10
_DECADE: Final = 10
_MARKER: Final = 5
"""Half of a marker's width, in points."""
_PLACES: Final = tuple(
    (right, up)
    for away in (9, 20, 32, 46, 62)
    for right, up in ((away, 0), (-away, 0), (away, away), (-away, away), (away, -away), (-away, -away), (0, away))
)
"""Possible positions of a label next to its point, in points, best first."""

Drawn = Any
"""A matplotlib figure; matplotlib is imported only to draw."""


def figures_of(cells: Sequence[Cell]) -> Iterator[tuple[str, str, Drawn]]:
    """Yield a file name, a title and a figure for each plot of these cells."""
    label = "payload and model of a client in one round, KB"
    both = partial(_accuracy_against, label=label, size=lambda cell: cell.kilobytes_both_ways)
    up = partial(_accuracy_against, label="payload of a client in one round, KB", size=lambda cell: cell.kilobytes)
    drawers: tuple[tuple[str, str, Callable[[Sequence[Cell], str], Drawn | None]], ...] = (
        ("accuracy-uplink", "Accuracy against payload", up),
        ("accuracy-both-ways", "Accuracy against bytes both ways", both),
        ("convergence", "Convergence", convergence),
    )
    for name, title, draw in drawers:
        figure = draw(cells, title)
        if figure is not None:
            yield name, title, figure


def conditions(cells: Sequence[Cell]) -> str:
    """Return the runs' common conditions: data, clients, rounds, seeds and protocols."""
    runs, seeds = [cell.configuration for cell in cells], _each(len(cell.runs) for cell in cells)
    sets, clients = (
        _each(_DATA.get(run.data.name, run.data.name) for run in runs),
        _each(run.data.clients for run in runs),
    )
    cohort, rounds = _each(run.clients_per_round for run in runs), _each(run.rounds for run in runs)
    protocols = f"{_each(run.secagg.protocol for run in runs)}, {_each(_SUMS[run.secagg.mode] for run in runs)}"
    times = f"{seeds} seed{'' if seeds == '1' else 's'}"
    return f"{sets} of {clients} clients, {cohort} of them in each of {rounds} rounds, {times}\n{protocols}"


def detail(run: CompressionSettings) -> str:
    """Return a scheme's settings in words; empty without compression."""
    match run.scheme:
        case Scheme.SCALAR:
            return f"{run.bits} bits in a ring of {run.modulus_bits}"
        case Scheme.PRUNING:
            return f"1 value in {1 / (1 - float(exact_sparsity(run.sparsity))):g}"
        case Scheme.PRODUCT:
            return "codewords by layer" if run.layers else f"{run.codewords} codewords of {run.block_size}"
        case Scheme.PEAK:
            return f"blocks of {run.places}" if run.places else f"{run.cohort_bits:g} bits of a cohort"
        case Scheme.SKETCH:
            return f"{run.bits} bits a value"
        case _:
            return run.custom


def names_of(cells: Sequence[Cell]) -> list[str]:
    """Return a name for each cell; the run's name is added if the words are ambiguous."""
    settings = [cell.configuration.compression for cell in cells]
    names = [", ".join(filter(None, (STYLES[one.scheme][2], detail(one)))) for one in settings]
    own = (f"{name} ({cell.name})" for name, cell in zip(names, cells, strict=True))
    return [name if names.count(name) == 1 else other for name, other in zip(names, own, strict=True)]


def _accuracy_against(
    cells: Sequence[Cell], title: str, label: str, size: Callable[[Cell], float | None]
) -> Drawn | None:
    """Draw final accuracy over bytes; the star is the uncompressed run."""
    points = [
        (cell, name, kilobytes, *found)
        for cell, name in zip(cells, names_of(cells), strict=True)
        if (kilobytes := size(cell)) is not None and (found := cell.accuracy) is not None
    ]
    if not points:
        return None
    figure, axes = new_figure(8.6, 5.6, title=f"{title}\n{conditions([cell for cell, *_ in points])}")
    axes.set_xscale("log")
    named = set[Scheme]()
    for cell, _, kilobytes, mean, deviation in points:
        (colour, marker, name), is_plain = STYLES[_scheme(cell)], _scheme(cell) is Scheme.NONE
        if is_plain and _scheme(cell) not in named:
            axes.axhline(mean, color=colour, linewidth=0.8, linestyle="--", zorder=1)
        axes.errorbar(
            kilobytes,
            mean,
            yerr=deviation if len(cell.runs) > 1 else None,
            fmt=marker,
            color=colour,
            markersize=13 if is_plain else 6,
            capsize=3,
            linewidth=1,
            label=None if _scheme(cell) in named else name,
            zorder=3,
        )
        named.add(_scheme(cell))
    axes.margins(x=0.15, y=0.15)
    plain_ticks(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, (low + high) / 2 - 3), max(high, (low + high) / 2 + 3))  # Do not magnify noise.
    axes.set_xlabel(label)
    bars = "\nbars: standard deviation of seeds" if any(len(cell.runs) > 1 for cell in cells) else ""
    axes.set_ylabel(f"test accuracy after the last round, %{bars}")
    # Draw it outside the axes, so that no marker looks like a run.
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=8)
    if len(points) <= 2 * _MOST_CURVES:
        # The legend names the scheme.
        label_apart(figure, axes, [(name.split(", ", 1)[-1], x, y, y - bar, y + bar) for _, name, x, y, bar in points])
    return figure


def convergence(cells: Sequence[Cell], title: str = "Convergence") -> Drawn | None:
    """Draw accuracy over rounds; of many cells, only the best and the uncompressed ones."""
    names = dict(zip(map(id, cells), names_of(cells), strict=True))
    curves = [(cell, curve) for cell in cells if len(curve := cell.curve()) > 1]
    if not curves:
        return None
    curves.sort(key=lambda pair: (_scheme(pair[0]) is not Scheme.NONE, -pair[1][-1][1]))
    shown = [cell for cell, _ in curves[:_MOST_CURVES]]
    are_alone = len(set(map(_scheme, shown))) == len(shown)
    figure, axes = new_figure(7.2, 4.6, title=f"{title}\n{conditions(shown)}")
    for number, (cell, curve) in enumerate(curves[:_MOST_CURVES]):
        is_plain = _scheme(cell) is Scheme.NONE
        colour = STYLES[_scheme(cell)][0] if is_plain or are_alone else _COLOURS[number % len(_COLOURS)]
        axes.plot(
            [at for at, _ in curve],
            [accuracy for _, accuracy in curve],
            color=colour,
            linewidth=2 if is_plain else 1.3,
            linestyle="--" if number >= len(_COLOURS) else "-",
            label=names[id(cell)],
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def new_figure(width: float, height: float, columns: int = 1, *, rows: int = 1, title: str = "") -> tuple[Any, Any]:
    """Return a titled matplotlib figure, and its axes: one, or a row or column of them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 -- an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra
    except ImportError:
        raise InvalidParameters("figures need matplotlib: pip install '.[plot]' in a checkout") from None
    figure: Any = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=9)
    axes: Any = figure.subplots(rows, columns)
    for one in [axes] if rows == columns == 1 else axes:
        one.grid(visible=True, color=_GRID, linewidth=0.6)
        one.set_axisbelow(True)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    return figure, axes


def plain_ticks(axes: Any) -> None:  # noqa: ANN401 -- matplotlib's
    """Write the ticks of a logarithmic axis as plain numbers: at 1 and 3, at 1, 2 and 5, or all digits of a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 -- an extra

    low, high = axes.get_xlim()
    digits = range(1, _DECADE) if high < _DECADE * low else (1, 2, 5) if high < _DECADE**3 * low else (1, 3)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=digits))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def label_apart(figure: Any, axes: Any, points: Sequence[tuple[str, float, float, float, float]]) -> list[Any]:  # noqa: ANN401 -- matplotlib's
    """Place labels inside the axes so that they overlap no label, marker or bar; return all.

    A point is its label, x, y, and the low and the high end of its bar.
    """
    from matplotlib.transforms import Bbox  # noqa: PLC0415 -- an extra

    figure.draw_without_rendering()
    half = _MARKER * figure.dpi / 72
    inside = axes.get_window_extent().padded(-half)
    taken, labels = list[Any](), list[Any]()
    for _, x, *ends in points:
        spots = axes.transData.transform([(x, y) for y in ends])
        taken.append(Bbox([spots.min(0) - half, spots.max(0) + half]))
    for name, x, y, *_ in sorted(points, key=lambda point: point[1:3]):
        label: Any = None
        for right, up in _PLACES:
            if label is not None:
                label.remove()
            label = axes.annotate(
                name,
                (x, y),
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
            # Use only the text: the line to the point may cross others.
            box = text_box(label)
            is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
        labels.append(label)
        taken.append(text_box(label))
    return labels


def text_box(label: Any) -> Any:  # noqa: ANN401 -- matplotlib's
    """Return the box of an annotation's text, without its line."""
    from matplotlib.text import Text  # noqa: PLC0415 -- an extra

    label.update_positions(label.figure.canvas.get_renderer())
    return Text.get_window_extent(label)


# --- Private ----------------------------------------------------------------------------------------------------------


def _each(values: Iterable[object]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))


def _scheme(cell: Cell) -> Scheme:
    return cell.configuration.compression.scheme


REPORT_NAME: Final = "report.md"
_NEAR_IN_BYTES: Final = 1.0
"""Difference in accuracy, in points, that the conclusion ignores."""
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
    "of the whole protocol, in rounds in which it ran; wire down includes model down: the model or its replacement. "
    "The paper counts bits of values; times smaller uses its count. Overflow is the share of coordinates whose sum "
    "overflows the ring; overflow_flsim counts as the paper's simulator does. Best is the best "
    "evaluation on all test examples, which chooses and reports on the same ones; by validation, the model is "
    "chosen on one part of them and reported on the other. Columns without data are omitted."
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Draw the figures of runs as PNG and SVG, and write a report with them."""
    cells = cells_of(read_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Training runs", "", conclusion(cells), "", *table(cells), "", _NOTE]
    for name, title, figure in figures_of(cells):
        figure.savefig(out / f"{name}.png", dpi=160)
        # Write no date, so that equal runs give equal files.
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        lines += ["", f"## {title}", "", f"![{title}]({name}.svg)"]
    lines += ["", "## Configurations"]
    for cell in cells:
        lines += ["", f"### {cell.name}", "", "```toml", to_toml(cell.configuration).rstrip(), "```"]
    write_text(out / REPORT_NAME, "\n".join(lines) + "\n")
    return out / REPORT_NAME


def conclusion(cells: Sequence[Cell]) -> str:
    """Return the runs' conclusion in a sentence or two: the smallest update that costs no accuracy."""
    known = [(cell, *cell.accuracy, cell.kilobytes) for cell in cells if cell.accuracy is not None and cell.kilobytes]
    plain = next((each for each in known if each[0].configuration.compression.scheme is Scheme.NONE), None)
    if plain is None:
        return "None of these runs is uncompressed, so there is no baseline."
    whole, due, _, kilobytes = plain
    near = [each for each in known if each[0] is not whole and each[1] >= due - _NEAR_IN_BYTES]
    if not near:
        return f"No other run comes within {_NEAR_IN_BYTES:g} point of the uncompressed one ({due:.1f} %)."
    cell, accuracy, _, least = min(near, key=lambda each: each[3])
    seeds = min(len(cell.runs), len(whole.runs))
    caution = " A single seed changes accuracy by about a point." if seeds == 1 else f" Over {seeds} seeds."
    return (
        f"Within {_NEAR_IN_BYTES:g} point of the uncompressed run ({due:.1f} %), **{cell.name}** sends the least: "
        f"{kilobytes / least:.1f} times less payload, at {accuracy:.1f} %.{caution}"
    )


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each cell: means over its seeds with their standard deviations."""
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
