"""The gates of ``proofs/check`` under attack: weaker statements, searches that lost schedules, a busy package lock.

Everything that needs Coq or a solver runs in ``make proofs``. ``make mutants`` makes every weakening and runs the tests
that must detect it. Here are the quick cases, and the tables that must stay up to date.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.repository

PINNED = "proofs/coq/statements.pinned"
FAKE_LOCK = """#!/bin/sh
count=$(cat "$0.count" 2>/dev/null || echo 0)
echo $((count + 1)) > "$0.count"
if [ "$count" -lt 2 ]; then echo "E: Could not get lock /var/lib/dpkg/lock-frontend."; exit 100; fi
echo done
"""


@pytest.fixture(scope="module")
def tree(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what the gates read, and renew its digests as if it was reviewed."""
    made = tmp_path_factory.mktemp("tree")
    for folder in ("proofs", "protocols", "compression", "secagg"):
        unwanted = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(repository / folder, made / folder, ignore=unwanted, symlinks=True)
    status, told = check(made, "renew")
    assert status == 0, told
    return made


@pytest.fixture
def weakenings(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repository / "proofs")  # pyright: ignore[reportUnknownMemberType]
    return importlib.import_module("gates.weakenings")


@pytest.fixture
def pins(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repository / "proofs" / "model")  # pyright: ignore[reportUnknownMemberType]
    return importlib.import_module("pins")


def check(tree: Path, *words: str) -> tuple[int, str]:
    """Run the check of a copy; return its status and its output."""
    command = [sys.executable, "-B", str(tree / "proofs" / "check"), *words]
    child = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- a copy of the check
    return child.returncode, child.stdout + child.stderr


@contextmanager
def restored(tree: Path, *files: str) -> Generator[dict[str, bytes | None]]:
    """Restore files afterwards, or delete new ones; yield their content."""
    kept = {file: (tree / file).read_bytes() if (tree / file).exists() else None for file in files}
    try:
        yield kept
    finally:
        for file, content in kept.items():
            if content is None:
                (tree / file).unlink()
            else:
                (tree / file).write_bytes(content)


def test_statements_match_their_pins_and_claims_have_their_evidence(tree: Path) -> None:
    status, told = check(tree, "statements", "claims")
    assert status == 0, told


@pytest.mark.parametrize("number", range(11))
def test_a_weaker_statement_fails_the_check(tree: Path, weakenings: Any, number: int) -> None:
    weakening = [made for made in weakenings.WEAKENINGS if made.noticed_by == weakenings.STATEMENTS][number]
    with restored(tree, weakening.file):
        weakening.make(tree)
        status, told = check(tree, "statements")
    assert status == 1
    refused = (
        "statements differ from their pins|a command inside a proof|has `Admitted`|is not an allowed kind of sentence"
    )
    assert re.search(refused, told), told


def test_a_decoy_of_the_same_name_does_not_hide_a_gutted_theorem(tree: Path, weakenings: Any) -> None:
    gutted = weakenings.WEAKENINGS[0]
    with restored(tree, gutted.file):
        gutted.make(tree)
        with (tree / gutted.file).open("a", encoding="utf-8") as file:
            file.write(f"Section Decoy.\n{gutted.before}Proof. Qed.\nEnd Decoy.\n")
        status, told = check(tree, "statements")
    assert status == 1
    assert "two sentences named full_graph_tells_one_sum" in told


def test_renewing_digests_leaves_the_pins(tree: Path, weakenings: Any) -> None:
    gutted = weakenings.WEAKENINGS[0]
    with restored(tree, gutted.file, "proofs/reviewed.toml", PINNED) as kept:
        gutted.make(tree)
        assert check(tree, "renew")[0] == 0
        assert (tree / PINNED).read_bytes() == kept[PINNED]
        status, told = check(tree, "claims", "statements")
        assert status == 1
        assert "statements differ from their pins: full_graph_tells_one_sum\n" in told


