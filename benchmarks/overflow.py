"""Frequency of ring overflows by margin, for independent Gaussian updates, both signs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from figures import Figure
from secagg.compression.scalar_quantization import ScalarQuantization, modulus_bits_for, overflowed
from secagg.crypto.ring import Ring
from secagg.simulation.insecure_coins import InsecureSeededCoins

COORDINATES = 50_000
CLIENTS = 100
DEVIATIONS = 3.0
"""The scale puts the minimum code this many standard deviations from zero."""
WIDTHS = (2, 4, 8)


def measure() -> Iterator[Figure]:
    """Quantize a hundred Gaussian updates and count the coordinates whose sum overflows increasingly narrow rings."""
    for bits in WIDTHS:
        sums = true_sums(bits)
        sufficient = modulus_bits_for(bits, CLIENTS) - bits
        for margin in range(sufficient + 1):
            above, below = shares(sums, bits + margin)
            yield Figure(
                name=f"overflow, {CLIENTS} clients of {bits} bits, margin {margin}",
                value=100 * (above + below),
                unit="%",
                at_most=0.0 if margin == sufficient else None,
                note=f"{100 * below:.3f} % below and {100 * above:.3f} % above",
            )


def true_sums(bits: int) -> npt.NDArray[np.int64]:
    """Return the sums, over the integers, of the codes of independent updates with normal coordinates."""
    generator = np.random.default_rng(bits)
    coins = InsecureSeededCoins(b"rounding to nearest draws none of them")
    scale = DEVIATIONS / (1 << (bits - 1))
    quantizer = ScalarQuantization(shape=(COORDINATES,), bits=bits, modulus_bits=16, scales=(scale,))
    total = np.zeros(COORDINATES, dtype=np.int64)
    for _ in range(CLIENTS):
        update = generator.standard_normal(COORDINATES, dtype=np.float32)
        total += Ring(16).lift(quantizer.encode(update, coins).values[0])
    return total


def shares(sums: npt.NDArray[np.int64], modulus_bits: int) -> tuple[float, float]:
    """Return the shares of sums that overflow above and below."""
    left = overflowed(sums, modulus_bits)
    return float((left & (sums > 0)).mean()), float((left & (sums < 0)).mean())
