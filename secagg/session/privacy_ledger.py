"""Ledger of a client's privacy budget: adds up the cost of each noised sum over all tasks and restarts.

Only the client can keep it: a server sees one task, but a client may take part in many.
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
