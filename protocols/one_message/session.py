"""One message a client as a session: one stage where holders stand, three or four where clients hold."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Final

from secagg.contract.pieces import Adder, Cut, LocalSum
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
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
from secagg.parameters import SecurityMode
from secagg.privacy.client_noise import ClientNoise
from secagg.session.roles import Released, Stage, Subject, Turnout
from secagg.session.sockets.connection import AskAll
from secagg.session.sockets.frames import decode_refusal
from secagg.wire import MessageKind, message_kind

from .buffers.answered import Answered
from .configuration import SUM_ID_BYTES, Agreement, noise_of
from .epoch import EpochRecord
from .messages import Upload
from .plan import OneMessageSettings, plan_offer
from .server import Opened, Server

UPLOAD: Final = Stage(name="upload", takes_update=True)
DELIVER: Final = Stage(name="deliver", takes_update=False)
CERTIFY: Final = Stage(name="certify", takes_update=False)
OPEN: Final = Stage(name="open", takes_update=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageHelpers:
    """The epoch that runs, and how its holders are reached."""

    record: EpochRecord
    keys: tuple[bytes, ...]
    """What every holder published for the epoch, in their order."""
    coins: Coins
    ask_all: AskAll | None = None
    """Reaches standing holders by position; without it the holders are clients, whose ids are the holders' numbers."""
    adding: Callable[[Cut], Adder] = LocalSum
    """Who adds the uploads: this process, or ``secagg.scale``."""
    answered: Answered = field(default_factory=Answered)
    """Who uploaded for which model; the same for all buffers of an epoch."""


def open_session(
    subject: Subject,
    settings: OneMessageSettings,
    invited: frozenset[ClientId] | None,
    helpers: OneMessageHelpers,
) -> OneMessageServerSession:
    """Begin a sum of the epoch that runs.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
        CapacityExceeded: so many clients could weigh more than the codec can decode.
        PeerError: the epoch does not verify.
        ThresholdNotMet: too few standing holders are there, naming who is missing; nobody was asked for anything.
    """
    capacity = settings.capacity or (None if invited is None else len(invited))
    if capacity is None:
        raise InvalidParameters("settings.capacity says how many upload at most, unless the invited are named")
    # Every client refuses more; nobody is invited to that.
    require_capacity(capacity * settings.maximum_weight, subject.capacity)
    sum_id = bytes(draw_exactly(SUM_ID_BYTES, helpers.coins))
    offer = plan_offer(
        helpers.record,
        helpers.keys,
        subject,
        sum_id=sum_id,
        capacity=capacity,
        minimum_cohort=settings.minimum_cohort,
        corrupted_clients=settings.corrupted,
        maximum_weight=settings.maximum_weight,
        bounds=settings.bounds,
        noise=settings,
    )
    noise_of(offer.configuration, settings)
    return OneMessageServerSession(Server(offer, sum_id, helpers.adding), settings, invited, helpers.ask_all)


