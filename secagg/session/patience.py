"""When a platform's loop waits no longer for a stage: limits, and a rule that has no clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from secagg.errors import InvalidParameters

from .roles import Stage, Turnout


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a loop waits, in seconds of the clock that it uses."""

    exchange: float
    """At most, for a stage without updates."""
    training: float
    """At most, for the stage that takes the updates."""
    patience: float | None = 1.0
    """Once there are enough in a stage without updates: this share of the time that it took until then.

    None waits for everybody until the limit.
    """
    training_patience: float | None = None
    """The same for the stage of the updates, of which each that is waited for is one more in the sum."""
    least: float = 0.0
    """Wait at least so long after there are enough, however fast they were."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        shares = [share for share in (self.patience, self.training_patience) if share is not None]
        if not (self.exchange > 0 and self.training > 0 and self.least >= 0 and all(share >= 0 for share in shares)):
            raise InvalidParameters("exchange and training are positive seconds; patience and least are not negative")


class Patience:
    """The wait for one stage; ask after each answer, or sleep for ``left`` at most."""

    def __init__(self, stage: Stage, limits: Limits, clock: Callable[[], float]) -> None:
        """Begin to wait now; the clock never goes back, as ``time.monotonic`` does not."""
        self._limits, self._clock, self._began = limits, clock, clock()
        self._last = self._began + (limits.training if stage.takes_update else limits.exchange)
        self._share = limits.training_patience if stage.takes_update else limits.patience
        self._is_enough = False

    def left(self, turnout: Turnout) -> float:
        """Return how many seconds to wait at most; 0 if the stage is to be closed now."""
        now = self._clock()
        if turnout >= Turnout.COMPLETE:
            self._last = min(self._last, now)
        elif turnout >= Turnout.ENOUGH and not self._is_enough:
            self._is_enough = True
            if self._share is not None:
                self._last = min(self._last, now + max(self._limits.least, self._share * (now - self._began)))
        return max(0.0, self._last - now)

    def is_over(self, turnout: Turnout) -> bool:
        """Return whether to wait no longer."""
        return self.left(turnout) <= 0
