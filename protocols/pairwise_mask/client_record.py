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
from itertools import accumulate, islice
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.errors import InternalError, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.session.sealed_state import NAME_BYTES, Latch
from secagg.wire import HEADER_BYTES, MessageKind, Reader, Writer

from .client import Answers, ClientState, PairwiseMember, Step
from .configuration import ClientSet, Roster, SessionConfiguration, roster_of, set_bytes
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
_STATES: Final = tuple(ClientState)
_SUSPENDED: Final = frozenset(
    _STATES.index(state)
    for state in ClientState
    if state not in {ClientState.AWAITING_OFFER, ClientState.COMPLETED, ClientState.ABORTED}
)
_MOST_BYTES: Final = (1 << 32) - 1
_LENGTH_BYTES: Final = 8
_HEAD_END: Final = _LENGTH_BYTES + HEADER_BYTES + NAME_BYTES + 4 + 8
_ROOT_BYTES: Final = 32


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
            name=self._name,
            number=self._number,
            state=state,
            client=client,
            offer=self.offer,
            advertised_keys=self.advertised_keys,
            answered=answered,
        )
        match step:
            case Advertised() | Shared():
                record.coins = self.coins.drawn
                record.edges = step.edges if isinstance(step, Shared) else {}
            case Masked() | Confirmed():
                masked = step.masked if isinstance(step, Confirmed) else step
                record.sharers, record.delivered = masked.sharers.encode(), masked.delivered
                record.contributors = step.contributors.encode() if isinstance(step, Confirmed) else b""
                record.shares, record.edge_seeds = masked.shares, masked.edge_seeds
        encoded = record.encode()
        self.coins.wipe()
        return encoded

    def claim(self, suspended: Secret, client: ClientId) -> None:
        """Claim the number of this client's record, once and for all; nothing else of it is read.

        A record that nobody can resume any more is overwritten; that of another client stays as it is.
        """
        name, number, owner = ClientRecord.head_of(suspended)
        if owner != client.value:
            raise Misuse(f"the suspended state is that of another client than {client}")
        try:
            self._latch.claim(name, number)
        except Misuse:
            suspended.wipe()
            raise
        self._name, self._number = name, number + 1

    def resumed(
        self, suspended: Secret, member: PairwiseMember, admit: Callable[[SessionConfiguration], None]
    ) -> tuple[SessionConfiguration, ClientState, Step, Answers]:
        """Overwrite a record that was claimed, and return where it stands, if ``admit`` does not refuse its session."""
        with suspended:
            record = ClientRecord.decode(suspended)
        self.offer, self.advertised_keys = record.offer, record.advertised_keys
        self.coins.replay(record.coins)
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


@dataclass(slots=True, kw_only=True)
class ClientRecord:
    """The memory of one client in one session."""

    name: bytes
    """Name of the session in the latch."""
    number: int
    state: ClientState
    client: ClientId
    offer: bytes = field(repr=False)
    advertised_keys: bytes = field(repr=False)
    answered: Answers = field(repr=False)
    coins: list[Secret] = field(default_factory=list[Secret], repr=False)
    edges: dict[int, bytes] = field(default_factory=dict[int, bytes], repr=False)
    """The client's messages for the edges whose seeds it sends, until the upload."""
    sharers: bytes = b""
    delivered: bytes = bytes(_ROOT_BYTES)
    """The root over the entries that the client was delivered."""
    contributors: bytes = b""
    """Clients for which the client signed; empty if it signed for nobody."""
    shares: dict[int, Secret] = field(default_factory=dict[int, Secret], repr=False)
    edge_seeds: dict[int, Secret] = field(default_factory=dict[int, Secret], repr=False)

    def encode(self) -> Secret:
        """Return the encoding: the public part behind its length, and the secrets in the order of their mention."""
        public = Writer(MessageKind.CLIENT_SNAPSHOT).fixed(self.name, NAME_BYTES).integer(self.number, 4)
        public.fixed(self.client.encode(), 8).integer(_STATES.index(self.state), 1)
        public.variable(self.offer, _MOST_BYTES).variable(self.advertised_keys, _MOST_BYTES)
        _write_answers(self.answered, public)
        public.integer(len(self.coins), 1)
        for coins in self.coins:
            public.integer(len(coins), 1)
        public.integer(len(self.edges), 4)
        for neighbour, edge in self.edges.items():
            public.integer(neighbour, 4).variable(edge, _MOST_BYTES)
        public.variable(self.sharers, _MOST_BYTES).fixed(self.delivered, _ROOT_BYTES)
        public.variable(self.contributors, _MOST_BYTES)
        for held in (self.shares, self.edge_seeds):
            public.integer(len(held), 4)
            for neighbour in held:
                public.integer(neighbour, 4)
        return _joined(public.finish(), [*self.coins, *self.shares.values(), *self.edge_seeds.values()])

    @staticmethod
    def head_of(record: Secret) -> tuple[bytes, int, int]:
        """Return the name of a record's session in the latch, the record's number, and the number of its client."""
        reader = Reader(bytes(record.expose()[_LENGTH_BYTES:_HEAD_END]), MessageKind.CLIENT_SNAPSHOT)
        return reader.fixed(NAME_BYTES), reader.integer(4), reader.integer(8)

    @classmethod
    def decode(cls, record: Secret) -> ClientRecord:
        """Read a record back; its secrets are copies."""
        view = record.expose()
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "big")
        reader = Reader(bytes(view[_LENGTH_BYTES:end]), MessageKind.CLIENT_SNAPSHOT)
        name, number, client = reader.fixed(NAME_BYTES), reader.integer(4), ClientId(reader.integer(8))
        if (state := reader.integer(1)) not in _SUSPENDED:
            raise _malformed()
        offer, advertised_keys, answered = reader.variable(_MOST_BYTES), reader.variable(_MOST_BYTES), _answers(reader)
        coins = [("coins", reader.integer(1)) for _ in range(reader.integer(1))]
        edges = {reader.integer(4): reader.variable(_MOST_BYTES) for _ in range(reader.integer(4))}
        sharers, delivered = reader.variable(_MOST_BYTES), reader.fixed(_ROOT_BYTES)
        contributors = reader.variable(_MOST_BYTES)
        held, seeds = ([reader.integer(4) for _ in range(reader.integer(4))] for _ in range(2))
        reader.finish()
        kinds = [*coins, *(("shares", SHARES_BYTES) for _ in held), *(("pairwise_seed", KEY_BYTES) for _ in seeds)]
        secrets = iter(_cut(view[end:], kinds))
        return cls(
            name=name,
            number=number,
            state=_STATES[state],
            client=client,
            offer=offer,
            advertised_keys=advertised_keys,
            answered=answered,
            coins=list(islice(secrets, len(coins))),
            edges=edges,
            sharers=sharers,
            delivered=delivered,
            contributors=contributors,
            shares=dict(zip(held, secrets, strict=False)),
            edge_seeds=dict(zip(seeds, secrets, strict=False)),
        )

    def wipe(self) -> None:
        for secret in (*self.coins, *self.shares.values(), *self.edge_seeds.values()):
            secret.wipe()


