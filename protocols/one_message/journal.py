"""Journal of a standing holder, written before it acts: after a crash it continues, and does nothing twice.

A folder holds four files for one epoch: the records; the secret, with the boot id of the machine that drew it; the
head, with the number of bytes of valid records, the digest of their chain, and the time at which the file system made
its mark, which a person who puts a file back cannot set; and that mark, an empty file.

A record is appended, a new mark is made, the head is replaced by one that names it, and the mark of the head before it
is removed; only then is anything sent. So at each moment one head can be believed, or two if nothing was sent since the
older of them. Nothing after the valid records was ever answered. A copy that is put back has no mark of its time.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import reduce
from pathlib import Path
from typing import Annotated, ClassVar, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.errors import InvalidParameters, Misuse, PeerError, PeerMisbehaved, Reason
from secagg.fields import Message, choice, fixed, repeated, unsigned, variable
from secagg.identifiers import ServerId
from secagg.session import durable
from secagg.wire import MessageKind

from .configuration import DIGEST_BYTES, NONCE_BYTES

ROOT_BYTES: Final = 32
_LENGTH_BYTES: Final = 8
_MAXIMUM_FIRST_BYTES: Final = 1 << 10
_FILES: Final = re.compile(r"(secret|records|head)(\.new)?|mark\.[0-9]+")
_OWNER_ONLY: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAXIMUM_BYTES: Final = (1 << 32) - 1


class Event(IntEnum):
    """Kind of event that a record describes."""

    OFFERED = 0
    """An offer that was admitted."""
    DELIVERED = 1
    """A delivery, and the receipt for it."""
    LISTED = 2
    """A list, whose uploads are spent, and the signature on it or the answer to it."""
    BEGUN = 3
    """The number of a round, before which nothing is remembered, and how many uploads there were in those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Message):
    """One record: a request and what it was answered with."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_RECORD
    event: Annotated[Event, choice(tuple(Event))]
    parts: Annotated[tuple[bytes, ...], repeated(variable(_MAXIMUM_BYTES), 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSecret(Message):
    """Secret that never leaves the machine on which it was drawn."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_SECRET
    record: Annotated[bytes, fixed(DIGEST_BYTES)]
    boot_id: Annotated[bytes, variable(64)]
    root: Annotated[bytes, fixed(ROOT_BYTES)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]

    def __repr__(self) -> str:
        return "<HolderSecret>"


