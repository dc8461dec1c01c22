"""One-message sums on platforms, with standing holders at addresses.

The clients' authority signs the holders' record, so a server can neither choose nor invent holders. The server queries
them outside the platform.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters, PeerError
from secagg.identifiers import HolderId, ServerId
from secagg.protocols.one_message import (
    ClientRecord,
    EpochRecord,
    Ledger,
    OneMessageHelpers,
    OneMessageMember,
    open_session,
)
from secagg.session.durable import replace
from secagg.session.frames import decode_refusal
from secagg.session.identities import load_signing_key
from secagg.session.roles import ServerSession, Subject
from secagg.session.sockets import Ends, HelperLost, NumberedHelpers
from secagg.session.store import Store
from secagg.wire import MessageKind, message_kind

from . import LOG
from .client_node import state_folder
from .plugs import NodeSide, ServerSide
from .settings import PREFIX, SUITES

_PAUSE: Final = 1.0
_ASKED_AGAIN: Final = (MessageKind.ONE_MESSAGE_LIST, MessageKind.ONE_MESSAGE_CERTIFIED_LIST)
"""Requests that are the same for all holders, and repeated to those that did not answer."""


def opened(side: ServerSide) -> ServerSession:
    """Open a sum in the current epoch."""
    settings, chosen, record = side.settings, side.chosen, _record(side)
    ends = dict[int, Ends]()
    if settings.server_keys:
        key = load_signing_key(Path(settings.server_keys))
        side.resources.callback(key.wipe)
        for at, holder in enumerate(record.holders):
            ends[at] = Ends(own=ServerId(0), key=key, peer=HolderId(at), peer_key=holder.public_key, coins=side.coins)
    holders = StandingHolders(record, settings.holder_sockets, settings.stage_timeout, ends)
    keys = holders.keys(side.subject, Path(f"{settings.epoch}.keys"))
    helpers = OneMessageHelpers(
        record=record, keys=keys, coins=side.coins, ask_all=holders.ask_all, standing=side.standing
    )
    return open_session(side.subject, chosen, side.invited, helpers)


def _record(side: ServerSide) -> EpochRecord:
    """Read the holders' record; refuse a record that clients would refuse."""
    path = side.settings.epoch
    try:
        record = EpochRecord.decode(Path(path).read_bytes())
    except (OSError, PeerError) as error:
        raise InvalidParameters(
            f"{PREFIX}epoch is {path}, not an epoch's record ({error}); create one with `secagg holder record`"
        ) from None
    for is_wrong, sentence in (
        (record.authority != side.authority, f"is not signed by the authority of {PREFIX}roster"),
        (side.clock().timestamp() >= record.expiry, "has expired; get the next one signed"),
        (
            side.settings.suite is not None and record.suite is not SUITES[side.settings.suite],
            f"does not have {PREFIX}suite = {side.settings.suite}; change one of them",
        ),
        (
            len(record.holders) != len(side.settings.holder_sockets),
            f"names {len(record.holders)} holders, but {PREFIX}holders {len(side.settings.holder_sockets)} addresses",
        ),
    ):
        if is_wrong:
            raise InvalidParameters(f"{path} ({PREFIX}epoch) {sentence}")
    return record


