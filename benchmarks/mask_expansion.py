"""Speed of expanding and adding masks, against the cipher without them."""

from __future__ import annotations

import multiprocessing
from collections import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import SEGMENT_BYTES, Generator, accumulate, fastest
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret

RING = Ring(32)
MASKS = 100
RAW_CHUNKS = tuple(1 << log2 for log2 in range(16, 21))
ROUNDS = 9


def measure() -> Iterator[Figure]:
    """Take every figure of this file; each ratio comes from contenders that ran in turns."""
    keys = [Secret.random("mask_key", 16, SystemCoins()) for _ in range(MASKS)]
    yield from _against_raw(keys, log2_words=20)
    yield from _against_raw(keys[:20], log2_words=24)
    yield from _scaling(keys)
    yield from _narrow_words(keys)


def _against_raw(keys: list[Secret], log2_words: int) -> Iterator[Figure]:
    total = RING.zeros(1 << log2_words)
    made = len(keys) * total.nbytes
    contenders: dict[str, Callable[[], object]] = {
        f"raw {chunk}": partial(_raw_ctr, keys, total.nbytes, chunk) for chunk in RAW_CHUNKS
    }
    contenders |= {f"raw gcm {chunk}": partial(_raw_gcm, keys, total.nbytes, chunk) for chunk in RAW_CHUNKS}
    contenders |= {generator.value: partial(_fused, total, keys, generator, 1) for generator in Generator}
    seconds = best_seconds(contenders, ROUNDS if log2_words == 20 else 4)
    raw = min(seconds[f"raw {chunk}"] for chunk in RAW_CHUNKS)
    raw_gcm = min(seconds[f"raw gcm {chunk}"] for chunk in RAW_CHUNKS)
    size = f"{len(keys)} masks x 2^{log2_words} words"
    yield Figure(name=f"raw AES-128-CTR, {size}", value=made / raw / 1e9, unit="GB/s")
    yield Figure(name=f"raw AES-128-GCM, {size}", value=made / raw_gcm / 1e9, unit="GB/s")
    large = log2_words > 20
    ctr, gcm = raw / seconds["ctr"], raw / seconds["gcm"]
    yield Figure(
        name=f"fused / raw CTR, CTR generator, {size}", value=ctr, unit="ratio", at_least=0.72 if large else 0.78
    )
    yield Figure(name=f"fused / raw CTR, GCM generator, {size}", value=gcm, unit="ratio")
    chosen = fastest(16).value
    better = min(seconds[generator.value] for generator in Generator)
    name = f"faster generator / the one that is chosen here ({chosen}), {size}"
    yield Figure(name=name, value=better / seconds[chosen], unit="ratio", at_least=0.95)
    yield Figure(name=f"fused / raw GCM, GCM generator, {size}", value=raw_gcm / seconds["gcm"], unit="ratio")


def _scaling(keys: list[Secret]) -> Iterator[Figure]:
    total = RING.zeros(1 << 20)
    for generator in Generator:
        with _two_processes(keys, generator) as run_processes:
            seconds = best_seconds(
                {
                    "one thread": partial(_fused, total, keys, generator, 1),
                    "two threads": partial(_fused, total, keys, generator, 2),
                    "two processes": run_processes,
                },
                2 * ROUNDS,
            )
        threads = seconds["one thread"] / seconds["two threads"]
        processes = seconds["one thread"] / seconds["two processes"]
        yield Figure(name=f"two processes / one thread, {generator.value}", value=processes, unit="times")
        quiet = processes >= 1.8
        yield Figure(
            name=f"two threads / one thread, {generator.value}",
            value=threads,
            unit="times",
            at_least=1.6 if quiet else None,
            note="" if quiet else "no verdict: two processes did not reach 1.8, so the machine is busy or limited",
        )


def _narrow_words(keys: list[Secret]) -> Iterator[Figure]:
    """Narrow rings need less stream: time of one mask of 2^20 elements against the 32-bit ring."""
    rings = {bits: Ring(bits) for bits in (8, 16, 32)}
    totals = {bits: ring.zeros(1 << 20) for bits, ring in rings.items()}
    seconds = best_seconds(
        {str(bits): partial(accumulate, totals[bits], ring, add=keys, subtract=[]) for bits, ring in rings.items()},
        ROUNDS,
    )
    for bits in (8, 16):
        yield Figure(
            name=f"time in the {bits}-bit ring / in the 32-bit ring",
            value=seconds[str(bits)] / seconds["32"],
            unit="ratio",
        )


def _fused(total: RingVector, keys: list[Secret], generator: Generator, threads: int) -> None:
    half = len(keys) // 2
    accumulate(total, RING, add=keys[:half], subtract=keys[half:], threads=threads, generator=generator)


def _raw_ctr(keys: list[Secret], stream_bytes: int, chunk: int) -> None:
    zeros, buffer = bytes(chunk), bytearray(chunk)
    for key in keys:
        encryptor = Cipher(algorithms.AES(key.expose()), modes.CTR(bytes(16))).encryptor()
        for _ in range(stream_bytes // chunk):
            encryptor.update_into(zeros, buffer)


def _raw_gcm(keys: list[Secret], stream_bytes: int, chunk: int) -> None:
    zeros, buffer = bytes(chunk), bytearray(chunk + 16)
    for key in keys:
        cipher = AESGCM(key.expose())
        for segment in range(stream_bytes // chunk):
            cipher.encrypt_into(segment.to_bytes(12, "big"), zeros, None, buffer)


@contextmanager
def _two_processes(keys: list[Secret], generator: Generator) -> abc.Generator[Callable[[], object]]:
    """Yield a function that makes two waiting processes each process half of the vector."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(2)]
    processes = [fork.Process(target=_serve_half, args=(theirs, keys, generator), daemon=True) for _, theirs in pipes]
    for process in processes:
        process.start()

    def run() -> None:
        for ours, _ in pipes:
            ours.send("work")
        for ours, _ in pipes:
            ours.recv()

    yield run
    for (ours, _), process in zip(pipes, processes, strict=True):
        ours.send("stop")
        process.join()


def _serve_half(pipe: Connection[object, object], keys: list[Secret], generator: Generator) -> None:
    half = RING.zeros(1 << 19)
    while pipe.recv() == "work":
        _fused(half, keys, generator, 1)
        pipe.send("done")


assert SEGMENT_BYTES in RAW_CHUNKS, "the floor must be measured at the library's own segment size too"
