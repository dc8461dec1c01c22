"""State of a client between two messages, and the encoding from which another process resumes it.

A record contains the offer and the roster, which are checked again on resuming. It contains only the secrets that the
client itself still has: before the upload, the coins from which its keys are derived; after it, its neighbours' shares.
It never contains the input.

Security: a record is a copy of the client's secrets. Each record is numbered and resumed only once: ``Recorder.claim``
    claims its number in a ``Latch`` before reading more than its head. Seal records too, so that an older one cannot be
    opened; ``secagg.session.sealed_state`` does this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.declared import CLIENT, Message, choice, fixed, nested, numbered, read_fields, repeated, unsigned, variable
from secagg.errors import InternalError, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.session.sealed_state import NAME_BYTES, Latch
from secagg.tables import joined, mapped
from secagg.wire import HEADER_BYTES, MessageKind, Reader

from .configuration import ClientSet, Roster, SessionConfiguration, roster_of
from .graph import MAXIMUM_POPULATION
from .member import ClientState, MemberParts
from .round0_advertise_keys import (
    Advertised,
    AdvertisedKeys,
    VerifiedKeySet,
    accept_advertised_keys,
    advertise_keys,
    verify_entry,
)
from .round1_share_keys import Shared
from .round2_masked_input import Masked
from .rounds3_4_unmasking import Confirmed
from .suites import SHARES_BYTES

_LOG: Final = logging.getLogger(__name__)
_LENGTH_BYTES: Final = 8
_HEAD_END: Final = _LENGTH_BYTES + HEADER_BYTES + NAME_BYTES + 4 + 8
_ROOT_BYTES: Final = 32
Step = Advertised | Shared | Masked | Confirmed
Answers = dict[MessageKind, tuple[bytes, bytes]]
"""Digest of each answered message, and the answer, by kind. The upload is not kept: it is as large as the model."""


class RecordedCoins(Confined):
    """Coins that are recorded until ``stop``, and can be drawn again in the same order.

    A resumed client derives its keys again with the same code, so the keys themselves need not be stored.
    """

    def __init__(self, coins: Coins) -> None:
        self._coins = coins
        self.drawn = list[Secret]()
        self._replayed, self._remembers = 0, True

    def replay(self, drawn: list[Secret]) -> None:
        self.drawn = drawn

    def draw(self, count: int) -> bytearray:
        if self._replayed < len(self.drawn):
            again = bytearray(self.drawn[self._replayed].expose())
            self._replayed += 1
            if len(again) != count:
                raise InternalError("a resumed client draws coins of different lengths than before")
            return again
        fresh = draw_exactly(count, self._coins)
        if self._remembers:
            self.drawn.append(Secret("coins", fresh))
            self._replayed += 1
        return fresh

    def stop(self) -> None:
        """Stop recording; the coins drawn for sharing are never needed again."""
        self._remembers = False

    def wipe(self) -> None:
        for secret in self.drawn:
            secret.wipe()
        self.drawn.clear()
        self._replayed = 0

    def __repr__(self) -> str:
        return f"<RecordedCoins, {len(self.drawn)} draws>"


class Recorder(Confined):
    """What a suspendable client must remember in addition to its step, and the latch that numbers its records."""

    def __init__(self, latch: Latch, coins: Coins) -> None:
        self.coins = RecordedCoins(coins)
        self.offer = self.advertised_keys = b""
        self._latch, self._plain, self._name, self._number = latch, coins, b"", 0

    def note(self, kind: MessageKind, message: bytes) -> None:
        """Remember what is needed later of an answered message."""
        if kind is MessageKind.SESSION_OFFER:
            self.offer = message
            self.coins.stop()
        elif kind is MessageKind.ADVERTISED_KEYS:
            self.advertised_keys = message
        elif kind is MessageKind.DELIVERED_SHARES:
            # As in every client, none of its own secrets remain from here on.
            self.coins.wipe()

    def suspended(self, client: ClientId, state: ClientState, step: Step, answered: Answers) -> Secret:
        """Return the record of a client, and wipe what was recorded."""
        if not self._name:
            name = bytes(draw_exactly(NAME_BYTES, self._plain))
            self._latch.begin(name)
            # No earlier: a name already in the latch belongs to another session, which must not end with this one.
            self._name = name
        record = ClientRecord(
            head=Head(self._name, self._number, client),
            state=state,
            offer=self.offer,
            advertised_keys=self.advertised_keys,
            answered=answered,
        )
        match step:
            case Advertised() | Shared():
                record.coin_bytes, record.secrets = tuple(map(len, self.coins.drawn)), self.coins.drawn
                record.edges = step.edges if isinstance(step, Shared) else {}
            case Masked() | Confirmed():
                masked = step.masked if isinstance(step, Confirmed) else step
                record.sharers, record.delivered = masked.sharers.encode(), masked.delivered
                record.contributors = step.contributors.encode() if isinstance(step, Confirmed) else b""
                record.dealers, record.seeded = tuple(masked.shares), tuple(masked.edge_seeds)
                record.secrets = [*masked.shares.values(), *masked.edge_seeds.values()]
        encoded = record.to_secret()
        self.coins.wipe()
        return encoded

    def claim(self, suspended: Secret, client: ClientId) -> None:
        """Claim the number of this client's record, permanently; reads only the record's head.

        A record that can no longer be resumed is wiped; another client's record is left alone.
        """
        head = ClientRecord.head_of(suspended)
        if head.client != client:
            raise Misuse(f"the suspended state belongs to another client, not to {client}")
        try:
            self._latch.claim(head.name, head.number)
        except Misuse:
            suspended.wipe()
            raise
        self._name, self._number = head.name, head.number + 1

    def resumed(
        self, suspended: Secret, member: MemberParts, admit: Callable[[SessionConfiguration], None]
    ) -> tuple[SessionConfiguration, ClientState, Step, Answers]:
        """Read and wipe a claimed record, and return the state to resume from, unless ``admit`` refuses the session."""
        with suspended:
            record = ClientRecord.from_secret(suspended)
        self.offer, self.advertised_keys = record.offer, record.advertised_keys
        self.coins.replay(record.secrets[: len(record.coin_bytes)])
        try:
            configuration = SessionConfiguration.decode(record.offer)
            admit(configuration)
            step = _step_of(record, member, configuration, self.coins)
        except BaseException:
            record.wipe()
            raise
        self.coins.stop()
        return configuration, record.state, step, record.answered

    def end(self) -> None:
        """Wipe, and make every record of this session unusable; an error of the latch is only logged."""
        self.coins.wipe()
        try:
            if self._name:
                self._latch.end(self._name)
        except Exception:  # noqa: BLE001 -- the error that ended the session is the one to raise
            # Safe because: no record has the number that the latch still holds.
            _LOG.exception("the latch keeps the number of a finished session; this is harmless: no record has it")


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a record that is read before its number is claimed."""

    name: Annotated[bytes, fixed(NAME_BYTES)]
    """Name of the session in the latch."""
    number: Annotated[int, unsigned(4)]
    client: Annotated[ClientId, CLIENT]


