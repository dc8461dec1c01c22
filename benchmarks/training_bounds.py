"""Effect of an enclave's bound on norms: a fifth of the clients sends ten times its update, flipped.

The rounds are those of ``training_attacks.py``, uncompressed, and each payload is scaled down by the enclave's own
function: after rounding, towards zero. The bound is the given multiple of the median norm of the first round.

    python benchmarks/training_bounds.py build/bounds --times 1 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from secagg.contract.layout import Payload, RingSegment
from secagg.privacy.kinds import squared_norm
from secagg.protocols.enclave.client import side_by_side
from secagg.protocols.enclave.trusted.bounded import BoundedSum
from secagg.training import rounds as rounds_module
from secagg.training.configuration import AttackKind
from secagg.training.driver import Cell, Grid, sweep
from secagg.training.parts import TrainedClient
from training_attacks import configuration

_CLIENTS: Final = 20
_PLAIN: Final[Any] = rounds_module.Run.encode


def bounded(payload: Payload, bound: int) -> Payload:
    """Scale the largest ring segment of a payload down to a bound."""
    largest = max(segment.length for segment in payload.layout.segments)
    values = list[Any]()
    for segment, vector in zip(payload.layout.segments, payload.values, strict=True):
        values.append(vector.copy())
        if isinstance(segment, RingSegment) and segment.length == largest:
            total = BoundedSum(segment, bound, 0, _CLIENTS)
            total.add(total.measure(memoryview(b"".join(side_by_side(segment, vector)))))
            values[-1] = total.released(1)
    return Payload(payload.layout, tuple(values))


def norm_of(payload: Payload) -> int:
    """Return the norm of the largest ring segment in steps."""
    pairs = zip(payload.layout.segments, payload.values, strict=True)
    segment, vector = max(pairs, key=lambda pair: pair[0].length)
    return isqrt(squared_norm(segment.ring, vector))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="the folder of the runs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--times", type=float, nargs="+", default=(1.0,), help="bounds, in median norms")
    options = parser.parse_args(arguments)
    norms, bound = list[int](), 0

    def encode(run: rounds_module.Run, trained: TrainedClient, number: int) -> rounds_module.Encoded:
        encoded: rounds_module.Encoded = _PLAIN(run, trained, number)
        if not bound:
            norms.append(norm_of(encoded.payload))
            return encoded
        return replace(encoded, payload=bounded(encoded.payload, bound))

    rounds_module.Run.encode = encode  # type: ignore[method-assign, assignment]
    usual = 0
    for times in (0.0, *options.times):
        bound = round(times * usual)
        for kind in (AttackKind.NONE, AttackKind.FLIP_TENFOLD):
            made = replace(
                configuration("none", kind, _CLIENTS, options.rounds), name=f"{kind.value}, {times:g} times", workers=1
            )
            accuracies = list[float]()
            for seed in range(options.seeds):
                grid = Grid(replace(made, seed=seed), (Cell(made.name, ()),), (seed,))
                found = sweep(grid, options.out, told=lambda line: print(line, file=sys.stderr, flush=True))
                accuracies += [float(one["final accuracy"]) for one in found]
            usual = usual or int(median(norms[:20]))
            print(f"bound {bound or 'none':>8}  {kind.value:<10} {100 * fmean(accuracies):.2f} %", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
