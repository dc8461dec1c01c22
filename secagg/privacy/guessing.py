"""A necessary condition for a sum to hide all of its values, and what to say where it fails. Not a privacy guarantee.

A sum of p bits names all values of H honest clients with chance 2^(p - H h) at most, where h is the min-entropy of one
value given everything public: so 2 p <= H h keeps that chance below 2^-p. With weights w, H is the number of clients of
equal weights that mix as much, (sum w)^2 / sum w^2; p adds up over all sums that hold an update. It bounds the guessing
of all values at once and nothing else: one client that is much lighter than the others is guessed more often than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def mixing_clients(weights: Iterable[float]) -> float:
    """Return how many clients of equal weights mix as much as those of these weights."""
    given = np.array(list(weights), dtype=np.float64)
    squares = float(np.square(given).sum())
    return float(given.sum()) ** 2 / squares if squares else 0.0


def min_entropy(codes: npt.NDArray[np.integer[Any]]) -> float:
    """Return the min-entropy of codes, in bits, as their frequencies have it; the bits of a code are the most."""
    _, counts = np.unique(codes, return_counts=True)
    return float(np.log2(codes.size / counts.max())) if codes.size else 0.0


def said_guessable(*, sum_bits: float, clients: float, entropy: float) -> str | None:
    """Say that sums determine too much of their values; None where the condition holds.

    Args:
        sum_bits: of one coordinate, in all sums that hold an update.
        clients: honest ones; those of unequal weights as ``mixing_clients`` counts them.
        entropy: least entropy of one client's value at a coordinate, measured where that is possible.
    """
    if 2 * sum_bits <= clients * entropy:
        return None
    return (
        f"sums of {sum_bits:.3g} bits over {clients:.3g} clients of equal weights, whose values have about "
        f"{entropy:.2g} bits each, can determine the values of all clients: the rule 2 p <= H h fails "
        f"({2 * sum_bits:.3g} and {clients * entropy:.3g}). Invite more clients, or add noise. The rule is no privacy "
        "guarantee where it holds"
    )
