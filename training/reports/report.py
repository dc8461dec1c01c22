"""One HTML file with the figures and tables of finished runs; it opens from disk and fetches nothing."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from secagg.training.records.checkpoint import write_text
from secagg.training.settings.configuration import to_toml

from .figures import figures_of
from .finished_runs import Cell, cells_of, read_runs

REPORT_NAME: Final = "report.html"
_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .25em .7em; border-bottom: 1px solid #ddd; }
td:not(:first-child), th:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } pre { background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 12px; }
h2 { margin-top: 2em; } .wide { overflow-x: auto; }
"""
_COLUMNS: Final = (
    "run",
    "seeds",
    "rounds",
    "final, %",
    "best, %",
    "by validation, %",
    "KB up",
    "factor",
    "KB with the protocol",
    "overflow, %",
    "overflow_flsim, %",
    "protocol, s a round",
    "lost",
    "epsilon",
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Draw the figures of runs as PNG and SVG, and write one report with all of them.

    Raises:
        InvalidParameters: there are no runs, or matplotlib is not installed.
    """
    cells = cells_of(read_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    sections = list[str]()
    for name, title, figure in figures_of(cells):
        figure.savefig(out / f"{name}.png", dpi=160)
        drawn = io.StringIO()
        # Without a date, so that the same runs give the same file.
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        (out / f"{name}.svg").write_text(drawn.getvalue(), encoding="utf-8")
        sections.append(f"<h2>{html.escape(title)}</h2>\n{_inline(drawn.getvalue(), name)}")
    report = out / REPORT_NAME
    write_text(report, "\n".join(_page(cells, sections)))
    return report


def rows_of(cells: Iterable[Cell]) -> Iterator[list[str]]:
    """Yield a row of text for each cell, under the columns of the report."""
    for cell in cells:
        accuracy = cell.accuracy
        yield [
            cell.name,
            str(len(cell.runs)),
            str(max((len(run.records) for run in cell.runs), default=0)),
            _with_deviation(accuracy),
            _mean(cell, "best accuracy", 100),
            _with_deviation(cell.over_seeds(_by_validation)),
            _mean(cell, "paper bytes", 1 / 1024, 2),
            _mean(cell, "factor", 1),
            _mean(cell, "bytes up of a client, protocol included", 1 / 1024),
            _mean(cell, "overflow", 100, 2),
            _mean(cell, "overflow_flsim", 100, 2),
            _mean(cell, "seconds of the protocol in a real round", 1, 2),
            _mean(cell, "lost clients", 1, 0),
            _mean(cell, "epsilon", 1, 2),
        ]


# --- Private ----------------------------------------------------------------------------------------------------------


def _page(cells: Sequence[Cell], sections: Sequence[str]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Training runs</title>'
    yield f"<style>{_STYLE}</style></head><body>\n<h1>Training runs</h1>"
    yield (
        "<p>KB are 1,024 bytes that one client sends in one round: by the paper's accounting (bits of values alone), "
        "and as real messages of all rounds of the protocol, where it ran. Overflow is the share of coordinates whose "
        "sum leaves the ring; overflow_flsim counts as the paper's simulator does. Best is the best evaluation on all "
        "test examples, which chooses and reports on the same ones; by validation, the model is chosen on one part of "
        "them and reported on the other.</p>"
    )
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{html.escape(name)}</th>" for name in _COLUMNS) + "</tr>"
    for row in rows_of(cells):
        yield "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
    yield "</table></div>"
    yield from sections
    yield "<h2>Configurations</h2>"
    for cell in cells:
        text = html.escape(to_toml(cell.configuration))
        yield f"<details><summary>{html.escape(cell.name)}</summary><pre>{text}</pre></details>"
    yield "</body></html>"


def _inline(drawn: str, name: str) -> str:
    """Return the picture without its prologue, and with names of its own: several share one page."""
    picture = drawn[drawn.index("<svg") :]
    return (
        picture.replace('id="', f'id="{name}-')
        .replace("url(#", f"url(#{name}-")
        .replace('xlink:href="#', f'xlink:href="#{name}-')
    )


def _mean(cell: Cell, key: str, factor: float, digits: int = 1) -> str:
    found = cell.over_seeds(lambda summary: summary.get(key))
    return "" if found is None else f"{found[0] * factor:.{digits}f}"


def _by_validation(summary: dict[str, Any]) -> float | None:
    chosen = summary["best by validation"]
    return None if chosen is None else 100 * chosen["accuracy on the others"]


def _with_deviation(found: tuple[float, float] | None) -> str:
    if found is None:
        return ""
    return f"{found[0]:.1f}" + (f" ± {found[1]:.1f}" if found[1] else "")
