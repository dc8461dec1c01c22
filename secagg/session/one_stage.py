"""What every session of a single stage does alike: who was heard, same bytes again, order of calls, wiping."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hmac import compare_digest
from threading import RLock
from typing import ClassVar

from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId

from .roles import LateUpdate, Released, Stage, Subject, Turnout
from .sockets.connection import HelperLost


class OneStageServerSession(Confined, ABC):
    """A server session that takes one upload of each client."""

    name: ClassVar[str]
    """Of the one stage."""

    def __init__(self, invitation: bytes, invited: frozenset[ClientId] | None, minimum: int) -> None:
        """Open the stage.

        Args:
            minimum: how many uploads a sum has at least.
        """
        self._invitation, self._stage = invitation, Stage(name=self.name, takes_update=True)
        self._invited, self._minimum, self._lock = invited, minimum, RLock()
        self._seen, self._out = dict[ClientId, bytes](), set[ClientId]()
        self._open = 0 if invited is None else len(invited)
        """How many of the invited may still answer; counted, because it is asked after each answer."""
        self._faults, self._is_closed, self._is_over = list[PeerError](), False, False

    # --- What a protocol gives ----------------------------------------------------------------------------------------

    @abstractmethod
    def _take(self, sender: ClientId, message: bytes) -> bytes:
        """Take an upload whose sender the transport has authenticated, or raise and change nothing.

        Returns:
            Its ``_digest``, which a protocol may have made for another reason.
        Raises:
            PeerError: it is wrong, or another client's.
            ConnectionError: a helper is lost.
        """

    def _digest(self, message: bytes) -> bytes:
        """Return what an upload is known by when it comes again; asked only then."""
        return hashlib.sha256(message).digest()

    def _take_again(self, message: bytes) -> None:
        """Be told of an upload that came again while others may come."""

    def _settle(self) -> None:
        """Decide about what was taken, before the sum is released."""

    @abstractmethod
    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        """Release the sum."""

    @abstractmethod
    def _wipe(self) -> None:
        """Overwrite what is left; called once, at the end, and must not fail."""

    # --- The session --------------------------------------------------------------------------------------------------

    @property
    def invitation(self) -> bytes:
        """The one message, the same for everybody."""
        return self._invitation

    @property
    def stage(self) -> Stage | None:
        """The one stage while it is open."""
        return None if self._is_closed else self._stage

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """What clients and helpers did wrong so far."""
        with self._lock:
            return tuple(self._faults)

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Who may still upload."""
        with self._lock:
            if self._is_closed:
                return frozenset()
            return None if self._invited is None else self._invited - self._seen.keys() - self._out

    @property
    def turnout(self) -> Turnout:
        """Whether closing now can succeed."""
        with self._lock:
            if self._is_closed or (self._invited is not None and not self._open):
                return Turnout.COMPLETE
            return Turnout.ENOUGH if len(self._seen) >= self._minimum else Turnout.TOO_FEW

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the invitation for a client that is in."""
        with self._lock:
            return self._invitation if not self._is_closed and self._is_in(client) else None

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an upload."""
        if type(sender) is not ClientId:
            raise Misuse(f"a sender is a ClientId, as the transport authenticated it; got {type(sender).__name__}")
        with self._lock, blaming(sender), self._losing():
            before = self._seen.get(sender)
            if before is not None and self._is_again(before, message):
                if not self._is_closed:
                    self._take_again(message)
                return
            if self._is_closed:
                raise UnexpectedMessage(expected="no upload: the stage is closed", received="an upload")
            if before is not None:
                raise PeerMisbehaved(
                    f"{sender} sent a second upload; the first one counts",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits={sender},
                )
            if not self._is_in(sender):
                raise PeerMisbehaved(
                    f"{sender} is not invited, or has left", reason=Reason.NOT_ELIGIBLE, culprits={sender}
                )
            try:
                self._seen[sender] = self._take(sender, message)
            except UnexpectedMessage:
                raise
            except PeerError as error:
                self._leave(sender)
                self._faults.append(error)
                raise
            self._open -= 1

    def _is_again(self, before: bytes, message: bytes) -> bool:
        try:
            return compare_digest(before, self._digest(message))
        except PeerError:
            # What was taken could be read.
            return False

    def _is_in(self, client: ClientId) -> bool:
        return client not in self._out and (self._invited is None or client in self._invited)

    def _leave(self, client: ClientId) -> None:
        if self._is_in(client) and client not in self._seen:
            self._open -= 1
        self._out.add(client)

    def drop(self, client: ClientId) -> None:
        """Await a client no more; what it uploaded stays."""
        with self._lock:
            self._leave(client)

    def close_stage(self) -> None:
        """Await nobody else."""
        with self._lock, self._ending():
            if self._is_closed:
                raise Misuse("there is no stage to close")
            if len(self._seen) < self._minimum:
                raise ThresholdNotMet(needed=self._minimum, present=len(self._seen), what="uploads")
            with self._losing():
                self._settle()
            self._is_closed = True

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once."""
        with self._lock, self._ending():
            if not self._is_closed or self._is_over:
                raise Misuse("close the last stage first; a session releases once")
            try:
                with self._losing():
                    return self._sum(progress)
            finally:
                self.abort()

    def abort(self) -> None:
        """End the session and wipe it."""
        with self._lock:
            if not self._is_over:
                self._is_over = self._is_closed = True
                self._wipe()

    def snapshot(self) -> Secret | None:
        """Return None: a session of one stage finishes in its process, or another one is begun."""
        return None

    @contextmanager
    def _losing(self) -> Generator[None]:
        """End the session with a helper or a storage that fails."""
        try:
            yield
        except (OSError, Misuse) as error:
            self.abort()
            raise _lost(error) from error

    @contextmanager
    def _ending(self) -> Generator[None]:
        """End the session with what fails in it, but not with a call in the wrong order."""
        try:
            yield
        except Misuse:
            raise
        except (SecAggError, ConnectionError):
            self.abort()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._seen)} uploads{', over' if self._is_over else ''}>"


def _lost(error: Exception) -> ConnectionError:
    """Return what a helper's error means here: one that refuses a call as out of order has forgotten the session."""
    return error if isinstance(error, ConnectionError) else HelperLost(f"a helper or a storage is lost: {error}")


