"""Accuracy against uplink on the bundled images: schemes, ring widths, refresh periods and calibrations.

Every run is 100 rounds of federated averaging over exact modular sums, with three seeds, and is kept in the given
folder, so a stopped study can be resumed. ``--json`` writes means and standard deviations; ``--only`` selects cells by
the start of their names.

    python benchmarks/training_study.py build/study --jobs 2 --json benchmarks/results/training_study.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from secagg.training.configuration import changed, versions_here
from secagg.training.driver import Cell, Grid, sweep
from secagg.training.presets import PRESETS, preset
from secagg.training.reports import cells_of, read_runs, table


def scalar(bits: int, modulus_bits: int, *more: str, name: str = "") -> Cell:
    """Return a cell of scalar quantization."""
    changes = ("scheme=sq", f"bits={bits}", f"modulus_bits={modulus_bits}", "wrap=true", *more)
    return Cell(f"sq b={bits} p={modulus_bits}{name}", tuple(f"compression.{change}" for change in changes))


def pruned(sparsity: str, *more: str, name: str = "") -> Cell:
    """Return a cell of random pruning."""
    changes = ("scheme=pruning", f"sparsity={sparsity}", *more)
    return Cell(f"pruning {sparsity}{name}", tuple(f"compression.{change}" for change in changes))


def product(codewords: int, block_size: int, *more: str, name: str = "") -> Cell:
    """Return a cell of product quantization."""
    changes = ("scheme=pq", f"codewords={codewords}", f"block_size={block_size}", *more)
    return Cell(
        f"pq {codewords}/{block_size}{name}",
        ("secagg.protocol=enclave", *(f"compression.{change}" for change in changes)),
    )


CURVE = (
    Cell("none", ()),
    scalar(6, 8),
    scalar(8, 8),
    pruned("0.9"),
    pruned("0.99"),
    product(64, 4),
    product(16, 9),
    scalar(4, 8),
    product(64, 9),
    product(16, 18),
    pruned("0.95"),
    pruned("0.98"),
    product(8, 9),
    scalar(8, 12),
    scalar(4, 6),
    scalar(2, 4),
    pruned("0.5"),
)
CALIBRATIONS = (
    scalar(6, 8, "calibration=mock", name=", mock"),
    scalar(6, 8, "calibration=agg", name=", agg"),
    product(16, 9, "calibration=mock", name=", mock"),
    product(16, 9, "calibration=agg", name=", agg"),
)
REFRESHES = tuple(
    cell
    for period in (10, 50)
    for cell in (
        scalar(8, 8, f"refresh={period}", name=f", every {period}"),
        product(16, 9, f"refresh={period}", name=f", every {period}"),
        pruned("0.99", f"refresh={period}", name=f", every {period}"),
    )
)
FURTHER = (
    product(64, 9, "stages=2", name=", 2 stages"),
    product(8, 4, name=""),
    product(64, 9, 'layers=["conv1.weight=plain"]', name=", first layer plain"),
    scalar(4, 8, "rotation=256", name=", rotated"),
    scalar(2, 7, "stochastic=true", name=", stochastic"),
)
THIRTY = (f"layers={json.dumps(PRESETS['fashion-pq30'].compression.layers)}",)
FIFTY = ('layers=["conv1.weight=64/3"]',)
BEYOND = (
    Cell("pq 30x", product(16, 9, *THIRTY, "vector_bits=6", "is_lengthened=true").changes),
    Cell("pq 50x", product(16, 9, *FIFTY, "vector_bits=6", "is_lengthened=true").changes),
    Cell("none, rate 1.5", ("server.rate=1.5",)),
    Cell("pq 30x, not lengthened", product(16, 9, *THIRTY, "vector_bits=6").changes),
    Cell("pq 30x, biases in 32 bits, not lengthened", product(16, 9, *THIRTY).changes),
    product(64, 9, "is_lengthened=true", name=", lengthened"),
)
"""Bits by importance, and the effect of each part. A lengthened mean is a larger step of the server, so it is compared
with an uncompressed run with a larger step."""
CELLS = (*CURVE, *BEYOND, *CALIBRATIONS, *REFRESHES, *FURTHER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing cells, and print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="the folder of the runs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="prefixes of cells' names")
    parser.add_argument("--cells", type=int, help="number of cells to run, starting with the first")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    cells = [cell for cell in CELLS if not options.only or cell.name.startswith(tuple(options.only))]
    base = changed(preset("fashion-none"), [f"rounds={options.rounds}", "evaluation.every=10"])
    grid = Grid(replace(base, name="study"), tuple(cells[: options.cells]), tuple(range(options.seeds)))
    results = sweep(grid, options.out, jobs=options.jobs, told=lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(table(cells_of(read_runs([options.out])))))
    if options.json is not None:
        summary = {
            "machine": platform.processor() or platform.machine(),
            "versions": versions_here(),
            "rounds": options.rounds,
            "seeds": options.seeds,
            "cells": list(_means(results)),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


def _means(results: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    by_name = dict[str, list[dict[str, Any]]]()
    for result in results:
        by_name.setdefault(result["name"], []).append(result)
    for name, rows in by_name.items():
        finals = [row["final accuracy"] for row in rows]
        chosen = [row["best by validation"]["accuracy on the others"] for row in rows]
        yield {
            "name": name,
            "accuracy": [round(value, 4) for value in finals],
            "mean": round(fmean(finals), 4),
            "deviation": round(stdev(finals), 4) if len(finals) > 1 else None,
            "best, mean": round(fmean(row["best accuracy"] for row in rows), 4),
            "by validation, mean": round(fmean(chosen), 4),
            "paper bytes": rows[0]["paper bytes"],
            "payload bytes": rows[0]["payload bytes"],
            "factor": round(rows[0]["factor"], 2),
            "overflow": None if rows[0]["overflow"] is None else fmean(row["overflow"] for row in rows),
            "overflow_flsim": None if rows[0]["overflow_flsim"] is None else fmean(r["overflow_flsim"] for r in rows),
        }


if __name__ == "__main__":
    sys.exit(main())