def _cut(view: memoryview, kinds: list[tuple[str, int]]) -> list[Secret]:
    if len(view) != sum(size for _, size in kinds):
        raise _malformed()
    ends = accumulate(size for _, size in kinds)
    return [Secret(kind, view[end - size : end]) for (kind, size), end in zip(kinds, ends, strict=True)]


def _write_answers(answered: Answers, public: Writer) -> None:
    public.integer(len(answered), 1)
    for kind, (digest, reply) in answered.items():
        public.integer(kind, 2).fixed(digest, 32).variable(reply, _MOST_BYTES)


def _answers(reader: Reader) -> Answers:
    answered: Answers = {}
    for _ in range(reader.integer(1)):
        try:
            kind = MessageKind(reader.integer(2))
        except ValueError:
            raise _malformed() from None
        answered[kind] = (reader.fixed(32), reader.variable(_MOST_BYTES))
    return answered


def _joined(public: bytes, secrets: list[Secret]) -> Secret:
    joined, position = bytearray(_LENGTH_BYTES + len(public) + sum(map(len, secrets))), 0
    try:
        for part in (len(public).to_bytes(_LENGTH_BYTES, "big"), public, *(secret.expose() for secret in secrets)):
            joined[position : position + len(part)] = part
            position += len(part)
        return Secret("client record", joined)
    finally:
        overwrite(joined)


def _malformed() -> MalformedMessage:
    return MalformedMessage("a record of a client contradicts itself", reason=Reason.NOT_CANONICAL)


# --- The step of a client that is resumed -----------------------------------------------------------------------------


def _step_of(record: ClientRecord, member: PairwiseMember, configuration: SessionConfiguration, coins: Coins) -> Step:
    """Return the step; the coins are those of the record, as far as any are left.

    Raises:
        PeerError, InvalidParameters: what the server said then is refused now.
    """
    if record.state is ClientState.AWAITING_ADVERTISED_KEYS:
        # The keys follow from the recorded coins, here and below.
        return advertise_keys(member, configuration, coins)[0]
    message = AdvertisedKeys.decode(record.advertised_keys, configuration)
    roster = roster_of(configuration, message.clients, message.root, message.opening)
    configuration.require_protected(member.floors, roster.population)
    if record.state is ClientState.AWAITING_DELIVERED_SHARES:
        advertised, _ = advertise_keys(member, configuration, coins)
        key_set = accept_advertised_keys(member, advertised, message)
        return Shared(key_set, advertised.keys, advertised.self_mask_seed, record.edges)
    key_set = _verified_keys(member, roster, message.entries)
    masked = Masked(
        key_set,
        _set_of(record.sharers, roster.population),
        record.delivered,
        record.shares,
        record.edge_seeds,
    )
    return Confirmed(masked, _set_of(record.contributors, roster.population)) if record.contributors else masked


def _verified_keys(member: PairwiseMember, roster: Roster, entries: tuple[bytes, ...]) -> VerifiedKeySet:
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


def _set_of(encoded: bytes, population: int) -> ClientSet:
    bits = int.from_bytes(encoded, "little")
    if len(encoded) != set_bytes(population) or bits >> population:
        raise MalformedMessage("a record's set has another population", reason=Reason.NOT_CANONICAL)
    return ClientSet(population, bits)
