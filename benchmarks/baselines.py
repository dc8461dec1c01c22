"""Baselines at equal bytes and schedule: other methods against this library's codes, on the bundled images.

Each is a custom scheme (`--set compression.scheme=benchmarks/baselines.py:pruned`) or a changed preset, and
sends about as much as the 1-bit linear sketch, 1.5 kB, unless its name says otherwise. Rates are those of the
uncompressed run: no baseline was tuned, and neither were the codes.

    python benchmarks/baselines.py build/baselines --rounds 100 --json benchmarks/results/baselines.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.common import PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.product_quantization import Codebook, ProductQuantization, learn_codewords
from secagg.compression.rotation import Floats, JoinedRotation
from secagg.contract import Aggregate, Layout, Payload, public_parameters_digest
from secagg.contract.codewords import Tables
from secagg.crypto.entropy import Coins
from secagg.training.configuration import changed, versions_here
from secagg.training.driver import Cell, Grid, sweep
from secagg.training.presets import preset

BITS: Final = 16
"""Bits of a value that a baseline sends in a ring; 20 clients of at most 0.25 fit."""
CLIP: Final = 0.25
FRACTION_BITS: Final = 12
SHARE: Final = 25
"""Pruning sends one of this many coordinates."""
ROWS, COLUMNS = 3, 256
EXTRACTED: Final = 400
"""Coordinates of a step of FetchSGD; the sketch has 768 cells."""
CODEWORDS, WIDTH = 256, 12
"""One byte for 12 rotated values: the same bytes as the sketch."""
LENGTH: Final = 0.6
"""Approximate length of an update of the bundled images after the first rounds."""
SKETCH: Final = ("compression.scheme=sketch", "compression.bits=1", "compression.lengths=fixed")
_HERE: Final = Path(__file__).resolve()


def _plain(length: int) -> FixedPoint:
    return FixedPoint(length=length, clip=CLIP, fraction_bits=FRACTION_BITS, modulus_bits=BITS)


@dataclass(frozen=True)
class Pruned:
    """Random coordinates, new in every round, divided by the kept share, so that a mean is unbiased."""

    values: int
    epoch: int
    inner: FixedPoint = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", _plain(self.values // SHARE))

    @property
    def layout(self) -> Layout:
        """Layout of the sent values."""
        return Layout(
            self.inner.layout.segments, public_parameters_digest("baseline/pruned", self.epoch.to_bytes(8, "big"))
        )

    @property
    def capacity(self) -> int:
        """Capacity of the fixed point."""
        return self.inner.capacity

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """The coordinates sent in this round."""
        return np.random.default_rng([7, self.epoch]).permutation(self.values)[: self.inner.length]

    def encode(self, update: Floats, coins: Coins) -> Payload:
        """Take the coordinates of the round."""
        return Payload(self.layout, self.inner.encode(update[self.places], coins).values)

    def decode(self, aggregate: Aggregate) -> Floats:
        """Restore the coordinates, divided by the kept share."""
        inner = Aggregate(self.inner.layout, aggregate.values, aggregate.contributors)
        decoded = np.zeros(self.values, np.float32)
        decoded[self.places] = self.inner.decode(inner) * (self.values / self.inner.length)
        return decoded


class HeavyHitters:
    """The server's state between rounds: each round extracts a few large coordinates; the rest stays in the sketch.

    Implements: [RPU+20] Algorithm 1, without momentum.
    """

    def __init__(self, sketch: CountSketch, extracted: int) -> None:
        """Start with an empty table."""
        self._sketch, self._extracted = sketch, extracted
        self._error = np.zeros((sketch.rows, sketch.columns))

    def step(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        """Add a round's mean to the state and extract the largest coordinates; of equal ones the first."""
        self._error += self._sketch.table_of(aggregate) / aggregate.contributors
        estimate = self._sketch.medians(self._error)
        taken = np.argsort(-np.abs(estimate), kind="stable")[: self._extracted]
        step = np.zeros_like(estimate)
        step[taken] = estimate[taken]
        self._error -= self._sketch.sketch(step)
        return step


