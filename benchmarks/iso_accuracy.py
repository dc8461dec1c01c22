"""Accuracy of whole-update codes: 300 rounds on the bundled images, paired with uncompressed runs by seed.

One process trains one run at a time and appends a line of JSON for each, so a stopped study can be resumed. Sums are
computed in the clear; every protocol gives the same bits. In addition to the last model, each run tests its moving
averages over 10, 20 and 40 rounds, which do not affect it.

    python benchmarks/iso_accuracy.py build/iso.jsonl --seeds 10 11 --only none "peak 128"
    python benchmarks/iso_accuracy.py build/iso.jsonl --seeds 10 11 --json benchmarks/results/iso_accuracy.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.compression.cohort_bits import law, peak_noise, places_for
from secagg.training.configuration import WHOLE_UPDATES, Configuration, Scheme, changed, versions_here
from secagg.training.driver import pieces_of
from secagg.training.presets import preset
from secagg.training.rounds import Parameters, Pieces, Run

WINDOWS: Final = (10, 20, 40)
EVERY: Final = 20
LAST: Final = 3
STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57)
"""The 97.5 % quantiles of Student's distribution, starting with one degree of freedom."""


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A preset with changes, and the name of its uncompressed baseline."""

    name: str
    preset: str
    changes: tuple[str, ...] = ()
    baseline: str = "none"

    def run(self, seed: int, rounds: int) -> Configuration:
        """Return the configuration of one run."""
        always = (f"rounds={rounds}", f"evaluation.every={EVERY}", "engine=sequential", f"seed={seed}")
        return replace(changed(preset(self.preset), (*always, *self.changes)), name=self.name)


def _falling(share: str) -> tuple[str, ...]:
    return (f"server.falling={share}",)


THIRD: Final = repr(1 / 3)
HUNDRED: Final = ("clients_per_round=100",)
OWN: Final = ("compression.lengths=own",)
"""Clients of this study are honest; the preset takes the median of their lengths."""
CELLS: Final = (
    StudyCell("none", "fashion-none"),
    StudyCell("peak 128", "fashion-peak", OWN),
    StudyCell("peak 116", "fashion-peak", (*OWN, "compression.places=116")),
    StudyCell("none, falling", "fashion-none", _falling(THIRD)),
    StudyCell("peak 128, falling", "fashion-peak", (*OWN, *_falling(THIRD)), "none, falling"),
    StudyCell("peak 256, falling", "fashion-peak", (*OWN, *_falling(THIRD), "compression.places=256"), "none, falling"),
    StudyCell("peak 234, falling", "fashion-peak", (*OWN, *_falling(THIRD), "compression.places=234"), "none, falling"),
    StudyCell("none, falling 0.6", "fashion-none", _falling("0.6")),
    StudyCell(
        "peak 234, falling 0.6", "fashion-peak", (*OWN, *_falling("0.6"), "compression.places=234"), "none, falling 0.6"
    ),
    StudyCell("sketch 1 bit", "fashion-sketch"),
    StudyCell("pq 30x", "fashion-pq30"),
    StudyCell(
        "pq 50x",
        "fashion-pq",
        ('compression.layers=["conv1.weight=64/3"]', "compression.vector_bits=6", "compression.is_lengthened=true"),
    ),
    StudyCell("none, falling 0.6, 100", "fashion-none", (*HUNDRED, *_falling("0.6"))),
    StudyCell(
        "peak 774, falling 0.6, 100",
        "fashion-peak",
        (*OWN, *HUNDRED, *_falling("0.6"), "compression.places=774"),
        "none, falling 0.6, 100",
    ),
)


def train(
    cell: StudyCell, seed: int, rounds: int, pieces: Callable[[Configuration], Pieces] = pieces_of
) -> dict[str, Any]:
    """Train one run, and return its results."""
    began, configuration = perf_counter(), cell.run(seed, rounds)
    run = Run(configuration, pieces(configuration))
    averages = dict[int, Parameters]()
    tests, losses = dict[str, float](), dict[str, float]()
    averaged = {str(window): dict[str, float]() for window in WINDOWS}
    record = None
    while run.next_round < rounds:
        record = run.advance()
        _average(averages, run.parameters, run.next_round)
        if record.test is not None:
            tests[str(run.next_round)] = record.test.accuracy
            losses[str(run.next_round)] = round(record.test.loss, 5)
            if run.next_round > rounds - LAST * EVERY:
                for window, model in averages.items():
                    found = run.pieces.evaluate({name: torch.as_tensor(value) for name, value in model.items()})
                    averaged[str(window)][str(run.next_round)] = found.accuracy
    if record is None:
        raise ValueError("a run has at least one round")
    return {
        "cell": cell.name,
        "baseline": cell.baseline,
        "seed": seed,
        "rounds": rounds,
        "cohort": configuration.clients_per_round,
        "parameters": run.values,
        "payload bytes": record.payload_bytes,
        "paper bytes": record.paper_bytes,
        "tests": tests,
        "test losses": losses,
        "averaged": averaged,
        "seconds": round(perf_counter() - began, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the missing runs, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="file of finished runs, one line each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", nargs="+", default=[], help="names of cells, in this order")
    parser.add_argument("--json", type=Path, help="only write existing results, compared by seed")
    options = parser.parse_args(arguments)
    by_name = {cell.name: cell for cell in CELLS}
    cells = [by_name[name] for name in options.only] or list(CELLS)
    torch.set_num_threads(1)
    if options.json is not None:
        found = summary(finished(options.out), options.seeds, options.rounds)
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print("\n".join(table(found)))
        return 0
    done = {(row["cell"], row["seed"], row["rounds"]) for row in finished(options.out)}
    for seed in options.seeds:
        for cell in cells:
            if (cell.name, seed, options.rounds) in done:
                continue
            row = train(cell, seed, options.rounds)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            last = list(row["tests"].values())[-LAST:]
            print(cell.name, seed, [round(100 * value, 2) for value in last], row["seconds"], flush=True)
    return 0


def _average(averages: dict[int, Parameters], model: Mapping[str, npt.NDArray[np.float32]], number: int) -> None:
    """Add the model after a round to the averages, as ``server.averaged`` does."""
    for window in WINDOWS:
        kept = np.float32(min(1 - 1 / window, number / (number + 9)))
        before = averages.get(window, model)
        averages[window] = {
            name: np.asarray(kept * before[name] + (1 - kept) * value, dtype=np.float32)
            for name, value in model.items()
        }


def finished(file: Path) -> list[dict[str, Any]]:
    """Read the runs in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


