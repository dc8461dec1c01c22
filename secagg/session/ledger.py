"""Ledger of a client's uploads across tasks and restarts: rounds, and digests of models, each counted.

Two sums that differ in one client give that client away. So a round of a task has one upload, and the updates of one
model go into a few sums at most, whatever a server calls its rounds, tasks and layouts. Values are never remembered:
two updates may be equal because a server's bound cut both, and a refusal would tell that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.parameters import ATTEMPTS

from .store import Store, named_in_memory

DIGEST_BYTES: Final = 32
NO_MODEL: Final = bytes(DIGEST_BYTES)
_WORD_BYTES: Final = 4
_OFFSET: Final = 1 << 63
"""Numbers of 64 bits without a sign are stored as those with one, which SQLite has."""
_BISECTS: Final = "sums under several would reveal single values; the server keeps it, or begins another task"
NO_UPDATE: Final = bytes(DIGEST_BYTES)
"""Digest in the place of an update that is made for its session."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One upload."""

    task: bytes
    number: int
    """Number of the round, or of the model's version; it goes up within a task."""
    model: bytes = NO_MODEL
    """The digest of the model that the update is trained from."""
    update: bytes = NO_UPDATE
    """The digest of the update itself, only where its client had it before it knew of any session, as in a file."""


def uncharged(_: Spent) -> None:
    """Charge nothing: the update itself is charged, or nothing outlives the session, as in a simulation."""


