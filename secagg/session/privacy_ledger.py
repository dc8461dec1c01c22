"""Ledger of a client's privacy budget: the cost of each noised sum, added up over all tasks and restarts.

Nobody else can know it: a server sees one task, and a client may be in many.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Annotated, Any, ClassVar, Final

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, MalformedMessage, Reason, blaming
from secagg.fields import Message, fixed, unsigned
from secagg.identifiers import ClientId
from secagg.privacy.accounting import NO_LOSS, NOT_NOISED, Loss, PrivacyBudget
from secagg.privacy.client_noise import ClientNoise
from secagg.wire import MessageKind

from .durable import ChainedFile, hold

_BODY: Final = Struct(">4d")
_OWNER_BYTES: Final = 32
_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = 0x800
_STATX: Final = Struct("=I 76x qI 164x")
"""Layout of the kernel's struct statx: which fields it has, and the seconds and nanoseconds of the birth."""
_SECOND: Final = 10**9
_COPIED: Final = (
    "is a copy, which does not know later spending; use the file that it was copied from, or give this "
    "client a new identity"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader(Message):
    """Header of a ledger's file."""

    kind: ClassVar = MessageKind.PRIVACY_LEDGER
    owner: Annotated[bytes, fixed(_OWNER_BYTES)]
    adjacency: Annotated[int, unsigned(1)]
    inode: Annotated[int, unsigned(8)]
    birth: Annotated[int, unsigned(8)]
    """Nanosecond in which this very file was made. A copy was made later, also where it has the same inode."""


class PrivacyLedger(Confined):
    """The losses of one client's uploads, in memory or in a file; what ``charge`` did is durable when it returns.

    The file is open only while it is asked, so that all processes of a client share it. Nothing is ever given
    back: an upload that was lost after ``charge`` is one that a server may have.

    Security: a ledger of somebody else is refused, and so is a copy, in the same folder or on another volume: it has
        another inode, or another time of birth. Three things are not noticed: the whole volume put back as it was, or
        cloned block by block; the file removed; and a copy that got the same inode on a file system without times of
        birth (NFS, and tmpfs before Linux 6.6).
    """

    def __init__(self, budget: PrivacyBudget, *, owner: bytes, path: Path | None = None) -> None:
        """Keep to a budget; earlier spending counts, whatever the budget was then.

        Args:
            owner: what this client is known by in all its tasks, such as its public key.
            path: None keeps it in memory, for simulations and tests.
        """
        self.budget, self._path = budget, path
        self._owner = hashlib.sha256(bind(Label.PRIVACY_OWNER, owner)).digest()
        self._lock, self._kept = Lock(), list[bytes]()

    @property
    def spent(self) -> float:
        """The epsilon that was spent so far, at the budget's delta."""
        with self._opened() as (losses, _):
            return self.budget.spent(_sum(losses))

    @property
    def uploads(self) -> int:
        with self._opened() as (losses, _):
            return len(losses)

    @property
    def event(self) -> Any:  # noqa: ANN401 -- of dp-accounting, which has no types
        """What this client released, as an event of ``dp-accounting``; this ledger alone decides on uploads."""
        with self._opened() as (losses, _):
            return _sum(losses).event

    def require_room(self, noise: ClientNoise | None) -> None:
        """Refuse a session that the budget does not pay for, before anything is drawn for it; nothing changes.

        Raises:
            InvalidParameters: it has no noise, or would pass the budget; the message says what to change.
            MalformedMessage: the file is another client's, a copy, or was changed.
        """
        with self._opened() as (losses, _):
            self._cost(noise, losses)

    def charge(self, noise: ClientNoise | None) -> None:
        """Remember one upload for good, or refuse it; to be called before its noise is drawn.

        Sessions side by side may each have found room; this decision holds for all of them.

        Raises:
            InvalidParameters, MalformedMessage: as for ``require_room``; nothing may be sent.
            OSError: it could not be written; nothing has changed, and nothing may be sent.
        """
        with self._opened() as (losses, append):
            append(_BODY.pack(*self._cost(noise, losses).numbers))

    def _cost(self, noise: ClientNoise | None, losses: list[Loss]) -> Loss:
        if noise is None:
            raise InvalidParameters(NOT_NOISED, reason=Reason.BELOW_FLOOR)
        cost = noise.loss(self.budget.adjacency)
        self.budget.require_room(_sum(losses), len(losses), cost, noise.multiplier)
        return cost

    @contextmanager
    def _opened(self) -> Generator[tuple[list[Loss], Callable[[bytes], None]]]:
        """Yield the losses so far, and what appends another one; meanwhile nobody else has the ledger."""
        with self._lock:
            if self._path is None:
                yield [Loss(*_BODY.unpack(body)) for body in self._kept], self._kept.append
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                hold(descriptor)
                # It is the client's own file, so whatever is wrong with it is nobody's doing in a session.
                with blaming():
                    file = ChainedFile(
                        descriptor, self._path, header=self._header(descriptor, self._path), body_bytes=_BODY.size
                    )
                    losses = [self._read(body) for body in file.bodies()]
                yield losses, file.append
            finally:
                os.close(descriptor)

    def _header(self, descriptor: int, path: Path) -> bytes:
        """Return what the file has to begin with, and refuse another client's, other neighbours', or a copy."""
        own = LedgerHeader(
            owner=self._owner,
            adjacency=self.budget.adjacency.value,
            inode=os.fstat(descriptor).st_ino,
            birth=_birth_of(descriptor),
        )
        written = own.encode()
        if len(stored := os.pread(descriptor, len(written), 0)) == len(written):
            found = LedgerHeader.decode(stored)
            for mine, theirs, sentence in (
                (own.owner, found.owner, "is of another client; name one for each"),
                (own.adjacency, found.adjacency, "counts with another adjacency; give its budget that one"),
                ((own.inode, own.birth), (found.inode, found.birth), _COPIED),
            ):
                if mine != theirs:
                    raise MalformedMessage(f"the privacy ledger {path} {sentence}", reason=Reason.NOT_CANONICAL)
        return written

    def _read(self, body: bytes) -> Loss:
        loss = Loss(*_BODY.unpack(body))
        # A bound of a divergence is positive at every order; the offset alone may be below 0.
        if not all(map(isfinite, loss.numbers)) or min(loss.slope, loss.more, loss.most) < 0:
            raise MalformedMessage(f"{self._path} holds a loss that is not a number", reason=Reason.NOT_CANONICAL)
        return loss

    def __repr__(self) -> str:
        return f"<PrivacyLedger{'' if self._path is None else f' in {self._path}'}, {self.budget}>"


class PrivacyLedgers:
    """The ledgers of simulated clients, in memory."""

    def __init__(self, budget: PrivacyBudget | None) -> None:
        self._budget, self._known = budget, dict[ClientId, PrivacyLedger]()

    def of(self, client: ClientId) -> PrivacyLedger | None:
        if self._budget is None:
            return None
        return self._known.setdefault(client, PrivacyLedger(self._budget, owner=client.encode()))


def _sum(losses: list[Loss]) -> Loss:
    return sum(losses, NO_LOSS)


def _birth_of(descriptor: int) -> int:
    """Return when a file was made, in nanoseconds; 0 where the system does not tell."""
    found = os.fstat(descriptor)
    if (birth := getattr(found, "st_birthtime", None)) is not None:
        return int(birth * _SECOND)
    call = getattr(ctypes.CDLL(None), "statx", None)
    said = ctypes.create_string_buffer(_STATX.size)
    if call is None or call(descriptor, b"", _EMPTY_PATH, _BIRTH, said) != 0:
        return 0
    fields, seconds, nanoseconds = _STATX.unpack(said.raw)
    return seconds * _SECOND + nanoseconds if fields & _BIRTH else 0
