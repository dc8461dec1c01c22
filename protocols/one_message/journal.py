"""What a standing holder writes down before it acts: after a crash it goes on, and does nothing twice.

A folder holds three files for one epoch: the records; the secret, with the boot id of the machine that drew it; and the
head, the digest of the chain of records so far and the times at which the file system last changed secret and records.
A record is written and flushed, then the head, and only then is anything sent. A journal that is older than its head
was restored from a copy, and what it has forgotten may have been answered: the epoch is over. So it is where the secret
or the records were put there after their head was written, because nobody who puts a file back can set that time, and
after a reboot. A crash in the midst of writing leaves records that are newer than their head as well. Whoever goes on
from there changes the secret's time, so that no copy of this state is gone on from again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.fields import Message, choice, fixed, repeated, variable
from secagg.identifiers import ServerId
from secagg.session.durable import claim, erase, replace, require_own_folder
from secagg.wire import MessageKind

from .epoch import DIGEST_BYTES, NONCE_BYTES

ROOT_BYTES: Final = 32
_LENGTH_BYTES: Final = 8
_COUNT_BYTES: Final = 8
_TIME_BYTES: Final = 8
_NO_TIMES: Final = bytes(2 * _TIME_BYTES)
_HEAD_BYTES: Final = _COUNT_BYTES + DIGEST_BYTES + 2 * _TIME_BYTES
_OWNER_ONLY: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAXIMUM_BYTES: Final = (1 << 32) - 1


class Event(IntEnum):
    """What a record says happened."""

    OFFERED = 0
    """An offer that was admitted."""
    DELIVERED = 1
    """A delivery, and the receipt for it."""
    LISTED = 2
    """A list, whose uploads are spent, and the signature on it or the answer to it."""
    ANSWERED = 3
    """The answer to a list that was certified."""
    BEGUN = 4
    """The number of a round, before which nothing is remembered, and how many uploads there were in those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Message):
    """One record: a request and what it was answered with."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_RECORD
    event: Annotated[Event, choice(tuple(Event))]
    parts: Annotated[tuple[bytes, ...], repeated(variable(_MAXIMUM_BYTES), 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSecret(Message):
    """What never leaves the machine on which it was drawn."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_SECRET
    record: Annotated[bytes, fixed(DIGEST_BYTES)]
    boot_id: Annotated[bytes, variable(64)]
    root: Annotated[bytes, fixed(ROOT_BYTES)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]

    def __repr__(self) -> str:
        return "<HolderSecret>"


class Journal(Protocol):
    """The records of one holder and epoch."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down; when this returns, a crash does not lose it."""

    def restart(self, event: Event, *parts: bytes) -> None:
        """Write a record down in the place of all others."""

    def records(self) -> Iterator[Entry]:
        """Return what was written down before, once."""
        ...

    def erase(self) -> None:
        """Destroy the records and the secret, at the end of the epoch."""


class NoJournal:
    """For a client that holds: its keys are in memory alone, so a restart is an absence and nothing is repeated."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Forget a record."""

    def restart(self, event: Event, *parts: bytes) -> None:
        """Do nothing."""

    def records(self) -> Iterator[Entry]:
        """Return nothing."""
        return iter(())

    def erase(self) -> None:
        """Do nothing."""


class Placements:
    """On which list each sum and each upload is; without cryptography."""

    def __init__(self) -> None:
        self._list_of_sum = dict[bytes, bytes]()
        self._list_of_upload = dict[bytes, bytes]()

    def require_free(self, sum_id: bytes, upload_list: bytes, uploads: tuple[bytes, ...]) -> None:
        """Refuse a second list for a sum, and a second list for an upload.

        Raises:
            PeerMisbehaved: naming the server.
        """
        if self._list_of_sum.get(sum_id, upload_list) != upload_list:
            raise _spent("a sum has one list; ask for that one again")
        if any(self._list_of_upload.get(upload, upload_list) != upload_list for upload in uploads):
            raise _spent("an upload is on one list ever; ask for that one again")

    def place(self, sum_id: bytes, upload_list: bytes, uploads: tuple[bytes, ...]) -> None:
        """Spend a sum and its uploads."""
        self._list_of_sum[sum_id] = upload_list
        self._list_of_upload.update(dict.fromkeys(uploads, upload_list))


def _spent(sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=Reason.ALREADY_SPENT, culprits={ServerId()})