_BYTES: Final = variable((1 << 32) - 1)
_NEIGHBOURS: Final = repeated(unsigned(4), MAXIMUM_POPULATION)


@dataclass(slots=True, kw_only=True)
class ClientRecord(Message):
    """A client's memory of one session; the encoded fields say how many secrets follow."""

    kind: ClassVar = MessageKind.CLIENT_SNAPSHOT
    head: Annotated[Head, nested(Head)]
    state: Annotated[ClientState, choice(tuple(ClientState))]
    offer: Annotated[bytes, _BYTES] = field(repr=False)
    advertised_keys: Annotated[bytes, _BYTES] = field(repr=False)
    answered: Annotated[Answers, mapped(numbered(MessageKind, 2), joined(fixed(32), _BYTES))] = field(repr=False)
    coin_bytes: Annotated[tuple[int, ...], repeated(unsigned(1), 255, size=1)] = ()
    """Lengths of the drawn coins; empty after the upload."""
    edges: Annotated[dict[int, bytes], mapped(unsigned(4), _BYTES)] = field(
        default_factory=dict[int, bytes], repr=False
    )
    """The client's messages for the edges whose seeds it sends; empty after the upload."""
    sharers: Annotated[bytes, _BYTES] = b""
    delivered: Annotated[bytes, fixed(_ROOT_BYTES)] = bytes(_ROOT_BYTES)
    """Root over the entries that were delivered to the client."""
    contributors: Annotated[bytes, _BYTES] = b""
    """Contributors that the client signed for; empty if it has not signed."""
    dealers: Annotated[tuple[int, ...], _NEIGHBOURS] = ()
    """Neighbours whose shares the client holds."""
    seeded: Annotated[tuple[int, ...], _NEIGHBOURS] = ()
    """Neighbours whose edge seeds the client holds."""
    secrets: list[Secret] = field(default_factory=list[Secret], repr=False)
    """The coins, or the shares and edge seeds."""

    def __post_init__(self) -> None:
        if self.state in {ClientState.AWAITING_OFFER, ClientState.COMPLETED, ClientState.ABORTED}:
            raise InvalidParameters(f"a client cannot be resumed from state {self.state}")

    @property
    def shares(self) -> dict[int, Secret]:
        return dict(zip(self.dealers, self.secrets[len(self.coin_bytes) :], strict=False))

    @property
    def edge_seeds(self) -> dict[int, Secret]:
        return dict(zip(self.seeded, self.secrets[len(self.coin_bytes) + len(self.dealers) :], strict=False))

    def to_secret(self) -> Secret:
        """Return the length of the encoding, the encoding, and then the secrets."""
        return _joined(self.encode(), self.secrets)

    @staticmethod
    def head_of(record: Secret) -> Head:
        head: Head = read_fields(Reader(bytes(record.expose()[_LENGTH_BYTES:_HEAD_END]), ClientRecord.kind), Head)
        return head

    @classmethod
    def from_secret(cls, record: Secret) -> ClientRecord:
        """Decode a record; its secrets are copies."""
        view = record.expose()
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "big")
        found = cls.decode(bytes(view[_LENGTH_BYTES:end]))
        kinds = [("coins", size) for size in found.coin_bytes]
        kinds += [("shares", SHARES_BYTES)] * len(found.dealers) + [("pairwise_seed", KEY_BYTES)] * len(found.seeded)
        if len(view) - end != sum(size for _, size in kinds):
            raise MalformedMessage("a client's record is inconsistent", reason=Reason.NOT_CANONICAL)
        for kind, size in kinds:
            found.secrets.append(Secret(kind, view[end : end + size]))
            end += size
        return found

    def wipe(self) -> None:
        for secret in self.secrets:
            secret.wipe()


