"""One holder with its journal in files, that ends at any write, and whose folder is put back from a copy.

The library's own ``FileJournal`` is opened on a folder in memory, and its own ``Holder`` continues from it. The process
ends after each request, or after each change of a file on the way, of which a write has a half. Somebody takes one copy
of the folder at any of these points and puts it back while the process is down: all of it, or some of the files. The
machine is started again, on its disk or on a snapshot of it. The file system is ideal: a mark that is made or put back
has a time of its own. Times are counted, and only their order and which are the same is kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar
from unittest import mock

from one_message_cast import Cast, Name, Setting
from report import Report, steps_to
from secagg.errors import SecAggError
from secagg.protocols.one_message.journal import Entry, FileJournal, JournalHead
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.requests import Answer
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind

LENGTH = 8
MOST_STARTS = 1
MOST_PUT_BACK = 2
MOST_CRASHES = 1
POSITION = 0
PUT_BACK = {
    "all": ("secret", "records", "head", "mark"),
    "the secret is left, the rest": ("records", "head", "mark"),
    "the records and the head": ("records", "head"),
    "the records": ("records",),
    "the head": ("head",),
}
CHANGES = ("open", "write", "ftruncate", "replace", "unlink", "utime")
Folder = tuple[tuple[str, bytes], ...]
Times = tuple[tuple[str, int], ...]
"""When each mark was made."""
Disk = tuple[Folder, Times]
Value = TypeVar("Value")


class Done(NamedTuple):
    """What a request left on the disk, what a process leaves that ends on the way, and which list was answered."""

    disk: Disk
    on_the_way: tuple[Disk, ...]
    answered: frozenset[bytes]


class World(NamedTuple):
    """What is on the disk, in the copy, how often the machine was started, and which lists were answered."""

    disk: Disk = ((), ())
    copy: Disk | None = None
    starts: int = 0
    put_back: int = 0
    crashes: int = 0
    answered: frozenset[bytes] = frozenset()
    is_elsewhere: bool = False
    """Whether it went on in another epoch."""

    @property
    def now(self) -> int:
        """Return a time after all that are known."""
        return 1 + max(_times_in(self), default=0)


class ModelPath(type(Path())):  # type: ignore[misc]
    """A path to a file whose time of change is the model's."""

    times: ClassVar[dict[str, int]] = {}
    now: ClassVar[int] = 0

    def stat(self, **arguments: Any) -> Any:  # noqa: ANN401 -- what a file system says
        """Return the mode, the size, and the model's time of change."""
        found = super().stat(**arguments)
        # A file that was laid out has a time that no other one has.
        number = int(self.suffix[1:] or 0) if self.stem == "mark" else 0
        made = self.times.get(self.name, 0) if found.st_mtime_ns == 0 else self.now + number
        return SimpleNamespace(st_mode=found.st_mode, st_uid=found.st_uid, st_size=found.st_size, st_ctime_ns=made)


def _times_in(world: World) -> set[int]:
    found = set[int]()
    for folder, times in filter(None, (world.disk, world.copy)):
        found |= {time for _, time in times}
        found |= {JournalHead.decode(data).made for name, data in folder if name == "head"}
    return found


def _ranked(world: World) -> World:
    """Return the same world with the least times that keep their order."""
    rank = {time: number for number, time in enumerate(sorted(_times_in(world)), 1)}

    def of(disk: Disk) -> Disk:
        folder, times = disk
        return tuple((name, _with_time(name, data, rank)) for name, data in folder), tuple(
            (name, rank[time]) for name, time in times
        )

    return world._replace(disk=of(world.disk), copy=None if world.copy is None else of(world.copy))