# --- Results ----------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[dict[str, Any]], seeds: Sequence[int], rounds: int) -> dict[str, Any]:
    """Compare every cell with its baseline, seed by seed; other seeds or lengths belong to design runs."""
    judged = {(row["cell"], row["seed"]): row for row in rows if row["rounds"] == rounds and row["seed"] in seeds}
    cells = list[dict[str, Any]]()
    for cell in CELLS:
        mine = {seed: judged[cell.name, seed] for seed in seeds if (cell.name, seed) in judged}
        if not mine:
            continue
        bytes_up, payload = _wire(cell)
        parameters = next(iter(mine.values()))["parameters"]
        entry: dict[str, Any] = {
            "name": cell.name,
            "baseline": cell.baseline,
            "cohort": next(iter(mine.values()))["cohort"],
            "seeds": list(mine),
            "wire bytes": bytes_up,
            "wire factor": round(4 * parameters / bytes_up, 1),
            "payload bytes": payload,
            "factor": round(4 * parameters / payload, 1),
            "nu": _nu(cell),
            "accuracy": [round(100 * last(row), 2) for row in mine.values()],
        }
        entry["mean"] = round(fmean(entry["accuracy"]), 2)
        pairs = [(seed, judged[cell.baseline, seed]) for seed in mine if (cell.baseline, seed) in judged]
        if cell.baseline != cell.name and pairs:
            lost = [100 * (last(base) - last(mine[seed])) for seed, base in pairs]
            averaged = [100 * (last_averaged(base) - last_averaged(mine[seed])) for seed, base in pairs]
            entry |= interval("loss", lost) | interval("loss, averaged models", averaged)
        cells.append(entry)
    kept = [row for row in rows if (row["cell"], row["seed"]) in judged and row["rounds"] == rounds]
    design = [row for row in rows if row["seed"] not in seeds]
    return {"rounds": rounds, "versions": versions_here(), "cells": cells, "runs": kept, "design runs": design}