def test_a_pin_is_only_changed_by_name(tree: Path, weakenings: Any) -> None:
    gutted, hypothesis, *_ = weakenings.WEAKENINGS
    with restored(tree, gutted.file, PINNED):
        gutted.make(tree)
        hypothesis.make(tree)
        status, told = check(tree, "pin", "full_graph_tells_one_sum")
        assert status == 1
        assert "statements differ from their pins: before.certificate_unique\n" in told
        assert "+Hypothesis nobody : corrupted = set0." in told
        assert check(tree, "pin", "before.certificate_unique")[0] == 0
        assert check(tree, "statements")[0] == 0
        assert "no pinned or current statement" in check(tree, "pin", "nonsense")[1]


SPLIT, END = "proofs/coq/split.v", ""
IRREFLEXIVE = "Lemma neighbours_irr : irreflexive neighbours.\nProof. "
LISTED = '"nobody claims this" = { schedules = 1, revealing = 1 }\n'
PLANTED: list[tuple[tuple[str, ...], str, str, str]] = [
    (("statements differ",), "proofs/coq/quorum.v", "< 2 * quorum", "<= 2 * quorum"),
    (("not an allowed kind of sentence",), SPLIT, END, "Time Check nat.\n"),
    (("letters outside ASCII",), SPLIT, IRREFLEXIVE, f"(* \u00e4 *) {IRREFLEXIVE}"),
    (("a command inside a proof",), SPLIT, IRREFLEXIVE, f'{IRREFLEXIVE}Local Notation "a == b" := true. '),
    (("prove it",), SPLIT, IRREFLEXIVE, f"{IRREFLEXIVE}admit. "),
    (("is defined by a proof",), SPLIT, END, "Definition anything : nat.\n"),
    (("ends inside a proof",), SPLIT, END, "Lemma unproved : true.\n"),
    (("to THEORIES",), "proofs/coq/unheard_of.v", END, "Definition unheard_of := true.\n"),
    (("two sentences named", "statements differ"), SPLIT, END, "Definition neighbours := true.\n"),
    (("must restate exactly",), SPLIT, END, "Theorem unstated : true.\nProof. by []. Qed.\n"),
    (("claims and theorems differ", "claims differ"), "proofs/claims.toml", '"shares_reconstruct", ', ""),
    (("clean cases of model/cases.toml differ",), "proofs/model/cases.toml", END, LISTED),
    (("a claim that names no clean case",), "proofs/model/cases.toml", END, '"x" = { claim = "RI-1", fault = "y" }\n'),
    (("claims differ",), "proofs/claims.toml", "active mode tells one sum,", "every mode tells one sum,"),
    (("changed since",), "proofs/model/paths.py", END, "# changed\n"),
    (("outside a section",), SPLIT, END, 'Notation "a == b" := true : bool_scope.\n'),
    (("outside a section",), SPLIT, END, "Hypothesis trusted : False.\n"),
    (("makes a coercion",), SPLIT, END, "Record hidden := Hide { shown :> bool }.\n"),
    (("not an allowed kind of sentence",), SPLIT, END, "Require Export masks.\n"),
    (("a command inside a proof", "ends inside a proof"), SPLIT, END, "Lemma d : nat.\nProof. exact: 0. Defined.\n"),
    (("must restate exactly",), SPLIT, END, "  Theorem unstated : true.\nProof. by []. Qed.\n"),
    (
        ("lacks their tag",),
        "proofs/claims.toml",
        'pairwise_mask/rounds3_4_unmasking.py"]',
        'pairwise_mask/configuration.py"]',
    ),
    (("claims differ",), "proofs/claims.toml", '"20000 secrets dealt"', '"2 secrets dealt"'),
    (("claims differ",), "proofs/symbolic/classic.pv", "==> event(Corrupted(me)).", "==> event(Lied(me, peer, c))."),
]
"""Messages of gates, with a change that only these gates detect."""


