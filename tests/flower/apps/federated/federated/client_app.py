"""The lab's training and people on a SuperNode, which is killed at the stage named by its node config."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from federated.lab_app import chaos, kind_of, train
from flwr.app import Message
from flwr.clientapp import ClientApp

from secagg.analytics import Site
from secagg.flower import SecAggMod, SiteStatistics
from secagg.platforms.terms import RECORD
from tests.harness.town_of_sites import declared, functions, people


def killed(message: Message, context: Any, call_next: Any) -> Message:
    """Kill the SuperNode and this process abruptly, or wait for a file."""
    if RECORD in message.content and context.node_config.get("hold-at") == kind_of(message):
        until = Path(str(context.node_config["hold-until"]))
        until.with_suffix(".reached").touch()
        while not until.exists():
            time.sleep(0.05)
    if RECORD in message.content and context.node_config.get("kill-at") == kind_of(message):
        os.kill(int(Path(str(context.node_config["pid-file"])).read_text(encoding="utf-8")), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return call_next(message, context)


def site(context: Any) -> Site:
    """Return a node's people."""
    number = int(context.node_config["partition-id"])
    return Site(declaration=declared(), functions=functions(people(number, 20 * number)))


LENIENT: dict[str, Any] = {"allow_simulated_enclave": True, "allow_simulated_second_server": True}
app = ClientApp()
app.train(mods=[killed, chaos, SecAggMod(minimum_cohort=4, **LENIENT)])(train)
app.query("statistics", mods=[killed])(SiteStatistics(site, **LENIENT))
