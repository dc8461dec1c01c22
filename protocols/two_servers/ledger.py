"""What a client has uploaded so far: one upload for each round, and no update twice.

Two sums that differ in one client give that client away. The servers of one round see to it that there is one sum; a
client sees to it that no update of its own is in two rounds.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from secagg.contract import Payload
from secagg.crypto.secret import Confined
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.session.ledger import Spent, SpentUpdates, values_digest
from secagg.wire import MessageKind, Reader, Writer

_MAXIMUM_TASK_BYTES: Final = 256
_DIGEST_BYTES: Final = 32
_ROUND_BYTES: Final = 8
REMEMBERED: Final = 256
"""How many updates are remembered; rounds only go up, so older ones can be repeated by the client alone."""


class UploadLedger(Confined):
    """The last round of a task for which a client uploaded, and digests of its last updates.

    Security: store ``encode()`` before an upload is sent, where nobody else reads it: a digest of an update lets
        whoever has it test guesses.
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
        self.last_round = self._durable.last(task)
        self._spent = list[bytes]()
        self._lock = Lock()

    def charge(self, task: bytes, round_number: int, payload: Payload) -> None:
        """Count one upload, or refuse it; nothing is given back if the upload fails later.

        Claim DP-5: no update is uploaded for two rounds, and a round has one upload.
        Raises:
            Misuse: the ledger is for another task, or this very update was uploaded before.
            PeerMisbehaved: the round was answered before, or is older than one that was.
        """
        digest = values_digest(payload)
        with self._lock:
            self.require_open(task, round_number)
            if digest in self._spent:
                raise Misuse(
                    "this update was uploaded for an earlier round, and two sums that differ in one client give that "
                    "client away; train again",
                    reason=Reason.ALREADY_SPENT,
                )
            self._durable.charge(Spent(task, round_number, digest))
            self.last_round = round_number
            self._spent = [*self._spent, digest][-REMEMBERED:]

    def require_open(self, task: bytes, round_number: int) -> None:
        """Refuse a round that ``charge`` would refuse, before anything is trained; nothing changes."""
        if task != self.task:
            raise Misuse(f"this ledger counts uploads for {self.task!r}; keep one for each task")
        if round_number <= self.last_round:
            raise PeerMisbehaved(
                f"this client uploaded for round {self.last_round}, and is asked for round {round_number}; rounds go "
                "up, and each has one upload",
                reason=Reason.ALREADY_ANSWERED,
            )

    def encode(self) -> bytes:
        """Return the record to store."""
        writer = Writer(MessageKind.UPLOAD_LEDGER).variable(self.task, _MAXIMUM_TASK_BYTES)
        writer.integer(self.last_round + 1, _ROUND_BYTES + 1).integer(len(self._spent), 4)
        for digest in self._spent:
            writer.fixed(digest, _DIGEST_BYTES)
        return writer.finish()

    @classmethod
    def decode(cls, record: bytes) -> UploadLedger:
        """Read a stored record back.

        Raises:
            MalformedMessage: it is not what ``encode`` returned.
        """
        reader = Reader(record, MessageKind.UPLOAD_LEDGER)
        task, last_round = reader.variable(_MAXIMUM_TASK_BYTES), reader.integer(_ROUND_BYTES + 1)
        count = reader.integer(4)
        if count > REMEMBERED:
            raise MalformedMessage("no ledger remembers so many updates", reason=Reason.LENGTH_OVER_LIMIT)
        spent = [reader.fixed(_DIGEST_BYTES) for _ in range(count)]
        reader.finish()
        try:
            ledger = cls(task)
        except Misuse as error:
            raise MalformedMessage(str(error), reason=Reason.NOT_CANONICAL) from None
        ledger.last_round, ledger._spent = last_round - 1, spent
        is_written = min(last_round, 1) <= count <= last_round <= 1 << (8 * _ROUND_BYTES)
        if len(set(spent)) != count or not is_written:
            raise MalformedMessage("no ledger writes such a record", reason=Reason.NOT_CANONICAL)
        return ledger

    def __repr__(self) -> str:
        return f"<UploadLedger {self.task!r}: the last upload was for round {self.last_round}>"
