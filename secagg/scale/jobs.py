"""Which jobs wait, run and are done: a pure state machine, which ``TRANSITIONS`` moves; workers and time are arguments.

A job is a function of what lies in the storage, so it may run twice, at once or again, and its result counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

from secagg.errors import InvalidParameters, Misuse


class State(StrEnum):
    """How a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class Event(StrEnum):
    """What happens to a job."""

    START = "start"
    RESULT = "result"
    """So many results as are needed are there."""
    WITHOUT_WORKER = "without worker"
    """The last worker that was at it is lost, or failed."""
    FORGOTTEN = "forgotten"
    """The storage lost what the job had made."""


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.WAITING: {Event.START: State.RUNNING},
    State.RUNNING: {
        Event.START: State.RUNNING,
        Event.RESULT: State.DONE,
        Event.WITHOUT_WORKER: State.WAITING,
    },
    State.DONE: {Event.FORGOTTEN: State.WAITING},
}
"""For each state what may happen, and what follows."""

ATTEMPTS: Final = 4
"""A job that failed so often, and at every worker, is not tried again."""
LOSSES: Final = 25
"""Nor is one during which so many workers were lost: it may be what ends them."""
EARLIER: Final = -1
"""The worker of a result that was made before, by nobody knows whom."""
LEAST_PATIENCE: Final = 1.0
"""Seconds that a job may take before anybody helps out."""


class Disagreement(ConnectionError):
    """Two workers made different things of the same job: one of them lies, or its machine is broken."""

    def __init__(self, key: str, workers: Collection[int]) -> None:
        known = sorted(number for number in workers if number != EARLIER)
        named = " and ".join([f"worker {number}" for number in known] + ["an earlier one"] * (EARLIER in workers))
        super().__init__(f"{named} made different sums of the same pieces; nothing is released ({key})")


class Exhausted(ConnectionError):
    """A job failed too often."""


@dataclass(slots=True)
class Job:
    """One job, and what became of it."""

    needs: tuple[str, ...]
    wanted: int
    """How many workers must agree on its result."""
    state: State = State.WAITING
    runs: dict[int, float] = field(default_factory=dict[int, float])
    """Who is at it, and since when."""
    results: dict[int, bytes] = field(default_factory=dict[int, bytes])
    failed: set[int] = field(default_factory=set[int])
    """Who failed it since everybody had."""
    failures: int = 0
    losses: int = 0

    @property
    def result(self) -> bytes:
        """What counts."""
        return next(iter(self.results.values()))