class StandingHolders:
    """Holders at their addresses; once clients have uploaded, waits until enough holders answer."""

    def __init__(
        self, record: EpochRecord, addresses: tuple[str, ...], patience: float, ends: Mapping[int, Ends]
    ) -> None:
        """``patience``: maximum seconds of silence of a holder, and of waiting while too few answer."""
        self._record, self._addresses, self._patience = record, addresses, patience
        self._helpers = NumberedHelpers(dict(enumerate(addresses)), patience, self._log, ends)
        self._list, self._heard = b"", set[int]()

    def keys(self, subject: Subject, kept: Path) -> tuple[bytes, ...]:
        """Return the published keys of the holders that answer, and empty entries for the others.

        A server that restarts during a sum continues with its offer, if enough holders still have it.
        """
        about, published = f"{subject.task.hex()}/{subject.round_number}", self._published()
        with suppress(OSError, ValueError, TypeError, LookupError):
            said = json.loads(kept.read_text(encoding="ascii"))
            offered = tuple(map(bytes.fromhex, said["keys"]))
            same = sum(bool(key) and key == other for key, other in zip(published, offered, strict=True))
            if said["sum"] == about and same >= self._needed:
                return offered
        replace(kept, (json.dumps({"sum": about, "keys": [key.hex() for key in published]}) + "\n").encode())
        return published

    @property
    def _needed(self) -> int:
        return max(self._record.threshold, self._record.quorum)

    def _published(self) -> tuple[bytes, ...]:
        count, keys = range(len(self._addresses)), dict[int, bytes]()
        for position, answer in self._helpers.ask_all(dict.fromkeys(count, self._record.encode())):
            if message_kind(answer) is MessageKind.REFUSAL:
                raise HelperLost(f"{self._named([position])} refuses the epoch: {decode_refusal(answer)}") from None
            keys[position] = answer
        if len(keys) < self._needed:
            raise HelperLost(
                f"a sum needs {self._needed} of its {len(count)} holders, and {self._named(set(count) - set(keys))} "
                f"did not answer; start `secagg holder serve` there with the record of {PREFIX}epoch"
            )
        return tuple(keys.get(at, b"") for at in count)

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Return the received answers; after uploads, wait until enough have arrived."""
        needed, waited = self._needed, time.monotonic()
        left, answered = dict(requests), self._answered_to(requests)
        refusals = dict[int, bytes]()
        while left:
            for position, answer in self._helpers.ask_all(left):
                if message_kind(answer) is MessageKind.REFUSAL:
                    refusals[position] = answer
                    continue
                del left[position]
                answered.add(position)
                yield position, answer
            if not left:
                return
            kinds = {message_kind(request) for request in left.values()}
            is_over = time.monotonic() - waited > self._patience or MessageKind.ONE_MESSAGE_OFFER in kinds
            if len(answered) >= needed or is_over:
                yield from ((position, refusals[position]) for position in left if position in refusals)
                return
            LOG.error(
                "%s did not answer, but %d holders are needed; nothing is lost yet: connect them within %d s (a "
                "restarted holder has new keys and is absent from this sum)",
                *(self._named(left), needed, self._patience - (time.monotonic() - waited)),
            )
            time.sleep(_PAUSE)

    def _answered_to(self, requests: Mapping[int, bytes]) -> set[int]:
        """Return the holders that have answered a list; lost holders have answered nothing."""
        asked = set(requests.values())
        if len(asked) != 1 or message_kind(*asked) not in _ASKED_AGAIN:
            return set()
        (request,) = asked
        if self._list != request:
            self._list, self._heard = request, set[int]()
        return self._heard

    def _log(self, position: int, error: Exception) -> None:
        LOG.warning("%s does not answer: %s", self._named([position]), str(error))

    def _named(self, positions: Iterable[int]) -> str:
        return ", ".join(f"{HolderId(position)} at {self._addresses[position]}" for position in sorted(positions))


def member(side: NodeSide) -> OneMessageMember:
    """Return a client; its upload is charged when its update is made."""
    identity = side.identity

    newest, who = Store.at(state_folder()), (identity.authority.public_key, side.client.value)

    def store(record: bytes) -> None:
        # Uploads are charged when the update is made.
        newest.reach(*who, ClientRecord.decode(record).newest_epoch)

    return OneMessageMember(
        side.client,
        policy=dataclasses.replace(side.settings.policy, authority=identity.authority.public_key),
        ledger=lambda task: Ledger(task, store, ClientRecord(task=task, newest_epoch=newest.newest(*who)).encode()),
        coins=side.coins,
        clock=side.clock,
        signing_key=identity.signing_key,
        certificate=identity.certificate,
        noise=side.noise,
        privacy=side.privacy,
        standings=newest,
    )
