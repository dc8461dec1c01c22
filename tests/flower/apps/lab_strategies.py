"""Strategies that send the same as plain averaging, for other training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from lab_app import LENIENT_TYPE, PLAIN_TYPE


def equal_means(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return means of metrics with equal weights, as in secure sums."""
    records = [content.metric_records["metrics"] for content in contents]
    return MetricRecord(
        {name: float(np.mean([record[name] for record in records])) for name in records[0] if name != weighted_by}
    )


class PlainTwin(FedAvg):
    """The same strategy without secure aggregation."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        for message in super().configure_train(*args, **kwargs):
            message.metadata.message_type = PLAIN_TYPE
            yield message


class Lenient(FedAvg):
    """The same strategy for clients that accept a simulated enclave, and a simulated second server."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        for message in super().configure_train(*args, **kwargs):
            message.metadata.message_type = LENIENT_TYPE
            yield message