class SpentUpdates(Confined):
    """The uploads that were made of some data, in memory or in the store of a folder, which processes share.

    What ``charge`` did is durable when it returns.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        data: str = "",
        attempts: int | None = ATTEMPTS,
        is_one_folder: bool = False,
    ) -> None:
        """Use the store of a folder, or one in memory.

        Args:
            data: the operator's name of the data that updates are made from; clients with the same data share it.
            attempts: uploads for one model at most, under any task and number; None only in simulations.
            is_one_folder: whether an update is refused for a second sum under any name of the data.
        Raises:
            InvalidParameters: the folder's state cannot be trusted, or there are no attempts.
        """
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise InvalidParameters(f"attempts are the uploads for one model, 1 or more; got {attempts!r}")
        self._folder, self._data, self._attempts, self._is_one_folder = folder, data, attempts, is_one_folder
        if folder is None:
            self._data = named_in_memory(self)
        self._store()

    def _store(self) -> Store:
        return Store.at(self._folder)

    def transaction(self) -> AbstractContextManager[object]:
        """Let charges of this ledger, and of others in the same folder, be made together or not at all."""
        return self._store().transaction()

    def last(self, task: bytes) -> int:
        """Return the greatest number of a task; -1 if nothing was uploaded for it."""
        return self._of_task(task)[0]

    def count(self, task: bytes) -> int:
        """Return the number of uploads for a task."""
        return self._of_task(task)[1]

    def require_open(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Refuse what ``charge`` would refuse; nothing changes."""
        last, uploads = self._of_task(spent.task)
        if spent.number < last or (spent.number == last and not is_repeat_allowed):
            raise PeerMisbehaved(
                f"this client uploaded for number {last}, and is asked for {spent.number}; numbers go up within a "
                "task, and each has one upload",
                reason=Reason.ALREADY_ANSWERED,
                culprits=NOBODY,
            )
        if maximum is not None and uploads >= maximum:
            raise PeerMisbehaved(
                f"this client has made {maximum} uploads, which is its budget for the task",
                reason=Reason.BUDGET_SPENT,
                culprits=NOBODY,
            )
        if is_repeat_allowed:
            return
        if spent.update != NO_UPDATE and self._is_summed(spent):
            raise Misuse(
                f"this update was uploaded before, says the ledger in {self._folder or 'memory'}; two sums that differ "
                "in one client reveal its update: train again, and send the new one",
                reason=Reason.ALREADY_SPENT,
            )
        if self._attempts is None or spent.model == NO_MODEL:
            return
        if self._row("SELECT count(*) FROM uploads WHERE (data, model) = (?, ?)", spent.model)[0] >= self._attempts:
            times = "once" if self._attempts == 1 else f"{self._attempts} times"
            raise PeerMisbehaved(
                f"this client has uploaded {times} for the model of number {spent.number}, whatever its number and "
                "task were; two sums of updates of one model can give a client away",
                reason=Reason.ALREADY_ANSWERED,
                culprits=NOBODY,
            )

    def charge(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Remember an upload before its update is made, or refuse it; nothing is given back if the upload fails later.

        Sessions side by side may each have looked before; this decision holds for all of them.

        Args:
            is_repeat_allowed: whether an update or a model may be uploaded again, where noise protects each release.
            maximum: how many uploads there may be for the task; None for any number.
        Raises:
            Misuse: this very update was uploaded before.
            PeerMisbehaved: the number does not go up, the model has had its attempts, or the budget is spent.
            InvalidParameters: the state of the folder is not its newest.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        if len(spent.update) != DIGEST_BYTES or len(spent.model) != DIGEST_BYTES:
            raise Misuse(f"an upload is known by digests of {DIGEST_BYTES} bytes")
        with self._store().transaction() as rows:
            self.require_open(spent, is_repeat_allowed=is_repeat_allowed, maximum=maximum)
            rows.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?)",
                (self._data, spent.task, spent.number - _OFFSET, spent.model, spent.update),
            )

    def require_kept(self, task: bytes, bounds: Mapping[str, str], why: str = _BISECTS) -> None:
        """Refuse what ``keep`` would refuse; nothing changes, so an offer that is refused later fixes nothing."""
        with self._store().transaction() as rows:
            for name, value in bounds.items():
                found = rows.execute(
                    "SELECT value FROM fixed WHERE (data, task, name) = (?, ?, ?)", (self._data, task, name)
                ).fetchone()
                if found is not None and (known := bytes(found[0]).decode()) != value:
                    raise InvalidParameters(
                        f"{name} is {value}, and was {known} in a sum of the same data before: {why}",
                        reason=Reason.BELOW_FLOOR,
                    )

    def keep(self, task: bytes, bounds: Mapping[str, str], why: str = _BISECTS) -> None:
        """Write down the bounds of a task as its first update is charged, and refuse others; before data are read.

        A server that changes a bound from sum to sum bisects what it cuts: a value, a norm, a number of examples.

        Args:
            why: others are refused, and what to do.
        Raises:
            InvalidParameters: a bound is another one than it was.
        """
        store = self._store()
        with store.transaction():
            self.require_kept(task, bounds, why)
            for name, value in bounds.items():
                store.fixed(self._data, task, name, value.encode)

    def word_for(self, examples: float, coins: Coins) -> int:
        """Return 32 random bits by which a number of examples is rounded, the same ones for good.

        Sums of many rounds, tasks and cohorts reveal what was rounded, and not the number.
        """
        name = f"rounding of {float(examples)} examples"
        drawn = self._store().fixed(self._data, b"", name, lambda: bytes(coins.draw(_WORD_BYTES)))
        return int.from_bytes(drawn, "big")

    def _is_summed(self, spent: Spent) -> bool:
        if self._row("SELECT count(*) FROM uploads WHERE (data, content) = (?, ?)", spent.update)[0]:
            return True
        # Without a key a client has any name that it is called by, and one sum may have the same values from several.
        others = "SELECT count(*) FROM uploads WHERE data != ? AND content = ? AND (task, number) != (?, ?)"
        return self._is_one_folder and self._row(others, spent.update, spent.task, spent.number - _OFFSET)[0] > 0

    def _of_task(self, task: bytes) -> tuple[int, int]:
        last, uploads = self._row("SELECT max(number), count(*) FROM uploads WHERE (data, task) = (?, ?)", task)
        return -1 if last is None else last + _OFFSET, uploads

    def _row(self, statement: str, *arguments: bytes | int) -> Any:  # noqa: ANN401 -- of a database
        with self._store().transaction() as rows:
            return rows.execute(statement, (self._data, *arguments)).fetchone()

    def __repr__(self) -> str:
        (uploads,) = self._row("SELECT count(*) FROM uploads WHERE data = ?")
        return f"<SpentUpdates of {self._data!r}, {uploads} uploads>"
