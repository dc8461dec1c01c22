"""Runs that are on disk: one folder each, or those inside the folder of a sweep; runs but for seeds make a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from secagg.errors import InvalidParameters
from secagg.training.records.metrics import FILE_NAME as METRICS_NAME
from secagg.training.records.metrics import RoundRecord, read_records, summarise
from secagg.training.settings.configuration import FILE_NAME as CONFIGURATION_NAME
from secagg.training.settings.configuration import Configuration, read, to_toml


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One run; it may be under way still."""

    folder: Path
    configuration: Configuration
    records: tuple[RoundRecord, ...]
    parameters: int

    @property
    def summary(self) -> dict[str, Any]:
        """What it comes to."""
        return summarise(self.records, parameters=self.parameters)


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that differ in their seeds alone."""

    name: str
    runs: tuple[FinishedRun, ...]

    @property
    def configuration(self) -> Configuration:
        """That of the first seed."""
        return self.runs[0].configuration

    def over_seeds(self, value: Callable[[dict[str, Any]], float | None]) -> tuple[float, float] | None:
        """Return the mean and the standard deviation of something in the summaries; None where there is nothing."""
        found = [number for run in self.runs if (number := value(run.summary)) is not None]
        if not found:
            return None
        return fmean(found), stdev(found) if len(found) > 1 else 0.0

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """The final accuracy in percent."""
        return self.over_seeds(lambda summary: _percent(summary["final accuracy"]))

    @property
    def kilobytes(self) -> float | None:
        """What a client sends by the paper's accounting, in units of 1,024 bytes."""
        found = self.over_seeds(lambda summary: summary["paper bytes"])
        return None if found is None else found[0] / 1024

    def curve(self) -> list[tuple[int, float]]:
        """Return the rounds that were evaluated, with the mean accuracy in percent over the seeds that got there."""
        rounds = dict[int, list[float]]()
        for run in self.runs:
            for record in run.records:
                if record.test is not None:
                    rounds.setdefault(record.round, []).append(100 * record.test.accuracy)
        return [(number, fmean(found)) for number, found in sorted(rounds.items())]


def read_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """Read the runs of these folders, and of the folders in them.

    Raises:
        InvalidParameters: there is none, or one of them is damaged.
    """
    runs = list[FinishedRun]()
    for folder in folders:
        candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []
        found = [_read(path) for path in candidates if (path / METRICS_NAME).exists()]
        if not found:
            raise InvalidParameters(f"{folder} holds no run: there is no {METRICS_NAME} in it; name a run or a sweep")
        runs += found
    return runs


def cells_of(runs: Sequence[FinishedRun]) -> list[Cell]:
    """Put runs together that differ in their seeds alone."""
    cells = dict[str, list[FinishedRun]]()
    for run in runs:
        cells.setdefault(to_toml(replace(run.configuration, seed=0, workers=0)), []).append(run)
    return [Cell(some[0].configuration.name, tuple(some)) for some in cells.values()]


def _read(folder: Path) -> FinishedRun:
    configuration, records = read(folder / CONFIGURATION_NAME), tuple(read_records(folder))
    first = next((record for record in records if record.paper_bytes), None)
    # The model is what every client receives in each round, before anything else.
    parameters = 0 if first is None else first.parameters
    return FinishedRun(folder, configuration, records, parameters)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
