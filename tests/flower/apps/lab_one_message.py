"""Scenarios of one message a client: holders as processes of their own, of which one is killed, and a committee."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from secagg.protocols.one_message import EpochRecord

HOLDERS = 4
Scenario = Callable[[Any], dict[str, Any]]


def secagg(*arguments: str) -> str:
    """Run one of the library's own commands, and return what it printed."""
    command = [str(Path(sys.executable).parent / "secagg"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 -- our own


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of a run whose epoch's record stands in a folder."""
    return {
        "protocol": "one-message",
        "roster": f"{os.environ['LAB_KEYS']}/roster.json",
        "epoch": str(folder / "record"),
    }


def sign(folder: Path, *holders: str) -> None:
    """Sign who holds, as the authority does."""
    keys = Path(os.environ["LAB_KEYS"])
    arguments = ["--authority", str(keys / "authority.key"), "--number", "1", "--out", str(folder / "record")]
    secagg("holder", "record", *arguments, *holders)


@contextmanager
def standing(folder: Path) -> Generator[list[subprocess.Popen[str]]]:
    """Let holders stand."""
    folder.mkdir()
    public = [secagg("holder", "keys", "--out", str(folder / f"holder-{number}")) for number in range(HOLDERS)]
    sign(folder, *(part for key in public for part in ("--holder", key)))
    authority = EpochRecord.decode((folder / "record").read_bytes()).authority.hex()
    running = list[subprocess.Popen[str]]()
    try:
        for number in range(HOLDERS):
            command = [str(Path(sys.executable).parent / "secagg"), "holder", "serve"]
            command += ["--record", str(folder / "record"), "--key", str(folder / f"holder-{number}")]
            command += ["--authority", authority, "--journal", str(folder / f"journal-{number}")]
            command += ["--socket", str(folder / f"{number}.sock")]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603 -- our own
        for process in running:
            assert process.stdout is not None
            assert "is ready" in process.stdout.readline()
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def one_holder_killed(lab: Any) -> dict[str, Any]:
    """Kill a holder between two rounds."""
    folder = Path(os.environ["LAB_KEYS"]).parent / "standing"
    with standing(folder) as running:

        class Killing(FedAvg):
            def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
                if server_round == 1:
                    running[1].kill()
                    running[1].wait()
                return super().aggregate_train(server_round, replies)

        sockets = ",".join(str(folder / f"{number}.sock") for number in range(HOLDERS))
        outcome: dict[str, Any] = lab.secure(
            **settings_of(folder),
            holders=sockets,
            rounds=2,
            strategy=Killing(fraction_evaluate=0.0, min_available_nodes=lab.count),
        )
    return outcome


def committee(lab: Any) -> dict[str, Any]:
    """Let five of the clients hold, of which one fails in training, and with it as a holder."""
    folder = Path(os.environ["LAB_KEYS"]).parent / "committee"
    folder.mkdir()
    listed = [part for client in range(5) for part in ("--client", str(client))]
    sign(folder, "--roster", f"{os.environ['LAB_KEYS']}/roster.json", *listed)
    outcome: dict[str, Any] = lab.secure(
        **settings_of(folder),
        rounds=2,
        chaos={1: {"do": "fail"}},
    )
    return outcome


ONE_MESSAGE: dict[str, Scenario] = {"one_holder_killed": one_holder_killed, "one_committee": committee}
