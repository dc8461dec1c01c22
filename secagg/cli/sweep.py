"""``secagg sweep``: every cell of a grid."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .train import require_torch


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg sweep``."""
    swept = commands.add_parser("sweep", help="every cell of a grid with every seed; finished ones are skipped")
    swept.add_argument("grid", type=Path, metavar="GRID.toml")
    swept.add_argument("--jobs", type=int, default=1, help="how many processes (default: %(default)s)")
    swept.add_argument("--out", type=Path, metavar="DIR", help="(default: build/sweeps/GRID)")
    swept.set_defaults(run=run_sweep)


def run_sweep(options: argparse.Namespace) -> int:
    """Train every cell of a grid that is not finished."""
    require_torch()
    from secagg.training.reports import cells_of, read_runs, table
    from secagg.training.runs.driver import read_grid, sweep

    grid = read_grid(options.grid)
    out = options.out or Path("build/sweeps") / options.grid.stem
    results = sweep(grid, out, jobs=options.jobs, told=lambda line: print(line, file=sys.stderr, flush=True))
    failed = [result for result in results if "error" in result]
    for result in failed:
        print(f"{result['folder']} failed: {result['error']}")
    if len(failed) < len(results):
        print("\n".join(table(cells_of(read_runs([out])))))
    print(f"written to {out}; figures: secagg plot {out}")
    return int(bool(failed))
