"""What a client has sealed, across epochs: an enclave that starts again has forgotten it, and its host gains by that.

An update that is sealed to a second epoch can be summed twice, with and without another client, and the difference is
that client's. A privacy budget that lives in the enclave alone is full again after every restart. So the client counts.
"""

from __future__ import annotations

from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import Misuse, PeerMisbehaved, Reason
from secagg.session.ledger import Spent, SpentUpdates

_MAXIMUM_TASK_BYTES: Final = 256


class SealLedger(Confined):
    """How often a client has sealed for one task, and the last model for which it did.

    Security: a ledger without ``SpentUpdates`` of a file forgets what was spent when its process ends.
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

    @property
    def seals(self) -> int:
        """How many uploads there were."""
        return self._durable.count(self.task)

    @property
    def last_version(self) -> int:
        """The last model that there was one for, or -1."""
        return self._durable.last(self.task)

    def charge(self, spent: Spent, *, is_noised: bool) -> None:
        """Remember an update and its model for good, or refuse them; nothing is given back if the upload fails later.

        Raises:
            Misuse, PeerMisbehaved: the ledger is for another task, the budget is spent, the version does not go up, or
                the update or its model was sealed before, under whatever version or task.
        """
        self.require_open(spent.task, spent.number, is_noised=is_noised)
        is_repeat_allowed = self.repeats_allowed and is_noised
        # Looked at again, by what all ledgers of this client have in common.
        self._durable.charge(spent, is_repeat_allowed=is_repeat_allowed, maximum=self.maximum_seals)

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

    def __repr__(self) -> str:
        limit = f" of {self.maximum_seals}" if self.maximum_seals is not None else ""
        return f"<SealLedger {self.task!r}: {self.seals}{limit} sealed, the last for model {self.last_version}>"
