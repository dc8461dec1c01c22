"""Speed of encoding a whole update as peaks or signs of its rotation, against product quantization, on one thread.

``python whole_updates.py`` prints the figures as JSON; the number of threads is fixed when a BLAS is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from figures import Figure, best_seconds
from product_quantization import THREAD_VARIABLES, WEIGHTS, peak_bytes, uneven
from secagg.compression.cohort_bits import kept_for
from secagg.compression.common import PublicStream
from secagg.compression.peak import PeakCode
from secagg.compression.product_quantization import calibrate
from secagg.compression.rotation import JoinedRotation, Sketch
from secagg.contract import Aggregate, ideal_aggregate
from secagg.contract.codewords import summed_layout
from secagg.crypto.entropy import SystemCoins

PLACES = (64, 128, 256)
COHORT = 20
ROUNDS = 5
MOST_MILLISECONDS = 60


def measure() -> Iterator[Figure]:
    """Encode and decode 10M weights on one thread."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    command = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603 -- this file
    for row in json.loads(done.stdout):
        yield Figure(**row)


def coding() -> Iterator[Figure]:
    """Time everything on the same weights; encoding includes the rotation, but not the client's own length."""
    update, coins = uneven((WEIGHTS // 4096, 4096), number=8).reshape(-1), SystemCoins()
    stream = PublicStream(seed=bytes(32), round_number=1, tensor_name="update", shape=update.shape)
    rotation = JoinedRotation(stream=stream)
    peaks = {places: PeakCode(rotation=rotation, places=places) for places in PLACES}
    sketch = Sketch(rotation=rotation, kept=kept_for(update.size, COHORT), bits=1, modulus_bits=5)
    rows = update[: update.size // 4096 * 4096].reshape(-1, 4096)
    product = calibrate(rows, block_size=8, codewords=64, seed=bytes(32))
    encode: dict[str, Callable[[], object]] = {
        **{f"peak code, d={places}": partial(code.encode, update, coins) for places, code in peaks.items()},
        "linear sketch of 1 bit": partial(sketch.encode, update, coins),
        "a client's own length": partial(rotation.norm, update),
    }
    bounded = {"peak code, d=128"}
    copied = np.empty_like(update)
    floor: dict[str, Callable[[], object]] = {"copy": partial(np.copyto, copied, update)}
    seconds = best_seconds({**encode, **floor, "product": partial(product.encode, rows, coins)}, ROUNDS)
    for name in encode:
        limit = MOST_MILLISECONDS if name in bounded else None
        yield Figure(
            name=f"encode {update.size / 1e6:.0f}M weights: {name}", value=seconds[name] * 1e3, unit="ms", at_most=limit
        )
    yield Figure(name="the same: product quantization, k=64, d=8", value=seconds["product"] * 1e3, unit="ms")
    yield Figure(
        name="encode peaks of 128 / copy the update",
        value=seconds["peak code, d=128"] / seconds["copy"],
        unit="",
        at_most=9,
    )
    memory = peak_bytes(encode["peak code, d=128"])
    yield Figure(
        name="memory of encoding peaks of 128, with the input and without the public signs and scales / input",
        value=1 + memory / update.nbytes,
        unit="",
        at_most=2.0,
        limit=2.0 + 24 * (1 << 16) / update.size,
        why="the input, its whole rotation, and a piece of 2^16 values in the widest words",
    )
    code = peaks[128]
    layout = summed_layout(code.layout, code.tables, COHORT)
    (segment,) = layout.require_rings()
    signs = np.random.default_rng(0).integers(-2, 3, segment.length)
    total = Aggregate(layout, (segment.ring.from_integers(signs),), COHORT)
    codes = ideal_aggregate(sketch.layout, [sketch.encode(update, coins)] * COHORT)
    decoded = best_seconds(
        {"peak": partial(code.decode_summed, total), "sketch": partial(sketch.decode, codes)}, ROUNDS
    )
    yield Figure(
        name="decode a sum of peaks of 128", value=decoded["peak"] * 1e3, unit="ms", at_most=2 * MOST_MILLISECONDS
    )
    yield Figure(name="decode a sum of sketches", value=decoded["sketch"] * 1e3, unit="ms")


if __name__ == "__main__":
    json.dump([asdict(figure) for figure in coding()], sys.stdout)
