"""A sum whose uploads others add: the coordinator knows clients, digests and jobs, and never a vector before the end.

Clients come in batches, vectors in ranges; a job adds one range of one batch. A client of which any range is wrong is
in no range: the batch is done again without it wherever it was counted. Then partial sums are merged in a tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final, Protocol

from secagg.contract.pieces import Cut, Sums, pieces_of
from secagg.errors import InvalidParameters, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, Party, ServerId

from .jobs import Disagreement, Jobs
from .store import open_store, piece_name, read_result, session_folder
from .work import Entry, Kind, Order, Outcome, decode_range
from .workers import Workers

_MERGED_AT_ONCE: Final = 16
_BACKLOG: Final = 4
"""So many jobs wait for each worker before uploads have to wait."""
_POLL_SECONDS: Final = 0.2


class Memory(Protocol):
    """What remembers outcomes across a crash of the coordinator."""

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a job that was done in an earlier life."""
        ...

    def remember(self, outcome: Outcome) -> None:
        """Write an outcome down, before it counts."""

    def kept(self, client: ClientId) -> None:
        """Write an upload down: its pieces are stored, and it is about to be taken."""

    def settled(self, wrong: Mapping[ClientId, tuple[str, bool]] | None) -> Mapping[ClientId, tuple[str, bool]] | None:
        """Write down whose vectors are not in the sum; or return what was, before the list was made of it."""
        ...

    def ended(self) -> None:
        """Write down that the session is over, before anything is removed."""


