"""Scenarios of two servers: the second simulated or in a separate process; and a malicious server 0."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from lab_lies import terms_for_some
from lab_strategies import Lenient, PlainTwin

from secagg.crypto.entropy import SystemCoins
from secagg.flower import server_grid
from secagg.identifiers import ClientId
from secagg.protocols.two_servers import make_trial_pair
from secagg.protocols.two_servers.process import PeerLink
from secagg.session.identities import make_identities
from secagg.session.ledger import SpentUpdates

READY_SECONDS = 60
Scenario = Callable[[Any], dict[str, Any]]


def simulated(lab: Any, **changes: Any) -> dict[str, Any]:
    """Return the settings of a round with a simulated second server, which its clients accept."""
    return {
        "protocol": "two-servers",
        "roster": f"{os.environ['LAB_KEYS']}/roster.txt",
        "weighting": "uniform",
        "weights": dict.fromkeys(range(lab.count), 1),
        "strategy": Lenient(fraction_evaluate=0.0, min_available_nodes=lab.count),
        **changes,
    }


def served(lab: Any, **changes: Any) -> dict[str, Any]:
    """Return the settings of a round whose second server is a process with a key that clients know."""
    keys = Path(os.environ["LAB_KEYS"])
    more = {
        "strategy": None,
        "second_server": os.environ["LAB_SECOND"],
        "servers": str(keys / "servers.json"),
        "server_keys": str(keys / "server-0.keys"),
    }
    return {**simulated(lab), **more, **changes}


def start_second_server() -> subprocess.Popen[bytes]:
    """Start the second server as its operator does, with its previous journal."""
    folder, keys = Path(os.environ["LAB_KEYS"]).parent, Path(os.environ["LAB_KEYS"])
    command = [
        *(str(Path(sys.executable).parent / "secagg"), "server", "serve"),
        *("--listen", os.environ["LAB_SECOND"], "--keys", str(keys / "server-1.keys")),
        *("--servers", str(keys / "servers.json"), "--journal", str(folder / "second.journal")),
        *("--minimum-cohort", "3", "--task", "flower run "),
    ]
    return start_listening(command, folder / "second.log", os.environ["LAB_SECOND"])


def start_listening(command: list[str], log: Path, path: str) -> subprocess.Popen[bytes]:
    """Start a command of the library, and return its process once its socket listens."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603 -- the library's own command
    last = time.monotonic() + READY_SECONDS
    while not _listens(path) and time.monotonic() < last:
        time.sleep(0.05)
    return process


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


@contextmanager
def second_server() -> Generator[list[subprocess.Popen[bytes]]]:
    """Let a second server run; the list contains its process, which may be replaced."""
    running = [start_second_server()]
    try:
        yield running
    finally:
        running[-1].terminate()
        running[-1].wait()


@contextmanager
def _impatient() -> Generator[None]:
    """Let server 0 give up immediately on a second server that is not restarted."""
    defaults = cast("dict[str, float]", PeerLink.__init__.__kwdefaults__)
    own = defaults["patience"]
    defaults["patience"] = 0.5
    try:
        yield
    finally:
        defaults["patience"] = own


def _simulated(**changes: Any) -> Scenario:
    def scenario(lab: Any) -> dict[str, Any]:
        outcome: dict[str, Any] = lab.secure(**simulated(lab, **changes))
        return outcome

    return scenario


def _served(**changes: Any) -> Scenario:
    def scenario(lab: Any) -> dict[str, Any]:
        with second_server():
            outcome: dict[str, Any] = lab.secure(**served(lab, **changes))
        return outcome

    return scenario


def restart(running: list[subprocess.Popen[bytes]]) -> None:
    """Kill the second server, and start it again."""
    running[-1].kill()
    running[-1].wait()
    Path(os.environ["LAB_SECOND"]).unlink()
    running.append(start_second_server())


def twin(lab: Any) -> dict[str, Any]:
    """Compare FedAvg in the clear with two servers that sum fixed point and that count codewords."""
    equal = {p: {"examples": 10} for p in range(lab.count)}
    plain, _ = lab.start(lab.grid, rounds=2, strategy=PlainTwin(fraction_evaluate=0.0), chaos=equal)
    outcome = dict[str, Any]()
    for compression in ("fixed-point", "pq-64x5"):
        done = lab.secure(**simulated(lab, rounds=2, compression=compression), chaos=equal)
        outcome[compression] = float(np.abs(plain["layer"] - lab.arrays["layer"]).max())
        outcome["error"] = outcome.get("error") or done["error"]
    return outcome


