"""What a client has uploaded so far: one upload for each round, and few for one model.

Two sums that differ in one client give that client away. The servers of one round see to it that there is one sum; a
client sees to it that updates of one model are in few rounds.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.session.ledger import DIGEST_BYTES, NO_MODEL, Spent, SpentUpdates
from secagg.wire import MessageKind, Reader, Writer

_MAXIMUM_TASK_BYTES: Final = 256
_ROUND_BYTES: Final = 8
REMEMBERED: Final = 256
"""How many uploads a record has, the last ones."""


class UploadLedger(Confined):
    """The rounds of a task for which a client uploaded, and their models.

    Security: store ``encode()`` before an upload is sent.
    """

    def __init__(self, task: bytes, *, spent: SpentUpdates | None = None) -> None:
        """Begin a ledger in which nothing was spent, or go on from what a client has uploaded for all its tasks.

        Args:
            spent: of this client, on disk; a charge is durable then when it returns.
        """
        if type(task) is not bytes or not 1 <= len(task) <= _MAXIMUM_TASK_BYTES:
            raise Misuse(f"a ledger is for a task: 1 to {_MAXIMUM_TASK_BYTES} bytes")
        self.task = task
        self._durable = spent or SpentUpdates()
        self._charged = list[tuple[int, bytes]]()
        self._lock = Lock()

    @property
    def last_round(self) -> int:
        """The last round that there was an upload for, or -1."""
        return self._durable.last(self.task)

    def charge(self, task: bytes, round_number: int, model: bytes = NO_MODEL) -> None:
        """Count one upload before its update is made, or refuse it; a failure later gives nothing back.

        Claim DP-5: a round has one upload, and a model as many as it has attempts.
        Raises:
            Misuse: the ledger is for another task.
            PeerMisbehaved: the round was answered before, or is older than one that was, or the model has had its
                attempts.
        """
        if task != self.task:
            raise Misuse(f"this ledger counts uploads for {self.task!r}; keep one for each task")
        with self._lock:
            self._durable.charge(Spent(task, round_number, model))
            self._charged = [*self._charged, (round_number, model)][-REMEMBERED:]

    def encode(self) -> bytes:
        """Return the record to store."""
        writer = Writer(MessageKind.UPLOAD_LEDGER).variable(self.task, _MAXIMUM_TASK_BYTES)
        writer.integer(len(self._charged), 4)
        for number, model in self._charged:
            writer.integer(number, _ROUND_BYTES).fixed(model, DIGEST_BYTES)
        return writer.finish()

    @classmethod
    def decode(cls, record: bytes, *, spent: SpentUpdates | None = None) -> UploadLedger:
        """Read a stored record back.

        Args:
            spent: nothing yet, with another number of attempts than the usual one.
        Raises:
            MalformedMessage: it is not what ``encode`` returned.
        """
        reader = Reader(record, MessageKind.UPLOAD_LEDGER)
        task, count = reader.variable(_MAXIMUM_TASK_BYTES), reader.integer(4)
        if count > REMEMBERED:
            raise MalformedMessage("no ledger remembers so many updates", reason=Reason.LENGTH_OVER_LIMIT)
        charged = [(reader.integer(_ROUND_BYTES), reader.fixed(DIGEST_BYTES)) for _ in range(count)]
        reader.finish()
        try:
            ledger = cls(task, spent=spent)
            for number, model in charged:
                ledger.charge(task, number, model)
        except (Misuse, PeerMisbehaved) as error:
            raise MalformedMessage(f"no ledger writes such a record: {error}", reason=Reason.NOT_CANONICAL) from None
        return ledger

    def __repr__(self) -> str:
        return f"<UploadLedger {self.task!r}: the last upload was for round {self.last_round}>"
