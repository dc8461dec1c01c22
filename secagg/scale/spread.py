"""A distributed sum: the coordinator checks and stores each upload, and tasks add uploads piece by piece.

If a piece is lost or changed after its check, the storage failed, and no party is blamed. The tasks' results are read
and added up once, before the list is fixed; exactly this sum is opened later.

A coordinator restarts from its state in a separate folder. Each file is written once, atomically and with a tag: under
another name, flushed, then linked. So a file that does not verify was damaged or planted, and a coordinator does not
resume from it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hmac import compare_digest, digest
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import add_into
from secagg.crypto.secret import draw_exactly
from secagg.errors import InvalidParameters, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.one_message import OneMessageCut, Upload, UploadList, pieces_of
from secagg.session.durable import claim, erase, require_own_folder, sync_folder
from secagg.session.run import Metrics

from .engines import ATTEMPTS, Engine
from .storage import Lost, Objects, Sums, Task, fill, located, read_sum

# --- State of a coordinator -------------------------------------------------------------------------------------------

OFFER: Final = "offer"
LIST: Final = "list"
OVER: Final = "over"
_KEY: Final = "key"
UPLOADS: Final = "uploads"
_UNFINISHED: Final = ".new"
_DIGEST_BYTES: Final = 32


class State:
    """The locked state folder of one sum."""

    def __init__(self, folder: Path, coins: Coins, *, lasts: bool = True, begins: bool = False) -> None:
        """Open a folder for its sum, or for a new one.

        Args:
            coins: source of a new sum's key.
            lasts: whether files are flushed; needed only to resume a sum.
            begins: whether to start a new sum even if the earlier one is not over.
        """
        for each in (folder, folder / UPLOADS):
            require_own_folder(each)
        self._folder, self.lasts = folder, lasts
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            claim(self._lock, f"{folder} is in use; only one coordinator can run a sum")
            self.left_by: bytes | None = None
            """Key of an earlier sum, which may have left objects in the storage."""
            if begins or not goes_on(folder):
                if (folder / _KEY).exists():
                    self.left_by = (folder / _KEY).read_bytes()
                self.clear()
                self._make(_KEY, bytes(draw_exactly(_DIGEST_BYTES, coins)))
                if lasts:
                    sync_folder(folder.parent)
            self.key = (folder / _KEY).read_bytes()
        except BaseException:
            os.close(self._lock)
            raise

    def get(self, name: str) -> bytes | None:
        """Return a file's contents, or None if it does not exist; refuse a damaged one."""
        path = self._folder / name
        if not path.exists():
            return None
        stored = path.read_bytes()
        data = stored[:-_DIGEST_BYTES]
        if not compare_digest(self._tagged(name, data), stored):
            raise InvalidParameters(
                f"{path} is damaged or belongs to another sum; it cannot be resumed: start a new sum in an empty folder"
            )
        return data

    def put(self, name: str, data: bytes) -> None:
        """Write a new file and read it back; ``OSError`` if it exists, cannot be written, or reads differently."""
        stored = self._tagged(name, data)
        self._make(name, stored)
        if (self._folder / name).read_bytes() != stored:
            raise OSError(f"{self._folder / name} reads back differently than written")

    def uploads(self) -> Iterator[bytes]:
        for path in sorted((self._folder / UPLOADS).iterdir()):
            if path.suffix != _UNFINISHED:
                yield self.get(f"{UPLOADS}/{path.name}") or b""

    def _tagged(self, name: str, data: bytes) -> bytes:
        """Return a file's bytes with a tag. It is an HMAC, because a failed write may be repeated under its name."""
        return data + digest(self.key, bind(Label.SPREAD_TAG, name.encode(), data), "sha256")

    def _make(self, name: str, data: bytes) -> None:
        path = self._folder / name
        written = path.with_name(path.name + _UNFINISHED)
        written.unlink(missing_ok=True)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fill(descriptor, (data,), lasts=self.lasts)
            path.hardlink_to(written)
        finally:
            written.unlink(missing_ok=True)
        if self.lasts:
            sync_folder(path.parent)

    def clear(self) -> None:
        """Remove everything: the offer first, without which a sum is not resumed, and the end mark last."""
        (self._folder / OFFER).unlink(missing_ok=True)
        sync_folder(self._folder)
        for path in (self._folder / UPLOADS).iterdir():
            path.unlink()
        for name in (LIST, _KEY, OVER):
            erase(self._folder / name)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def goes_on(folder: Path) -> bool:
    """Whether a folder has an unfinished sum."""
    return (folder / OFFER).exists() and not (folder / OVER).exists()


