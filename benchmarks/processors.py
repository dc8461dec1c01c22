"""Table of the figures that several processors gave: results/processors.md, from results/processors/*.json.

Each of those is the output of ``benchmarks/run.py SUITE ... --json results/processors/NAME.json``. Ratios of one run
can be compared between processors; what is measured by the clock cannot, and is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
RATIOS = ("ratio", "x", "times", "ns")


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table: a row for each figure, a column for each run."""
    rows = dict[str, dict[str, dict[str, Any]]]()
    for name, run in runs.items():
        for figure in run["figures"]:
            if figure["unit"] in RATIOS:
                rows.setdefault(figure["name"], {})[name] = figure
    lines = [f"- {name}: {', '.join(map(str, run['machine'].values()))}" for name, run in runs.items()]
    lines += ["", f"| figure | target | {' | '.join(runs)} |", "|---" * (2 + len(runs)) + "|"]
    for figure, measured in rows.items():
        cells = [f"{measured[name]['value']:.2f}" if name in measured else "" for name in runs]
        lines.append(f"| {figure} | {_target(next(iter(measured.values())))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _target(figure: dict[str, Any]) -> str:
    bounds = (("<=", figure["at_most"]), (">=", figure["at_least"]))
    return " ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


if __name__ == "__main__":
    files = sorted((RESULTS / "processors").glob("*.json"))
    (RESULTS / "processors.md").write_text(table({file.stem: json.loads(file.read_text()) for file in files}))
