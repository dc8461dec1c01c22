"""A client of the pairwise protocol that can be put aside between two messages, and gone on with in another process.

``snapshot`` hands out one ``Secret`` with all that a client holds, and ``restore`` makes the client again. What is
public in it (the offer, the roster that was shown) is read and checked again by the functions of the rounds; of the
secrets there are no more than the client itself still has: before it shares keys the three coins from which they
follow, before it uploads also its input, after the upload its neighbours' shares alone.

Security: a snapshot is a copy, which a ``Client`` never makes of itself. Whoever keeps snapshots must see to it that of
    each one a client is made at most once, and only of the newest; ``sealed_state`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from secagg.contract import Layout, Payload, RingSegment
from secagg.entropy import Coins, SystemCoins
from secagg.errors import InternalError, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.identity import Authority, Certificate, SigningKey
from secagg.key_agreement import KEY_BYTES
from secagg.parameters import ClientFloors
from secagg.protocols.pairwise_mask.advertisement import verify_entry
from secagg.protocols.pairwise_mask.client import Client, Step
from secagg.protocols.pairwise_mask.client_set import ClientSet
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.member import ClientInput, SessionTerms
from secagg.protocols.pairwise_mask.roster import roster_of
from secagg.protocols.pairwise_mask.round0_advertise_keys import (
    Advertised,
    AdvertisedKeys,
    VerifiedKeySet,
    accept_advertised_keys,
    advertise_keys,
)
from secagg.protocols.pairwise_mask.round1_share_keys import Shared
from secagg.protocols.pairwise_mask.round2_masked_input import Masked
from secagg.protocols.pairwise_mask.round3_consistency_check import Confirmed
from secagg.protocols.pairwise_mask.suites import SHARES_BYTES
from secagg.protocols.pairwise_mask.transitions import ClientState
from secagg.secret import Confined, Secret, draw_exactly, overwrite
from secagg.wire import MessageKind, Reader, Writer

SNAPSHOT_KIND: Final = 27
_STATES: Final = tuple(ClientState)
_MOST_BYTES: Final = (1 << 32) - 1
_LAYOUT_OF_NOTHING: Final = Layout((RingSegment(1, 1),))
_NOTHING: Final = Payload(_LAYOUT_OF_NOTHING, (_LAYOUT_OF_NOTHING.segments[0].ring.zeros(1),))
"""In the place of an input that is elsewhere, or spent."""


class RecordedCoins(Confined):
    """Coins that are remembered until told otherwise, and drawn again in the same order from what was remembered."""

    def __init__(self, coins: Coins, recorded: Iterable[Secret] = ()) -> None:
        self.coins = coins
        self._record = list(recorded)
        self._replayed = 0
        self._records = True

    def draw(self, count: int) -> bytearray:
        """Return the next coins."""
        if self._replayed < len(self._record):
            drawn = bytearray(self._record[self._replayed].expose())
            self._replayed += 1
            if len(drawn) != count:
                raise InternalError("a client draws other coins than when it was put aside")
            return drawn
        drawn = draw_exactly(count, self.coins)
        if self._records:
            self._record.append(Secret("coins", drawn))
            self._replayed += 1
        return drawn

    def stop(self) -> None:
        """Remember nothing from here on; what is drawn for sharing is never needed again."""
        self._records = False

    @property
    def record(self) -> tuple[Secret, ...]:
        """What was drawn."""
        return tuple(self._record)

    def wipe(self) -> None:
        """Overwrite what was drawn."""
        for secret in self._record:
            secret.wipe()
        self._record.clear()
        self._replayed = 0

    def __repr__(self) -> str:
        return f"<RecordedCoins, {len(self._record)} draws>"


class ResumableClient(Client):
    """A client that can be put aside and gone on with; see the module."""

    def __init__(  # noqa: PLR0913 -- what a client brings into a session
        self,
        client: ClientId,
        payload: Payload,
        weight: int,
        *,
        floors: ClientFloors,
        capacity: int,
        coins: Coins | None = None,
        recorded: Iterable[Secret] = (),
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        terms: SessionTerms | None = None,
    ) -> None:
        """Prepare to take part; the arguments are those of ``Client``."""
        self.coins = RecordedCoins(coins or SystemCoins(), recorded)
        """Those from which the client's own keys follow, until it has uploaded."""
        super().__init__(
            client,
            ClientInput(payload, weight),
            floors=floors,
            capacity=capacity,
            coins=self.coins,
            authority=authority,
            signing_key=signing_key,
            certificate=certificate,
            terms=terms,
        )
        self._kept: tuple[Payload, int] | None = (payload, weight)
        self._apart: tuple[Secret, int] | None = None
        self._offer = b""
        self._advertised_keys = b""

    def _answer(self, kind: MessageKind, message: bytes) -> tuple[list[bytes], ClientState]:
        answer = super()._answer(kind, message)
        match kind:
            case MessageKind.SESSION_OFFER:
                self._offer = message
                self.coins.stop()
            case MessageKind.ADVERTISED_KEYS:
                self._advertised_keys = message
            case MessageKind.DELIVERED_SHARES:
                # From here on nothing of the client's own is left, as in every client.
                self._forget()
            case _:
                pass
        return answer

    def _abort(self) -> None:
        super()._abort()
        self._forget()

    def _forget(self) -> None:
        self.coins.wipe()
        self._kept = None
        if self._apart is not None:
            self._apart[0].wipe()
            self._apart = None

    # --- Putting aside ------------------------------------------------------------------------------------------------

    def put_input_apart(self, put: Callable[[bytes], Secret | None]) -> None:
        """Have the input kept elsewhere until it is uploaded, so that snapshots hold no more of it than a key.

        Args:
            put: seals the encoded input and keeps it; returns the key of 32 bytes, or nothing if it does not.
        """
        if self._kept is not None and (key := put(self._kept[0].encode())) is not None:
            self._apart, self._kept = (key, self._kept[1]), None

    def snapshot(self) -> Secret:
        """Return all that ``restore`` takes; go on with this object no more.

        Raises:
            Misuse: the client has not advertised its keys yet, or has nothing left to do.
        """
        if self._step is None:
            raise Misuse(f"a client that is {self._state} holds nothing that could be gone on with")
        with self._lock:
            public, secrets = Writer(SNAPSHOT_KIND), list[Secret | bytes]()
            public.integer(_STATES.index(self._state), 1).fixed(self.client.encode(), 8)
            public.variable(self._offer, _MOST_BYTES).variable(self._advertised_keys, _MOST_BYTES)
            public.integer(len(self._answered), 1)
            for kind, (digest, replies) in self._answered.items():
                # The upload is not kept to be given again; it is as large as the model.
                kept = [] if kind is MessageKind.DELIVERED_SHARES else replies
                public.integer(kind, 2).fixed(digest, 32).integer(len(kept), 1)
                for reply in kept:
                    public.variable(reply, _MOST_BYTES)
            self._write_step(self._step, public, secrets)
            return _joined(public.finish(), secrets)

    def _write_step(self, step: Step, public: Writer, secrets: list[Secret | bytes]) -> None:
        match step:
            case Advertised() | Shared():
                secrets.append(self._write_input(public))
                record = self.coins.record
                public.integer(len(record), 1)
                for coins in record:
                    public.integer(len(coins), 1)
                secrets += record
                edges = step.edges if isinstance(step, Shared) else {}
                public.integer(len(edges), 4)
                for neighbour, edge in edges.items():
                    public.integer(neighbour, 4).variable(edge, _MOST_BYTES)
            case Masked():
                _write_masked(step, None, public, secrets)
            case Confirmed():
                _write_masked(step.masked, step.contributors, public, secrets)

    def _write_input(self, public: Writer) -> Secret | bytes:
        """Return the input, or the key to it."""
        if self._apart is not None:
            key, weight = self._apart
            public.integer(weight, 8).integer(1, 1).integer(len(key), 8)
            return key
        if self._kept is None:
            raise InternalError("a client that has not uploaded lacks its input")
        payload, weight = self._kept
        encoded = payload.encode()
        public.integer(weight, 8).integer(0, 1).integer(len(encoded), 8)
        return encoded

    # --- Going on -----------------------------------------------------------------------------------------------------

    @classmethod
    def restore(  # noqa: PLR0913 -- what a client brings into a session
        cls,
        snapshot: Secret,
        *,
        floors: ClientFloors,
        take_input: Callable[[Secret], bytes] | None = None,
        coins: Coins | None = None,
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
    ) -> ResumableClient:
        """Make the client again that was put aside, and overwrite the snapshot.

        Args:
            take_input: returns the encoded input that is kept apart, once, when it is uploaded.

        Raises:
            MalformedMessage: it is no snapshot.
        """
        with snapshot:
            view = snapshot.expose()
            (length,) = struct.unpack(">Q", view[:8])
            reader, secrets = Reader(bytes(view[8 : 8 + length]), SNAPSHOT_KIND), view[8 + length :]
            state = _STATES[reader.integer(1)]
            client_id = ClientId(reader.integer(8))
            offer, advertised = reader.variable(_MOST_BYTES), reader.variable(_MOST_BYTES)
            answered = _read_answers(reader)
            configuration = SessionConfiguration.decode(offer)
            if state in (ClientState.AWAITING_ADVERTISED_KEYS, ClientState.AWAITING_DELIVERED_SHARES):
                weight, is_apart, size = reader.integer(8), reader.integer(1), reader.integer(8)
                payload = _NOTHING if is_apart else Payload.decode(bytes(secrets[:size]), configuration.layout)
                apart = (Secret("input key", secrets[:size]), weight) if is_apart else None
                recorded, position = list[Secret](), size
                for _ in range(reader.integer(1)):
                    size = reader.integer(1)
                    recorded.append(Secret("coins", secrets[position : position + size]))
                    position += size
            else:
                payload, weight, apart, recorded = _NOTHING, 1, None, list[Secret]()
            restored = cls(
                client_id,
                payload,
                weight,
                floors=floors,
                capacity=configuration.maximum_total_weight,
                coins=coins,
                recorded=recorded,
                authority=authority,
                signing_key=signing_key,
                certificate=certificate,
            )
            if apart is not None and take_input is not None:
                restored._apart, restored._kept = apart, None
                restored._input = _InputApart(apart, take_input, configuration.layout)
            restored._offer, restored._advertised_keys = offer, advertised
            restored._configuration, restored._state, restored._answered = configuration, state, answered
            restored._step = restored._read_step(reader, secrets)
            reader.finish()
            return restored

    def _read_step(self, reader: Reader, secrets: memoryview) -> Step:
        if self._configuration is None:
            raise InternalError("a client is restored without its configuration")
        if self._state not in (ClientState.AWAITING_ADVERTISED_KEYS, ClientState.AWAITING_DELIVERED_SHARES):
            self._input.spend()
            self._forget()
            return _read_masked(self._verified_keys(self._configuration), reader, secrets)
        edges = {reader.integer(4): reader.variable(_MOST_BYTES) for _ in range(reader.integer(4))}
        # The keys follow from the recorded coins, by the very function that drew them.
        advertised, _ = advertise_keys(self._member, self._configuration)
        self.coins.stop()
        if self._state is ClientState.AWAITING_ADVERTISED_KEYS:
            return advertised
        message = AdvertisedKeys.decode(self._advertised_keys, self._configuration)
        key_set = accept_advertised_keys(self._member, advertised, message)
        return Shared(key_set, advertised.keys, advertised.self_mask_seed, edges)

    def _verified_keys(self, configuration: SessionConfiguration) -> VerifiedKeySet:
        """Read the roster again, whose proof was checked when it came; of the client's own keys nothing is left."""
        message = AdvertisedKeys.decode(self._advertised_keys, configuration)
        roster = roster_of(configuration, message.clients, message.root, message.opening)
        position = roster.position_of(self.client)
        if position is None:
            raise _malformed()
        neighbours = roster.graph.neighbours(position)
        advertisers = {
            neighbour: verify_entry(entry, roster.clients[neighbour], configuration, self._member.authority)
            for neighbour, entry in zip(neighbours, message.entries, strict=True)
        }
        return VerifiedKeySet(roster, position, neighbours, advertisers)


