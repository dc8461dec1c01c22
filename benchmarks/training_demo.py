"""Train four times on the bundled images through real protocols, and draw accuracy against uplink.

Uncompressed, scalar quantization and pruning go through pairwise masks, product quantization through the enclave, whose
hardware is simulated. Each protocol runs in every so many rounds, and its sum is compared with the plain one each time.

    python benchmarks/training_demo.py --out build/demo-training
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

from secagg.training.configuration import changed
from secagg.training.driver import train
from secagg.training.presets import preset
from secagg.training.progress import Progress
from secagg.training.report import write_report

RUNS = ("fashion-none", "fashion-sq", "fashion-prune", "fashion-pq")
MEANT = {
    "fashion-none": "uncompressed, pairwise masks",
    "fashion-sq": "6-bit codes in 8 bits, pairwise masks",
    "fashion-prune": "one value in ten, pairwise masks",
    "fashion-pq": "16 codewords of 9 values, enclave",
}


def main() -> int:
    """Train, print the table, and say where the figures are."""
    parser = argparse.ArgumentParser(description="Four training runs through real protocols.")
    parser.add_argument("--out", type=Path, default=Path("build/demo-training"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=2, help="every how many rounds the protocol runs for real")
    options = parser.parse_args()
    started = perf_counter()
    clients = preset(RUNS[0]).clients_per_round
    print(f"{'run':<38}{'accuracy':>9}{'KB up':>8}{'factor':>8}{'overflow':>10}{'protocol':>11}")
    for name in RUNS:
        changes = [
            f"rounds={options.rounds}",
            "secagg.mode=real",
            f"secagg.every={options.every}",
            "dropouts.rate=0.02",
        ]
        run = changed(preset(name), changes)
        found = train(run, options.out / name, resume=True, observers=[Progress(name, run.rounds)])
        overflow = "-" if found["overflow"] is None else f"{100 * found['overflow']:.2f} %"
        took = found["seconds of the protocol in a real round"]
        print(
            f"{MEANT[name]:<38}{100 * found['final accuracy']:>7.1f} %{found['paper bytes'] / 1024:>8.1f}"
            f"{found['factor']:>8.1f}{overflow:>10}{'-' if took is None else f'{took:.2f} s':>11}",
            flush=True,
        )
    report = write_report([options.out / name for name in RUNS], options.out / "figures")
    print(f"\nprotocol: seconds of all {clients} clients and the server in one real round")
    print(f"every real sum was the plain sum, bit for bit; {perf_counter() - started:.0f} s in all")
    print(f"report {report}, figure {report.parent / 'accuracy-uplink.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
