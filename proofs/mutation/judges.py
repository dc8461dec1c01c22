"""Tests that judge the mutants of a package: collected once, and run in a fork of the process for each mutant.

A fork puts the altered code into the existing function objects and runs the tests that reach the altered lines, until
one fails: first fast tests and those that killed another mutant of the function.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn

import coverage
import pytest

from alterations import REPOSITORY, Mutant, altered_code
from rooms import MODEL, Room

_BASELINES: Final = REPOSITORY / "build" / "mutants_baseline"
_MOST_SECONDS: Final = 3600
_MOST_BYTES: Final = 6 << 30
_MORE_TIME: Final = 4
"""Many times the duration of the tests; a mutant that runs forever is detected too."""
_EXTRA_SECONDS: Final = 3
_SHARPER: Final = 4
_EXAMPLES: Final = 25
_WAITING: Final = 8
"""A process that gets no processor time may take this multiple of its own time."""
_ELSEWHERE: Final = frozenset({"gpu", "flower", "nvflare", "wire", "web", "scale", "site", "long"})
"""Marks of tests that need another environment, other processes or minutes."""
STARVED: Final = object()
"""Replaces the result of a process that would still run if it had processor time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a mutant."""

    digest: str
    name: str
    killed_by: str
    """A test, a case of the model, or another event that killed it; empty if it survived."""
    judges: str
    """The digest of everything that judged it, if it survived."""
    seconds: float = 0.0
    """Seconds of the tests and cases that reach it but were not run, if it survived."""
    reached: bool = True
    shown: tuple[str, ...] = ()
    """The tests and cases that passed with it, in their version at that time, if it survived."""


@dataclass(slots=True)
class Baseline:
    """Measurements of the tests without any mutant."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    reaching: dict[str, dict[int, list[str]]] = field(default_factory=dict[str, dict[int, list[str]]])
    """By file and line, the tests that run it."""
    failed: list[str] = field(default_factory=list[str])

    def add(self, other: Baseline) -> None:
        """Add the measurements of other tests."""
        self.seconds |= other.seconds
        for path, lines in other.reaching.items():
            known = self.reaching.setdefault(path, {})
            for line, names in lines.items():
                known[line] = known.get(line, []) + names


