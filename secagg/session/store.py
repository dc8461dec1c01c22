"""Durable state of a party in one SQLite file: its uploads, losses, newest standings and suspended sessions.

Two empty files, the marks, distinguish the newest state from a copy or an older one. A transaction touches the mark
that the state does not name, stores the change time that the file system then reports, commits, and touches the other
mark. Nobody can set a change time, so a state that was copied, restored or overwritten names a mark that was touched
since. A crash leaves one trusted state or two; the newer one has not been announced yet.

Premise: no layer below the folder goes back in time. Restoring a snapshot of a volume or a virtual machine restores the
marks too. Layered file systems (overlayfs and similar) are refused.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Final

from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, Misuse, Reason

from .certificates import Standing
from .durable import locked, require_one_layer, require_own_folder, sync_folder, unlock
from .standings import require_newer

_VERSION: Final = 1
_FILE: Final = "state.db"
_MARKS: Final = ("mark.0", "mark.1")
_BEGUN: Final = b"begun\n"
_SCHEMA: Final = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE newest (authority BLOB, client INTEGER, number INTEGER NOT NULL, PRIMARY KEY (authority, client));
CREATE TABLE suspended (name BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE names (data TEXT PRIMARY KEY, authority BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE uploads (
    data TEXT NOT NULL, task BLOB NOT NULL, number INTEGER NOT NULL, model BLOB NOT NULL, content BLOB NOT NULL);
CREATE INDEX by_task ON uploads (data, task, number);
CREATE INDEX by_model ON uploads (data, model);
CREATE INDEX by_content ON uploads (content);
CREATE TABLE losses (
    data TEXT PRIMARY KEY, adjacency INTEGER NOT NULL, uploads INTEGER NOT NULL,
    slope REAL NOT NULL, more REAL NOT NULL, offset REAL NOT NULL, most REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE begun (task BLOB PRIMARY KEY, number INTEGER NOT NULL, rounds INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE fixed (data TEXT, task BLOB, name TEXT, value BLOB NOT NULL, PRIMARY KEY (data, task, name)) WITHOUT ROWID;
"""
_STANDINGS: Final = (
    "CREATE TABLE IF NOT EXISTS standings (authority BLOB PRIMARY KEY, standing BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS contradictions (authority BLOB, seen BLOB, shown BLOB, UNIQUE (authority, shown))",
)
_OLD: Final = (".spent", ".privacy", ".epoch")
"""Ledgers of earlier versions, which had one file per public key."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_WAIT: Final = 30.0
_PAUSE: Final = 0.002
_CLOCK_TRIES: Final = 4000
_TRUST: Final = (
    "was copied, restored, or touched by chmod or chown, and may lack later uploads; use the original, or run "
    "`secagg node trust FOLDER` if you know that it is the newest"
)


class Store(Confined):
    """The state of one party; each transaction is durable when it returns. Processes and threads may share a folder."""

    _open: Final[dict[tuple[int, Path], Store]] = {}

    def __init__(self, folder: Path | None = None, *, trusts: bool = False) -> None:
        """Open or create a state; without a folder it is in memory.

        Args:
            trusts: treat the state as the newest even if the marks disagree.
        Raises:
            InvalidParameters: others can read the folder, its file system is layered, or the state is a copy.
            OSError: it cannot be written.
        """
        self._folder, self._lock, self._depth, self._process = folder, RLock(), 0, os.getpid()
        self._marks = list[int]()
        self._device = 0
        if folder is not None:
            require_own_folder(folder)
            require_one_layer(folder)
            for path in sorted(folder.iterdir()):
                if path.suffix in _OLD:
                    raise InvalidParameters(
                        f"{path} is a ledger of an earlier version, which this one cannot read, so its uploads would "
                        "not count; move it away and give this client other data, or use another folder"
                    )
            self._device = folder.stat().st_dev
            self._marks = [os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in _MARKS]
        file = ":memory:" if folder is None else os.fspath(folder / _FILE)
        self._rows = sqlite3.connect(file, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        try:
            # The commit removes the journal, and EXTRA then syncs the folder: a power failure cannot bring the journal
            # back, which would undo an announced state.
            with self._translated():
                self._rows.execute("PRAGMA journal_mode = DELETE")
                self._rows.execute("PRAGMA synchronous = EXTRA")
            with self._transaction(self._begins, trusts=trusts):
                pass
        except BaseException:
            self.close()
            raise

    @classmethod
    def at(cls, folder: Path | None) -> Store:
        """Return this process's store for a folder, or the one in memory; a fork opens the folder again."""
        if folder is None:
            _memory().forget()
            return _memory()
        # A fork never closes its parent's file: that could roll back what the parent is writing.
        place = os.getpid(), folder.resolve()
        with _OPENING:
            if (found := cls._open.get(place)) is None or not (folder / _FILE).exists():
                found = cls._open[place] = cls(place[1])
            return found

    # --- Numbers --------------------------------------------------------------------------------------------------

    def newest(self, authority: bytes, client: int) -> int:
        """Return the newest epoch that an authority's client has seen; 0 for none."""
        with self.transaction() as rows:
            found = rows.execute("SELECT number FROM newest WHERE (authority, client) = (?, ?)", (authority, client))
            return next(found, (0,))[0]

    def reach(self, authority: bytes, client: int, number: int) -> None:
        """Raise a client's newest epoch to at least this number; it never decreases."""
        with self.transaction() as rows:
            rows.execute(
                "INSERT INTO newest VALUES (?1, ?2, ?3) "
                "ON CONFLICT (authority, client) DO UPDATE SET number = max(number, ?3)",
                (authority, client, number),
            )

    def see_standing(self, authority: bytes, standing: Standing) -> None:
        """Remember an authority's newest standing, and refuse older ones, as ``Standings`` specifies.

        If two standings have the newest number, both are kept as evidence, in ``contradictions``.
        """
        with self.transaction() as rows:
            found = rows.execute("SELECT standing FROM standings WHERE authority = ?", (authority,)).fetchone()
            seen = None if found is None else decoded_standing(found[0])
            if seen is None or seen.number < standing.number:
                rows.execute("REPLACE INTO standings VALUES (?, ?)", (authority, encoded_standing(standing)))
            elif seen.number == standing.number and seen.parts != standing.parts:
                both = authority, encoded_standing(seen), encoded_standing(standing)
                rows.execute("INSERT OR IGNORE INTO contradictions VALUES (?, ?, ?)", both)
        require_newer(seen, standing)

    def rotate(self, old: bytes, new: bytes) -> None:
        """Carry an authority's records over to its next key."""
        with self.transaction() as rows:
            rows.execute(
                "INSERT INTO newest SELECT ?2, client, number FROM newest WHERE authority = ?1 "
                "ON CONFLICT (authority, client) DO UPDATE SET number = max(number, excluded.number)",
                (old, new),
            )
            rows.execute("UPDATE names SET authority = ?2 WHERE authority = ?1", (old, new))

    def begin(self, name: bytes) -> None:
        """Start a suspended session's counter at 0, as ``Latch`` specifies."""
        with self.transaction() as rows:
            if not rows.execute("INSERT OR IGNORE INTO suspended VALUES (?, 0)", (_name(name),)).rowcount:
                raise Misuse(
                    "a session of this name was already suspended; draw a fresh name", reason=Reason.ALREADY_SPENT
                )

    def claim(self, name: bytes, number: int) -> None:
        """Advance a suspended session's counter, as ``Latch`` specifies; succeeds for only one caller."""
        with self.transaction() as rows:
            claimed = rows.execute(
                "UPDATE suspended SET number = ?2 + 1 WHERE (name, number) = (?1, ?2)", (_name(name), number)
            )
            if not claimed.rowcount:
                raise Misuse(
                    "the suspended state was already resumed, is not the newest, or its session is over; join the next "
                    "session",
                    reason=Reason.ALREADY_SPENT,
                )

    def end(self, name: bytes) -> None:
        """Forget a suspended session."""
        with self.transaction() as rows:
            rows.execute("DELETE FROM suspended WHERE name = ?", (_name(name),))

    def fixed(self, data: str, task: bytes, name: str, make: Callable[[], bytes]) -> bytes:
        """Return a value that is created once per data and task, and then stays the same."""
        with self.transaction() as rows:
            found = rows.execute(
                "SELECT value FROM fixed WHERE (data, task, name) = (?, ?, ?)", (data, task, name)
            ).fetchone()
            if found is None:
                found = (make(),)
                rows.execute("INSERT INTO fixed VALUES (?, ?, ?, ?)", (data, task, name, *found))
            return bytes(found[0])

    def forget(self) -> None:
        """Delete the in-memory rows of collected owners, unless a transaction is open, which may be rolled back."""
        if not _FORGOTTEN or self._depth:
            return
        with self.transaction() as rows:
            while _FORGOTTEN:
                name = (_FORGOTTEN.pop(),)
                rows.execute("DELETE FROM uploads WHERE data = ?", name)
                rows.execute("DELETE FROM losses WHERE data = ?", name)
                rows.execute("DELETE FROM fixed WHERE data = ?", name)

    # --- Transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Yield the database with exclusive write access; an error rolls it back.

        A transaction within another one of the same thread is part of it.

        Raises:
            Misuse: this process is a fork of the one that opened the state.
            InvalidParameters: the state is not the newest, or another process keeps it locked.
            OSError: it could not be written; nothing has changed.
        """
        with self._lock:
            if self._depth:
                yield self._rows
                return
            with self._transaction(self._newest) as rows:
                yield rows

    @contextmanager
    def _transaction(self, number_of: Callable[..., int], **how: bool) -> Generator[sqlite3.Connection]:
        if self._folder is not None and self._process != os.getpid():
            raise Misuse("this state was forked into another process; open it there again")
        rows, before = self._rows, self._rows.total_changes
        with self._lock, self._held(), self._translated():
            self._depth += 1
            try:
                rows.execute("BEGIN IMMEDIATE")
                number = number_of(**how)
                yield rows
                if not rows.total_changes - before:
                    rows.execute("COMMIT")
                    return
                if self._marks:
                    made = self._touch(1 - number % 2)
                    rows.execute("UPDATE about SET value = ? WHERE name = 'made'", (made,))
                    rows.execute("UPDATE about SET value = ? WHERE name = 'mark'", (number + 1,))
                rows.execute("COMMIT")
                self._retire(number % 2)
            finally:
                self._depth -= 1
                if rows.in_transaction:
                    rows.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(f"the state {self._said} could not be read or written ({error})") from error
        except sqlite3.DatabaseError as error:
            raise self._refused(f"is damaged ({error})") from error

    @contextmanager
    def _held(self) -> Generator[None]:
        """Hold the lock of all processes, also while touching the previous state's mark."""
        if not self._marks:
            yield
            return
        deadline = time.monotonic() + _WAIT
        while not locked(self._marks[0]):
            if time.monotonic() > deadline:
                raise self._refused(f"has been locked by another process for {_WAIT:.0f} s; end that process first")
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            unlock(self._marks[0])

    def _begins(self, *, trusts: bool) -> int:
        """Load or create the state, and return its number."""
        rows, boot = self._rows, _BOOT.read_text().strip() if _BOOT.exists() else ""
        rows.execute("PRAGMA secure_delete = ON")
        self._require_version()
        for statement in _STANDINGS:
            rows.execute(statement)
        if rows.execute("PRAGMA user_version").fetchone()[0] == 0:
            if self._marks and os.fstat(self._marks[0]).st_size:
                raise self._refused(
                    "was removed, but its marks were not: earlier uploads would be forgotten; do not restore it, and "
                    "give this client other data and another folder"
                )
            for statement in _SCHEMA.split(";"):
                rows.execute(statement)
            rows.execute(f"PRAGMA user_version = {_VERSION}")
            new = {"mark": 0, "made": 0, "boot": boot, "device": self._device}
            rows.executemany("INSERT INTO about VALUES (?, ?)", new.items())
            return 0
        about = dict(rows.execute("SELECT name, value FROM about"))
        if trusts:
            self._mark_begun()  # Its marks may be new, and this transaction may retire the other one.
        number = int(about["mark"]) if trusts else self._newest()
        if about["boot"] == boot and about["device"] != self._device and not trusts:
            raise self._refused(_TRUST)
        changed = {"boot": boot, "device": self._device}
        rows.executemany("UPDATE about SET value = ?2 WHERE name = ?1", changed.items())
        return number

    def _newest(self) -> int:
        """Return the number of this state, which must be the newest."""
        if not self._marks:
            return 0
        self._require_version()
        about = dict(self._rows.execute("SELECT name, value FROM about"))
        if self._changed(int(about["mark"]) % 2) != about["made"]:
            raise self._refused(_TRUST)
        return int(about["mark"])

    def _require_version(self) -> None:
        if (version := self._rows.execute("PRAGMA user_version").fetchone()[0]) > _VERSION:
            raise self._refused(
                f"was made by a newer secagg (state version {version}, but this secagg reads {_VERSION}); install the "
                "newer one: without this state uploads would be forgotten"
            )

    def _changed(self, slot: int) -> int:
        """Return a mark's change time; by path, because another file may have replaced it."""
        try:
            return (self._folder / _MARKS[slot]).stat().st_ctime_ns  # type: ignore[operator]
        except FileNotFoundError:
            raise self._refused("has no marks; they were removed") from None

    def _touch(self, slot: int) -> int:
        """Touch a mark so that its change time is later than both, and return the time."""
        after = max(self._changed(0), self._changed(1))
        for _ in range(_CLOCK_TRIES):
            os.utime(self._marks[slot])
            if (made := os.fstat(self._marks[slot]).st_ctime_ns) > after:
                os.fsync(self._marks[slot])
                return made
            time.sleep(_PAUSE / 4)
        raise InvalidParameters("this machine's clock is behind the times of its files; correct it")

    def _retire(self, slot: int) -> None:
        """Touch the previous state's mark, so that a copy of that state is refused from now on."""
        if not self._marks:
            return
        if slot == 0:
            self._mark_begun()
        os.utime(self._marks[slot])

    def _mark_begun(self) -> None:
        """Leave evidence that this folder has a database, so that its removal is noticed."""
        if not os.fstat(self._marks[0]).st_size:
            os.pwrite(self._marks[0], _BEGUN, 0)
            os.fsync(self._marks[0])
            sync_folder(self._folder)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the file; a store from ``at`` stays open as long as its process."""
        self._rows.close()
        while self._marks:
            os.close(self._marks.pop())

    @property
    def _said(self) -> str:
        return f"in {self._folder}" if self._folder else "in memory"

    def _refused(self, sentence: str) -> InvalidParameters:
        return InvalidParameters(f"the state {self._said} {sentence}")

    def __repr__(self) -> str:
        return f"<Store {self._said}>"


_NUMBERS: Final = count()
_FORGOTTEN: Final = list[str]()


@cache
def _memory() -> Store:
    return Store()


def named_in_memory(owner: object) -> str:
    """Return a name for data in the in-memory store, which forgets the data with its owner."""
    data = f"in memory {next(_NUMBERS)}"
    # The owner may be collected at any line of a transaction, so the next reader forgets the name.
    weakref.finalize(owner, _FORGOTTEN.append, data).atexit = False
    return data


def encoded_standing(standing: Standing) -> bytes:
    """Return the encoding that ``decoded_standing`` reads."""
    return b"".join((*standing.parts, standing.signature))


def decoded_standing(encoded: bytes) -> Standing:
    """Decode a standing from a party's own state."""
    made, digest, revoked, signature = encoded[:8], encoded[8:40], encoded[40:-64], encoded[-64:]
    numbers = tuple(int.from_bytes(revoked[at : at + 4], "big") for at in range(0, len(revoked), 4))
    return Standing(number=int.from_bytes(made, "big"), digest=digest, revoked=numbers, signature=signature)


_NAME_BYTES: Final = 16
_OPENING: Final = RLock()


def _name(name: bytes) -> bytes:
    if type(name) is not bytes or len(name) != _NAME_BYTES:
        raise InvalidParameters(f"a session's name must be {_NAME_BYTES} bytes; use the one that its record drew")
    return name
