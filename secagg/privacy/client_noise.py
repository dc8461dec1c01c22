"""Noise that clients add to their own updates, so that every opened sum contains it.

Every client draws a share with variance V / (n - c). n is the minimum number of contributors, enforced by the parties
that open a sum. c is the assumed number of corrupted contributors; it is absolute, because they know their own noise
and do not drop out. So any opened sum of the session has unknown noise of variance at least V.

Each client first clips in integers, even if its codec has clipped. With noise every client has weight 1: a weight would
multiply the noise, and the sum of weights would be released without noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_UP
from fractions import Fraction
from functools import partial
from math import ceil, isqrt, sqrt
from typing import Annotated, Final, Protocol, runtime_checkable

import numpy as np

from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, Reason
from secagg.options import Options, option

from .accounting import (
    NO_LOSS,
    NOT_NOISED,
    Adjacency,
    Loss,
    PrivacyBudget,
    ReleasePart,
    epsilon,
    gap_of_sum,
    loss_of,
    of_vector,
)
from .kinds import GREATEST_VARIANCE, LEAST_VARIANCE, NoiseKind, clip_into, require_variance
from .noise_table import add_noise_into
from .rounding import room_for_noise, rounded_root

LEAST_SHARE: Final = 4
"""Minimum variance of a client's discrete Gaussian: below, sums of them are too far from a discrete Gaussian."""
_TAIL_DEVIATIONS: Final = 10
_MOST_EPSILON: Final = 10**9
USUAL_DELTA: Final = 1e-6
MOST_NOISE: Final = 0.6
"""Energy of a mean's noise over that of the longest update; above this, accuracy was seen to suffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings(Options):
    """Noise of clients, as settings of a session: the server proposes them; each client requires its own values."""

    noise_multiplier: Annotated[Fraction | None, option("standard deviation of the noise over the sensitivity")] = None
    noise_kind: Annotated[NoiseKind, option("distribution of the noise")] = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: Annotated[tuple[int, ...], option("norms of one client's values, in steps, by segment")] = ()
    adjacency: Annotated[Adjacency, option("neighbouring cohorts")] = Adjacency.REPLACE
    is_rotated: Annotated[bool, option("whether values are rotated, and rounded at random")] = False
    """Whether values are randomly rounded coordinates of rotated updates, whose sums need narrower rings."""

    def bound_to(self, terms: bytes, corrupted: int) -> bytes:
        """Return the digest of a session's terms and noise, which its offer binds; without noise, of the terms.

        Args:
            corrupted: assumed number of corrupted contributors. All clients must use the same number: one with a lower
            number adds less noise than the others rely on.
        """
        if self.noise_multiplier is None:
            return terms
        said = (
            self.noise_multiplier,
            self.noise_kind.name,
            *self.l2_bounds,
            self.adjacency.name,
            self.is_rotated,
            corrupted,
        )
        return hashlib.sha256(bind(Label.CLIENT_NOISE, terms, *(str(one).encode() for one in said))).digest()

    def noise_for(self, layout: Layout, *, minimum_cohort: int, capacity: int, corrupted: int) -> ClientNoise | None:
        """Return the noise of a session, or None.

        Args:
            minimum_cohort: the minimum number of contributors, enforced by the parties that open a sum.
            capacity: the largest number of contributors.
        Raises:
            InvalidParameters: inconsistent numbers; the message names consistent ones.
            CapacityExceeded: a ring does not hold a sum with its noise; the message names a multiplier that fits.
        """
        if self.noise_multiplier is None:
            if self.budget is not None:
                raise InvalidParameters(NOT_NOISED)
            return None
        noise = ClientNoise(self, layout, minimum_cohort - corrupted, capacity)
        if self.budget is not None:
            self.budget.require_room(NO_LOSS, 0, noise.loss(self.budget.adjacency), noise.multiplier)
        return noise

    @property
    def budget(self) -> PrivacyBudget | None:
        """Budget of a client, if these settings have one."""
        return None


NO_NOISE: Final = NoiseSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedNoise(NoiseSettings):
    """Noise of clients, and each client's budget for all its sums ever, which its ledger enforces."""

    budget_epsilon: Annotated[Fraction | None, option("epsilon that one client may spend in all sums")] = None
    """None for no limit. A client with a budget never uploads without noise."""
    budget_delta: Annotated[Fraction, option("delta of that epsilon")] = Fraction(1, 10**6)

    @property
    def budget(self) -> PrivacyBudget | None:
        """The budget, with the noise's adjacency."""
        if self.budget_epsilon is None:
            return None
        if not 0 < self.budget_epsilon <= _MOST_EPSILON or not 0 < self.budget_delta < 1:
            raise InvalidParameters(
                f"budget_epsilon must be above 0 and at most {_MOST_EPSILON:,}, and budget_delta above 0 and below 1"
            )
        return PrivacyBudget(
            epsilon=float(self.budget_epsilon), delta=float(self.budget_delta), adjacency=self.adjacency
        )