class Trials:
    """A pytest plugin that tries mutants instead of running tests."""

    def __init__(  # noqa: PLR0913 -- options of a run
        self,
        room: Room,
        chosen: Callable[[str, Iterable[str]], Sequence[Mutant]],
        put_down: Callable[[Verdict], None],
        *,
        seconds: float,
        deeper: bool,
        first: str,
        earlier: Sequence[Verdict],
    ) -> None:
        self._room = room
        self._chosen = chosen
        self._seconds = seconds
        self._put_down = put_down
        self._deeper = deeper
        self._first = first
        self._kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._deadly = Counter[str]()
        self._items = dict[str, pytest.Item]()
        self._baseline = Baseline()
        self._cases: tuple[tuple[str, Callable[[], bool]], ...] = ()
        self._functions: Mapping[str, list[FunctionType]] = {}
        """Functions by path, qualified name and first line."""
        self._stamps = dict[str, str]()
        """For each test or case, the digest of its name and its file."""
        self._shown = {verdict.digest: frozenset(verdict.shown) for verdict in earlier}
        for verdict in earlier:
            if verdict.killed_by:
                self._deadly[verdict.killed_by] += 1
                self._kills[verdict.name.split(": ")[1]][verdict.killed_by] += 1

    def pytest_sessionstart(self) -> None:
        """Make every run of a property test use the same examples."""
        from hypothesis import HealthCheck, Phase, settings  # noqa: PLC0415 -- a plugin of pytest, which imports it

        settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            database=None,
            max_examples=_EXAMPLES,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant that has no verdict."""
        if session.testsfailed:
            sys.exit("mutants: the tests of this package cannot be collected; see pytest's output")
        self._items = {item.nodeid: item for item in session.items if self._is_judge(item)}
        judges = judges_digest(self._room)
        if not (mutants := self._chosen(judges, self._items)):
            return True
        self._cases = tuple(self._room.cases())
        self._functions = functions_of(REPOSITORY / path for path in self._room.files)
        gc.freeze()
        self._baseline = self._measured_once()
        started = time.perf_counter()
        for tried, mutant in enumerate(mutants, start=1):
            verdict = self._judged(mutant, judges)
            took = time.perf_counter() - started
            left = took / tried * (len(mutants) - tried)
            if verdict is None:
                word = "UNDECIDED, no processor time"
            else:
                self._put_down(verdict)
                word = "killed" if verdict.killed_by else "SURVIVED" if verdict.reached else "NOT REACHED"
            _say(f"{self._room.name} {tried}/{len(mutants)}, {took:.0f} s, {left:.0f} s left: {word}: {mutant.name}")
        return True

    def _is_judge(self, item: pytest.Item) -> bool:
        slow = any(word in item.nodeid for word in self._room.without)
        return not slow and not any(marker.name in _ELSEWHERE for marker in item.iter_markers())

    def _measured_once(self) -> Baseline:
        """Run every test that has changed or was not measured with these files; other measurements are on disk."""
        sources = hashlib.sha256(b"".join((REPOSITORY / path).read_bytes() for path in self._room.files))
        kept = _BASELINES / f"{hashlib.sha256(self._room.name.encode()).hexdigest()[:16]}.pickle"
        known: dict[str, Baseline] = pickle.loads(kept.read_bytes()) if kept.exists() else {}  # noqa: S301 -- our own
        by_file = defaultdict[Path, list[str]](list)
        for name, item in self._items.items():
            by_file[item.path].append(name)
        for name, _ in self._cases:
            by_file[Path(__file__)].append(name)
        whole, fresh = Baseline(), dict[str, Baseline]()
        for file, names in by_file.items():
            looked_at = sorted(MODEL.glob("*.py")) if file == Path(__file__) else [file]
            own = hashlib.sha256(b"".join(one.read_bytes() for one in looked_at)).hexdigest()
            self._stamps |= {name: hashlib.sha256(f"{name} {own}".encode()).hexdigest()[:8] for name in names}
            key = f"{file} {own} {sources.hexdigest()} {names}"
            if key not in known:
                started = time.perf_counter()
                known[key] = _in_fork(lambda chosen=names: self._measured(chosen), _MOST_SECONDS)
                if not isinstance(known[key], Baseline) or known[key].failed:
                    sys.exit(f"mutants: tests fail without any change: {known[key]}")
                _say(f"{file.name} once: {len(names)} tests, {time.perf_counter() - started:.0f} s")
                _BASELINES.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(pickle.dumps(known))
            fresh[key] = known[key]
            whole.add(known[key])
        kept.write_bytes(pickle.dumps(fresh))
        return whole

    def _measured(self, chosen: Sequence[str]) -> Baseline:
        measured = Baseline()
        files = [os.path.realpath(REPOSITORY / path) for path in self._room.files]
        recorded = coverage.Coverage(data_file=None, config_file=False, include=files)
        # A test file that reaches nothing in the package is not a judge, but no error either.
        recorded.set_option("run:disable_warnings", ["no-data-collected"])
        recorded.start()
        cases = dict(self._cases)
        for name in chosen:
            recorded.switch_context(name)
            started = time.process_time()
            passed = cases[name]() if name in cases else _passes(self._items[name])
            measured.seconds[name] = time.process_time() - started
            if not passed:
                measured.failed.append(name)
        recorded.stop()
        data = recorded.get_data()
        for path, full in zip(self._room.files, files, strict=True):
            measured.reaching[path] = data.contexts_by_lineno(full)
        return measured

    def _judged(self, mutant: Mutant, judges: str) -> Verdict | None:
        """Return the verdict on a mutant; None if its process got no processor time."""
        lines = self._baseline.reaching[mutant.path]
        reaching = {name for line in range(mutant.first, mutant.last + 1) for name in lines.get(line, ()) if name}
        killers = self._kills[mutant.function]
        order = sorted(reaching, key=lambda name: (self._first not in name, -killers[name], self._cost(name)))
        if not reaching:
            return Verdict(mutant.digest, mutant.name, "", judges, reached=False)
        shown = {self._stamps[name]: name for name in order if self._stamps[name] in self._shown.get(mutant.digest, ())}
        due = [name for name in order if name not in shown.values()]
        tests, cases = list[str](), [name for name in due if name not in self._items]
        spent = sum(self._baseline.seconds[name] for name in cases) if self._deeper else 0.0
        limit = self._seconds + spent
        for name in due:
            if name in self._items and (spent + self._baseline.seconds[name] < limit or not tests):
                tests.append(name)
                spent += self._baseline.seconds[name]
        asked = [*tests, *(cases if self._deeper else ())]
        code = altered_code(mutant, arithmetic=self._room.arithmetic)
        functions = self._functions[f"{mutant.path}:{code.co_qualname}:{code.co_firstlineno}"]
        if not functions:
            sys.exit(f"mutants: {mutant.function} of {mutant.path} is not a function in this process")
        limit = spent * _MORE_TIME + _EXTRA_SECONDS
        if (found := _in_fork(lambda: self._try(code, functions, asked), limit)) is STARVED:
            return None
        if killer := str(found):
            killers[killer] += 1
            self._deadly[killer] += 1
            return Verdict(mutant.digest, mutant.name, killer, "")
        left = sum(self._baseline.seconds[name] for name in due if name not in asked)
        passed = sorted({*shown, *(self._stamps[name] for name in asked)})
        return Verdict(mutant.digest, mutant.name, "", judges, round(left, 1), shown=tuple(passed))

    def _cost(self, name: str) -> float:
        """Return the sort key of a test: attack tests and tests that have killed mutants come first."""
        seconds = self._baseline.seconds[name]
        if name.startswith("tests/adversaries/"):
            seconds /= _SHARPER
        return seconds / (1 + self._deadly[name])

    def _try(self, code: CodeType, functions: Sequence[FunctionType], asked: Sequence[str]) -> str:
        for function in functions:
            function.__code__ = code
        items = [self._items[name] for name in asked if name in self._items]
        for item, following in zip(items, [*items[1:], None], strict=True) if items else ():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return item.nodeid
        for name, case in self._cases:
            if name in asked and not case():
                return f"model: {name}"
        return ""


def _passes(item: pytest.Item) -> bool:
    failed = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return item.session.testsfailed == failed


def functions_of(files: Iterable[Path]) -> Mapping[str, list[FunctionType]]:
    """Return every function object of some files, by path, qualified name and first line."""
    real = {os.path.realpath(file): file.relative_to(REPOSITORY).as_posix() for file in files}
    found = defaultdict[str, list[FunctionType]](list)
    paths = dict[str, str]()
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            code = thing.__code__
            if code.co_filename not in paths:
                paths[code.co_filename] = real.get(os.path.realpath(code.co_filename), "")
            if paths[code.co_filename]:
                found[f"{paths[code.co_filename]}:{code.co_qualname}:{code.co_firstlineno}"].append(thing)
    return found


def judges_digest(room: Room) -> str:
    """Return one digest for the files of all tests of a package."""
    digest = hashlib.sha256()
    for file in _test_files(room):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _test_files(room: Room) -> Iterator[Path]:
    for name in (*room.tests, *room.further):
        path = REPOSITORY / name
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else (path,)


def _in_fork(work: Callable[[], Any], limit: float) -> Any:  # noqa: ANN401 -- the result of the work
    """Do some work in a fork of this process; exceeding its time limit counts as killed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if not (child := os.fork()):
        _work(work, writing, limit)
    os.close(writing)
    received, deadline = b"", time.monotonic() + limit * _WAITING
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (left := deadline - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
            if not (more := pipe.read(1 << 16)):
                break
            received += more
        # A process that waits for something will wait forever; a process that computes did not get enough time.
        is_starved = deadline <= time.monotonic() and _is_at_work(child)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if is_starved:
        return STARVED
    return pickle.loads(received) if received else "it does not end, or its process did"  # noqa: S301 -- our own


def _is_at_work(process: int) -> bool:
    """Whether a process would continue if it had a core."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text(encoding="ascii", errors="replace").rpartition(") ")[2].startswith("R")


def _work(work: Callable[[], Any], writing: int, limit: float) -> NoReturn:
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
        done = work()
    except BaseException as error:  # noqa: BLE001 -- whatever a mutant causes
        done = f"{type(error).__name__}: {error}"
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(done, pipe)
    os._exit(0)


def _say(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()
