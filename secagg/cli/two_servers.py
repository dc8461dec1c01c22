"""``secagg two-servers``: an operator's keys, the standing server 1, what its files say, and how they are erased."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerError
from secagg.parameters import Suite
from secagg.platforms.keys.identities import ROSTER_FILE
from secagg.platforms.keys.server_pair import (
    SERVERS_FILE,
    load_operator_keys,
    load_server_keys,
    load_server_pair,
    make_server_keys,
    make_trial_pair,
    public_file,
    server_file,
    write_server_pair,
)
from secagg.protocols.two_servers import (
    SERVERS,
    IndexingConfiguration,
    StandingFloors,
    StandingRounds,
    StandingServer,
    lanes_of,
    serve_standing,
)
from secagg.session import durable

from .serving import serving

ROUNDS_FILE, _EARLIER_ROUND_FILE = "rounds.journal", "round.journal"
_SUITES: Final = {suite.name.lower(): suite for suite in Suite}
_MOST_BYTES: Final = 1 << 16
_MOST_HOURS: Final = 24 * 366


def make_keys(options: argparse.Namespace) -> int:
    """Make one operator's keys, or with the other one's public keys the file that names both servers."""
    out, roster = options.out, options.roster or options.out / ROSTER_FILE
    if options.trial:
        for name in ("role", "peer", "roster"):
            if getattr(options, name) is not None:
                raise InvalidParameters(f"--{name} is not for --trial, which makes both keys for the roster in --out")
        is_new = make_trial_pair(out, SystemCoins())
        print(f"{out}: the keys of both servers, {'new' if is_new else 'there already'}. A trial protects nobody.")
        return 0
    if options.role is None:
        raise InvalidParameters("name the server with --role 0 or --role 1; --trial makes the keys of both")
    out.mkdir(parents=True, exist_ok=True)
    if options.peer is None:
        if options.roster is not None:
            raise InvalidParameters("--roster goes with --peer: it says who certifies the clients of both servers")
        make_server_keys(out, options.role, SystemCoins())
        print(f"{out / server_file(options.role)}: private; nobody but the operator of this server has it")
        print(f"{out / public_file(options.role)}: public; give it to the other operator, and take theirs as --peer")
        return 0
    with load_server_keys(out / server_file(options.role), options.role) as keys:
        pair = write_server_pair(out, roster, [keys.public, load_operator_keys(options.peer)])
    print(f"{out / SERVERS_FILE}: public; both operators, and every client, are given it")
    print(f"fingerprint {pair.fingerprint}: compare it with the other operator's, over a channel of your own")
    return 0


def serve(options: argparse.Namespace) -> int:
    """Serve as server 1 until SIGTERM or SIGINT, and return the exit status."""
    if options.threads < 1:
        raise InvalidParameters(f"--threads is {options.threads}; at least one thread evaluates")
    if options.maximum_hours > _MOST_HOURS:
        raise InvalidParameters(f"--maximum-hours is at most {_MOST_HOURS}; got {options.maximum_hours}")
    names = [name.strip() for name in options.suites.split(",")]
    if unknown := [name for name in names if name not in _SUITES]:
        raise InvalidParameters(f"--suites are {', '.join(_SUITES)}; got {unknown[0]!r}")
    pair = load_server_pair(options.servers)
    floors = StandingFloors(
        task_prefix=options.task.encode(),
        authority=pair.authority,
        server_keys=pair.server_keys,
        suites=frozenset(_SUITES[name] for name in names),
        minimum_cohort=options.minimum_cohort,
        maximum_cohort=options.maximum_cohort,
        maximum_lanes=options.maximum_lanes,
        maximum_lifetime=timedelta(hours=options.maximum_hours),
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with serving(), load_server_keys(options.keys, 1) as keys:
        options.journal.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Version 0.2 kept the root of a round there; now a round ends with its process.
        durable.erase(options.journal / _EARLIER_ROUND_FILE)
        with closing(StandingRounds(options.journal / ROUNDS_FILE)) as rounds:
            state = f"resumed after {rounds.count} rounds" if rounds.count else "new"
            server = StandingServer(
                keys, pair.operators[0], floors, rounds, coins=SystemCoins(), threads=options.threads
            )
            said = f"secagg two-servers: server/1 stands at {options.socket}, {state}. Two servers in one hand protect"
            serve_standing(server, options.socket, SystemCoins(), ready=lambda: print(f"{said} nobody.", flush=True))
    return 0


def show(options: argparse.Namespace) -> int:
    """Say what a file holds."""
    for line in _description(options.file):
        print(line)
    return 0


def _description(path: Path) -> Iterator[str]:
    match path.suffix:
        case ".json":
            pair = load_server_pair(path)
            yield f"authority of the clients  {pair.authority.hex()}"
            yield from (
                f"server {keys.server.index} signs with      {keys.signing_key.hex()}" for keys in pair.operators
            )
            yield f"fingerprint               {pair.fingerprint}"
        case ".public":
            shown = load_operator_keys(path)
            yield f"{shown.server} signs with {shown.signing_key.hex()}"
        case ".keys":
            index = next((index for index in range(SERVERS) if path.name == server_file(index)), 0)
            with load_server_keys(path, index) as private:
                yield f"{private.server} signs with {private.public.signing_key.hex()}; this file is private"
        case ".journal":
            yield _rounds(path)
        case _:
            yield from _configuration(path)


def _rounds(path: Path) -> str:
    if not path.exists():
        raise InvalidParameters(f"there is no journal at {path}")
    with closing(StandingRounds(path)) as rounds:
        return f"{rounds.count} rounds of {rounds.tasks} tasks were begun"


def _configuration(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            shown = IndexingConfiguration.decode(file.read(_MOST_BYTES))
    except (OSError, PeerError) as error:
        raise InvalidParameters(f"{path} holds no configuration of two servers: {error}") from None
    yield f"task {shown.task!r}, suite {shown.suite.value}, {shown.mode.name.lower()}; T0 {shown.context.digest.hex()}"
    yield f"authority {shown.authority.hex()}"
    yield from (f"server {index} signs with {key.hex()}" for index, key in enumerate(shown.server_keys))
    yield f"{shown.minimum_cohort} to {shown.maximum_cohort} clients of weight {', '.join(map(str, shown.weights))}; "
    yield f"{shown.maximum_rejections} may be rejected; {lanes_of(shown)} counters and ring elements"
    yield f"expires {datetime.fromtimestamp(shown.expiry, UTC):%Y-%m-%d %H:%M:%S} UTC"
