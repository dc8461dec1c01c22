"""State of a client between two messages, and its encoding, from which another process resumes the client.

A record holds the offer and the roster, which are checked again when it is resumed. Of the secrets it holds no more
than the client itself still has: until the upload the coins from which its keys follow, then its neighbours' shares
alone. It never holds the input.

Security: a record is a copy, which a ``Client`` never makes of itself otherwise. Each is numbered, and resumed once:
    ``Recorder.claim`` claims the number in a ``Latch`` before anything but its head is read. Seal records as well, so
    that an older one cannot be opened; ``secagg.session.sealed_state`` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.declared import (
    CLIENT,
    Message,
    choice,
    fixed,
    nested,
    numbered,
    read_fields,
    repeated,
    unsigned,
    variable,
)
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
"""Digest of each answered message, and the answer, by kind; the upload, which is as large as the model, is not kept."""


class RecordedCoins(Confined):
    """Coins that are remembered until told otherwise, and drawn again in the same order from memory.

    So keys follow from them a second time, by the very function that drew them, and need not be kept themselves.
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
                raise InternalError("a client draws other coins than when it was suspended")
            return again
        fresh = draw_exactly(count, self._coins)
        if self._remembers:
            self.drawn.append(Secret("coins", fresh))
            self._replayed += 1
        return fresh

    def stop(self) -> None:
        """Remember nothing from here on; coins drawn for sharing are never needed again."""
        self._remembers = False

    def wipe(self) -> None:
        for secret in self.drawn:
            secret.wipe()
        self.drawn.clear()
        self._replayed = 0

    def __repr__(self) -> str:
        return f"<RecordedCoins, {len(self.drawn)} draws>"


class Recorder(Confined):
    """What a client remembers in addition to its step so that it can be suspended, and the latch of its records."""

    def __init__(self, latch: Latch, coins: Coins) -> None:
        self.coins = RecordedCoins(coins)
        self.offer = self.advertised_keys = b""
        self._latch, self._plain, self._name, self._number = latch, coins, b"", 0

    def note(self, kind: MessageKind, message: bytes) -> None:
        """Remember a message that was answered, as far as it is needed later."""
        if kind is MessageKind.SESSION_OFFER:
            self.offer = message
            self.coins.stop()
        elif kind is MessageKind.ADVERTISED_KEYS:
            self.advertised_keys = message
        elif kind is MessageKind.DELIVERED_SHARES:
            # From here on nothing of the client's own is left, as in every client.
            self.coins.wipe()

    def suspended(self, client: ClientId, state: ClientState, step: Step, answered: Answers) -> Secret:
        """Return the record of a client, and forget it."""
        if not self._name:
            name = bytes(draw_exactly(NAME_BYTES, self._plain))
            self._latch.begin(name)
            # Not before: a name that the latch knows is another session's, which must not end with this one.
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
        """Claim the number of this client's record, once and for all; nothing else of it is read.

        A record that nobody can resume any more is overwritten; that of another client stays as it is.
        """
        head = ClientRecord.head_of(suspended)
        if head.client != client:
            raise Misuse(f"the suspended state is that of another client than {client}")
        try:
            self._latch.claim(head.name, head.number)
        except Misuse:
            suspended.wipe()
            raise
        self._name, self._number = head.name, head.number + 1

    def resumed(
        self, suspended: Secret, member: MemberParts, admit: Callable[[SessionConfiguration], None]
    ) -> tuple[SessionConfiguration, ClientState, Step, Answers]:
        """Overwrite a record that was claimed, and return where it stands, if ``admit`` does not refuse its session."""
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
        """Wipe, and let no record of this session be resumed any more; a latch that fails raises nothing here."""
        self.coins.wipe()
        try:
            if self._name:
                self._latch.end(self._name)
        except Exception:  # noqa: BLE001 -- the error that ended the session is the one to raise
            # Safe because: no record has the number at which the latch still stands.
            _LOG.exception("the latch keeps the number of a session that is over; no record has that number")


@dataclass(frozen=True, slots=True)
class Head:
    """Part of a record that is read before its number is claimed."""

    name: Annotated[bytes, fixed(NAME_BYTES)]
    """Name of the session in the latch."""
    number: Annotated[int, unsigned(4)]
    client: Annotated[ClientId, CLIENT]


_BYTES: Final = variable((1 << 32) - 1)
_NEIGHBOURS: Final = repeated(unsigned(4), MAXIMUM_POPULATION)


