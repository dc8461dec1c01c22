"""Clients of the legacy API with the mod."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from lab_truth import change, examples, loss

from secagg.flower import SecAggMod


class LegacyClient(NumPyClient):
    """The lab's training of one layer, as ``fit``."""

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
        layer, steps = parameters
        changed = (layer + change(self.partition, int(config["round"]), "layer")).astype(layer.dtype)
        return [changed, steps], examples(self.partition), {"loss": loss(self.partition)}


def client_fn(context: Any) -> Any:
    return LegacyClient(int(context.node_config["partition-id"])).to_client()


secure = ClientApp(client_fn, mods=[SecAggMod()])
