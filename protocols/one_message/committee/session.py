"""A sum whose holders are clients that have not published their keys yet: one stage before the others.

Nobody knows which clients will answer, so all are asked; those that hold nothing say so. The keys serve all further
sums of a task, which begin with the upload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import RLock
from typing import Final

from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Misuse, PeerError, PeerMisbehaved, Reason, ThresholdNotMet, UnexpectedMessage, blaming
from secagg.identifiers import ClientId, HolderId
from secagg.privacy.client_noise import ClientNoise, noise_in
from secagg.protocols.one_message.epoch import HolderKeys
from secagg.protocols.one_message.messages import NoHolder, require_signed_by
from secagg.protocols.one_message.plan import OneMessageSettings
from secagg.protocols.one_message.session import OneMessageHelpers, open_session
from secagg.session.roles import Released, ServerSession, Stage, Subject, Turnout
from secagg.wire import MessageKind, message_kind

KEYS: Final = Stage(name="keys", takes_update=False)


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
            raise PeerMisbehaved(f"{sender} is not invited, or has left", reason=Reason.NOT_ELIGIBLE)
        if message_kind(message) is MessageKind.ONE_MESSAGE_NO_HOLDER:
            said = NoHolder.decode(message)
            if said.record != digest or said.client != sender:
                raise PeerMisbehaved(f"{sender} answers for another epoch or client", reason=Reason.WRONG_SESSION)
            require_signed_by(
                self._record, sender, said.identity, said.signature, Label.ONE_MESSAGE_NO_HOLDER, *said.parts
            )
            if position is not None:
                raise PeerMisbehaved(
                    f"{sender} is {HolderId(position)} and publishes no keys; its own log says why",
                    reason=Reason.NOT_ELIGIBLE,
                )
            return
        keys = HolderKeys.decode(message)
        if position is None or keys.position != position or keys.record != digest:
            raise PeerMisbehaved(f"{sender} publishes keys of another holder or epoch", reason=Reason.WRONG_SESSION)
        self._record.verify(
            self._record.holders[position].public_key,
            keys.signature,
            Label.ONE_MESSAGE_HOLDER_KEYS,
            *keys.parts,
            culprits={sender},
        )
        if self._keys.setdefault(position, message) != message:
            raise PeerMisbehaved(f"{sender} publishes two keys", reason=Reason.ALREADY_ANSWERED)

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
