"""Overhead of a training round over the training itself, and the gain of threads over sequential clients.

Not part of a suite, since it needs torch. Ratios of seconds need an idle machine, because other load slows two threads
more than one; ratios of processor time do not. The models' sizes and those of their clients are as in LEAF's sets and
the bundled images.

    python benchmarks/training_speed.py --json build/training_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch

from figures import Figure, best_seconds, machine
from secagg.training.configuration import Configuration, LocalTraining, changed
from secagg.training.driver import pieces_of
from secagg.training.engines import make_engine
from secagg.training.models import initial_parameters
from secagg.training.parts import Examples, Stream, seed_of
from secagg.training.presets import preset
from secagg.training.records import Accuracy
from secagg.training.rounds import Pieces, Run
from secagg.training.sums import secure_sum
from training_engines import LOADS, Load, assignments_of

CLIENTS = {"celeba": 100, "fashion": 40}
PRESETS = ("fashion-none", "fashion-sq", "fashion-prune", "fashion-pq")
PAPER_PRESETS = ("celeba-none", "celeba-sq", "celeba-prune", "celeba-pq")
"""The paper's model and cohort; clients have LEAF's numbers of images, but with noise, which takes the same time."""
FOREVER = ("rounds=1000000", "evaluation.every=1000000", "secagg.mode=ideal")
SPEED_TARGETS = {"fashion-sq": 230.0}
"""Clients in a second, on two cores."""


def engines(repetitions: int) -> Iterator[Figure]:
    """Train the same clients with both engines, in turns."""
    for name, count in CLIENTS.items():
        load = LOADS[name]
        work, settings = assignments_of(load, count), LocalTraining(batch=32, rate=0.01)
        start = initial_parameters(load.factory, seed_of(0, Stream.MODEL))
        contenders: dict[str, Callable[[], object]] = {
            engine: partial(_trained, partial(make_engine(engine, load.factory).train, start, work, settings))
            for engine in ("sequential", "threads")
        }
        seconds = best_seconds(contenders, repetitions)
        ratio = seconds["sequential"] / seconds["threads"]
        note = f"{count / seconds['threads']:.0f} against {count / seconds['sequential']:.0f} clients/s"
        yield Figure(name=f"threads / sequential, {name}", value=ratio, unit="", at_least=1.75, note=note)


def rounds(repetitions: int) -> Iterator[Figure]:
    """Run a round with the sum in the clear, and only its training, in turns."""
    for name in (*PAPER_PRESETS, *PRESETS):
        run = _warmed(changed(preset(name), FOREVER))
        number = run.next_round
        clients = run.sample(number)[: run.configuration.clients_per_round]
        work = [run.assignment(client, number) for client in clients]
        train = partial(run.pieces.engine.train, run.tensors(), work, run.configuration.local)
        contenders: dict[str, Callable[[], object]] = {"training": partial(_trained, train), "round": run.advance}
        worked, seconds = _best_of_both_clocks(contenders, repetitions, partial(run.restore, run.checkpoint()))
        overhead = 100 * (worked["round"] / worked["training"] - 1)
        yield Figure(name=f"processor time beyond training, {name}", value=overhead, unit="%", at_most=20)
        overhead = 100 * (seconds["round"] / seconds["training"] - 1)
        yield Figure(name=f"a round beyond its training, {name}", value=overhead, unit="%", at_most=20)
        yield Figure(
            name=f"clients in a second, {name}",
            value=len(work) / seconds["round"],
            unit="/s",
            at_least=SPEED_TARGETS.get(name),
        )


def protocols(repetitions: int) -> Iterator[Figure]:
    """Run rounds with the real protocol; all its parties run here one after another."""
    for name in PRESETS:
        run = _warmed(changed(preset(name), [*FOREVER, "secagg.mode=real", "secagg.every=1"]))
        records = [run.advance() for _ in range(repetitions)]
        best = min(records, key=lambda record: record.seconds["protocol"])
        training = min(record.seconds["train"] for record in records)
        note = f"{best.wire_up:.0f} bytes up of a client; training waits {1000 * training:.0f} ms"
        protocol = run.configuration.secagg.protocol
        yield Figure(name=f"{protocol}, {name}", value=1000 * best.seconds["protocol"], unit="ms", note=note)


def main() -> int:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = list[Figure]()
    for part in (engines, rounds, protocols):
        for figure in part(options.repetitions):
            found.append(figure)
            line = f"{figure.name:<46} {figure.value:>9.3f} {figure.unit:<3} {figure.target:<8} {figure.verdict:<7}"
            print(f"{line} {figure.note}".rstrip(), flush=True)
    if options.json:
        rows = [asdict(figure) | {"verdict": figure.verdict} for figure in found]
        host = {**machine(), "torch": torch.__version__, "load at the end": f"{os.getloadavg()[0]:.1f}"}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": host, "figures": rows}, indent=2) + "\n")
    return 0


def _warmed(configuration: Configuration) -> Run:
    """Return a run after its first rounds; the first one is uncompressed."""
    is_bundled = configuration.data.name == "fashion"
    run = Run(configuration, pieces_of(configuration) if is_bundled else _of_noise(configuration))
    for _ in range(2):
        run.advance()
    return run


class _Noise:
    """Data of a load, for a round's clients and one more."""

    def __init__(self, load: Load, clients: int) -> None:
        self.name = "noise"
        self._examples = [work.examples for work in assignments_of(load, clients + 1)]
        self.sizes = np.array([len(examples) for examples in self._examples], dtype=np.int64)

    def client(self, number: int) -> Examples:
        return self._examples[number]

    def test(self) -> Examples:
        return self._examples[0]


def _of_noise(configuration: Configuration) -> Pieces:
    load = LOADS[configuration.data.name]
    return Pieces(
        data=_Noise(load, configuration.clients_per_round),
        factory=load.factory,
        engine=make_engine("threads", load.factory),
        sum=secure_sum(configuration),
        evaluate=lambda _: Accuracy(accuracy=0.0, loss=0.0),
    )


def _best_of_both_clocks(
    contenders: Mapping[str, Callable[[], object]], repetitions: int, prepare: Callable[[], object]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each contender's minimum processor time over all threads, and its minimum time, measured in turns."""
    worked, seconds = dict.fromkeys(contenders, float("inf")), dict.fromkeys(contenders, float("inf"))
    for _ in range(repetitions):
        for name, contender in contenders.items():
            prepare()
            started = process_time(), perf_counter()
            contender()
            worked[name] = min(worked[name], process_time() - started[0])
            seconds[name] = min(seconds[name], perf_counter() - started[1])
    return worked, seconds


def _trained(train: Callable[[], Iterator[object]]) -> int:
    """Train, and discard each client's update immediately."""
    return sum(1 for _ in train())


if __name__ == "__main__":
    sys.exit(main())
