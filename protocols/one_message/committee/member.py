"""A client from one sum to the next, and the holder that it is where an epoch's committee names it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse, PeerError, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.protocols.one_message.client import Client
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.epoch import EpochRecord
from secagg.protocols.one_message.holder import Holder
from secagg.session.roles import LateUpdate, Subject
from secagg.wire import MessageKind, message_kind

Holding = Callable[[EpochRecord, bytes], AbstractContextManager[Holder | None]]
"""Opens the holder that a client is for a task, where it is on an epoch's committee."""


def _holding_nothing(record: EpochRecord, task: bytes) -> AbstractContextManager[Holder | None]:
    del record, task
    return nullcontext()


class OneMessageMember(Confined):
    """A client from one sum to the next, and the holder that it is where it is on the epoch's committee."""

    def __init__(
        self, client: ClientId, of_task: Callable[[bytes], Client], holding: Holding = _holding_nothing
    ) -> None:
        """Prepare to join.

        Args:
            of_task: returns the client with its ledger of a task.
            holding: the holder's own memory, from one message to the next.
        """
        self.client, self.of_task, self.holding = client, of_task, holding

    def join(
        self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None
    ) -> OneMessageClientSession:
        """Begin, or go on with what was suspended."""
        record = None if suspended is None else EpochRecord.decode(bytes(suspended.expose()))
        return OneMessageClientSession(self, subject, update, record)


class OneMessageClientSession(Confined):
    """A client's side: one message; on the committee also what is asked of its holder."""

    def __init__(
        self, member: OneMessageMember, subject: Subject, update: LateUpdate | None, record: EpochRecord | None
    ) -> None:
        self._member, self._subject, self._update, self._record = member, subject, update, record
        self._faults, self._is_over = list[PeerError](), False

    @property
    def client(self) -> ClientId:
        """Who this is."""
        return self._member.client

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """Return why this client's holder has no part in the sum; a client hears of no other client."""
        return tuple(self._faults)

    def answer(self, message: bytes) -> bytes:
        """Return the upload, or what the holder answers."""
        if self._is_over:
            raise Misuse("the client has left this session", reason=Reason.ALREADY_SPENT)
        kind = message_kind(message)
        if kind is MessageKind.ONE_MESSAGE_OFFER:
            return self._upload(message)
        is_record = kind is MessageKind.ONE_MESSAGE_RECORD
        if (record := EpochRecord.decode(message) if is_record else self._record) is not None:
            with self._member.holding(record, self._subject.task) as holder:
                # A record is believed once its signature was checked.
                self._record = record
                if holder is not None:
                    return holder.respond(message)
            if is_record:
                return self._member.of_task(self._subject.task).holds_nothing(record)
        raise UnexpectedMessage(expected="an offer", received=kind.name)

    def _upload(self, offer: bytes) -> bytes:
        if self._update is None:
            raise InvalidParameters("an offer is answered with an upload, and there is no update to upload")
        record = EpochRecord.decode(Offer.decode(offer).record)
        with self._member.holding(record, self._subject.task) as holder:
            try:
                self._record = None
                if holder is not None:
                    holder.respond(offer)
                    self._record = record
            except PeerError as error:
                # An absent holder is still a client.
                self._faults.append(error)
        return self._member.of_task(self._subject.task).upload(offer, self._subject, self._update)

    def suspend(self) -> Secret | None:
        """Return the epoch's record; what a holder goes on with is its own memory, and leaves that never."""
        record = None if self._is_over else self._record
        self._is_over = True
        return None if record is None else Secret("one-message record", record.encode())

    def abort(self) -> None:
        """Leave; an update that was taken stays spent."""
        self._is_over = True

    def __repr__(self) -> str:
        return f"<OneMessageClientSession of {self.client}>"
