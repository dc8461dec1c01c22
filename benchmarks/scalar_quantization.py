"""Speed of encoding tensors and decoding sums, against numpy's cast of the same array to integers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import numpy as np
import numpy.typing as npt

from figures import Figure, best_seconds
from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.random_pruning import pruning_mask
from secagg.compression.rotation import RandomRotation, padded_size
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization, calibrate
from secagg.contract import Aggregate, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret

ELEMENTS = 10_000_000
ROUNDS = 5
BLOCK_SIZE = 1024


def measure() -> Iterator[Figure]:
    """Encode, decode, prune and rotate ten million float32, in a separate process.

    There every large array gets fresh memory. Otherwise earlier frees would decide whether the cast, whose time is half
    page faults, or its contender gets already mapped memory.
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    command = [sys.executable, __file__]
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603 -- this file
    for row in json.loads(finished.stdout):
        yield Figure(**row)


def _figures() -> Iterator[Figure]:
    update = _update()
    yield from _quantization(update)
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="weight", shape=(ELEMENTS,))
    for sparsity in ("0.5", "0.99"):
        seconds = best_seconds({"mask": partial(pruning_mask, stream, sparsity)}, 2)["mask"]
        yield Figure(name=f"pruning mask, sparsity {sparsity}", value=seconds, unit="s", at_most=2.0)
    inner = FixedPoint(length=padded_size(ELEMENTS, BLOCK_SIZE), clip=1.0, fraction_bits=20, modulus_bits=32)
    rotation = RandomRotation(stream=stream, block_size=BLOCK_SIZE, inner=inner)
    seconds = best_seconds({"rotate": lambda: rotation.rotate(update)}, 2)["rotate"]
    yield Figure(name=f"rotation, blocks of {BLOCK_SIZE}", value=seconds, unit="s")


def _quantization(update: npt.NDArray[np.float32]) -> Iterator[Figure]:
    variants = {
        "8 bits in 16": calibrate(update, bits=8, modulus_bits=16),
        "8 bits in 16, affine": calibrate(update, bits=8, modulus_bits=16, affine=True),
        "4 bits in 11": calibrate(update, bits=4, modulus_bits=11),
        "8 bits in 20": calibrate(update, bits=8, modulus_bits=20),
        "8 bits in 16, 5000 channels": calibrate(
            update.reshape(5000, -1), bits=8, modulus_bits=16, affine=True, per_channel=True
        ),
        "8 bits in 16, stochastic": calibrate(update, bits=8, modulus_bits=16, rounding=Rounding.STOCHASTIC),
    }
    bounds: dict[str, tuple[float | None, float | None]] = {"8 bits in 16": (4.0, 2.0), "4 bits in 11": (4.0, 2.0)}
    for name, decoder in variants.items():
        tensor = update.reshape(decoder.shape)
        total = ideal_aggregate(decoder.layout, [decoder.encode(tensor, SystemCoins())])
        decoded = decoder.decode(total).astype(np.float64)
        assert np.abs(decoded - tensor).max() <= 1.001 * max(decoder.scales)
        seconds = best_seconds(_contenders(decoder, tensor, total), ROUNDS)
        at_most = bounds.get(name, (None, None))
        for kind, bound in zip(("encode", "decode"), at_most, strict=True):
            ratio = seconds[kind] / seconds["cast"]
            note = f"{ELEMENTS / seconds[kind] / 1e6:.0f} million/s"
            yield Figure(name=f"{kind}, {name}, over a cast", value=ratio, unit="x", at_most=bound, note=note)


def _contenders(
    decoder: ScalarQuantization, tensor: npt.NDArray[np.float32], total: Aggregate
) -> dict[str, Callable[[], object]]:
    coins = SystemCoins()
    return {
        "cast": lambda: tensor.astype(np.int32),
        "encode": lambda: decoder.encode(tensor, coins),
        "decode": lambda: decoder.decode(total),
    }


def _update() -> npt.NDArray[np.float32]:
    """Return nearly normal values: sums of four uniform ones."""
    coins = SystemCoins()
    total = np.zeros(ELEMENTS, dtype=np.float32)
    for _ in range(4):
        drawn = expand(Secret.random("sample_key", 16, coins), Ring(16), ELEMENTS)
        total += drawn.astype(np.float32)
    return (total / np.float32(1 << 17) - 1) * np.float32(0.01)


if __name__ == "__main__":
    print(json.dumps([asdict(figure) for figure in _figures()]))
