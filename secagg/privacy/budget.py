"""Budget of one client for all the noised sums that it is ever in, and the test whether the next one fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_UP
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import Final

from secagg.errors import InvalidParameters, Misuse, Reason

from .accounting import NO_LOSS, Loss
from .kinds import require_delta
from .rounding import rounded_root
from .sensitivity import Adjacency

NOT_NOISED: Final = (
    "a client with a privacy budget uploads nothing without noise, which would spend all of it: set noise_multiplier, "
    "or take the budget away"
)
_SHARES: Final = 1 << 20
"""Into so many parts a loss is divided to find how much of it fits."""
_MOST_RELEASES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """An epsilon for a delta, and what a neighbour of a set of clients is for them."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE

    def __post_init__(self) -> None:
        if type(self.epsilon) not in {float, int} or not 0 < self.epsilon < inf:
            raise InvalidParameters(f"the epsilon of a budget is a number above 0; got {self.epsilon!r}")
        require_delta(self.delta)
        if type(self.adjacency) is not Adjacency:
            raise Misuse(f"expected an Adjacency; got {type(self.adjacency).__name__}")

    def spent(self, loss: Loss) -> float:
        """Return the epsilon of a loss, at this budget's delta."""
        return _epsilon(loss, self.delta)

    def holds(self, loss: Loss) -> bool:
        """Whether a loss stays within it."""
        return self.spent(loss) <= self.epsilon

    def releases(self, cost: Loss) -> int:
        """Return how many releases of a cost it pays for from the start; a million at most."""
        return _most(lambda count: self.holds(cost.times(count)), _MOST_RELEASES)

    def require_room(self, spent: Loss, uploads: int, cost: Loss, multiplier: Fraction) -> None:
        """Refuse an upload that would pass it, saying what was spent, what remains, and what to change.

        Args:
            spent: by so many uploads of before.
            cost: of the next one, whose noise is so many times what one client can change.
        """
        if self.holds(spent + cost):
            return
        before = self.spent(spent) if uploads else 0.0
        share = _most(lambda part: self.holds(spent + cost.times(Fraction(part, _SHARES))), _SHARES)
        advice = "no noise is enough for another one: leave this client out, or raise its budget"
        if share:
            least = rounded_root(multiplier**2 * Fraction(_SHARES, share), ROUND_UP)
            advice = (
                f"noise of {least:f} times what one client can change would fit, and this is {float(multiplier):g}: "
                "take more noise, leave this client out, or raise its budget"
            )
        raise InvalidParameters(
            f"with this upload the client would have spent epsilon {self.spent(spent + cost):.6g} at delta "
            f"{self.delta:g}, {self.said}, and its budget is {self.epsilon:g}: its {uploads} uploads so far have spent "
            f"{before:.6g}, which leaves {max(0.0, self.epsilon - before):.6g}; {advice}",
            reason=Reason.BUDGET_SPENT,
        )

    @property
    def said(self) -> str:
        return f"its update {'replaced by another' if self.adjacency is Adjacency.REPLACE else 'replaced by zeros'}"

    def sentence(self, cost: Loss) -> str:
        """Return what a person should know before a first sum."""
        count = self.releases(cost)
        return (
            f"the budget of a client, epsilon {self.epsilon:g} at delta {self.delta:g}, {self.said}, pays for "
            f"{count:,} {'sum' if count == 1 else 'sums'} like this one"
        )


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the greatest number up to a limit that fits, where all below one that fits do; zero if one does not."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@lru_cache(maxsize=1 << 12)
def _epsilon(loss: Loss, delta: float) -> float:
    """Convert a loss; the clients of a simulation have spent alike."""
    return 0.0 if loss == NO_LOSS else loss.epsilon(delta)