@contextmanager
def planted(tree: Path, file: str, before: str, after: str, off: tuple[str, ...]) -> Generator[tuple[str, ...]]:
    """Make a change in a copy whose gates do not raise the messages ``off``; yield what to check, with new digests."""
    report, place = tree / "proofs/gates/report.py", tree / file
    with restored(tree, "proofs/gates/report.py", "proofs/reviewed.toml", file) as kept:
        source = report.read_text(encoding="utf-8")
        report.write_text(source.replace("if not holds:", f"if not holds and not any(w in otherwise for w in {off}):"))
        assert report.read_text(encoding="utf-8") != source
        if file == "proofs/model/paths.py":
            check(tree, "renew")
        content = (kept[file] or b"").decode()
        assert not before or before in content
        place.write_text(content.replace(before, after, 1) if before else content + after, encoding="utf-8")
        yield () if file == "proofs/model/paths.py" else ("renew",)


@pytest.mark.parametrize(("gates", "file", "before", "after"), PLANTED, ids=[" and ".join(row[0]) for row in PLANTED])
def test_each_gate_alone_detects_its_change(
    tree: Path, gates: tuple[str, ...], file: str, before: str, after: str
) -> None:
    """With all gates for a change switched off the check passes; with any one of them it fails."""
    for number in range(len(gates) + 1):
        off = gates[:number] + gates[number + 1 :]
        with planted(tree, file, before, after, off) as first:
            status, told = check(tree, *first, "statements", "claims")
        assert status == (number < len(gates)), f"without {off}: {told}"


CHANGED = {
    "protocols/pairwise_mask/round0_advertise_keys.py": "named by PM-5",
    "protocols/pairwise_mask/run.py": "in the folder of PM-1",
    "secagg/crypto/key_derivation.py": "used by code of ",
    "compression/rotation.py": "used by code of CO-",
    "proofs/coq/split.v": "required by PM-3",
    "proofs/smt/terms.py": "evidence of PM-1",
    "proofs/model/schedules.py": "evidence of PM-6",
    "proofs/model/cases.toml": "evidence of PM-6",
    "proofs/gates/report.py": "a gate",
    "proofs/check": "a gate",
}


def test_a_changed_file_is_named_with_the_claims_to_review(tree: Path) -> None:
    with restored(tree, *CHANGED) as kept:
        for file, content in kept.items():
            comment = b"\n(* changed *)\n" if file.endswith(".v") else b"\n# changed\n"
            (tree / file).write_bytes((content or b"") + comment)
        status, told = check(tree, "claims")
    assert status == 1
    for file, words in CHANGED.items():
        assert f"  {file}: {words}" in told


def test_new_and_removed_files_are_changes_too(tree: Path) -> None:
    new, old = "protocols/enclave/unheard_of.py", "protocols/enclave/session.py"
    with restored(tree, new, old):
        (tree / new).write_text('"""Nobody reviewed this."""\n', encoding="utf-8")
        (tree / old).unlink()
        status, told = check(tree, "claims")
    assert status == 1
    assert f"{new}: " in told
    assert f"{old} (gone): " in told


def test_a_claim_about_a_removed_file_fails_with_a_message(tree: Path) -> None:
    named = "protocols/pairwise_mask/graph.py"
    with restored(tree, named):
        (tree / named).unlink()
        status, told = check(tree, "claims")
    assert status == 1
    assert f"claims.toml names ['{named}']" in told


def test_a_search_that_lost_its_schedules_does_not_match_its_pin(pins: Any) -> None:
    name = "lists of 4 of 5, threshold 2"
    pin = pins.pinned()[name]
    as_pinned = pins.Outcome(name, pin["schedules"], pin["revealing"], None, planted=False)
    assert not as_pinned.complaint()
    assert "schedules" in pins.Outcome(name, 1, pin["revealing"], None, planted=False).complaint()
    assert "revealing" in pins.Outcome(name, pin["schedules"], 0, None, planted=False).complaint()
    assert "a fault" in pins.Outcome(name, pin["schedules"], pin["revealing"], "both", planted=False).complaint()


def test_a_defect_found_by_another_fault_does_not_match_its_pin(pins: Any) -> None:
    as_pinned = str(pins.pinned()["no latch"]["fault"]).replace("#", "3")
    assert as_pinned.startswith("both secrets of client 3")
    assert not pins.Outcome("no latch", 1, 0, as_pinned, planted=True).complaint()
    sums = pins.Outcome("no latch", 1, 0, "two sums in one session, over [[0, 1], [2, 3]]", planted=True)
    assert "found `two sums in one session, over #`" in sums.complaint()
    assert "found `nothing`" in pins.Outcome("no latch", 1, 0, None, planted=True).complaint()
    assert "clean, but pinned with a fault" in pins.Outcome("no latch", 1, 1, None, planted=False).complaint()


