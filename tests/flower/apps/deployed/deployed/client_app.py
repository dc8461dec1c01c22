"""The lab's training on a real SuperNode, which is killed at the stage that its node config names."""

import os
import signal
from pathlib import Path
from typing import Any

from deployed.lab_app import train
from flwr.app import Message
from flwr.clientapp import ClientApp

from secagg.flower import SecAggMod
from secagg.flower.records import RECORD, message_in
from secagg.wire import message_kind


def killed(message: Message, context: Any, call_next: Any) -> Message:
    """Kill the SuperNode, and this process, with no time to say goodbye."""
    record = message.content.config_records.get(RECORD)
    if record is not None:
        kind = "TRAIN" if record["stage"] == "train" else message_kind(message_in(message.content)).name
        told = (context.node_config.get("kill-at"), context.node_config.get("kill-mode"))
        if told == (kind, context.run_config["secagg-mode"]):
            os.kill(int(Path(str(context.node_config["pid-file"])).read_text(encoding="utf-8")), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    return call_next(message, context)


app = ClientApp()
app.train(mods=[killed, SecAggMod(minimum_cohort=4)])(train)
app.train("plain")(train)
