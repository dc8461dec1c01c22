"""A Flower app whose training is a known function, with clients that misbehave on request.

``train.plain`` is the twin: the same training without secure aggregation, for the same strategy.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lab_truth import SHAPES, change, counted, examples, loss

from secagg.crypto.labels import Label
from secagg.flower import SecAggMod
from secagg.flower.client import LARGE_RECORD, STATE_RECORD, record_in, with_record
from secagg.platforms.terms import NEWEST_FORM, RECORD, Terms, client_in, message_in, record_of
from secagg.session.identities import client_file, load_identity
from secagg.wire import message_kind

PLAIN_TYPE = "train.plain"
LENIENT_TYPE = "train.lenient"
"""Training of clients that accept a simulated enclave, weights in it, and a simulated second server."""
ROUND = "server-round"
CHAOS_FILE = "LAB_CHAOS"
LOG_FILE = "LAB_LOG"
KEYS = "LAB_KEYS"

if LOG_FILE in os.environ:
    handler = logging.FileHandler(os.environ[LOG_FILE])
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("secagg.platforms").addHandler(handler)
    logging.getLogger("secagg.platforms").setLevel(logging.DEBUG)


def told_to(partition: object) -> dict[str, Any]:
    """Return a client's part in a scenario, from a file, because the first messages have no config."""
    path = Path(os.environ.get(CHAOS_FILE, "absent"))
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get(str(partition), {}) if path.exists() else {}
    return told


def over() -> Path:
    """Return the file that is created after a scenario's rounds; until then a client may be silent."""
    return Path(os.environ[CHAOS_FILE]).with_suffix(".over")


def train(message: Message, context: Any) -> Message:
    """Change the model, and report the values to keep secret."""
    partition, number = context.node_config["partition-id"], int(str(message.content.config_records["config"][ROUND]))
    told = told_to(partition)
    if told.get("do") == "fail" and number in told.get("rounds", [number]):
        raise RuntimeError("this client's training crashes")
    if told.get("do") == "slow" and number in told["rounds"]:
        while not over().exists():
            time.sleep(0.05)
    if told.get("do") == "refuse":
        return Message(Error(0, "this client's training refuses"), reply_to=message)
    trained = dict[str, Array]()
    for name, array in message.content.array_records["arrays"].items():
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


def kind_of(message: Message) -> str:
    """Return the scenarios' name for a protocol message."""
    if any(name != LARGE_RECORD for name in message.content.array_records):
        return "TRAIN"
    record = message.content.config_records[RECORD]
    return "OFFER" if "terms" in record else message_kind(message_in(record_in(message.content))).name


def is_round(told: dict[str, Any], message: Message) -> bool:
    """Whether a scenario applies to this round; if it names rounds, the message is one of training."""
    return "rounds" not in told or int(str(message.content.config_records["config"][ROUND])) in told["rounds"]


def chaos(message: Message, context: Any, call_next: Any) -> Message:
    """Wrap the mod, and change its messages as the scenario requires of this client."""
    if RECORD not in message.content.config_records:
        return answered(call_next(message, context))
    told = told_to(context.node_config["partition-id"])
    at = told.get("at") == kind_of(message) and is_round(told, message)
    match told.get("do") if at else None:
        case "raise":
            raise RuntimeError("this client crashes")
        case "silent":
            while not over().exists():
                time.sleep(0.05)
        case "restart":
            # A new process has none of the previous one's state.
            context.state[STATE_RECORD] = ConfigRecord()
        case _:
            pass
    before = ConfigRecord(dict(context.state.config_records.get(STATE_RECORD, ConfigRecord()).items()))
    reply = answered(call_next(message, context))
    if at and not reply.has_error() and told["do"] == "wrong-share":
        # After the header, its tag and one byte that says which shares are held, each share has 32 bytes, and in
        # active mode the digest of another behind it.
        answer, step = bytearray(message_in(record_in(reply.content))), 64 if told.get("mode") == "active" else 32
        for last in range(7 + 8 + 1 + 31, len(answer), step):
            answer[last] ^= 1
        client, signature = client_in(record_in(reply.content)), b""
        terms = Terms.parsed(before)
        if terms is not None and terms.is_certified:
            key = load_identity(Path(os.environ[KEYS]) / client_file(client)).signing_key
            signature = key.sign(Label.PLATFORM_ANSWER, terms.digest, NEWEST_FORM, bytes(answer))
        reply.content = with_record(record_of(bytes(answer), client, signature=signature))
    if at and told["do"] == "roll-back":
        # Flower does the same when a process ends before it returns its state.
        context.state[STATE_RECORD] = before
    return reply


def answered(reply: Any) -> Message:
    """Return an answer decoded."""
    assert isinstance(reply, Message)
    return reply


app = ClientApp(mods=[])
policy: dict[str, Any] = {
    "identity": os.environ.get(KEYS),
    "servers": f"{os.environ.get(KEYS)}/servers.json",
    # Every scenario begins with the same model.
    "allow_repeats": True,
}
app.train(mods=[chaos, SecAggMod(**policy)])(train)
lenient = SecAggMod(**policy, allow_simulated_enclave=True, allow_simulated_second_server=True)
app.train("lenient", mods=[chaos, lenient])(train)
app.train("plain")(train)


@app.query()
def state_left(message: Message, context: Any) -> Message:
    """Report how much of a session is left in the state."""
    record = context.state.config_records.get(STATE_RECORD, ConfigRecord())
    told = MetricRecord(
        {"bytes": len(bytes(record.get("sealed", b""))), "partition": context.node_config["partition-id"]}
    )
    return Message(RecordDict({"state": told}), reply_to=message)
