"""Privacy cost of noised releases: sensitivities, their joint epsilon for a delta, and a client's budget.

Squared L2 sensitivities are exact integers and depend on the adjacency: the definition of neighbouring sets of clients.
Every client counts once.

A release has parts, such as segments, each with its own sensitivity and noise. The losses of parts and of releases add
up. Amplification by sampling does not count: it needs random and secret cohorts, but a server knows the clients that it
picks.

The bounds are of Rényi divergences, and `dp-accounting` (the extra ``dp``) converts them to epsilon. Its tighter
privacy loss distributions do not cover the worst shift of a vector with discrete noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from math import exp, inf, nextafter, pi, sqrt
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import require_integer

from .kinds import NoiseKind, require_delta, require_variance
from .rounding import rounded_root

_EXACT_FLOAT: Final = 1 << 53
_EXACT_INTEGER: Final = 1 << 63
_PAIRS_AT_A_TIME: Final = 1 << 20
"""Number of distances in memory at once: 8 MB."""


class Adjacency(Enum):
    """How adjacent data sets differ: one client's values become zeros, or any other allowed values."""

    ZERO_OUT = 1
    REPLACE = 2


def of_vector(l2_bound: int, adjacency: Adjacency) -> int:
    """Return the squared sensitivity of a sum of vectors whose L2 norm is at most ``l2_bound``.

    D^2 if the neighbour has zeros, (2 D)^2 if it has another vector, which may be the opposite one.
    """
    return (_spread(adjacency) * _at_least_zero("l2_bound", l2_bound)) ** 2


def of_histogram(blocks: int, adjacency: Adjacency) -> int:
    """Return the squared sensitivity of the histograms of all blocks: R, and 2 R with another choice."""
    return _spread(adjacency) * _at_least_zero("blocks", blocks)


def of_decoded_sum(tables: Sequence[tuple[int, npt.NDArray[np.int64]]], adjacency: Adjacency) -> int:
    """Return the squared sensitivity of a sum of codewords, one from the table of each block.

    The sum over the blocks of the largest |C_j|^2 if the neighbour has zeros, and of the largest |C_j - C_l|^2 if it
    chose other codewords.

    Args:
        tables: pairs of a number of blocks and their table, one codeword in each row, in integer steps.
    Raises:
        InvalidParameters: width times (2 largest entry)^2 reaches 2^63; put the codebook on a coarser grid.
    """
    total = 0
    for blocks, entries in tables:
        _require_table(entries)
        diameter = _largest_norm(entries) if _spread(adjacency) == 1 else _largest_distance(entries)
        total += _at_least_zero("blocks", blocks) * diameter
    return total


def _spread(adjacency: Adjacency) -> int:
    match adjacency:
        case Adjacency.ZERO_OUT:
            return 1
        case Adjacency.REPLACE:
            return 2
        case _:
            raise Misuse(f"expected an Adjacency; got {type(adjacency).__name__}")


def _largest_norm(entries: npt.NDArray[np.int64]) -> int:
    return int(np.einsum("jd,jd->j", entries, entries).max())