# --- Private ----------------------------------------------------------------------------------------------------------


class _InputApart(ClientInput):
    """An input that is fetched when it is spent."""

    def __init__(self, apart: tuple[Secret, int], take: Callable[[Secret], bytes], layout: Layout) -> None:
        super().__init__(_NOTHING, apart[1])
        self._apart = apart
        self._take = take
        self._layout = layout

    def spend(self) -> tuple[Payload, int]:
        super().spend()
        key, weight = self._apart
        return Payload.decode(self._take(key), self._layout), weight


def _write_masked(step: Masked, contributors: ClientSet | None, public: Writer, secrets: list[Secret | bytes]) -> None:
    members = step.sharers.encode()
    public.fixed(members, len(members)).integer(contributors is not None, 1)
    if contributors is not None:
        members = contributors.encode()
        public.fixed(members, len(members))
    for held in (step.shares, step.edge_seeds):
        public.integer(len(held), 4)
        for neighbour, secret in held.items():
            public.integer(neighbour, 4)
            secrets.append(secret)


def _read_masked(key_set: VerifiedKeySet, reader: Reader, secrets: memoryview) -> Masked | Confirmed:
    population = key_set.roster.population
    sharers = ClientSet.read(reader, population)
    contributors = ClientSet.read(reader, population) if reader.integer(1) else None
    held, position = list[dict[int, Secret]](), 0
    for name, size in (("shares", SHARES_BYTES), ("pairwise_seed", KEY_BYTES)):
        held.append({})
        for _ in range(reader.integer(4)):
            held[-1][reader.integer(4)] = Secret(name, secrets[position : position + size])
            position += size
    masked = Masked(key_set, sharers, held[0], held[1])
    return masked if contributors is None else Confirmed(masked, contributors)


def _read_answers(reader: Reader) -> dict[MessageKind, tuple[bytes, list[bytes]]]:
    answered = dict[MessageKind, tuple[bytes, list[bytes]]]()
    for _ in range(reader.integer(1)):
        kind, digest = MessageKind(reader.integer(2)), reader.fixed(32)
        answered[kind] = (digest, [reader.variable(_MOST_BYTES) for _ in range(reader.integer(1))])
    return answered


def _joined(public: bytes, secrets: list[Secret | bytes]) -> Secret:
    parts = [part if isinstance(part, bytes) else part.expose() for part in secrets]
    joined = bytearray(8 + len(public) + sum(map(len, parts)))
    joined[:8] = struct.pack(">Q", len(public))
    position = 8
    for part in (public, *parts):
        joined[position : position + len(part)] = part
        position += len(part)
    try:
        return Secret("client state", joined)
    finally:
        overwrite(joined)


def _malformed() -> MalformedMessage:
    return MalformedMessage("a snapshot of a client contradicts itself", reason=Reason.NOT_CANONICAL)