@dataclass(slots=True, kw_only=True)
class ClientRecord(Message):
    """The memory of one client in one session; what is encoded of it says how many secrets follow."""

    kind: ClassVar = MessageKind.CLIENT_SNAPSHOT
    head: Annotated[Head, nested(Head)]
    state: Annotated[ClientState, choice(tuple(ClientState))]
    offer: Annotated[bytes, _BYTES] = field(repr=False)
    advertised_keys: Annotated[bytes, _BYTES] = field(repr=False)
    answered: Annotated[Answers, mapped(numbered(MessageKind, 2), joined(fixed(32), _BYTES))] = field(repr=False)
    coin_bytes: Annotated[tuple[int, ...], repeated(unsigned(1), 255, size=1)] = ()
    """Lengths of the coins that were drawn, until the upload."""
    edges: Annotated[dict[int, bytes], mapped(unsigned(4), _BYTES)] = field(
        default_factory=dict[int, bytes], repr=False
    )
    """The client's messages for the edges whose seeds it sends, until the upload."""
    sharers: Annotated[bytes, _BYTES] = b""
    delivered: Annotated[bytes, fixed(_ROOT_BYTES)] = bytes(_ROOT_BYTES)
    """The root over the entries that the client was delivered."""
    contributors: Annotated[bytes, _BYTES] = b""
    """Clients for which the client signed; empty if it signed for nobody."""
    dealers: Annotated[tuple[int, ...], _NEIGHBOURS] = ()
    """Neighbours whose shares the client holds."""
    seeded: Annotated[tuple[int, ...], _NEIGHBOURS] = ()
    """Neighbours with whose edges it holds a seed."""
    secrets: list[Secret] = field(default_factory=list[Secret], repr=False)
    """The coins, or the shares and the seeds."""

    def __post_init__(self) -> None:
        if self.state in {ClientState.AWAITING_OFFER, ClientState.COMPLETED, ClientState.ABORTED}:
            raise InvalidParameters(f"no client continues from {self.state}")

    @property
    def shares(self) -> dict[int, Secret]:
        return dict(zip(self.dealers, self.secrets[len(self.coin_bytes) :], strict=False))

    @property
    def edge_seeds(self) -> dict[int, Secret]:
        return dict(zip(self.seeded, self.secrets[len(self.coin_bytes) + len(self.dealers) :], strict=False))

    def to_secret(self) -> Secret:
        """Return the encoding behind its length, and the secrets after it."""
        return _joined(self.encode(), self.secrets)

    @staticmethod
    def head_of(record: Secret) -> Head:
        head: Head = read_fields(Reader(bytes(record.expose()[_LENGTH_BYTES:_HEAD_END]), ClientRecord.kind), Head)
        return head

    @classmethod
    def from_secret(cls, record: Secret) -> ClientRecord:
        """Read a record back; its secrets are copies."""
        view = record.expose()
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "big")
        found = cls.decode(bytes(view[_LENGTH_BYTES:end]))
        kinds = [("coins", size) for size in found.coin_bytes]
        kinds += [("shares", SHARES_BYTES)] * len(found.dealers) + [("pairwise_seed", KEY_BYTES)] * len(found.seeded)
        if len(view) - end != sum(size for _, size in kinds):
            raise MalformedMessage("a record of a client contradicts itself", reason=Reason.NOT_CANONICAL)
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
    """Return the step; the coins are those of the record, as far as any are left.

    Raises:
        PeerError, InvalidParameters: what the server said then is refused now.
    """
    if record.state is ClientState.AWAITING_ADVERTISED_KEYS:
        # The keys follow from the recorded coins, here and below.
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
        key_set,
        ClientSet.decode(record.sharers, roster.population),
        record.delivered,
        record.shares,
        record.edge_seeds,
    )
    if not record.contributors:
        return masked
    return Confirmed(masked, ClientSet.decode(record.contributors, roster.population))


def _verified_keys(member: MemberParts, roster: Roster, entries: tuple[bytes, ...]) -> VerifiedKeySet:
    """Read the roster again, whose proof was checked when it came; of the client's own keys nothing is left."""
    position = roster.position_of(member.client)
    if position is None:
        raise MalformedMessage("a record's roster does not name its client", reason=Reason.NOT_CANONICAL)
    neighbours = roster.graph.neighbours(position)
    advertisers = {
        neighbour: verify_entry(entry, roster.clients[neighbour], roster.configuration, member.authority)
        for neighbour, entry in zip(neighbours, entries, strict=True)
    }
    return VerifiedKeySet(roster, position, neighbours, advertisers)
