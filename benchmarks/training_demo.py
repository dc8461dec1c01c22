"""Train five times on the bundled images through real protocols, and draw accuracy against uplink.

Uncompressed, scalar quantization and pruning go through pairwise masks with a server that is expected to lie, product
quantization and the peak code through the enclave, whose hardware is simulated. Some clients vanish in every stage.
Each sum that a protocol gives is compared with the plain one.

    python benchmarks/training_demo.py --out build/demo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from secagg.training.configuration import changed
from secagg.training.driver import Progress, train
from secagg.training.presets import preset
from secagg.training.reports import write_report

RUNS = {
    "fashion-none": "uncompressed, pairwise masks",
    "fashion-sq": "6-bit codes in 8 bits, pairwise masks",
    "fashion-prune": "one value in ten, pairwise masks",
    "fashion-pq": "16 codewords of 9 values, enclave",
    "fashion-peak": "peaks of 128 rotated values, enclave",
}
COLUMNS = ("accuracy", "KB up", "factor", "overflow", "KB, protocol", "protocol")


def main() -> int:
    """Train, print the table, and say where the figures are."""
    parser = argparse.ArgumentParser(description="Five training runs through real protocols.")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--every", type=int, default=1, help="every how many rounds the protocol runs for real")
    options = parser.parse_args()
    started, clients = perf_counter(), preset("fashion-none").clients_per_round
    changes = [
        f"rounds={options.rounds}",
        "secagg.mode=real",
        f"secagg.every={options.every}",
        "dropouts.rate=0.02",
    ]
    print(
        f"{options.rounds} rounds of {clients} clients on real images of clothes; real masks, keys and signatures, one "
        "client in fifty lost",
        flush=True,
    )
    rows = list[str]()
    for name, meant in RUNS.items():
        run = changed(preset(name), changes)
        found = train(run, options.out / name, observers=[Progress(name, run.rounds)])
        rows.append(f"{meant:<38}" + "".join(f"{cell:>13}" for cell in _cells(found)))
    report = write_report([options.out / name for name in RUNS], options.out / "figures")
    print("\n" + " " * 38 + "".join(f"{column:>13}" for column in COLUMNS))
    print("\n".join(rows))
    print(
        f"""
KB up: the encoded update of one client in one round; KB, protocol: everything that it sends, keys and masks included
protocol: seconds of all {clients} clients and the server in one round; here they run one after another
every sum that a protocol gave was the plain sum of the updates, bit for bit; {perf_counter() - started:.0f} s in all
figure: {report.parent / "accuracy-uplink.png"}
report: {report}"""
    )
    return 0


def _cells(found: Mapping[str, Any]) -> list[str]:
    overflow, sent = found["overflow"], found["wire up"]
    took = found["seconds of the protocol in a real round"]
    return [
        f"{100 * found['final accuracy']:.1f} %",
        f"{found['paper bytes'] / 1024:.2f}",
        f"{found['factor']:.1f}",
        "-" if overflow is None else f"{100 * overflow:.2f} %",
        "-" if sent is None else f"{sent / 1024:.1f}",
        "-" if took is None else f"{took:.2f} s",
    ]


if __name__ == "__main__":
    sys.exit(main())
