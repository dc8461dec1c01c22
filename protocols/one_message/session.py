"""One message a client as a session: one stage where holders stand, three or four where clients hold."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Confined, Secret, draw_exactly
from secagg.errors import (
    UNDECIDED,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId, HolderId
from secagg.privacy.client_noise import ClientNoise, noise_in
from secagg.session.roles import Released, ServerSession, Stage, Subject, Turnout
from secagg.session.sockets.connection import AskAll
from secagg.session.sockets.frames import decode_refusal
from secagg.wire import MessageKind, message_kind

from .configuration import SUM_ID_BYTES, Agreement, noise_of
from .cut import Adder, OneMessageCut
from .epoch import EpochRecord, HolderKeys
from .messages import NoHolder
from .plan import OneMessageSettings, plan_offer
from .requests import require_signed_by
from .server import Opened, Server

UPLOAD: Final = Stage(name="upload", takes_update=True)
DELIVER: Final = Stage(name="deliver", takes_update=False)
CERTIFY: Final = Stage(name="certify", takes_update=False)
OPEN: Final = Stage(name="open", takes_update=False)
KEYS: Final = Stage(name="keys", takes_update=False)
"""Before the others in the first sum of a task whose holders are clients: they publish their keys."""


@dataclass(slots=True)
class Answered:
    """Who uploaded for which model, over all buffers of an epoch: a holder puts an upload on one list ever."""

    _by_version: dict[int, set[ClientId]] = field(default_factory=dict[int, set[ClientId]])

    def require_new(self, version: int, client: ClientId) -> None:
        """Refuse a client's second upload for a model.

        Raises:
            PeerMisbehaved: naming the client.
        """
        if client in self._by_version.get(version, ()):
            raise PeerMisbehaved(
                f"{client} uploaded for model {version} before, to this buffer or another",
                reason=Reason.ALREADY_ANSWERED,
                culprits={client},
            )

    def add(self, version: int, client: ClientId) -> None:
        """Remember an upload."""
        self._by_version.setdefault(version, set()).add(client)

    def forget(self, before: int) -> None:
        """Let go of models whose uploads are too old for any buffer to come."""
        for version in [version for version in self._by_version if version < before]:
            del self._by_version[version]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageHelpers:
    """The epoch that runs, and how its holders are reached."""

    record: EpochRecord
    keys: tuple[bytes, ...]
    """What every holder published for the epoch, in their order."""
    coins: Coins
    ask_all: AskAll | None = None
    """Reaches standing holders by position; without it the holders are clients, whose ids are the holders' numbers."""
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
    return OneMessageServerSession(Server(offer, sum_id, helpers.coins), settings, invited, helpers.ask_all)


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
        self._faulty = set[tuple[ClientId, Stage | None, Reason]]()
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
                known = sender, self.stage, error.reason
                if known not in self._faulty:
                    self._faulty.add(known)
                    self._server.faults.append(error)
                raise

    def _receive_of_holder(self, sender: ClientId, message: bytes) -> None:
        position = self._position_of.get(sender)
        if position is None:
            raise PeerMisbehaved(f"{sender} holds nothing", reason=Reason.NOT_ELIGIBLE, culprits={sender})
        self._server.receive(position, message)

    def add_through(self, adding: Callable[[OneMessageCut], Adder]) -> None:
        """Have others add the uploads, before there are any; go on with what they kept of an earlier process.

        Raises:
            InvalidParameters: clients hold, and nobody asks them again for what they said.
        """
        with self._lock:
            if self._ask_all is None:
                raise InvalidParameters("where clients hold, their server adds; take standing holders, or no engine")
            self._server.add_through(adding)
            if self._server.is_listed:
                self._stages.clear()

    def drop(self, client: ClientId) -> None:
        """Await a client no more."""
        with self._lock:
            if self._invited is None or client in self._invited:
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
            opened = self._server.open() if self._ask_all is None else opened_by(self._server, self._ask_all)
            self._is_over = True
            return Released(
                aggregate=opened.aggregate,
                counted=opened.counted,
                left_out={**self._server.left_out, **self._server.lost},
                revealed=frozenset({opened.counted}),
                unbounded=opened.aggregate.layout.ring_positions,
            )

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


def opened_by(server: Server, holders: AskAll) -> Opened:
    """Have a fixed list signed and answered by standing holders, and open its sum; called again, continue.

    Raises:
        ThresholdNotMet: too few of them answer for now; ask again when they are back.
        PeerMisbehaved: all have answered, and their answers give no sum.
    """
    if server.needs_certificate:
        ask_holders(server, holders, server.requests())
        server.certify()
    ask_holders(server, holders, server.requests())
    try:
        return server.open()
    except PeerMisbehaved as error:
        heard, present = len(server.heard), len(server.present)
        if heard == present:
            raise
        # One liar among few answers must not cost the sum: the holders that are away can still outvote it.
        raise ThresholdNotMet(needed=heard + 1, present=heard, what="answers that agree") from error


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


