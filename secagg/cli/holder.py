"""``secagg holder``: a standing holder of the protocol with one message a client, and the keys that one needs."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, PeerError
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.platforms.keys.identities import load_authority, load_roster
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey
from secagg.session.sockets.service import Service

from .serving import serving

if TYPE_CHECKING:
    from secagg.protocols.one_message import EpochRecord, Holder

_MOST_FILE_BYTES: Final = 1 << 20
_OWNER_ONLY: Final = 0o600
_MOST_NUMBERS: Final = 1 << 64
_MOST_HOURS: Final = 24 * 366
_LEAST_PAUSE, _MOST_PAUSE = 0.01, 60.0


def add_holder_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``holder keys``, ``holder record`` and ``holder serve``."""
    holder = commands.add_parser("holder", help="a standing holder of the protocol with one message a client")
    kinds = holder.add_subparsers(required=True, metavar="COMMAND")
    keys = kinds.add_parser("keys", help="make an identity, of a holder or of the authority, and print its public key")
    keys.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the private key goes")
    keys.set_defaults(run=make_key)
    record = kinds.add_parser(
        "record",
        help="as the authority: sign who holds in an epoch",
        description="Sign an epoch's holders, in their order. List operators that do not work together: what any "
        "--corrupted of them know tells nothing, and no more than that is promised.",
    )
    record.add_argument(
        "--authority",
        type=Path,
        required=True,
        metavar="FILE",
        help="the authority's private key, of `secagg holder keys` or `secagg flower keys`",
    )
    listed = record.add_mutually_exclusive_group(required=True)
    listed.add_argument("--holder", action="append", metavar="HEX", help="a holder's public key; once for each")
    listed.add_argument(
        "--client", action="append", type=int, metavar="ID", help="a client that holds; once for each, with --roster"
    )
    record.add_argument("--roster", type=Path, metavar="FILE", help="of `secagg flower keys`, beside --client")
    record.add_argument("--number", type=int, required=True, metavar="N", help="of the epoch; above every earlier one")
    record.add_argument("--corrupted", type=int, default=1, help="how many may work with the server (default: 1)")
    record.add_argument("--absent", type=int, default=0, help="how many others may be away (default: 0)")
    record.add_argument(
        "--rule", choices=("one_answer", "certified"), help="default: one_answer where it suits the holders"
    )
    record.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="default: classic")
    record.add_argument("--hours", type=float, default=24.0, help="how long the epoch lasts (default: 24)")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the record goes")
    record.set_defaults(run=sign_record)
    serve = kinds.add_parser(
        "serve",
        help="hold in one epoch, until SIGTERM or SIGINT",
        description="Hold in one epoch. Started again with the same arguments it goes on from its journal; started "
        "from a backup, or after a reboot, it refuses, because it cannot know what it has answered.",
    )
    serve.add_argument("--record", type=Path, required=True, metavar="FILE", help="as `secagg holder record` makes it")
    serve.add_argument("--key", type=Path, required=True, metavar="FILE", help="this holder's private key")
    serve.add_argument(
        "--authority",
        required=True,
        metavar="HEX",
        help="the public key of the authority it believes, or the file of a roster that the operator trusts",
    )
    serve.add_argument("--journal", type=Path, required=True, metavar="DIR", help="a folder that no backup copies")
    serve.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where the server connects")
    serve.add_argument("--minimum-cohort", type=int, default=3, metavar="N", help="no sum is over fewer (default: 3)")
    serve.add_argument("--corrupted", type=int, default=1, metavar="N", help="least bound of the epoch (default: 1)")
    serve.add_argument("--minimum-holders", type=int, default=4, metavar="N", help="least of the epoch (default: 4)")
    serve.set_defaults(run=serve_holder)


def make_key(options: argparse.Namespace) -> int:
    """Write a private key for nobody but this user, and print the public one."""
    path: Path = options.out
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        except FileExistsError:
            raise InvalidParameters(f"{path} exists; name another --out, or remove the key that is there") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(seed.expose())
        print(SigningKey(seed).public_key.hex())
    return 0


