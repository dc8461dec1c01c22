"""Uploads that workers add: one message, 2^20 values of 8 bits planned for 10^4 clients; and pairwise masks taken off.

What a client uploads is uniform, so uploads of random bytes are generated once and replayed. The rate to compare with
is that at which numpy adds the same files as words; all rates are of one run, by turns, and the best of each is taken.

    python benchmarks/spread_sums.py --clients 400 --storage /var/tmp/spread --engines memory processes ray
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np

from secagg.contract import Layout, RingSegment
from secagg.contract.pieces import Cut, piece_digests, pieces_of
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.cut import OneMessageCut
from secagg.protocols.one_message.fitting import choose_committee, plan
from secagg.protocols.one_message.lattice.values import Values
from secagg.protocols.pairwise_mask import Topology, plan_session
from secagg.protocols.pairwise_mask.cut import PairwiseCut, keys_of
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.work import Kind, Order, perform
from secagg.scale.workers import Workers, open_workers
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.runs.ray_cluster import cluster

LENGTH, BITS, CAPACITY = 1 << 20, 8, 10_000
BATCH = 64
Uploads = list[tuple[ClientId, tuple[bytes, ...]]]
Contenders = dict[str, Callable[[], float]]


# --- What is added ----------------------------------------------------------------------------------------------------


def one_message_cut() -> OneMessageCut:
    """Return the pieces of 2^20 values of 8 bits in a sum of 10^4 clients."""
    values = [Values(LENGTH, (CAPACITY * 256).bit_length(), (-128, 127)), Values(1, CAPACITY.bit_length())]
    return OneMessageCut(bytes(32), plan(values, CAPACITY, choose_committee(5, 1)), bytes(32))


def pairwise_cut() -> PairwiseCut:
    """Return the same of a pairwise session."""
    configuration = plan_session(
        Layout((RingSegment((CAPACITY << BITS).bit_length(), LENGTH),)),
        InsecureSeededCoins(b"spread"),
        population=CAPACITY,
        corrupted=CAPACITY // 20,
        dropped=CAPACITY // 20,
        mode=SecurityMode.SEMI_HONEST,
        topology=Topology.SPARSE,
        maximum_weight=1,
    ).configuration
    return PairwiseCut(bytes(32), configuration)


def generate(cut: Cut, folder: Path, clients: int) -> Uploads:
    """Store random pieces, once; the last one is of zeros, because bits that fill a plane must be zero."""
    store, uploads, generator = FolderStore(folder), Uploads(), np.random.default_rng(1)
    for number in range(clients):
        client = ClientId(number + 1)
        vector = generator.bytes(sum(cut.lengths[:-1])) + bytes(cut.lengths[-1])
        digests = piece_digests(cut.context, client, vector, cut.lengths)
        for digest, piece in zip(digests, pieces_of(vector, cut.lengths), strict=True):
            store.put(piece_name(cut.context, client, digest), piece)
        uploads.append((client, digests))
    return uploads


# --- Who adds it ------------------------------------------------------------------------------------------------------


def by_engine(cut: Cut, uploads: Uploads, folder: Path, workers: Workers) -> float:
    """Ingest through a ``SpreadSum``, until the last partial sum is merged."""
    settings = SpreadSettings(storage=str(folder), clients_in_a_batch=BATCH, keeps_pieces=True)
    total, started = SpreadSum(cut, workers, settings, coins=SystemCoins()), perf_counter()
    for client, digests in uploads:
        total.add(client, digests, b"")
    assert not total.settle()
    seconds = perf_counter() - started
    total.end()
    return seconds


def plain(cut: Cut, uploads: Uploads, folder: Path) -> None:
    """Do what workers do, one job after another, without any engine."""
    for first in range(0, len(uploads), BATCH):
        for number in range(len(cut.lengths)):
            entries = tuple((c.value, digests[number : number + 1]) for c, digests in uploads[first : first + BATCH])
            order = Order(
                key="", kind=Kind.ADD, storage=str(folder), cut=cut, first=number, end=number + 1, entries=entries
            )
            assert perform(order).digest


def by_plain_processes(cut: Cut, uploads: Uploads, folder: Path, count: int) -> float:
    """Divide clients among processes that know nothing of each other, and wait for the last."""
    context, barrier = get_context("fork"), get_context("fork").Barrier(count + 1)

    def part(index: int) -> None:
        barrier.wait()
        plain(cut, uploads[index::count], folder)

    children = [context.Process(target=part, args=(index,)) for index in range(count)]
    for child in children:
        child.start()
    barrier.wait()
    started = perf_counter()
    for child in children:
        child.join()
        assert child.exitcode == 0
    return perf_counter() - started


def by_numpy(cut: Cut, uploads: Uploads, folder: Path) -> float:
    """Add the files as words of 32 bits to sums of 64, one read and one addition for each."""
    sums = [np.zeros(length // 4, np.uint64) for length in cut.lengths]
    started = perf_counter()
    for client, digests in uploads:
        for total, digest in zip(sums, digests, strict=True):
            words = np.fromfile(folder / piece_name(cut.context, client, digest), np.uint32, total.size)
            np.add(total, words, out=total)
    return perf_counter() - started


# --- Pairwise masks ---------------------------------------------------------------------------------------------------


def unmask(cut: PairwiseCut, folder: Path, workers: Workers, masks: int) -> float:
    """Take so many masks off a sum."""
    total = SpreadSum(cut, workers, SpreadSettings(storage=str(folder)), coins=SystemCoins())
    vector = bytes(sum(cut.lengths))
    digests = piece_digests(cut.context, ClientId(0), vector, cut.lengths)
    total.add(ClientId(0), digests, total.keep(ClientId(0), digests, vector))
    assert not total.settle()
    keys = bytes(keys_of((number % 2 == 0, Secret("key", number.to_bytes(16, "big"))) for number in range(masks)))
    started = perf_counter()
    total.open(keys)
    seconds = perf_counter() - started
    total.end()
    return seconds


# --- Rates ------------------------------------------------------------------------------------------------------------


def drop_from_cache(folder: Path) -> None:
    """Have everything read from the disk, as where uploads are more than memory holds."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def best(contenders: Contenders, rounds: int, cold: Path | None = None) -> dict[str, float]:
    """Run everything by turns, and return the best of each."""
    seconds = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            if cold is not None:
                drop_from_cache(cold)
            seconds[name] = min(seconds[name], run())
    return seconds