class Jobs:
    """All jobs of a sum, in the order in which they came."""

    def __init__(self, *, patience: float = 3.0) -> None:
        """Begin with none.

        Args:
            patience: a job that takes so many times the median is run by an idle worker as well.
        """
        if not patience >= 1:
            raise InvalidParameters(f"patience is at least 1; got {patience}")
        self._patience = patience
        self._jobs, self._took = dict[str, Job](), list[float]()
        self._waiting = dict[str, None]()
        self._running = dict[str, None]()
        self._failures = Counter[int]()
        self.workers: Collection[int] = ()
        """Who is there to be asked, idle or not."""
        self.repeated = 0
        """How often a straggler's job was given to a second worker."""
        self.again = 0
        """How often a job was begun anew, because its worker or its result was lost."""

    def __contains__(self, key: str) -> bool:
        return key in self._jobs

    def __getitem__(self, key: str) -> Job:
        return self._jobs[key]

    @property
    def waiting(self) -> int:
        """How many jobs nobody is at."""
        return len(self._waiting)

    @property
    def left(self) -> int:
        """How many jobs are not done."""
        return len(self._waiting) + len(self._running)

    @property
    def done(self) -> int:
        """How many are."""
        return len(self._jobs) - self.left

    def add(self, key: str, needs: tuple[str, ...] = (), result: bytes | None = None, wanted: int = 1) -> None:
        """Add a job, or one that was done in an earlier life; the same job again changes nothing.

        Args:
            wanted: how many workers must agree on its result.
        """
        if key in self._jobs:
            return
        job = self._jobs[key] = Job(needs, wanted)
        if result is None:
            self._waiting[key] = None
        else:
            job.state, job.results = State.DONE, {EARLIER: result}

    def line(self, idle: Iterable[int]) -> list[int]:
        """Return the order in which idle workers are asked: who failed most stands last."""
        return sorted(idle, key=lambda worker: self._failures[worker])

    def next(self, worker: int, now: float) -> str | None:
        """Return what an idle worker should do: a job that waits, or the one that takes longest; None if to wait."""
        for key in self._waiting:
            if self._is_open_to(key, worker):
                return self._start(key, worker, now)
        for key in self._running:
            job = self._jobs[key]
            if worker in job.runs or not self._may_do(job, worker):
                continue
            if len(job.runs) + len(job.results) < job.wanted:
                return self._start(key, worker, now)
        late = [key for key in self._running if self._is_late(key, worker, now)]
        if not late:
            return None
        self.repeated += 1
        return self._start(min(late, key=lambda key: min(self._jobs[key].runs.values())), worker, now)

    def _is_open_to(self, key: str, worker: int) -> bool:
        job = self._jobs[key]
        return self._may_do(job, worker) and all(self._jobs[need].state is State.DONE for need in job.needs)

    def _may_do(self, job: Job, worker: int) -> bool:
        """Return whether a worker has done the job yet, or failed it while another one is left who has not."""
        return worker not in job.results and (worker not in job.failed or not self._untried(job))

    def _untried(self, job: Job) -> bool:
        return any(worker not in job.failed and worker not in job.results for worker in self.workers)

    def _is_late(self, key: str, worker: int, now: float) -> bool:
        job = self._jobs[key]
        if worker in job.runs or worker in job.failed or len(job.runs) != 1 or not self._took:
            return False
        return now - min(job.runs.values()) > max(LEAST_PATIENCE, self._patience * median(self._took[-99:]))

    def _start(self, key: str, worker: int, now: float) -> str:
        self._jobs[key].runs[worker] = now
        self._move(key, Event.START)
        return key

    def finish(self, key: str, worker: int, result: bytes, now: float) -> bool:
        """Take a result; return whether it is the one that counts.

        Raises:
            Disagreement: it differs from another worker's.
        """
        job = self._jobs[key]
        started = job.runs.pop(worker, None)
        for other, before in job.results.items():
            if before != result:
                raise Disagreement(key, {other, worker})
        if job.state is not State.RUNNING:
            return False
        if started is not None:
            self._took.append(now - started)
        job.results[worker] = result
        if len(job.results) < job.wanted:
            if not job.runs:
                self._move(key, Event.WITHOUT_WORKER)
            return False
        self._move(key, Event.RESULT)
        return True

    def fail(self, key: str, worker: int, why: str, missing: Collection[bytes] = ()) -> None:
        """Take note that a job failed: its worker did, or the storage, or what it needed must be made again.

        Raises:
            Exhausted: it failed too often, and at every worker that is there.
        """
        job = self._jobs[key]
        job.failures += 1
        job.failed.add(worker)
        self._failures[worker] += 1
        if not self._untried(job):
            if job.failures >= ATTEMPTS:
                raise Exhausted(f"{key} failed {job.failures} times, and last because {why}")
            job.failed.clear()
        for need in job.needs:
            made = self._jobs[need]
            if made.state is State.DONE and made.result in missing:
                made.results.clear()
                self._move(need, Event.FORGOTTEN)
        self._leave(key, worker)

    def lose(self, worker: int) -> None:
        """Take note that a worker is gone: what it was at is done by another, and what it made lies in the storage.

        Raises:
            Exhausted: too many were lost at the same job.
        """
        for key in [key for key in self._running if worker in self._jobs[key].runs]:
            job = self._jobs[key]
            job.losses += 1
            if job.losses >= LOSSES:
                raise Exhausted(f"{LOSSES} workers were lost at {key}")
            self._leave(key, worker)

    def _leave(self, key: str, worker: int) -> None:
        job = self._jobs[key]
        job.runs.pop(worker, None)
        self.again += 1
        if job.state is State.RUNNING and not job.runs:
            self._move(key, Event.WITHOUT_WORKER)

    def _move(self, key: str, event: Event) -> None:
        job = self._jobs[key]
        if event not in TRANSITIONS[job.state]:
            raise Misuse(f"{event} does not happen to a job that is {job.state}: {key}")
        job.state = TRANSITIONS[job.state][event]
        for state, members in ((State.WAITING, self._waiting), (State.RUNNING, self._running)):
            if job.state is state:
                members[key] = None
            else:
                members.pop(key, None)
