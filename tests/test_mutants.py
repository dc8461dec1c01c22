"""The mutation program: its packages exist, its alterations are right, and every explanation matches a mutant."""

from __future__ import annotations

import ast
import sys
import threading
import tomllib
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import pytest

pytestmark = pytest.mark.repository


@pytest.fixture
def alterations(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "proofs" / "mutation"))  # pyright: ignore[reportUnknownMemberType]
    import alterations  # type: ignore[import-not-found] # noqa: PLC0415

    return alterations  # type: ignore[no-any-return]


@pytest.fixture
def rooms(alterations: ModuleType) -> tuple[Any, ...]:
    import rooms  # type: ignore[import-not-found] # noqa: PLC0415

    assert alterations.__name__ in sys.modules
    return rooms.ROOMS  # type: ignore[no-any-return]


def test_every_package_names_existing_files_and_tests(rooms: tuple[Any, ...], repository: Path) -> None:
    named = {name for room in rooms for name in (*room.files, *room.tests, *room.further)}
    assert not {name for name in named if not (repository / name).exists()}
    files = [file for room in rooms for file in room.files]
    assert len(files) == len(set(files)), "a file is in two packages, so its mutants would be counted twice"


def test_every_package_names_existing_cases_of_the_model(rooms: tuple[Any, ...]) -> None:
    for room in rooms:
        assert [name for name, _ in room.cases()] == list(room.models)


def test_every_explanation_matches_an_existing_mutant(alterations: ModuleType, repository: Path) -> None:
    """The digest covers the function and the change: rewrite or delete the explanation when the function changes."""
    listed = tomllib.loads((repository / "proofs/mutation/explained.toml").read_text(encoding="utf-8"))["survivor"]
    by_file = dict[str, dict[str, str]]()
    for one in listed:
        path = one["name"].split(": ")[0]
        if path not in by_file:
            by_file[path] = {made.digest: made.name for made in alterations.mutants(path, arithmetic=True)}
        assert by_file[path].get(one["digest"]) == one["name"], f"explained, but no such mutant exists: {one}"
        assert len(one["reason"].split()) > 3, f"not a reason: {one}"


def test_explanations_are_only_carried_over_renames(alterations: ModuleType, repository: Path, tmp_path: Path) -> None:
    run, path = import_module("run"), "secagg/crypto/shamir.py"
    now = (repository / "proofs/mutation/explained.toml").read_text(encoding="utf-8")
    listed = run.explanations()
    then = now

    def named_before(hashed: str) -> str:
        return hashed.replace("evaluate", "compute")

    earlier = alterations.mutants(path, arithmetic=True, before=named_before)
    for made, before in zip(alterations.mutants(path, arithmetic=True), earlier, strict=True):
        if made.digest in listed:
            then = then.replace(f'"{made.digest}"', f'"{before.digest}"')
    assert then != now
    kept = tmp_path / "explained.toml"
    kept.write_text(then, encoding="utf-8")
    assert run.renamed("calculate", "evaluate", kept) == 0, "a name that differs from the old one"
    assert kept.read_text(encoding="utf-8") == then
    assert run.renamed("compute", "evaluate", kept) > 0
    assert kept.read_text(encoding="utf-8") == now


@pytest.mark.usefixtures("alterations")
def test_a_kill_counts_while_its_test_exists() -> None:
    judges, run = import_module("judges"), import_module("run")
    here = "tests/test_mutants.py::"
    for killer, others, is_gone in (
        (f"{here}kept", (f"{here}kept",), False),
        (f"{here}deleted", (f"{here}kept",), True),
        (f"{here}elsewhere", ("tests/test_rooms.py::kept",), False),
        ("tests/no_such_file.py::deleted", (), True),
        ("model: a case", (), False),
        ("it does not end, or its process did", (), False),
    ):
        assert run.killer_is_gone(judges.Verdict("", "", killer, ""), others) is is_gone, killer


SOURCE = """
def judge(a, b, seen=1):
    if a < b <= 3 and not seen:
        seen.add(a)
    return a + 1
"""
DECISIONS = {
    "never `a < b <= 3 and (not seen)`",
    "`a < b <= 3 and (not seen)` to `a < b <= 3 or not seen`",
    "`a < b <= 3` to `a <= b <= 3`",
    "`a < b <= 3` to `a < b < 3`",
    "without not in `not seen`",
    "without `seen.add(a)`",
}
NUMBERS = {"3 to 4", "1 to 2", "`a + 1` to `a - 1`"}


