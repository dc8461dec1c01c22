"""Tests whether the peak code's results transfer: to other tasks and rates, and against methods of other papers.

A job runs all cells of a task for one seed, on a GPU in lockstep (``lockstep.py``). So cells are paired: they have the
same clients, initial model and batches. A finished run is a line of JSON, and a stopped study can be resumed.

    python benchmarks/transfer.py run build/transfer.jsonl --data FOLDER --device cuda --jobs 12
    python benchmarks/transfer.py table build/transfer.jsonl --json benchmarks/results/transfer.json

The folder of data has ``vaderSentiment-3.3.2.tar.gz``, scikit-learn's ``digits.csv.gz`` and Debian's ``fashion-mnist``;
tasks with missing data are skipped, with a message.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import lockstep as lockstep_module
from iso_accuracy import STUDENT
from lockstep import Kept, Lockstep, play
from more_tasks import digits, small, wide
from secagg.training.codec import WholeUpdates
from secagg.training.configuration import Configuration, Optimizer, ServerSettings, changed, versions_here
from secagg.training.datasets import PreparedData, federated_data
from secagg.training.datasets.prepared import Dealing
from secagg.training.driver import pieces_of
from secagg.training.engines import Probe
from secagg.training.parts import Stream, generator, seed_of
from secagg.training.presets import preset
from secagg.training.rounds import Pieces, Run, ServerOptimizer
from transfer_methods import Method, cohort_bits_of, methods

SEEDS: Final = (10, 11, 12)
EVERY: Final = 10
COHORT: Final = 20
MOMENTUM: Final = 0.9
SIZES: Final = (170, 1500, 5000)
"""Sizes at which methods are compared, in bytes."""
RATES: Final = (0.3, 1.0, 3.0)
"""Server rates, relative to the task's, that each method tries."""
PEAK: Final = ("compression.scheme=peak", "compression.refresh=10", "secagg.protocol=enclave")
PRODUCT: Final = (
    "compression.scheme=pq",
    "compression.refresh=10",
    "compression.vector_bits=6",
    "compression.is_lengthened=true",
    "secagg.protocol=enclave",
)


@dataclass(frozen=True, slots=True)
class Task:
    """A preset with changes, and the place of its data."""

    name: str
    preset: str
    changes: tuple[str, ...]
    rounds: int
    file: str = ""
    """Name of its data in the data folder; none if bundled."""
    factory: Callable[[], nn.Module] | None = None
    is_compared: bool = False
    """Whether it compares methods of other papers."""

    def configuration(self, seed: int, changes: tuple[str, ...], device: str, folder: Path) -> Configuration:
        """Return the configuration of one run."""
        root = (f"data.root={folder / self.file}",) if self.file and self.file != "digits.csv.gz" else ()
        always = (f"rounds={self.rounds}", f"evaluation.every={EVERY}", "engine=sequential", f"seed={seed}")
        run = changed(preset(self.preset), (*always, *self.changes, *root, *changes))
        return replace(run, device=device)

    def data(self, run: Configuration, folder: Path) -> PreparedData:
        """Return its data, partitioned over clients."""
        settings = run.data
        if self.file == "digits.csv.gz":
            return digits(folder / self.file, Dealing(clients=settings.clients, alpha=settings.alpha, seed=run.seed))
        return federated_data(
            settings.name,
            root=None if settings.root is None else Path(settings.root),
            clients=settings.clients or None,
            alpha=settings.alpha,
            seed=run.seed,
        )