class RecordedCoins:
    """The coins that an earlier process drew for its public offer, then fresh ones: they reproduce the offer."""

    def __init__(self, state: State, coins: Coins) -> None:
        self._state, self._coins, self._drawn = state, coins, b""
        recorded = state.get(OFFER) or b""
        self._offered, self._left = recorded[:_DIGEST_BYTES], recorded[_DIGEST_BYTES:]

    def draw(self, count: int) -> bytearray:
        drawn, self._left = bytearray(self._left[:count]), self._left[count:]
        drawn += self._coins.draw(count - len(drawn))
        if not self._offered:
            self._drawn += drawn
        return drawn

    def require_offer(self, invitation: bytes) -> None:
        """Record an offer before clients are invited, or refuse one that differs from the recorded offer."""
        offered = hashlib.sha256(invitation).digest()
        if not self._offered:
            self._state.put(OFFER, offered + self._drawn)
            self._offered = offered
        elif self._offered != offered:
            raise InvalidParameters(
                "the sum in this folder has a different offer: open it with the same arguments, holders and epoch, or "
                "start a new sum in an empty folder"
            )


# --- The sum ----------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger(__name__)
_NO_TASK: Final = "no task finished"
_BACKLOG: Final = 4
"""Number of queued tasks per worker before uploads wait."""


@dataclass(slots=True)
class Figures:
    """Progress of a sum."""

    tasks_done: int = 0
    tasks_left: int = 0
    begun_again: int = 0
    bytes_kept: int = 0

    def tell(self, metrics: Metrics, **labels: str) -> None:
        for name, text, value in (
            ("secagg_tasks_done", "Finished tasks of the sum.", self.tasks_done),
            ("secagg_tasks_left", "Unfinished tasks of the sum.", self.tasks_left),
            ("secagg_tasks_begun_again", "Tasks that were repeated after a loss.", self.begun_again),
            ("secagg_bytes_kept", "Bytes of vectors written to the storage.", self.bytes_kept),
        ):
            metrics.gauge(name, text)
            metrics.set(name, value, **labels)

    def __str__(self) -> str:
        again = f", {self.begun_again} restarted" if self.begun_again else ""
        tasks = self.tasks_done + self.tasks_left
        return f"{self.bytes_kept / 1e9:.2f} GB kept, {self.tasks_done} of {tasks} tasks{again}"


