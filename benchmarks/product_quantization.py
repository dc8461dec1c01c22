"""Speed of finding codewords on one thread (against faiss if installed), and of decoding and learning codebooks.

The number of threads of a BLAS is fixed when it is loaded, so the measurements run in a separate process:
``python product_quantization.py`` prints them as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from figures import Figure, best_seconds
from secagg.compression.byte_accounting import is_bias
from secagg.compression.product_quantization import ProductQuantization, calibrate, is_quantizable
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from tests.harness.paper_models import FEMNIST_3_CHANNEL

WEIGHTS = 10_000_000
CODEWORDS = 64
CLIENTS = 10
ROUNDS = 5
SEED = bytes(32)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Tensor = npt.NDArray[np.float32]


def measure() -> Iterator[Figure]:
    """Encode and decode on one thread, and learn codebooks on two."""
    for what, threads in (("code", "1"), ("learn", "2")):
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, threads)
        command = [sys.executable, str(Path(__file__).resolve()), what]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603 -- this file
        for row in json.loads(done.stdout):
            yield Figure(**row)


def coding() -> Iterator[Figure]:
    """Encode 10M weights, and decode a histogram of ten clients."""
    for block_size in (8, 18):
        update = uneven((WEIGHTS // (block_size * 512), 512 * block_size), number=block_size)
        scheme = calibrate(update, block_size=block_size, codewords=CODEWORDS, seed=SEED)
        payload = scheme.encode(update, SystemCoins())
        contenders: dict[str, Callable[[], object]] = {"ours": partial(scheme.encode, update, SystemCoins())}
        search = _peer(scheme, update)
        if search is not None:
            contenders["peer"] = search
        seconds = best_seconds(contenders, ROUNDS)
        name = f"encode {WEIGHTS / 1e6:.0f}M weights, k={CODEWORDS}, d={block_size}, one thread"
        yield Figure(
            name=name, value=seconds["ours"] * 1e3, unit="ms", note=f"{_bits_per_weight(scheme):.3f} bits a weight"
        )
        if search is not None:
            yield Figure(
                name="the same / IndexFlatL2 of faiss", value=seconds["ours"] / seconds["peer"], unit="", at_most=1.0
            )
            excess = _excess(scheme, update, payload.values[0], search()[1][:, 0])
            yield Figure(name="the same, squared error / that of faiss - 1", value=excess, unit="", at_most=2.0**-17)
        peak = peak_bytes(partial(scheme.encode, update, SystemCoins()))
        yield Figure(
            name="the same, memory with the input / input", value=1 + peak / update.nbytes, unit="", at_most=1.5
        )
        aggregate = ideal_aggregate(scheme.layout, [payload] * CLIENTS)
        decoded = best_seconds({"decode": partial(scheme.decode, aggregate)}, 3)["decode"]
        yield Figure(name=f"decode its histogram, d={block_size}, one thread", value=decoded * 1e3, unit="ms")
        twice = calibrate(update, block_size=block_size, codewords=CODEWORDS, seed=SEED, stages=2)
        encoded = best_seconds({"encode": partial(twice.encode, update, SystemCoins())}, 3)["encode"]
        note = f"{_bits_per_weight(twice):.3f} bits a weight"
        yield Figure(
            name=f"encode with a second stage, d={block_size}, one thread", value=encoded * 1e3, unit="ms", note=note
        )


def learning() -> Iterator[Figure]:
    """Learn the codebooks of a whole ResNet-18, one for each tensor."""
    shapes = {name: shape for name, shape in FEMNIST_3_CHANNEL.items() if not is_bias(name)}
    for block_size in (8, 18):
        updates = [
            uneven(shape, number) for number, shape in enumerate(shapes.values()) if is_quantizable(shape, block_size)
        ]
        seconds = best_seconds({"learn": partial(_learn_all, updates, block_size)}, 2)["learn"]
        name = f"k-means of {sum(map(np.size, updates)) / 1e6:.1f}M weights, k={CODEWORDS}, d={block_size}, two threads"
        yield Figure(name=name, value=seconds, unit="s", at_most=20)


def _learn_all(updates: list[Tensor], block_size: int) -> None:
    for update in updates:
        calibrate(update, block_size=block_size, codewords=CODEWORDS, seed=SEED)


def uneven(shape: tuple[int, ...], number: int) -> Tensor:
    """Return normally distributed numbers whose size differs from row to row, like that of updates."""
    generator = np.random.default_rng(number)
    sizes = generator.gamma(1.0, 1e-3, (shape[0], *(1 for _ in shape[1:])))
    return generator.standard_normal(shape, dtype=np.float32) * sizes.astype(np.float32)


def _peer(scheme: ProductQuantization, update: Tensor) -> Callable[[], Any] | None:
    """Return faiss's exact search for the same blocks and codewords, if it is installed."""
    if importlib.util.find_spec("faiss") is None:
        return None
    faiss: Any = importlib.import_module("faiss")
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatL2(scheme.block_size)
    index.add(np.ascontiguousarray(scheme.codebooks[0].values))
    return partial(index.search, update.reshape(-1, scheme.block_size), 1)


def _excess(scheme: ProductQuantization, update: Tensor, found: npt.NDArray[Any], best: npt.NDArray[Any]) -> float:
    """Return the relative excess of the squared error with one choice of codewords over another."""
    blocks, codewords = update.reshape(-1, scheme.block_size).astype(np.float64), scheme.codebooks[0].values
    errors = [float(np.square(blocks - codewords[indices]).sum()) for indices in (found, best)]
    return errors[0] / errors[1] - 1


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak memory of a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _bits_per_weight(scheme: ProductQuantization) -> float:
    return 8 * scheme.layout.payload_bytes / prod(scheme.shape)


if __name__ == "__main__":
    suite = {"code": coding, "learn": learning}[sys.argv[1]]
    print(json.dumps([asdict(figure) for figure in suite()]))
