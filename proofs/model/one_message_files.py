"""One holder with its journal in files, that ends after each request, and whose folder is put back from a copy.

The library's own ``FileJournal`` is opened on a folder in memory, and its own ``Holder`` goes on from it. The process
ends after each request, or in the midst of writing: with a part of the record on the disk, or with the record and
without its head. Somebody takes one copy of the folder, and puts it back: the records alone, or all of it after the
machine was started again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from one_message import Fact, Facts, lists_of, uploads_along
from one_message_cast import CLIENTS, Cast, Setting
from secagg.errors import SecAggError
from secagg.protocols.one_message.journal import Entry, FileJournal
from secagg.protocols.one_message.messages import Answer
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind
from two_servers import Report

LENGTH = 8
MOST_STARTS = 1
POSITION = 0
LISTS = ("1a 2a as sum 0", "1a 3a as sum 0")
Folder = tuple[tuple[str, bytes], ...]
Files = Mapping[str, bytes]


class World(NamedTuple):
    """What is on the disk, in the copy, how often the machine was started, and what was given away."""

    folder: Folder
    copy: Folder | None
    starts: int
    facts: Facts


def explore() -> Report:
    """Try everything, up to the first fault."""
    report, cast = Report(), Cast(Setting(3, 0, ThresholdRule.ONE_ANSWER, places=(0,)))
    start = World((), None, 0, Facts())
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    frontier = [start]
    with tempfile.TemporaryDirectory(dir=_memory()) as root:
        search = _Search(cast, Path(root), report)
        while frontier and not report.fault:
            following = list[World]()
            for world in frontier:
                for name, after in search.after(world):
                    if after in came_from:
                        continue
                    came_from[after] = world, name
                    following.append(after)
                    fault = _fault(after.facts)
                    if fault is not None:
                        report.fault, report.trace = fault, _trace(came_from, after)
                        report.schedules = len(came_from)
                        return report
            frontier = following
    report.schedules = len(came_from)
    report.revealing = sum(any(fact.kind == "answered" for fact in world.facts) for world in came_from)
    return report


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 -- a folder in it, of our own


def _fault(facts: Facts) -> str | None:
    answered = [fact for fact in facts if fact.kind == "answered"]
    if len(answered) > 1:
        return f"a holder answered {len(answered)} lists of one sum"
    if any(fact.kind == "other epoch" for fact in facts):
        return "a holder went on in an epoch with the secret and the records of another"
    return None


def _trace(came_from: Mapping[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    names = list[str]()
    while (before := came_from[world]) is not None:
        world, name = before
        names.append(name)
    return tuple(reversed(names))


class _Search:
    """What can be done with one folder."""

    def __init__(self, cast: Cast, root: Path, report: Report) -> None:
        self.cast, self.root, self.report = cast, root / "holder", report
        # Keys that were announced are those of this folder's secret, so the epoch is made of it.
        self.secret, self.other = b"a secret", Cast(cast.setting, number=2)
        self.requests = dict[str, bytes]()
        self._known = dict[tuple[Folder, int, str], tuple[Folder, Facts] | None]()
        self._prepare()

    def _prepare(self) -> None:
        cast = self.cast
        cast.begin((self._keys(), *cast.announced[1:]))
        for client in CLIENTS:
            for one in uploads_along(cast, client, ((0, "u", None),)):
                cast.remember(client, one.update, one.place, one.message)
        self.requests = {
            "offer": cast.offers[0].encode(),
            "shares of 1a 2a": cast.delivery(["1a", "2a"], POSITION),
            "shares of 3a": cast.delivery(["3a"], POSITION),
            **{f"list {name}": named.encode() for name, named in lists_of(cast).items() if name in LISTS},
        }

    def _keys(self) -> bytes:
        self._put(())
        journal = FileJournal(self.root, self.cast.record.context.digest, b"0", InsecureSeededCoins(self.secret))
        keys = self.cast.holder(POSITION, journal, journal.root, journal.nonce).keys
        journal.close()
        return keys

    def after(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can happen next."""
        for name, message in self.requests.items():
            done = self._asked(world.folder, world.starts, name, message)
            if done is None:
                continue
            folder, facts = done
            yield name, world._replace(folder=folder, facts=world.facts | facts)
            for how, torn in _torn(dict(world.folder), dict(folder)):
                yield f"{name}, and ends with {how}", world._replace(folder=torn)
        if world.copy is None and world.folder:
            yield "a copy is made", world._replace(copy=world.folder)
        elif world.copy is not None:
            copy, now = dict(world.copy), dict(world.folder)
            records = tuple(sorted({**now, "records": copy["records"]}.items()))
            yield "the records are put back", world._replace(folder=records)
            if world.starts < MOST_STARTS:
                again = world._replace(folder=world.copy, starts=world.starts + 1)
                yield "all is put back, and the machine starts again", again
        if not world.starts:
            yield "the machine starts again", world._replace(starts=1)
        if world.folder and self._goes_on_elsewhere(world.folder, world.starts):
            yield "another epoch begins in the folder", world._replace(facts=world.facts | {Fact("other epoch", b"")})

    def _asked(self, folder: Folder, starts: int, name: str, message: bytes) -> tuple[Folder, Facts] | None:
        key = folder, starts, name
        if key not in self._known:
            self._known[key] = self._with(folder, starts, message)
        return self._known[key]

    def _with(self, folder: Folder, starts: int, message: bytes) -> tuple[Folder, Facts] | None:
        """Open the folder, hand over a request, and end the process; nothing, if the holder's epoch is over."""
        self._put(folder)
        self.report.calls += 1
        try:
            journal = FileJournal(
                self.root, self.cast.record.context.digest, b"%d" % starts, InsecureSeededCoins(self.secret)
            )
        except SecAggError:
            self.report.refused += 1
            return None
        facts = Facts()
        try:
            reply = self.cast.holder(POSITION, journal, journal.root, journal.nonce).respond(message)
            if message_kind(reply) is MessageKind.ONE_MESSAGE_ANSWER:
                facts = Facts({Fact("answered", Answer.decode(reply).upload_list)})
        except SecAggError:
            self.report.refused += 1
        finally:
            journal.close()
        return self._found(), facts

    def _goes_on_elsewhere(self, folder: Folder, starts: int) -> bool:
        self._put(folder)
        try:
            journal = FileJournal(
                self.root, self.other.record.context.digest, b"%d" % starts, InsecureSeededCoins(b"another secret")
            )
        except SecAggError:
            return False
        journal.close()
        return True

    def _put(self, folder: Folder) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        for file in self.root.iterdir():
            file.unlink()
        for name, data in folder:
            (self.root / name).write_bytes(data)

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