def rows(seconds: dict[str, float], size: float) -> Iterator[tuple[str, float]]:
    """Return rates in MB/s, and the ratios that are aimed at."""
    for name, each in seconds.items():
        yield f"{name}, MB/s", size / each / 1e6
    one = {name.removesuffix(" 1"): each for name, each in seconds.items() if name.endswith(" 1")}
    for name, each in one.items():
        with suppress(KeyError):
            yield f"{name}: two / one", each / seconds[f"{name} 2"]
        if name != "plain":
            yield f"{name} 1 / one plain process, time", each / seconds["plain 1"]
    yield "memory / numpy, rate", seconds["numpy"] / seconds["memory"]


def main() -> None:
    """Print a table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--replays", type=int, default=1, help="read uploads so often, in other batches each time")
    parser.add_argument("--masks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage", type=Path, default=Path("build/spread"))
    parser.add_argument("--engines", nargs="*", default=["processes"], choices=("processes", "ray"))
    parser.add_argument("--cold", action="store_true", help="drop uploads from the page cache before each run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder: Path = options.storage
    connected = cluster(processes=4) if "ray" in options.engines else nullcontext()
    connected.__enter__()
    try:
        cut, pairwise = one_message_cut(), pairwise_cut()
        generated = generate(cut, folder, options.clients)
        # Batches of other clients are other jobs, which count beside the first ones.
        uploads = [one for turn in range(options.replays) for one in generated[turn:] + generated[:turn]]
        contenders: Contenders = {
            "numpy": partial(by_numpy, cut, uploads, folder),
            "plain 1": partial(by_plain_processes, cut, uploads, folder, 1),
            "plain 2": partial(by_plain_processes, cut, uploads, folder, 2),
            "memory": partial(by_engine, cut, uploads, folder, open_workers("memory", 1)),
        }
        masks, opened = dict[str, Callable[[], float]](), list[Workers]()
        for engine in options.engines:
            for count in (1, 2):
                workers = open_workers(engine, count)
                opened.append(workers)
                contenders[f"{engine} {count}"] = partial(by_engine, cut, uploads, folder, workers)
                masks[f"unmask {engine} {count}"] = partial(unmask, pairwise, folder, workers, options.masks)
        figures = dict(
            rows(best(contenders, options.rounds, folder if options.cold else None), len(uploads) * sum(cut.lengths))
        )
        unmasked = best(masks, options.rounds)
        for engine in options.engines:
            one, two = unmasked[f"unmask {engine} 1"], unmasked[f"unmask {engine} 2"]
            figures[f"unmask {engine}, s for {options.masks} masks"] = one
            figures[f"unmask {engine}: two / one"] = one / two
        for workers in opened:
            workers.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        connected.__exit__(None, None, None)
    for name, figure in figures.items():
        print(f"{name:<45} {figure:>10.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
