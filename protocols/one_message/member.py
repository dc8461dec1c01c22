"""A client from one sum to the next, and the holder that it is where an epoch's committee names it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse, PeerError, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.session.certificates import SigningKey
from secagg.session.roles import LateUpdate, Subject
from secagg.wire import MessageKind, message_kind

from .client import Client
from .configuration import Offer
from .epoch import EpochRecord
from .floors import Floors
from .holder import Holder, require_believed
from .journal import FileJournal, boot_id, erase_files, is_journal

_NAME: Final = re.compile(r"([0-9]{1,20})-[0-9a-f]{64}", re.ASCII)
"""Of the folder of one holder: when its epoch ends, and which task's of which epoch it is."""
_LOG: Final = logging.getLogger(__name__)


class Holdings(Confined):
    """The holders that a client is, one for each task of an epoch whose committee names it."""

    def __init__(
        self, folder: Path, signing_key: SigningKey, floors: Floors, clock: Callable[[], datetime], coins: Coins
    ) -> None:
        """Use a folder of this user's that no backup copies, best one in memory."""
        self._folder, self._key, self._floors, self._clock, self._coins = folder, signing_key, floors, clock, coins

    @contextmanager
    def open(self, record: EpochRecord, task: bytes) -> Generator[Holder | None]:
        """Let the holder answer; None where this client is none, or cannot show that it remembers what it said.

        Raises:
            AuthenticationFailed: the record is not signed by its authority.
            InvalidParameters: another authority signed it than the one that this client believes.
        """
        self._destroy_expired()
        require_believed(record, self._floors)
        if record.expiry <= self._clock().timestamp():
            raise InvalidParameters("the epoch is over, and its keys are destroyed; begin another one")
        position = record.position_of(self._key.public_key)
        journal = None if position is None else self._journal(record, task)
        if position is None or journal is None:
            yield None
            return
        with closing(journal):
            holder = Holder(
                record,
                position,
                root=journal.root,
                nonce=journal.nonce,
                journal=journal,
                floors=self._floors,
                clock=self._clock,
                signing_key=self._key,
                forgets=True,
            )
            with closing(holder):
                yield holder

    def _journal(self, record: EpochRecord, task: bytes) -> FileJournal | None:
        digest = record.context.digest
        named = hashlib.sha256(bind(Label.ONE_MESSAGE_HOLDING, digest, task, self._key.public_key)).hexdigest()
        try:
            return FileJournal(self._folder / f"{record.expiry}-{named}", digest, boot_id(), self._coins)
        except (InvalidParameters, PeerError) as error:
            _LOG.warning("this client holds no more for %r, and counts as absent: %s", task, error)
            return None

    def _destroy_expired(self) -> None:
        """Destroy the keys of epochs that are over, of which nobody asks any more."""
        for folder in self._folder.glob("*-*"):
            named = _NAME.fullmatch(folder.name)
            is_over = named is not None and int(named[1]) <= self._clock().timestamp()
            if is_over and folder.is_dir() and not folder.is_symlink() and is_journal(folder):
                erase_files(folder)
                folder.rmdir()


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
