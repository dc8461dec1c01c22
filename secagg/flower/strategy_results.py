"""A strategy's results of secure rounds: keeps integer tensors as integers, and lists skipped rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from flwr.app import ArrayRecord, Message, MetricRecord

from secagg.platforms.failed_rounds import SKIPPED

_METHODS: Final = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
_Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


class StrategyResults:
    """Wraps the four methods of one strategy object that ``Strategy.start`` calls.

    ``start`` cannot skip a round or end early. So a skipped round aggregates nothing and keeps the model, and after a
    stop the strategy samples no clients until ``start`` is called again.
    """

    def __init__(self, strategy: Any, restored: Callable[[ArrayRecord], ArrayRecord]) -> None:  # noqa: ANN401 -- any
        """Replace the strategy's methods; ``restored`` returns a model with its original dtypes."""
        self.strategy, self._restored = strategy, restored
        self._is_skipped, self._stopped, self._round = False, False, 0
        for name in _METHODS:
            given = getattr(strategy, name)
            # Remove the wrappers of an earlier grid, whose rounds are over.
            if isinstance(before := getattr(given, "__self__", None), StrategyResults):
                given = getattr(before, f"_{name}")
            setattr(self, f"_{name}", given)
            setattr(strategy, name, getattr(self, name))

    def skip(self) -> None:
        """Skip the aggregation of the open round."""
        self._is_skipped = True

    def stop(self) -> None:
        """Skip the aggregation of the open round, and send nothing in later rounds."""
        self._is_skipped = self._stopped = True

    def configure_train(self, server_round: int, *args: object, **kwargs: object) -> Iterable[Message]:
        # If the round number does not increase, ``start`` was called again.
        self._stopped = self._stopped and server_round > self._round
        self._round = server_round
        return [] if self._stopped else self._call("configure_train", server_round, *args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> _Aggregated:
        self._round = server_round
        arrays, metrics = (None, None) if self._stopped else self._call("aggregate_train", server_round, replies)
        if self._ends_skipped():
            return None, MetricRecord({SKIPPED: 1})
        return arrays if arrays is None else self._restored(arrays), metrics

    def configure_evaluate(self, server_round: int, *args: object, **kwargs: object) -> Iterable[Message]:
        return [] if self._stopped else self._call("configure_evaluate", server_round, *args, **kwargs)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        metrics: MetricRecord | None = self._call("aggregate_evaluate", server_round, replies)
        return MetricRecord({SKIPPED: 1}) if self._ends_skipped() and not self._stopped else metrics

    def _ends_skipped(self) -> bool:
        was, self._is_skipped = self._is_skipped or self._stopped, False
        return was

    def _call(self, name: str, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 -- of the strategy's method
        return getattr(self, f"_{name}")(*args, **kwargs)
