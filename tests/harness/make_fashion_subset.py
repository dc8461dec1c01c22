"""Make the bundled subset of Fashion-MNIST from the full set.

Run it as ``python -m tests.harness.make_fashion_subset``.

It uses the first images of each half: the full set is in random order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import numpy as np

from secagg.training.datasets.sources import INSTALLED, SUBSET, packed, read_idx

DATASETS: Final = Path(__file__).resolve().parents[2] / "training" / "datasets"
_TRAIN: Final = 12_000
_TEST: Final = 2_000


def main() -> int:
    """Write the file and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=INSTALLED, help="the four idx files (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=DATASETS / SUBSET, help="(default: %(default)s)")
    options = parser.parse_args()
    write_subset(options.root, options.out)
    sys.stdout.write(f"{options.out}: {options.out.stat().st_size} bytes\n")
    return 0


def write_subset(root: Path, out: Path) -> None:
    """Read the full set below ``root`` and write its first images, always as the same bytes."""
    np.savez_compressed(
        out,
        train=packed(read_idx(root / "train-images-idx3-ubyte.gz")[:_TRAIN]),
        train_labels=read_idx(root / "train-labels-idx1-ubyte.gz")[:_TRAIN],
        test=packed(read_idx(root / "t10k-images-idx3-ubyte.gz")[:_TEST]),
        test_labels=read_idx(root / "t10k-labels-idx1-ubyte.gz")[:_TEST],
    )


if __name__ == "__main__":
    sys.exit(main())