def last(row: Mapping[str, Any]) -> float:
    """Return the mean of the last three tests."""
    return fmean(list(row["tests"].values())[-LAST:])


def last_averaged(row: Mapping[str, Any], window: int = 20) -> float:
    """Return the same for a moving average of the models."""
    return fmean(row["averaged"][str(window)].values())


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the rows of a table in Markdown, wire bytes first."""
    lines = ["| cell | bytes on the wire | payload | nu | accuracy | loss (95 %), seeds | loss of averaged models |"]
    lines.append("|---|---|---|---|---|---|---|")
    for cell in found["cells"]:
        shown = [_shown(cell, name) for name in ("loss", "loss, averaged models")]
        wire = f"{cell['wire bytes']:,.0f} ({cell['wire factor']:g}x)"
        payload = f"{cell['payload bytes']:,.0f} ({cell['factor']:g}x)"
        nu = "" if cell["nu"] is None else f"{cell['nu']:.2f}"
        loss = f"{shown[0]}, {len(cell['seeds'])}" if shown[0] else ""
        lines.append(f"| {cell['name']} | {wire} | {payload} | {nu} | {cell['mean']:.2f} | {loss} | {shown[1]} |")
    return lines


def _shown(cell: Mapping[str, Any], name: str) -> str:
    if name not in cell:
        return ""
    interval = cell[f"{name}, interval"]
    return f"{cell[name]:.2f}" + (f" ({interval[0]:.2f} .. {interval[1]:.2f})" if interval else "")


def interval(name: str, lost: Sequence[float]) -> dict[str, Any]:
    """Return the mean of paired differences in points, with Student's interval."""
    found: dict[str, Any] = {
        f"{name}, by seed": [round(value, 2) for value in lost],
        name: round(fmean(lost), 2),
        f"{name}, interval": None,
    }
    if len(lost) > 1:
        half = STUDENT[len(lost) - 2] * stdev(lost) / math.sqrt(len(lost))
        found[f"{name}, interval"] = [round(fmean(lost) - half, 2), round(fmean(lost) + half, 2)]
    return found


def _wire(cell: StudyCell) -> tuple[float, float]:
    """Run two rounds of the protocol, and return a client's average bytes: of messages, and by the paper's count.

    In the first and every ``refresh``-th round clients send more.
    """
    run = Run(configuration := changed(cell.run(0, 300), ("secagg.mode=real",)), pieces_of(configuration))
    first, second = run.advance(), run.advance()
    is_whole = configuration.compression.scheme in WHOLE_UPDATES
    share = 1 / configuration.compression.refresh if is_whole else 0.0
    return tuple(  # type: ignore[return-value]
        round(share * one + (1 - share) * other, 1)
        for one, other in ((first.wire_up, second.wire_up), (first.paper_bytes, second.paper_bytes))
    )


def _nu(cell: StudyCell) -> float | None:
    configuration = cell.run(0, 300)
    compression, cohort = configuration.compression, configuration.clients_per_round
    match compression.scheme:
        case Scheme.PEAK:
            return round(peak_noise(compression.places or places_for(cohort), cohort), 3)
        case Scheme.SKETCH:
            return round(law(cohort, compression.cohort_bits / cohort), 3)
        case _:
            return None


if __name__ == "__main__":
    sys.exit(main())
