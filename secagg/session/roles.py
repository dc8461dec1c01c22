"""Interfaces of a secure aggregation session, the same for every protocol.

    session = <protocol>.open_session(subject, ...)     server: also the invited clients, and helpers
    client = member.join(subject, LazyUpdate(make))     client: a member has keys, policy, a ledger and a clock
    while session.stage: deliver message_to(), receive(), then close_stage()
    released = session.release()

A session has no clock, threads or transport; the platform decides how long to wait.
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
"""Minimum and maximum value of each segment, or None for the full range of its ring."""
_LOG: Final = logging.getLogger("secagg.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of a sum. Each side creates its own, and a client refuses a session about another."""

    task: bytes
    round_number: int  # increases within a task; a client uploads once for each
    layout: Layout
    capacity: int  # the largest number of uploads that the codec can decode
    tables: Tables = ()  # the codec's codebooks, if any
    zero_points: tuple[int, ...] = ()  # the element that represents 0 in each ring segment; empty if all are 0
    terms: bytes = bytes(32)  # digest of other settings that all clients must share, such as weighting
    model_digest: bytes | None = None  # None only for a client that receives the model later; its update names it

    @property
    def terms_digest(self) -> bytes:
        """Digest of the terms that have no field in an offer: the capacity and the other shared settings."""
        return hashlib.sha256(bind(Label.SESSION_TERMS, self.capacity.to_bytes(8, "big"), self.terms)).digest()


@dataclass(frozen=True, slots=True)
class Update:
    """One client's contribution."""

    payload: Payload = field(repr=False)
    model_digest: bytes  # of the model it was trained from, as the client computed it


class LazyUpdate(Confined):
    """One client's update, created only when the upload needs it."""

    def __init__(
        self,
        make: Callable[[], Update],
        model_digest: bytes | None = None,
        *,
        charge: Callable[[], None] = lambda: None,
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
        zero: Callable[[], Payload] | None = None,
    ) -> None:
        """Take the function that creates the update.

        Args:
            model_digest: of the model that it is trained from; optional if the subject names the model.
            charge: durably spends the round and the model before the update is made; raises to refuse.
            together: a transaction that makes this charge and the session's own either both or not at all.
            zero: encodes an update of zeros with no weight, for failed training. By default every ring element is 0,
                which is only right for codecs without zero points.
        """
        self._make: Callable[[], Update] | None = make
        self._model_digest, self._charge, self._together, self._zero = model_digest, charge, together, zero

    def model_for(self, subject: Subject) -> bytes:
        """Return the digest of the model that the update is trained from, as this client computed it."""
        self._model_digest = self._model_digest or subject.model_digest
        if self._model_digest is None:
            raise Misuse("the subject names no model; give LazyUpdate the digest of the model that was sent")
        return self._model_digest

    def spent(self, subject: Subject) -> Spent:
        """Return the upload that the session's ledgers are charged with."""
        return Spent(subject.task, subject.round_number, self.model_for(subject))

    def take(self, layout: Layout, bounds: Bounds = (), *, charge: Callable[[], None] = lambda: None) -> Update:
        """Create the update, once; sessions call this after every check.

        After ``charge`` nothing is refused, so whether and how a client answers reveals nothing about its data. Values
        are clamped; a failed training, or a result that does not fit, gives zeros. The client logs each case locally.

        Args:
            bounds: of each segment's values, or None for the bounds of its ring.
            charge: spends whatever else the session needs, after the round and the model.
        Raises:
            Misuse: the update was already created.
            KeyboardInterrupt: this process was interrupted; the client leaves.
        """
        make, self._make = self._make, None
        if make is None:
            raise Misuse("this update was already used; train a new one", reason=Reason.ALREADY_SPENT)
        try:
            with self._together():
                self._charge()
                charge()
        except BaseException:
            self._make = make  # Keep it for another offer: a ledger's refusal costs no update.
            raise
        try:
            return self._clamped(make(), layout, bounds)
        except BaseException as error:
            # The server must not learn what training raises. A signal to this process is not training's error.
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise
            _LOG.exception(
                "TRAINING FAILED (%s: %s), or its result does not fit the model that was sent. An update of zeros is "
                "uploaded instead, so that the server does not notice; repair the training code",
                type(error).__name__,
                error,
            )
        return self._clamped(Update(self._zeros(layout), self._model_digest or b""), layout, bounds)

    def _zeros(self, layout: Layout) -> Payload:
        if self._zero is not None:
            try:
                return self._zero()
            except Exception:  # noqa: BLE001 -- a client that cannot encode zeros still must not be told apart
                _LOG.exception("could not encode an update of zeros; uploading ring elements of 0 instead")
        return Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.segments))

    def _clamped(self, made: Update, layout: Layout, bounds: Bounds) -> Update:
        """Return an update with its values within bounds."""
        made.payload.check()
        if made.payload.layout != layout or made.model_digest != (self._model_digest or made.model_digest):
            raise Misuse("the update's layout or model differs from the session's; create it for this session")
        payload = made.payload.within(bounds)
        pairs = zip(made.payload.values, payload.values, strict=True)
        if outside := sum(int((given != kept).sum()) for given, kept in pairs):
            _LOG.warning("%d values of this update exceed the session's bounds and were clamped", outside)
        return Update(payload, made.model_digest)


