"""A secure sum as a platform sees it, whichever protocol computes it.

    session = <protocol>.open_session(subject, ...)     server: and who is invited, and connections to helpers
    client = member.join(subject, LazyUpdate(make))     client: a member has keys, policy, a ledger and a clock
    while session.stage: deliver message_to(), receive(), then close_stage()
    released = session.release()

A session has no clock, no thread and no transport: when to wait no longer is the platform's decision.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, Protocol

from secagg.contract.layout import Layout, Payload
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Fault, Misuse, Reason
from secagg.identifiers import ClientId

from .ledger import Spent

if TYPE_CHECKING:
    from secagg.contract.codewords import Tables
    from secagg.contract.decoder import Aggregate

Bounds = Sequence[tuple[int, int] | None]
"""The least and the greatest value of each segment, or None for all that its ring holds."""
_LOG: Final = logging.getLogger("secagg.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of a sum. Each side makes its own, and a client refuses a session about another."""

    task: bytes
    round_number: int  # goes up within a task; a client uploads once for each
    layout: Layout
    capacity: int  # the largest number of uploads that the codec can decode
    tables: Tables = ()  # the codec's codebooks, where it has any
    zero_points: tuple[int, ...] = ()  # the element that stands for 0 in each ring segment; none if all are 0
    terms: bytes = bytes(32)  # digest of all else that clients must be told alike, such as weighting
    model_digest: bytes | None = None  # None only at a client that is sent the model later; its update names it

    @property
    def terms_digest(self) -> bytes:
        """Digest of the terms without a field in an offer: the capacity, and all else that clients are told alike."""
        return hashlib.sha256(bind(Label.SESSION_TERMS, self.capacity.to_bytes(8, "big"), self.terms)).digest()


@dataclass(frozen=True, slots=True)
class Update:
    """Contribution of one client."""

    payload: Payload = field(repr=False)
    model_digest: bytes  # of the model that it was trained from, as the client computed it


class LazyUpdate(Confined):
    """One update, made only when the upload needs it."""

    def __init__(
        self,
        make: Callable[[], Update],
        model_digest: bytes | None = None,
        *,
        charge: Callable[[], None] = lambda: None,
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
        zero: Callable[[], Payload] | None = None,
    ) -> None:
        """Take what makes the update.

        Args:
            model_digest: of the model that it is made from; not needed where the subject names it.
            charge: spends the round and the model for good before the update is made; raises to refuse.
            together: a transaction in which this and the session's own charge are made both, or neither.
            zero: encodes an update of zeros that counts in no denominator, for a training that fails; by default every
                ring element is 0, which is right only for codecs without zero points.
        """
        self._make: Callable[[], Update] | None = make
        self._model_digest, self._charge, self._together, self._zero = model_digest, charge, together, zero

    def model_for(self, subject: Subject) -> bytes:
        """Return the digest of the model that the update is made from, as this client computed it."""
        self._model_digest = self._model_digest or subject.model_digest
        if self._model_digest is None:
            raise Misuse("the subject names no model; give LazyUpdate the digest of the one that was sent")
        return self._model_digest

    def spent(self, subject: Subject) -> Spent:
        """Return the upload that every ledger of its session is charged with."""
        return Spent(subject.task, subject.round_number, self.model_for(subject))

    def take(
        self,
        layout: Layout,
        bounds: Bounds = (),
        *,
        charge: Callable[[], None] = lambda: None,
    ) -> Update:
        """Make it, once; for the session, after every check and after the ledger was charged.

        Once ``charge`` has returned nothing is refused, so that whether and how a client answers tells nothing of its
        data: values are clamped, and a training that fails, or returns what does not fit, gives zeros.
        Each is logged here, for the client's own person.

        Args:
            bounds: of the values of each segment, or None for those of its ring.
            charge: spends what else the session has to, after the round and the model.
        Raises:
            Misuse: it was made before.
            KeyboardInterrupt: this process was interrupted; the client leaves.
        """
        make, self._make = self._make, None
        if make is None:
            raise Misuse("an update goes into one sum alone; train another one", reason=Reason.ALREADY_SPENT)
        try:
            with self._together():
                self._charge()
                charge()
        except BaseException:
            self._make = make  # For another offer: what a ledger refuses costs no update.
            raise
        try:
            return self._clamped(make(), layout, bounds)
        except BaseException as error:
            # Whatever training raises, the server is not told. A signal to this process is not training's.
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise
            _LOG.exception(
                "TRAINING FAILED (%s: %s), or returned what does not fit the model that was sent. An update of zeros "
                "is uploaded instead, so that the server does not see the failure; repair the training code",
                type(error).__name__,
                error,
            )
        return self._clamped(Update(self._zeros(layout), self._model_digest or b""), layout, bounds)

    def _zeros(self, layout: Layout) -> Payload:
        if self._zero is not None:
            try:
                return self._zero()
            except Exception:  # noqa: BLE001 -- a client that cannot encode zeros still must not be told apart
                _LOG.exception("an update of zeros could not be encoded; ring elements of 0 are uploaded instead")
        return Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.segments))

    def _clamped(self, made: Update, layout: Layout, bounds: Bounds) -> Update:
        """Return an update with its values within bounds."""
        made.payload.check()
        if made.payload.layout != layout or made.model_digest != (self._model_digest or made.model_digest):
            raise Misuse("the update has another layout or model than the session; make it for this one")
        payload = made.payload.within(bounds)
        pairs = zip(made.payload.values, payload.values, strict=True)
        if outside := sum(int((given != kept).sum()) for given, kept in pairs):
            _LOG.warning("%d values of this update are out of the session's bounds, and count as the bounds", outside)
        return Update(payload, made.model_digest)


