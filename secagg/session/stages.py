"""Rules shared by all server sessions, with one stage or several.

A message that fails before it is verified (framing, decoding, signature, context) changes nothing, and the session
still waits for its sender. A client is excluded for verified content that is wrong, after a failed check that may not
be retried, or at its own request. An answer is identified by the digest of its signed content: a repeated one changes
nothing, and if two differ, the first is used. Late answers are not read. Clients that were not invited leave no trace.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hmac import compare_digest
from threading import RLock
from typing import Final, Generic, TypeVar

from secagg.blame import Evidence, answered_twice, culprits, unverified
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    Fault,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId, Party
from secagg.wire import owned_bytes

from .one_answer import OneStageClientSession
from .roles import Participation, Released, Stage
from .sockets import HelperLost

__all__ = ["Checked", "OneStageClientSession", "StagedServerSession"]

Content = TypeVar("Content")
_MOST_KNOWN: Final = 16
"""Answers of one client that are recognized when repeated; a client has one per stage."""


@dataclass(frozen=True, slots=True)
class Checked(Generic[Content]):
    """An answer that passed every check that changes nothing."""

    content: Content
    digest: bytes | None = None
    """Digest of the signed content; None for the digest of the whole answer."""


class StagedServerSession(Confined, ABC, Generic[Content]):
    """Base class of server sessions: controls who may answer, when and how often. The protocol defines the answers."""

    def __init__(self, stage: Stage, invitation: bytes, invited: frozenset[ClientId] | None, minimum: int) -> None:
        """Open the first stage.

        Args:
            minimum: number of answers that each stage needs.
        """
        self._invitation, self._invited, self._minimum, self._lock = invitation, invited, minimum, RLock()
        self._stage: Stage | None = stage
        self._messages: Mapping[ClientId, bytes] | None = None
        """Messages of the open stage; None for the invitation, which is the same for all clients."""
        self._waiting = None if invited is None else set(invited)
        self._said = dict[ClientId, bytes]()
        """Digest of each accepted answer of the open stage."""
        self._heard = dict[ClientId, set[bytes]]()
        """Digests of accepted answers' bytes, to recognize them without decoding."""
        self._out, self._is_over = set[ClientId](), False
        self._faults = dict[tuple[object, str, Reason], Fault]()

    # --- What a protocol gives ----------------------------------------------------------------------------------------

    @property
    def is_signed(self) -> bool:
        """Whether ``_check`` verifies a signature of the sender."""
        return False

    def _digest(self, sender: ClientId, message: bytes) -> bytes:
        """Return the digest that identifies an answer's bytes; empty if only ``_check`` can compute it."""
        del sender
        return hashlib.sha256(message).digest()

    @abstractmethod
    def _check(self, sender: ClientId, message: bytes) -> Checked[Content]:
        """Verify an answer whose sender the transport has authenticated; change nothing.

        Raises:
            PeerError: it does not decode, is for another client, session or stage, or is not signed.
        """

    @abstractmethod
    def _take(self, sender: ClientId, content: Content) -> None:
        """Accept a client's first answer in this stage, or raise and change nothing.

        Raises:
            PeerError: it is wrong; if the evidence names only the sender, it is excluded. After a check that may not be
                retried, exclude it with ``_leave``.
            ConnectionError: a helper is lost.
        """

    def _next(self) -> tuple[Stage, Mapping[ClientId, bytes]] | None:
        """Fix the set of answers, and return the next stage with a message for each client in it; None at the end."""
        return None

    def _too_few(self, stage: Stage) -> ThresholdNotMet:
        """Return the error for an open stage with fewer answers than the minimum."""
        return ThresholdNotMet(
            needed=self._minimum, present=len(self._said), what="clients", must=f"answer ({stage.name})"
        )

    def _gather(self, progress: Callable[[int, int], None] | None) -> None:
        """Collect from helpers what the sum needs.

        Raises:
            ThresholdNotMet: too few helpers are available now; nothing is lost, and ``release`` can be called again.
        """

    def _is_enough(self) -> bool:
        """Whether the answers to the open stage will likely lead to a sum."""
        return len(self._said) >= self._minimum

    def _require_enough(self, stage: Stage) -> None:
        """Refuse to close a stage with too few answers, which ends the session."""
        if len(self._said) < self._minimum:
            raise self._too_few(stage)

    @abstractmethod
    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        """Release the sum."""

    @abstractmethod
    def _wipe(self) -> None:
        """Wipe the remaining secrets; called once, at the end, and must not fail."""

    # --- The session --------------------------------------------------------------------------------------------------

    @property
    def invitation(self) -> bytes:
        return self._invitation

    @property
    def stage(self) -> Stage | None:
        return self._stage

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of clients and helpers so far, one per party, stage and reason."""
        with self._lock:
            return tuple(self._faults.values())

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        with self._lock:
            if self._stage is None:
                return frozenset()
            return None if self._waiting is None else frozenset(self._waiting)

    @property
    def participation(self) -> Participation:
        with self._lock:
            if self._stage is None or self._is_full():
                return Participation.COMPLETE
            return Participation.ENOUGH if self._is_enough() else Participation.TOO_FEW

    def _is_full(self) -> bool:
        """Whether no other client can answer the open stage."""
        return self._waiting is not None and not self._waiting

    def message_to(self, client: ClientId) -> bytes | None:
        with self._lock:
            if self._stage is None or not self._is_in(client):
                return None
            return self._invitation if self._messages is None else self._messages[client]

    def receive(self, sender: ClientId, message: bytes) -> None:
        if type(sender) is not ClientId:
            raise Misuse(f"the sender must be an authenticated ClientId; got {type(sender).__name__}")
        message = owned_bytes(message)
        with self._lock:
            again = self._digest(sender, message)
            if again in self._heard.get(sender, ()) and (self._stage is None or sender in self._said):
                return
            if self._stage is None:
                raise UnexpectedMessage(
                    expected="no message; the last stage is closed",
                    received="an answer",
                    culprits=culprits(Evidence.CIRCUMSTANCE),
                )
            if again in self._heard.get(sender, ()):
                raise UnexpectedMessage(
                    expected=f"an answer to the open stage ({self._stage.name})",
                    received="an answer to an earlier stage",
                    culprits=culprits(Evidence.CIRCUMSTANCE),
                )
            if not self._is_in(sender):
                raise PeerMisbehaved(
                    f"{sender} was not invited, or has left", reason=Reason.NOT_ELIGIBLE, culprits=unverified(sender)
                )
            try:
                with self._losing(), blaming(*unverified(sender)):
                    digest = self._answer(sender, message, again)
            except UnexpectedMessage:
                # The answer is late or early; nobody is to blame.
                raise
            except PeerError as error:
                self._record(error, who=sender)
                raise
            known = self._heard.setdefault(sender, set())
            # A client can write the same answer in as many ways as it can sign it.
            if len(known) < _MOST_KNOWN:
                known.add(again or digest)

    def _answer(self, sender: ClientId, message: bytes, digest_of_all: bytes) -> bytes:
        checked = self._check(sender, message)
        digest = digest_of_all if checked.digest is None else checked.digest
        if (before := self._said.get(sender)) is not None:
            if not compare_digest(before, digest):
                raise PeerMisbehaved(
                    f"{sender} sent a second, different answer, as a client does that restarts without its state; the "
                    "first one is used",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=answered_twice(sender, is_signed=self.is_signed),
                )
            return digest
        try:
            self._take(sender, checked.content)
        except PeerError as error:
            if error.culprits == frozenset[Party]({sender}):
                self._leave(sender)
            raise
        self._said[sender] = digest
        if self._waiting is not None:
            self._waiting.discard(sender)
        return digest

    def _record(self, *errors: PeerError, who: Party | None = None) -> None:
        """Record faults; keep only the first per party, reason and stage."""
        stage = self._stage.name if self._stage else ""
        for error in errors:
            fault = Fault.of(error, stage=stage, sender=who)
            self._faults.setdefault((who or error.culprits, stage, error.reason), fault)

    def _is_in(self, client: ClientId) -> bool:
        if client in self._out:
            return False
        due = self._invited if self._messages is None else self._messages
        return due is None or client in due

    def _leave(self, client: ClientId) -> None:
        """Stop accepting answers from a client; what it uploaded stays."""
        if self._invited is None or client in self._invited:
            self._out.add(client)
            if self._waiting is not None:
                self._waiting.discard(client)

    def drop(self, client: ClientId) -> None:
        with self._lock:
            self._leave(client)

    def close_stage(self) -> None:
        with self._lock, self._ending():
            if self._stage is None:
                raise Misuse("no stage is open to close")
            self._require_enough(self._stage)
            with self._losing():
                following = self._next()
            if following is None:
                self._stage = None
                return
            self._stage, self._messages = following
            self._said.clear()
            self._waiting = set(self._messages) - self._out

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        with self._lock:
            if self._stage is not None or self._is_over:
                raise Misuse("close the last stage first; a session releases only once")
            with self._ending(keeps=ThresholdNotMet), self._losing():
                self._gather(progress)
            with self._ending():
                try:
                    with self._losing():
                        return self._sum(progress)
                finally:
                    self.abort()

    def abort(self) -> None:
        with self._lock:
            if not self._is_over:
                self._is_over, self._stage, self._messages = True, None, {}
                self._wipe()

    def snapshot(self) -> Secret | None:
        """Return None: the session must finish in its process."""
        return None

    @contextmanager
    def _losing(self) -> Generator[None]:
        """End the session if a helper or the storage fails."""
        try:
            yield
        except (OSError, Misuse) as error:
            self.abort()
            raise _lost(error) from error

    @contextmanager
    def _ending(self, keeps: type[SecAggError] = Misuse) -> Generator[None]:
        """End the session on errors, except for calls in the wrong order and the errors that it survives."""
        try:
            yield
        except (Misuse, keeps):
            raise
        except (SecAggError, ConnectionError):
            self.abort()
            raise

    def __repr__(self) -> str:
        stage = "over" if self._is_over else self._stage.name if self._stage else "closed"
        return f"<{type(self).__name__}, {stage}, {len(self._said)} answers>"


def _lost(error: Exception) -> ConnectionError:
    """Convert a helper's error: a helper that refuses a call as out of order has forgotten the session."""
    return error if isinstance(error, ConnectionError) else HelperLost(f"a helper or the storage is lost: {error}")