def test_a_case_without_a_line_says_which_line_to_add(pins: Any) -> None:
    told = pins.Outcome("a new case", 7, 3, None, planted=False).complaint()
    assert told == 'not in cases.toml; add `"a new case" = { schedules = 7, revealing = 3 }`'


def test_clean_and_planted_schedules_are_counted_apart(pins: Any) -> None:
    tally = pins.Tally()
    for name, pin in pins.pinned().items():
        is_planted = "fault" in pin
        outcome = pins.Outcome(name, pin.get("schedules", 5), pin.get("revealing", 0), pin.get("fault"), is_planted)
        assert not tally.judged(outcome)
    assert tally.spent == 5 * tally.planted
    assert str(tally).startswith(f"{tally.clean} clean cases searched in {tally.schedules:,} schedules and states, ")


def test_every_weakening_is_detected_by_something_that_a_claim_names(repository: Path, weakenings: Any) -> None:
    named, cases = weakenings.named_tests(), {case for claim in weakenings.claims() for case in claim.get("cases", ())}
    for weakening in weakenings.WEAKENINGS:
        assert (repository / weakening.file).read_text(encoding="utf-8").count(weakening.before) == 1
        file, _, test = weakening.noticed_by.partition("::")
        if test:
            assert file in named
            assert f"def {test}(" in (repository / file).read_text(encoding="utf-8")
        elif weakening.noticed_by.startswith(weakenings.CASE):
            assert weakening.noticed_by.removeprefix(weakenings.CASE) in cases


def test_a_busy_package_lock_is_waited_for_with_a_message(repository: Path, tmp_path: Path) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text(FAKE_LOCK, encoding="utf-8")
    fake.chmod(0o755)

    def install(most: float) -> subprocess.CompletedProcess[str]:
        program = f"from gates.packages import apt_get; print(apt_get(('install',), pause=0.01, most={most}))"
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(repository / "proofs")}
        command = [sys.executable, "-B", "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603

    child = install(most=60)
    assert child.stdout.count("waiting for it") == 1
    assert "(True, 'done\\n')" in child.stdout
    (tmp_path / "apt-get.count").unlink()
    child = install(most=-1)
    assert child.returncode == 1
    assert "the package lock was busy" in child.stderr


def test_counts_in_the_documents_match_the_ledger(repository: Path, weakenings: Any) -> None:
    proofs = repository / "proofs"
    ledger = tomllib.loads((proofs / "claims.toml").read_text(encoding="utf-8"))["claim"]
    cases = tomllib.loads((proofs / "model" / "cases.toml").read_text(encoding="utf-8")).values()
    families = tomllib.loads((proofs / "smt" / "families.toml").read_text(encoding="utf-8")).values()
    stated = (proofs / "coq" / "statements.v").read_text(encoding="utf-8")
    theorems = len(re.findall(r"^Theorem ", stated, re.MULTILINE))
    clean = [case for case in cases if "fault" not in case]
    searched = sum(case["schedules"] for case in clean)
    proved, refuted = (sum(family[kind] for family in families) for kind in ("proved", "refuted"))
    rows = (
        f"| claims | {len(ledger)} |",
        f"| theorems, closed under the global context | {theorems} |",
        f"| obligations proved, altered functions refuted | {proved:,}, {refuted} |",
        f"| clean cases of `model/`, minimum number of their schedules and states | {len(clean)}, {searched:,} |",
        f"| planted cases of `model/`, each found as its own kind of fault | {len(cases) - len(clean)} |",
        f"| weakenings of statements and code, each detected twice | {len(weakenings.WEAKENINGS)} |",
    )
    written = (proofs / "README.md").read_text(encoding="utf-8").splitlines()
    missing = [row for row in rows if row not in written]
    assert not missing, "write into proofs/README.md, under `At a glance`:\n" + "\n".join(missing)
