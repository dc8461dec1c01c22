"""Alters one decision of the library at a time and checks that a test, or a case of the model, detects it.

``make mutants`` runs it. A check's condition never holds, a comparison moves by one, ``and`` becomes ``or``, a ``not``
is removed, a call whose result is unused is removed or swapped with the statement next to it; where values are shared,
an operator or a constant is altered too. Verdicts are kept in ``build/mutants.jsonl``, so an interrupted run resumes: a
killed mutant is not tried again until its function changes or the test that killed it is deleted, a survivor not until
a test of its package changes. Survivors that ``explained.toml`` does not list, and explanations without a survivor, end
the run with status 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from alterations import REPOSITORY, Mutant, mutants
from judges import Trials, Verdict
from rooms import ROOMS, Room

KEPT: Final = REPOSITORY / "build" / "mutants.jsonl"
EXPLAINED: Final = Path(__file__).with_name("explained.toml")
SCORES: Final = Path(__file__).with_name("SCORES.md")
_SECONDS: Final = 5.0
"""Maximum seconds of tests for one mutant, measured without it."""
_HEADER: Final = (
    "| room | mutants | killed by tests | by the model alone | survive, explained | survive |\n"
    "|---|---|---|---|---|---|"
)
_INTRODUCTION: Final = """\
# Mutants: the scores of the last run

