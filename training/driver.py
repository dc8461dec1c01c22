"""Runs training from a configuration into a folder, with an estimate and a progress bar; runs sweeps.

A grid is TOML: ``preset`` (or ``config``, a file), ``seeds``, ``set`` (changes for every cell), and cells. Each entry
of ``[[cell]]`` has a ``name`` and its own ``set``; each key of ``[axes]`` has a list of values, and every combination
is a cell. With both, every cell is combined with every combination.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tomllib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TextIO, cast

import numpy as np
import torch

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.errors import InvalidParameters, SecAggError
from secagg.training.clear_sums import SumRound, Upload
from secagg.training.configuration import FILE_NAME as CONFIGURATION_NAME
from secagg.training.configuration import Configuration, SumMode, changed, read, to_toml, to_tree, versions_here
from secagg.training.datasets import PreparedData, federated_data
from secagg.training.engines import Evaluator, make_engine
from secagg.training.models import initial_parameters, model_factory
from secagg.training.parts import (
    Assignment,
    Engine,
    Examples,
    FederatedData,
    ModelFactory,
    Stream,
    Tensors,
    generator,
    seed_of,
)
from secagg.training.presets import preset
from secagg.training.records import (
    SUMMARY_NAME,
    Accuracy,
    Checkpoint,
    MetricsFile,
    Observer,
    RoundRecord,
    summarise,
    write_arrays,
    write_text,
)
from secagg.training.rounds import Pieces, Run
from secagg.training.sums import require_feasible, secure_sum

_RECENT: Final = 20
"""Number of last rounds behind the estimate of the time left."""
_CELLS: Final = 24
_PAUSE: Final = 0.1
_KILO: Final = 1024


class Progress:
    """Shows rounds, accuracy, bytes per client, dropped clients, and the time left."""

    def __init__(self, name: str, rounds: int, *, stream: TextIO | None = None) -> None:
        self._name, self._rounds = name, rounds
        self._stream = sys.stderr if stream is None else stream
        self._is_seen = self._stream.isatty()
        self._times = deque[float]([perf_counter()], maxlen=_RECENT + 1)
        self._accuracy: float | None = None
        self._lost = 0
        self._drawn = 0.0
        self._is_warned = False

    def round_done(self, record: RoundRecord) -> None:
        self._times.append(perf_counter())
        self._lost += sum(record.lost.values())
        if record.test is not None:
            self._accuracy = record.test.accuracy
        if record.failure is not None:
            self._line(f"round {record.round} released nothing: {record.failure}")
        if record.warning is not None and not self._is_warned:
            self._is_warned = True
            self._line(f"round {record.round}: {record.warning}")
        if self._is_seen:
            if record.round == self._rounds or self._times[-1] - self._drawn >= _PAUSE:
                self._drawn = self._times[-1]
                print(f"\r{self._bar(record)}\033[K", end="", file=self._stream, flush=True)
        elif record.test is not None:
            self._line(f"{self._name}: round {record.round} of {self._rounds}, {self._figures(record)}")

    def close(self) -> None:
        if self._is_seen and len(self._times) > 1:
            print(file=self._stream, flush=True)

    @property
    def seconds_a_round(self) -> float:
        return (self._times[-1] - self._times[0]) / max(1, len(self._times) - 1)

    def _bar(self, record: RoundRecord) -> str:
        filled = _CELLS * record.round // max(self._rounds, 1)
        left = self.seconds_a_round * (self._rounds - record.round)
        cells = "#" * filled + "." * (_CELLS - filled)
        return f"{self._name} [{cells}] {record.round}/{self._rounds}, {in_time(left)} left, {self._figures(record)}"

    def _figures(self, record: RoundRecord) -> str:
        parts = [f"{record.wire_up / _KILO:.1f} KB up"]
        if self._accuracy is not None:
            parts.insert(0, f"accuracy {100 * self._accuracy:.1f} %")
        if record.overflow:
            parts.append(f"overflow {100 * record.overflow:.2g} %")
        if self._lost:
            parts.append(f"{self._lost} lost")
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        start = "\r" if self._is_seen else ""
        print(f"{start}{text}" + ("\033[K" if self._is_seen else ""), file=self._stream, flush=True)


def in_time(seconds: float) -> str:
    """Return a duration as readable text."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{whole % 60:02d} min" if minutes else f"{whole} s"


MODEL_NAME: Final = "model.npz"
BEST_NAME: Final = "best.npz"


