"""Bytes that clients receive with a compressed downlink, and its cost in accuracy.

``python downlink.py`` trains the peak code of 116 places with a median of lengths, seed by seed, with and without sums:
in cohorts of 20 that are drawn from 200 clients each round, and of the same 20. It appends rows to a results file and
skips existing rows. Each seed takes some minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np

from iso_accuracy import LAST, STUDENT, StudyCell
from secagg.training.datasets import PreparedData, federated_data
from secagg.training.driver import pieces_of
from secagg.training.parts import Examples
from secagg.training.rounds import Run

RESULTS: Final = Path(__file__).parent / "results" / "downlink.json"
SEEDS: Final = (0, 1, 2)
PEAK: Final = ("compression.places=116", "compression.lengths=median")
AUTO: Final = ("compression.rate=auto", "compression.places=0")
COHORTS: Final = {"drawn": (100, PEAK), "stays": (60, PEAK), "stays, auto": (100, AUTO)}
"""Number of rounds of each kind of cohort, and its code."""


@dataclass(frozen=True)
class FirstClients:
    """The first clients of a data set, with their original examples."""

    whole: PreparedData
    count: int

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """Number of examples of each client."""
        return self.whole.sizes[: self.count]

    def client(self, number: int) -> Examples:
        """Return a client's examples."""
        return self.whole.client(number)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- the rest of the data set
        return getattr(self.whole, name)


def measure(cohort: str, down: str, seed: int) -> dict[str, Any]:
    """Train one run, and return its bytes and tests."""
    rounds, changes = COHORTS[cohort]
    cell = StudyCell(f"{cohort}, {down}", "fashion-peak", (*changes, f"compression.down={down}"))
    configuration = cell.run(seed, rounds)
    data = federated_data("fashion", clients=200, alpha=configuration.data.alpha, seed=seed)
    chosen: Any = FirstClients(data, 20) if cohort.startswith("stays") else data
    run = Run(configuration, pieces_of(configuration, data=chosen))
    records = [run.advance() for _ in range(configuration.rounds)]
    return {
        "cohort": cohort,
        "down": down,
        "seed": seed,
        "rounds": configuration.rounds,
        "payload bytes": round(fmean(record.payload_bytes for record in records), 1),
        "model bytes": [round(record.model_bytes, 1) for record in records],
        "tests": {str(record.round): record.test.accuracy for record in records if record.test is not None},
    }


def said(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each kind of cohort: bytes received after the first round, and the loss in points."""
    lines = list[str]()
    for cohort in COHORTS:
        found = {(row["down"], row["seed"]): row for row in rows if row["cohort"] == cohort}
        seeds = [seed for down, seed in found if down == "sums" and ("model", seed) in found]
        bytes_of = {
            down: fmean(fmean(found[down, seed]["model bytes"][1:]) for seed in seeds) for down in ("model", "sums")
        }
        last = {key: 100 * fmean(list(row["tests"].values())[-LAST:]) for key, row in found.items()}
        losses = [last["model", seed] - last["sums", seed] for seed in seeds]
        half = STUDENT[len(losses) - 2] * stdev(losses) / len(losses) ** 0.5
        lines.append(
            f"{cohort}: {bytes_of['sums']:.0f} of {bytes_of['model']:.0f} bytes, "
            f"{bytes_of['model'] / bytes_of['sums']:.1f} times less; loss {fmean(losses):.2f} "
            f"({fmean(losses) - half:.2f} .. {fmean(losses) + half:.2f})"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the missing runs, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args(arguments).out
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    for seed in SEEDS:
        for cohort in COHORTS:
            for down in ("model", "sums"):
                if not any((row["cohort"], row["down"], row["seed"]) == (cohort, down, seed) for row in rows):
                    rows.append(measure(cohort, down, seed))
                    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join(said(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
