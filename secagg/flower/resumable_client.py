"""A client of the pairwise protocol that can be put aside between two messages, and gone on with in another process.

``snapshot`` hands out one ``Secret`` with all that a client holds, and ``restore`` makes the client again. What is
public in it (the offer, the roster that was shown) is read and checked again by the functions of the rounds; of the
secrets there are no more than the client itself still has: before it shares keys the three coins from which they
follow, after the upload its neighbours' shares alone. Its input is in none of them: it is made when it is uploaded.

Security: a snapshot is a copy, which a ``Client`` never makes of itself. Whoever keeps snapshots must see to it that of
    each one a client is made at most once, and only of the newest; ``sealed_state`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InternalError, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask.advertisement import verify_entry
from secagg.protocols.pairwise_mask.client import Client, Step
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.floors import ClientFloors
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
from secagg.protocols.pairwise_mask.transitions import ClientState
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.wire import MessageKind, Reader, Writer

from .client_snapshot import MOST_BYTES, join_parts, read_answers, read_masked, split_parts, write_answers, write_masked
from .recorded_coins import RecordedCoins

_STATES: Final = tuple(ClientState)
_BEFORE_UPLOAD: Final = (ClientState.AWAITING_ADVERTISED_KEYS, ClientState.AWAITING_DELIVERED_SHARES)
_LAYOUT_OF_NOTHING: Final = Layout((RingSegment(1, 1),))
_NOTHING: Final = Payload(_LAYOUT_OF_NOTHING, (_LAYOUT_OF_NOTHING.segments[0].ring.zeros(1),))
"""In the place of an input that is still to be made."""

TakeInput = Callable[[], tuple[Payload, int]]
"""Makes the encoded update and its weight; called once, when everything is ready for the upload."""


class ResumableClient(Client):
    """A client that can be put aside and gone on with; see the module."""

    def __init__(  # noqa: PLR0913 -- what a client brings into a session
        self,
        client: ClientId,
        *,
        floors: ClientFloors,
        capacity: int,
        take_input: TakeInput | None = None,
        coins: Coins | None = None,
        recorded: Iterable[Secret] = (),
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        terms: SessionTerms | None = None,
    ) -> None:
        """Prepare to take part; the arguments are those of ``Client``, but for the input.

        Args:
            take_input: makes the input; an object that is put aside before the upload needs none.
        """
        self.coins = RecordedCoins(coins or SystemCoins(), recorded)
        """Those from which the client's own keys follow, until it has uploaded."""
        super().__init__(
            client,
            ClientInput(_NOTHING),
            floors=floors,
            capacity=capacity,
            coins=self.coins,
            authority=authority,
            signing_key=signing_key,
            certificate=certificate,
            terms=terms,
        )
        self._input = _LateInput(take_input)
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

    # --- Putting aside ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Secret:
        """Return all that ``restore`` takes; go on with this object no more.

        Raises:
            Misuse: the client has not advertised its keys yet, or has nothing left to do.
        """
        if self._step is None:
            raise Misuse(f"a client that is {self._state} holds nothing that could be gone on with")
        with self._lock:
            public, secrets = Writer(MessageKind.CLIENT_SNAPSHOT), list[Secret | bytes]()
            public.integer(_STATES.index(self._state), 1).fixed(self.client.encode(), 8)
            public.variable(self._offer, MOST_BYTES).variable(self._advertised_keys, MOST_BYTES)
            write_answers(self._answered, public)
            self._write_step(self._step, public, secrets)
            return join_parts(public.finish(), secrets)

    def _write_step(self, step: Step, public: Writer, secrets: list[Secret | bytes]) -> None:
        match step:
            case Advertised() | Shared():
                record = self.coins.record
                public.integer(len(record), 1)
                for coins in record:
                    public.integer(len(coins), 1)
                secrets += record
                edges = step.edges if isinstance(step, Shared) else {}
                public.integer(len(edges), 4)
                for neighbour, edge in edges.items():
                    public.integer(neighbour, 4).variable(edge, MOST_BYTES)
            case Masked():
                write_masked(step, None, public, secrets)
            case Confirmed():
                write_masked(step.masked, step.contributors, public, secrets)

    # --- Going on -----------------------------------------------------------------------------------------------------

    @classmethod
    def restore(  # noqa: PLR0913 -- what a client brings into a session
        cls,
        snapshot: Secret,
        *,
        floors: ClientFloors,
        take_input: TakeInput | None = None,
        coins: Coins | None = None,
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
    ) -> ResumableClient:
        """Make the client again that was put aside, and overwrite the snapshot.

        Raises:
            MalformedMessage: it is no snapshot.
        """
        with snapshot:
            reader, secrets = split_parts(snapshot.expose())
            state = _STATES[reader.integer(1)]
            client_id = ClientId(reader.integer(8))
            offer, advertised = reader.variable(MOST_BYTES), reader.variable(MOST_BYTES)
            answered = read_answers(reader)
            configuration = SessionConfiguration.decode(offer)
            recorded, position = list[Secret](), 0
            if state in _BEFORE_UPLOAD:
                for _ in range(reader.integer(1)):
                    size = reader.integer(1)
                    recorded.append(Secret("coins", secrets[position : position + size]))
                    position += size
            restored = cls(
                client_id,
                floors=floors,
                capacity=configuration.maximum_total_weight,
                take_input=take_input,
                coins=coins,
                recorded=recorded,
                authority=authority,
                signing_key=signing_key,
                certificate=certificate,
            )
            restored._offer, restored._advertised_keys = offer, advertised
            restored._configuration, restored._state, restored._answered = configuration, state, answered
            restored._step = restored._read_step(reader, secrets)
            reader.finish()
            return restored

    def _read_step(self, reader: Reader, secrets: memoryview) -> Step:
        if self._configuration is None:
            raise InternalError("a client is restored without its configuration")
        if self._state not in _BEFORE_UPLOAD:
            self._forget()
            return read_masked(self._verified_keys(self._configuration), reader, secrets)
        self._input.require_fits(self._configuration)
        edges = {reader.integer(4): reader.variable(MOST_BYTES) for _ in range(reader.integer(4))}
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


class _LateInput(ClientInput):
    """An input that is made when it is spent."""

    def __init__(self, take: TakeInput | None) -> None:
        super().__init__(_NOTHING)
        self._take = take
        self._configuration: SessionConfiguration | None = None

    def require_fits(self, configuration: SessionConfiguration) -> None:
        """Leave the layout to whoever makes the input; what is made is held to the session."""
        if self.is_spent:
            super().require_fits(configuration)
        self._configuration = configuration

    def spend(self) -> tuple[Payload, int]:
        super().spend()
        if self._take is None or self._configuration is None:
            raise InternalError("there is nobody to make the input")
        payload, weight = self._take()
        ClientInput(payload, weight).require_fits(self._configuration)
        return payload, weight


def _malformed() -> MalformedMessage:
    return MalformedMessage("a snapshot of a client contradicts itself", reason=Reason.NOT_CANONICAL)
