"""One holder with its journal in files, that ends after each request, and whose folder is put back from a copy.

The library's own ``FileJournal`` is opened on a folder in memory, and its own ``Holder`` goes on from it. The process
ends after each request, or in the midst of writing: with a part of the record on the disk, or with the record and
without its head. Somebody takes one copy of the folder and puts it back while the process is down: all of it, the
records and the head, or the records alone. The machine is started again, on its disk or on a snapshot of it. The file
system is ideal: a file's time of change says how often somebody put it back and how long the holder made it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from one_message_cast import Cast, Name, Setting
from report import Report, steps_to
from secagg.errors import SecAggError
from secagg.protocols.one_message.journal import Entry, FileJournal
from secagg.protocols.one_message.messages import Answer
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind

LENGTH = 8
MOST_STARTS = 1
MOST_PUT_BACK = 2
MOST_CRASHES = 2
POSITION = 0
FILES = ("secret", "records", "head")
PUT_BACK = {"all": FILES, "the secret is left, the rest": ("records", "head"), "of all, the records": ("records",)}
Folder = tuple[tuple[str, bytes], ...]
Files = Mapping[str, bytes]
Done = tuple[Folder, tuple[int, ...], frozenset[bytes]]
"""What a request left on the disk, how often each file was touched by then, and which list was answered."""


class World(NamedTuple):
    """What is on the disk, in the copy, how often the machine was started, and which lists were answered."""

    folder: Folder = ()
    touched: tuple[int, ...] = (0, 0, 0)
    """How often each of the files was put back; of the secret, also how often the holder changed its time."""
    copy: tuple[Folder, tuple[int, ...]] | None = None
    starts: int = 0
    put_back: int = 0
    crashes: int = 0
    answered: frozenset[bytes] = frozenset()
    is_elsewhere: bool = False
    """Whether it went on in another epoch."""


class ModelPath(type(Path())):  # type: ignore[misc]
    """A path to a file whose time of change is the model's."""

    touched: ClassVar[dict[str, int]] = {}

    def stat(self, **arguments: Any) -> Any:  # noqa: ANN401 -- what a file system says
        """Return the mode, the size, and the model's time of change."""
        found = super().stat(**arguments)
        times = self.touched.get(self.name, 0) + (self.name == FILES[0] and self.is_changed())
        changed = times << 32 | found.st_size
        return SimpleNamespace(st_mode=found.st_mode, st_uid=found.st_uid, st_size=found.st_size, st_ctime_ns=changed)

    def is_changed(self) -> bool:
        """Say whether anybody wrote the file, or changed its time, since it was laid out."""
        return super().stat().st_mtime_ns != 0


def explore() -> Report:
    """Try everything, up to the first fault."""
    report, cast = Report(), Cast(Setting(3, 0, ThresholdRule.ONE_ANSWER))
    start = World()
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    frontier = [start]
    with tempfile.TemporaryDirectory(dir=_memory()) as root:
        search = _Search(cast, ModelPath(root), report)
        while frontier:
            following = list[World]()
            for world in frontier:
                for name, after in search.after(world):
                    if after in came_from:
                        continue
                    came_from[after] = world, name
                    following.append(after)
                    report.revealing += bool(after.answered)
                    report.fault = _fault(after)
                    if report.fault is not None:
                        report.trace, report.schedules = steps_to(came_from, after), len(came_from)
                        return report
            frontier = following
    report.schedules = len(came_from)
    return report


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 -- a folder in it, of our own


def _fault(world: World) -> str | None:
    if len(world.answered) > 1:
        return "a holder answered two lists of one sum"
    if world.is_elsewhere:
        return "a holder went on in an epoch with the secret and the records of another"
    return None


