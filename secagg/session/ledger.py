"""Ledgers of a client's uploads across tasks and restarts: count rounds and digests of models.

Two sums that differ in one client reveal that client's update. So each round of a task gets one upload, and updates of
one model go into only a few sums, whatever a server calls its rounds, tasks and layouts. Values are never remembered:
two updates may be equal because a server's bound clipped both, and a refusal would reveal that.

A second ledger adds up the privacy losses of noised sums. Only the client can keep it: a server sees one task, but a
client may take part in many.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS
from secagg.privacy.accounting import NO_LOSS, NOT_NOISED, Loss, PrivacyBudget
from secagg.privacy.client_noise import ClientNoise

from .store import Store, named_in_memory

DIGEST_BYTES: Final = 32
NO_MODEL: Final = bytes(DIGEST_BYTES)
_WORD_BYTES: Final = 4
_OFFSET: Final = 1 << 63
"""Unsigned 64-bit numbers are stored shifted into the signed range of SQLite."""
_BISECTS: Final = "sums under several would reveal single values; keep the bound, or start a new task on the server"
NO_UPDATE: Final = bytes(DIGEST_BYTES)
"""Placeholder for the digest of an update that is created for its session."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One upload."""

    task: bytes
    number: int
    """Number of the round, or of the model's version; increases within a task."""
    model: bytes = NO_MODEL
    """Digest of the model that the update is trained from."""
    update: bytes = NO_UPDATE
    """Digest of the update itself, only if its client had it before any session, as in a file."""


def uncharged(_: Spent) -> None:
    """Charge nothing: the update itself is charged, or nothing outlives the session, as in a simulation."""


class SpentUpdates(Confined):
    """The uploads that used some data, in memory or in a folder's store, which processes share.

    A charge is durable when ``charge`` returns.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        data: str = "",
        attempts: int | None = ATTEMPTS,
        is_one_folder: bool = False,
    ) -> None:
        """Open the store of a folder, or one in memory.

        Args:
            data: the operator's name for the data that updates are trained on; clients with the same data share it.
            attempts: maximum number of uploads per model, under any task and number; None only in simulations.
            is_one_folder: whether to refuse an update for a second sum under any name of the data.
        Raises:
            InvalidParameters: the folder's state cannot be trusted, or attempts is below 1.
        """
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise InvalidParameters(f"attempts, the uploads per model, must be at least 1; got {attempts!r}")
        self._folder, self._data, self._attempts, self._is_one_folder = folder, data, attempts, is_one_folder
        if folder is None:
            self._data = named_in_memory(self)
        self._store()

    def _store(self) -> Store:
        return Store.at(self._folder)

    def transaction(self) -> AbstractContextManager[object]:
        """Return a transaction that makes charges of this ledger and others in the same folder all or none."""
        return self._store().transaction()

    def last(self, task: bytes) -> int:
        """Return the highest number uploaded for a task; -1 if there is none."""
        return self._of_task(task)[0]

    def count(self, task: bytes) -> int:
        """Return the number of uploads for a task."""
        return self._of_task(task)[1]

    def require_open(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Refuse what ``charge`` would refuse; nothing changes."""
        last, uploads = self._of_task(spent.task)
        if spent.number < last or (spent.number == last and not is_repeat_allowed):
            raise PeerMisbehaved(
                f"this client already uploaded for number {last}, and is asked for {spent.number}; numbers must "
                "increase within a task, with one upload each",
                reason=Reason.ALREADY_ANSWERED,
                culprits=NOBODY,
            )
        if maximum is not None and uploads >= maximum:
            raise PeerMisbehaved(
                f"this client has made {maximum} uploads, its maximum for the task",
                reason=Reason.BUDGET_SPENT,
                culprits=NOBODY,
            )
        if is_repeat_allowed:
            return
        if spent.update != NO_UPDATE and self._is_summed(spent):
            raise Misuse(
                f"the ledger in {self._folder or 'memory'} shows that this update was already uploaded; two sums "
                "that differ in one client reveal its update: train again, and send the new one",
                reason=Reason.ALREADY_SPENT,
            )
        if self._attempts is None or spent.model == NO_MODEL:
            return
        if self._row("SELECT count(*) FROM uploads WHERE (data, model) = (?, ?)", spent.model)[0] >= self._attempts:
            times = "once" if self._attempts == 1 else f"{self._attempts} times"
            raise PeerMisbehaved(
                f"this client has uploaded {times} for the model of number {spent.number}, counting all tasks; "
                "two sums of updates of one model can reveal a client's update",
                reason=Reason.ALREADY_ANSWERED,
                culprits=NOBODY,
            )

    def charge(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Record an upload before its update is made, or refuse it; an upload that fails later stays charged.

        Concurrent sessions may all have passed ``require_open``; this decision is final.

        Args:
            is_repeat_allowed: whether an update or a model may be uploaded again, because noise protects each release.
            maximum: maximum number of uploads for the task; None for any number.
        Raises:
            Misuse: this very update was already uploaded.
            PeerMisbehaved: the number does not increase, the model has used its attempts, or the budget is spent.
            InvalidParameters: the folder's state is not the newest.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        if len(spent.update) != DIGEST_BYTES or len(spent.model) != DIGEST_BYTES:
            raise Misuse(f"an upload's digests must be {DIGEST_BYTES} bytes")
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
                        f"{name} is {value}, but was {known} in an earlier sum of the same data: {why}",
                        reason=Reason.BELOW_FLOOR,
                    )

    def keep(self, task: bytes, bounds: Mapping[str, str], why: str = _BISECTS) -> None:
        """Fix a task's bounds when its first update is charged, before data are read; refuse any other bounds.

        A server that varies a bound from sum to sum can bisect what it clips: a value, a norm, a number of examples.

        Args:
            why: reason for refusing other bounds, and what to do.
        Raises:
            InvalidParameters: a bound differs from the earlier one.
        """
        store = self._store()
        with store.transaction():
            self.require_kept(task, bounds, why)
            for name, value in bounds.items():
                store.fixed(self._data, task, name, value.encode)

    def word_for(self, examples: float, coins: Coins) -> int:
        """Return 32 random bits for rounding a number of examples, always the same for this number.

        Sums over many rounds, tasks and cohorts then reveal the rounded number, but not the number.
        """
        name = f"rounding of {float(examples)} examples"
        drawn = self._store().fixed(self._data, b"", name, lambda: bytes(coins.draw(_WORD_BYTES)))
        return int.from_bytes(drawn, "big")

    def _is_summed(self, spent: Spent) -> bool:
        if self._row("SELECT count(*) FROM uploads WHERE (data, content) = (?, ?)", spent.update)[0]:
            return True
        # A client without a key may have any name, and one sum may contain the same values from several.
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