def _with_time(name: str, data: bytes, rank: Mapping[int, int]) -> bytes:
    if name != "head":
        return data
    head = JournalHead.decode(data)
    return replace(head, made=rank[head.made]).encode()


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
        self._elsewhere = dict[tuple[Disk, int], bool]()
        self._known = dict[tuple[Disk, int, int, bool, str], Done | None]()

    def _keys(self) -> bytes:
        self._put(World())
        journal = self._journal(World())
        keys = self.cast.holder(POSITION, journal, journal.root, journal.nonce).keys
        journal.close()
        return keys

    def _journal(self, world: World, cast: Cast | None = None) -> FileJournal:
        # No secret is drawn twice.
        is_first = world.disk == ((), ()) and world.copy is None and cast is None
        coins = InsecureSeededCoins(b"a secret" if is_first else b"another secret")
        return FileJournal(self.root, (cast or self.cast).record.context.digest, b"%d" % world.starts, coins)

    def after(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can happen next."""
        return ((name, _ranked(after)) for name, after in self._after(world))

    def _after(self, world: World) -> Iterator[tuple[str, World]]:
        for name in self.requests:
            done = self._asked(world, name)
            if done is None:
                # The folder is not opened, whatever is asked.
                break
            yield name, world._replace(disk=done.disk, answered=world.answered | done.answered)
            if world.crashes < MOST_CRASHES:
                for disk in done.on_the_way:
                    yield f"{name}, and ends on the way", world._replace(disk=disk, crashes=world.crashes + 1)
        yield from self._copied(world)
        if world.disk[0] and self._goes_on_elsewhere(world):
            yield "another epoch begins in the folder", world._replace(is_elsewhere=True)

    def _copied(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what somebody can do who has a copy, or makes one."""
        if world.copy is None and world.disk[0]:
            yield "a copy is made", world._replace(copy=world.disk)
        elif world.copy is not None and world.put_back < MOST_PUT_BACK:
            for title, names in PUT_BACK.items():
                yield f"of a copy {title} is put back", self._put_back(world, names)
        if world.starts < MOST_STARTS:
            yield "the machine starts again", world._replace(starts=world.starts + 1)
            if world.copy is not None:
                again = world._replace(disk=world.copy, starts=world.starts + 1)
                yield "the machine starts again from a snapshot", again

    def _put_back(self, world: World, names: tuple[str, ...]) -> World:
        is_all = names == PUT_BACK["all"]
        copy = {name: data for name, data in world.copy[0] if name.partition(".")[0] in names} if world.copy else {}
        kept = {} if is_all else {name: data for name, data in world.disk[0] if name not in copy}
        times = {name: time for name, time in world.disk[1] if name in kept}
        times |= {name: world.now for name in copy if name.startswith("mark.")}
        disk = _sorted({**kept, **copy}), _sorted(times)
        return world._replace(disk=disk, put_back=world.put_back + 1)

    def _asked(self, world: World, name: str) -> Done | None:
        key = world.disk, world.now, world.starts, world.copy is None, name
        if key not in self._known:
            self._known[key] = self._with(world, self.requests[name])
        return self._known[key]

    def _with(self, world: World, message: bytes) -> Done | None:
        """Open the folder, hand over a request, and end the process; nothing, if the holder's epoch is over."""
        self._put(world)
        self.report.calls += 1
        on_the_way = list[Disk]()
        with _watched(lambda: on_the_way.append(self._found())):
            try:
                journal = self._journal(world)
            except SecAggError:
                self.report.refused += 1
                return None
            answered = frozenset[bytes]()
            try:
                reply = self.cast.holder(POSITION, journal, journal.root, journal.nonce).respond(message)
                if message_kind(reply) is MessageKind.ONE_MESSAGE_ANSWER:
                    answered = frozenset({Answer.decode(reply).upload_list})
            except (SecAggError, OSError):
                self.report.refused += 1
            finally:
                journal.close()
        return Done(self._found(), tuple(dict.fromkeys(on_the_way)), answered)

    def _goes_on_elsewhere(self, world: World) -> bool:
        key = world.disk, world.starts
        if key not in self._elsewhere:
            self._put(world)
            self._elsewhere[key] = False
            with suppress(SecAggError):
                self._journal(world, self.other).close()
                # Where nothing was begun, a secret of its own was drawn.
                self._elsewhere[key] = dict(world.disk[0]).get("secret") == dict(self._found()[0])["secret"]
        return self._elsewhere[key]

    def _put(self, world: World) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        for file in self.root.iterdir():
            file.unlink()
        for name, data in world.disk[0]:
            (self.root / name).write_bytes(data)
            os.utime(self.root / name, (0, 0))
        ModelPath.times, ModelPath.now = dict(world.disk[1]), world.now

    def _found(self) -> Disk:
        files = list(self.root.iterdir())
        marks = {file.name: file.stat().st_ctime_ns for file in files if file.name.startswith("mark.")}
        return _sorted({file.name: file.read_bytes() for file in files}), _sorted(marks)


def _sorted(named: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(named.items(), key=lambda entry: entry[0]))


def _watched(watch: Callable[[], None]) -> ExitStack:
    """Look after each change of a file, and in the midst of writing it."""
    stack = ExitStack()

    def watching(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:  # noqa: ANN401 -- what the system says
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **named)
            if name == "write":
                done = call(args[0], bytes(args[1])[: (len(args[1]) + 1) // 2])
                watch()
                return done
            done = call(*args, **named)
            watch()
            return done

        return watched

    for name in CHANGES:
        stack.enter_context(mock.patch.object(os, name, watching(name, getattr(os, name))))
    return stack


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
