"""Noise of a decoded mean, measured over cohorts and block sizes to test the law, without training.

python benchmarks/noise_law.py benchmarks/results/noise_law.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from secagg.compression.cohort_bits import peak_noise
from secagg.compression.common import PublicStream
from secagg.compression.peak import PeakCode
from secagg.compression.rotation import JoinedRotation
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins

COHORTS: Final = (2, 5, 10, 20, 50, 100)
PLACES: Final = (16, 32, 64, 116, 234, 774)
VALUES: Final = 1 << 15
TRIES: Final = 4


def measured(cohort: int, places: int) -> float:
    """Return the energy of the error of a decoded mean, in units of one client's energy."""
    return fmean(_error(cohort, places, number) for number in range(TRIES))


def _error(cohort: int, places: int, number: int) -> float:
    generator = np.random.default_rng([cohort, places, number])
    stream = PublicStream(seed=generator.bytes(32), round_number=number, tensor_name="update", shape=(VALUES,))
    code = PeakCode(rotation=JoinedRotation(stream=stream), places=places)
    updates = generator.standard_normal((cohort, VALUES)).astype(np.float32)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    coins = SystemCoins()
    total = code.decode(ideal_aggregate(code.layout, [code.encode(update, coins) for update in updates]))
    return float(np.sum((total.astype(np.float64) / cohort - updates.mean(axis=0, dtype=np.float64)) ** 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a row for each cohort and block size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("json", type=Path)
    file: Path = parser.parse_args(arguments).json
    points: list[dict[str, Any]] = [
        {
            "cohort": cohort,
            "places": places,
            "law": round(peak_noise(places, cohort), 5),
            "measured": round(measured(cohort, places), 5),
        }
        for cohort, places in product(COHORTS, PLACES)
    ]
    file.write_text(json.dumps({"values": VALUES, "tries": TRIES, "points": points}, indent=1) + "\n", encoding="utf-8")
    furthest = max(points, key=lambda point: abs(point["measured"] / point["law"] - 1))
    print(f"{len(points)} points; furthest from the law: {furthest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
