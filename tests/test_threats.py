"""Each threat in threats.toml names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from secagg.conformance.laws import LAWS as SCHEMES
from secagg.conformance.sessions import LAWS as SESSIONS

pytestmark = pytest.mark.repository

TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


class Existing:
    """Tests of a repository, by file and by name."""

    def __init__(self, repository: Path) -> None:
        root = repository / "tests"
        self.makefile = (repository / "Makefile").read_text(encoding="utf-8")
        self.by_file = {
            file.relative_to(root).as_posix(): {*TEST.findall(file.read_text(encoding="utf-8"))}
            for file in root.rglob("test_*.py")
        }
        self.names = {name for found in self.by_file.values() for name in found}
        self.folders = {parent for file in self.by_file for parent in map(str, Path(file).parents)}

    def has(self, named: str) -> bool:
        if named.startswith("law "):
            return named.removeprefix("law ") in {*SESSIONS, *(law.name for law in SCHEMES)}
        if named.startswith("make "):
            return f"\n{named.removeprefix('make ')}:" in self.makefile
        file, _, test = named.partition("::")
        if not file.endswith(".py"):
            return named in self.names or named.rstrip("/").removeprefix("tests/") in self.folders
        place = next((each for each in (file, f"adversaries/{file}") if each in self.by_file), None)
        return place is not None and (not test or test in self.by_file[place])


@pytest.fixture(scope="module")
def tests(repository: Path) -> Existing:
    return Existing(repository)


@pytest.fixture(scope="module")
def threats(repository: Path) -> list[dict[str, Any]]:
    boundaries = tomllib.loads((repository / "tests" / "threats.toml").read_text(encoding="utf-8"))["boundary"]
    return [threat for boundary in boundaries for threat in boundary["threat"]]


def test_every_threat_names_existing_tests(threats: list[dict[str, Any]], tests: Existing) -> None:
    faults = [f"{each['attack']}: no {name}" for each in threats for name in each["tests"] if not tests.has(name)]
    assert not faults, "\n".join(faults)
    assert all(threat["tests"] for threat in threats), [each["attack"] for each in threats if not each["tests"]]


def test_no_threat_is_listed_twice(threats: list[dict[str, Any]]) -> None:
    attacks = [threat["attack"] for threat in threats]
    assert sorted(attacks) == sorted(set(attacks))


@pytest.mark.parametrize(
    "name", ["law of_nature", "test_nobody_wrote", "core/test_wire.py::test_nobody_wrote", "x/test_x.py"]
)
def test_a_missing_test_is_detected(name: str, tests: Existing) -> None:
    assert not tests.has(name)
