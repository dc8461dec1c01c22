"""What a client that holds keeps between two messages: a journal in a folder of its node, of one round at a time.

An app runs in another process for each message, so the holder is opened anew for each. Its keys are drawn for a task
of an epoch. It forgets a round when the next one begins, and answers nothing of it from then on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, PeerError
from secagg.protocols.one_message.epoch import EpochRecord
from secagg.protocols.one_message.floors import Floors
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.journal import FileJournal, boot_id, erase_files
from secagg.session.certificates import SigningKey

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
        record.verify(record.authority, record.signature, Label.ONE_MESSAGE_RECORD, record.statement)
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
            expiry = folder.name.partition("-")[0]
            if expiry.isdecimal() and int(expiry) <= self._clock().timestamp():
                erase_files(folder)
                rmtree(folder)