class FileJournal(Confined):
    """A journal in a folder of its owner's, which one process has open at a time.

    Security: exclude the folder from backups. It holds the secret that opens the epoch's shares.
    """

    def __init__(self, folder: Path, record: bytes, boot_id: bytes, coins: Coins) -> None:
        """Begin, or go on after a crash.

        Args:
            record: the digest of the epoch's record.
            boot_id: of the machine since it was started, such as ``/proc/sys/kernel/random/boot_id``.
        Raises:
            InvalidParameters: the folder is open elsewhere, readable by others, of another epoch, of another start of
                the machine, or older than its head; in the last three cases the epoch is over for this holder.
            MalformedMessage: a record is damaged.
        """
        self._folder, self._head = folder, hashlib.sha256(bind(Label.ONE_MESSAGE_JOURNAL, record)).digest()
        self._start, self._count = self._head, 0
        self._claim()
        try:
            secret = self._kept_secret(record, boot_id, coins)
            self.root, self.nonce = Secret("holder root", secret.root), secret.nonce
            self._entries: list[Entry] | None = self._whole_entries()
        except BaseException:
            self._file.close()
            raise

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record and then the head, and flush both to the disk."""
        self._require_open()
        record = Entry(event=event, parts=parts).encode()
        try:
            self._file.write(len(record).to_bytes(_LENGTH_BYTES, "big") + record)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._step(record)
            self._write_head()
        except BaseException:
            # Nobody knows how much of the record is there. Whoever opens the file again does.
            with suppress(OSError):
                self._file.close()
            raise

    def restart(self, event: Event, *parts: bytes) -> None:
        """Write a record in the place of all others; a crash on the way ends the epoch for this holder."""
        self._require_open()
        self._file.seek(0)
        self._file.truncate()
        self._head, self._count = self._start, 0
        self.append(event, *parts)

    def _require_open(self) -> None:
        if self._file.closed:
            raise Misuse(f"the journal {self._folder} was closed", reason=Reason.ALREADY_SPENT)

    def records(self) -> Iterator[Entry]:
        """Return what the folder held when it was opened, once."""
        entries, self._entries = self._entries, None
        if entries is None:
            raise Misuse(f"open the journal {self._folder} again to go on with it", reason=Reason.ALREADY_SPENT)
        return iter(entries)

    def close(self) -> None:
        """Close the folder, which stays; what was read of its secret is overwritten."""
        self.root.wipe()
        self._file.close()

    def erase(self) -> None:
        """Overwrite the files with zeros and remove them; what the file system keeps of them is beyond reach."""
        self.close()
        erase_files(self._folder)

    def _claim(self) -> None:
        require_own_folder(self._folder)
        self._file = os.fdopen(os.open(self._folder / "records", os.O_RDWR | os.O_CREAT, _OWNER_ONLY), "r+b")
        try:
            claim(
                self._file.fileno(),
                f"{self._folder} is open in another process; two holders at one position would answer twice",
            )
        except InvalidParameters:
            self._file.close()
            raise

    def _kept_secret(self, record: bytes, boot_id: bytes, coins: Coins) -> HolderSecret:
        path, head = self._folder / "secret", self._folder / "head"
        if head.exists() and head.read_bytes() == bytes(_COUNT_BYTES) + self._head + _NO_TIMES:
            # A crash came before the secret was in its place for good, so nobody has heard of it.
            path.unlink(missing_ok=True)
        if not path.exists():
            if os.fstat(self._file.fileno()).st_size or (head.exists() and any(head.read_bytes()[:_COUNT_BYTES])):
                raise InvalidParameters(f"{self._folder} has records and no secret; this holder's epoch is over")
            root, nonce = draw_exactly(ROOT_BYTES, coins), bytes(draw_exactly(NONCE_BYTES, coins))
            drawn = HolderSecret(record=record, boot_id=boot_id, root=bytes(root), nonce=nonce)
            overwrite(root)
            replace(self._folder / "head", bytes(_COUNT_BYTES) + self._head + _NO_TIMES)
            replace(self._folder / "secret", drawn.encode())
            self._write_head()
            return drawn
        kept = HolderSecret.decode(path.read_bytes())
        if kept.record != record:
            raise InvalidParameters(f"{self._folder} is of another epoch; name another folder for this one")
        if kept.boot_id != boot_id:
            raise InvalidParameters(
                f"{self._folder} was begun before this machine was started, and cannot show that it is the newest "
                "state; this holder's epoch is over"
            )
        return kept

    def _whole_entries(self) -> list[Entry]:
        """Read all records, cut off what a crash left of a last one, and compare the chain with the head."""
        head = (self._folder / "head").read_bytes() if (self._folder / "head").exists() else b""
        heads, entries, end = [self._head], list[Entry](), 0
        data = self._file.read()
        while end + _LENGTH_BYTES <= len(data):
            start = end + _LENGTH_BYTES
            length = int.from_bytes(data[end:start], "big")
            if start + length > len(data):
                break
            record, end = data[start : start + length], start + length
            entries.append(Entry.decode(record))
            self._step(record)
            heads.append(self._head)
        count, times = int.from_bytes(head[:_COUNT_BYTES], "big"), head[-2 * _TIME_BYTES :]
        chain = head[_COUNT_BYTES : -2 * _TIME_BYTES]
        # A crash comes between a record and its head at most once.
        if len(head) != _HEAD_BYTES or not count <= len(entries) <= count + 1 or heads[count] != chain:
            raise InvalidParameters(
                f"{self._folder} is older than what this holder has done; this holder's epoch is over"
            )
        is_whole = (count, end) == (len(entries), len(data))
        due = self._changed("secret") + self._changed("records")
        if times[:_TIME_BYTES] != due[:_TIME_BYTES] or (is_whole and times != due):
            raise InvalidParameters(
                f"{self._folder} was copied, and cannot show that it is the newest state; this holder's epoch is over"
            )
        if not is_whole:
            os.utime(self._folder / "secret")
            self._file.truncate(end)
            self._write_head()
        self._file.seek(end)
        return entries

    def _write_head(self) -> None:
        times = self._changed("secret") + self._changed("records")
        replace(self._folder / "head", self._count.to_bytes(_COUNT_BYTES, "big") + self._head + times)

    def _changed(self, name: str) -> bytes:
        """Return when the file system last changed a file or its entry."""
        return (self._folder / name).stat().st_ctime_ns.to_bytes(_TIME_BYTES, "big")

    def _step(self, record: bytes) -> None:
        self._head = hashlib.sha256(bind(Label.ONE_MESSAGE_JOURNAL, self._head, record)).digest()
        self._count += 1

    def __repr__(self) -> str:
        return f"<FileJournal {self._folder}>"


def erase_files(folder: Path) -> None:
    """Overwrite the files of a journal with zeros and remove them."""
    for name in ("secret", "records", "head"):
        erase(folder / name)


def boot_id() -> bytes:
    """Return what this machine is called since it was started.

    Raises:
        InvalidParameters: it does not say.
    """
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        raise InvalidParameters(
            "this system does not say when it was started, so a restored holder cannot be noticed; hold on Linux"
        ) from None
