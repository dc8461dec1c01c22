"""The peak code on tasks outside its design, paired with uncompressed runs by seed.

Nothing is tuned to the code, which has 1.6 bits a weight for the whole cohort: rates are those of the bundled images or
of the uncompressed run. In the last task clients agree, so a mean keeps most of their updates.

    python benchmarks/more_tasks.py build/tasks.jsonl --vader FILE --digits FILE --fashion FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from iso_accuracy import StudyCell, finished, interval, last, last_averaged, train
from secagg.compression.cohort_bits import peak_noise, places_for
from secagg.training.configuration import Configuration, versions_here
from secagg.training.datasets import PreparedData, Split
from secagg.training.datasets.prepared import Dealing, Rows, dirichlet_partition, normalised
from secagg.training.driver import pieces_of
from secagg.training.models import StrideNet
from secagg.training.rounds import Pieces

PEAK: Final = (
    "compression.scheme=peak",
    "compression.refresh=10",
    "compression.lengths=own",
    "secagg.protocol=enclave",
)
TEXTS: Final = ("clients_per_round=20", "server.optimizer=fedavg", "server.rate=3", f"server.falling={1 / 3!r}")
"""The preset's server momentum would multiply the code's noise, and is refused. The rate was chosen uncompressed, on
seed 0: 1 is slower in 200 rounds, and 10, the preset's step with momentum, does not converge.
"""
DIGITS: Final = 8
"""The side of an image of scikit-learn's digits."""
TESTED: Final = 5
"""One row of the digits in this many is a test row."""


@dataclass(frozen=True, slots=True)
class Task:
    """A preset with changes, and the place of its data."""

    name: str
    preset: str
    changes: tuple[str, ...]
    rounds: int
    file: str = ""
    """Option for its data; none if bundled."""

    def cells(self, root: Path | None) -> tuple[StudyCell, StudyCell]:
        """Return the uncompressed run and the coded one."""
        changes = (*self.changes, f"evaluation.every={self.rounds // 10}")
        if self.file and self.file != "digits":
            changes = (*changes, f"data.root={root}")
        plain = f"{self.name}, none"
        return StudyCell(plain, self.preset, changes, plain), StudyCell(
            f"{self.name}, peak", self.preset, (*changes, *PEAK), plain
        )


TASKS: Final = (
    Task("bundled images", "fashion-none", (), 100),
    Task("digits, 8 x 8", "fashion-none", ("data.clients=50",), 100, "digits"),
    Task("moods of texts, LSTM", "vader-none", TEXTS, 200, "vader"),
    Task("all images, a wide network", "fashion-none", ("data.name=fashion-full", "data.clients=1000"), 100, "fashion"),
    Task("bundled images, clients agree", "fashion-none", ("data.alpha=1000", "data.clients=40"), 100),
)


def wide() -> nn.Module:
    """Return 556,510 parameters in two layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 700), nn.ReLU(), nn.Linear(700, 10))


def small() -> nn.Module:
    """Return the network of the bundled images for images of 8 x 8: 15,498 parameters."""
    return StrideNet(side=DIGITS)


def digits(file: Path, dealing: Dealing) -> PreparedData:
    """Read `digits.csv.gz` of scikit-learn, and partition its images over clients."""
    with gzip.open(file, "rt") as opened:
        rows = np.loadtxt(opened, delimiter=",", dtype=np.float32)
    images, labels = rows[:, :-1].reshape(-1, 1, DIGITS, DIGITS), rows[:, -1].astype(np.int64)
    is_test = np.arange(len(rows)) % TESTED == 0
    return PreparedData(
        name="digits",
        classes=10,
        shape=(1, DIGITS, DIGITS),
        train=Split(rows=images[~is_test], labels=labels[~is_test]),
        parts=dirichlet_partition(labels[~is_test], dealing),
        held_out=Split(rows=images[is_test], labels=labels[is_test]),
        transform=_as_pixels,
    )


def _as_pixels(rows: Rows, client: int | None) -> torch.Tensor:
    del client
    return normalised(rows.astype(np.float32), mean=4.9, deviation=6.0)


def pieces(task: Task, root: Path | None, configuration: Configuration) -> Pieces:
    """Return the pieces of a run of the task."""
    settings = configuration.data
    if task.file == "digits" and root is not None:
        dealing = Dealing(clients=settings.clients, alpha=settings.alpha, seed=configuration.seed)
        return pieces_of(configuration, data=digits(root, dealing), factory=small)
    return pieces_of(configuration, factory=wide if task.file == "fashion" else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the missing runs of tasks with given data, and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="the file of finished runs, one line each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--vader", type=Path, help="the source distribution of vaderSentiment 3.3.2")
    parser.add_argument("--digits", type=Path, help="digits.csv.gz of scikit-learn")
    parser.add_argument("--fashion", type=Path, help="the folder of Debian's dataset-fashion-mnist")
    parser.add_argument("--json", type=Path, help="only write existing results, compared by seed")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.json is not None:
        rows = summary(finished(options.out))
        options.json.write_text(json.dumps({"versions": versions_here(), "tasks": rows}, indent=1) + "\n")
        for row in rows:
            print(
                "| {task} | {parameters:,} | {cohort} | {factor:g} | {nu:.2f} | {none:.2f} | {loss:.2f} |".format(**row)
            )
        return 0
    done = {(row["cell"], row["seed"]) for row in finished(options.out)}
    for seed in options.seeds:
        for task in TASKS:
            root = getattr(options, task.file) if task.file else None
            if task.file and root is None:
                print(f"{task.name}: left out; --{task.file} names its data", file=sys.stderr)
                continue
            for cell in task.cells(root):
                if (cell.name, seed) not in done:
                    row = train(cell, seed, task.rounds, partial(pieces, task, root))
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    print(cell.name, seed, round(100 * last(row), 2), row["seconds"], flush=True)
    return 0


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each task: the code's loss by seed, against the uncompressed run."""
    by_name = {(row["cell"], row["seed"]): row for row in rows}
    found = list[dict[str, Any]]()
    for task in TASKS:
        plain, coded = (cell.name for cell in task.cells(None))
        seeds = sorted(seed for name, seed in by_name if name == coded and (plain, seed) in by_name)
        if not seeds:
            continue
        pairs = [(by_name[plain, seed], by_name[coded, seed]) for seed in seeds]
        first = pairs[0][1]
        found.append(
            {
                "task": task.name,
                "parameters": first["parameters"],
                "cohort": first["cohort"],
                "rounds": task.rounds,
                "seeds": seeds,
                "payload bytes": first["payload bytes"],
                "factor": round(4 * first["parameters"] / first["payload bytes"], 1),
                "nu": round(peak_noise(places_for(first["cohort"]), first["cohort"]), 3),
                "none": round(100 * fmean(last(base) for base, _ in pairs), 2),
            }
            | interval("loss", [100 * (last(base) - last(mine)) for base, mine in pairs])
            | interval(
                "loss, averaged models", [100 * (last_averaged(base) - last_averaged(mine)) for base, mine in pairs]
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
