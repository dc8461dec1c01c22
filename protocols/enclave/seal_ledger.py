"""How often a client sealed an update for a task, in all epochs of all enclaves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import Misuse
from secagg.session.ledger import Spent, SpentUpdates

_MAXIMUM_TASK_BYTES: Final = 256


class SealLedger(Confined):
    """Number of seals of a client for one task, and the last model among them.

    Security: a ledger without ``SpentUpdates`` of a file forgets its uploads when its process ends.
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
            repeats_allowed: whether updates of one model may be sealed to any number of epochs, each of them charged.
                Allow it only where noise protects every single release.
            spent: the client's record of uploads for all its tasks; durable if it has a file.
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
        """Number of uploads."""
        return self._durable.count(self.task)

    @property
    def last_version(self) -> int:
        """The last model that there was one for, or -1."""
        return self._durable.last(self.task)

    def charge(self, spent: Spent, *, is_noised: bool, bounds: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record an upload before its update is made, or refuse it; a failure later gives nothing back.

        Args:
            bounds: to which updates of the task are cut; the first upload fixes them.
        """
        if spent.task != self.task:
            raise Misuse(f"this ledger counts uploads for {self.task!r}; keep one for each task")
        is_repeat_allowed = self.repeats_allowed and is_noised
        self._durable.keep(self.task, bounds)
        self._durable.charge(spent, is_repeat_allowed=is_repeat_allowed, maximum=self.maximum_seals)

    def __repr__(self) -> str:
        limit = f" of {self.maximum_seals}" if self.maximum_seals is not None else ""
        return f"<SealLedger {self.task!r}: {self.seals}{limit} sealed, the last for model {self.last_version}>"
