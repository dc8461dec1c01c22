"""Cost of a client's noise: drawing it from the table, adding it, and rounding an update to a bounded norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from math import ceil
from time import process_time

import numpy as np

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import Ring
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise import sample
from secagg.privacy.noise_table import add_noise_into, pieces
from secagg.privacy.rounding import rounded, rounded_norm

VALUES = 1 << 22
FEW = 1 << 16
DEVIATIONS = {10: 5.0, 100: 5.0, 1000: None}
"""Deviations of one client's noise, in steps, and the targets in nanoseconds a value."""


def measure() -> Iterator[Figure]:
    """Time each step on one thread, in nanoseconds a value."""
    coins, ring = SystemCoins(), Ring(16)
    vector = ring.zeros(VALUES)
    update = np.random.default_rng(0).standard_normal(VALUES) * 10
    bound = ceil(rounded_norm(float(np.linalg.norm(update)), VALUES)) + 1
    targets = dict[str, float | None]()
    contenders = dict[str, Callable[[], object]]()
    for kind in NoiseKind:
        for deviation, target in DEVIATIONS.items():
            name = f"draw {kind.name.lower().replace('_', ' ')}, deviation {deviation}"
            contenders[name] = partial(_draw, kind, Fraction(deviation**2), coins)
            targets[name] = target
    gaussian = NoiseKind.DISCRETE_GAUSSIAN
    contenders["draw and add modulo 2^16, deviation 100"] = partial(
        add_noise_into, vector, ring, gaussian, Fraction(10**4), coins
    )
    contenders["round to a bounded norm"] = partial(rounded, update, bound, coins)
    for name, seconds in best_seconds(contenders, 12, process_time).items():
        yield Figure(name=name, value=1e9 * seconds / VALUES, unit="ns", at_most=targets.get(name))
    exact = best_seconds({"": partial(sample, gaussian, Fraction(10**4), FEW, coins)}, 2, process_time)[""]
    yield Figure(name="the exact sampler of the enclave, deviation 100", value=1e9 * exact / FEW, unit="ns")


def _draw(kind: NoiseKind, variance: Fraction, coins: SystemCoins) -> None:
    for _ in pieces(kind, variance, VALUES, coins):
        pass
