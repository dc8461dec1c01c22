"""What noise costs a cohort: epsilon, wider rings, and how many clients the model needs to survive it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.errors import InvalidParameters
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.client_noise import MOST_NOISE, clients_for, said_epsilon
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.rounding import bound_for_ring, unrounded_norm
from secagg.session.costs import ONE_IN

_WIDTHS: Final = (12, 14, 16, 18, 20, 24)
_WIDE: Final = 10**12
_MOST_EXTRA: Final = 0.5
_BLOCK: Final = 1024
_LEAST_MULTIPLIER: Final = Fraction(1, 10**4)
_MOST_MULTIPLIER: Final = 10**6
_REPLACED: Final = 2
"""How many clients' bounds stand between neighbours of which one client's update was replaced."""


@dataclass(frozen=True, slots=True)
class PlannedNoise:
    """Noise of a multiplier, and in how many sums one client is."""

    multiplier: Fraction
    releases: int
    delta: float

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return what so many sums cost, of a Gaussian of this multiplier."""
        part = ReleasePart(l2_squared=_WIDE, l1=None, variance=self.multiplier**2 * _WIDE)
        return epsilon(NoiseKind.DISCRETE_GAUSSIAN, [part], releases, delta)

    @property
    def deviations(self) -> tuple[float, ...]:
        """Return nothing: no session is planned yet."""
        return ()

    def advice(self, weights: int, clients: int) -> Iterator[str]:
        """Say what the noise costs, a sentence each."""
        if self.multiplier <= 0:
            raise InvalidParameters(f"--noise is positive; got {self.multiplier}")
        if not _LEAST_MULTIPLIER <= self.multiplier <= _MOST_MULTIPLIER:
            raise InvalidParameters(
                f"--noise is in {float(_LEAST_MULTIPLIER):g}..{_MOST_MULTIPLIER:,}; take such a one"
            )
        padded = -(-weights // _BLOCK) * _BLOCK
        lost = clients // ONE_IN
        honest = max(1, clients - 2 * lost)
        spent = said_epsilon(self, self.delta, self.releases)
        yield (
            f"Noise of {self.multiplier} times what one client can change: {spent} after {self.releases} sums with it, "
            "by either meaning of a change: its update replaced by another, which takes twice the noise, or by zeros."
        )
        for name, spread, shares in (
            ("Clients' noise, an update replaced by another", _REPLACED, clients / honest),
            ("Clients' noise, an update replaced by zeros", 1, clients / honest),
            ("Two servers' noise, an update replaced by another", _REPLACED, 2.0),
        ):
            # The counts of two servers have a length of their own; this is for what is decoded exactly.
            energy = float(self.multiplier * spread) ** 2 * padded * shares / clients**2
            yield f"{name}: nu = {energy:.3g} of the energy of the longest update, in a mean over {clients:,}."
            if energy > MOST_NOISE:
                yield (
                    f"Warning: nu = {energy:.3g} is above {MOST_NOISE}, so noise drowns the model: take about "
                    f"{clients_for(clients, energy):,} clients, fewer values or less noise."
                )
        yield self._rings(padded, clients, clients / honest)

    def _rings(self, padded: int, clients: int, shares: float) -> str:
        extra = dict[int, float]()
        for width in _WIDTHS:
            try:
                bound = bound_for_ring(width, padded, clients, float(self.multiplier * _REPLACED) ** 2 * shares)
            except InvalidParameters:
                continue
            extra[width] = bound / unrounded_norm(bound, padded) - 1
        useful = {width: share for width, share in extra.items() if share <= _MOST_EXTRA}
        found = "; ".join(f"{width} bits {share:.2%}" for width, share in useful.items())
        return (
            f"Extra noise of rotated updates by the width of their ring: {found}."
            if found
            else f"No ring of up to {_WIDTHS[-1]} bits holds rotated updates with this noise; take less of it."
        )