ORDERED = """
def respond(self, request, accepted):
    found = judge(request)
    if accepted:
        self.journal.append(request)
    self.accepted |= found
    self.last = request
    return found
"""


def test_a_call_and_the_assignment_next_to_it_are_swapped(
    alterations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State must be written before it is announced; the swapped order loses it in a crash, but removes no line."""
    monkeypatch.setattr(alterations, "REPOSITORY", tmp_path)
    (tmp_path / "respond.py").write_text(ORDERED)
    (swapped,) = (made for made in alterations.mutants("respond.py", arithmetic=False) if " before " in made.change)
    assert swapped.change == "`self.accepted |= found` before `if accepted: self.journal.append(request)`"

    def judge(request: int) -> set[int]:
        return {request}

    names: dict[str, Any] = {"judge": judge}
    exec(compile(ORDERED, str(tmp_path / "respond.py"), "exec"), names)  # noqa: S102 -- the source above
    respond: FunctionType = names["respond"]
    seen = list[set[int]]()

    class Holder:
        accepted: ClassVar = set[int]()

        class journal:  # noqa: N801 -- an attribute
            @staticmethod
            def append(_: int) -> None:
                seen.append(set(Holder.accepted))

    holder = Holder()
    for request, due in ((1, set[int]()), (2, {1, 2})):
        respond(holder, request, accepted=True)
        assert seen[-1] == due
        respond.__code__ = alterations.altered_code(swapped, arithmetic=False)


@pytest.mark.parametrize("arithmetic", [False, True])
def test_each_decision_and_token_is_altered_once(
    alterations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, arithmetic: bool
) -> None:
    """A default is evaluated outside the function's code, so it is not altered."""
    monkeypatch.setattr(alterations, "REPOSITORY", tmp_path)
    (tmp_path / "judge.py").write_text(SOURCE)
    made = list(alterations.mutants("judge.py", arithmetic=arithmetic))
    assert {mutant.change for mutant in made} == (DECISIONS | NUMBERS if arithmetic else DECISIONS)
    assert len({mutant.digest for mutant in made}) == len(made)


def test_altered_code_replaces_the_existing_function(
    alterations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alterations, "REPOSITORY", tmp_path)
    path = tmp_path / "judge.py"
    path.write_text(SOURCE)
    names = dict[str, Any]()
    exec(compile(ast.parse(SOURCE), str(path), "exec"), names)  # noqa: S102 -- the source above
    judge: FunctionType = names["judge"]
    seen = set[int]()
    judge(1, 2, seen)
    assert seen == {1}
    by_change = {mutant.change: mutant for mutant in alterations.mutants("judge.py", arithmetic=True)}
    for change, due in (("without `seen.add(a)`", set[int]()), ("without not in `not seen`", set[int]())):
        seen.clear()
        judge.__code__ = alterations.altered_code(by_change[change], arithmetic=True)
        judge(1, 2, seen)
        assert seen == due, change
    judge.__code__ = alterations.altered_code(by_change["`a + 1` to `a - 1`"], arithmetic=True)
    assert judge(1, 0) == 0


def test_a_process_that_gets_no_processor_time_is_not_a_verdict(
    alterations: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that works beyond its wall time gives no verdict; one that waits forever counts as not ending."""
    judges: Any = import_module("judges")

    def working() -> str:
        while True:
            pass

    def waiting() -> str:
        threading.Event().wait()
        return ""

    assert alterations.__name__ in sys.modules
    monkeypatch.setattr(judges, "_WAITING", 0.05)
    assert judges._in_fork(working, 20) is judges.STARVED  # noqa: SLF001
    assert "does not end" in judges._in_fork(waiting, 20)  # noqa: SLF001
    monkeypatch.setattr(judges, "_WAITING", 600)
    assert "does not end" in judges._in_fork(working, 1)  # noqa: SLF001
    assert judges._in_fork(lambda: "killed", 20) == "killed"  # noqa: SLF001
