"""Coded masks as a session: four stages, of which the third holds the updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from threading import RLock
from typing import Final

from secagg.contract import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret, draw_exactly
from secagg.errors import (
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId
from secagg.session.ledger import Spent, values_digest
from secagg.session.roles import LateUpdate, Released, Stage, Subject, Turnout

from .client import Client
from .client import State as ClientState
from .configuration import NONCE_BYTES, Configuration
from .floors import Floors
from .server import Server, State
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


class CodedMaskServerSession(Confined):
    """The server's side; ``Server`` holds the state machine and the mathematics."""

    def __init__(self, server: Server, invited: frozenset[ClientId] | None) -> None:
        """Open the first stage."""
        self._server, self._invited, self._lock = server, invited, RLock()
        self._messages = dict[ClientId, bytes]()
        self._said = dict[ClientId, bytes]()
        """The digest of each answer to the open stage."""
        self._out, self._faults = set[ClientId](), list[PeerError]()
        self._is_closed = self._is_over = False

    @property
    def configuration(self) -> Configuration:
        """What was planned."""
        return self._server.configuration

    @property
    def invitation(self) -> bytes:
        """The offer."""
        return self.configuration.encode()

    @property
    def stage(self) -> Stage | None:
        """The open stage."""
        return None if self._is_closed else STAGES[self._server.state]

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """What clients did wrong so far."""
        with self._lock:
            return tuple(self._faults)

    @property
    def _is_first(self) -> bool:
        return not self._is_closed and self._server.state is State.KEYS

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Who may still answer."""
        with self._lock:
            if self._is_closed:
                return frozenset()
            if self._is_first and self._invited is None:
                return None
            due = (self._invited or frozenset()) if self._is_first else frozenset(self._messages)
            return due - self._said.keys() - self._out

    @property
    def turnout(self) -> Turnout:
        """Whether closing the stage now can succeed."""
        with self._lock:
            awaited = self.awaited
            is_full = len(self._said) == self.configuration.population
            if self._is_closed or is_full or (awaited is not None and not awaited):
                return Turnout.COMPLETE
            return Turnout.ENOUGH if len(self._said) >= self.configuration.target else Turnout.TOO_FEW

    def _is_in(self, client: ClientId) -> bool:
        return client not in self._out and (self._invited is None or client in self._invited)

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open stage's message for a client."""
        with self._lock:
            if self._is_closed or not self._is_in(client):
                return None
            return self.invitation if self._is_first else self._messages.get(client)

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an answer."""
        digest = hashlib.sha256(message).digest()
        with self._lock:
            if not self._is_closed and compare_digest(self._said.get(sender, b""), digest):
                return
            if not self._is_in(sender):
                raise PeerMisbehaved(
                    f"{sender} is not invited, or has left", reason=Reason.NOT_ELIGIBLE, culprits={sender}
                )
            if self._is_closed:
                raise UnexpectedMessage(expected="nothing: the last stage is closed", received="an answer")
            try:
                self._server.receive(sender, message)
            except UnexpectedMessage:
                raise
            except PeerError as error:
                self._faults.append(error)
                if sender not in self._said:
                    self._out.add(sender)
                raise
            self._said[sender] = digest

    def drop(self, client: ClientId) -> None:
        """Await a client no more; what it uploaded stays."""
        with self._lock:
            self._out.add(client)

    def close_stage(self) -> None:
        """Await nobody else, and open the next stage if there is one."""
        with self._lock:
            if self._is_closed:
                raise Misuse("there is no stage to close")
            try:
                if self._server.state is State.ANSWERS:
                    self._server.require_answers()
                    self._is_closed = True
                else:
                    self._messages = self._server.close_stage()
            except ThresholdNotMet:
                self.abort()
                raise
            self._said.clear()

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Remove the sum of the masks and return the sum."""
        del progress  # One product of small matrices, whatever the number of clients.
        with self._lock:
            if not self._is_closed or self._is_over:
                raise Misuse("close the last stage first; a session releases once")
            counted = self._server.survivors
            try:
                aggregate = self._server.open()
            finally:
                self.abort()
            return Released(
                aggregate=aggregate,
                counted=counted,
                left_out={},
                revealed=frozenset({counted}),
                unbounded=aggregate.layout.ring_positions,
            )

    def abort(self) -> None:
        """End the session and wipe it."""
        with self._lock:
            if not self._is_over:
                self._is_over = self._is_closed = True
                self._messages.clear()
                self._server.wipe()

    def snapshot(self) -> Secret | None:
        """Return nothing: a sum that this process forgets is over."""
        return None

    def __repr__(self) -> str:
        return f"<CodedMaskServerSession {self._server!r}>"


# --- The client -------------------------------------------------------------------------------------------------------


class CodedMaskMember(Confined):
    """A client of sums with coded masks; sessions that it suspends stay in its memory, and end with it."""

    def __init__(self, client: ClientId, *, floors: Floors, coins: Coins, charge: Callable[[Spent], None]) -> None:
        """Prepare to join sessions.

        Args:
            charge: told of an update before anything of it leaves; raises to refuse, and is durable when it returns, as
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
        """Make the update and charge the ledger; all that can be checked without it was."""
        if self._update is None:
            raise InvalidParameters("the message that an upload answers brings the model, and this one did not")
        made = self._update.take()
        if made.model_digest != configuration.model_digest:
            raise InvalidParameters(
                "the sum is about another model than the update was trained from", reason=Reason.BELOW_FLOOR
            )
        configuration.require_fitting(made.payload, made.weight)
        spent = Spent(configuration.task, configuration.round_number, values_digest(made.payload), made.model_digest)
        self._member.charge(spent)
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
