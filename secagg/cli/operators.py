"""``secagg holder`` and ``secagg server``: run a holder of the one-message protocol, or the second of two servers."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, PeerError
from secagg.identifiers import HolderId, ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.protocols.two_servers import (
    SERVERS,
    SERVERS_FILE,
    IndexingConfiguration,
    OperatorPolicy,
    StandingRounds,
    StandingServer,
    lanes_of,
    load_operator_keys,
    load_server_keys,
    load_server_pair,
    make_server_keys,
    make_trial_pair,
    public_file,
    serve_standing,
    server_file,
    write_server_pair,
)
from secagg.session import durable
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.identities import ROSTER_FILE, load_signing_key
from secagg.session.sockets import Ends, Service

from .keys import authority_in
from .shared import serving

if TYPE_CHECKING:
    from secagg.protocols.one_message import EpochRecord, Holder

# --- Holders ----------------------------------------------------------------------------------------------------------

_MOST_FILE_BYTES: Final = 1 << 20
_MOST_NUMBERS: Final = 1 << 64
_MOST_HOURS: Final = 24 * 366
_MOST_LISTED: Final = 1 << 14
_MOST_KEY_HOURS: Final = 24
_LEAST_PAUSE, _MOST_PAUSE = 0.01, 30.0


def make_key(options: argparse.Namespace) -> int:
    """Write a private key that only this user can read, and print the public key."""
    path: Path = options.out
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        try:
            durable.create(path, bytes(seed.expose()))
        except FileExistsError:
            raise InvalidParameters(f"{path} exists; use another --out, or remove the old key") from None
        print(SigningKey(seed).public_key.hex())
    return 0


def sign_record(options: argparse.Namespace) -> int:
    """Choose thresholds, sign the holders, and write the record."""
    from secagg.protocols.one_message import HolderIdentity, plan_epoch

    authority = load_signing_key(options.authority)
    if not 0 <= options.number < _MOST_NUMBERS:
        raise InvalidParameters(f"--number must be between 0 and {_MOST_NUMBERS - 1}; got {options.number}")
    # NaN compares false, so this form refuses it too.
    if not 0 < options.hours <= _MOST_HOURS:
        raise InvalidParameters(f"--hours must be above 0 and at most {_MOST_HOURS}; got {options.hours}")
    record = plan_epoch(
        [
            HolderIdentity(number=number, public_key=_public_key("--holder", key))
            for number, key in enumerate(options.holder)
        ],
        number=options.number,
        expiry=int((datetime.now(UTC) + timedelta(hours=options.hours)).timestamp()),
        corrupted=options.corrupted,
        absent=options.absent,
        suite=Suite[options.suite.upper()],
        authority=authority.public_key,
    )
    durable.replace(options.out, record.signed(authority).encode(), durable.PUBLIC)
    print(
        f"epoch {record.number}: {len(record.holders)} holders, of which {record.quorum} must sign a list and "
        f"{record.threshold} open a sum; {record.committee.stands} may be lost; any {record.corrupted} that collude "
        "with the server learn only the sum"
    )
    return 0


def serve_holder(options: argparse.Namespace) -> int:
    """Serve as a holder until SIGTERM or SIGINT."""
    from secagg.protocols.one_message import EpochRecord, Holder

    policy = ClientPolicy(
        authority=authority_in(options.authority),
        minimum_holders=options.minimum_holders,
        minimum_cohort=options.minimum_cohort,
        assumed_corrupted_holders=options.corrupted,
        assumed_corrupted=max(0, min(1, options.minimum_cohort - LEAST_COHORT)),
        maximum_population=_MOST_LISTED,
    )
    if not 0 < options.key_hours <= _MOST_KEY_HOURS:
        raise InvalidParameters(f"--key-hours must be above 0 and at most {_MOST_KEY_HOURS}; got {options.key_hours}")
    if options.memory < 1:
        raise InvalidParameters(f"--memory must be at least 1 MiB; got {options.memory}")
    key, ends = load_signing_key(options.key), None
    with serving():
        try:
            record = EpochRecord.decode(_read(options.record))
            if (position := record.position_of(key.public_key)) is None:
                raise InvalidParameters(f"the epoch has no holder with the key {key.public_key.hex()}")
            if len(record.holders) < options.minimum_holders or record.corrupted < options.corrupted:
                raise InvalidParameters(
                    f"the epoch has {len(record.holders)} holders, of which {record.corrupted} may be corrupted, but "
                    f"this holder requires {options.minimum_holders} and {options.corrupted}; lower --minimum-holders "
                    "or --corrupted, or use another epoch"
                )
            if options.server is not None:
                server = _public_key("--server", options.server)
                own = HolderId(position)
                ends = Ends(own=own, key=key, peer=ServerId(0), peer_key=server, coins=SystemCoins())
            holder = Holder(
                record,
                position,
                coins=SystemCoins(),
                policy=policy,
                clock=lambda: datetime.now(UTC),
                signing_key=key,
                life=timedelta(hours=options.key_hours),
                tasks=[task.encode() for task in options.task],
                memory=options.memory << 20,
            )
        except PeerError as error:
            raise InvalidParameters(f"{options.record}: {error}") from None
        try:
            Thread(target=_end_with_the_epoch, args=(holder, record), daemon=True).start()
            Service(holder, ends=ends).serve(options.listen, ready=_say_ready(position, options.listen))
        finally:
            holder.end()
            key.wipe()
    return 0


def _say_ready(position: int, address: str) -> Callable[[], None]:
    return lambda: print(f"secagg holder: holder/{position} is ready at {address}", flush=True)


def _end_with_the_epoch(holder: Holder, record: EpochRecord) -> None:
    """Destroy the keys when the epoch ends, even if no request arrives."""
    while not holder.end_if_expired():
        # The pause is limited because the clock may be changed meanwhile.
        time.sleep(min(max(holder.seconds_left(), _LEAST_PAUSE), _MOST_PAUSE))
    print(f"secagg holder: epoch {record.number} is over, and its keys are destroyed", flush=True)


def _public_key(name: str, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != IDENTITY_KEY_BYTES:
        raise InvalidParameters(f"{name} must be {2 * IDENTITY_KEY_BYTES} hex digits, from `secagg holder keys`")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise InvalidParameters(f"cannot read {path}: {error.strerror}") from None


# --- Two servers ------------------------------------------------------------------------------------------------------

_SUITES: Final = {suite.name.lower(): suite for suite in Suite}


def make_operator_keys(options: argparse.Namespace) -> int:
    """Make one operator's keys or, from the other operator's public keys, the file that names both servers."""
    out, roster = options.out, options.roster or options.out / ROSTER_FILE
    if options.trial:
        for name in ("role", "peer", "roster"):
            if getattr(options, name) is not None:
                raise InvalidParameters(f"--{name} cannot be combined with --trial, which makes both keys")
        is_new = make_trial_pair(out, SystemCoins())
        print(f"{out}: the keys of both servers, {'new' if is_new else 'existing'}. A trial protects nobody.")
        return 0
    if options.role is None:
        raise InvalidParameters("choose the server with --role 0 or --role 1; --trial makes the keys of both")
    out.mkdir(parents=True, exist_ok=True)
    if options.peer is None:
        if options.roster is not None:
            raise InvalidParameters("--roster only applies with --peer: it names the clients' authority")
        make_server_keys(out, options.role, SystemCoins())
        print(f"{out / server_file(options.role)}: private; only this server's operator may have it")
        print(f"{out / public_file(options.role)}: public; give it to the other operator, and pass theirs as --peer")
        return 0
    with load_server_keys(out / server_file(options.role), options.role) as keys:
        pair = write_server_pair(out, roster, [keys.public, load_operator_keys(options.peer)])
    print(f"{out / SERVERS_FILE}: public; give it to both operators and every client")
    print(f"fingerprint {pair.fingerprint}: compare it with the other operator's over another channel")
    return 0


def serve_second_server(options: argparse.Namespace) -> int:
    """Serve as server 1 until SIGTERM or SIGINT, and return the exit status."""
    if options.threads < 1:
        raise InvalidParameters(f"--threads must be at least 1; got {options.threads}")
    if options.maximum_hours > _MOST_HOURS:
        raise InvalidParameters(f"--maximum-hours must be at most {_MOST_HOURS}; got {options.maximum_hours}")
    names = [name.strip() for name in options.suites.split(",")]
    if unknown := [name for name in names if name not in _SUITES]:
        raise InvalidParameters(f"--suites must be among {', '.join(_SUITES)}; got {unknown[0]!r}")
    pair = load_server_pair(options.servers)
    policy = OperatorPolicy(
        weakest=ClientPolicy(
            authority=pair.authority,
            server_keys=pair.server_keys,
            suites=frozenset(_SUITES[name] for name in names),
            minimum_cohort=options.minimum_cohort,
        ),
        task_prefix=options.task.encode(),
        maximum_cohort=options.maximum_cohort,
        maximum_lanes=options.maximum_lanes,
        maximum_lifetime=timedelta(hours=options.maximum_hours),
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with serving(), load_server_keys(options.keys, 1) as keys:
        # Version 0.2 stored a round's root there; now a round ends with its process.
        durable.erase(options.journal / "round.journal")
        with closing(StandingRounds(options.journal)) as rounds:
            state = f"resumed after {rounds.count} rounds" if rounds.count else "new"
            server = StandingServer(
                keys, pair.operators[0], policy, rounds, coins=SystemCoins(), threads=options.threads
            )
            said = f"secagg server: server/1 is ready at {options.listen}, {state}. Two servers of one operator protect"
            serve_standing(server, options.listen, SystemCoins(), ready=lambda: print(f"{said} nobody.", flush=True))
    return 0


def show_file(options: argparse.Namespace) -> int:
    """Print a description of a file."""
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
        case _ if (path / "state.db").exists():
            with closing(StandingRounds(path)) as rounds:
                yield f"{rounds.count} rounds of {rounds.tasks} tasks were started"
        case _:
            yield from _configuration(path)


def _configuration(path: Path) -> Iterator[str]:
    try:
        shown = IndexingConfiguration.decode(_read(path))
    except PeerError as error:
        raise InvalidParameters(f"{path} is not a configuration of two servers: {error}") from None
    yield f"task {shown.task!r}, suite {shown.suite.value}, {shown.mode.name.lower()}; T0 {shown.context.digest.hex()}"
    yield f"authority {shown.authority.hex()}"
    yield from (f"server {index} signs with {key.hex()}" for index, key in enumerate(shown.server_keys))
    yield f"{shown.minimum_cohort} to {shown.maximum_cohort} clients; "
    yield f"{shown.maximum_rejections} may be rejected; {lanes_of(shown)} counters and ring elements"
    yield f"expires {datetime.fromtimestamp(shown.expiry, UTC):%Y-%m-%d %H:%M:%S} UTC"