class PrivacyLedger(Confined):
    """Privacy losses of some data, in memory or in a folder's store; a charge is durable when ``charge`` returns.

    Nothing is ever refunded: a server may have received an upload that seems lost after ``charge``.
    """

    def __init__(self, budget: PrivacyBudget, *, data: str = "", folder: Path | None = None) -> None:
        """Enforce a budget; earlier losses count, whatever the budget was then.

        Args:
            data: the operator's name for the data, independent of keys and authorities.
            folder: None keeps it in memory, for simulations and tests.
        """
        self.budget, self._data, self._folder = budget, data, folder
        if folder is None:
            self._data = named_in_memory(self)

    @property
    def spent(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return self.budget.spent(self._spent()[0])

    @property
    def uploads(self) -> int:
        return self._spent()[1]

    @property
    def event(self) -> Any:  # noqa: ANN401 -- of dp-accounting, which has no types
        """The client's releases as an event of ``dp-accounting``; only this ledger decides on uploads."""
        return self._spent()[0].event

    def require_room(self, noise: ClientNoise | None) -> None:
        """Refuse a session that the budget cannot cover, before anything is drawn for it; nothing changes.

        Raises:
            InvalidParameters: the session has no noise, or would exceed the budget; the message says what to change.
        """
        self._cost(noise)

    def charge(self, noise: ClientNoise | None) -> None:
        """Record an upload permanently, or refuse it; call it before the noise is drawn.

        Concurrent sessions may all have found room; this decision is final.

        Raises:
            InvalidParameters: as for ``require_room``, or the state is not the newest; nothing may be sent.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        with self._store().transaction() as rows:
            spent, uploads = self._cost(noise)
            rows.execute(
                "INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._data, self.budget.adjacency.value, uploads + 1, *spent.numbers),
            )

    def _cost(self, noise: ClientNoise | None) -> tuple[Loss, int]:
        """Return the total loss including this upload, and the number of earlier uploads."""
        if noise is None:
            raise InvalidParameters(NOT_NOISED, reason=Reason.BELOW_FLOOR)
        cost, (spent, uploads) = noise.loss(self.budget.adjacency), self._spent()
        self.budget.require_room(spent, uploads, cost, noise.multiplier)
        return spent + cost, uploads

    def _spent(self) -> tuple[Loss, int]:
        with self._store().transaction() as rows:
            found = self._found(rows)
        if found is None:
            return NO_LOSS, 0
        adjacency, uploads, *numbers = found
        if adjacency != self.budget.adjacency.value:
            raise InvalidParameters(
                f"the privacy ledger of {self._data!r} uses a different adjacency; give its budget the same one"
            )
        loss = Loss(*numbers)
        # A divergence's bound is positive at every order; only the offset may be below 0.
        if not all(map(isfinite, loss.numbers)) or min(loss.slope, loss.more, loss.most) < 0 or uploads < 1:
            raise InvalidParameters(f"the privacy ledger of {self._data!r} contains a loss that is not a number")
        return loss, uploads

    def _found(self, rows: sqlite3.Connection) -> Any:  # noqa: ANN401 -- of a database
        return rows.execute(
            "SELECT adjacency, uploads, slope, more, offset, most FROM losses WHERE data = ?", (self._data,)
        ).fetchone()

    def _store(self) -> Store:
        return Store.at(self._folder)

    def __repr__(self) -> str:
        return (
            f"<PrivacyLedger of {self._data!r}{'' if self._folder is None else f' in {self._folder}'}, {self.budget}>"
        )


class PrivacyLedgers:
    """In-memory ledgers of simulated clients."""

    def __init__(self, budget: PrivacyBudget | None) -> None:
        self._budget, self._known = budget, dict[ClientId, PrivacyLedger]()

    def of(self, client: ClientId) -> PrivacyLedger | None:
        if self._budget is None:
            return None
        return self._known.setdefault(client, PrivacyLedger(self._budget))
