"""Strategies that send what plain averaging sends, for training of another kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from lab_app import LENIENT_TYPE, PLAIN_TYPE


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