@dataclass(frozen=True, slots=True)
class Stage:
    """One exchange: a message to each of some clients, and one answer from each."""

    name: str
    takes_update: bool  # the answers contain updates: send the model too, and allow time for training
    per_client: int | None = None  # an answer is a few kilobytes, plus at most this many bytes per client


class Participation(IntEnum):
    """State of the open stage: waiting is necessary, optional or useless."""

    TOO_FEW, ENOUGH = 0, 1
    COMPLETE = 2  # no more answers are expected, though there may be too few


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of a session."""

    aggregate: Aggregate  # in the subject's layout, or the layout that an enclave decodes it to
    counted: frozenset[ClientId]
    left_out: Mapping[ClientId, Fault]  # clients with uploads that were received but not counted, and why
    revealed: frozenset[frozenset[ClientId]]  # the sets whose sums the server learned; {counted} if all went well
    unbounded: tuple[int, ...]  # segments of the subject's layout in which nothing bounds a client's norm
    receipt: bytes = b""  # proof to others that the release is genuine, if the protocol has one


class ServerSession(Protocol):
    """The server's side; thread-safe. A finished session is wiped; another attempt needs a new session."""

    @property
    def invitation(self) -> bytes:
        """The message of the first stage, the same for all clients."""
        ...

    @property
    def stage(self) -> Stage | None:
        """The open stage; None when ``release`` is the next call, and after the end."""

    @property
    def participation(self) -> Participation:
        """Whether closing the stage now can succeed; cheap enough to check after every answer."""
        ...

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Clients that may still answer; None while the first stage is open to everyone."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of clients and helpers so far, each with its culprits."""
        ...

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open stage's message for a client, always the same bytes; None if it is not in the stage."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Accept an answer from the authenticated sender; a repeated answer changes nothing. May call helpers.

        Raises:
            UnexpectedMessage: it is late or early; nothing has changed, and nobody is to blame.
            PeerError: it is wrong and was not accepted; the session continues without it or its sender.
            ConnectionError: a helper is lost; the session has ended.
        """

    def drop(self, client: ClientId) -> None:
        """Stop waiting for a client, permanently: it said that it leaves, or the transport lost it."""

    def close_stage(self) -> None:
        """Close the open stage, and open the next one if there is one. May call helpers.

        Raises:
            ThresholdNotMet, PeerError, ConnectionError: the session has ended, and nothing is released.
            Misuse: no stage is open; nothing has changed.
        """

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once; raises as ``close_stage``. ``progress`` receives the steps done and their total."""
        ...

    def abort(self) -> None:
        """End the session and wipe it. Safe to call after the end, so call it in a ``finally``."""

    def snapshot(self) -> Secret | None:
        """Return a snapshot for ``restore_session``; None if the session must finish in this process."""


class ClientSession(Protocol):
    """The client's side, used by one thread at a time."""

    @property
    def client(self) -> ClientId: ...

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of other clients' messages, for this client's own log."""
        ...

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message. An upload is made in this order: checks, ledger, update, upload.

        Raises:
            UnexpectedMessage: it is not expected now; nothing has changed.
            InvalidParameters: the invitation is below the policy or has another subject; nothing was drawn or charged.
            SecAggError: the client has left and is wiped; tell the server that it left, but never why.
        """
        ...

    def suspend(self) -> Secret | None:
        """Return the state that ``join`` resumes, and stop answering; None if nothing is left to do.

        Security: seal it so that only the newest state opens, and only once, as ``session.sealed_state`` does.
        """

    def abort(self) -> None:
        """Leave and wipe; an update that was already taken stays spent."""


class Member(Protocol):
    """A client across sessions: its identity, policy, ledger, clock and trusted keys."""

    def join(
        self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
    ) -> ClientSession:
        """Join a session, or resume a suspended one; the update is needed for the message that asks for the upload."""
        ...
