"""A Flower app whose training is a known function, with clients that misbehave where they are told to.

``train.plain`` is the twin: the same training without secure aggregation, for the same strategy.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lab_truth import SHAPES, change, counted, examples, loss

from secagg.flower import SecAggMod
from secagg.flower.client_mod import STATE_RECORD
from secagg.flower.records import RECORD, message_in, with_message
from secagg.wire import MessageKind, message_kind

PLAIN_TYPE = "train.plain"
CHAOS = "chaos"
LOG_FILE = "LAB_LOG"
KEYS = "LAB_KEYS"

if LOG_FILE in os.environ:
    handler = logging.FileHandler(os.environ[LOG_FILE])
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("secagg.flower").addHandler(handler)
    logging.getLogger("secagg.flower").setLevel(logging.DEBUG)


def train(message: Message, context: Any) -> Message:
    """Change the model, and report what is to be kept secret."""
    partition, config = context.node_config["partition-id"], message.content["config"]
    number, told = config["server-round"], json.loads(str(config.get(CHAOS, "{}"))).get(str(partition), {})
    trained = dict[str, Array]()
    for name, array in message.content["arrays"].items():
        values = array.numpy()
        if name in SHAPES:
            values = (values + change(partition, number, name)).astype(values.dtype)
        if name == "steps":
            values = np.asarray(values + counted(partition))
        if name == "layer" and told.get("do") == "nan":
            values[3, 4] = np.nan
        if name == "layer" and told.get("do") == "large":
            values[3, 4] += 1000.0
        trained[name] = Array(np.asarray(values))
    weight = told.get("examples", examples(partition))
    reported = MetricRecord({"num-examples": weight, "loss": loss(partition), "private-metric": 4711.5})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": reported}), reply_to=message)


def chaos(message: Message, context: Any, call_next: Any) -> Message:
    """Stand outside the mod, and do to its messages what the lab's config says of this client."""
    if RECORD not in message.content.config_records:
        return call_next(message, context)
    stage, partition = message.content[RECORD]["stage"], str(context.node_config["partition-id"])
    if stage == "train":
        told = json.loads(str(message.content["config"].get(CHAOS, "{}"))).get(partition, {})
        context.state[CHAOS] = ConfigRecord({"told": json.dumps(told)})
        kind = "TRAIN"
    else:
        told = json.loads(str(context.state[CHAOS]["told"])) if CHAOS in context.state else {}
        kind = message_kind(message_in(message.content)).name
    at = told.get("at") == kind
    match told.get("do") if at else None:
        case "raise":
            raise RuntimeError("this client crashes")
        case "silent":
            time.sleep(float(told["seconds"]))
        case "restart":
            # A process that starts anew has none of the state that the one before it had.
            context.state[STATE_RECORD] = ConfigRecord()
        case _:
            pass
    before = bytes(context.state.config_records.get(STATE_RECORD, {}).get("sealed", b""))
    reply = call_next(message, context)
    if at and not reply.has_error() and told["do"] == "wrong-share":
        # After the header, the context and one byte that says which shares are held, each share has 32 bytes, and in
        # active mode the digest of another behind it.
        answer, step = bytearray(message_in(reply.content)), 64 if context.state[STATE_RECORD]["certified"] else 32
        for last in range(7 + 32 + 1 + 31, len(answer), step):
            answer[last] ^= 1
        reply.content = with_message(bytes(answer))
    if at and told["do"] == "roll-back":
        # What Flower does when a process ends before it handed its state back.
        context.state[STATE_RECORD]["sealed"] = before
    if not reply.has_error():
        context.state[CHAOS]["last"] = message_in(reply.content)
    return reply


app = ClientApp(mods=[])
app.train(mods=[chaos, SecAggMod(identity=os.environ.get(KEYS))])(train)
app.train("plain")(train)


@app.query()
def state_left(message: Message, context: Any) -> Message:
    """Tell how much of a session is left in the state."""
    record = context.state.config_records.get(STATE_RECORD, {})
    size = len(bytes(record.get("sealed", b"")))
    return Message(RecordDict({"state": MetricRecord({"bytes": size})}), reply_to=message)


__all__ = ["MessageKind", "app"]
