"""Neighbours, shares and committee that an assumed number of corrupted and dropped clients requires.

The assumptions are counts, not fractions, and corruption is static: a server that drops honest clients raises the
fraction of corrupted ones, and a client that assumes a fraction would follow it. The corrupted clients are fixed before
the graph seed is known; the server chooses the dropouts wherever the rule is split-proof.

Every probability here is that of one drawn graph. A server without a public beacon can try as many graphs as it can
make rosters, by leaving clients out and by having a corrupted client sign other keys, at some 30 us each. The tries
multiply the probability, so in ``active`` mode the least is 100 bits: 2^60 tries leave 2^-40.

All events are about drawing neighbours or members without replacement, so they are tails of hypergeometric
distributions, computed in logarithms. Every computed tail is raised by more than its rounding error, so that rounding
can cost a larger degree but never lets an unsafe one pass.

Notation: n, C, D, sigma, eta are ``population``, ``corrupted``, ``dropped``, ``privacy_bits``, ``correctness_bits``;
k, t, c, h a neighbourhood's ``degree``, ``threshold``, ``corrupted``, ``window``; q, tau a committee's ``size``,
``quorum``.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from functools import lru_cache
from math import inf, lgamma, log
from typing import Final

from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_THRESHOLD, SecurityMode

from .graph import LEAST_DEGREE, LEAST_POPULATION, MAXIMUM_POPULATION, Topology

PRIVACY_BITS: Final = 100
CURIOUS_PRIVACY_BITS: Final = 40
"""Enough against a server that follows the protocol, and so draws one graph."""
MAXIMUM_BITS: Final = 256

LN2: Final = log(2)
"""Factor from bits to the unit of the tails."""
_ROUNDING: Final = 1e-6
"""Margin added to a computed logarithm. Each of the nine log-gammas behind it is below 1.4e7 and accurate to a few
units in the last place (1.9e-9), and the terms left out of a sum are less than 1e-9 of it."""


class ThresholdRule(StrEnum):
    """Attack that a threshold prevents, in a sparse graph."""

    SEMI_HONEST = "semi_honest"
    """t = c + 1: corrupted neighbours alone cannot reconstruct. For a server that follows the protocol."""
    NO_DOUBLE_REVEAL = "no_double_reveal"
    """t > (k + c) / 2: nobody's two secrets are both reconstructed. Tabulated for comparison, and used by no session: a
    server that has seen the graph can still choose survivors whose sum falls into parts that it learns one by one."""
    SPLIT_PROOF = "split_proof"
    """t = k / 2 + h + 1: whichever survivors the server chooses, every sum that is revealed covers all honest ones.

    Suppose it opens a part of them and not the rest. Going round the ring, some honest survivor u of the part is
    followed by one that is not of it. No mask joins the two, so they are more than k / 2 apart, and all k / 2 clients
    after u are dropped or corrupted. Elsewhere the part begins again, with a v before whom the same holds. The two
    half-windows are disjoint, and one of them has at most h corrupted clients, so at most k / 2 + h holders answer for
    u or for v, which is fewer than t. This takes survivors that all honest clients agree upon, and uploads whose masks
    are the agreed ones. The threshold is never below (k + c) / 2 + 1, at which nobody's two secrets are both
    reconstructed even where no certificate stands between."""

    def threshold(self, degree: int, corrupted: int, window: int) -> int:
        """Return the threshold for a number of neighbours.

        Args:
            corrupted: how many of them no client has more corrupted of.
            window: how many corrupted clients no two disjoint half-windows both have more of.
        """
        match self:
            case ThresholdRule.SEMI_HONEST:
                return max(LEAST_THRESHOLD, corrupted + 1)
            case ThresholdRule.NO_DOUBLE_REVEAL:
                return max(LEAST_THRESHOLD, (degree + corrupted) // 2 + 1)
            case ThresholdRule.SPLIT_PROOF:
                return max(LEAST_THRESHOLD, degree // 2 + window + 1, (degree + corrupted) // 2 + 1)


# --- What a client insists on -----------------------------------------------------------------------------------------


def least_privacy_bits(mode: SecurityMode) -> int:
    """Return the least ``privacy_bits`` that a session of this mode is planned for, and that a client insists on."""
    return PRIVACY_BITS if mode is SecurityMode.ACTIVE else CURIOUS_PRIVACY_BITS


def least_threshold(  # noqa: PLR0913 -- the offer, and the client's own assumptions
    topology: Topology,
    mode: SecurityMode,
    *,
    population: int,
    degree: int,
    corrupted: int,
    dropped: int = 0,
    privacy_bits: int = PRIVACY_BITS,
) -> int:
    """Return the least threshold at which an honest client's input is protected, for the actual population.

    Args:
        corrupted: the client's own absolute bound; in a smaller population all others count as corrupted.
        dropped: how many clients may drop out, independently of the graph; only a sparse ``semi_honest`` session is cut
            apart by dropouts, and this is checked there.

    Implements: [BIK+17] section 6 (full); the split-proof rule (sparse, ``active``). Claim PM-5.
    Raises:
        InvalidParameters: no threshold within the degree protects the client.
    """
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("dropped", dropped, 0)
    require_number("privacy_bits", privacy_bits, 1, MAXIMUM_BITS)
    corrupted, dropped = min(corrupted, population), min(dropped, population)
    relies_on_server = mode is SecurityMode.SEMI_HONEST
    if topology is Topology.FULL:
        require_number("degree of a full graph", degree, population - 1, population - 1)
        threshold = max(LEAST_THRESHOLD, 1 + (corrupted if relies_on_server else (population + corrupted) // 2))
    else:
        rule = ThresholdRule.SEMI_HONEST if relies_on_server else ThresholdRule.SPLIT_PROOF
        threshold = rule.threshold(
            degree,
            corrupted_neighbours(population, corrupted, degree, privacy_bits),
            corrupted_in_window(population, corrupted, degree, privacy_bits),
        )
        if relies_on_server and not stays_connected(population, corrupted + dropped, degree, privacy_bits):
            raise InvalidParameters(
                f"with {corrupted} corrupted and {dropped} dropped of {population} clients, a sparse graph of degree "
                f"{degree} could leave honest clients alone; plan the session for as many, or use a full graph"
            )
    if threshold > degree:
        raise InvalidParameters(
            f"with {corrupted} corrupted of {population} clients the threshold would be {threshold}, and a client of "
            f"degree {degree} has no more than {degree} holders; plan the session for as many corrupted clients, or "
            "assume fewer (ClientFloors.assumed_corrupted)"
        )
    return threshold


def require_committee(population: int, corrupted: int, size: int, quorum: int, bits: int = PRIVACY_BITS) -> None:
    """Refuse a committee where two quorums could have only corrupted members in common.

    Raises:
        InvalidParameters: naming the least quorum that would do.
    """
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("size of the committee", size, 1, population)
    require_number("quorum", quorum, 1, size)
    require_number("bits", bits, 1, MAXIMUM_BITS)
    corrupted = min(corrupted, population)
    least = (size + corrupted_members(population, corrupted, size, bits)) // 2 + 1
    if quorum < least:
        raise InvalidParameters(
            f"a quorum of {quorum} from a committee of {size} is too small for {corrupted} corrupted of {population} "
            f"clients: it takes {least}" + (", so insist on a larger committee" if least > size else "")
        )


# --- Tails ------------------------------------------------------------------------------------------------------------


def corrupted_neighbours(population: int, corrupted: int, degree: int, bits: int = PRIVACY_BITS) -> int:
    """Return how many corrupted neighbours no client has more of, but with probability 2^-(bits + 1)."""
    _require_lattice(population, corrupted, degree, bits)
    # The client that counts is honest, and all of its neighbours are others.
    return _most_drawn(population - 1, min(corrupted, population - 1), degree, -(bits + 1) * LN2 - log(population))


def corrupted_in_window(population: int, corrupted: int, degree: int, bits: int = PRIVACY_BITS) -> int:
    """Return how many corrupted clients no two disjoint half-windows both have more of, but with 2^-(bits + 1).

    There are n (n - k + 1) / 2 pairs of disjoint runs of k / 2 clients. The corrupted in the one make those in the
    other less likely, so both have more than h with probability Pr[Hyp(n - 1, C, k / 2) > h]^2 at most; and they
    cannot where 2 (h + 1) exceeds all that are corrupted.
    """
    _require_lattice(population, corrupted, degree, bits)
    pairs = population * (population - degree + 1) // 2
    both = -(bits + 1) * LN2 - log(pairs)
    # Counted among the others of an honest client, as the neighbours are.
    drawn = _most_drawn(population - 1, min(corrupted, population - 1), degree // 2, both / 2)
    return min(drawn, min(corrupted, population) // 2)


def _require_lattice(population: int, corrupted: int, degree: int, bits: int) -> None:
    require_number("population", population, LEAST_POPULATION, MAXIMUM_POPULATION)
    require_number("corrupted", corrupted, 0)
    require_number("degree", degree, LEAST_DEGREE, population - 1)
    if degree % 2 != 0:
        raise InvalidParameters(f"the degree of a sparse graph is even; got {degree}")
    require_number("bits", bits, 1, MAXIMUM_BITS)


def corrupted_members(population: int, corrupted: int, size: int, bits: int) -> int:
    """Return how many corrupted members a committee has no more of, but with probability 2^-(bits + 1)."""
    return _most_drawn(population, corrupted, size, -(bits + 1) * LN2)


@lru_cache(maxsize=1024)
def _most_drawn(total: int, marked: int, drawn: int, log_probability: float) -> int:
    """Return the least bound that the number of marked ones among the drawn exceeds with this probability at most.

    Cached because thousands of clients in one process ask for the same session.
    """
    return bisect_left(
        range(min(marked, drawn)),
        -log_probability,
        key=lambda bound: -log_tail(bound + 1, total, marked, drawn),
    )


def log_tail(least: int, total: int, marked: int, drawn: int) -> float:
    """Return ln Pr[``least`` or more are marked], or slightly more, when ``drawn`` are drawn of ``total``."""
    if least <= max(0, drawn - (total - marked)):
        return 0.0
    most = min(marked, drawn)
    if least > most:
        return -inf
    first = _log_choose(marked, least) + _log_choose(total - marked, drawn - least) - _log_choose(total, drawn)
    # The terms relative to the first one, each from the one before it.
    term = summed = 1.0
    for x in range(least, most):
        term *= (marked - x) * (drawn - x) / ((x + 1) * (total - marked - drawn + x + 1))
        summed += term
        # Terms rise to the mode and fall from there, so once one is this small the rest are smaller still.
        if term * (most - x) < 1e-9 * summed:
            break
    return min(0.0, first + log(summed) + _ROUNDING)


def stays_connected(population: int, absent: int, degree: int, bits: int) -> bool:
    """Say whether the ring lattice without the ``absent`` is connected, but with probability 2^-(bits + 1).

    It falls apart only if two disjoint runs of degree / 2 clients are all absent: a union bound over pairs of runs.
    """
    pairs = population * (population - degree - 1) // 2
    if degree > absent or pairs == 0:
        return True
    log_all_absent = _log_choose(absent, degree) - _log_choose(population, degree)
    return log(pairs) + log_all_absent + _ROUNDING <= -(bits + 1) * LN2


def _log_choose(a: int, b: int) -> float:
    return lgamma(a + 1) - lgamma(b + 1) - lgamma(a - b + 1)


# --- Arguments --------------------------------------------------------------------------------------------------------


def require_number(name: str, value: object, least: int, greatest: int | None = None) -> None:
    """Require an integer in a range."""
    if type(value) is not int or value < least or (greatest is not None and value > greatest):
        within = f"is at least {least}" if greatest is None else f"is in {least}..{greatest}"
        raise InvalidParameters(f"{name} {within}; got {value!r}")