class CommitteeSession(Confined):
    """Collects the keys of a committee, and goes on as the session that ``open_session`` returns."""

    def __init__(
        self,
        subject: Subject,
        settings: OneMessageSettings,
        invited: frozenset[ClientId] | None,
        helpers: OneMessageHelpers,
        published: Callable[[tuple[bytes, ...]], None],
    ) -> None:
        """Begin with the stage of the keys.

        Args:
            helpers: without keys, and without standing holders.
            published: given the keys of all holders, with which the next sums of the task are opened.
        """
        self._subject, self._settings, self._invited, self._helpers = subject, settings, invited, helpers
        self._published, self._record = published, helpers.record
        self._position_of = {ClientId(holder.number): at for at, holder in enumerate(helpers.record.holders)}
        self._keys, self._heard, self._out = dict[int, bytes](), set[ClientId](), set[ClientId]()
        self._faults, self._lock, self._is_over = list[PeerError](), RLock(), False
        self._next: ServerSession | None = None

    @property
    def invitation(self) -> bytes:
        """The record; then the offer."""
        return self._record.encode() if self._next is None else self._next.invitation

    @property
    def noise(self) -> ClientNoise | None:
        """What its clients add, once the keys of the holders are there."""
        found = noise_in(self._next)
        return found if isinstance(found, ClientNoise) else None

    @property
    def stage(self) -> Stage | None:
        """The open stage."""
        if self._next is not None:
            return self._next.stage
        return None if self._is_over else KEYS

    @property
    def turnout(self) -> Turnout:
        """Whether closing the stage now can succeed; who does not answer this one is not asked for an upload."""
        if self._next is not None:
            return self._next.turnout
        if self._is_over or (self._invited is not None and self._heard | self._out >= self._invited):
            return Turnout.COMPLETE
        is_enough = len(self._keys) == len(self._position_of) and len(self._heard) >= self._settings.minimum_cohort
        return Turnout.ENOUGH if is_enough else Turnout.TOO_FEW

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Who may still answer."""
        if self._next is not None:
            return self._next.awaited
        return None if self._invited is None else self._invited - self._heard - self._out

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """What clients did wrong so far."""
        return (*self._faults, *(() if self._next is None else self._next.faults))

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open stage's message for a client."""
        if self._next is not None:
            return self._next.message_to(client)
        is_asked = client not in self._out and (self._invited is None or client in self._invited)
        return self.invitation if is_asked and not self._is_over else None

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take a holder's keys, or that a client holds nothing; then what the next stages are answered with."""
        with self._lock:
            if self._next is not None:
                self._next.receive(sender, message)
                return
            if self.stage is None:
                raise UnexpectedMessage(expected="nothing: the session is over", received="a message")
            try:
                with blaming(sender):
                    self._take(sender, message)
            except PeerError as error:
                self._faults.append(error)
                raise
            self._heard.add(sender)

    def _take(self, sender: ClientId, message: bytes) -> None:
        position, digest = self._position_of.get(sender), self._record.context.digest
        if sender in self._out or (self._invited is not None and sender not in self._invited):
            raise PeerMisbehaved(
                f"{sender} is not invited, or has left", reason=Reason.NOT_ELIGIBLE, culprits=UNDECIDED
            )
        if message_kind(message) is MessageKind.ONE_MESSAGE_NO_HOLDER:
            said = NoHolder.decode(message)
            if said.record != digest or said.client != sender:
                raise PeerMisbehaved(
                    f"{sender} answers for another epoch or client", reason=Reason.WRONG_SESSION, culprits=UNDECIDED
                )
            require_signed_by(
                self._record, sender, said.identity, said.signature, Label.ONE_MESSAGE_NO_HOLDER, *said.parts
            )
            if position is not None:
                raise PeerMisbehaved(
                    f"{sender} is {HolderId(position)} and publishes no keys; its own log says why",
                    reason=Reason.NOT_ELIGIBLE,
                    culprits=UNDECIDED,
                )
            return
        keys = HolderKeys.decode(message)
        if position is None or keys.position != position or keys.record != digest:
            raise PeerMisbehaved(
                f"{sender} publishes keys of another holder or epoch", reason=Reason.WRONG_SESSION, culprits=UNDECIDED
            )
        self._record.verify(
            self._record.holders[position].public_key,
            keys.signature,
            Label.ONE_MESSAGE_HOLDER_KEYS,
            *keys.parts,
            culprits={sender},
        )
        if self._keys.setdefault(position, message) != message:
            raise PeerMisbehaved(f"{sender} publishes two keys", reason=Reason.ALREADY_ANSWERED, culprits=UNDECIDED)

    def drop(self, client: ClientId) -> None:
        """Await a client no more."""
        with self._lock:
            self._out.add(client)
            if self._next is not None:
                self._next.drop(client)

    def close_stage(self) -> None:
        """Open the next stage.

        Raises:
            ThresholdNotMet: a holder published no keys, and it is named; an epoch begins with the keys of all.
        """
        with self._lock:
            if self._next is not None:
                self._next.close_stage()
                return
            if self._is_over:
                raise Misuse("there is no stage to close")
            self._is_over = True
            missing = [f"{HolderId(at)} ({client})" for client, at in self._position_of.items() if at not in self._keys]
            if missing:
                raise ThresholdNotMet(
                    needed=len(self._position_of),
                    present=len(self._keys),
                    what=f"keys of holders (missing: {', '.join(missing)}; start them, or have an epoch signed "
                    "without them)",
                )
            keys = tuple(self._keys[position] for position in sorted(self._keys))
            helpers = replace(self._helpers, keys=keys)
            opened = open_session(self._subject, self._settings, self._invited, helpers)
            for client in self._out:
                opened.drop(client)
            self._next = opened
            self._published(keys)

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once."""
        if self._next is None:
            raise Misuse("close the last stage first; a session releases once")
        return self._next.release(progress)

    def abort(self) -> None:
        """End the session."""
        with self._lock:
            self._is_over = True
            if self._next is not None:
                self._next.abort()

    def snapshot(self) -> Secret | None:
        """Return nothing: a sum that this process forgets is over, and its uploads are spent."""
        return None

    def __repr__(self) -> str:
        return f"<CommitteeSession, {len(self._keys)} keys of {len(self._position_of)}>"