class NoMemory:
    """For a coordinator that is not resumed."""

    def outcome(self, key: str) -> Outcome | None:
        """Know nothing."""
        del key
        return None

    def remember(self, outcome: Outcome) -> None:
        """Forget it."""

    def kept(self, client: ClientId) -> None:
        """Forget it."""

    def settled(self, wrong: Mapping[ClientId, tuple[str, bool]] | None) -> Mapping[ClientId, tuple[str, bool]] | None:
        """Know nothing."""
        del wrong
        return None

    def ended(self) -> None:
        """Forget it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSettings:
    """How a sum is divided; none of it changes the sum."""

    storage: str
    """A folder or fsspec address that coordinator and workers see."""
    clients_in_a_batch: int = 256
    pieces_in_a_range: int = 1
    patience: float = 3.0
    audited: int = 0
    """Every so-manieth job is done by two workers, who must agree."""
    keeps_pieces: bool = False
    """Whether what clients uploaded stays in the storage after the end."""

    def __post_init__(self) -> None:
        """Refuse to divide by nothing."""
        if self.clients_in_a_batch < 1 or self.pieces_in_a_range < 1:
            raise InvalidParameters("a batch has at least one client, and a range at least one piece")


@dataclass(slots=True)
class Figures:
    """How far a sum is."""

    jobs_done: int = 0
    jobs_left: int = 0
    stragglers: int = 0
    begun_again: int = 0
    workers_lost: int = 0
    bytes_read: int = 0
    seconds_of_workers: float = 0.0
    seconds_left: float | None = None
    """As the jobs so far say; None before the first."""


@dataclass(slots=True)
class _Batch:
    """Some clients, and for each range the job that counts and who was left out when it was ordered."""

    entries: list[tuple[ClientId, tuple[bytes, ...]]] = field(default_factory=list[tuple[ClientId, tuple[bytes, ...]]])
    jobs: dict[int, tuple[str, frozenset[ClientId]]] = field(default_factory=dict[int, tuple[str, frozenset[ClientId]]])


class SpreadSum:
    """An ``Adder`` whose work others do."""

    def __init__(
        self,
        cut: Cut,
        workers: Workers,
        settings: SpreadSettings,
        *,
        memory: Memory | None = None,
        progress: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        """Begin with nothing, in a folder of the storage that is this session's alone.

        Raises:
            InvalidParameters: jobs are to be done by two workers, and there is one.
        """
        if settings.audited and len(workers.idle) < 2:  # noqa: PLR2004 -- who could disagree
            raise InvalidParameters("an audited job is done by two workers; start another one, or audit none")
        self._cut, self._workers, self._settings = cut, workers, settings
        self._memory, self._progress = memory or NoMemory(), progress
        self._store = open_store(settings.storage)
        step, count = settings.pieces_in_a_range, len(cut.lengths)
        self._ranges = [(first, min(first + step, count)) for first in range(0, count, step)]
        self._jobs = Jobs(patience=settings.patience, audited=settings.audited)
        self._orders, self._outcomes = dict[str, Order](), dict[str, Outcome]()
        self._working = dict[int, str]()
        self._batches, self._roots = [_Batch()], list[str]()
        self.wrong = dict[ClientId, tuple[str, bool]]()
        self.figures, self._is_over = Figures(), False

    # --- Uploads ------------------------------------------------------------------------------------------------------

    def keep(self, client: ClientId, digests: Sequence[bytes], vector: bytes) -> bytes:
        """Store the pieces of a vector that came whole."""
        if vector:
            for digest, piece in zip(digests, pieces_of(vector, self._cut.lengths), strict=True):
                self._store.put(piece_name(self._cut.context, client, digest), piece)
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
            batch.jobs[index] = self._order(Kind.ADD, index, entries=entries), without

    def _order(
        self,
        kind: Kind,
        index: int,
        needs: tuple[str, ...] = (),
        entries: tuple[Entry, ...] = (),
        opening: bytes = b"",
    ) -> str:
        """Order a job, unless it was done in an earlier life; its key is a digest of what it takes."""
        key = f"{kind} of range {index}, {hashlib.sha256(repr((needs, entries, opening)).encode()).hexdigest()}"
        first, end = self._ranges[index]
        self._orders[key] = Order(
            key=key,
            kind=kind,
            storage=self._settings.storage,
            cut=self._cut,
            first=first,
            end=end,
            entries=entries,
            opening=opening,
        )
        known = self._memory.outcome(key)
        if known is not None and key not in self._jobs:
            self._note(known)
        self._jobs.add(key, needs, None if known is None else known.digest)
        return key

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def _pump(self, seconds: float) -> None:
        """Give work to the idle, and take what was done; wait at most so long for that."""
        for worker in self._workers.idle:
            if (key := self._jobs.next(worker, monotonic())) is None:
                continue
            parts = tuple(self._jobs[need].result for need in self._jobs[key].needs)
            self._working[worker] = key
            self._workers.start(worker, replace(self._orders[key], parts=parts))
        for worker, outcome in self._workers.poll(seconds if self._working else 0):
            key = self._working.pop(worker, None)
            if key is None or (outcome is not None and outcome.key != key):
                continue  # It was at a job of an earlier sum, which does not need it any more.
            if outcome is None:
                self.figures.workers_lost += 1
                self._jobs.lose(worker)
            elif not outcome.digest:
                self._jobs.fail(key, worker, outcome.failure, outcome.missing)
            else:
                self._take(worker, outcome)
        self._tell()

    def _take(self, worker: int, outcome: Outcome) -> None:
        """Count a result, once it is written down; it counts as the first one if the storage changed in between."""
        key, digest, before = outcome.key, outcome.digest, self._outcomes.get(outcome.key)
        if not {client for client, _, _ in outcome.wrong} <= {client for client, _ in self._orders[key].entries}:
            self._jobs.fail(key, worker, "its worker named clients that it was not given")
            return
        if before is None:
            self._memory.remember(outcome)
        elif before.wrong != outcome.wrong:
            digest = before.digest
        self._note(outcome)
        counts = self._jobs.finish(key, worker, digest, monotonic())
        if digest != self._outcomes[key].digest:
            raise Disagreement(key, {worker})
        if counts:
            self.figures.bytes_read += outcome.bytes_read
            self.figures.seconds_of_workers += outcome.seconds

    def _note(self, outcome: Outcome) -> None:
        self._outcomes.setdefault(outcome.key, outcome)
        for client, why, is_signed in outcome.wrong:
            self.wrong.setdefault(ClientId(client), (why, is_signed))

    def _finish_jobs(self) -> None:
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
        self.wrong.update(before or {})
        if self._batches[-1].entries:
            self._order_batch(self._batches[-1], range(len(self._ranges)), frozenset())
        self._finish_jobs()
        while self._exclude():
            self._finish_jobs()
        # What is lost and made again from here on is what was made before, or is not found again.
        settled = dict(self.wrong) if before is None else before
        self._merge()
        if before is None:
            self._memory.settled(settled)
        return {client: _error_of(client, *why) for client, why in sorted(settled.items())}

    def _exclude(self) -> bool:
        """Order every range again that holds a client which is wrong in another; return whether there was one."""
        is_complete = True
        for batch in self._batches:
            wrong = frozenset(client for client, _ in batch.entries if client in self.wrong)
            again = [
                index
                for index, (key, without) in batch.jobs.items()
                if without | {ClientId(client) for client, _, _ in self._outcomes[key].wrong} != wrong
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
        try:
            return decode_range(read_result(self._store, self._cut.context, self._jobs[job].result))
        except OSError as error:
            raise ConnectionError(f"the storage lost an opened range: {error}; release again") from error

    def end(self) -> None:
        """Remove what was written for this session, once it is written down that it is over."""
        if self._is_over:
            return
        self._is_over = True
        self._memory.ended()
        folder = session_folder(self._cut.context)
        self._store.remove(f"{folder}/sums" if self._settings.keeps_pieces else folder)
        self._orders.clear()


# --- Private ----------------------------------------------------------------------------------------------------------


def _error_of(client: ClientId, why: str, is_signed: bool) -> PeerMisbehaved:  # noqa: FBT001
    """Blame a client for what it signed; for what is in the storage, it or who keeps that."""
    culprits: set[Party] = {client} if is_signed else {client, ServerId()}
    reason = Reason.NOT_CANONICAL if is_signed else Reason.COMMITMENT_MISMATCH
    return PeerMisbehaved(f"{client} is not in the sum: {why}", reason=reason, culprits=culprits)
