"""Ledger of a client's uploads across tasks and restarts: rounds, and digests of models, each counted.

Two sums that differ in one client give that client away. So a round of a task has one upload, and the updates of one
model go into a few sums at most, whatever a server calls its rounds, tasks and layouts. Values are never remembered:
two updates may be equal because a server's bound cut both, and a refusal would tell that.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Final

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.errors import UNDECIDED, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.parameters import ATTEMPTS
from secagg.wire import MessageKind, Writer

from .durable import ChainedFile, claim

DIGEST_BYTES: Final = 32
NO_MODEL: Final = bytes(DIGEST_BYTES)
NO_UPDATE: Final = bytes(DIGEST_BYTES)
"""Digest in the place of an update that is made for its session."""
_NUMBER_BYTES: Final = 8
_BODY_BYTES: Final = DIGEST_BYTES + _NUMBER_BYTES + DIGEST_BYTES + DIGEST_BYTES
_HEADER: Final = Writer(MessageKind.SPENT_UPDATES).finish()


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

    def encode(self) -> bytes:
        return _task_digest(self.task) + self.number.to_bytes(_NUMBER_BYTES, "big") + self.update + self.model


class SpentUpdates(Confined):
    """The uploads of one client, in memory or in a file; what ``charge`` did is durable when it returns.

    Security: a machine that is restored from a snapshot takes the file back with it, which nothing in it can notice.
    """

    def __init__(self, path: Path | None = None, *, attempts: int | None = ATTEMPTS) -> None:
        """Read a file, which no other process may use meanwhile; or begin in memory.

        Args:
            attempts: uploads for one model at most, under any task and number; None only in simulations.
        Raises:
            InvalidParameters: another process uses the file, or there are no attempts.
            MalformedMessage: it is not a ledger, or was changed.
        """
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise InvalidParameters(f"attempts are the uploads for one model, 1 or more; got {attempts!r}")
        self._attempts, self._lock = attempts, RLock()
        self._last = dict[bytes, int]()
        self._count, self._uploads = Counter[bytes](), Counter[bytes]()
        """Counts by the digest of a task, and by that of a model or an update."""
        self._process = os.getpid()
        """A fork has the lock of the file too, and knows nothing of what this process writes."""
        self._file = None if path is None else self._opened(path)

    def last(self, task: bytes) -> int:
        """Return the greatest number of a task; -1 if nothing was uploaded for it."""
        return self._last.get(_task_digest(task), -1)

    def count(self, task: bytes) -> int:
        return self._count[_task_digest(task)]

    def require_open(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Refuse what ``charge`` would refuse; nothing changes."""
        with self._lock:
            last = self.last(spent.task)
            if spent.number < last or (spent.number == last and not is_repeat_allowed):
                raise PeerMisbehaved(
                    f"this client uploaded for number {last}, and is asked for {spent.number}; numbers go up within a "
                    "task, and each has one upload",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )
            if maximum is not None and self.count(spent.task) >= maximum:
                raise PeerMisbehaved(
                    f"this client has made {maximum} uploads, which is its budget for the task",
                    reason=Reason.BUDGET_SPENT,
                    culprits=UNDECIDED,
                )
            if is_repeat_allowed:
                return
            if self._uploads[spent.update]:
                raise Misuse(
                    "this update was uploaded before, and two sums that differ in one client give that client away; "
                    "train again",
                    reason=Reason.ALREADY_SPENT,
                )
            if self._attempts is not None and self._uploads[spent.model] >= self._attempts:
                times = "once" if self._attempts == 1 else f"{self._attempts} times"
                raise PeerMisbehaved(
                    f"this client has uploaded {times} for the model of number {spent.number}, whatever its number and "
                    "task were; two sums of updates of one model can give a client away",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )

    def charge(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Remember an upload before its update is made, or refuse it; nothing is given back if the upload fails later.

        Sessions side by side may each have looked before; this decision holds for all of them.

        Args:
            is_repeat_allowed: whether an update or a model may be uploaded again, where noise protects each release.
            maximum: how many uploads there may be for the task; None for any number.
        Raises:
            Misuse: this very update was uploaded before, or this is a fork of the process that opened the file.
            PeerMisbehaved: the number does not go up, the model has had its attempts, or the budget is spent.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        if len(spent.update) != DIGEST_BYTES or len(spent.model) != DIGEST_BYTES:
            raise Misuse(f"an upload is known by digests of {DIGEST_BYTES} bytes")
        with self._lock:
            if self._file is not None and self._process != os.getpid():
                raise Misuse("this ledger was forked into another process; open one of its own there")
            self.require_open(spent, is_repeat_allowed=is_repeat_allowed, maximum=maximum)
            body = spent.encode()
            if self._file is not None:
                self._file.append(body)
            self._remember(body)

    def close(self) -> None:
        """Let another process use the file; this object charges nothing more."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _opened(self, path: Path) -> ChainedFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            claim(descriptor, f"{path} is the ledger of a process that runs; end that one first")
            file = ChainedFile(descriptor, path, header=_HEADER, body_bytes=_BODY_BYTES)
            for body in file.bodies():
                self._remember(body)
        except BaseException:
            os.close(descriptor)
            raise
        return file

    def _remember(self, body: bytes) -> None:
        task, rest = body[:DIGEST_BYTES], body[DIGEST_BYTES:]
        number = int.from_bytes(rest[:_NUMBER_BYTES], "big")
        self._last[task] = max(number, self._last.get(task, -1))
        self._count[task] += 1
        named = {rest[_NUMBER_BYTES : _NUMBER_BYTES + DIGEST_BYTES], rest[_NUMBER_BYTES + DIGEST_BYTES :]}
        self._uploads.update(named - {NO_MODEL})

    def __repr__(self) -> str:
        return f"<SpentUpdates, {self._count.total()} uploads>"


def _task_digest(task: bytes) -> bytes:
    return hashlib.sha256(bind(Label.SPENT_TASK, task)).digest()
