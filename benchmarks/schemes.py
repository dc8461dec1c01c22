"""Cost and error of each scheme on one model: bits per weight, error of the mean, and time; as rows of Markdown.

The model is a ResNet-18 without its last stage, 2.8 million weights. An update is random: nearly normal, with a size
that depends on the layer; half of its variance is common to all clients and half is each client's own. Scales and
codebooks are calibrated on one more client. The error is that of the decoded mean of ten clients, in the Euclidean norm
over the whole model, relative to the norm of the true mean. Times, on one thread, are multiples of the time that numpy
takes to cast the same tensors from float32 to int32.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from figures import best_seconds, machine
from secagg.compression.byte_accounting import Accounting, parameter_count, upload_bytes
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    ModelUpdate,
    Plain,
    Pruned,
    Quantized,
    Recipe,
    Rotated,
    Sketched,
    UpdatePlan,
    downlink_bytes,
)
from secagg.compression.scalar_quantization import Rounding
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from tests.harness.paper_models import FEMNIST_1_CHANNEL

CLIENTS = 10
ROUNDS = 5
SEED = bytes(32)
SHAPES = {name: shape for name, shape in FEMNIST_1_CHANNEL.items() if not name.startswith("layer4")}
PLAIN = Plain(clip=1.0, fraction_bits=24)

Update = dict[str, npt.NDArray[np.float32]]

RECIPES: dict[str, Recipe] = {
    "fixed point, 32 bits": PLAIN,
    "16 bits in 20": Quantized(bits=16, modulus_bits=20),
    "8 bits in 12": Quantized(bits=8, modulus_bits=12),
    "8 bits in 12, stochastic": Quantized(bits=8, modulus_bits=12, rounding=Rounding.STOCHASTIC),
    "8 bits in 12, affine channels": Quantized(bits=8, modulus_bits=12, affine=True, per_channel=True),
    "4 bits in 8": Quantized(bits=4, modulus_bits=8),
    "4 bits in 8, stochastic": Quantized(bits=4, modulus_bits=8, rounding=Rounding.STOCHASTIC),
    "rotated, 4 bits in 8": Rotated(block_size=1024, inner=Quantized(bits=4, modulus_bits=8)),
    "2 bits in 6": Quantized(bits=2, modulus_bits=6),
    "half pruned, 8 bits in 12": Pruned(sparsity="0.5", inner=Quantized(bits=8, modulus_bits=12)),
    "0.9 pruned, 32 bits": Pruned(sparsity="0.9", inner=PLAIN),
    "0.9 pruned, 8 bits in 12": Pruned(sparsity="0.9", inner=Quantized(bits=8, modulus_bits=12)),
    "codebooks, 256 x 4": Codebooks(block_size=4, codewords=256),
    "codebooks, 64 x 4": Codebooks(block_size=4, codewords=64),
    "codebooks, 64 x 9": Codebooks(block_size=9, codewords=64),
    "residual codebooks, 2 of 64 x 9": Codebooks(block_size=9, codewords=64, stages=2),
    "count sketch, 3 x 8192": Sketched(rows=3, columns=8192, inner=Plain(clip=32.0, fraction_bits=16)),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scheme's costs and its error."""

    name: str
    bits: float
    """Bits of one client's payload on the wire, with header, biases and norms, for each weight of the model."""
    broadcast: int
    error: float
    encode: float
    decode: float

    @property
    def markdown(self) -> str:
        """The row as text."""
        return (
            f"| {self.name} | {self.bits:.2f} | {32 / self.bits:.1f} | {self.broadcast / 1024:.1f} "
            f"| {self.error:.4f} | {self.encode:.1f} | {self.decode:.1f} |"
        )


def rows() -> Iterator[Row]:
    """Measure every scheme on the same updates."""
    updates = [_update(client) for client in range(CLIENTS + 1)]
    clients, mock = updates[:-1], updates[-1]
    true_mean = {name: _mean([client[name] for client in clients]) for name in SHAPES}
    for name, recipe in RECIPES.items():
        plan = UpdatePlan(shapes=SHAPES, plain=PLAIN, compressed=recipe, seed=SEED)
        decoder = plan.parameters(calibration=Calibration(CalibrationSource.LEAKY_MOCK_CLIENT, mock))
        yield _row(name, decoder, clients, true_mean)


def _row(name: str, decoder: ModelUpdate, clients: list[Update], true_mean: dict[str, npt.NDArray[np.float64]]) -> Row:
    coins = SystemCoins()
    total = ideal_aggregate(decoder.layout, [decoder.encode(client, coins) for client in clients])
    mean = decoder.mean(total)
    lost = sum(float(np.square(mean[tensor] - true_mean[tensor]).sum()) for tensor in SHAPES)
    whole = sum(float(np.square(true_mean[tensor]).sum()) for tensor in SHAPES)
    seconds = best_seconds(
        {
            "cast": lambda: [tensor.astype(np.int32) for tensor in clients[0].values()],
            "encode": partial(decoder.encode, clients[0], coins),
            "decode": partial(decoder.decode, total),
        },
        ROUNDS,
    )
    return Row(
        name=name,
        bits=float(8 * upload_bytes(decoder.layout, Accounting.WIRE) / parameter_count(SHAPES)),
        broadcast=downlink_bytes(decoder, Accounting.WIRE),
        error=(lost / whole) ** 0.5,
        encode=seconds["encode"] / seconds["cast"],
        decode=seconds["decode"] / seconds["cast"],
    )


def _mean(tensors: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    total = np.zeros(tensors[0].shape)
    for tensor in tensors:
        total += tensor
    return total / len(tensors)


def _update(client: int) -> Update:
    """Return a client's update: for each layer a size between 1/1024 and 1/64, and two draws of that size."""
    update = Update()
    for layer, (name, shape) in enumerate(SHAPES.items()):
        common, own = (np.random.default_rng([layer, number]) for number in (0, client + 1))
        size = np.float32(2.0 ** -(6 + layer % 5))
        update[name] = size * (
            common.standard_normal(shape, dtype=np.float32) + own.standard_normal(shape, dtype=np.float32)
        )
    return update


def main() -> None:
    """Print the machine and the table."""
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    print()
    print("| scheme | bits per weight | times smaller | broadcast, KB | error of the mean | encode | decode |")
    print("|---|---|---|---|---|---|---|")
    for row in rows():
        print(row.markdown, flush=True)


if __name__ == "__main__":
    # Every large array gets fresh memory, in the cast and in the schemes, regardless of earlier frees; and matrix
    # products run on one thread, like everything else.
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, __file__], environment)  # noqa: S606 -- this file again
    main()
