"""Take every measurement, print a table, and write the figures as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, thread_time

import bounds
import enclave
import enclave_histogram
import figures as measuring
import mask_expansion
import noise
import one_hot_check
import one_message
import overflow
import packing
import pairwise_mask
import point_functions
import product_quantization
import scalar_quantization
import shamir
import two_servers
import whole_updates
from figures import Figure, Rounds, machine

SUITES: dict[str, Callable[[], Iterable[Figure]]] = {
    "mask expansion": mask_expansion.measure,
    "packing": packing.measure,
    "secret sharing": shamir.measure,
    "pairwise masks": pairwise_mask.measure,
    "one message": one_message.measure,
    "enclave": enclave.measure,
    "enclave histogram": enclave_histogram.measure,
    "noise": noise.measure,
    "point functions": point_functions.measure,
    "one-hot check": one_hot_check.measure,
    "two servers": two_servers.measure,
    "scalar quantization": scalar_quantization.measure,
    "overflow": overflow.measure,
    "product quantization": product_quantization.measure,
    "whole updates": whole_updates.measure,
    "bounds": bounds.measure,
}


def main() -> None:
    """Run the requested suites; all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--once", action="store_true", help="time everything once, only to run the code")
    parser.add_argument(
        "--busy", action="store_true", help="measure thread time, for a busy machine; invalid for several threads"
    )
    options = parser.parse_args()
    if options.busy:
        measuring.usual_clock = thread_time
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"{', '.join(sorted(unknown))}: no such suite; choose from {', '.join(SUITES)}")
    if options.once:
        Rounds.most = 1
    host = machine()
    print(", ".join(f"{name}: {value}" for name, value in host.items()))
    print(f"{'figure':<62} {'value':>9} {'unit':<6} {'target':<8} verdict")
    figures = list[Figure]()
    started = perf_counter()
    for name in options.suites or SUITES:
        print(f"-- {name}")
        for figure in SUITES[name]():
            figures.append(figure)
            print(figure.line(), flush=True)
    print(f"{len(figures)} figures in {perf_counter() - started:.0f} s")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
        options.json.write_text(json.dumps({"machine": host, "figures": rows}, indent=2) + "\n")
        print(f"written to {options.json}")


if __name__ == "__main__":
    main()