def sign_record(options: argparse.Namespace) -> int:
    """Choose thresholds, sign the holders, and write the record."""
    from secagg.parameters import Suite
    from secagg.protocols.one_message import HolderIdentity, ThresholdRule, plan_epoch

    authority = _signing_key(options.authority)
    if not 0 <= options.number < _MOST_NUMBERS:
        raise InvalidParameters(f"--number is in 0..{_MOST_NUMBERS - 1}; got {options.number}")
    # Written so that NaN is refused too.
    if not 0 < options.hours <= _MOST_HOURS:
        raise InvalidParameters(f"--hours is above 0 and at most {_MOST_HOURS}; got {options.hours}")
    if options.client is None and options.roster is not None:
        raise InvalidParameters("--roster lists clients; name those that hold with --client, or leave it out")
    if options.client is None:
        listed = {number: _public_key("--holder", key) for number, key in enumerate(options.holder)}
    else:
        listed = _keys_of_clients(options.client, options.roster)
    record = plan_epoch(
        [HolderIdentity(number=number, public_key=key) for number, key in listed.items()],
        number=options.number,
        expiry=int((datetime.now(UTC) + timedelta(hours=options.hours)).timestamp()),
        corrupted=options.corrupted,
        absent=options.absent,
        suite=Suite[options.suite.upper()],
        authority=authority.public_key,
        rule=None if options.rule is None else ThresholdRule(options.rule),
    )
    options.out.write_bytes(record.signed(authority).encode())
    certified = f", {record.quorum} sign a list first" if record.quorum else ""
    print(
        f"epoch {record.number}: {len(record.holders)} holders, {record.threshold} open a sum{certified}; any "
        f"{record.corrupted} of them with the server learn nothing else"
    )
    return 0


def serve_holder(options: argparse.Namespace) -> int:
    """Hold until SIGTERM or SIGINT."""
    from secagg.protocols.one_message import EpochRecord, FileJournal, Floors, Holder, boot_id

    floors = replace(
        Floors.usual(_authority(options.authority)),
        least_holders=options.minimum_holders,
        minimum_cohort=options.minimum_cohort,
        assumed_corrupted=options.corrupted,
        assumed_corrupted_clients=max(0, min(1, options.minimum_cohort - LEAST_COHORT)),
    )
    key = _signing_key(options.key)
    with serving():
        try:
            record = EpochRecord.decode(_read(options.record))
            if (position := record.position_of(key.public_key)) is None:
                raise InvalidParameters(f"the epoch has no holder with the key {key.public_key.hex()}")
            if len(record.holders) < options.minimum_holders or record.corrupted < options.corrupted:
                raise InvalidParameters(
                    f"the epoch has {len(record.holders)} holders, of whom {record.corrupted} may be corrupted, and "
                    f"this one asks for {options.minimum_holders} and {options.corrupted}; lower --minimum-holders or "
                    "--corrupted, or have another epoch signed"
                )
            journal = FileJournal(options.journal, record.context.digest, boot_id(), SystemCoins())
        except PeerError as error:
            raise InvalidParameters(f"{options.record} or {options.journal}: {error}") from None
        try:
            holder = Holder(
                record,
                position,
                root=journal.root,
                nonce=journal.nonce,
                journal=journal,
                floors=floors,
                clock=lambda: datetime.now(UTC),
                signing_key=key,
            )
            Thread(target=_end_with_the_epoch, args=(holder, record), daemon=True).start()
            try:
                Service(holder).serve(options.socket, ready=_say_ready(position, options.socket))
            finally:
                holder.close()
        except PeerError as error:
            raise InvalidParameters(f"{options.journal}: {error}") from None
        finally:
            journal.close()
            key.wipe()
    return 0


def _say_ready(position: int, path: Path) -> Callable[[], None]:
    return lambda: print(f"secagg holder: holder/{position} is ready at {path}", flush=True)


def _end_with_the_epoch(holder: Holder, record: EpochRecord) -> None:
    """Destroy the keys at the epoch's end, also where nobody asks for anything any more."""
    while not holder.end_if_expired():
        # The clock may be set meanwhile.
        left = record.expiry - datetime.now(UTC).timestamp()
        time.sleep(min(max(left, _LEAST_PAUSE), _MOST_PAUSE))
    print(f"secagg holder: epoch {record.number} is over, and its keys are destroyed", flush=True)


def _keys_of_clients(clients: list[int], roster: Path | None) -> dict[int, bytes]:
    if roster is None:
        raise InvalidParameters("--client names clients of a roster; give --roster, as `secagg flower keys` writes it")
    listed = load_roster(roster).certificates
    if missing := [client for client in clients if ClientId(client) not in listed]:
        raise InvalidParameters(f"{roster} has no client {missing[0]}; name clients that it lists")
    if len(set(clients)) < len(clients):
        raise InvalidParameters("--client names one client twice; each holds at one position")
    return {client: listed[ClientId(client)].public_key for client in clients}


def _signing_key(path: Path) -> SigningKey:
    data = _read(path)
    if path.stat().st_mode & 0o077:
        raise InvalidParameters(f"the key {path} is readable by others; chmod it to 600")
    if len(data) != IDENTITY_KEY_BYTES:
        return load_authority(path)
    with Secret("signing key", data) as seed:
        return SigningKey(seed)


def _authority(text: str) -> bytes:
    return load_roster(Path(text)).authority if text.endswith(".json") else _public_key("--authority", text)


def _public_key(name: str, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != IDENTITY_KEY_BYTES:
        raise InvalidParameters(f"{name} is {2 * IDENTITY_KEY_BYTES} hexadecimal digits, as `secagg holder keys` says")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise InvalidParameters(f"{path} cannot be read: {error.strerror}") from None