class Journal:
    """The records of one holder and epoch: none, where its keys are in memory alone and a restart is an absence."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""

    def restart(self, event: Event, *parts: bytes) -> None:
        """Write a record down in the place of all others."""

    def records(self) -> Iterator[Entry]:
        return iter(())

    def erase(self) -> None:
        """Destroy the records and the secret, at the end of the epoch."""


class Placements:
    """On which list each sum and each upload is; without cryptography."""

    def __init__(self) -> None:
        self._list_of_sum = dict[bytes, bytes]()
        self._list_of_upload = dict[bytes, bytes]()

    def require_free(self, sum_id: bytes, upload_list: bytes, uploads: tuple[bytes, ...]) -> None:
        """Refuse a second list for a sum, and a second list for an upload."""
        if self._list_of_sum.get(sum_id, upload_list) != upload_list:
            raise _spent("a sum has one list; ask for that one again")
        if any(self._list_of_upload.get(upload, upload_list) != upload_list for upload in uploads):
            raise _spent("an upload is on one list ever; ask for that one again")

    def place(self, sum_id: bytes, upload_list: bytes, uploads: tuple[bytes, ...]) -> None:
        self._list_of_sum[sum_id] = upload_list
        self._list_of_upload.update(dict.fromkeys(uploads, upload_list))


def _spent(sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=Reason.ALREADY_SPENT, culprits={ServerId()})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHead(Message):
    """Which records count, and the mark by which this head is told from those before it and from its copies."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_HEAD
    number: Annotated[int, unsigned(8)]
    """Goes up by one with each head; names the mark."""
    made: Annotated[int, unsigned(8)]
    """When the file system last changed the mark, in nanoseconds; later than the mark before it."""
    length: Annotated[int, unsigned(8)]
    """Bytes of the records that count."""
    chain: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the secret and of all records."""
    first: Annotated[bytes, variable(_MAXIMUM_FIRST_BYTES)]
    """A record in the place of all that were written before it, or nothing."""


class State(StrEnum):
    """The state of a folder, as the sentence that refuses it."""

    UNBEGUN = "no head, and no records: nobody has heard of the secret, if there is one"
    NEWEST = "a head with its mark, and the records that it counts"
    ELSEWHERE = "is of another epoch; name another folder for this one"
    LOST = "lacks files that it had, such as records and no secret; this holder's epoch is over"
    STARTED = (
        "was begun before this machine was started, and cannot show that it is the newest state; this holder's epoch "
        "is over"
    )
    COPIED = "was copied, and cannot show that it is the newest state; this holder's epoch is over"
    OLDER = "is older than what this holder has done; this holder's epoch is over"


class FileJournal(Confined, Journal):
    """A journal in a folder of its owner's, which one process has open at a time.

    Security: exclude the folder from backups. It holds the secret that opens the epoch's shares. A snapshot of the
        whole file system that is put back while the machine runs keeps all times, and is not noticed.
    """

    def __init__(self, folder: Path, record: bytes, boot_id: bytes, coins: Coins) -> None:
        """Begin, or continue after a crash.

        Args:
            record: digest of the epoch's record.
            boot_id: of the machine since it was started, such as ``/proc/sys/kernel/random/boot_id``.
        Raises:
            InvalidParameters: the folder is open elsewhere, readable by others, or its state is refused.
            MalformedMessage: a file is damaged.
        """
        durable.require_own_folder(folder)
        self._folder, self.is_open = folder, True
        self._entries: list[Entry] | None = []
        with ExitStack() as files:
            # The folder is locked and not a file in it, in whose place another could be put.
            lock = os.open(folder, os.O_RDONLY)
            files.callback(os.close, lock)
            durable.claim(lock, f"{folder} is open in another process; two holders at one position would answer twice")
            self._records = os.open(folder / "records", os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
            files.callback(os.close, self._records)
            secret = self._kept(record, boot_id) or self._begin(record, boot_id, coins)
            self._start = _step(b"", secret.encode())
            self.root, self.nonce = Secret("holder root", secret.root), secret.nonce
            self._files = files.pop_all()

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record and then its head, and flush both; after an ``OSError`` it is as if not tried."""
        self._require_open()
        record = Entry(event=event, parts=parts).encode()
        framed, head = len(record).to_bytes(_LENGTH_BYTES, "big") + record, self._head
        # Remove the leftovers of a crash or a full disk.
        os.ftruncate(self._records, head.length)
        os.lseek(self._records, head.length, os.SEEK_SET)
        durable.append_whole(self._records, framed)
        self._turn_to(replace(head, length=head.length + len(framed), chain=_step(head.chain, record)))

    def restart(self, event: Event, *parts: bytes) -> None:
        self._require_open()
        record = Entry(event=event, parts=parts).encode()
        self._turn_to(replace(self._head, length=0, chain=_step(self._start, record), first=record))

    def _require_open(self) -> None:
        if not self.is_open:
            raise Misuse(
                f"the journal {self._folder} was closed; open it again to continue", reason=Reason.ALREADY_SPENT
            )

    def records(self) -> Iterator[Entry]:
        """Return what the folder held when it was opened, once."""
        entries, self._entries = self._entries, None
        if entries is None:
            raise Misuse(f"open the journal {self._folder} again to read it again", reason=Reason.ALREADY_SPENT)
        return iter(entries)

    def close(self) -> None:
        """Close the folder, which stays; the secret read from it is overwritten."""
        self.root.wipe()
        self._close()

    def _close(self) -> None:
        self.is_open = False
        self._files.close()

    def erase(self) -> None:
        self.close()
        erase_files(self._folder)

    # --- What a folder holds ------------------------------------------------------------------------------------------

    def _kept(self, record: bytes, boot_id: bytes) -> HolderSecret | None:
        """Read the folder; return nothing if nobody has heard of its contents."""
        secret = None if (found := self._read("secret")) is None else HolderSecret.decode(found)
        head = None if (found := self._read("head")) is None else JournalHead.decode(found)
        written = self._read("records") or b""
        state = self._state(secret, head, written, record, boot_id)
        if state not in {State.UNBEGUN, State.NEWEST}:
            raise InvalidParameters(f"{self._folder} {state}")
        self._remove_leftovers(None if head is None else head.number)
        if secret is None or head is None:
            return None
        self._head = head
        self._entries = [Entry.decode(one) for one in _records_in(head, written)]
        return secret

    def _state(
        self, secret: HolderSecret | None, head: JournalHead | None, written: bytes, record: bytes, boot_id: bytes
    ) -> State:
        if head is None:
            return State.LOST if written else State.UNBEGUN
        if secret is None:
            return State.LOST
        if secret.record != record:
            return State.ELSEWHERE
        if secret.boot_id != boot_id:
            return State.STARTED
        if self._mark_made(head.number) != head.made:
            return State.COPIED
        chain = reduce(_step, _records_in(head, written), _step(b"", secret.encode()))
        return State.NEWEST if len(written) >= head.length and chain == head.chain else State.OLDER

    def _read(self, name: str) -> bytes | None:
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def _remove_leftovers(self, number: int | None) -> None:
        for pattern in ("*.new", "mark.*"):
            for path in self._folder.glob(pattern):
                if number is None or path != self._mark(number):
                    durable.erase(path)

    def _begin(self, record: bytes, boot_id: bytes, coins: Coins) -> HolderSecret:
        root, nonce = draw_exactly(ROOT_BYTES, coins), bytes(draw_exactly(NONCE_BYTES, coins))
        drawn = HolderSecret(record=record, boot_id=boot_id, root=bytes(root), nonce=nonce)
        overwrite(root)
        durable.replace(self._folder / "secret", drawn.encode())
        made = durable.create_later(self._mark(0), 0)
        self._head = JournalHead(number=0, made=made, length=0, chain=_step(b"", drawn.encode()), first=b"")
        durable.replace(self._folder / "head", self._head.encode())
        return drawn

    # --- Heads and their marks ----------------------------------------------------------------------------------------

    def _turn_to(self, head: JournalHead) -> None:
        """Replace the head, and outdate the one before it."""
        before, number = self._head, self._head.number + 1
        head = replace(head, number=number, made=durable.create_later(self._mark(number), before.made))
        try:
            durable.replace(self._folder / "head", head.encode())
            self._outdate(before)
        except BaseException:
            # Which head is on the disk is found out by opening the folder again.
            self._close()
            raise
        self._head = head

    def _outdate(self, head: JournalHead) -> None:
        """Remove the mark of a head that was replaced, so that no copy of it is believed."""
        if self._mark_made(head.number) != head.made:
            raise InvalidParameters(f"{self._folder} was changed by somebody else; this holder's epoch is over")
        self._mark(head.number).unlink()
        durable.sync_folder(self._folder)

    def _mark(self, number: int) -> Path:
        return self._folder / f"mark.{number}"

    def _mark_made(self, number: int) -> int:
        """Return when the file system last changed a mark or its entry; 0 if there is none."""
        try:
            return self._mark(number).stat().st_ctime_ns
        except FileNotFoundError:
            return 0

    def __repr__(self) -> str:
        return f"<FileJournal {self._folder}>"


