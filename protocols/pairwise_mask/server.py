"""The server of one attempt: it relays, it adds, and it removes what masks are left; it never holds an input.

The platform delivers messages with ``receive`` and decides with ``close_round`` when to wait no longer; there is no
clock here. A message that is wrong excludes its sender and not the session. Uploads are added as they arrive, here or
by others, so memory is a few vectors however many clients there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from threading import RLock

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.crypto.secret import Confined
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    blaming,
)
from secagg.identifiers import ClientId
from secagg.session.roles import Turnout
from secagg.wire import MessageKind, message_kind, owned_bytes

from .collected import Collected
from .configuration import SessionConfiguration
from .plan import SessionPlan
from .recovery import Recovery
from .release import count_revealed_sets, release_sum, remove_masks
from .roster import Roster
from .server_record import ServerRecord
from .settled import certain
from .transitions import SERVER_TRANSITIONS, ServerState, advance

_LOG = logging.getLogger(__name__)
_FINAL = frozenset({ServerState.COMPLETED, ServerState.ABORTED})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for one client."""

    receiver: ClientId
    message: bytes = field(repr=False)


class Server(Confined):
    """The server of a session, without input or output of its own."""

    def __init__(self, plan: SessionPlan, *, threads: int = 1) -> None:
        """Start a session; send ``offer`` to every client that is invited.

        Args:
            threads: how many take masks off here.
        """
        self._begin(ServerRecord(plan), threads)

    def _begin(self, record: ServerRecord, threads: int) -> None:
        self._record, self._threads = record, threads
        self._collected = Collected(record)
        self._judged = 0, False
        """The number of advertisers that was judged last, and whether they are enough."""
        self._open = self._collected.open_round()
        self._lock = RLock()
        self.faults = list[PeerError]()
        """What clients did wrong without ending the session, each with its culprits."""
        self.revealed: frozenset[frozenset[ClientId]] = frozenset()
        """The sets of clients whose sums the finished session reveals; one set, if all went well."""

    # --- The session --------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> SessionConfiguration:
        """What the session agrees on."""
        return self._record.plan.configuration

    @property
    def offer(self) -> bytes:
        """The first message, the same for every client."""
        return self.configuration.encode()

    @property
    def state(self) -> ServerState:
        """What is awaited."""
        return self._record.state

    @property
    def roster(self) -> Roster:
        """Who advertised, once that round is closed."""
        return self._collected.so_far.roster

    @property
    def awaited(self) -> frozenset[ClientId]:
        """Who may still send the message that is due; before the roster is fixed nobody knows."""
        with self._lock:
            if self._open is None:
                return frozenset()
            return frozenset(self.roster.clients[position] for position in self._open.awaited)

    @property
    def turnout(self) -> Turnout:
        """Whether closing the round now can succeed; counted, and asked after each answer.

        In the first round it is never complete, because the platform alone knows whom it invited.
        """
        with self._lock:
            if self._open is not None:
                return self._open.turnout
            heard = len(self._record.advertisements)
            if heard >= self.configuration.maximum_population or self.state in _FINAL:
                return Turnout.COMPLETE
            return Turnout.ENOUGH if self._is_population(heard) else Turnout.TOO_FEW

    def _is_population(self, advertised: int) -> bool:
        """Whether a roster of so many clients is safe; asked for each count once."""
        if advertised != self._judged[0]:
            try:
                self._require_protected(advertised)
            except InvalidParameters:
                self._judged = advertised, False
            else:
                self._judged = advertised, True
        return self._judged[1]

    def has_settled(self, client: ClientId) -> bool:
        """Whether a client sent what is due, or may send nothing more."""
        return client in self._record.heard or client in self._record.excluded

    @property
    def contributors(self) -> frozenset[ClientId]:
        """Whose uploads were taken so far."""
        return frozenset(self._record.views)

    def evidence_of(self, client: ClientId) -> bytes:
        """Return the digest of what a contributor uploaded and its signature; nothing in semi_honest mode."""
        return self._record.views[client]

    def drop(self, client: ClientId) -> None:
        """Await a client no more and take nothing more from it; what it uploaded stays in the sum."""
        with self._lock:
            self._record.excluded.add(client)
            self._count(client)

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take a message that came in a client's name.

        Raises:
            UnexpectedMessage: it is not due now; nothing has changed.
            MalformedMessage: its header does not read; nothing has changed. If the rest does not read, as below.
            PeerError: it is wrong. Its sender is excluded from what follows, and nothing else has changed; for a second
                message that differs from the first, nothing at all has, and the first one counts. ``culprits`` names
                the sender alone if it signed what is wrong, and else ``ServerId`` beside it: the way may have altered
                the bytes.
        """
        if type(sender) is not ClientId:
            raise Misuse(f"a sender is a ClientId, as the transport says; got {type(sender).__name__}")
        with self._lock, blaming(*unverified(sender)):
            self._receive(sender, owned_bytes(message))

    def _receive(self, sender: ClientId, message: bytes) -> None:
        kind = message_kind(message)
        before = self._record.seen.get(sender, {}).get(kind)
        if before is not None:
            if compare_digest(before, self._collected.known_by(kind, message)):
                return
            raise PeerMisbehaved(
                f"{sender} sent a second {kind.name} that differs from the first; the first one counts",
                reason=Reason.ALREADY_ANSWERED,
                culprits=unverified(sender),
            )
        self._collected.require_due(sender, kind, self._open)
        try:
            shown = self._collected.accept(sender, kind, message)
        except PeerError as error:
            self._record.excluded.add(sender)
            self._count(sender)
            self.faults.append(error)
            _LOG.warning("%s is excluded: %s", sender, error)
            raise
        if shown is not None:
            self.faults.append(shown)
            _LOG.warning("%s", shown)
        self._count(sender)

    def _count(self, client: ClientId) -> None:
        """Count a client out that has sent what is due, or may not send it any more."""
        if self._open is not None and (position := self.roster.position_of(client)) is not None:
            self._open.settle(position, has_answered=client in self._record.heard)

    def close_round(self) -> Iterator[Outgoing]:
        """Wait for nobody else, and return the messages of the next round, made one at a time.

        Take a snapshot before the first of them is sent; ``outgoing`` gives them again.

        Raises:
            ThresholdNotMet: too few clients are left; the session is over and nothing is released.
            InvalidParameters: as many as advertised are not protected by the session's parameters; it is over.
            Misuse: there is no round to close; the last one is closed by ``unmask``.
        """
        with self._lock:
            self._close()
            self._open = self._collected.open_round()
            return self.outgoing()

    def _close(self) -> None:
        closed, chosen = self.state, None
        match closed:
            case ServerState.AWAITING_KEY_ADVERTISEMENTS:
                advertised = len(self._record.advertisements)
                self._require(advertised, "advertisers")
                try:
                    self._require_protected(advertised)
                except InvalidParameters:
                    self._abort()
                    raise
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                self._require(len(self._record.shares), "clients that shared keys")
            case ServerState.AWAITING_MASKED_INPUTS:
                self._require(len(self._record.views), "contributors")
                chosen = ServerState.AWAITING_UNMASKING_SHARES
                if self.configuration.is_active:
                    chosen = ServerState.AWAITING_SURVIVOR_SIGNATURES
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                self._require(len(self._record.signatures), "signatures of the committee", self.configuration.quorum)
            case ServerState.AWAITING_UNMASKING_SHARES:
                raise Misuse("this is the last round; call unmask()")
            case _:
                raise Misuse(f"the session is {closed}")
        self._collected.settle(closed)
        self._record.state = advance(closed, SERVER_TRANSITIONS[closed][0], chosen)

    def outgoing(self) -> Iterator[Outgoing]:
        """Return the messages of the open round, made one at a time; as often as asked, always the same bytes."""
        if self._open is None:
            return iter(())
        clients, opened = self.roster.clients, self._open
        return (Outgoing(clients[position], opened.message(position)) for position in opened.members)

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open round's message for one client; None if it has no part in the round, or was excluded."""
        with self._lock:
            if client in self._record.excluded or self.state in _FINAL:
                return None
            if self._open is None:
                return self.offer
            position = self.roster.position_of(client)
            return self._open.message(position) if position is not None and position in self._open else None

    def unmask(self, progress: Callable[[int, int], None] | None = None) -> Aggregate:
        """Recover the masks that are left, remove them, and return the sum.

        Implements: [BIK+17] Fig. 4, Round 4, server.
        Args:
            progress: called with how many masks are removed and how many there are.
        Raises:
            ThresholdNotMet: too few answered; nothing is released.
            PeerMisbehaved: wrong shares or seeds, or a sum that does not agree with its check words; nothing is
                released, and ``culprits`` names those that the evidence names.
            Misuse: the last round is not open.
        Security: once for each session, whose one set of survivors the clients agreed on.
        """
        with self._lock:
            if self.state is not ServerState.AWAITING_UNMASKING_SHARES:
                raise Misuse(f"there is nothing to unmask yet; the session is {self.state}")
            try:
                aggregate = self._unmask(progress or _ignore)
            except BaseException:
                self._abort()
                raise
            self._record.state = advance(self.state, MessageKind.UNMASKING_SHARES)
            self._forget()
            return aggregate

    def _unmask(self, progress: Callable[[int, int], None]) -> Aggregate:
        settled, collected, total = self._collected.so_far, self._collected, certain(self._record.total)
        revealed = count_revealed_sets(settled)
        recovery = Recovery(
            settled, collected.relayed, collected.answers, collected.complaints, self._record.plan.corrupted
        )
        try:
            remove_masks(total, recovery, progress, threads=self._threads)
        finally:
            self.faults += recovery.faults
        aggregate = release_sum(settled, total)
        self.revealed = revealed
        return aggregate

    def abort(self) -> None:
        """End the session without a result."""
        self._abort()

    # --- Serialisation ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Server, {self.state}>"

    def snapshot(self) -> bytes:
        """Return all that ``restore`` takes to make a server that goes on from here; ``faults`` are left out.

        Security: see ``server_record``. The sum of the uploads in it is masked; the answers of the last round are not.
        """
        with self._lock:
            return self._record.encode()

    @classmethod
    def restore(cls, snapshot: bytes, *, threads: int = 1) -> Server:
        """Go on from a snapshot, in whichever process.

        Raises:
            MalformedMessage: it is no snapshot.
        """
        record = ServerRecord.decode(snapshot)
        server = cls(record.plan, threads=threads)
        try:
            server._begin(record, threads)
        except (PeerMisbehaved, AuthenticationFailed) as error:
            raise MalformedMessage(f"the snapshot contradicts itself: {error}", reason=Reason.NOT_CANONICAL) from None
        return server

    # --- Small things -------------------------------------------------------------------------------------------------

    def _require(self, present: int, what: str, needed: int | None = None) -> None:
        needed = self.configuration.minimum_cohort if needed is None else needed
        if present < needed:
            round_name = str(self.state)
            self._abort()
            raise ThresholdNotMet(needed=needed, present=present, what=what, round_name=round_name)

    def _require_protected(self, advertised: int) -> None:
        plan = self._record.plan
        self.configuration.require_population(
            advertised, corrupted=plan.corrupted, privacy_bits=plan.privacy_bits, dropped=plan.dropped
        )

    def _abort(self) -> None:
        self._record.state = ServerState.ABORTED
        self._forget()

    def _forget(self) -> None:
        self._open = None
        self._collected.forget()
        if self.state is ServerState.ABORTED and self._record.total is not None:
            self._record.total.wipe()
        self._record.total = None


def _ignore(done: int, count: int) -> None:
    """Show no progress."""
