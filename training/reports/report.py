"""Figures, one table and a conclusion of finished runs, as files that any viewer of Markdown shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from secagg.training.records.checkpoint import write_text
from secagg.training.settings.configuration import to_toml
from secagg.training.settings.sections import Scheme

from .figures import figures_of
from .finished_runs import Cell, cells_of, read_runs

REPORT_NAME: Final = "report.md"
_NEAR: Final = 1.0
"""Points of accuracy that the conclusion takes for none."""
_FIGURES: Final = (
    ("best, %", "best accuracy", 100, 1),
    ("KB on the wire", "bytes up of a client, protocol included", 1 / 1024, 1),
    ("KB encoded", "payload bytes", 1 / 1024, 2),
    ("KB by the paper's count", "paper bytes", 1 / 1024, 2),
    ("times smaller", "factor", 1, 1),
    ("KB down", "bytes down of a client", 1 / 1024, 1),
    ("overflow, %", "overflow", 100, 2),
    ("overflow_flsim, %", "overflow_flsim", 100, 2),
    ("protocol, s a round", "seconds of the protocol in a real round", 1, 2),
    ("lost", "lost clients", 1, 0),
    ("failed rounds", "failed rounds", 1, 0),
    ("epsilon", "epsilon", 1, 2),
)
"""A column, its key in summaries, its unit and its digits."""
_NOTE: Final = (
    "KB are 1,024 bytes that one client sends, or receives, in a round: as real messages of the whole protocol "
    "where it ran, as the encoded update, and by the paper's count of value bits. Overflow is the share of "
    "coordinates whose sum leaves the ring; overflow_flsim counts as the paper's simulator does. Best is the best "
    "evaluation on all test examples, which chooses and reports on the same ones; by validation, the model is "
    "chosen on one part of them and reported on the other. Columns that say nothing of these runs are left out."
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Draw the figures of runs as PNG and SVG, and write one report that shows them.

    Raises:
        InvalidParameters: there are no runs, or matplotlib is not installed.
    """
    cells = cells_of(read_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Training runs", "", conclusion(cells), "", *_table(cells), "", _NOTE]
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
    near = [each for each in known if each[0] is not whole and each[1] >= due - _NEAR]
    if not near:
        return f"No other run comes within {_NEAR:g} point of the uncompressed one ({due:.1f} %)."
    cell, accuracy, _, least = min(near, key=lambda each: each[3])
    seeds = min(len(cell.runs), len(whole.runs))
    caution = " One seed alone moves accuracy by about a point." if seeds == 1 else f" Over {seeds} seeds."
    return (
        f"Within {_NEAR:g} point of the uncompressed run ({due:.1f} %), **{cell.name}** sends the least: "
        f"{kilobytes / least:.1f} times less by the paper's count, at {accuracy:.1f} %.{caution}"
    )


def _table(cells: Sequence[Cell]) -> Iterator[str]:
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
