"""``secagg holder``: a standing holder of the protocol with one message a client, and the keys that one needs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, PeerError
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.platforms.keys.identities import load_authority, load_roster
from secagg.session import durable
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey
from secagg.session.sockets import Service

from .serving import serving

if TYPE_CHECKING:
    from secagg.protocols.one_message import EpochRecord, Holder

_MOST_FILE_BYTES: Final = 1 << 20
_MOST_NUMBERS: Final = 1 << 64
_MOST_HOURS: Final = 24 * 366
_LEAST_PAUSE, _MOST_PAUSE = 0.01, 60.0


def make_key(options: argparse.Namespace) -> int:
    """Write a private key for nobody but this user, and print the public one."""
    path: Path = options.out
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        try:
            durable.create(path, bytes(seed.expose()))
        except FileExistsError:
            raise InvalidParameters(f"{path} exists; name another --out, or remove the key that is there") from None
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
    durable.replace(options.out, record.signed(authority).encode(), durable.PUBLIC)
    certified = f", {record.quorum} sign a list first" if record.quorum else ""
    print(
        f"epoch {record.number}: {len(record.holders)} holders, {record.threshold} open a sum{certified}; any "
        f"{record.corrupted} of them with the server learn nothing else"
    )
    return 0


def serve_holder(options: argparse.Namespace) -> int:
    """Hold until SIGTERM or SIGINT."""
    from secagg.protocols.one_message import EpochRecord, FileJournal, Floors, Holder, boot_id, require_believed

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
            require_believed(record, floors)
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
        raise InvalidParameters("--client names clients of a roster; give --roster, as `secagg keys` writes it")
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
