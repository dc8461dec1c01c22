"""Scenarios of one message per client: holders in separate processes, one of which is killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from tests.harness.standing_holders import StandingHolders

HOLDERS = 4
Scenario = Callable[[Any], dict[str, Any]]


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of a run whose epoch's record is in a folder."""
    return {
        "protocol": "one-message",
        "roster": f"{os.environ['LAB_KEYS']}/roster.txt",
        "epoch": str(folder / "record"),
    }


def one_holder_killed(lab: Any) -> dict[str, Any]:
    """Kill a holder between two rounds."""
    keys = Path(os.environ["LAB_KEYS"])
    folder = keys.parent / "standing"
    folder.mkdir()
    holders = StandingHolders(folder, keys / "authority.key", HOLDERS)

    class Killing(FedAvg):
        needs_only_the_mean = True

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if server_round == 1:
                holders.kill(1)
            return super().aggregate_train(server_round, replies)

    strategy = Killing(fraction_evaluate=0.0, min_available_nodes=lab.count)
    sockets = ",".join(map(holders.socket, range(HOLDERS)))
    try:
        outcome: dict[str, Any] = lab.secure(**settings_of(folder), holders=sockets, rounds=2, strategy=strategy)
    finally:
        holders.end()
    return outcome


ONE_MESSAGE: dict[str, Scenario] = {"one_holder_killed": one_holder_killed}
