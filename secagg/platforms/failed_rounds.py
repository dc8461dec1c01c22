"""Failed rounds: the setting ``on_failure`` decides whether a run repeats a round, skips it or stops."""

from __future__ import annotations

from typing import Final

from secagg.errors import Misuse, SecAggError

from . import LOG
from .round_task import TooFewTrained
from .settings import SecAggSettings

FAILURES: Final = (SecAggError, ConnectionError)
SKIPPED: Final = "secagg-skipped"
"""Name of the metric that marks a skipped round in a platform's result."""


class FailedRounds:
    """Decides what follows a failed round, and counts consecutive failures.

    A round is repeated only if no client was asked for its update: two sums of the same training over different clients
    reveal an update by their difference. A run that has no result yet ends with the error.
    """

    def __init__(self, settings: SecAggSettings) -> None:
        self._on_failure, self._most = settings.on_failure, settings.failed_rounds
        self._has_result, self._in_a_row, self._retries = False, 0, 0

    def succeeded(self) -> None:
        self._has_result, self._in_a_row, self._retries = True, 0, 0

    def is_retried(self, error: Exception, *, has_asked: bool) -> bool:
        """Whether to repeat the round; ``has_asked`` says whether a client was asked for its update."""
        is_final = has_asked or isinstance(error, Misuse | ValueError) or self._retries >= self._most
        if self._on_failure != "retry" or is_final:
            return False
        self._retries += 1
        LOG.error("no update was requested yet, so the round starts again (%d of %d)", self._retries, self._most)
        return True

    def is_skipped(self, error: Exception) -> bool:
        """Whether the run continues with the next round from the last good model; otherwise it stops with that model.

        Raises:
            Exception: the error itself, if there is no good model yet or the calling code is wrong.
        """
        if isinstance(error, Misuse) or not self._has_result:
            raise error
        self._in_a_row, self._retries = self._in_a_row + 1, 0
        if isinstance(error, TooFewTrained):
            # Its sum was opened: another sum of the same model over other clients would reveal an update.
            LOG.error("the run stops with the last good model, because training failed at too many clients")
        elif self._on_failure == "stop":
            LOG.error("the run stops with the last good model, because secagg-on-failure = 'stop'")
        elif self._in_a_row > self._most:
            LOG.error("the run stops with the last good model: more than %d failed rounds in a row", self._most)
        else:
            LOG.error(
                "this round is skipped; the next one starts from the last good model (%d of at most %d in a row)",
                self._in_a_row,
                self._most,
            )
            return True
        return False
