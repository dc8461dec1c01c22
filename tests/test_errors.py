"""Every reason is tested: some test expects it from a call that raises, or from a negative vector."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from secagg.errors import InternalError, Reason

ABOUT_THE_CLASSES = {"core/test_errors.py", "test_errors.py"}
"""Tests that construct errors themselves."""


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
def test_some_test_expects_the_reason(reason: Reason, expected: set[str]) -> None:
    assert reason.name in expected
