"""Ledger of a client's privacy budget: the cost of each noised sum, added up over all tasks and restarts.

Nobody else can know it: a server sees one task, and a client may be in many.
"""

from __future__ import annotations

import sqlite3
from math import isfinite
from pathlib import Path
from typing import Any

from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.privacy.accounting import NO_LOSS, NOT_NOISED, Loss, PrivacyBudget
from secagg.privacy.client_noise import ClientNoise

from .store import Store, named_in_memory


class PrivacyLedger(Confined):
    """The losses of some data, in memory or in the store of a folder; what ``charge`` did is durable when it returns.

    Nothing is ever given back: an upload that was lost after ``charge`` is one that a server may have.
    """

    def __init__(self, budget: PrivacyBudget, *, data: str = "", folder: Path | None = None) -> None:
        """Keep to a budget; earlier spending counts, whatever the budget was then.

        Args:
            data: the operator's name of the data, under whatever key and authority they are used.
            folder: None keeps it in memory, for simulations and tests.
        """
        self.budget, self._data, self._folder = budget, data, folder
        if folder is None:
            self._data = named_in_memory(self)

    @property
    def spent(self) -> float:
        """The epsilon that was spent so far, at the budget's delta."""
        return self.budget.spent(self._spent()[0])

    @property
    def uploads(self) -> int:
        return self._spent()[1]

    @property
    def event(self) -> Any:  # noqa: ANN401 -- of dp-accounting, which has no types
        """What this client released, as an event of ``dp-accounting``; this ledger alone decides on uploads."""
        return self._spent()[0].event

    def require_room(self, noise: ClientNoise | None) -> None:
        """Refuse a session that the budget cannot cover, before anything is drawn for it; nothing changes.

        Raises:
            InvalidParameters: it has no noise, or would pass the budget; the message says what to change.
        """
        self._cost(noise)

    def charge(self, noise: ClientNoise | None) -> None:
        """Remember one upload for good, or refuse it; to be called before its noise is drawn.

        Sessions side by side may each have found room; this decision holds for all of them.

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
        """Return what will have been spent with this upload, and the number of uploads before."""
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
                f"the privacy ledger of {self._data!r} counts with another adjacency; give its budget that one"
            )
        loss = Loss(*numbers)
        # A bound of a divergence is positive at every order; the offset alone may be below 0.
        if not all(map(isfinite, loss.numbers)) or min(loss.slope, loss.more, loss.most) < 0 or uploads < 1:
            raise InvalidParameters(f"the privacy ledger of {self._data!r} holds a loss that is not a number")
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
    """The ledgers of simulated clients, in memory."""

    def __init__(self, budget: PrivacyBudget | None) -> None:
        self._budget, self._known = budget, dict[ClientId, PrivacyLedger]()

    def of(self, client: ClientId) -> PrivacyLedger | None:
        if self._budget is None:
            return None
        return self._known.setdefault(client, PrivacyLedger(self._budget))