@dataclass(frozen=True, slots=True)
class Stage:
    """One exchange: a message to each of some clients, and one answer from each."""

    name: str
    takes_update: bool  # the answers hold the updates: send the model along, and allow the time of training
    per_client: int | None = None  # an answer has a few kilobytes, and at most this many bytes for each client


class Participation(IntEnum):
    """State of the open stage: waiting is necessary, optional or useless."""

    TOO_FEW, ENOUGH = 0, 1
    COMPLETE = 2  # nobody else is awaited, though there may still be too few


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of a session."""

    aggregate: Aggregate  # in the subject's layout, or in what an enclave decodes that to
    counted: frozenset[ClientId]
    left_out: Mapping[ClientId, Fault]  # whose uploads were received and are not in the sum, and why
    revealed: frozenset[frozenset[ClientId]]  # the sets whose sums the server learned; {counted} if all went well
    unbounded: tuple[int, ...]  # segments of the subject's layout in which nobody holds a client to any length
    receipt: bytes = b""  # what shows others that the release is genuine, where the protocol has that


class ServerSession(Protocol):
    """The server's side, for any thread. A session that ended is wiped; another attempt is another session."""

    @property
    def invitation(self) -> bytes:
        """The message of the first stage, the same for everybody."""
        ...

    @property
    def stage(self) -> Stage | None:
        """The open stage; None when ``release`` is the next call, and after the end."""

    @property
    def participation(self) -> Participation:
        """Whether closing the stage now can succeed; cheap enough to ask after every answer."""
        ...

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Clients that may still answer; None while a first stage is open to anybody."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of clients and helpers so far, each with its culprits."""
        ...

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open stage's message for a client, always the same bytes; None if it has no part in the stage."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an answer from the sender that the transport names; a repeated answer changes nothing. May ask helpers.

        Raises:
            UnexpectedMessage: it is late or early; nothing has changed, and nobody is to blame.
            PeerError: it is wrong and was not taken; the session continues without its sender.
            ConnectionError: a helper is lost; the session has ended.
        """

    def drop(self, client: ClientId) -> None:
        """Await a client no more, for good: it said that it leaves, or the transport lost it."""

    def close_stage(self) -> None:
        """Await nobody else, and open the next stage if there is one. May ask helpers.

        Raises:
            ThresholdNotMet, PeerError, ConnectionError: the session has ended, and nothing is released.
            Misuse: no stage is open; nothing has changed.
        """

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once; raises as ``close_stage``. ``progress`` is told how many of how many steps are done."""
        ...

    def abort(self) -> None:
        """End the session and wipe it; after the end this does nothing, so call it in a ``finally``."""

    def snapshot(self) -> Secret | None:
        """Return a snapshot for ``restore_session``; None if the session must finish in this process."""


class ClientSession(Protocol):
    """A client's side, in one thread at a time."""

    @property
    def client(self) -> ClientId: ...

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of other clients' messages; for this client's own log."""
        ...

    def answer(self, message: bytes) -> bytes:
        """Return the one answer to a message. An upload is made in this order: checks, ledger, update, upload.

        Raises:
            UnexpectedMessage: it is not expected now; nothing has changed.
            InvalidParameters: an invitation below a floor or about something else; nothing was drawn or charged.
            SecAggError: the client has left and is wiped; tell the server that it left, and never why.
        """
        ...

    def suspend(self) -> Secret | None:
        """Return the state that ``join`` resumes, and answer no more; None if nothing is left to do.

        Security: seal it so that only the newest opens, and only once, as ``session.sealed_state`` does.
        """

    def abort(self) -> None:
        """Leave and wipe; an update that was taken stays spent."""


class Member(Protocol):
    """A client across sessions: its identity, policy, ledger and clock, and the keys that it trusts."""

    def join(
        self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
    ) -> ClientSession:
        """Begin, or resume a suspended session; the update is for the message that an upload answers."""
        ...
