"""``secagg plot``: figures of runs; it needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg plot``."""
    plotted = commands.add_parser("plot", help="figures of runs and sweeps, and one report with all of them")
    plotted.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a run, or of a sweep")
    plotted.add_argument("--out", type=Path, metavar="DIR", help="(default: figures in the first folder)")
    plotted.set_defaults(run=run_plot)


def run_plot(options: argparse.Namespace) -> int:
    """Draw figures of runs, and write one report with all of them."""
    from secagg.training.reports import write_report

    report = write_report(options.folders, options.out or options.folders[0] / "figures")
    print(f"written to {report}")
    return 0
