"""Table of figures of several processors: results/processors.md, from results/processors/*.json.

Each of those is the output of ``benchmarks/run.py SUITE ... --json results/processors/NAME.json``; figures of an older
tree are under ``before``, which the table ignores. Ratios of one run can be compared between processors, and times per
element approximately.
The table has the figures with a target that every run has; the JSON files have all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TABLE = RESULTS / "processors.md"
COMPARED = ("ratio", "x", "times", "ns")
"""Units of the figures in the table."""


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table: a row for each figure, a column for each run."""
    rows = dict[str, dict[str, dict[str, Any]]]()
    for name, run in runs.items():
        for figure in run["figures"]:
            if figure["unit"] in COMPARED and _target(figure):
                rows.setdefault(figure["name"], {})[name] = figure
    made = "Made by `benchmarks/processors.py`; the JSON files have more figures."
    lines = ["# Figures of several processors", "", made, ""]
    for name, run in runs.items():
        lines.append(f"- {name}: {', '.join(f'{key} {value}' for key, value in run['machine'].items())}")
    lines += ["", f"| figure | target | {' | '.join(runs)} |", "|---" * (2 + len(runs)) + "|"]
    for figure_name, measured in rows.items():
        if len(measured) < len(runs):
            continue
        cells = [f"{measured[name]['value']:.2f}" for name in runs]
        lines.append(f"| {figure_name} | {_target(next(iter(measured.values())))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _target(figure: dict[str, Any]) -> str:
    bounds = (("<=", figure["at_most"]), (">=", figure["at_least"]))
    return " ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


if __name__ == "__main__":
    files = sorted((RESULTS / "processors").glob("*.json"))
    text = table({file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files})
    TABLE.write_text(text, encoding="utf-8")
