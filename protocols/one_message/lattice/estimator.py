"""Work of the lattice attack on one mask, by two cost models that are computed by hand.

Implements: the primal attack as a unique shortest vector problem [ADPS16] §6.3, [AGVW17] §3, with the root Hermite
factor of [Che13]. Its cost is the less of two: sieving in 2^(0.292 beta + 16.4) [BDGL16] for each of 8 d calls, as the
homomorphic encryption standard of 2018 counts it [HES18]; and the gates of [MATZOV22], which fits [AGPS20], with
d - beta calls and the dimensions for free of [Duc18]. So a floor holds by each.

Limits: it knows one attack. Decoding with preprocessing is about 3.5 bits cheaper in the published cells and hybrid
attacks do not help against a secret of this width; ``MARGIN_BITS`` covers the first. It ignores memory, and quantum
computers save a tenth of the exponent. It is an estimate and no proof; outsiders should estimate again.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

SIGMA: Final = 4.5
"""The width of secret and error as they are drawn."""
REVEALED_SIGMA: Final = SIGMA / math.sqrt(2)
"""The width of one of two secrets given their sum; what the assumption is stated for."""
MARGIN_BITS: Final = 4.0
"""Taken off the formula before it is compared with a floor."""

_GATES_A_DIMENSION = 0.29613500308205365
_LEAST_GATES = 20.387885985467914
_LEAST_BLOCK = 60
_GREATEST_BLOCK = 4000


class Attack(NamedTuple):
    """The cheapest primal attack that the formula finds."""

    block_size: int
    dimension: int

    @property
    def sieving_bits(self) -> float:
        """The logarithm of its cost as the standard of 2018 counts it."""
        return 0.292 * self.block_size + 16.4 + math.log2(8 * self.dimension)

    @property
    def gate_bits(self) -> float:
        """The logarithm of its cost in gates, by the model of 2022."""
        free = self.block_size * math.log(4 / 3) / math.log(self.block_size / (2 * math.pi * math.e))
        calls = 2 * math.log2(1 / (1 - 2**-_GATES_A_DIMENSION)) + math.log2(max(1, self.dimension - self.block_size))
        return calls + _GATES_A_DIMENSION * (self.block_size - free) + _LEAST_GATES

    @property
    def bits(self) -> float:
        return min(self.sieving_bits, self.gate_bits)


def primal_attack(degree: int, modulus_bits: int, error_width: float, secret_width: float) -> Attack:
    """Return the least block size that finds the secret, with as many samples as suit the attacker.

    The attack succeeds where sqrt(beta) sigma <= delta^(2 beta - d - 1) volume^(1/d), for d = degree + samples + 1 and
    the secret scaled to the error's width.
    """
    volume = (degree + 1) * modulus_bits - degree * math.log2(error_width / secret_width)
    low, high = _LEAST_BLOCK, _GREATEST_BLOCK
    while low < high:
        middle = (low + high) // 2
        if _finds(middle, _best_dimension(middle, volume), volume, modulus_bits, error_width):
            high = middle
        else:
            low = middle + 1
    return Attack(low, _best_dimension(low, volume))


def security_bits(degree: int, modulus_bits: int) -> float:
    """Return the estimate for one mask whose sum with another is known, less the margin."""
    return primal_attack(degree, modulus_bits, REVEALED_SIGMA, REVEALED_SIGMA).bits - MARGIN_BITS


@lru_cache(maxsize=64)
def greatest_modulus_bits(degree: int, least_security: int) -> int:
    """Return the widest modulus that keeps a floor of security in this degree; zero where none does."""
    low, high = 0, degree
    while low < high:
        middle = (low + high + 1) // 2
        if security_bits(degree, middle) >= least_security:
            low = middle
        else:
            high = middle - 1
    return low


def _hermite_bits(block: int) -> float:
    return math.log2((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) / (2 * (block - 1))


def _best_dimension(block: int, volume: float) -> int:
    """Return the dimension that maximises the right-hand side; its derivative is one square root away."""
    return max(block, round(math.sqrt(volume / _hermite_bits(block))))


def _finds(block: int, dimension: int, volume: float, modulus_bits: int, error_width: float) -> bool:
    reached = (2 * block - dimension - 1) * _hermite_bits(block) + modulus_bits - volume / dimension
    return math.log2(error_width) + 0.5 * math.log2(block) <= reached
