"""Cost of a number of noised releases: their joint epsilon for a given delta.

A release has parts, such as segments, each with its own sensitivity and noise; their losses add up, and so do those of
the releases. No amplification by sampling is counted: it needs cohorts that are random and secret, and a server that
picks its clients knows them.

The bounds are of Rényi divergences, and `dp-accounting` (the extra ``dp``) converts them. Its tighter privacy loss
distributions do not know the worst shift of a vector with discrete noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from math import exp, inf, nextafter, pi, sqrt
from types import ModuleType
from typing import Any, Final

from secagg.errors import InvalidParameters, Reason
from secagg.parameters import require_integer
from secagg.privacy.kinds import NoiseKind, require_delta, require_variance

_REAL_ORDERS: Final = tuple(1 + 2 ** (step / 16) for step in range(-96, 20 * 16 + 1))
"""Orders from 1.016, below which the conversion is unstable, to 2^20; the smaller the loss, the larger the best order.
"""
_WHOLE_ORDERS: Final = tuple(sorted({*range(2, 65), *(round(order) for order in _REAL_ORDERS if order > 64)}))  # noqa: PLR2004

_TERMS: Final = 1 << 10
_FLOAT_ERROR: Final = Fraction(1, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePart:
    """One part of a release, in integer steps: how far a client can move it, and its noise."""

    l2_squared: int
    """From ``sensitivity``, which names the adjacency."""
    l1: int | None
    """The L1 sensitivity, where one is known; it matters to Skellam alone."""
    variance: Fraction
    gap: float = 0.0
    """With discrete Gaussians of several clients: ``gap_of_sum``."""
    length: int = 1
    """Number of coordinates; it matters to the gap alone."""

    def __post_init__(self) -> None:
        if type(self.l2_squared) is not int or self.l2_squared < 0:
            raise InvalidParameters(f"l2_squared is an integer from 0 on; got {self.l2_squared!r}")
        if self.l1 is not None and (type(self.l1) is not int or self.l1 < 0 or self.l1**2 < self.l2_squared):
            raise InvalidParameters(f"an L1 sensitivity is an integer, and no less than that in L2; got {self.l1!r}")

    @property
    def l1_bound(self) -> int:
        """The least known bound of the L1 sensitivity; integers are at most their squares."""
        return self.l2_squared if self.l1 is None else min(self.l1, self.l2_squared)


def epsilon(kind: NoiseKind, parts: Sequence[ReleasePart], releases: int, delta: float) -> float:
    """Return the epsilon, at this delta, of ``releases`` releases that all hold the same client.

    Implements: [CKS20] Theorem 4 and the composition of [BS16] for the discrete Gaussian; the bound of [AKL21] at
        whole orders for Skellam; [CKS20] Proposition 12 for the conversion.
    Raises:
        InvalidParameters: a number is out of range, or the extra ``dp`` is not installed.
    Security: the adjacency is that of the sensitivities. It is computed in floating point, to a relative error of
        10^-9 or so, and holds for a fixed number of releases and parameters that do not depend on what was released.
    """
    require_integer("releases", releases, 1)
    require_delta(delta)
    if not parts:
        raise InvalidParameters("a release has at least one part")
    return loss_of(kind, parts).times(releases).epsilon(delta)


@dataclass(frozen=True, slots=True)
class Loss:
    """A bound of the Rényi divergences of releases that one client is in: the sum of a line and a line that ends.

    At the order a it is ``a slope + min(a more + offset, most)``; the second part is that of Skellam noise, and holds
    at whole orders. The bounds of releases that are seen together add up.
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
        """Return the bound of both together, rounded up."""
        return Loss(*(_rounded_up(Fraction(a) + Fraction(b)) for a, b in zip(self.numbers, other.numbers, strict=True)))

    def times(self, factor: int | Fraction) -> Loss:
        """Return the bound of so many releases alike, or of a share of one, rounded up."""
        return Loss(*(_rounded_up(Fraction(one) * factor) for one in self.numbers))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at a delta."""
        orders = _WHOLE_ORDERS if self.most else _REAL_ORDERS
        convert: Callable[..., tuple[float, float]] = _load("dp_accounting.rdp").compute_epsilon
        return float(convert(orders, [self.at(order) for order in orders], delta)[0])

    @property
    def event(self) -> Any:  # noqa: ANN401 -- of dp-accounting, which has no types
        """An event of ``dp-accounting`` that costs no less, for another's accountant; between whole orders too."""
        line = self.slope + self.more
        return _load("dp_accounting").ZCDpEvent(line, max(0.0, self.offset) + (line if self.most else 0.0))


NO_LOSS: Final = Loss(0.0)


def loss_of(kind: NoiseKind, parts: Sequence[ReleasePart]) -> Loss:
    """Return the loss of one release of some parts, which one client can all move."""
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
    """Return tau, which bounds how far the sum of so many discrete Gaussians of this variance is from a single one.

    Implements: [KLS21] Theorem 1: 10 times the sum of exp(-2 pi^2 v k / (k + 1)) for k from 1 to summands - 1.
    """
    exact = min(summands, _TERMS)
    terms = [exp(-2 * pi**2 * float(variance) * k / (k + 1)) for k in range(1, exact)]
    # The terms fall, so the last one bounds those behind it.
    return 10 * (sum(terms) + (summands - exact) * (terms[-1] if terms else 0.0))


def rho_of_part(part: ReleasePart) -> Fraction:
    """Return a part's zero-concentrated loss: that of one discrete Gaussian, and what the gap of a sum adds.

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
            "epsilon is computed by dp-accounting; install secagg[dp]", reason=Reason.BACKEND_MISSING
        ) from None
