"""No reason is only a word: a test expects each of an error that a call raises, or of a negative vector."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from secagg.errors import InternalError, Reason

ABOUT_THE_CLASSES = {"core/test_errors.py", "test_errors.py"}
"""Tests that make errors themselves."""


@pytest.fixture(scope="module")
def expected(repository: Path) -> set[str]:
    tests = repository / "tests"
    files = [file for file in tests.rglob("test_*.py") if file.relative_to(tests).as_posix() not in ABOUT_THE_CLASSES]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    names = set(re.findall(r"(?<!reason=)\bReason\.([A-Z_]+)", text))
    if re.search(r"raises\(InternalError\b", text):
        names.add(InternalError("").reason.name)
    vectors = (json.loads(file.read_text(encoding="utf-8")) for file in (tests / "vectors").glob("*/*.json"))
    verdicts = {vector["operations"][-1]["expect"] for vector in vectors if "base" in vector} - {"ok"}
    return names | {Reason(verdict).name for verdict in verdicts}


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_a_test_meets_the_reason(reason: Reason, expected: set[str]) -> None:
    assert reason.name in expected
