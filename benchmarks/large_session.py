"""Whole sessions of 100, 1,000 and 10,000 clients in one process, by any protocol: time by stage and peak memory.

Vectors are short, so the measurement is everything except masks: key agreement, sealing, signatures, sharing and
reconstruction. One client in twenty is corrupted; the same number drop out. Each size runs in a separate process, for
its own peak memory. A session prints and writes the same as ``secagg round``.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import machine
from secagg.cli import main

SIZES = (100, 1_000, 10_000)
LENGTH = 64


def measured_session(clients: int, length: int, others: list[str]) -> dict[str, object]:
    """Run one session in a separate process, and return its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["round", "--clients", str(clients), "--dimension", str(length), "--json", str(report), *others]
        subprocess.run([sys.executable, __file__, "--one", *command], check=True)  # noqa: S603 -- this program
        measured: dict[str, object] = json.loads(report.read_text())
        return measured


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="number of clients (default: %(default)s)")
    parser.add_argument("--length", type=int, default=LENGTH, help="length of a client's vector (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options, others = parser.parse_known_args()
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    measured = [measured_session(clients, options.length, others) for clients in options.sizes]
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine(), "sessions": measured}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        # Every garbage collection would traverse the thousands of clients in one process.
        gc.freeze()
        gc.disable()
        sys.exit(main(sys.argv[2:]))
    _main()