def plain_rounds(lab: Any) -> dict[str, Any]:
    """Sum fixed point in two rounds, and read the last uploaded round from every client's ledger."""
    outcome: dict[str, Any] = lab.secure(**simulated(lab, rounds=2))
    outcome["last"] = list[int]()
    for client in range(lab.count):
        spent = SpentUpdates(Path(os.environ["SECAGG_LEDGER_DIRECTORY"]), data=f"client {client}")
        outcome["last"].append(spent.last(f"flower run {lab.grid.run.run_id}".encode()))
    outcome["rounds"] = vars(server_grid)["_ROUNDS"][lab.grid.run.run_id]
    return outcome


def restarted(lab: Any) -> dict[str, Any]:
    """Kill the second server between two rounds; then repeat a round that it took part in."""
    with second_server() as running:

        class Killing(FedAvg):
            needs_only_the_mean = True

            def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
                if server_round == 1:
                    restart(running)
                return super().aggregate_train(server_round, replies)

        strategy = Killing(fraction_evaluate=0.0, min_available_nodes=lab.count)
        outcome: dict[str, Any] = lab.secure(**served(lab, strategy=strategy, rounds=2))
        restart(running)
        vars(server_grid)["_ROUNDS"][lab.grid.run.run_id] -= 1
        outcome["again"] = lab.secure(**served(lab))["error"]
    return outcome


def lost(lab: Any) -> dict[str, Any]:
    """Kill the second server while clients train."""
    with second_server() as running, _impatient():

        def kill(message: Message) -> Iterable[Message]:
            running[-1].kill()
            running[-1].wait()
            yield message

        outcome: dict[str, Any] = lab.secure(**served(lab), tamper=kill)
        Path(os.environ["LAB_SECOND"]).unlink(missing_ok=True)
    return outcome


def absent(lab: Any) -> dict[str, Any]:
    """Name a second server that was never started."""
    with _impatient():
        outcome: dict[str, Any] = lab.secure(**served(lab, second_server="/absent/socket"))
    return outcome


def low_cohort(lab: Any) -> dict[str, Any]:
    """Offer less than clients' policy, then the same round with enough, which they have not spent."""
    outcome: dict[str, Any] = lab.secure(**simulated(lab, minimum_cohort=2))
    vars(server_grid)["_ROUNDS"][lab.grid.run.run_id] -= 1
    outcome["again"] = lab.secure(**simulated(lab))["error"]
    return outcome


def with_own_key(lab: Any) -> dict[str, Any]:
    """Give server 1 a server 0 that its operator does not know."""
    folder = Path(os.environ["LAB_KEYS"]).parent / "own-pair"
    make_identities(folder, map(ClientId, range(1)), SystemCoins())
    make_trial_pair(folder, SystemCoins())
    with second_server():
        own = {"servers": str(folder / "servers.json"), "server_keys": str(folder / "server-0.keys")}
        outcome: dict[str, Any] = lab.secure(**served(lab, **own))
    return outcome


TWO_SERVERS: dict[str, Scenario] = {
    "two": plain_rounds,
    "two_twin": twin,
    "two_dropped": _simulated(
        minimum_cohort=3, chaos={1: {"at": "TRAIN", "do": "raise"}, 4: {"do": "fail"}}, present=(0, 2, 3, 4, 5, 6, 7)
    ),
    "two_hybrid": _simulated(suite="hybrid"),
    "two_served": _served(compression="pq-16x5", rounds=2),
    "two_restarted": restarted,
    "two_lost": lost,
    "two_absent": absent,
    "two_by_default": _simulated(strategy=None),
    "two_low_cohort": low_cohort,
    "two_offered_low_cohort": _served(minimum_cohort=2),
    "two_own_key": with_own_key,
    "two_other_terms": terms_for_some(simulated, weighted_by="another"),
    "two_other_task": terms_for_some(simulated, task="{task} again"),
    "two_other_round": terms_for_some(simulated, round_number=1 << 40),
}
