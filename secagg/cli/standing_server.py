"""``secagg indexing-server stand``: server 1 for many rounds, which server 0 offers and an operator's floors admit."""

from __future__ import annotations

import logging
import signal
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType

from secagg.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerError, SecAggError
from secagg.flower.server_pair import load_server_keys, load_server_pair
from secagg.parameters import Suite
from secagg.protocols.dpf_indexing.journal import FileJournal
from secagg.protocols.dpf_indexing.process import serve_standing
from secagg.protocols.dpf_indexing.standing_rules import StandingFloors, StandingRounds
from secagg.protocols.dpf_indexing.standing_server import StandingServer


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingSetting:
    """Where server 1's files are, and what its operator insists on."""

    socket_path: Path
    keys: Path
    servers: Path
    journal: Path
    task_prefix: str
    minimum_cohort: int
    maximum_cohort: int
    maximum_lanes: int
    maximum_hours: int
    suites: tuple[Suite, ...]
    threads: int


def stand(setting: StandingSetting) -> int:
    """Answer one server 0 after the other until SIGTERM or SIGINT, and return the exit status."""
    if setting.threads < 1:
        raise InvalidParameters(f"--threads is {setting.threads}; at least one thread evaluates")
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameters("this system has no Unix sockets; serve where there are some")
    import resource

    # A crash leaves no image of the keys on a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pair = load_server_pair(setting.servers)
    floors = StandingFloors(
        task_prefix=setting.task_prefix.encode(),
        authority=pair.authority,
        server_keys=pair.server_keys,
        suites=frozenset(setting.suites),
        minimum_cohort=setting.minimum_cohort,
        maximum_cohort=setting.maximum_cohort,
        maximum_lanes=setting.maximum_lanes,
        maximum_lifetime=timedelta(hours=setting.maximum_hours),
    )
    ending = (signal.SIGTERM, signal.SIGINT)

    def end(*_: int | FrameType | None) -> None:
        # One signal is enough; another is not to interrupt what overwrites keys and removes the socket.
        for each in ending:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(0)

    def say_ready() -> None:
        print(
            f"secagg indexing-server: server/1 stands at {setting.socket_path}. Two servers in one hand protect "
            "nobody.",
            flush=True,
        )

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with load_server_keys(setting.keys, 1) as keys:
        journal = FileJournal(setting.journal)
        earlier = {each: signal.signal(each, end) for each in ending}
        try:
            rounds = StandingRounds(floors, journal)
            server = StandingServer(keys, rounds, coins=SystemCoins(), threads=setting.threads)
            serve_standing(server, setting.socket_path, ready=say_ready)
        except SecAggError as error:
            # Nothing was served, and whoever called goes on.
            for each, handler in earlier.items():
                signal.signal(each, handler)
            if isinstance(error, PeerError):
                raise InvalidParameters(f"{setting.journal}: {error}") from None
            raise
        finally:
            journal.close()