@dataclass(frozen=True)
class Fetched:
    """[RPU+20]'s FetchSGD: a count sketch with error feedback in the sketch at the server."""

    sketch: CountSketch
    memory: HeavyHitters

    @property
    def layout(self) -> Layout:
        """The sketch's."""
        return self.sketch.layout

    @property
    def capacity(self) -> int:
        """The sketch's."""
        return self.sketch.capacity

    def encode(self, update: Floats, coins: Coins) -> Payload:
        """Sketch it."""
        return self.sketch.encode(update, coins)

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        """Extract the largest coordinates from the state, times the divisor of the mean. Call once a round."""
        return self.memory.step(aggregate) * aggregate.contributors


@dataclass(frozen=True)
class Turned:
    """Product quantization of a rotated whole update, with one codebook for normal values."""

    rotation: JoinedRotation
    inner: ProductQuantization
    kept: float
    """Share of normal values' energy that the codewords keep; a sum is divided by it."""

    @property
    def layout(self) -> Layout:
        """Layout of the codewords, which depend on the rotation."""
        return Layout(self.inner.layout.segments, public_parameters_digest("baseline/turned", self.rotation.encode()))

    @property
    def capacity(self) -> int:
        """Capacity of the codewords."""
        return self.inner.capacity

    @property
    def tables(self) -> Tables:
        """Tables of the codewords."""
        return self.inner.tables

    def encode(self, update: Floats, coins: Coins) -> Payload:
        """Rotate the update, and scale it to the length of normal values."""
        turned = self.rotation.turned(update, self.inner.shape[0] * self.inner.shape[1])
        norm = max(float(np.linalg.norm(turned)), 1e-12)
        turned *= np.float32(np.sqrt(self.rotation.padded) / norm)
        return Payload(self.layout, self.inner.encode(turned.reshape(self.inner.shape), coins).values)

    def decode(self, aggregate: Aggregate) -> Floats:
        """Rotate a histogram's sum back, with the assumed length of updates."""
        inner = Aggregate(self.inner.layout, aggregate.values, aggregate.contributors)
        return self._back(self.inner.decode(inner))

    def decode_summed(self, aggregate: Aggregate) -> Floats:
        """Rotate a sum of codewords back."""
        (segment,) = aggregate.layout.require_rings()
        return self._back(self.inner.codebooks[0].from_steps(segment.ring.lift(aggregate.values[0])))

    def _back(self, total: npt.NDArray[np.float64]) -> Floats:
        flat = np.asarray(total, np.float32).reshape(-1)[: self.rotation.padded].copy()
        return self.rotation.turned_back(flat * np.float32(LENGTH / np.sqrt(self.rotation.padded) / self.kept))


# --- Factories for configurations -------------------------------------------------------------------------------------


def pruned(*, values: int, cohort: int, seed: bytes, epoch: int) -> Pruned:  # noqa: ARG001 -- a factory's arguments
    """Return random pruning, divided by the kept share."""
    return Pruned(values, epoch)


def fetched(*, values: int, cohort: int, seed: bytes, epoch: int) -> Fetched:  # noqa: ARG001 -- a factory's arguments
    """Return FetchSGD's sketch, the same in every round, with the state of the run with this seed."""
    return _fetched(values, seed)


