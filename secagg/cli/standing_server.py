"""``secagg indexing-server stand``: server 1 for many rounds, which server 0 offers and an operator's floors admit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerError
from secagg.flower.keys.server_pair import load_server_keys, load_server_pair
from secagg.parameters import Suite
from secagg.protocols.two_servers.journal import FileJournal
from secagg.protocols.two_servers.operators.process import serve_standing
from secagg.protocols.two_servers.operators.standing_rules import StandingFloors, StandingRounds
from secagg.protocols.two_servers.operators.standing_server import StandingServer

from .serving import serving


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

    def say_ready() -> None:
        print(
            f"secagg indexing-server: server/1 stands at {setting.socket_path}. Two servers in one hand protect "
            "nobody.",
            flush=True,
        )

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with serving(), load_server_keys(setting.keys, 1) as keys:
        journal = FileJournal(setting.journal)
        try:
            rounds = StandingRounds(floors, journal)
            server = StandingServer(keys, rounds, coins=SystemCoins(), threads=setting.threads)
            serve_standing(server, setting.socket_path, ready=say_ready)
        except PeerError as error:
            raise InvalidParameters(f"{setting.journal}: {error}") from None
        finally:
            journal.close()
