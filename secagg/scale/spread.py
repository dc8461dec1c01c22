"""A sum whose uploads others add: the coordinator judges and keeps each upload, and tasks add them piece by piece.

A loss or change after a piece was judged is the storage's fault: the piece is read again; then its client is
left out if no list was fixed yet, and nobody is named. The sums of all pieces are read once, before the list is fixed;
what was read then is opened later.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from typing import Annotated, ClassVar, Final

import numpy as np

from secagg.errors import InvalidParameters, SecAggError, ThresholdNotMet
from secagg.fields import Message, fixed, repeated, variable
from secagg.identifiers import ClientId
from secagg.protocols.one_message import OneMessageCut, Upload, UploadList, joined, pieces_of
from secagg.session.metrics import Metrics
from secagg.wire import MessageKind

from .engines import ATTEMPTS, Engine
from .state import LIST, OVER, UPLOADS, State
from .storage import Lost, Objects, Sums, Task, located, octets, read_sum

_LOG = logging.getLogger(__name__)
_MERGED_AT_ONCE: Final = 16
_NO_TASK: Final = "no task"
_BACKLOG: Final = 4
"""Number of tasks that wait for each worker before uploads have to wait."""
_MAXIMUM_BYTES: Final = (1 << 32) - 1
_MAXIMUM_PIECES: Final = 1 << 16
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSettings:
    """Division of a sum into tasks; none of it changes the sum."""

    storage: str
    """A folder or fsspec address that coordinator and workers see."""
    clients_in_a_task: int = 256
    patience: float = 600.0
    """Seconds without any task done before all that run are begun again, elsewhere."""

    def __post_init__(self) -> None:
        """Refuse to divide by nothing."""
        if self.clients_in_a_task < 1 or not self.patience > 0:
            raise InvalidParameters("a task has at least one client, and patience is above 0 seconds")


@dataclass(slots=True)
class Figures:
    """Progress of a sum."""

    tasks_done: int = 0
    tasks_left: int = 0
    begun_again: int = 0
    bytes_kept: int = 0

    @property
    def tasks(self) -> tuple[int, int]:
        """Number of tasks that are done, and of all."""
        return self.tasks_done, self.tasks_done + self.tasks_left

    def tell(self, metrics: Metrics) -> None:
        """Set what a scrape reads."""
        for name, text, value in (
            ("secagg_tasks_done", "Tasks of the sum that are done.", self.tasks_done),
            ("secagg_tasks_left", "Tasks of the sum that are not done.", self.tasks_left),
            ("secagg_tasks_begun_again", "Tasks that were done again, because something was lost.", self.begun_again),
            ("secagg_bytes_kept", "Bytes of vectors that were put into the storage.", self.bytes_kept),
        ):
            metrics.gauge(name, text)
            metrics.set(name, value)

    def __str__(self) -> str:
        again = f", {self.begun_again} begun again" if self.begun_again else ""
        return f"{self.bytes_kept / 1e9:.2f} GB kept, {self.tasks[0]} of {self.tasks[1]} tasks{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedList(Message):
    """The one list of a sum, and the digests of the sums of all pieces over it."""

    kind: ClassVar = MessageKind.SUM_RECORD
    upload_list: Annotated[bytes, variable(_MAXIMUM_BYTES)]
    sums: Annotated[tuple[bytes, ...], repeated(fixed(_DIGEST_BYTES), _MAXIMUM_PIECES)]


class SpreadSum:
    """An ``Adder`` whose work an engine does, and which the next process can resume."""

    def __init__(  # noqa: PLR0913 -- what it is made of
        self,
        cut: OneMessageCut,
        engine: Engine,
        settings: SpreadSettings,
        state: State,
        *,
        is_kept: Callable[[], bool] = lambda: False,
        progress: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        """Begin, or resume from the state.

        Args:
            is_kept: whether somebody resumes the sum if this process ends it without a release.
        """
        self._cut, self._engine, self._settings, self._state = cut, engine, settings, state
        self._is_kept, self._progress, self._is_over = is_kept, progress, False
        storage = located(settings.storage)
        self._objects = Objects(storage, state.key)
        self._nothing = Task(storage=storage, key=state.key, cut=cut, piece=0, inputs=())
        self._pieces = dict[ClientId, tuple[str, ...]]()
        """The names of what each client uploaded."""
        self._batches: list[list[ClientId]] = [[]]
        self._left, self._done, self._tries = dict[str, Task](), set[str](), dict[str, int]()
        self._changes = 0
        """Number of times that something to be added was lost."""
        self._gone, self._sums = dict[ClientId, SecAggError](), list[Sums]()
        self.figures = Figures()
        if state.left_by is not None:
            self._remove(Objects(storage, state.left_by))

    # --- Uploads ------------------------------------------------------------------------------------------------------

    def uploads(self) -> Collection[Upload]:
        """Return the uploads that an earlier process acknowledged, as they came."""
        found = [Upload.decode(each) for each in self._state.uploads()]
        self._pieces = {upload.header.client: _names(upload) for upload in found}
        return found

    def listed(self) -> bytes | None:
        """Return the list that an earlier process fixed."""
        fixed_list = self._fixed
        return None if fixed_list is None else fixed_list.upload_list

    @property
    def _fixed(self) -> FixedList | None:
        recorded = self._state.get(LIST)
        return None if recorded is None else FixedList.decode(recorded)

    def keep(self, upload: Upload) -> bytes:
        """Put the pieces into the storage, then write the rest down."""
        names, number = _names(upload), f"{len(self._pieces):08d}-{upload.header.client.value}"
        try:
            for name, piece in zip(names, pieces_of(upload.vector, self._cut.lengths), strict=True):
                self._objects.put(name, piece, lasts=self._state.lasts)
            self._state.put(f"{UPLOADS}/{number}", replace(upload, vector=b"").encode())
        except Exception as error:
            # An upload that counts in one process and not in the next would make another list of the same uploads.
            raise ConnectionError(f"an upload cannot be kept: {error}") from error
        self._pieces[upload.header.client] = names
        self.figures.bytes_kept += len(upload.vector)
        self._take(0)
        return b""

    def add(self, client: ClientId, kept: bytes) -> None:
        """Have it added; wait while too much waits."""
        del kept
        self._batches[-1].append(client)
        if len(self._batches[-1]) == self._settings.clients_in_a_task:
            for task in self._tasks_of(self._batches[-1]):
                self._submit(task)
            self._batches.append([])
        while len(self._left) > _BACKLOG * self._engine.count * len(self._cut.lengths):
            self._take(self._settings.patience)

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def _tasks_of(self, clients: Collection[ClientId]) -> Iterator[Task]:
        for piece in range(len(self._cut.lengths)):
            inputs = tuple(self._pieces[client][piece] for client in clients if client not in self._gone)
            if inputs:
                yield replace(self._nothing, piece=piece, inputs=inputs)

    def _submit(self, task: Task) -> None:
        if task.output not in self._left and task.output not in self._done:
            self._left[task.output] = task
            self._engine.submit(task)

    def _take(self, seconds: float) -> None:
        """Take finished tasks, and wait at most so long for the first; then have everything begun again.

        Raises:
            ConnectionError: the sum cannot be finished.
        """
        if not self._left:
            return
        started, results = monotonic(), self._engine.wait(seconds)
        for task, error in results:
            if self._left.pop(task.output, None) is None:
                continue  # It is of a sum that was given up.
            if error is None:
                self._done.add(task.output)
                self.figures.tasks_done += 1
                self._tries.pop(_NO_TASK, None)
            elif isinstance(error, Lost):
                self._judge(task, error)
            else:
                raise ConnectionError(f"a task failed {ATTEMPTS} times, and last because {error}") from error
        if not results and 0 < seconds <= monotonic() - started:
            self._count_again(_NO_TASK)
            _LOG.warning("no task was done for %.0f s: all that run are begun again", seconds)
            self._engine.begin_again()
        self.figures.tasks_left = len(self._left)
        self._progress(self.figures)

    def _count_again(self, what: str) -> None:
        self.figures.begun_again += 1
        self._tries[what] = self._tries.get(what, 0) + 1
        if self._tries[what] > ATTEMPTS:
            raise ConnectionError(f"{what} was done {ATTEMPTS} times over; the storage or the workers fail")

    def _judge(self, task: Task, lost: Lost) -> None:
        """Find out whose pieces are lost; a partial sum is made again."""
        if task.is_merge:
            self._forget(lost.name)
            return
        owners = {names[task.piece]: client for client, names in self._pieces.items()}
        gone = [owners[name] for name in task.inputs if not self._is_there(task.piece, name)]
        if not gone:
            # Another mount, or a storage that answers one so and another so.
            self._count_again(f"a task that cannot read {lost.name}, which is there,")
            self._submit(task)
        for client in gone:
            _LOG.warning("the storage has lost a piece of %s", client)
            count = len(self._cut.lengths)
            what = f"pieces of the upload of {client}; the storage lost another"
            self._gone[client] = ThresholdNotMet(needed=count, present=count - 1, what=what)
            self._changes += 1

    def _is_there(self, piece: int, name: str) -> bool:
        with _failing_storage(), suppress(Lost):
            self._objects.read(name, self._cut.lengths[piece])
            return True
        return False

    def _forget(self, name: str) -> None:
        """Have a partial sum made again."""
        self._done.discard(name)
        self._changes += 1
        self._count_again(name)

    # --- The end ------------------------------------------------------------------------------------------------------

    def settle(self) -> Mapping[ClientId, SecAggError]:
        """Finish the sum, read it, and return whose pieces were lost."""
        self._sums = self._added()
        return dict(self._gone)

    def _added(self) -> list[Sums]:
        while True:
            with suppress(Lost):
                return [self._read(root) for root in self._roots()]

    def _roots(self) -> list[Task]:
        """Have every piece added, and the partial sums of each merged, sixteen at a time.

        Raises:
            Lost: something that was to be added; begin again, which does nothing twice.
        """
        before, levels = self._changes, [list[Task]() for _ in self._cut.lengths]
        for batch in self._batches:
            for task in self._tasks_of(batch):
                levels[task.piece].append(task)
        while True:
            for task in chain(*levels):
                self._submit(task)
            while self._left:
                self._take(self._settings.patience)
            if self._changes != before:
                raise Lost("what was to be added")
            if max(map(len, levels)) <= 1:
                return [*chain(*levels)]
            levels = [
                [self._merge(level[at : at + _MERGED_AT_ONCE]) for at in range(0, len(level), _MERGED_AT_ONCE)]
                for level in levels
            ]

    def _merge(self, tasks: list[Task]) -> Task:
        if len(tasks) == 1:
            return tasks[0]
        return replace(tasks[0], inputs=tuple(task.output for task in tasks), is_merge=True)

    def _read(self, root: Task) -> Sums:
        """Read the sum of a piece, once."""
        try:
            with _failing_storage():
                return [words.copy() for words in read_sum(self._objects, root.output, self._cut.zeros(root.piece))]
        except Lost:
            self._forget(root.output)
            raise

    def fix(self, upload_list: bytes) -> None:
        """Write the list down with the digests of the objects read; nobody has seen it."""
        record = FixedList(upload_list=upload_list, sums=tuple(map(_digest_of, self._sums))).encode()
        try:
            self._state.put(LIST, record)
        except (OSError, SecAggError) as error:
            raise ConnectionError(f"the list cannot be fixed, or another one was: {error}") from error

    def open(self, secret: np.ndarray) -> list[np.ndarray]:
        """Open the sums that the list was fixed with."""
        self._sums = self._sums or self._sums_of_before()
        return joined([self._cut.open(total, number, secret) for number, total in enumerate(self._sums)])

    def _sums_of_before(self) -> list[Sums]:
        """Return the sums of an earlier process, or add up the same again.

        Raises:
            ConnectionError: the storage has lost what the list counts.
        """
        if (recorded := self._fixed) is None:
            raise ConnectionError("a sum is opened once its list is fixed")
        counted, self._batches = [one.client for one in UploadList.decode(recorded.upload_list).listed], [[]]
        if not (lost := set(counted) - self._pieces.keys()):
            for client in counted:
                self.add(client, b"")
            sums, lost = self._added(), set(self._gone)
            if not lost and tuple(map(_digest_of, sums)) == recorded.sums:
                return sums
        if lost:
            raise ConnectionError(f"the storage lost pieces of {min(lost)}, whom the list counts; begin another sum")
        raise ConnectionError("the storage has other sums than the list was fixed with; begin another sum")

    def over(self) -> None:
        """Write down that nothing is released after this."""
        try:
            self._state.put(OVER, b"")
        except (OSError, SecAggError) as error:
            raise ConnectionError(f"it cannot be written down that the sum is over: {error}") from error
        self._is_over = True

    def end(self) -> None:
        """Remove everything, unless the next process resumes the sum."""
        self._left.clear()
        for total in self._sums:
            total.clear()
        if self._is_over or not self._is_kept():
            self._remove(self._objects)
            self._state.clear()
        self._state.close()

    def _remove(self, objects: Objects) -> None:
        try:
            objects.remove()
        except Exception as error:  # noqa: BLE001 -- an opened sum is not lost to what lies about
            _LOG.warning("remove the rest of a sum from %s yourself: %s", self._nothing.storage, error)


@contextmanager
def _failing_storage() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"the storage fails: {error}") from error


def _names(upload: Upload) -> tuple[str, ...]:
    """Return the names of an upload's pieces, which follow from their contents."""
    client = upload.header.client.value
    return tuple(f"pieces/{client}/{number}-{each.hex()}" for number, each in enumerate(upload.pieces))


def _digest_of(total: Sums) -> bytes:
    return hashlib.sha256(b"".join(octets(total))).digest()
