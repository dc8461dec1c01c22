"""What a client has sealed, across epochs: an enclave that starts again has forgotten it, and its host gains by that.

An update that is sealed to a second epoch can be summed twice, with and without another client, and the difference is
that client's. A privacy budget that lives in the enclave alone is full again after every restart. So the client counts.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.session.ledger import Spent, SpentUpdates
from secagg.wire import MessageKind, Reader, Writer

_MAXIMUM_TASK_BYTES: Final = 256


class SealLedger(Confined):
    """How often a client has sealed for one task, and the last model for which it did.

    Security: store ``encode()`` before an upload is sent, and restore it before the next one; a ledger that is lost
        with the process forgets what was spent.
    """

    def __init__(
        self,
        task: bytes,
        *,
        maximum_seals: int | None = None,
        repeats_allowed: bool = False,
        spent: SpentUpdates | None = None,
    ) -> None:
        """Begin a ledger in which nothing was spent.

        Args:
            maximum_seals: how many uploads the client makes for the task, in all epochs together.
            repeats_allowed: whether an update of one model may be sealed again, to another epoch. Each time is charged.
                Allow it only where noise protects every single release.
            spent: what this client has uploaded for all its tasks, on disk; a charge is durable then when it returns.
        """
        if type(task) is not bytes or not 1 <= len(task) <= _MAXIMUM_TASK_BYTES:
            raise Misuse(f"a ledger is for a task: 1 to {_MAXIMUM_TASK_BYTES} bytes")
        if maximum_seals is not None and (type(maximum_seals) is not int or maximum_seals < 1):
            raise Misuse(f"maximum_seals is a positive integer, or None for no limit; got {maximum_seals!r}")
        self.task = task
        self.maximum_seals = maximum_seals
        self.repeats_allowed = repeats_allowed
        self._durable = spent or SpentUpdates()
        self.seals = self._durable.count(task)
        self.last_version = self._durable.last(task)
        self._lock = Lock()

    def charge(self, spent: Spent, *, is_noised: bool) -> None:
        """Remember an update and its model for good, or refuse them; nothing is given back if the upload fails later.

        Raises:
            Misuse, PeerMisbehaved: the ledger is for another task, the budget is spent, the version does not go up, or
                the update or its model was sealed before, under whatever version or task.
        """
        with self._lock:
            self.require_open(spent.task, spent.number, is_noised=is_noised)
            is_repeat_allowed = self.repeats_allowed and is_noised
            self._durable.charge(spent, is_repeat_allowed=is_repeat_allowed, maximum=self.maximum_seals)
            self.seals += 1
            self.last_version = spent.number

    def require_open(self, task: bytes, version: int, *, is_noised: bool) -> None:
        """Refuse what ``charge`` would refuse, before anything is trained; nothing changes."""
        if task != self.task:
            raise Misuse(f"this ledger counts uploads for {self.task!r}; keep one for each task")
        is_repeat = version <= self.last_version
        if is_repeat and not (self.repeats_allowed and is_noised and version == self.last_version):
            raise PeerMisbehaved(
                f"an update of model {self.last_version} was sealed before, and this is of model {version}; two "
                "releases that differ in one client give that client away, so train on a newer model",
                reason=Reason.ALREADY_ANSWERED,
            )
        if self.maximum_seals is not None and self.seals >= self.maximum_seals:
            raise PeerMisbehaved(
                f"this client has sealed {self.seals} uploads, which is its budget for the task",
                reason=Reason.BUDGET_SPENT,
            )

    def encode(self) -> bytes:
        """Return the record to store."""
        writer = Writer(MessageKind.SEAL_LEDGER).variable(self.task, _MAXIMUM_TASK_BYTES)
        writer.integer(self.maximum_seals or 0, 8).integer(self.repeats_allowed, 1)
        return writer.integer(self.seals, 8).integer(self.last_version + 1, 9).finish()

    @classmethod
    def decode(cls, record: bytes) -> SealLedger:
        """Read a stored record back.

        Raises:
            MalformedMessage: it is not what ``encode`` returned.
        """
        reader = Reader(record, MessageKind.SEAL_LEDGER)
        task, maximum, repeats = reader.variable(_MAXIMUM_TASK_BYTES), reader.integer(8), reader.integer(1)
        try:
            ledger = cls(task, maximum_seals=maximum or None, repeats_allowed=bool(repeats))
        except Misuse as error:
            raise MalformedMessage(str(error), reason=Reason.NOT_CANONICAL) from None
        ledger.seals, ledger.last_version = reader.integer(8), reader.integer(9) - 1
        reader.finish()
        is_over = maximum and ledger.seals > maximum
        if is_over or (ledger.seals > 0) != (ledger.last_version >= 0) or ledger.encode() != bytes(record):
            raise MalformedMessage("no ledger writes such a record", reason=Reason.NOT_CANONICAL)
        return ledger

    def __repr__(self) -> str:
        limit = f" of {self.maximum_seals}" if self.maximum_seals is not None else ""
        return f"<SealLedger {self.task!r}: {self.seals}{limit} sealed, the last for model {self.last_version}>"