class _Search:
    """What can be done with one folder."""

    def __init__(self, cast: Cast, root: Path, report: Report) -> None:
        self.cast, self.root, self.report = cast, ModelPath(root, "holder"), report
        self.other = Cast(cast.setting, number=2)
        # Keys that were announced are those of this folder's secret, so the epoch is made of it.
        cast.begin((self._keys(), *cast.announced[1:]))
        cast.send()
        one, two, three = (Name(client, 0) for client in (1, 2, 3))
        shares = [cast.sent[name].shares[POSITION] for name in (one, two, three)]
        self.requests = {
            "offer": cast.offers[0].encode(),
            "shares": cast.delivery(shares),
            f"list {one} {two}": cast.upload_list(0, 0, (one, two)).encode(),
            f"list {one} {three}": cast.upload_list(0, 0, (one, three)).encode(),
        }
        self._elsewhere = dict[tuple[Folder, int], bool]()
        self._known = dict[tuple[Folder, tuple[int, ...], int, str], Done | None]()

    def _keys(self) -> bytes:
        self._put(World())
        journal = self._journal(0)
        keys = self.cast.holder(POSITION, journal, journal.root, journal.nonce).keys
        journal.close()
        return keys

    def _journal(self, starts: int, cast: Cast | None = None) -> FileJournal:
        coins = InsecureSeededCoins(b"another secret" if cast else b"a secret")
        return FileJournal(self.root, (cast or self.cast).record.context.digest, b"%d" % starts, coins)

    def after(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can happen next."""
        for name in self.requests:
            done = self._asked(world, name)
            if done is None:
                # The folder is not opened, whatever is asked.
                break
            folder, touched, answered = done
            yield name, world._replace(folder=folder, touched=touched, answered=world.answered | answered)
            if world.crashes < MOST_CRASHES and touched == world.touched:
                for how, torn in _torn(dict(world.folder), dict(folder)):
                    yield f"{name}, and ends with {how}", world._replace(folder=torn, crashes=world.crashes + 1)
        yield from self._copied(world)
        if world.folder and self._goes_on_elsewhere(world):
            yield "another epoch begins in the folder", world._replace(is_elsewhere=True)

    def _copied(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what somebody can do who has a copy, or makes one."""
        if world.copy is None and world.folder:
            yield "a copy is made", world._replace(copy=(world.folder, world.touched))
        elif world.copy is not None and world.put_back < MOST_PUT_BACK:
            for title, names in PUT_BACK.items():
                yield f"{title} is put back", self._put_back(world, names)
        if world.starts < MOST_STARTS:
            yield "the machine starts again", world._replace(starts=world.starts + 1)
            if world.copy is not None:
                folder, touched = world.copy
                again = world._replace(folder=folder, touched=touched, starts=world.starts + 1)
                yield "the machine starts again from a snapshot", again

    def _put_back(self, world: World, names: tuple[str, ...]) -> World:
        copy = dict(world.copy[0] if world.copy else ())
        kept = {name: data for name, data in world.folder if name not in names}
        folder = {**kept, **{name: copy[name] for name in names if name in copy}}
        touched = tuple(count + (name in names) for name, count in zip(FILES, world.touched, strict=True))
        return world._replace(folder=tuple(sorted(folder.items())), touched=touched, put_back=world.put_back + 1)

    def _asked(self, world: World, name: str) -> Done | None:
        key = world.folder, world.touched, world.starts, name
        if key not in self._known:
            self._known[key] = self._with(world, self.requests[name])
        return self._known[key]

    def _with(self, world: World, message: bytes) -> Done | None:
        """Open the folder, hand over a request, and end the process; nothing, if the holder's epoch is over."""
        self._put(world)
        self.report.calls += 1
        try:
            journal = self._journal(world.starts)
        except SecAggError:
            self.report.refused += 1
            return None
        answered = frozenset[bytes]()
        try:
            reply = self.cast.holder(POSITION, journal, journal.root, journal.nonce).respond(message)
            if message_kind(reply) is MessageKind.ONE_MESSAGE_ANSWER:
                answered = frozenset({Answer.decode(reply).upload_list})
        except SecAggError:
            self.report.refused += 1
        finally:
            journal.close()
        secret = world.touched[0] + (self.root / FILES[0]).is_changed()
        return self._found(), (secret, *world.touched[1:]), answered

    def _goes_on_elsewhere(self, world: World) -> bool:
        key = world.folder, world.starts
        if key not in self._elsewhere:
            self._put(world)
            self._elsewhere[key] = False
            with suppress(SecAggError):
                self._journal(world.starts, self.other).close()
                self._elsewhere[key] = True
        return self._elsewhere[key]

    def _put(self, world: World) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        for file in self.root.iterdir():
            file.unlink()
        for name, data in world.folder:
            (self.root / name).write_bytes(data)
            os.utime(self.root / name, (0, 0))
        ModelPath.touched.update(zip(FILES, world.touched, strict=True))

    def _found(self) -> Folder:
        return tuple(sorted((file.name, file.read_bytes()) for file in self.root.iterdir()))


def _torn(before: Files, after: Files) -> Iterator[tuple[str, Folder]]:
    """Return what a crash in the midst of writing leaves."""
    old, new = before.get("records", b""), after["records"]
    if not before or len(new) <= len(old):
        return
    part = new[: (len(old) + len(new)) // 2]
    yield "a part of the record", tuple(sorted({**before, "records": part}.items()))
    yield "the record and no head", tuple(sorted({**before, "records": new}.items()))


def entries_in(data: bytes) -> tuple[list[Entry], int]:
    """Return the whole records of a file, and where they end."""
    entries, end = list[Entry](), 0
    while end + LENGTH <= len(data):
        length = int.from_bytes(data[end : end + LENGTH], "big")
        if end + LENGTH + length > len(data):
            break
        entries.append(Entry.decode(data[end + LENGTH : end + LENGTH + length]))
        end += LENGTH + length
    return entries, end