def pieces_of(
    configuration: Configuration,
    *,
    engine: str | None = None,
    data: PreparedData | None = None,
    factory: ModelFactory | None = None,
) -> Pieces:
    """Return the default pieces for a configuration, with a platform's data or model if given.

    Raises:
        InvalidParameters: an unknown name, missing data, a missing device, an engine that cannot train the model, or a
        protocol that cannot run.
    """
    settings = configuration.data
    data = data or federated_data(
        settings.name,
        root=None if settings.root is None else Path(settings.root),
        clients=settings.clients or None,
        alpha=settings.alpha,
        seed=configuration.seed,
    )
    factory = factory or model_factory(
        configuration.model,
        classes=data.classes,
        shape=data.shape,
        vocabulary=data.vocabulary,
        options=configuration.model_sizes,
    )
    tested = _Tested(configuration, data, factory)
    return Pieces(
        data=data,
        factory=factory,
        engine=_engine(configuration, factory, data, engine),
        sum=secure_sum(configuration),
        evaluate=tested.evaluate,
        public=tested.public,
    )


def train(
    configuration: Configuration,
    out: Path | None = None,
    *,
    resume: bool = False,
    pieces: Pieces | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Train according to a configuration and return the summary.

    Args:
        out: the folder for configuration, metrics, checkpoint and models; without it nothing is written.
        resume: continue from the checkpoint in that folder, if there is one.
        pieces: the parts of the run; by default the library's.

    Raises:
        InvalidParameters: an invalid setting, before anything is trained; or a checkpoint of another run.
        KeyboardInterrupt: the run was interrupted; its last whole round is in the checkpoint.
    """
    if out is not None and not resume and (out / SUMMARY_NAME).exists():
        raise InvalidParameters(
            f"{out} has a finished run; use another folder, move that one away, or resume it with more rounds"
        )
    stored = Checkpoint.read(out) if out is not None and resume else None
    if stored is not None:
        stored.require_same(configuration)
    if pieces is None:
        engine = None if stored is None or configuration.engine != "auto" else str(stored.counters.get("engine"))
        pieces = pieces_of(configuration, engine=engine)
    run = Run(configuration, pieces)
    require_feasible(configuration, run.operators.planned(), available=len(pieces.data.sizes))
    if stored is not None:
        run.restore(stored)
    kept = None if out is None else _Folder(out, run)
    records = [] if kept is None else list(kept.metrics.kept)
    told: list[Observer] = [*([] if kept is None else [kept]), *observers]
    try:
        while run.next_round < configuration.rounds:
            record = run.advance()
            records.append(record)
            for observer in told:
                observer.round_done(record)
    finally:
        # Save after an interruption too: this keeps the state after the last whole round.
        for observer in told:
            observer.close()
    summary = summarise(records, parameters=run.values)
    summary["name"], summary["engine"] = configuration.name, run.pieces.engine.name
    if kept is not None:
        kept.finish(summary)
    return summary


# --- Private ----------------------------------------------------------------------------------------------------------


class _Folder:
    """Keeps a run in its folder: configuration, metrics, the best model, and checkpoints."""

    def __init__(self, folder: Path, run: Run) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIGURATION_NAME, to_toml(run.configuration, versions_here()))
        self._folder, self._run = folder, run
        self.metrics = MetricsFile(folder, keep=run.next_round)
        self._best = max((_choice(record) for record in self.metrics.kept), default=-1.0)
        self._last = run.frozen()

    def round_done(self, record: RoundRecord) -> None:
        self._last = self._run.frozen()
        self.metrics.round_done(record)
        if _choice(record) > self._best:
            self._best = _choice(record)
            write_arrays(self._folder / BEST_NAME, self._run.shown)
        if record.round % self._run.configuration.checkpoint_every == 0:
            self._last().write(self._folder)

    def close(self) -> None:
        self._last().write(self._folder)
        self.metrics.close()

    def finish(self, summary: dict[str, Any]) -> None:
        write_arrays(self._folder / MODEL_NAME, self._run.shown)
        write_text(self._folder / SUMMARY_NAME, json.dumps(summary, indent=2) + "\n")


def _choice(record: RoundRecord) -> float:
    """Return the accuracy that chooses the best model; -1 without a test."""
    if record.test is None:
        return -1.0
    return record.test.accuracy if record.test.validation is None else record.test.validation


class _Tested:
    """Evaluates a model on two parts of the test examples: one chooses the best model, one reports on it."""

    def __init__(self, configuration: Configuration, data: FederatedData, factory: ModelFactory) -> None:
        examples = data.test()
        count = len(examples)
        order = generator(seed_of(configuration.seed, Stream.VALIDATION)).permutation(count)
        chosen = round(count * configuration.evaluation.validation)
        self._parts = [np.sort(part) for part in (order[:chosen], order[chosen:])]
        self._examples = [examples.at(part) for part in self._parts]
        self._evaluators = [
            Evaluator(factory, some, device=configuration.device, threads=configuration.workers or None)
            if len(some)
            else None
            for some in self._examples
        ]
        self._public = max(1, round(float(data.sizes.mean())))

    def public(self) -> Examples:
        """Return a client's average number of examples, from those reserved for choosing the model."""
        source = self._examples[0] if len(self._examples[0]) else self._examples[1]
        return Examples(source.inputs[: self._public], source.targets[: self._public])

    def evaluate(self, parameters: Tensors) -> Accuracy:
        results = [None if e is None else e.evaluate(parameters) for e in self._evaluators]
        found = [(r, len(part)) for r, part in zip(results, self._parts, strict=True) if r is not None]
        total = sum(count for _, count in found)
        validation, held_out = results
        return Accuracy(
            accuracy=sum(result.accuracy * count for result, count in found) / total,
            loss=sum(result.loss * count for result, count in found) / total,
            validation=None if validation is None else validation.accuracy,
            held_out=None if held_out is None else held_out.accuracy,
        )


def _engine(configuration: Configuration, factory: ModelFactory, data: FederatedData, stored: str | None) -> Engine:
    def made(name: str) -> Engine:
        return make_engine(
            name,
            factory,
            device=configuration.device,
            threads=configuration.workers or None,
            chunk=configuration.chunk or None,
        )

    name = stored or configuration.engine
    if name != "auto":
        return made(name)
    if configuration.device == "cpu":
        return made("threads")
    work = [Assignment(client=0, examples=data.client(0), seed=seed_of(configuration.seed, Stream.TRAINING))]
    try:
        engine = made("vmap")
        list(
            engine.train(
                initial_parameters(factory, seed_of(configuration.seed, Stream.MODEL)), work, configuration.local
            )
        )
    except InvalidParameters as error:
        # Other faults of the model are reported by another engine.
        warnings.warn(f"training clients one after another, not in parallel: {error}", stacklevel=2)
        return made("sequential")
    return engine


_TIMED_CLIENTS: Final = 8
_COPIES_OF_A_MODEL: Final = 8
"""The model, its gradient, the update, the mean, the optimizer's state, and temporaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Rough estimate of a run."""

    clients_per_second: float
    round_seconds: float
    hours: float
    payload_bytes: int
    paper_bytes: float
    factor: float
    bytes_up_in_all: float
    bytes_down_in_all: float
    memory_bytes: int


def estimate(configuration: Configuration, pieces: Pieces | None = None) -> Estimate:
    """Estimate a run by training, encoding and summing a few clients."""
    run = Run(configuration, pieces_of(configuration) if pieces is None else pieces)
    codec = run.operators.planned()
    require_feasible(configuration, codec, available=len(run.pieces.data.sizes))
    clients = list(islice(cycle(range(len(run.pieces.data.sizes))), _TIMED_CLIENTS))
    run.operators.current = codec
    start: dict[str, torch.Tensor] = run.tensors()
    list(run.pieces.engine.train(start, [run.assignment(clients[0], 0)], configuration.local))  # Warm-up.
    began = perf_counter()
    updates = list(run.pieces.engine.train(start, [run.assignment(c, 0) for c in clients], configuration.local))
    encoded = [run.operators.encode(trained.update, run.coins(trained.client, 0)) for trained in updates]
    per_client = (perf_counter() - began) / len(clients)
    round_seconds = per_client * configuration.clients_per_round
    if configuration.secagg.mode is SumMode.REAL:
        invited = tuple(range(configuration.clients_per_round))
        uploads: list[Upload] = [(client, encoded[client % len(encoded)]) for client in invited]
        began = perf_counter()
        run.pieces.sum.run(SumRound(number=0, codec=codec, clients=invited, uploaders=invited), uploads)
        round_seconds += (perf_counter() - began) / configuration.secagg.every
    began = perf_counter()
    run.pieces.evaluate(start)
    round_seconds += (perf_counter() - began) / configuration.evaluation.every
    paper, payload = float(upload_bytes(codec.layout, Accounting.PAPER)), codec.layout.payload_bytes
    sent = configuration.rounds * configuration.clients_per_round
    payloads = payload * (configuration.clients_per_round if configuration.secagg.mode is SumMode.REAL else 2)
    return Estimate(
        clients_per_second=1 / per_client,
        round_seconds=round_seconds,
        hours=round_seconds * configuration.rounds / 3600,
        payload_bytes=payload,
        paper_bytes=paper,
        factor=4 * run.values / paper,
        bytes_up_in_all=payload * sent,
        bytes_down_in_all=4.0 * run.values * sent,
        memory_bytes=4 * run.values * _COPIES_OF_A_MODEL + payloads,
    )


RESULTS_NAME: Final = "results.jsonl"
_KEYS: Final = frozenset({"preset", "config", "seeds", "set", "cell", "axes"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of a grid, for every seed."""

    name: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Runs of a sweep."""

    base: Configuration
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]

    def runs(self) -> Iterator[Configuration]:
        """Yield every run; all are checked before any is trained."""
        for cell in self.cells:
            run = changed(self.base, cell.changes)
            for seed in self.seeds:
                yield replace(run, name=cell.name, seed=seed)


def read_grid(file: Path) -> Grid:
    """Read a grid."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameters(f"{file} is not a grid: {error}") from None
    if unknown := sorted(tree.keys() - _KEYS):
        raise InvalidParameters(f"a grid can have {', '.join(sorted(_KEYS))}; {file} also has {', '.join(unknown)}")
    if ("preset" in tree) == ("config" in tree):
        raise InvalidParameters(f"{file} must name either a preset or a config")
    base = preset(tree["preset"]) if "preset" in tree else read(file.parent / tree["config"])
    base = changed(base, _changes(tree.get("set", [])))
    axes = cast("Mapping[str, Sequence[object]]", tree.get("axes", {}))
    combinations = [
        Cell(
            ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in zip(axes, values, strict=True)),
            tuple(f"{key}={json.dumps(value)}" for key, value in zip(axes, values, strict=True)),
        )
        for values in product(*axes.values())
    ]
    named = [
        Cell(str(cell.get("name", number)), _changes(cell.get("set", [])))
        for number, cell in enumerate(cast("list[dict[str, Any]]", tree.get("cell", [{"name": base.name}])))
    ]
    cells = tuple(
        Cell(", ".join(filter(None, (one.name, other.name))), (*one.changes, *other.changes))
        for one in named
        for other in combinations
    )
    return Grid(base, cells, tuple(tree.get("seeds", [base.seed])))


def sweep(grid: Grid, out: Path, *, jobs: int = 1, told: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Train the unfinished runs, and return every run's summary; a failed run's summary has its error.

    Args:
        jobs: number of processes; with more than one, each trains one client at a time.
    """
    runs = list(grid.runs())
    folders = [out / f"{_file_name(run.name)}-seed{run.seed}" for run in runs]
    if len(set(folders)) < len(folders):
        raise InvalidParameters("two cells of the grid have the same name; rename one")
    if jobs > 1:
        runs = [replace(run, workers=1) for run in runs]
    out.mkdir(parents=True, exist_ok=True)
    due = [(run, folder) for run, folder in zip(runs, folders, strict=True) if not _is_finished(run, folder)]
    say: Callable[[str], None] = told or (lambda _: None)
    say(f"{len(runs)} runs, {len(runs) - len(due)} of them finished")
    done = 0
    if jobs == 1:
        for run, folder in due:
            _one(run, folder)
            done += 1
            say(f"{done} of {len(due)}: {folder.name}")
    elif due:
        # A fresh interpreter for each process: torch's threads do not survive a fork.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(_one, run, folder): folder for run, folder in due}
            for future in as_completed(futures):
                future.result()
                done += 1
                say(f"{done} of {len(due)}: {futures[future].name}")
    results = [_result(run, folder) for run, folder in zip(runs, folders, strict=True)]
    write_text(out / RESULTS_NAME, "".join(json.dumps(result) + "\n" for result in results))
    return results


# --- Private ----------------------------------------------------------------------------------------------------------


def _one(run: Configuration, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    try:
        train(run, folder, resume=True)
    except SecAggError as error:
        write_text(folder / "error.txt", f"{error}\n")


def _is_finished(run: Configuration, folder: Path) -> bool:
    summary, stored = folder / SUMMARY_NAME, folder / "configuration.toml"
    if not summary.exists():
        return False
    before = read(stored)
    if to_tree(replace(before, workers=run.workers)) != to_tree(run):
        raise InvalidParameters(f"{folder} has a run of a different configuration; use another folder for this sweep")
    return True


def _result(run: Configuration, folder: Path) -> dict[str, Any]:
    identity = {"name": run.name, "seed": run.seed, "folder": folder.name}
    if (folder / "error.txt").exists():
        return {**identity, "error": (folder / "error.txt").read_text(encoding="utf-8").strip()}
    return {**json.loads((folder / SUMMARY_NAME).read_text(encoding="utf-8")), **identity}


def _changes(given: object) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        return tuple(f"{key}={json.dumps(value)}" for key, value in cast("Mapping[str, object]", given).items())
    if not isinstance(given, list) or not all(isinstance(item, str) for item in cast("list[object]", given)):
        raise InvalidParameters(f'set must be a list such as ["compression.bits=4"], or a table; got {given!r}')
    return tuple(cast("list[str]", given))


def _file_name(name: str) -> str:
    kept = "".join(character if character.isalnum() or character in "-._" else "-" for character in name)
    return kept.strip("-") or "cell"
