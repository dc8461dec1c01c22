"""What a round is about, whichever protocol carries it, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from flwr.app import Message

from secagg.compression.model_update import ModelUpdate, encode_parameters
from secagg.contract import Aggregate
from secagg.flower.keys.identities import Roster
from secagg.flower.model_tensors import METRICS, Arrays
from secagg.flower.settings import SecAggSettings

from .logs import LOG
from .records import Invitation


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """What a round is about."""

    settings: SecAggSettings
    roster: Roster | None
    task: str
    round_number: int
    weighted_by: str
    sent: Arrays
    update: ModelUpdate
    _parameters: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parameters", encode_parameters(self.update))

    @property
    def maximum_weight(self) -> int:
        """The most that one update may count."""
        return self.settings.maximum_weight if self.settings.weighting == "examples" else 1

    def invitation(self, offer: bytes, evidence: bytes = b"") -> Invitation:
        """Return what clients are told."""
        settings = self.settings
        return Invitation(
            protocol=settings.protocol,
            offer=offer,
            evidence=evidence,
            parameters=self._parameters,
            weighted_by=self.weighted_by,
            weighting=settings.weighting,
            weight_unit=settings.weight_unit,
            maximum_weight=settings.maximum_weight,
            metrics=settings.metric_names,
            round_number=self.round_number,
            task=self.task,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round gives: means alone."""

    mean: Mapping[str, npt.NDArray[Any]]
    metrics: dict[str, float]
    contributors: int
    total_weight: int
    carrier: Message
    """An answer of the last stage, which carries the result to the strategy."""
    failures: list[Message]


def round_result(task: RoundTask, aggregate: Aggregate, carrier: Message, failures: list[Message]) -> RoundResult:
    """Decode a sum."""
    mean = task.update.mean(aggregate)
    vector = mean.pop(METRICS)
    if vector[0]:
        LOG.warning("%.3g of the clients' values were out of range and cut off; raise secagg-clip", vector[0])
    LOG.info(
        "round %d, sum: %d clients of total weight %d, and nothing else is revealed",
        task.round_number,
        aggregate.contributors,
        aggregate.total_weight,
    )
    return RoundResult(
        mean=mean,
        metrics=dict(zip(task.settings.metric_names, map(float, vector[1:]), strict=True)),
        contributors=aggregate.contributors,
        total_weight=aggregate.total_weight,
        carrier=carrier,
        failures=failures,
    )
