"""FOUND_AND_FIXED.md: every row has four cells, and the last one names a test function or a law that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secagg.conformance.sessions import LAWS

TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+)`")
NAMED_LAW = re.compile(r"law `(\w+)`")
HEAD = ["finding", "effect", "fix", "test"]


@pytest.fixture(scope="module")
def existing(repository: Path) -> set[str]:
    files = (repository / "tests").rglob("test_*.py")
    return {name for file in files for name in TEST.findall(file.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def rows(repository: Path) -> list[list[str]]:
    lines = (repository / "FOUND_AND_FIXED.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row != HEAD and set(row[0]) != {"-"}]


def faults_of(row: list[str], existing: set[str]) -> list[str]:
    if len(row) != len(HEAD) or not all(row):
        return [f"{row[0]}: a row has a finding, an effect, a fix and a test"]
    tests, laws = NAMED.findall(row[3]), NAMED_LAW.findall(row[3])
    missing = [*(name for name in tests if name not in existing), *(law for law in laws if law not in LAWS)]
    return [
        *([] if tests or laws else [f"{row[0]}: names no test"]),
        *(f"{row[0]}: {name} is gone" for name in missing),
    ]


def test_every_row_names_tests_that_exist(rows: list[list[str]], existing: set[str], repository: Path) -> None:
    assert f" {len(rows)} rows of FOUND_AND_FIXED.md" in (repository / "tests" / "README.md").read_text(
        encoding="utf-8"
    )
    assert not [fault for row in rows for fault in faults_of(row, existing)]


def test_no_finding_is_told_twice(rows: list[list[str]]) -> None:
    findings = [row[0] for row in rows]
    assert sorted(findings) == sorted(set(findings))


@pytest.mark.parametrize(
    ("row", "objection"),
    [
        (["a", "b", "c"], "a row has"),
        (["a", "b", "", "`test_it`"], "a row has"),
        (["a", "b", "c", "none; by reading"], "names no test"),
        (["a", "b", "c", "`test_it`, `test_nobody_wrote`"], "test_nobody_wrote is gone"),
        (["a", "b", "c", "law `of_nature`"], "of_nature is gone"),
    ],
)
def test_a_row_without_a_test_is_noticed(row: list[str], objection: str) -> None:
    assert objection in faults_of(row, {"test_it"})[0]
