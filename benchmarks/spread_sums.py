"""Uploads added by workers: one message, 2^20 values of 8 bits planned for 10^4 clients; and a session of that size.

Uploads are uniform, so pieces of random bytes are stored once and added by tasks, with each engine. The baseline is
numpy's rate of adding the same files as words; all rates are measured in turns in one run, and the best of each counts.
Uploads are replayed under other names, because a finished task is not repeated. Each bound is printed with its figure.
A test measures a task's memory (``tests/scale/test_sums.py``).

    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(printf %064d 7) RAY_worker_niceness=0
    python benchmarks/spread_sums.py --replays 50 --rounds 2 --engines processes ray --session 10000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from secagg.planning.seconds import layout_for, run_session
from secagg.protocols.one_message import OneMessageCut
from secagg.protocols.one_message.parameters import Values
from secagg.protocols.one_message.session import choose_committee, plan
from secagg.scale.engines import Engine, open_engine
from secagg.scale.storage import Objects, Task
from secagg.session.registry import find

LENGTH, CAPACITY, BATCH = 1 << 20, 10_000, 256
"""Defaults of a sum."""
SHORT = 64
"""Number of values of a session's clients, so that the rest is everything except the vector."""
KEY = bytes(range(32))


def one_message_cut() -> OneMessageCut:
    """Return the pieces of 2^20 values of 8 bits in a sum of 10^4 clients."""
    values = [Values(LENGTH, (CAPACITY * 256).bit_length(), (-128, 127)), Values(1, CAPACITY.bit_length())]
    return OneMessageCut(bytes(32), plan(values, CAPACITY, choose_committee(5, 1)), bytes(32))


def generate(cut: OneMessageCut, folder: Path, clients: int) -> None:
    """Store random pieces; the last one is zeros, because padding bits of a plane must be zero."""
    objects, generator = Objects(str(folder), KEY), np.random.default_rng(1)
    for client in range(clients):
        for number, length in enumerate(cut.lengths):
            piece = generator.bytes(length) if number + 1 < len(cut.lengths) else bytes(length)
            objects.put(f"pieces/{client}/{number}", piece)


def by_engine(cut: OneMessageCut, folder: Path, clients: int, replays: int, engine: Engine) -> float:
    """Add everything with an engine, in different batches in every replay."""
    for sums in folder.glob("*/sums"):
        shutil.rmtree(sums)
    started, left = perf_counter(), 0
    for turn in range(replays):
        order = [(turn + client) % clients for client in range(clients)]
        for first in range(0, clients, BATCH):
            for number in range(len(cut.lengths)):
                inputs = tuple(f"pieces/{client}/{number}" for client in order[first : first + BATCH])
                engine.submit(Task(storage=str(folder), key=KEY, cut=cut, piece=number, inputs=inputs))
                left += 1
    while left:
        for _, error in engine.wait(60):
            assert error is None, error
            left -= 1
    return perf_counter() - started


def by_numpy(cut: OneMessageCut, folder: Path, clients: int, replays: int) -> float:
    """Add the files as words of 32 bits to sums of 64, one read and one addition for each."""
    (pieces,) = folder.glob("*/pieces")
    sums = [np.zeros(length // 4, np.uint64) for length in cut.lengths]
    started = perf_counter()
    for _ in range(replays):
        for client in range(clients):
            for number, total in enumerate(sums):
                np.add(total, np.fromfile(pieces / f"{client}/{number}", np.uint32, total.size), out=total)
    return perf_counter() - started


def main() -> None:
    """Print a table, and write it if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--replays", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage", type=Path, default=Path("build/spread"))
    parser.add_argument("--engines", nargs="*", default=["processes"], choices=("processes", "ray"))
    parser.add_argument("--session", type=int, metavar="CLIENTS", help="run a session in this process as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder, cut = options.storage.absolute(), one_message_cut()
    generate(cut, folder, options.clients)
    size = options.clients * options.replays * sum(cut.lengths)
    given = (cut, folder, options.clients, options.replays)
    seconds = dict[str, float]()
    try:
        numpy: Callable[[], float] = partial(by_numpy, *given)
        for engine, count in (("memory", 1), *((each, count) for each in options.engines for count in (1, 2))):
            opened = open_engine(engine, count)
            name, run = f"{engine} {count}", partial(by_engine, *given, opened)
            run()  # Imports and starts.
            for _ in range(options.rounds):
                for who, contender in (("numpy", numpy), (name, run)):
                    seconds[who] = min(seconds.get(who, float("inf")), contender())
            opened.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {f"{name}, MB/s": size / each / 1e6 for name, each in seconds.items()}
    bounds = dict[str, str]()
    for engine in options.engines:
        figures[two := f"{engine}: two workers / one, rate"] = seconds[f"{engine} 1"] / seconds[f"{engine} 2"]
        figures[rate := f"{engine}: two workers / numpy, rate"] = seconds["numpy"] / seconds[f"{engine} 2"]
        bounds |= {two: ">= 1.8", rate: ">= 0.6"}
    if len(options.engines) > 1:
        figures[name := "ray / processes, one worker, time"] = seconds["ray 1"] / seconds["processes 1"]
        bounds[name] = "<= 1.15"
    if options.session:
        sample = run_session(find("one-message"), layout_for(options.session, SHORT), options.session)
        figures[name := "session: ms of the processor for a client"] = 1e3 * sample.seconds / options.session
        bounds[name] = "<= 6"
    figures["load over a minute, at the end"] = os.getloadavg()[0]
    for name, figure in figures.items():
        print(f"{name:<45} {figure:>10.2f} {bounds.get(name, '')}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
