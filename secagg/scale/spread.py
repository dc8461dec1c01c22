"""A sum whose uploads others add: the coordinator knows clients, digests and jobs, and never a vector before the end.

Clients come in batches, vectors in ranges; a job adds one range of one batch. A client of which any range is wrong is
in no range: the batch is done again without it wherever it was counted. Then partial sums are merged in a tree.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from secagg.contract.pieces import Cut, Sums, pieces_of
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, MalformedMessage, PeerError
from secagg.identifiers import ClientId

from .jobs import EARLIER, Disagreement, Jobs, State
from .memory import Memory, NoMemory
from .store import WrongPiece, located, open_store, read_piece, session_folder, write_piece
from .work import Entry, Harm, Kind, Order, Outcome, Wrong, error_of, read_range
from .workers import Workers

_LOG = logging.getLogger(__name__)
_MERGED_AT_ONCE: Final = 16
_BACKLOG: Final = 4
"""So many jobs wait for each worker before uploads have to wait."""
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSettings:
    """How a sum is divided; none of it changes the sum."""

    storage: str
    """A folder or fsspec address that coordinator and workers see, for one sum of an epoch at a time."""
    clients_in_a_batch: int = 256
    pieces_in_a_range: int = 1
    patience: float = 3.0
    audited: int = 0
    """Of so many jobs one is done by two workers, who must agree; coins choose it. None at zero."""
    keeps_pieces: bool = False
    """Whether what clients uploaded stays in the storage after the end."""

    def __post_init__(self) -> None:
        """Refuse to divide by nothing."""
        if self.clients_in_a_batch < 1 or self.pieces_in_a_range < 1:
            raise InvalidParameters("a batch has at least one client, and a range at least one piece")
        if not 0 <= self.audited < 1 << 16:
            raise InvalidParameters(f"audited is in 0..65535; got {self.audited}")


@dataclass(slots=True)
class Figures:
    """How far a sum is."""

    jobs_done: int = 0
    jobs_left: int = 0
    stragglers: int = 0
    begun_again: int = 0
    jobs_audited: int = 0
    workers_lost: int = 0
    bytes_read: int = 0
    seconds_of_workers: float = 0.0
    seconds_left: float | None = None
    """As the jobs so far say; None before the first."""

    @property
    def jobs(self) -> tuple[int, int]:
        """How many are done, of how many."""
        return self.jobs_done, self.jobs_done + self.jobs_left


@dataclass(slots=True)
class _Batch:
    """Some clients, and for each range the job that counts and who was left out when it was ordered."""

    entries: list[tuple[ClientId, tuple[bytes, ...]]] = field(default_factory=list[tuple[ClientId, tuple[bytes, ...]]])
    jobs: dict[int, tuple[str, frozenset[ClientId]]] = field(default_factory=dict[int, tuple[str, frozenset[ClientId]]])


class SpreadSum:
    """An ``Adder`` whose work others do."""

    def __init__(  # noqa: PLR0913 -- what it is made of
        self,
        cut: Cut,
        workers: Workers,
        settings: SpreadSettings,
        *,
        coins: Coins,
        memory: Memory | None = None,
        progress: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        """Begin with nothing, in the folder of the storage that its cut's context names.

        Args:
            coins: choose who is audited.

        Raises:
            InvalidParameters: jobs are to be done by two workers, and there is one.
        """
        if settings.audited and len(workers.idle) < 2:  # noqa: PLR2004 -- who could disagree
            raise InvalidParameters("an audited job is done by two workers; start another one, or audit none")
        self._cut, self._workers, self._settings, self._coins = cut, workers, settings, coins
        self._memory, self._progress, self._is_resumed = memory or NoMemory(), progress, memory is not None
        self._storage = located(settings.storage)
        self._store = open_store(self._storage)
        step, count = settings.pieces_in_a_range, len(cut.lengths)
        self._ranges = [(first, min(first + step, count)) for first in range(0, count, step)]
        self._jobs, self._audit = Jobs(patience=settings.patience), (0, 0)
        self._orders, self._outcomes, self._void = dict[str, Order](), dict[str, Outcome](), set[str]()
        self._working = dict[int, str]()
        self._batches, self._roots = [_Batch()], list[str]()
        self.wrong, self._left_out = dict[ClientId, Wrong](), dict[ClientId, Wrong]()
        self.figures, self._is_over = Figures(), False
        self._failed: ConnectionError | None = None

    # --- Uploads ------------------------------------------------------------------------------------------------------

    def keep(self, client: ClientId, digests: Sequence[bytes], vector: bytes | memoryview) -> bytes:
        """Store the pieces of a vector that came whole."""
        if vector:
            for digest, piece in zip(digests, pieces_of(vector, self._cut.lengths), strict=True):
                write_piece(self._store, self._cut, client, digest, piece, lasts=self._is_resumed)
        self._memory.kept(client)
        self._pump(0)
        return b""

    def add(self, client: ClientId, digests: Sequence[bytes], kept: bytes) -> None:
        """Have it added; wait while too much waits."""
        del kept
        batch = self._batches[-1]
        batch.entries.append((client, tuple(digests)))
        if len(batch.entries) == self._settings.clients_in_a_batch:
            self._order_batch(batch, range(len(self._ranges)), frozenset())
            self._batches.append(_Batch())
        while self._jobs.waiting > _BACKLOG * (len(self._working) + len(self._workers.idle)):
            self._pump(_POLL_SECONDS)

    def _order_batch(self, batch: _Batch, ranges: Iterable[int], without: frozenset[ClientId]) -> None:
        for index in ranges:
            first, end = self._ranges[index]
            entries = tuple((c.value, digests[first:end]) for c, digests in batch.entries if c not in without)
            is_void = index in batch.jobs and batch.jobs[index][0] in self._void
            batch.jobs[index] = self._order(Kind.ADD, index, entries=entries, is_audited=is_void), without

    def _order(  # noqa: PLR0913 -- what a job is made of
        self,
        kind: Kind,
        index: int,
        needs: tuple[str, ...] = (),
        entries: tuple[Entry, ...] = (),
        opening: bytes = b"",
        *,
        is_audited: bool = False,
    ) -> str:
        """Order a job, unless it was done in an earlier life; its key is a digest of what it takes."""
        key = f"{kind} of range {index}, {hashlib.sha256(repr((needs, entries, opening)).encode()).hexdigest()}"
        first, end = self._ranges[index]
        self._orders[key] = Order(
            key=key,
            kind=kind,
            storage=self._storage,
            cut=self._cut,
            first=first,
            end=end,
            entries=entries,
            opening=opening,
        )
        known = self._memory.outcome(key)
        if known is not None and key not in self._jobs:
            self._note(known)
        if key not in self._jobs:
            is_audited = self._is_drawn() or (is_audited and self._settings.audited > 0)
            self._jobs.add(key, needs, None if known is None else known.digest, 1 + is_audited)
            self.figures.jobs_audited += known is None and is_audited
        return key

    def _is_drawn(self) -> bool:
        """Return whether a job is the one that is audited of its run of jobs."""
        (place, drawn), most = self._audit, self._settings.audited
        if not most:
            return False
        if place == 0:
            drawn = int.from_bytes(self._coins.draw(8), "big") % most
        self._audit = (place + 1) % most, drawn
        return place == drawn

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def _pump(self, seconds: float) -> None:
        """Give work to the idle, and take what was done; wait at most so long for that.

        Raises:
            ConnectionError: the sum cannot be finished, or must not be; so it is from then on.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._turn(seconds)
        except ConnectionError as error:
            self._failed = error
            if isinstance(error, Disagreement):
                self._memory.ended()
            raise
        except Exception as error:
            # Part of a turn was done: an upload that was written down may not count here, and would in the next life.
            self._failed = ConnectionError(f"the sum cannot be finished: {error}")
            raise self._failed from error

    def _turn(self, seconds: float) -> None:
        # Of a worker whose job another one has done nobody knows whether it comes back.
        working = (worker for worker, key in self._working.items() if self._jobs[key].state is not State.DONE)
        self._jobs.workers = {*self._workers.idle, *working}
        for worker in self._jobs.line(self._workers.idle):
            if (key := self._jobs.next(worker, monotonic())) is None:
                continue
            parts = tuple(self._jobs[need].result for need in self._jobs[key].needs)
            self._working[worker] = key
            self._workers.start(worker, replace(self._orders[key], parts=parts))
        for worker, outcome in self._workers.poll(seconds):
            key = self._working.pop(worker, None)
            if key is None:
                continue  # It was at a job of an earlier sum, which does not need it any more.
            if outcome is None:
                self.figures.workers_lost += 1
                self._jobs.lose(worker)
            elif (judged := self._judged(key, outcome)).failure:
                _LOG.warning("worker %d failed at %s: %s", worker, key, judged.failure)
                self._jobs.fail(key, worker, judged.failure, outcome.missing)
            else:
                self._take(worker, judged)
        self._tell()

    def _judged(self, key: str, outcome: Outcome) -> Outcome:
        """Return an outcome as it counts; a worker is believed about a sum, and not about who is to blame."""
        order, given, seen = self._orders[key], dict(self._orders[key].entries), list[Wrong]()
        if outcome.key != key:
            return replace(outcome, failure="its worker answered for another job")
        for wrong in outcome.wrong:
            if wrong.client.value not in given or not order.first <= wrong.piece < order.end:
                return replace(outcome, failure="its worker named a piece that it was not given")
            harm = self._harm_of(wrong, given[wrong.client.value][wrong.piece - order.first])
            if harm is None:
                return replace(outcome, failure=f"its worker blamed {wrong.client} for a piece that decodes")
            seen.append(replace(wrong, harm=harm))
        return replace(outcome, wrong=tuple(seen))

    def _harm_of(self, wrong: Wrong, digest: bytes) -> Harm | None:
        if wrong.harm is not Harm.MALFORMED:
            return wrong.harm
        try:
            self._cut.check(wrong.piece, read_piece(self._store, self._cut, wrong.client, wrong.piece, digest))
        except MalformedMessage:
            return Harm.MALFORMED
        except WrongPiece as error:
            return Harm.ANOTHER if error.is_there else Harm.MISSING
        except OSError:
            pass
        return None

    def _take(self, worker: int, outcome: Outcome) -> None:
        """Count a result, once so many workers agree on it, and write it down.

        Sums of different clients agree on nothing. Where two workers leave out others, both of their sums are void.
        """
        key, digest, before = outcome.key, outcome.digest, self._outcomes.get(outcome.key)
        if before is not None and before.wrong != outcome.wrong:
            self._void.add(key)
            digest = before.digest
        self._note(outcome)
        counts = self._jobs.finish(key, worker, digest, monotonic())
        if digest != self._outcomes[key].digest:
            raise Disagreement(key, {worker, EARLIER})
        if counts:
            if key not in self._void:
                self._memory.remember(outcome)
            self.figures.bytes_read += outcome.bytes_read
            self.figures.seconds_of_workers += outcome.microseconds / 1e6

    def _note(self, outcome: Outcome) -> None:
        self._outcomes.setdefault(outcome.key, outcome)
        for wrong in outcome.wrong:
            self.wrong.setdefault(wrong.client, wrong)

    def _finish_jobs(self) -> None:
        self._pump(0)
        while self._jobs.left:
            self._pump(_POLL_SECONDS)

    def _tell(self) -> None:
        figures, jobs = self.figures, self._jobs
        figures.jobs_done, figures.jobs_left = jobs.done, jobs.left
        figures.stragglers, figures.begun_again = jobs.repeated, jobs.again
        if jobs.done and figures.seconds_of_workers:
            workers = len(self._working) + len(self._workers.idle)
            figures.seconds_left = jobs.left * figures.seconds_of_workers / jobs.done / max(1, workers)
        self._progress(figures)

    # --- The end ------------------------------------------------------------------------------------------------------

    def settle(self) -> Mapping[ClientId, PeerError]:
        """Finish the sum; whose vectors are not in it is written down before anybody is told."""
        before = self._memory.settled(None)
        settled = None if before is None else {wrong.client: wrong for wrong in before}
        self.wrong.update(settled or {})
        if self._batches[-1].entries:
            self._order_batch(self._batches[-1], range(len(self._ranges)), frozenset())
        self._finish_jobs()
        self._leave_out(settled)
        # What is lost and made again from here on is what was made before, or is not found again.
        self._merge()
        if before is None:
            self._memory.settled(self._left_out.values())
        return {client: error_of(wrong) for client, wrong in sorted(self._left_out.items())}

    def take_out(self, clients: Iterable[ClientId]) -> None:
        """Add their batches again without them; fail if somebody is lost whom ``settle`` has counted."""
        gone = {client: Wrong(client=client, piece=0, harm=Harm.MISSING) for client in clients}
        self.wrong |= gone
        self._leave_out(self._left_out | gone)
        self._merge()

    def _leave_out(self, known: dict[ClientId, Wrong] | None) -> None:
        """Leave out who is wrong, from every range; where that is known already, nobody else may be."""
        while self._exclude():
            self._finish_jobs()
        self._left_out = dict(self.wrong) if known is None else known
        if lost := self.wrong.keys() - self._left_out:
            self._failed = ConnectionError(f"the storage lost pieces of {min(lost)} after they were added; begin again")
            raise self._failed

    def _exclude(self) -> bool:
        """Order every range again that holds a client which is wrong in another; return whether there was one."""
        is_complete = True
        for batch in self._batches:
            wrong = frozenset(client for client, _ in batch.entries if client in self.wrong)
            again = [
                index
                for index, (key, without) in batch.jobs.items()
                if key in self._void or without | {one.client for one in self._outcomes[key].wrong} != wrong
            ]
            self._order_batch(batch, again, wrong)
            is_complete = is_complete and not again
        return not is_complete

    def _merge(self) -> None:
        """Merge the partial sums of each range, sixteen at a time, until one is left."""
        levels = [[batch.jobs[at][0] for batch in self._batches if batch.jobs] for at in range(len(self._ranges))]
        while any(len(keys) > 1 for keys in levels):
            for index, keys in enumerate(levels):
                groups = [tuple(keys[at : at + _MERGED_AT_ONCE]) for at in range(0, len(keys), _MERGED_AT_ONCE)]
                levels[index] = [
                    group[0] if len(group) == 1 else self._order(Kind.MERGE, index, group) for group in groups
                ]
        self._finish_jobs()
        self._roots = [keys[0] for keys in levels if keys]

    def open(self, key: bytes) -> list[Sums]:
        """Have every range opened, and return the pieces."""
        keys = [self._order(Kind.OPEN, at, (root,), opening=key) for at, root in enumerate(self._roots)]
        self._finish_jobs()
        return [piece for job in keys for piece in self._read(job)]

    def _read(self, job: str) -> list[Sums]:
        pieces = range(self._orders[job].first, self._orders[job].end)
        try:
            return read_range(self._store, self._cut, pieces, self._jobs[job].result, is_open=True)
        except OSError as error:
            raise ConnectionError(f"the storage lost an opened range: {error}; nothing is released") from error

    def end(self) -> None:
        """Remove what was written for this session, once it is written down that it is over."""
        if self._is_over:
            return
        self._is_over = True
        self._orders.clear()
        if self._memory.ended():
            folder = session_folder(self._cut.context)
            try:
                self._store.remove(f"{folder}/sums" if self._settings.keeps_pieces else folder)
            except Exception as error:  # noqa: BLE001 -- an opened sum is not lost to what lies about
                _LOG.warning("remove %s from %s yourself: %s", folder, self._storage, error)
