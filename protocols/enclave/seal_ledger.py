"""Ledger of a client's sealed updates for a task, over all epochs and enclaves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import Misuse
from secagg.session.ledger import Spent, SpentUpdates

_MAXIMUM_TASK_BYTES: Final = 256


class SealLedger(Confined):
    """Counts one client's uploads for a task and records the newest model.

    Security: without ``SpentUpdates`` that has a file, the ledger is lost when the process ends.
    """

    def __init__(
        self,
        task: bytes,
        *,
        maximum_seals: int | None = None,
        repeats_allowed: bool = False,
        spent: SpentUpdates | None = None,
    ) -> None:
        """Create a ledger.

        Args:
            maximum_seals: limit on the client's uploads for the task, over all epochs.
            repeats_allowed: whether updates of one model may be sealed to any number of epochs, each of them charged;
                only safe if noise protects every release.
            spent: the client's record of uploads for all tasks; durable if it has a file.
        """
        if type(task) is not bytes or not 1 <= len(task) <= _MAXIMUM_TASK_BYTES:
            raise Misuse(f"the task of a SealLedger must have 1 to {_MAXIMUM_TASK_BYTES} bytes")
        if maximum_seals is not None and (type(maximum_seals) is not int or maximum_seals < 1):
            raise Misuse(f"maximum_seals must be a positive integer, or None for no limit; got {maximum_seals!r}")
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
        """The newest model with an upload, or -1."""
        return self._durable.last(self.task)

    def charge(self, spent: Spent, *, is_noised: bool, bounds: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record an upload before its update is computed, or refuse it; a later failure does not refund it.

        Args:
            bounds: the task's norms, to which updates are scaled down; the first upload fixes them.
        """
        if spent.task != self.task:
            raise Misuse(f"this ledger is for task {self.task!r}, not {spent.task!r}; keep one ledger per task")
        is_repeat_allowed = self.repeats_allowed and is_noised
        self._durable.keep(self.task, bounds)
        self._durable.charge(spent, is_repeat_allowed=is_repeat_allowed, maximum=self.maximum_seals)

    def __repr__(self) -> str:
        limit = f" of {self.maximum_seals}" if self.maximum_seals is not None else ""
        return f"<SealLedger {self.task!r}: {self.seals}{limit} sealed, the last for model {self.last_version}>"
