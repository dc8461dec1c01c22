"""What a client has uploaded so far, in any epoch: one upload for a round, few for a model, none of an older epoch.

Two uploads of one update would make the difference of two sums, whichever epochs they are in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Annotated, ClassVar, Final

from secagg.crypto.secret import Confined
from secagg.errors import UNDECIDED, Misuse, PeerMisbehaved, Reason
from secagg.fields import Message, fixed, repeated, unsigned, variable
from secagg.parameters import ATTEMPTS
from secagg.wire import MessageKind

from .epoch import DIGEST_BYTES

REMEMBERED: Final = 256
"""How many uploads are remembered by their models."""
NO_MODEL: Final = bytes(DIGEST_BYTES)
"""In the place of a model that nobody names."""
_MAXIMUM_TASK_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord(Message):
    """What a client stores."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_CLIENT_RECORD
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    newest_epoch: Annotated[int, unsigned(8)] = 0
    next_round: Annotated[int, unsigned(9)] = 0
    models: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), REMEMBERED)] = ()
    """Of the last uploads, each as often as it was uploaded for."""
    offer: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    """The digest of the offer that the last upload answers."""
    upload: Annotated[bytes, variable((1 << 32) - 1)] = b""


class Ledger(Confined):
    """A ``ClientRecord`` that is stored before anything follows from it."""

    def __init__(
        self,
        task: bytes,
        store: Callable[[bytes], None],
        record: bytes | None = None,
        *,
        attempts: int | None = ATTEMPTS,
    ) -> None:
        """Begin, or go on from the newest record that was stored.

        Args:
            store: writes a record in the place of the last one; a crash after it returns does not lose the record.
            attempts: uploads for one model at most; None only in simulations.
        """
        self._attempts = attempts
        self._record = ClientRecord(task=task) if record is None else ClientRecord.decode(record)
        if self._record.task != task:
            raise Misuse(f"the record is of {self._record.task!r}; keep one for each task")
        self._store, self._lock = store, Lock()

    def sent_for(self, offer: bytes) -> bytes | None:
        """Return the upload that answered this very offer, which is what is sent again."""
        is_same = self._record.upload and self._record.offer == hashlib.sha256(offer).digest()
        return self._record.upload if is_same else None

    def charge(self, task: bytes, epoch: int, round_number: int, model: bytes = NO_MODEL) -> None:
        """Count one upload, or refuse it; nothing is given back if it fails later.

        Claim OM-6: a round has one upload, and a model as many as it has attempts, wherever the process ends.

        Raises:
            Misuse: the ledger is for another task.
            PeerMisbehaved: an epoch older than one that was seen, a round that was answered, or a model that has had
                its attempts.
        """
        with self._lock:
            if task != self._record.task:
                raise Misuse(f"this ledger counts uploads for {self._record.task!r}; keep one for each task")
            if epoch < self._record.newest_epoch:
                raise PeerMisbehaved(
                    f"epoch {epoch} is older than {self._record.newest_epoch}, which this client has seen",
                    reason=Reason.WRONG_SESSION,
                    culprits=UNDECIDED,
                )
            if round_number < self._record.next_round:
                raise PeerMisbehaved(
                    f"this client uploaded for round {self._record.next_round - 1}, and is asked for round "
                    f"{round_number}; rounds go up, and each has one upload",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )
            models = self._record.models
            if model != NO_MODEL and self._attempts is not None and models.count(model) >= self._attempts:
                raise PeerMisbehaved(
                    f"this client has uploaded {self._attempts} times for the model of round {round_number}; two sums "
                    "of updates of one model can give a client away",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )
            models = (*models, model)[-REMEMBERED:]
            self._write(
                replace(self._record, newest_epoch=epoch, next_round=round_number + 1, models=models, upload=b"")
            )

    def keep(self, offer: bytes, upload: bytes) -> None:
        """Store an upload before it is handed over."""
        with self._lock:
            self._write(replace(self._record, offer=hashlib.sha256(offer).digest(), upload=upload))

    def _write(self, record: ClientRecord) -> None:
        self._store(record.encode())
        self._record = record

    def __repr__(self) -> str:
        return f"<Ledger {self._record.task!r}: the next round is {self._record.next_round} or later>"
