"""A necessary condition for a sum to hide all of its values, and a warning if it fails. Not a privacy guarantee.

Given a sum of p bits, all values of H honest clients can be guessed with a probability of at most 2^(p - H h), where h
is the min-entropy of one value given all public data; so 2 p <= H h keeps it at most 2^-p. With weights w, H is the
number of clients of equal weights that mix as much, (sum w)^2 / sum w^2; p adds up over all sums that include an
update. The condition only bounds guessing all values at once: a much lighter client is guessed more often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def mixing_clients(weights: Iterable[float]) -> float:
    """Return the number of clients of equal weights that mix as much as these weights."""
    given = np.array(list(weights), dtype=np.float64)
    squares = float(np.square(given).sum())
    return float(given.sum()) ** 2 / squares if squares else 0.0


def min_entropy(codes: npt.NDArray[np.integer[Any]]) -> float:
    """Return the empirical min-entropy of codes, in bits; at most the bits of a code."""
    _, counts = np.unique(codes, return_counts=True)
    return float(np.log2(codes.size / counts.max())) if codes.size else 0.0


def said_guessable(*, sum_bits: float, clients: float, entropy: float) -> str | None:
    """Return a warning if sums determine too much of their values; None if the condition holds.

    Args:
        sum_bits: bits of one coordinate, in all sums that include an update.
        clients: number of honest clients; for unequal weights that of ``mixing_clients``.
        entropy: min-entropy of one client's value at a coordinate, measured if possible.
    """
    if 2 * sum_bits <= clients * entropy:
        return None
    return (
        f"sums of {sum_bits:.3g} bits over clients that count as {clients:.3g} of equal weight, whose values have "
        f"about {entropy:.2g} bits each, can determine the values of all clients: the rule 2 p <= H h fails "
        f"({2 * sum_bits:.3g} and {clients * entropy:.3g}). Invite more clients, or add noise. Even if the rule "
        "holds, it is not a privacy guarantee"
    )