Written by `python proofs/mutation/run.py --table --write`;
[README.md](../README.md#mutants) says what a mutant is. [rooms.py](rooms.py) lists the
packages with the tests and cases that judge them, and
[explained.toml](explained.toml) the survivors with their reasons. Packages that
were not run are marked.

"""


def all_mutants(room: Room, before: Callable[[str], str] = str) -> list[Mutant]:
    """Return every mutant of a package."""
    return [mutant for path in room.files for mutant in mutants(path, arithmetic=room.arithmetic, before=before)]


def renamed(old: str, new: str, explained: Path = EXPLAINED) -> int:
    """Carry explanations over a rename, to the digest of the mutant that differs in nothing else; return their number.

    An explanation of a mutant that differs otherwise keeps its digest, and is then reported as unused.
    """
    text, known, count = explained.read_text(encoding="utf-8"), explanations(explained), 0
    for room in ROOMS:
        earlier = all_mutants(room, lambda hashed: hashed.replace(new, old))
        for now, then in zip(all_mutants(room), earlier, strict=True):
            if then.digest != now.digest and then.digest in known:
                name, _ = known[then.digest]
                before, after = _heading(name, then.digest), _heading(now.name, now.digest)
                count += text.count(before)
                text = text.replace(before, after)
    explained.write_text(text, encoding="utf-8")
    return count


def _heading(name: str, digest: str) -> str:
    return f'name = {json.dumps(name, ensure_ascii=False)}\ndigest = "{digest}"'


def verdicts() -> dict[str, Verdict]:
    """Return the kept verdicts by digest; the last verdict on a mutant counts."""
    if not KEPT.exists():
        return {}
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return {verdict.digest: verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}


def killer_is_gone(verdict: Verdict, tests: Iterable[str]) -> bool:
    """Whether the test that killed a mutant was deleted, given the names of the collected tests."""
    file, is_test, _ = verdict.killed_by.partition("::")
    if not is_test or verdict.killed_by in tests:
        return False
    return not (REPOSITORY / file).exists() or any(name.startswith(f"{file}::") for name in tests)


def try_room(room: Room, *, word: str, seconds: float, deeper: bool, first: str) -> None:
    """Try the mutants of a package that have no verdict; to be called in a separate process."""

    def chosen(judges: str, tests: Iterable[str]) -> Sequence[Mutant]:
        known = {digest: verdict for digest, verdict in verdicts().items() if not killer_is_gone(verdict, tests)}
        due = [mutant for mutant in all_mutants(room) if word in mutant.name]
        return [
            mutant
            for mutant in due
            if (old := known.get(mutant.digest)) is None
            or (not old.killed_by and (old.judges != judges or (deeper and old.seconds)))
        ]

    def put_down(verdict: Verdict) -> None:
        KEPT.parent.mkdir(exist_ok=True)
        with KEPT.open("a", encoding="utf-8") as kept:
            kept.write(f"{json.dumps(asdict(verdict))}\n")

    own = {mutant.digest for mutant in all_mutants(room)}
    earlier = [verdict for verdict in verdicts().values() if verdict.digest in own]
    trials = Trials(room, chosen, put_down, seconds=seconds, deeper=deeper, first=first, earlier=earlier)
    arguments = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        *room.tests,
        *(room.further if deeper else ()),
    ]
    sys.exit(pytest.main(arguments, plugins=[trials]))


def explanations(explained: Path = EXPLAINED) -> Mapping[str, tuple[str, str]]:
    """Return name and reason of each explained survivor, by digest."""
    listed = tomllib.loads(explained.read_text(encoding="utf-8")).get("survivor", ())
    return {one["digest"]: (one["name"], one["reason"]) for one in listed}


@dataclass(frozen=True, slots=True)
class Score:
    """Results for the mutants of a package."""

    room: str
    count: int
    by_tests: int
    by_model: int
    alive: tuple[Verdict, ...]
    """Survivors that are not explained."""
    explained: int

    @property
    def missing(self) -> int:
        """Number of mutants that were not tried."""
        return self.count - self.by_tests - self.by_model - self.explained - len(self.alive)

    def row(self) -> str:
        """Return the result as a row of the table."""
        if self.missing == self.count:
            return f"| {self.room} | {self.count} | not run | | | |"
        partly = f" ({self.missing} not run)" if self.missing else ""
        return f"| {self.room}{partly} | {' | '.join(map(str, self.counts))} |"

    @property
    def counts(self) -> tuple[int, ...]:
        """The columns of the table."""
        tried = self.count - self.missing
        return tried, self.by_tests, self.by_model, self.explained, len(self.alive)


def scores(known: Mapping[str, Verdict], reasons: Mapping[str, tuple[str, str]]) -> Iterator[Score]:
    """Yield the score of each package."""
    for room in ROOMS:
        found = all_mutants(room)
        judged = [known[mutant.digest] for mutant in found if mutant.digest in known]
        alive = [verdict for verdict in judged if not verdict.killed_by]
        left = tuple(verdict for verdict in alive if verdict.digest not in reasons)
        modelled = sum(verdict.killed_by.startswith("model: ") for verdict in judged)
        killed = len(judged) - len(alive)
        yield Score(room.name, len(found), killed - modelled, modelled, left, len(alive) - len(left))


def report(found: Sequence[Score]) -> str:
    """Return the table, with totals."""
    rows = [_HEADER, *(score.row() for score in found)]
    run = [score for score in found if score.missing < score.count]
    sums = [sum(column) for column in zip(*(score.counts for score in run), strict=True)]
    return "\n".join([*rows, f"| all that was run | {' | '.join(map(str, sums))} |"]) + "\n"


def rotten(known: Mapping[str, Verdict], reasons: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the explanations that match no survivor."""
    existing = {mutant.digest for room in ROOMS for mutant in all_mutants(room)}
    for digest, (name, _) in reasons.items():
        if digest not in existing:
            yield f"  explained, but no such mutant exists: {digest} {name}\n"
        elif digest in known and known[digest].killed_by:
            yield f"  explained, but killed by {known[digest].killed_by}: {digest} {name}\n"


def main() -> None:
    """Try the packages, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("room", nargs="?", default="", help="word in the names of packages to try")
    parser.add_argument("--renamed", nargs=2, metavar=("OLD", "NEW"), help="carry explanations over a rename")
    parser.add_argument("--word", default="", help="word in the names of mutants to try")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="seconds of tests for one mutant (default: %(default)s)"
    )
    parser.add_argument("--deeper", action="store_true", help="try survivors again with more tests and the model")
    parser.add_argument("--first", default="", help="word in the names of tests to run first")
    parser.add_argument("--table", action="store_true", help="only print the kept verdicts")
    parser.add_argument("--write", action="store_true", help="write the table to SCORES.md")
    parser.add_argument("--anew", action="store_true", help="delete the kept verdicts")
    options = parser.parse_args()
    if options.renamed:
        sys.stdout.write(f"{renamed(*options.renamed)} explanations carried over\n")
        return
    if options.anew:
        KEPT.unlink(missing_ok=True)
    broken = list[str]()
    for room in () if options.table else ROOMS:
        if options.room in room.name:
            child = multiprocessing.get_context("fork").Process(
                target=partial(
                    try_room,
                    room,
                    word=options.word,
                    seconds=options.seconds,
                    deeper=options.deeper,
                    first=options.first,
                )
            )
            child.start()
            child.join()
            if child.exitcode:
                broken.append(f"  not judged: {room.name}\n")
    known, reasons = verdicts(), explanations()
    found = list(scores(known, reasons))
    sys.stdout.write(report(found))
    alive = [verdict for score in found for verdict in score.alive]
    wrong = [
        f"  {'survived' if verdict.reached else 'not reached'}: {verdict.digest} {verdict.name}\n" for verdict in alive
    ]
    wrong += [*rotten(known, reasons), *broken]
    sys.stdout.write("".join(wrong))
    if options.write:
        SCORES.write_text(_INTRODUCTION + report(found), encoding="utf-8")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
