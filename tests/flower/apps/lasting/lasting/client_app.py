"""A SuperNode that adds its number in sixteenths to the current part, and is killed in a round on request."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lasting.adapter import plan

from secagg.flower import SecAggMod

app = ClientApp(mods=[SecAggMod(adapter=plan.fingerprint, minimum_cohort=3, allow_simulated_enclave=True)])


@app.train()
def train(message: Message, context: Any) -> Message:
    """Train the current part."""
    number, place = int(str(message.content.config_records["config"]["server-round"])), context.node_config
    if place.get("kill-in-round") == str(number):
        os.kill(int(Path(str(place["pid-file"])).read_text(encoding="utf-8")), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    due, step = plan.names(number - 1), np.float32((int(place["partition-id"]) + 1) / 16)
    sent = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    arrays = ArrayRecord({name: Array(values + step * (name in due)) for name, values in sent.items()})
    metrics = MetricRecord({"num-examples": 1, "loss": 1.0})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
