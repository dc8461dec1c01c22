"""Settings of noise that clients add, with the budget that each of them keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.errors import InvalidParameters

from .budget import PrivacyBudget
from .client_noise import NoiseSettings

_MOST_EPSILON: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedNoise(NoiseSettings):
    """Noise of clients, and what each of them may spend in all sums that it is ever in: its ledger refuses the rest."""

    budget_epsilon: Fraction | None = None
    """None for any number of sums. A client with a budget uploads nothing without noise."""
    budget_delta: Fraction = Fraction(1, 10**6)

    @property
    def budget(self) -> PrivacyBudget | None:
        """The budget, for neighbours as the noise has them.

        Raises:
            InvalidParameters: it is none.
        """
        if self.budget_epsilon is None:
            return None
        if not 0 < self.budget_epsilon <= _MOST_EPSILON or not 0 < self.budget_delta < 1:
            raise InvalidParameters(
                f"budget_epsilon is above 0 and at most {_MOST_EPSILON:,}, and budget_delta above 0 and below 1"
            )
        return PrivacyBudget(
            epsilon=float(self.budget_epsilon), delta=float(self.budget_delta), adjacency=self.adjacency
        )