def _largest_distance(entries: npt.NDArray[np.int64]) -> int:
    """Return the maximum squared distance of two rows, |C_j|^2 + |C_l|^2 - 2 C_j C_l."""
    norms = np.einsum("jd,jd->j", entries, entries)
    largest = int(norms.max())
    # A float product of integers is much faster, and exact if all partial sums fit the significand.
    factors = entries.astype(np.float64) if largest < _EXACT_FLOAT else entries
    rows = max(1, _PAIRS_AT_A_TIME // len(entries))
    greatest = 0
    for start in range(0, len(entries), rows):
        products = (factors[start : start + rows] @ factors[start:].T).astype(np.int64)
        distances = norms[start : start + rows, np.newaxis] + norms[start:] - 2 * products
        greatest = max(greatest, int(distances.max()))
    return greatest


def _require_table(entries: npt.NDArray[np.int64]) -> None:
    if type(entries) is not np.ndarray or entries.dtype != np.int64 or entries.ndim != 2 or not entries.size:  # noqa: PLR2004 -- a matrix
        raise Misuse("a table must be a two-dimensional array of int64 with one codeword per row")
    largest = max(int(entries.max()), -int(entries.min()))
    if entries.shape[1] * (2 * largest) ** 2 >= _EXACT_INTEGER:
        raise InvalidParameters(
            f"{entries.shape[1]} entries of up to {largest} can have squared distances above 2^63; use a coarser grid "
            "for the codebook"
        )


def _at_least_zero(name: str, value: int) -> int:
    if type(value) is not int or value < 0:
        raise InvalidParameters(f"{name} must be an integer of at least 0; got {value!r}")
    return value


# --- Loss -------------------------------------------------------------------------------------------------------------

_REAL_ORDERS: Final = tuple(1 + 2 ** (step / 16) for step in range(-96, 20 * 16 + 1))
"""Orders from 1.016 (lower ones are numerically unstable) to 2^20; smaller losses have larger best orders."""
_WHOLE_ORDERS: Final = tuple(sorted({*range(2, 65), *(round(order) for order in _REAL_ORDERS if order > 64)}))  # noqa: PLR2004

_TERMS: Final = 1 << 10
_FLOAT_ERROR: Final = Fraction(1, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePart:
    """One part of a release: its sensitivity to one client, and its noise, in integer steps."""

    l2_squared: int
    """The squared L2 sensitivity, for some adjacency."""
    l1: int | None
    """The L1 sensitivity, if known; only Skellam noise uses it."""
    variance: Fraction
    gap: float = 0.0
    """For sums of several clients' discrete Gaussians: ``gap_of_sum``."""
    length: int = 1
    """Number of coordinates; only the gap uses it."""

    def __post_init__(self) -> None:
        if type(self.l2_squared) is not int or self.l2_squared < 0:
            raise InvalidParameters(f"l2_squared must be an integer of at least 0; got {self.l2_squared!r}")
        if self.l1 is not None and (type(self.l1) is not int or self.l1 < 0 or self.l1**2 < self.l2_squared):
            raise InvalidParameters(f"l1 must be an integer, at least the L2 sensitivity; got {self.l1!r}")

    @property
    def l1_bound(self) -> int:
        """Smallest known bound of the L1 sensitivity; integers are at most their squares."""
        return self.l2_squared if self.l1 is None else min(self.l1, self.l2_squared)


def epsilon(kind: NoiseKind, parts: Sequence[ReleasePart], releases: int, delta: float) -> float:
    """Return the epsilon, at this delta, of ``releases`` releases that all include the same client.

    Implements: [CKS20] Theorem 4 and the composition of [BS16] for the discrete Gaussian; the bound of [AKL21] at
        integer orders for Skellam; [CKS20] Proposition 12 for the conversion.
    Raises:
        InvalidParameters: a number is out of range, or the extra ``dp`` is not installed.
    Security: the adjacency is that of the sensitivities. Epsilon is computed in floating point, to a relative error of
    about 10^-9. It holds for a fixed number of releases, whose parameters do not depend on earlier results.
    """
    require_integer("releases", releases, 1)
    require_delta(delta)
    if not parts:
        raise InvalidParameters("a release needs at least one part")
    return loss_of(kind, parts).times(releases).epsilon(delta)


@dataclass(frozen=True, slots=True)
class Loss:
    """A bound of the Rényi divergences of releases that include one client: the sum of a line and a capped line.

    At the order a it is ``a slope + min(a more + offset, most)``; the second part is for Skellam noise, and holds at
    integer orders. The bounds of several releases add up.
    """

    slope: float
    more: float = 0.0
    offset: float = 0.0
    most: float = 0.0

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        return self.slope, self.more, self.offset, self.most

    def at(self, order: float) -> float:
        """Return the bound at an order above 1."""
        return order * self.slope + min(order * self.more + self.offset, self.most)

    def __add__(self, other: Loss) -> Loss:
        """Return the bound of both releases together, rounded up."""
        return Loss(*(_rounded_up(Fraction(a) + Fraction(b)) for a, b in zip(self.numbers, other.numbers, strict=True)))

    def times(self, factor: int | Fraction) -> Loss:
        """Return the bound of several equal releases, or of a share of one, rounded up."""
        return Loss(*(_rounded_up(Fraction(one) * factor) for one in self.numbers))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at a delta."""
        orders = _WHOLE_ORDERS if self.most else _REAL_ORDERS
        convert: Callable[..., tuple[float, float]] = _load("dp_accounting.rdp").compute_epsilon
        return float(convert(orders, [self.at(order) for order in orders], delta)[0])

    @property
    def event(self) -> Any:  # noqa: ANN401 -- of dp-accounting, which has no types
        """A ``dp-accounting`` event with at least this loss, for external accountants; also between integer orders."""
        line = self.slope + self.more
        return _load("dp_accounting").ZCDpEvent(line, max(0.0, self.offset) + (line if self.most else 0.0))


NO_LOSS: Final = Loss(0.0)


def loss_of(kind: NoiseKind, parts: Sequence[ReleasePart]) -> Loss:
    """Return the loss of one release whose parts all depend on the same client."""
    for part in parts:
        require_variance(part.variance, kind)
    match kind:
        case NoiseKind.DISCRETE_GAUSSIAN:
            return Loss(_rounded_up(sum((rho_of_part(part) for part in parts), Fraction(0))))
        case NoiseKind.SKELLAM:
            return sum((_loss_of_skellam(part) for part in parts), NO_LOSS)


def _loss_of_skellam(part: ReleasePart) -> Loss:
    """Return the loss of one part.

    Implements: [AKL21], its bound with a scale of 1: a D2^2 / (2 v) + min(((2 a - 1) D2^2 + 6 D1) / (4 v^2),
        3 D1 / (2 v)) for an order a and a variance v.
    """
    square, absolute, variance = part.l2_squared, part.l1_bound, part.variance
    return Loss(
        _rounded_up(square / (2 * variance)),
        _rounded_up(square / (2 * variance**2)),
        _rounded_up((6 * absolute - square) / (4 * variance**2)),
        _rounded_up(3 * absolute / (2 * variance)),
    )


def gap_of_sum(variance: Fraction, summands: int) -> float:
    """Return tau, a bound on the distance of a sum of discrete Gaussians of this variance from a single one.

    Implements: [KLS21] Theorem 1: 10 times the sum of exp(-2 pi^2 v k / (k + 1)) for k from 1 to summands - 1.
    """
    exact = min(summands, _TERMS)
    terms = [exp(-2 * pi**2 * float(variance) * k / (k + 1)) for k in range(1, exact)]
    # Terms decrease, so the last computed one bounds the rest.
    return 10 * (sum(terms) + (summands - exact) * (terms[-1] if terms else 0.0))


def rho_of_part(part: ReleasePart) -> Fraction:
    """Return a part's zero-concentrated loss: that of one discrete Gaussian, plus the effect of a sum's gap.

    Implements: [CKS20] Theorem 4: D^2 / (2 v); with a gap [KLS21] Theorem 1: half the square of
        min(sqrt(D^2 / v + tau d / 2), D / sqrt(v) + tau sqrt(d)).
    """
    one = part.l2_squared / part.variance
    if part.gap == 0:
        return one / 2
    least = min(float(one) + part.gap * part.length / 2, (sqrt(one) + part.gap * sqrt(part.length)) ** 2)
    return Fraction(_rounded_up(Fraction(least) * (1 + _FLOAT_ERROR))) / 2


def _rounded_up(value: Fraction) -> float:
    rounded = float(value)
    return rounded if rounded >= value else nextafter(rounded, inf)


def _load(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise InvalidParameters(
            "computing epsilon needs dp-accounting; pip install '.[dp]' in a checkout", reason=Reason.BACKEND_MISSING
        ) from None


# --- Budget of one client for all the noised sums that it is ever in --------------------------------------------------

NOT_NOISED: Final = (
    "a client with a privacy budget never uploads without noise, because that would exceed the budget: set "
    "noise_multiplier, or remove the budget"
)
_SHARES: Final = 1 << 20
"""Resolution of a loss, to find how much of it fits."""
_MOST_RELEASES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """A client's budget: an epsilon, its delta, and the adjacency that they refer to."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE

    def __post_init__(self) -> None:
        if type(self.epsilon) not in {float, int} or not 0 < self.epsilon < inf:
            raise InvalidParameters(f"a budget's epsilon must be above 0; got {self.epsilon!r}")
        require_delta(self.delta)
        if type(self.adjacency) is not Adjacency:
            raise Misuse(f"expected an Adjacency; got {type(self.adjacency).__name__}")

    def spent(self, loss: Loss) -> float:
        """Return the epsilon of a loss, at this budget's delta."""
        return _epsilon(loss, self.delta)

    def holds(self, loss: Loss) -> bool:
        """Whether a loss is within the budget."""
        return self.spent(loss) <= self.epsilon

    def releases(self, cost: Loss) -> int:
        """Return the number of releases of a cost within the whole budget; at most a million."""
        return _most(lambda count: self.holds(cost.times(count)), _MOST_RELEASES)

    def require_room(self, spent: Loss, uploads: int, cost: Loss, multiplier: Fraction) -> None:
        """Refuse an upload that would exceed the budget; the error says what is spent, what is left and what to change.

        Args:
            spent: loss of earlier uploads.
            cost: loss of the next upload, whose noise is ``multiplier`` times the sensitivity to one client.
        """
        if self.holds(spent + cost):
            return
        before = self.spent(spent) if uploads else 0.0
        share = _most(lambda part: self.holds(spent + cost.times(Fraction(part, _SHARES))), _SHARES)
        advice = "no noise would suffice for another upload: exclude this client, or raise its budget"
        if share:
            least = rounded_root(multiplier**2 * Fraction(_SHARES, share), ROUND_UP)
            advice = (
                f"a noise multiplier of {least:f} would fit; this one is {float(multiplier):g}: use more noise, "
                "exclude this client, or raise its budget"
            )
        raise InvalidParameters(
            f"with this upload the client would have spent epsilon {self.spent(spent + cost):.6g} at delta "
            f"{self.delta:g}, {self.said}, but its budget is {self.epsilon:g}: its {uploads} uploads so far have spent "
            f"{before:.6g}, which leaves {max(0.0, self.epsilon - before):.6g}; {advice}",
            reason=Reason.BUDGET_SPENT,
        )

    @property
    def said(self) -> str:
        return f"its update {'replaced by another' if self.adjacency is Adjacency.REPLACE else 'replaced by zeros'}"

    def sentence(self, cost: Loss) -> str:
        """Return a sentence about the budget for the operator, before the first sum."""
        count = self.releases(cost)
        return (
            f"the budget of a client, epsilon {self.epsilon:g} at delta {self.delta:g}, {self.said}, pays for "
            f"{count:,} {'sum' if count == 1 else 'sums'} like this one"
        )


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to a limit that fits (fitting is monotone); 0 if 1 does not fit."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@lru_cache(maxsize=1 << 12)
def _epsilon(loss: Loss, delta: float) -> float:
    """Convert a loss to epsilon; cached, since clients of a simulation have equal losses."""
    return 0.0 if loss == NO_LOSS else loss.epsilon(delta)