_CHARACTERS: Final = ("data.name=stdlib-chars", "data.clients=0", "local.batch=10")
_LSTM: Final = ("model=lstm", 'model_options=["width=24", "hidden=96", "layers=1"]')
TASKS: Final = (
    Task(
        "all images, a wide network",
        "fashion-none",
        ("data.name=fashion-full", "data.clients=1000"),
        100,
        "fashion-mnist",
        wide,
    ),
    Task(
        "moods of texts, LSTM",
        "vader-none",
        ("clients_per_round=20", "server.optimizer=fedavg", "server.rate=3", f"server.falling={1 / 3!r}"),
        200,
        "vaderSentiment-3.3.2.tar.gz",
    ),
    Task("next character, LSTM", "fashion-none", (*_CHARACTERS, *_LSTM, "local.rate=1.0"), 200),
    Task(
        "next character, convolutions",
        "fashion-none",
        (*_CHARACTERS, "model=text-conv", "local.rate=0.3"),
        200,
        is_compared=True,
    ),
    Task("bundled images", "fashion-none", (), 200, is_compared=True),
    Task("digits, 8 x 8", "fashion-none", ("data.clients=50",), 200, "digits.csv.gz", small, is_compared=True),
    Task("bundled images, clients agree", "fashion-none", ("data.alpha=1000", "data.clients=40"), 200),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A method, and the server's step."""

    name: str
    changes: tuple[str, ...] = ()
    method: Callable[[int, tuple[int, ...]], Method] | None = None
    """Makes a method from the number of values and the sizes of the tensors."""
    rate: float = 1.0
    """The server's rate, relative to the task's."""
    momentum: float = 0.0


def codes(task: Task) -> list[Cell]:
    """Return the cells that test whether the code's results transfer."""
    del task
    own = (*PEAK, "compression.lengths=own")
    return [
        Cell("none"),
        Cell("none, momentum", rate=0.3, momentum=MOMENTUM),
        Cell("peak", PEAK),
        Cell("peak, own lengths", own),
        Cell("peak, voted lengths", (*PEAK, "compression.lengths=voted")),
        *(Cell(f"peak, {bits} bits", (*PEAK, f"compression.cohort_bits={bits}")) for bits in (6.4, 12.8, 20.0)),
        *(Cell(f"auto {harm}", (*PEAK, "compression.rate=auto", f"compression.harm={harm}")) for harm in HARMS),
        Cell("peak, momentum", PEAK, rate=0.3, momentum=MOMENTUM),
        Cell(
            "auto 0.0005, momentum",
            (*PEAK, "compression.rate=auto", "compression.harm=0.0005"),
            rate=0.3,
            momentum=MOMENTUM,
        ),
    ]


HARMS: Final = (0.0005, 0.001, 0.002, 0.004)


def weighings(task: Task) -> list[Cell]:
    """Return scalar codes with equal weights, weights by examples, and these weights after rounding."""
    del task
    code = ("compression.scheme=sq", "compression.stochastic=true", "compression.bits=6")
    # 20 uploads need five bits more than the code, and weights of up to 64 another six.
    narrow, wide = ((*code, f"compression.modulus_bits={bits}") for bits in (11, 17))
    return [
        Cell("equal", narrow),
        Cell("examples", (*narrow, "server.weighting=examples")),
        Cell("after", (*wide, "server.weighting=after", "server.maximum_weight=64")),
    ]


def others(task: Task) -> list[Cell]:
    """Return the methods of other papers and the peak code, at each size with each rate."""
    cells = list[Cell]()
    del task
    for rate in RATES:
        for size in SIZES:
            for name in methods(size, 1000, (1000,)):
                cells.append(Cell(f"{name}, {size} B, rate {rate}", (), partial(_method, name, size), rate))
            cells.append(Cell(f"peak, {size} B, rate {rate}", ("size", str(size), *PEAK), None, rate))
        for codewords, block in ((16, 9), (64, 4)):
            layout = (f"compression.codewords={codewords}", f"compression.block_size={block}")
            cells.append(
                Cell(f"product quantization {codewords}/{block}, rate {rate}", (*PRODUCT, *layout), None, rate)
            )
    return cells


def _method(name: str, size: float, values: int, sizes: tuple[int, ...]) -> Method:
    return methods(size, values, sizes)[name]


@dataclass(frozen=True, slots=True)
class Job:
    """The cells of one task for one seed."""

    task: int
    seed: int
    kind: str
    """``codes``, ``others`` or ``weights``."""
    changes: tuple[str, ...] = ()
    """Changes of every cell, for searches."""
    only: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """The cells to run."""
        found = {"codes": codes, "others": others, "weights": weighings}[self.kind](TASKS[self.task])
        return [cell for cell in found if not self.only or cell.name in self.only]


def played(  # noqa: PLR0913, PLR0917 -- a job, and where it is played
    job: Job, out: Path, folder: Path, device: str, stop_at: float, rounds: int | None = None
) -> str:
    """Run a job, write its lines, and return a summary."""
    torch.set_num_threads(1)
    # Disabled: runs are compared with CPU runs, and TF32 rounds products to 11 bits.
    torch.backends.cudnn.allow_tf32 = False
    lockstep_module.GRAPHS = os.environ.get("LOCKSTEP_GRAPHS", "1") == "1"
    began, task = time.time(), TASKS[job.task]
    if rounds is not None:
        task = replace(task, rounds=rounds)
    done = {(row["task"], row["cell"], row["seed"], tuple(row["changes"])) for row in finished(out)}
    cells = [cell for cell in job.cells if (task.name, cell.name, job.seed, job.changes) not in done]
    if not cells:
        return "nothing is left"
    plain = task.configuration(job.seed, job.changes, device, folder)
    prepared = task.data(plain, folder)
    kept = Kept(prepared, device)
    pieces = pieces_of(plain, data=prepared, factory=task.factory)
    lockstep = Lockstep(pieces.factory, plain.local, device) if device.startswith("cuda") else None
    values = sum(value.numel() for value in pieces.factory().parameters())
    runs = list[Callable[[], None]]()
    for cell in cells:
        changes = cell.changes
        if changes[:1] == ("size",):
            bits = cohort_bits_of(float(changes[1]) - _MEDIAN_BYTES, values, COHORT)
            changes = (*changes[2:], f"compression.cohort_bits={max(bits, 0.2)}")
        configuration = task.configuration(job.seed, (*job.changes, *changes), device, folder)
        # Own pieces, so each thread has its own model to evaluate; with a shared one they would test each other's.
        own = pieces_of(configuration, data=prepared, factory=task.factory)
        own = replace(own, data=kept, optimizer=partial(_optimizer, configuration, cell))
        if lockstep is not None:
            own = replace(own, engine=lockstep.join(kept))
        runs.append(partial(_one, task, cell, job, configuration, own, stop_at, out))
    if lockstep is not None:
        play(runs, lockstep.leave)
    else:
        # On a CPU a stacked computation is slower than sequential clients.
        for run in runs:
            run()
    return f"{len(runs)} runs in {time.time() - began:.0f} s"


_WRITING: Final = threading.Lock()
_MEDIAN_BYTES: Final = 1
"""The vote for a length."""


def _optimizer(configuration: Configuration, cell: Cell) -> ServerOptimizer:
    """Return the server's step; configurations refuse momentum for these codes."""
    kind = Optimizer.FEDAVGM if cell.momentum else Optimizer.FEDAVG
    rate = configuration.server.rate * cell.rate
    return ServerOptimizer(ServerSettings(optimizer=kind, rate=rate, momentum=cell.momentum))


def _one(  # noqa: PLR0913, PLR0917 -- a job's parts
    task: Task, cell: Cell, job: Job, configuration: Configuration, pieces: Pieces, stop_at: float, out: Path
) -> None:
    """Run one run, and append its line."""
    began, run = time.time(), Run(configuration, pieces)
    sizes = tuple(value.size for value in run.parameters.values())
    method = None if cell.method is None else cell.method(run.values, sizes)
    probe = Probe(pieces.factory, configuration.device)
    tests, losses, trained, sent, auto = (
        dict[int, float](),
        dict[int, float](),
        list[float](),
        list[float](),
        list[Any](),
    )
    harms, warnings = dict[int, Any](), 0
    while run.next_round < task.rounds and time.time() < stop_at:
        number = run.next_round + 1
        if method is None:
            record = run.advance()
            trained.append(record.loss or 0.0)
            sent.append(record.payload_bytes)
            warnings += record.warning is not None
            test = record.test
            operators = run.operators
            if isinstance(operators, WholeUpdates):
                if operators.is_probed:
                    auto.append([number, round(operators.noise or 0, 4), record.payload_bytes])
                if number % max(1, task.rounds // 4) == 0:
                    harms[number] = _harm(run, probe, number)
        else:
            trained.append(_advanced(run, method))
            sent.append(method.bytes_up)
            test = pieces.evaluate(run.tensors()) if number % EVERY == 0 or number == task.rounds else None
        if test is None and cell.name.startswith("none") and number < EVERY:
            test = pieces.evaluate(run.tensors())
        if test is not None:
            tests[number], losses[number] = test.accuracy, round(test.loss, 5)
        if trained and not np.isfinite(trained[-1]):
            break
    line = (
        json.dumps(
            {
                "task": task.name,
                "cell": cell.name,
                "kind": job.kind,
                "seed": job.seed,
                "changes": list(job.changes),
                "rounds": run.next_round,
                "planned": task.rounds,
                "parameters": run.values,
                "cohort": configuration.clients_per_round,
                "clients": len(pieces.data.sizes),
                "data": run.about["data"][:16],
                "insecure": bool(method is not None and method.is_insecure),
                "bytes": round(float(np.mean(sent)), 1) if sent else None,
                "last bytes": sent[-1] if sent else None,
                "tests": tests,
                "test losses": losses,
                "train loss": round(float(np.mean(trained[-10:])), 5) if trained else None,
                "harms": harms,
                "auto": auto,
                "warnings": warnings,
                "device": _device(configuration.device),
                "seconds": round(time.time() - began, 1),
            }
        )
        + "\n"
    )
    with _WRITING, out.open("a", encoding="utf-8") as file:
        file.write(line)


def _advanced(run: Run, method: Method) -> float:
    """Run one round by another method, and return the clients' loss."""
    number = run.next_round
    clients = run.sample(number)[: run.configuration.clients_per_round]
    trained = list(
        run.pieces.engine.train(run.tensors(), [run.assignment(c, number) for c in clients], run.configuration.local)
    )
    updates = np.stack([np.concatenate([one.update[name].ravel() for name in run.parameters]) for one in trained])
    mean = method.mean(updates, tuple(one.client for one in trained), number)
    parted, at = dict[str, Any](), 0
    for name, value in run.parameters.items():
        parted[name] = mean[at : at + value.size].reshape(value.shape).astype(np.float32)
        at += value.size
    run.parameters = run.optimizer.step(run.parameters, parted)
    run.next_round += 1
    return float(np.average([one.loss for one in trained], weights=[one.examples for one in trained]))


def _harm(run: Run, probe: Probe, number: int) -> list[float]:
    """Return the noise of the current code, and its harm on a round's clients."""
    operators = run.operators
    if not isinstance(operators, WholeUpdates) or not (deviations := operators.deviations()):
        return []
    coins = generator(seed_of(run.configuration.seed, Stream.PROBE, number, 1))
    noise = {
        name: np.float32(deviations[name]) * coins.standard_normal(value.shape, dtype=np.float32)
        for name, value in run.parameters.items()
    }
    work = [run.assignment(client, number) for client in run.sample(number)[:COHORT]]
    told = probe.losses(run.parameters, noise, work, partial(seed_of, run.configuration.seed, Stream.PROBE, number))
    first, added, taken = np.mean(list(told.values()), axis=0).tolist()
    return [round(float(operators.noise or 0), 5), round((added + taken) / 2 - first, 6)]


def _device(name: str) -> str:
    return torch.cuda.get_device_name() if name.startswith("cuda") else "cpu"


def finished(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, without a truncated last one."""
    if not file.exists():
        return []
    found = list[dict[str, Any]]()
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each cell's addition to the training loss, paired by seed, and its fit to harm and noise.

    Accuracies are only of runs with valid tests: those that ran one at a time.
    """
    by_name = {(row["task"], row["cell"], row["seed"]): row for row in rows if row["rounds"] == row["planned"]}
    tasks = list[dict[str, Any]]()
    law = list[tuple[float, float, float]]()
    for task, cell in dict.fromkeys((row["task"], row["cell"]) for row in rows):
        found = [
            (by_name[task, "none", seed], by_name[task, cell, seed])
            for seed in sorted({row["seed"] for row in rows})
            if (task, cell, seed) in by_name and (task, "none", seed) in by_name
        ]
        if not found:
            continue
        excess = [mine["train loss"] - base["train loss"] for base, mine in found]
        sent = fmean(mine["bytes"] for _, mine in found)
        entry: dict[str, Any] = {
            "task": task,
            "cell": cell,
            "seeds": [mine["seed"] for _, mine in found],
            "insecure": found[0][1]["insecure"],
            "parameters": found[0][1]["parameters"],
            "clients": found[0][1]["clients"],
            "data": sorted({mine["data"] for _, mine in found}),
            "device": found[0][1]["device"],
            "bytes": round(sent, 1),
            "factor": round(4 * found[0][1]["parameters"] / sent, 1),
            "train loss": round(fmean(mine["train loss"] for _, mine in found), 4),
        } | interval("added train loss", excess, 4)
        if all(mine["tests"] for _, mine in found):
            entry |= interval("points lost", [100 * (last(base) - last(mine)) for base, mine in found], 2)
        harms = [list(mine["harms"].values())[1] for _, mine in found if len(mine["harms"]) > 1]
        if harms and all(harms) and "momentum" not in cell and "B," not in cell:
            noise, harm = (fmean(one[place] for one in harms) for place in (0, 1))
            entry |= {"noise at half": round(noise, 4), "harm at half": round(harm, 5)}
            law.append((harm, noise, fmean(excess)))
        tasks.append(entry)
    found_law = dict[str, Any]()
    if len(law) > LEAST_POINTS:
        harms_of, noises, added = (np.array(values) for values in zip(*law, strict=True))
        found_law = {
            "points": len(law),
            "added loss over harm": round(float(harms_of @ added / (harms_of @ harms_of)), 2),
            "correlation with harm": round(float(np.corrcoef(harms_of, added)[0, 1]), 3),
            "correlation with noise": round(float(np.corrcoef(noises, added)[0, 1]), 3),
        }
    return {"versions": versions_here(), "law": found_law, "cells": tasks}


LEAST_POINTS: Final = 2


def last(row: Mapping[str, Any]) -> float:
    """Return the mean of the last three tests."""
    return fmean(list(row["tests"].values())[-3:])


def interval(name: str, values: Sequence[float], digits: int) -> dict[str, Any]:
    """Return the mean of paired differences, with Student's interval where there are two or more."""
    found: dict[str, Any] = {name: round(fmean(values), digits)}
    if len(values) > 1:
        half = STUDENT[len(values) - 2] * stdev(values) / math.sqrt(len(values))
        found[f"{name}, interval"] = [round(fmean(values) - half, digits), round(fmean(values) + half, digits)]
    return found


def jobs(seeds: Sequence[int]) -> list[Job]:
    """Return all jobs, the most important first."""
    main = [Job(task, seed, "codes") for seed in seeds for task in range(len(TASKS))]
    compared = [Job(place, seed, "others") for seed in seeds for place, task in enumerate(TASKS) if task.is_compared]
    weighed = [Job(task, seed, "weights") for seed in seeds for task in range(len(TASKS))]
    return [*main, *compared, *weighed]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing jobs, or make the table of existing results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("out", type=Path, help="the file of finished runs, one line each")
    parser.add_argument("--data", type=Path, default=Path("build/data"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--rounds", type=int, help="number of rounds, instead of each task's")
    parser.add_argument("--tasks", type=int, nargs="+", help="by number")
    parser.add_argument("--kinds", nargs="+", default=["codes", "others"])
    parser.add_argument("--only", nargs="+", default=[], help="names of cells")
    parser.add_argument("--set", nargs="+", action="append", help="changes of every cell; a search has several")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.what == "table":
        found = summary(finished(options.out))
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for one in found["cells"]:
            row = "| {task} | {cell} | {bytes:,.0f} ({factor:g}x) | {train loss:.3f} | {added train loss:+.3f} |"
            print(row.format(**one), one.get("points lost", ""))
        print(found["law"])
        return 0
    stop_at = time.time() + options.seconds
    sets: list[list[str]] = options.set or [[]]
    due = [
        replace(job, only=tuple(options.only), changes=tuple(changes))
        for changes in sets
        for job in jobs(options.seeds)
        if (options.tasks is None or job.task in options.tasks) and job.kind in options.kinds
    ]
    missing = {task.file for task in TASKS if task.file and not (options.data / task.file).exists()}
    for file in sorted(missing):
        print(f"skipped: {options.data / file} does not exist", file=sys.stderr)
    due = [job for job in due if TASKS[job.task].file not in missing]
    # A fresh interpreter for each process: torch's threads and CUDA do not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(played, job, options.out, options.data, options.device, stop_at, options.rounds): job
            for job in due
        }
        for future in as_completed(futures):
            job = futures[future]
            try:
                said = future.result()
            except Exception:  # noqa: BLE001 -- the other jobs continue
                said = traceback.format_exc(limit=-4)
            seconds = time.time() - stop_at + options.seconds
            print(f"{seconds:.0f} s: {TASKS[job.task].name}, {job.seed}, {job.kind}: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
