"""What a client has uploaded, across tasks and restarts: digests of updates and of models, each known by one number.

Two sums that differ in one client give that client away, so no update goes into two of them. A server that gives a
round another number, a task another name, or a layout another version does not get the same update again: what is
remembered is what was uploaded, and not what it was called.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract import Payload
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.errors import Misuse, PeerMisbehaved, Reason
from secagg.wire import MessageKind, Writer

from .chained_file import ChainedFile
from .durable import claim

DIGEST_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_HASHED_AT_A_TIME: Final = 1 << 30
"""The backend takes less than 2^31 bytes at once."""
NO_MODEL: Final = bytes(DIGEST_BYTES)
"""In the place of a model that nobody names."""
_NUMBER_BYTES: Final = 8
_BODY_BYTES: Final = DIGEST_BYTES + _NUMBER_BYTES + DIGEST_BYTES + DIGEST_BYTES
_HEADER: Final = Writer(MessageKind.SPENT_UPDATES).finish()


def values_digest(payload: Payload) -> bytes:
    """Return what an update is known by: its values, whatever version its layout has.

    The words go through GMAC under a key that everybody knows, which is ten times as fast as a hash. What is looked for
    is the same update again, and equal words have equal digests; whoever makes two updates collide has one refused.

    Implements: [SP 800-38D] §3, GMAC, as a universal hash.
    """
    bound, parts = bind(Label.SPENT_VALUES), list[bytes]()
    cipher = AESGCM(hashlib.sha256(bound).digest())
    for vector in payload.values:
        # Words as they stand in memory: nobody but this machine reads the digest.
        words = vector.data
        words = (words if words.c_contiguous else memoryview(words.tobytes())).cast("B")
        parts.append(words.nbytes.to_bytes(8, "big"))
        for start in range(0, words.nbytes, _HASHED_AT_A_TIME):
            # Safe because: nothing is encrypted, and the key is no secret.
            parts.append(cipher.encrypt(bytes(_NONCE_BYTES), b"", words[start : start + _HASHED_AT_A_TIME]))
    return hashlib.sha256(bound + b"".join(parts)).digest()


@dataclass(frozen=True, slots=True)
class Spent:
    """One upload."""

    task: bytes
    number: int
    """Of the round, or of the model's version; it goes up within a task."""
    values: bytes
    """As ``values_digest`` has it."""
    model: bytes = NO_MODEL
    """The digest of the model that the update was trained from."""

    def encode(self) -> bytes:
        """Return the body of the record."""
        return _task_digest(self.task) + self.number.to_bytes(_NUMBER_BYTES, "big") + self.values + self.model


class SpentUpdates(Confined):
    """The uploads of one client, in memory or in a file; what ``charge`` did is durable when it returns.

    Security: the file is this user's alone, because a digest of an update lets whoever has it test guesses. A machine
        that is restored from a snapshot takes the file back with it, which nothing in it can notice.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Go on from a file, which no other process uses meanwhile; or begin in memory.

        Raises:
            InvalidParameters: another process uses the file.
            MalformedMessage: it is no ledger, or was changed.
        """
        self._lock = RLock()
        self._last = dict[bytes, int]()
        self._count = dict[bytes, int]()
        self._known = dict[bytes, tuple[bytes, int]]()
        """By the digest of values or of a model, the digest of the task and the number."""
        self._process = os.getpid()
        """A fork has the lock of the file too, and knows nothing of what this process writes."""
        self._file = None if path is None else self._opened(path)

    def last(self, task: bytes) -> int:
        """Return the greatest number of a task; -1 if nothing was uploaded for it."""
        return self._last.get(_task_digest(task), -1)

    def count(self, task: bytes) -> int:
        """Return how many uploads there were for a task."""
        return self._count.get(_task_digest(task), 0)

    def require_new(self, spent: Spent) -> None:
        """Refuse an update or a model that is known under another number or task; nothing changes.

        Raises:
            Misuse: this very update was uploaded before.
            PeerMisbehaved: the model is one of before, under a new number.
        """
        task = _task_digest(spent.task)
        with self._lock:
            if spent.values in self._known:
                raise Misuse(
                    "this update was uploaded before, and two sums that differ in one client give that client away; "
                    "train again",
                    reason=Reason.ALREADY_SPENT,
                )
            known = self._known.get(spent.model) if spent.model != NO_MODEL else None
            if known not in (None, (task, spent.number)):
                raise PeerMisbehaved(
                    f"the model of number {spent.number} is one that this client uploaded for before, under another "
                    "number or task; two sums of updates of one model can give a client away",
                    reason=Reason.ALREADY_ANSWERED,
                )

    def charge(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Remember an upload, or refuse it; nothing is given back if the upload fails later.

        Sessions side by side may each have looked before; what is decided here is decided for all of them.

        Args:
            is_repeat_allowed: whether an update or a model may be uploaded again, where noise protects each release.
            maximum: how many uploads there may be for the task; None for any number.
        Raises:
            Misuse: as for ``require_new``, or this is a fork of the process that opened the file.
            PeerMisbehaved: as for ``require_new``, the number does not go up, or the budget is spent; nothing has
                changed.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        if len(spent.values) != DIGEST_BYTES or len(spent.model) != DIGEST_BYTES:
            raise Misuse(f"an upload is known by digests of {DIGEST_BYTES} bytes")
        with self._lock:
            if self._file is not None and self._process != os.getpid():
                raise Misuse("this ledger was forked into another process; open one of its own there")
            if not is_repeat_allowed:
                self.require_new(spent)
            self._require_next(spent, is_repeat_allowed=is_repeat_allowed, maximum=maximum)
            body = spent.encode()
            if self._file is not None:
                self._file.append(body)
            self._remember(body)

    def _require_next(self, spent: Spent, *, is_repeat_allowed: bool, maximum: int | None) -> None:
        last = self.last(spent.task)
        if spent.number < last or (spent.number == last and not is_repeat_allowed):
            raise PeerMisbehaved(
                f"this client uploaded for number {last}, and is asked for {spent.number}; numbers go up within a "
                "task, and each has one upload",
                reason=Reason.ALREADY_ANSWERED,
            )
        if maximum is not None and self.count(spent.task) >= maximum:
            raise PeerMisbehaved(
                f"this client has made {maximum} uploads, which is its budget for the task", reason=Reason.BUDGET_SPENT
            )

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
        values, model = rest[_NUMBER_BYTES : _NUMBER_BYTES + DIGEST_BYTES], rest[_NUMBER_BYTES + DIGEST_BYTES :]
        self._last[task] = max(number, self._last.get(task, -1))
        self._count[task] = self._count.get(task, 0) + 1
        self._known.setdefault(values, (task, number))
        if model != NO_MODEL:
            self._known.setdefault(model, (task, number))

    def __repr__(self) -> str:
        return f"<SpentUpdates, {sum(self._count.values())} uploads>"


def _task_digest(task: bytes) -> bytes:
    return hashlib.sha256(bind(Label.SPENT_TASK, task)).digest()