def turned_codewords(*, values: int, cohort: int, seed: bytes, epoch: int) -> Turned:  # noqa: ARG001 -- as above
    """Return product quantization after one rotation of the whole update."""
    stream = PublicStream(seed=seed, round_number=epoch, tensor_name="baseline", shape=(values,))
    rotation = JoinedRotation(stream=stream, block_size=min(1024, 1 << (values - 1).bit_length()))
    codebook, kept = _normal_codebook()
    blocks = -(-rotation.padded // WIDTH)
    return Turned(rotation, ProductQuantization(shape=(blocks, WIDTH), codebooks=(codebook,)), kept)


@cache
def _fetched(values: int, seed: bytes) -> Fetched:
    inner = FixedPoint(length=ROWS * COLUMNS, clip=1.0, fraction_bits=10, modulus_bits=BITS)
    sketch = CountSketch(length=values, rows=ROWS, columns=COLUMNS, seed=seed, inner=inner)
    return Fetched(sketch, HeavyHitters(sketch, min(EXTRACTED, values)))


@cache
def _normal_codebook() -> tuple[Codebook, float]:
    blocks = np.random.default_rng(0).standard_normal((1 << 13, WIDTH))
    learned = learn_codewords(blocks, CODEWORDS, seed=bytes(32), iterations=10, keep_zero=False)
    fresh = np.random.default_rng(1).standard_normal((1 << 12, WIDTH))
    nearest = learned[((fresh[:, np.newaxis] - learned) ** 2).sum(axis=2).argmin(axis=1)]
    return Codebook(learned), float((fresh * nearest).sum() / (fresh**2).sum())


def _outside(name: str) -> str:
    return f"compression.scheme={_HERE}:{name}"


CELLS: Final = (
    Cell("none", ()),
    Cell("sketch 1 bit", (*SKETCH, "compression.refresh=10", f"compression.length={LENGTH}")),
    Cell(
        "peak 128",
        (
            *("secagg.protocol=enclave", "compression.scheme=peak", "compression.places=128"),
            *("compression.refresh=10", "compression.lengths=own"),
        ),
    ),
    Cell("pruning, divided by the share", (_outside("pruned"),)),
    Cell("count sketch, FetchSGD", (_outside("fetched"),)),
    Cell("rotated pq 256/12", ("secagg.protocol=enclave", _outside("turned_codewords"))),
    Cell(
        "pq 50x",
        tuple(
            f"{change}"
            for change in (
                "secagg.protocol=enclave",
                "compression.scheme=pq",
                "compression.codewords=16",
                "compression.block_size=9",
                'compression.layers=["conv1.weight=64/3"]',
                "compression.vector_bits=6",
                "compression.is_lengthened=true",
            )
        ),
    ),
    Cell("sq rotated 1 bit, all values", (*SKETCH, "compression.kept=19338", f"compression.length={LENGTH}")),
    Cell("none, 2 clients", ("clients_per_round=2",)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing cells, and print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10])
    parser.add_argument("--only", nargs="+", default=[], help="prefixes of cells' names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    cells = [cell for cell in CELLS if not options.only or cell.name.startswith(tuple(options.only))]
    base = changed(preset("fashion-none"), [f"rounds={options.rounds}", "evaluation.every=20", "workers=1"])
    grid = Grid(replace(base, name="baselines"), tuple(cells), tuple(options.seeds))
    found = sweep(grid, options.out, told=lambda line: print(line, file=sys.stderr, flush=True))
    rows = [_row(cell.name, [one for one in found if one["name"] == cell.name]) for cell in cells]
    for row in rows:
        came_to = f"{row['mean']:6.2f} %  {row['payload bytes']:>7,} bytes" if "mean" in row else row["failed"]
        print(f"{row['name']:<32} {came_to}")
    if options.json is not None:
        summary = {"versions": versions_here(), "rounds": options.rounds, "seeds": options.seeds, "cells": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


def _row(name: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if errors := [one["error"] for one in found if "error" in one]:
        return {"name": name, "failed": errors[0]}
    accuracy = [100 * float(one["accuracy of the last three evaluations"]) for one in found]
    return {
        "name": name,
        "payload bytes": found[0]["payload bytes"],
        "accuracy": [round(value, 2) for value in accuracy],
        "mean": round(fmean(accuracy), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