@dataclass(frozen=True, slots=True)
class ClientNoise:
    """The noise of one session, for clients and accountants."""

    settings: NoiseSettings
    layout: Layout
    honest: int
    """Minimum number of honest contributors of any sum."""
    capacity: int

    def __post_init__(self) -> None:
        bounds, multiplier, segments = self.settings.l2_bounds, self.settings.noise_multiplier, self.segments
        if multiplier is None or multiplier <= 0:
            raise InvalidParameters(f"noise_multiplier must be positive; got {multiplier}")
        if len(bounds) != len(segments) or any(type(bound) is not int or bound < 1 for bound in bounds):
            raise InvalidParameters(
                f"l2_bounds must be {len(segments)} positive integers, one for each segment; got {bounds}"
            )
        if not 1 <= self.honest <= self.capacity:
            raise InvalidParameters(
                f"a sum may have only {self.honest} honest contributors, but noise needs at least one: raise "
                "minimum_cohort above the number of corrupted clients"
            )
        least, most = self._least_squared, self._most_squared
        if not most:
            raise CapacityExceeded(
                f"rings of {', '.join(str(one.modulus_bits) for one in segments)} bits do not hold sums of "
                f"{self.capacity} clients: use wider rings or fewer clients; without noise they would not fit either"
            )
        low, high = rounded_root(least, ROUND_UP), rounded_root(most, ROUND_DOWN)
        both = "no multiplier suits both the rings and the clients' shares" if low > high else ""
        if multiplier**2 > most:
            raise CapacityExceeded(
                f"the rings are too narrow for sums of {self.capacity} clients with this noise_multiplier: "
                f"{both or f'set noise_multiplier = {high:f} or less'}, or use a wider ring"
            )
        if multiplier**2 < least:
            kind = self.settings.noise_kind
            raise InvalidParameters(
                f"this noise_multiplier is too small for clients to share as {kind.name} noise: "
                f"{both or f'set noise_multiplier = {low:f} or more'}, or use a finer step with larger l2_bounds"
                + (", or noise_kind = skellam" if kind is NoiseKind.DISCRETE_GAUSSIAN else "")
            )
        for variance in self.variances:
            require_variance(variance / self.honest, self.settings.noise_kind)

    @property
    def segments(self) -> tuple[RingSegment, ...]:
        return self.layout.require_rings()

    @property
    def multiplier(self) -> Fraction:
        """Standard deviation over sensitivity, for all segments together."""
        return self.settings.noise_multiplier or Fraction(0)

    @property
    def _squared(self) -> list[int]:
        return self._squared_for(self.settings.adjacency)

    def _squared_for(self, adjacency: Adjacency) -> list[int]:
        return [of_vector(bound, adjacency) for bound in self.settings.l2_bounds]

    @property
    def variances(self) -> tuple[Fraction, ...]:
        """Minimum variance of each segment's unknown noise: that of the honest clients in the smallest sum.

        The losses of the segments add up, so with k segments each has k times the variance.
        """
        return tuple(self.multiplier**2 * len(self.segments) * squared for squared in self._squared)

    def add_to(self, payload: Payload, coins: Coins) -> Payload:
        """Return a client's values, clipped and with its share of the noise.

        Security: the result has its own vectors; the argument still holds the plain update.
        """
        payload.check()
        if payload.layout != self.layout:
            raise Misuse("the payload's layout differs from the one that the noise was planned for")
        noised = [values.copy() for values in payload.values]
        for segment, vector, bound, variance in zip(
            self.segments, noised, self.settings.l2_bounds, self.variances, strict=True
        ):
            clip_into(segment.ring, vector, bound)
            add_noise_into(vector, segment.ring, self.settings.noise_kind, variance / self.honest, coins)
        return Payload(self.layout, tuple(noised))

    def loss(self, adjacency: Adjacency) -> Loss:
        """Return the loss of one sum to a client in it, for an adjacency."""
        return loss_of(self.settings.noise_kind, self.parts_for(adjacency))

    def parts_for(self, adjacency: Adjacency) -> tuple[ReleasePart, ...]:
        """Return the accountant's input: the variance at the minimum number of contributors, the gap at the maximum.

        The noise does not depend on the adjacency, which only sets a client's influence on the sum.
        """
        is_summed = self.settings.noise_kind is NoiseKind.DISCRETE_GAUSSIAN
        return tuple(
            ReleasePart(
                l2_squared=squared,
                l1=min(squared, isqrt(squared * segment.length) + 1),
                variance=variance,
                gap=gap_of_sum(variance / self.honest, self.capacity) if is_summed else 0.0,
                length=segment.length,
            )
            for segment, squared, variance in zip(
                self.segments, self._squared_for(adjacency), self.variances, strict=True
            )
        )

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the epsilon of several sums that include one client, with the settings' adjacency.

        Security: a client counts its own uploads; sampling clients does not hide them from the sampling server.
        """
        return epsilon(self.settings.noise_kind, self.parts_for(self.settings.adjacency), releases, delta)

    def energy(self, contributors: int) -> float:
        """Return the energy of a mean's noise over that of the longest update: above 0.6 it drowns the model."""
        bounds = sum(bound**2 for bound in self.settings.l2_bounds)
        noise = sum(s.length * float(v) for s, v in zip(self.segments, self.variances, strict=True))
        return noise / self.honest / contributors / bounds

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviations of each segment in the largest sum, in steps; smaller sums have less noise."""
        return tuple(sqrt(variance * self.capacity / self.honest) for variance in self.variances)

    def sentences(self, delta: float = USUAL_DELTA, releases: int = 1) -> list[str]:
        """Return lines about the noise for the operator."""
        said = "replaced by another" if self.settings.adjacency is Adjacency.REPLACE else "replaced by zeros"
        energy = self.energy(self.capacity)
        first = (
            f"noise of clients, {self.multiplier} times one client's maximum change, known to nobody while "
            f"{self.honest} contributors are honest: {said_epsilon(self, delta, releases)} after {releases} "
            f"{'sum' if releases == 1 else 'sums'} with one client, its update {said}"
        )
        lines = [first, f"noise of the mean over {self.capacity}: {energy:.3g} of the energy of the longest update"]
        if energy > MOST_NOISE:
            lines.append(
                f"warning: noise dominates the model, because {energy:.3g} is above {MOST_NOISE}: use about "
                f"{clients_for(self.capacity, energy):,} clients, fewer values or less noise"
            )
        if (budget := self.settings.budget) is not None:
            lines.append(budget.sentence(self.loss(budget.adjacency)))
        return lines

    # --- Private --------------------------------------------------------------------------------------------------

    @property
    def _least_squared(self) -> Fraction:
        """Square of the minimum multiplier for which clients can draw shares."""
        is_summed = self.settings.noise_kind is NoiseKind.DISCRETE_GAUSSIAN
        return max(
            (LEAST_SHARE if is_summed else LEAST_VARIANCE) * Fraction(self.honest, len(self._squared) * squared)
            for squared in self._squared
        )

    @property
    def _most_squared(self) -> Fraction:
        """Square of the maximum multiplier whose noise clients can draw and the rings can hold with the sum."""
        bounds = zip(self.segments, self.settings.l2_bounds, self._squared, strict=True)
        room = partial(room_for_noise, clients=self.capacity, is_rotated=self.settings.is_rotated)
        return min(
            min(room(segment, bound) / self.capacity, Fraction(GREATEST_VARIANCE[self.settings.noise_kind]))
            * Fraction(self.honest, len(self._squared) * squared)
            for segment, bound, squared in bounds
        )


def clients_for(clients: int, energy: float) -> int:
    """Return the number of clients for a tolerable noise energy, which falls as its square."""
    return ceil(clients * sqrt(energy / MOST_NOISE))


@runtime_checkable
class SumNoise(Protocol):
    """Noise of one session, for platforms; independent of the party that adds it."""

    @property
    def deviations(self) -> tuple[float, ...]:
        """Maximum standard deviation of each released segment, in steps."""
        ...

    def epsilon(self, delta: float, releases: int = 1) -> float: ...


def said_epsilon(noise: SumNoise, delta: float = USUAL_DELTA, releases: int = 1) -> str:
    """Return the privacy loss of several sums as text, or that the accountant is not installed."""
    try:
        return f"epsilon {noise.epsilon(delta, releases):.3g} at delta {delta:g}"
    except InvalidParameters as error:
        if error.reason is not Reason.BACKEND_MISSING:
            raise
        return f"epsilon unknown ({error})"


def noise_in(session: object) -> SumNoise | None:
    """Return the noise of a server's session, or None; a noise is returned unchanged."""
    noise = session if isinstance(session, SumNoise) else getattr(session, "noise", None)
    return noise if isinstance(noise, SumNoise) else None


def deviations_in(session: object) -> tuple[float, ...]:
    """Return the standard deviation of each released segment's noise; empty without noise."""
    noise = noise_in(session)
    found: tuple[float, ...] = getattr(session, "deviations", ()) if noise is None else noise.deviations
    return found


def is_near(noised: Aggregate, plain: Aggregate, deviations: Sequence[float]) -> bool:
    """Whether a sum equals the one in the clear up to its noise and rounding, modulo its rings.

    Args:
        deviations: standard deviation of each segment's noise, in steps; ten of them are allowed.
    """
    if noised.contributors != plain.contributors:
        return False
    rings = zip(noised.layout.require_rings(), plain.layout.require_rings(), strict=True)
    for (wide, narrow), mine, due, deviation in zip(rings, noised.values, plain.values, deviations, strict=True):
        apart = wide.ring.from_integers(narrow.ring.lift(due).astype(np.int64))
        distance = np.abs(wide.ring.lift(wide.ring.subtract(mine, apart)).astype(np.float64))
        if float(distance.max(initial=0)) > _TAIL_DEVIATIONS * deviation + 1 + plain.contributors * narrow.head_room:
            return False
    return True
