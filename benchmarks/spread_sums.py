"""Uploads that workers add: one message, 2^20 values of 8 bits planned for 10^4 clients; and pairwise masks taken off.

What a client uploads is uniform, so uploads of random bytes are generated once and replayed. The rate to compare with
is that at which numpy adds the same files as words; all rates are of one run, by turns, and the best of each is taken.
Masks are those of real seeds on the sparse graph of a session; they are made once, as the sum of uploads of zeros.

    python benchmarks/spread_sums.py --clients 96 --pairwise 10000 --rounds 2
    python benchmarks/spread_sums.py --clients 400 --storage /var/tmp/spread --engines memory processes ray
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract import Layout, RingSegment
from secagg.contract.pieces import Cut, Sums, piece_digests, pieces_of
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.key_agreement import KeyRole
from secagg.crypto.mask_expansion import SEGMENT_BYTES
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message.cut import OneMessageCut
from secagg.protocols.one_message.fitting import choose_committee, plan
from secagg.protocols.one_message.lattice.values import Values
from secagg.protocols.pairwise_mask import Topology, plan_session
from secagg.protocols.pairwise_mask.cut import PairwiseCut, keys_of
from secagg.protocols.pairwise_mask.graph import GRAPH_SEED_BYTES, Graph
from secagg.protocols.pairwise_mask.masking import adds_pairwise_mask, pairwise_mask_key, self_mask_key
from secagg.protocols.pairwise_mask.suites import MaskKeys, PublishedKeys, key_suite
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.work import Kind, Order, perform
from secagg.scale.workers import Workers, open_workers
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.runs.ray_cluster import cluster

LENGTH, BITS, CAPACITY = 1 << 20, 8, 10_000
BATCH = 64
ROOM = 64
"""Coordinates of a range that are left for check words and the weight."""
Uploads = list[tuple[ClientId, tuple[bytes, ...]]]
Contenders = dict[str, Callable[[], float]]


# --- What is added ----------------------------------------------------------------------------------------------------


def one_message_cut() -> OneMessageCut:
    """Return the pieces of 2^20 values of 8 bits in a sum of 10^4 clients."""
    values = [Values(LENGTH, (CAPACITY * 256).bit_length(), (-128, 127)), Values(1, CAPACITY.bit_length())]
    return OneMessageCut(bytes(32), plan(values, CAPACITY, choose_committee(5, 1)), bytes(32))


def pairwise_cut(clients: int, dropped: int, length: int) -> PairwiseCut:
    """Return the pieces of a pairwise session; check words and weight fill the last one."""
    configuration = plan_session(
        Layout((RingSegment((clients << BITS).bit_length(), length - ROOM),)),
        InsecureSeededCoins(b"spread"),
        population=clients,
        corrupted=clients // 20,
        dropped=dropped,
        mode=SecurityMode.SEMI_HONEST,
        topology=Topology.SPARSE,
        maximum_weight=1,
    ).configuration
    return PairwiseCut.of(bytes([1] * 32), configuration)


def generate(cut: Cut, folder: Path, clients: int) -> Uploads:
    """Store random pieces, once; the last one is of zeros, because bits that fill a plane must be zero."""
    store, uploads, generator = FolderStore(folder), Uploads(), np.random.default_rng(1)
    for number in range(clients):
        client = ClientId(number + 1)
        vector = generator.bytes(sum(cut.lengths[:-1])) + bytes(cut.lengths[-1])
        digests = piece_digests(cut.context, client, cut.lengths, vector)
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
    return in_processes(lambda index: plain(cut, uploads[index::count], folder), count)


def in_processes(part: Callable[[int], None], count: int) -> float:
    """Run the parts of some work at once, and wait for the last."""
    context, barrier = get_context("fork"), get_context("fork").Barrier(count + 1)

    def child(index: int) -> None:
        barrier.wait()
        part(index)

    children = [context.Process(target=child, args=(index,)) for index in range(count)]
    for process in children:
        process.start()
    barrier.wait()
    started = perf_counter()
    for process in children:
        process.join()
        assert process.exitcode == 0
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


def left_keys(cut: PairwiseCut, clients: int, dropped: int) -> bytes:
    """Agree on real seeds, and return the keys of the masks that are left when some drop out after sharing theirs."""
    configuration, suite, coins = cut.configuration, key_suite(Suite.CLASSIC), InsecureSeededCoins(b"keys")
    attempt, context = configuration.context, SessionContext(cut.context)
    graph = Graph(Topology.SPARSE, clients, configuration.degree_among(clients), bytes(GRAPH_SEED_BYTES))
    own, published, gone = list[MaskKeys](), list[PublishedKeys](), frozenset(range(0, clients, clients // dropped))
    for number in range(clients):
        root, client = Secret("root", coins.draw(32)), ClientId(number)
        own.append(MaskKeys(client, suite.key_pair(root, KeyRole.MASK, attempt), root))
        published.append(PublishedKeys(client, None, own[-1].pair.public_key))
    keys = list[tuple[bool, Secret]]()
    for number in range(clients):
        if number not in gone:
            seed = Secret("seed", coins.draw(32))
            keys.append((False, self_mask_key(seed, ClientId(number), context, configuration)))
            continue
        for other in graph.neighbours(number):
            if other not in gone:
                seed = suite.seed_of_sent_edge(own[number], published[other], context, b"")
                key = pairwise_mask_key(seed, ClientId(number), ClientId(other), context, configuration)
                keys.append((not adds_pairwise_mask(ClientId(other), ClientId(number)), key))
    return bytes(keys_of(keys))


def masked_sum(cut: PairwiseCut, keys: bytes) -> bytes:
    """Return the packed sum of uploads of zeros: the masks that are to be removed, each of the other sign."""
    size, flipped = cut.configuration.suite.mask_key_bytes + 1, bytearray(keys)
    flipped[::size] = bytes(1 - sign for sign in keys[::size])

    def masks_of(number: int) -> Sums:
        return cut.open(cut.zeros(number), number, bytes(flipped))

    with ThreadPoolExecutor(2) as pool:
        pieces = list(pool.map(masks_of, range(len(cut.lengths))))
    return b"".join(cut.joined(pieces).pack())


def unmask(cut: PairwiseCut, vector: bytes, keys: bytes, folder: Path, workers: Workers) -> float:
    """Have workers take all masks off, range by range."""
    total = SpreadSum(cut, workers, SpreadSettings(storage=str(folder)), coins=SystemCoins())
    digests = piece_digests(cut.context, ClientId(0), cut.lengths, vector)
    total.add(ClientId(0), digests, total.keep(ClientId(0), digests, vector))
    assert not total.settle()
    started = perf_counter()
    opened = total.open(keys)
    seconds = perf_counter() - started
    total.end()
    assert not any(words.any() for piece in opened for words in piece)
    return seconds


def unmask_barely(cut: PairwiseCut, keys: bytes, count: int) -> float:
    """Expand and add the same streams, in processes that know nothing of each other or of this library."""
    size = cut.configuration.suite.mask_key_bytes + 1
    starts = range(0, len(keys), size)

    def part(index: int) -> None:
        stream = bytearray(SEGMENT_BYTES + 16)
        for number in range(len(cut.lengths))[index::count]:
            (total, *_), zeros = cut.zeros(number), bytes(sum(words.nbytes for words in cut.zeros(number)))
            words = np.frombuffer(stream, np.uint32, total.size)
            for at in starts:
                AESGCM(keys[at + 1 : at + size]).encrypt_into(
                    number.to_bytes(12, "big"), zeros, None, memoryview(stream)[: len(zeros) + 16]
                )
                (np.add if keys[at] else np.subtract)(total, words, out=total)

    return in_processes(part, count)


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
    parser.add_argument("--pairwise", type=int, default=400, help="clients whose pairwise masks are taken off")
    parser.add_argument("--dropped", type=int, help="of these (default: one in twenty)")
    parser.add_argument("--ranges", type=int, default=2, help="of 2^18 values, of which masks are taken off")
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
        cut = one_message_cut()
        generated = generate(cut, folder, options.clients)
        # Batches of other clients are other jobs, which count beside the first ones.
        uploads = [one for turn in range(options.replays) for one in generated[turn:] + generated[:turn]]
        contenders: Contenders = {
            "numpy": partial(by_numpy, cut, uploads, folder),
            "plain 1": partial(by_plain_processes, cut, uploads, folder, 1),
            "plain 2": partial(by_plain_processes, cut, uploads, folder, 2),
            "memory": partial(by_engine, cut, uploads, folder, open_workers("memory", 1)),
        }
        clients, dropped = options.pairwise, options.dropped or options.pairwise // 20
        pairwise = pairwise_cut(clients, dropped, options.ranges * SEGMENT_BYTES // 4)
        started = perf_counter()
        keys = left_keys(pairwise, clients, dropped)
        figures = {
            "masks that are left": len(keys) / (pairwise.configuration.suite.mask_key_bytes + 1),
            "neighbours": float(pairwise.configuration.degree),
            "agreeing on seeds, s": perf_counter() - started,
        }
        vector = masked_sum(pairwise, keys)
        masks: Contenders = {f"unmask plain {count}": partial(unmask_barely, pairwise, keys, count) for count in (1, 2)}
        opened = list[Workers]()
        for engine in options.engines:
            for count in (1, 2):
                workers = open_workers(engine, count)
                opened.append(workers)
                contenders[f"{engine} {count}"] = partial(by_engine, cut, uploads, folder, workers)
                masks[f"unmask {engine} {count}"] = partial(unmask, pairwise, vector, keys, folder, workers)
        seconds = best(contenders | masks, options.rounds, folder if options.cold else None)
        ingest = {name: each for name, each in seconds.items() if name not in masks}
        figures |= rows(ingest, len(uploads) * sum(cut.lengths))
        figures |= {f"{name}, s": each for name, each in seconds.items() if name in masks}
        for who in ("plain", *options.engines):
            figures[f"unmask {who}: two / one"] = seconds[f"unmask {who} 1"] / seconds[f"unmask {who} 2"]
        figures["load over a minute, at the end"] = os.getloadavg()[0]
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