def _step(chain: bytes, record: bytes) -> bytes:
    return hashlib.sha256(bind(Label.ONE_MESSAGE_JOURNAL, chain, record)).digest()


def _records_in(head: JournalHead, written: bytes) -> Iterator[bytes]:
    if head.first:
        yield head.first
    end = 0
    while end < head.length:
        start = end + _LENGTH_BYTES
        end = start + int.from_bytes(written[end:start], "big")
        if end > head.length:
            return
        yield written[start:end]


def is_journal(folder: Path) -> bool:
    """Whether a folder holds the files of a journal and no others; an empty one is the rest of one."""
    names = {path.name for path in folder.iterdir()}
    if any(_FILES.fullmatch(name) is None for name in names):
        return False
    for name, kind in (("secret", HolderSecret), ("head", JournalHead)):
        with suppress(OSError, PeerError):
            kind.decode((folder / name).read_bytes())
            return True
    return not names


def erase_files(folder: Path) -> None:
    """Overwrite the files of a journal with zeros and remove them; what the file system keeps is beyond reach."""
    for name in ("secret", "records", "head", "*.new", "mark.*"):
        for path in folder.glob(name):
            durable.erase(path)


def boot_id() -> bytes:
    """Return this machine's boot id, which changes when it is started."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        raise InvalidParameters(
            "this system does not say when it was started, so a restored holder cannot be noticed; hold on Linux"
        ) from None