class OneStageClientSession(Confined, ABC):
    """A client session of one answer."""

    def __init__(self, client: ClientId, subject: Subject, update: LateUpdate | None, suspended: Secret | None) -> None:
        """Prepare to upload once.

        Raises:
            Misuse: something was suspended, which this protocol never does.
        """
        if suspended is not None:
            raise Misuse("a session of one message has nothing to go on with; join without what was suspended")
        self._client, self._subject, self._update, self._is_done = client, subject, update, False

    @abstractmethod
    def _upload(self, message: bytes, update: LateUpdate) -> bytes:
        """Return the upload: checks, ledger, update, time, in this order."""

    @property
    def client(self) -> ClientId:
        """Who this is."""
        return self._client

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """Nothing: no other client sends this one anything."""
        return ()

    def answer(self, message: bytes) -> bytes:
        """Return the upload, once; nothing keeps it.

        Raises:
            Misuse: it was handed over, the client left, or there is no update.
        """
        if self._is_done or self._update is None:
            raise Misuse("the upload was handed over, or there is no update to upload", reason=Reason.ALREADY_SPENT)
        upload = self._upload(message, self._update)
        self._is_done = True
        return upload

    def suspend(self) -> Secret | None:
        """Answer no more; nothing is left to do."""
        self._is_done = True
        return None

    def abort(self) -> None:
        """Leave."""
        self._is_done = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._client}{', done' if self._is_done else ''}>"
