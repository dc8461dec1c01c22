"""Coded masks as a session: four stages, of which the third holds the updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from secagg.contract import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret, draw_exactly
from secagg.errors import (
    InvalidParameters,
    Misuse,
    PeerError,
    Reason,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId
from secagg.session.ledger import Spent
from secagg.session.roles import LateUpdate, Released, Stage, Subject
from secagg.session.stages import Checked, StagedServerSession

from .client import Client
from .client import State as ClientState
from .configuration import NONCE_BYTES, Configuration
from .floors import Floors
from .server import Content, Server, State
from .settings import CodedMaskSettings

STAGES: Final[dict[State, Stage]] = {
    state: Stage(name=state.value, takes_update=state is State.INPUTS) for state in State if state is not State.DONE
}
_HANDLE_BYTES: Final = 16


# --- The server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMaskHelpers:
    """What a server works with; it has no helper that it would have to ask."""

    coins: Coins


def open_session(
    subject: Subject, settings: CodedMaskSettings, invited: frozenset[ClientId] | None, helpers: CodedMaskHelpers
) -> CodedMaskServerSession:
    """Begin a session.

    Raises:
        InvalidParameters, CapacityExceeded: as for ``CodedMaskSettings.plan``.
    """
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("settings.population says how many clients are invited, unless they are named")
    nonce = bytes(draw_exactly(NONCE_BYTES, helpers.coins))
    return CodedMaskServerSession(Server(settings.plan(subject, population, nonce)), invited)


class CodedMaskServerSession(StagedServerSession[Content]):
    """The server's side; ``Server`` holds the mathematics."""

    def __init__(self, server: Server, invited: frozenset[ClientId] | None) -> None:
        """Open the first stage."""
        self._server, configuration = server, server.configuration
        super().__init__(STAGES[State.KEYS], configuration.encode(), invited, configuration.target)

    @property
    def configuration(self) -> Configuration:
        """What was planned."""
        return self._server.configuration

    def _is_full(self) -> bool:
        return super()._is_full() or len(self._said) == self.configuration.population

    def _check(self, sender: ClientId, message: bytes) -> Checked[Content]:
        del sender  # Nobody signs.
        return Checked(self._server.read(message), hashlib.sha256(message).digest())

    def _take(self, sender: ClientId, content: Content) -> None:
        self._server.take(sender, content)

    def _next(self) -> tuple[Stage, Mapping[ClientId, bytes]] | None:
        if self._server.state is State.ANSWERS:
            return None
        messages = self._server.close_stage()
        return STAGES[self._server.state], messages

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # One product of small matrices, whatever the number of clients.
        aggregate, counted = self._server.open(), self._server.survivors
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            unbounded=aggregate.layout.ring_positions,
        )

    def _wipe(self) -> None:
        self._server.wipe()


# --- The client -------------------------------------------------------------------------------------------------------


class CodedMaskMember(Confined):
    """A client of sums with coded masks; sessions that it suspends stay in its memory, and end with it."""

    def __init__(self, client: ClientId, *, floors: Floors, coins: Coins, charge: Callable[[Spent], None]) -> None:
        """Prepare to join sessions.

        Args:
            charge: told of an upload before its update is made; raises to refuse, and is durable when it returns, as
                ``SpentUpdates.charge`` is.
        """
        self.client, self.floors, self.coins, self.charge = client, floors, coins, charge
        self._suspended = dict[bytes, Client]()

    def join(
        self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None
    ) -> CodedMaskClientSession:
        """Begin, or go on with what was suspended.

        Raises:
            Misuse: it was resumed before, or by another process: a client that restarts has dropped out.
        """
        if suspended is None:
            return CodedMaskClientSession(self, subject, update)
        handle = bytes(suspended.expose())
        suspended.wipe()
        if (client := self._suspended.pop(handle, None)) is None:
            raise Misuse(
                "what was suspended was resumed before, or its process has ended; take part in the next sum",
                reason=Reason.ALREADY_SPENT,
            )
        try:
            client.configuration.require_subject(subject)
        except SecAggError:
            client.wipe()
            raise
        return CodedMaskClientSession(self, subject, update, client)

    def keep(self, client: Client) -> Secret:
        """Keep a client for ``join``, and return the handle that it is asked for by."""
        handle = Secret.random("coded-mask handle", _HANDLE_BYTES, self.coins)
        self._suspended[bytes(handle.expose())] = client
        return handle

    def forget(self) -> None:
        """Wipe what was suspended and never resumed."""
        while self._suspended:
            self._suspended.popitem()[1].wipe()


class CodedMaskClientSession(Confined):
    """A client's side; ``Client`` holds the state machine and the mathematics."""

    def __init__(
        self, member: CodedMaskMember, subject: Subject, update: LateUpdate | None, client: Client | None = None
    ) -> None:
        self._member, self._subject, self._update, self._machine = member, subject, update, client
        self._is_over = False
        if client is not None:
            client.source = self._take

    @property
    def client(self) -> ClientId:
        """Who this is."""
        return self._member.client

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """Return nothing: a piece that does not open ends the session."""
        return ()

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message."""
        if self._is_over:
            raise Misuse("the client has left this session", reason=Reason.ALREADY_SPENT)
        if self._machine is None:
            configuration = Configuration.decode(message)
            self._member.floors.admit(configuration)
            configuration.require_subject(self._subject)
            self._machine = Client(self.client, configuration, self._take, self._member.coins)
            return self._machine.advertisement
        try:
            return self._machine.receive(message)
        except UnexpectedMessage:
            raise
        except BaseException:
            # Also where the ledger cannot be written, or training fails.
            self.abort()
            raise

    def _take(self, configuration: Configuration) -> tuple[Payload, int]:
        """Charge the ledger and make the update; nothing is refused after that."""
        if self._update is None:
            raise InvalidParameters("the message that an upload answers brings the model, and this one did not")
        model = self._update.model_for(self._subject)
        if model != configuration.model_digest:
            raise InvalidParameters(
                "the sum is about another model than the update was trained from", reason=Reason.BELOW_FLOOR
            )
        self._member.charge(Spent(configuration.task, configuration.round_number, model))
        made = self._update.take(configuration.layout, range(1, configuration.maximum_weight + 1))
        return made.payload, made.weight

    def suspend(self) -> Secret | None:
        """Return a handle, and answer no more; what it stands for stays in the member's memory."""
        client, self._machine, self._is_over = self._machine, None, True
        if client is None or client.state is ClientState.DONE:
            return None
        return self._member.keep(client)

    def abort(self) -> None:
        """Leave and wipe; an update that was taken stays spent."""
        self._is_over = True
        if self._machine is not None:
            self._machine.wipe()

    def __repr__(self) -> str:
        return f"<CodedMaskClientSession of {self.client}>"