class SpreadSum:
    """An ``Adder`` that works by an engine, and that another process can resume."""

    def __init__(  # noqa: PLR0913 -- what it is made of
        self,
        cut: OneMessageCut,
        engine: Engine,
        state: State,
        storage: str,
        *,
        clients_in_a_task: int = 256,
        patience: float = 600.0,
        is_kept: Callable[[], bool] = lambda: False,
        progress: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        """Start a sum, or resume it from the state.

        Args:
            storage: a folder or fsspec address that coordinator and workers see.
            patience: seconds without a finished task before all running ones are started again.
            is_kept: whether the state is kept for resuming if this process ends the sum without a release.
        """
        if clients_in_a_task < 1 or not patience > 0:
            raise InvalidParameters("a task needs at least one client, and patience must be above 0 seconds")
        self._cut, self._engine, self._state, storage = cut, engine, state, located(storage)
        self._clients_in_a_task, self._patience = clients_in_a_task, patience
        self._is_kept, self._progress, self._is_over = is_kept, progress, False
        self._objects = Objects(storage, state.key)
        self._nothing = Task(storage=storage, key=state.key, cut=cut, piece=0, inputs=())
        self._pieces = dict[ClientId, tuple[str, ...]]()
        """Names of each client's uploaded pieces."""
        self._batches: list[list[ClientId]] = [[]]
        self._left, self._done, self._tries = dict[str, Task](), set[str](), dict[str, int]()
        self._gone, self._sums = dict[ClientId, SecAggError](), list[Sums]()
        self.figures = Figures()
        if state.left_by is not None:
            self._remove(Objects(storage, state.left_by))

    # --- Uploads ------------------------------------------------------------------------------------------------------

    def uploads(self) -> Collection[Upload]:
        found = [Upload.decode(each) for each in self._state.uploads()]
        self._pieces = {upload.header.client: _names(upload) for upload in found}
        return found

    def listed(self) -> bytes | None:
        return None if (recorded := self._state.get(LIST)) is None else recorded[_DIGEST_BYTES:]

    def keep(self, upload: Upload) -> bytes:
        names, number = _names(upload), f"{len(self._pieces):08d}-{upload.header.client.value}"
        # A failure ends the session: if the next process did not count this upload, the list would change.
        with _named("an upload cannot be stored"):
            for name, piece in zip(names, pieces_of(upload.vector, self._cut.lengths), strict=True):
                self._objects.put(name, piece, lasts=self._state.lasts)
            self._state.put(f"{UPLOADS}/{number}", replace(upload, vector=b"").encode())
        self._pieces[upload.header.client] = names
        self.figures.bytes_kept += len(upload.vector)
        self._take(0)
        return b""

    def add(self, client: ClientId, kept: bytes) -> None:
        """Queue an upload to be added; wait while too many tasks are queued."""
        del kept
        self._batches[-1].append(client)
        if len(self._batches[-1]) == self._clients_in_a_task:
            for task in self._tasks_of(self._batches[-1]):
                self._submit(task)
            self._batches.append([])
        while len(self._left) > _BACKLOG * self._engine.count * len(self._cut.lengths):
            self._take(self._patience)

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
        """Collect finished tasks; if none finishes before a timeout, restart all."""
        if not self._left:
            return
        started, results = monotonic(), self._engine.wait(seconds)
        for task, error in results:
            if self._left.pop(task.output, None) is None:
                continue  # It belongs to an abandoned sum.
            if error is None:
                self._done.add(task.output)
                self.figures.tasks_done += 1
                self._tries.pop(_NO_TASK, None)
            elif isinstance(error, Lost):
                self._judge(task, error)
            else:
                raise ConnectionError(f"a task failed {ATTEMPTS} times; last error: {error}") from error
        if not results and 0 < seconds <= monotonic() - started:
            self._count_again(_NO_TASK)
            _LOG.warning("no task finished in %.0f s: all running ones are restarted", seconds)
            self._engine.begin_again()
        self.figures.tasks_left = len(self._left)
        self._progress(self.figures)

    def _count_again(self, what: str) -> None:
        self.figures.begun_again += 1
        self._tries[what] = self._tries.get(what, 0) + 1
        if self._tries[what] > ATTEMPTS:
            raise ConnectionError(f"gave up after {ATTEMPTS} retries: {what}; check the storage and the workers")

    def _judge(self, task: Task, lost: Lost) -> None:
        owners = {names[task.piece]: client for client, names in self._pieces.items()}
        gone = [owners[name] for name in task.inputs if not self._is_there(task.piece, name)]
        if not gone:
            # The mount differs, or the storage gives inconsistent answers.
            self._count_again(f"a task cannot read {lost}, although it exists")
            self._submit(task)
        for client in gone:
            _LOG.warning("the storage has lost a piece of %s", client)
            count = len(self._cut.lengths)
            what = f"pieces of the upload of {client}"
            self._gone[client] = ThresholdNotMet(
                needed=count, present=count - 1, what=what, why="; the storage lost one"
            )

    def _is_there(self, piece: int, name: str) -> bool:
        with _named("the storage fails"), suppress(Lost):
            self._objects.read(name, self._cut.lengths[piece])
            return True
        return False

    # --- The end ------------------------------------------------------------------------------------------------------

    def settle(self) -> Mapping[ClientId, SecAggError]:
        self._sums = self._added()
        return dict(self._gone)

    def _added(self) -> list[Sums]:
        """Wait for all tasks, and add up their results; repeat lost ones."""
        while True:
            gone, totals = len(self._gone), [self._cut.zeros(piece) for piece in range(len(self._cut.lengths))]
            tasks = [task for batch in self._batches for task in self._tasks_of(batch)]
            for task in tasks:
                self._submit(task)
            while self._left:
                self._take(self._patience)
            # All lost sums are found before any is recomputed.
            read = [self._has_read(task, totals[task.piece]) for task in tasks if len(self._gone) == gone]
            if len(read) == len(tasks) and all(read):
                return totals

    def _has_read(self, task: Task, total: Sums) -> bool:
        with _named("the storage fails"), suppress(Lost):
            for words, more in zip(total, read_sum(self._objects, task.output, total), strict=True):
                add_into(words, more)
            return True
        self._done.discard(task.output)
        self._count_again(f"{task.output} was lost")
        return False

    def fix(self, upload_list: bytes) -> None:
        with _named("the list cannot be fixed, or another one was"):
            self._state.put(LIST, _digest_of(self._sums) + upload_list)

    def open(self, secret: np.ndarray) -> Iterator[list[np.ndarray]]:
        self._sums = self._sums or self._sums_of_before()
        return (self._cut.open(total, number, secret) for number, total in enumerate(self._sums))

    def _sums_of_before(self) -> list[Sums]:
        """Recompute the sum with which an earlier process fixed its list."""
        if (recorded := self._state.get(LIST)) is None:
            raise ConnectionError("fix the list before opening the sum")
        counted, self._batches = [one.client for one in UploadList.decode(recorded[_DIGEST_BYTES:]).listed], [[]]
        if not (lost := set(counted) - self._pieces.keys()):
            for client in counted:
                self.add(client, b"")
            sums, lost = self._added(), set(self._gone)
            if not lost and _digest_of(sums) == recorded[:_DIGEST_BYTES]:
                return sums
        if lost:
            raise ConnectionError(f"the list counts {min(lost)}, but the storage lost its pieces; start a new sum")
        raise ConnectionError("the storage's sums differ from those of the fixed list; start a new sum")

    def over(self) -> None:
        with _named("the end of the sum cannot be recorded"):
            self._state.put(OVER, b"")
        self._is_over = True

    def end(self) -> None:
        """Remove everything, unless another process may resume the sum."""
        self._left.clear()
        self._sums.clear()
        if self._is_over or not self._is_kept():
            self._remove(self._objects)
            self._state.clear()
        self._state.close()

    def _remove(self, objects: Objects) -> None:
        try:
            objects.remove()
        except Exception as error:  # noqa: BLE001 -- leftovers must not fail an opened sum
            _LOG.warning("remove the rest of a sum from %s yourself: %s", self._nothing.storage, str(error))


@contextmanager
def _named(what: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise ConnectionError(f"{what}: {error}") from error


def _names(upload: Upload) -> tuple[str, ...]:
    """Return the names of an upload's pieces, which include the digests of their contents."""
    client = upload.header.client.value
    return tuple(f"pieces/{client}/{number}-{each.hex()}" for number, each in enumerate(upload.pieces))


def _digest_of(sums: list[Sums]) -> bytes:
    hashed = hashlib.sha256()
    for words in chain(*sums):
        hashed.update(words.data)
    return hashed.digest()