class OneMessageServerSession(Confined):
    """The server's side; ``Server`` holds the state machine and the mathematics."""

    def __init__(
        self,
        server: Server,
        settings: OneMessageSettings,
        invited: frozenset[ClientId] | None,
        ask_all: AskAll | None,
    ) -> None:
        self._server, self._settings, self._invited, self._ask_all = server, settings, invited, ask_all
        numbers = server.agreement.record.holders if ask_all is None else ()
        self._position_of = {ClientId(holder.number): position for position, holder in enumerate(numbers)}
        certify = [CERTIFY] if server.agreement.record.quorum else []
        self._stages = [UPLOAD, *([DELIVER, *certify, OPEN] if self._position_of else [])]
        self._requests = dict[int, bytes]()
        self._out, self._lock, self._is_over = set[ClientId](), RLock(), False
        if ask_all is not None:
            self._ask(server.introduce())
            server.require_holders()

    @property
    def agreement(self) -> Agreement:
        """What the parties agree on."""
        return self._server.agreement

    @property
    def noise(self) -> ClientNoise | None:
        """What the clients add."""
        return noise_of(self.agreement.configuration, self._settings)

    @property
    def invitation(self) -> bytes:
        """The offer."""
        return self._server.offer

    @property
    def stage(self) -> Stage | None:
        """The open stage."""
        return self._stages[0] if self._stages else None

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """What clients and holders did wrong so far."""
        return tuple(self._server.faults)

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Who may still answer."""
        with self._lock:
            if self.stage is None:
                return frozenset()
            if self.stage is UPLOAD:
                return None if self._invited is None else self._invited - self._server.taken - self._out
            asked = {client for client, position in self._position_of.items() if position in self._requests}
            return frozenset(asked) - {client for client in asked if self._has_said(client)} - self._out

    def _has_said(self, client: ClientId) -> bool:
        return self._position_of[client] in self._server.heard

    @property
    def turnout(self) -> Turnout:
        """Whether closing the stage now can succeed."""
        with self._lock:
            if self.stage is None:
                return Turnout.COMPLETE
            if self.stage is UPLOAD:
                heard, needed = len(self._server.taken), self._settings.minimum_cohort
                is_complete = self._invited is not None and len(self._server.taken | self._out) >= len(self._invited)
            else:
                heard, needed = len(self._server.heard), self._server.needed
                is_complete = not self.awaited
            if is_complete:
                return Turnout.COMPLETE
            return Turnout.ENOUGH if heard >= needed else Turnout.TOO_FEW

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open stage's message for a client: the offer, or what is asked of it as a holder."""
        with self._lock:
            if self.stage is None or client in self._out:
                return None
            if self.stage is UPLOAD:
                return self.invitation if self._invited is None or client in self._invited else None
            position = self._position_of.get(client)
            return None if position is None else self._requests.get(position)

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an upload, or what a client of the committee says as a holder."""
        with self._lock:
            if self.stage is None:
                raise UnexpectedMessage(expected="nothing: the last stage is closed", received="a message")
            if sender in self._out or (self._invited is not None and sender not in self._invited):
                raise PeerMisbehaved(
                    f"{sender} is not invited, or has left", reason=Reason.NOT_ELIGIBLE, culprits={sender}
                )
            try:
                if self.stage is not UPLOAD:
                    self._receive_of_holder(sender, message)
                    return
                self._server.receive_upload(sender, message)
                if self._ask_all is not None and self._server.waiting >= self._settings.delivered_at_once:
                    self._deliver()
            except UnexpectedMessage:
                raise
            except ConnectionError:
                self.abort()
                raise
            except PeerError as error:
                self._server.faults.append(error)
                # What a client did not sign does not shut it out: some transports take a client's word for who it is.
                is_active = self.agreement.record.mode is SecurityMode.ACTIVE
                if not is_active and self.stage is UPLOAD and sender not in self._server.taken:
                    self._out.add(sender)
                raise

    def _receive_of_holder(self, sender: ClientId, message: bytes) -> None:
        position = self._position_of.get(sender)
        if position is None:
            raise PeerMisbehaved(f"{sender} holds nothing", reason=Reason.NOT_ELIGIBLE, culprits={sender})
        self._server.receive(position, message)

    def without_vector(self, client: ClientId, message: bytes) -> bytes:
        """Return a client's upload without its vector, whose pieces are stored; other messages as they are."""
        del client
        if message_kind(message) is not MessageKind.ONE_MESSAGE_UPLOAD:
            return message
        return replace(Upload.decode(message), vector=b"").encode()

    def drop(self, client: ClientId) -> None:
        """Await a client no more."""
        with self._lock:
            self._out.add(client)

    def close_stage(self) -> None:
        """Await nobody else, and open the next stage if there is one."""
        with self._lock, self._ending():
            if self.stage is UPLOAD:
                least = self._settings.minimum_cohort
                if len(self._server.taken) < least:
                    raise ThresholdNotMet(needed=least, present=len(self._server.taken), what="uploads")
                if self._ask_all is None:
                    self._requests = self._server.deliver()
                else:
                    self._deliver()
                    self._server.fix_list()
            elif self.stage is DELIVER:
                self._server.settle()
                self._server.fix_list()
                self._requests = self._server.requests()
            elif self.stage is CERTIFY:
                self._server.certify()
                self._requests = self._server.requests()
            elif self.stage is None:
                raise Misuse("there is no stage to close")
            self._stages.pop(0)

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once.

        Where too few holders answer, nothing is released and nothing is lost: call it again when they are back.
        """
        del progress  # One product of polynomials, whatever the number of clients.
        with self._lock, self._ending(keeps=ThresholdNotMet):
            if self._stages or self._is_over:
                raise Misuse("close the last stage first; a session releases once")
            if self._ask_all is not None:
                if self._server.needs_certificate:
                    self._ask(self._server.requests())
                    self._server.certify()
                self._ask(self._server.requests())
            opened = self._opened()
            self._is_over = True
            return Released(
                aggregate=opened.aggregate,
                counted=opened.counted,
                left_out=dict(self._server.left_out),
                revealed=frozenset({opened.counted}),
                unbounded=opened.aggregate.layout.ring_positions,
            )

    def _opened(self) -> Opened:
        try:
            return self._server.open()
        except PeerMisbehaved as error:
            heard, present = len(self._server.heard), len(self._server.present)
            if self._ask_all is None or heard == present:
                raise
            # One liar among few answers must not cost the sum: the holders that are away can still outvote it.
            raise ThresholdNotMet(needed=heard + 1, present=heard, what="answers that agree") from error

    def abort(self) -> None:
        """End the session and wipe it."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._stages.clear()
                self._requests.clear()
                self._server.end()

    def snapshot(self) -> Secret | None:
        """Return nothing: a sum that this process forgets is over, and its uploads are spent."""
        return None

    def _deliver(self) -> None:
        self._ask(self._server.deliver())
        self._server.settle()

    def _ask(self, requests: dict[int, bytes]) -> None:
        if self._ask_all is None:
            raise Misuse("clients that hold are asked in stages")
        ask_holders(self._server, self._ask_all, requests)

    @contextmanager
    def _ending(self, keeps: type[SecAggError] = Misuse) -> Generator[None]:
        """End the session with what fails in it, but not with misuse, nor with what can be tried again."""
        try:
            yield
        except (Misuse, keeps):
            raise
        except (SecAggError, ConnectionError):
            self.abort()
            raise

    def __repr__(self) -> str:
        return f"<OneMessageServerSession {self._server!r}>"


def ask_holders(server: Server, ask_all: AskAll, requests: dict[int, bytes]) -> None:
    """Ask standing holders; those that do not answer are lost to this sum, unless the list is fixed."""
    missing = set(requests)
    for position, answer in ask_all(requests):
        try:
            if message_kind(answer) is MessageKind.REFUSAL:
                server.refusals[position] = str(decode_refusal(answer))
            else:
                server.receive(position, answer)
                missing.discard(position)
        except PeerError as error:
            server.faults.append(error)
    for position in missing:
        server.lose(position)
