"""What whole-update codes cost in accuracy: 300 rounds on the bundled images, paired with uncompressed runs by seed.

One process trains one run at a time and appends a line of JSON for each, so that a study that was stopped goes on where
it was. Sums are computed in the clear, which is what every protocol computes to the bit.
Besides the last model, each run tests its moving averages over 10, 20 and 40 rounds, which change nothing in it.

    python benchmarks/iso_accuracy.py build/iso.jsonl --seeds 10 11 --only none "peak 128"
    python benchmarks/iso_accuracy.py build/iso.jsonl --seeds 10 11 --json benchmarks/results/iso_accuracy.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.training.models.server_optimizers import Parameters
from secagg.training.runs.driver import pieces_of
from secagg.training.runs.rounds import Run
from secagg.training.settings.configuration import Configuration, changed
from secagg.training.settings.presets import preset

WINDOWS: Final = (10, 20, 40)
EVERY: Final = 20
LAST: Final = 3


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A preset with changes, and the name of the uncompressed cell that it is compared with."""

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
CELLS: Final = (
    StudyCell("none", "fashion-none"),
    StudyCell("peak 128", "fashion-peak"),
    StudyCell("none, falling", "fashion-none", _falling(THIRD)),
    StudyCell("peak 128, falling", "fashion-peak", _falling(THIRD), "none, falling"),
    StudyCell("peak 256, falling", "fashion-peak", (*_falling(THIRD), "compression.places=256"), "none, falling"),
    StudyCell("peak 234, falling", "fashion-peak", (*_falling(THIRD), "compression.places=234"), "none, falling"),
    StudyCell("none, falling 0.6", "fashion-none", _falling("0.6")),
    StudyCell(
        "peak 234, falling 0.6", "fashion-peak", (*_falling("0.6"), "compression.places=234"), "none, falling 0.6"
    ),
    StudyCell("sketch 1 bit", "fashion-sketch"),
    StudyCell("pq 30x", "fashion-pq30"),
    StudyCell(
        "pq 50x",
        "fashion-pq",
        ('compression.layers=["conv1.weight=64/3"]', "compression.vector_bits=6", "compression.is_lengthened=true"),
    ),
    StudyCell("none, falling, 100", "fashion-none", (*HUNDRED, *_falling(THIRD))),
    StudyCell(
        "peak 1024, falling, 100",
        "fashion-peak",
        (*HUNDRED, *_falling(THIRD), "compression.places=1024"),
        "none, falling, 100",
    ),
)


def train(cell: StudyCell, seed: int, rounds: int) -> dict[str, Any]:
    """Train one run, and return what it comes to."""
    began, configuration = perf_counter(), cell.run(seed, rounds)
    run = Run(configuration, pieces_of(configuration))
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
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="the file of finished runs, one line each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", nargs="+", default=[], help="cells by name, in this order")
    options = parser.parse_args(arguments)
    by_name = {cell.name: cell for cell in CELLS}
    cells = [by_name[name] for name in options.only] or list(CELLS)
    torch.set_num_threads(1)
    done = _finished(options.out)
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


def _finished(file: Path) -> set[tuple[str, int, int]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["cell"], row["seed"], row["rounds"]) for row in rows}


if __name__ == "__main__":
    sys.exit(main())