def _joined(public: bytes, secrets: list[Secret]) -> Secret:
    joined, position = bytearray(_LENGTH_BYTES + len(public) + sum(map(len, secrets))), 0
    try:
        for part in (len(public).to_bytes(_LENGTH_BYTES, "big"), public, *(secret.expose() for secret in secrets)):
            joined[position : position + len(part)] = part
            position += len(part)
        return Secret("client record", joined)
    finally:
        overwrite(joined)


# --- The step of a client that is resumed -----------------------------------------------------------------------------


def _step_of(record: ClientRecord, member: MemberParts, configuration: SessionConfiguration, coins: Coins) -> Step:
    """Return the recorded step; uses the recorded coins, if any are left.

    Raises:
        PeerError, InvalidParameters: a recorded message of the server is now refused.
    """
    if record.state is ClientState.AWAITING_ADVERTISED_KEYS:
        # The keys are derived again from the recorded coins, here and below.
        return advertise_keys(member, configuration, coins)[0]
    message = AdvertisedKeys.decode(record.advertised_keys, configuration)
    roster = roster_of(configuration, message.clients, message.root, message.opening)
    configuration.require_protected(member.policy, roster.population)
    if record.state is ClientState.AWAITING_DELIVERED_SHARES:
        advertised, _ = advertise_keys(member, configuration, coins)
        key_set = accept_advertised_keys(member, advertised, message)
        return Shared(key_set, advertised.keys, advertised.self_mask_seed, record.edges)
    key_set = _verified_keys(member, roster, message.entries)
    masked = Masked(
        key_set, ClientSet.decode(record.sharers, roster.population), record.delivered, record.shares, record.edge_seeds
    )
    if not record.contributors:
        return masked
    return Confirmed(masked, ClientSet.decode(record.contributors, roster.population))


def _verified_keys(member: MemberParts, roster: Roster, entries: tuple[bytes, ...]) -> VerifiedKeySet:
    """Decode the roster again. Its proof was checked on arrival; the client's own keys are gone."""
    position = roster.position_of(member.client)
    if position is None:
        raise MalformedMessage("a record's roster does not contain its client", reason=Reason.NOT_CANONICAL)
    neighbours = roster.graph.neighbours(position)
    advertisers = {
        neighbour: verify_entry(entry, roster.clients[neighbour], roster.configuration, member.authority)
        for neighbour, entry in zip(neighbours, entries, strict=True)
    }
    return VerifiedKeySet(roster, position, neighbours, advertisers)
