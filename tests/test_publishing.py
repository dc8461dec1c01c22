"""Consistency of what is published: versions, documents that messages name, and the container file."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.house import SHIPPED, report, shipped_modules

pytestmark = pytest.mark.repository

DOCUMENT = re.compile(r"[\w./-]*\b\w+\.md\b")
REPOSITORY_ONLY = re.compile(r"\b(benchmarks|examples|tests|proofs)/|\bmake (test|demo|study|bench|proofs|dist)\b")
WRITTEN_BY_THE_PROGRAM = {"report.md"}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_every_document_names_the_version_of_the_package(repository: Path, project: dict[str, Any]) -> None:
    version = project["version"]
    changes = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == version
    citation = (repository / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [version]
    security = (repository / "SECURITY.md").read_text(encoding="utf-8")
    assert f"| {version.rpartition('.')[0]}.x | yes |" in security


def test_each_claimed_python_version_is_checked(repository: Path, project: dict[str, Any]) -> None:
    claimed = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    checked = re.search(r"^PYTHONS := (.*)$", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert checked is not None
    assert checked[1].split() == claimed
    assert project["requires-python"] == f">={claimed[0]}"


@pytest.mark.parametrize("name", ["flwr", "nvflare", "uvicorn"])
def test_a_package_whose_private_names_are_used_has_an_upper_bound(name: str, project: dict[str, Any]) -> None:
    extras: list[str] = [
        each for extra in ("flower", "nvflare", "http") for each in project["optional-dependencies"][extra]
    ]
    (bound,) = [each.removeprefix(name) for each in extras if re.match(rf"{name}\b", each)]
    assert re.fullmatch(r">=\d+\.\d+,<\d+(\.\d+)+", bound)


def test_every_make_target_runs_for_each_change_or_every_night(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    nightly = re.search(r"(?ms)^targets=\((.*?)\)", (repository / ".ci" / "nightly").read_text(encoding="utf-8"))
    assert phony is not None
    assert nightly is not None
    run = (repository / ".ci" / "run").read_text(encoding="utf-8")
    each_change = " ".join(re.findall(r"^(?:waiting|computing)=\(([a-z -]+)\)$", run, re.MULTILINE)).split()
    assert sorted([*each_change, *nightly[1].split()]) == sorted(phony[1].split())
    described = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)
    assert sorted(described) == sorted(phony[1].split())


def test_the_list_of_targets_fits_a_terminal_and_begins_with_five(repository: Path) -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],  # noqa: S607
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    begin = " ".join(shown[: shown.index("Also:")])
    assert re.findall(r"  make ([a-z-]+)", begin) == ["demo", "demo-round", "test", "lint", "site"]
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    words = " ".join(" ".join(shown).split())
    for name, text in re.findall(r"^([a-z-]+):.*##\s*(.*)$", makefile, re.MULTILINE):
        assert f"make {name} {text}" in words


def test_a_script_that_needs_the_tests_runs_where_it_finds_them(repository: Path) -> None:
    """Unless ``tests`` is installed, a script under ``benchmarks/`` only finds it through PYTHONPATH."""
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    ours = {file.stem for file in (repository / "benchmarks").glob("*.py")}
    reaches = dict[str, set[str]]()
    for name in ours:
        text = (repository / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        reaches[name] = set(re.findall(r"^(?:from|import) (?:benchmarks\.)?(\w+)", text, re.MULTILINE))
    needs = {name for name in ours if "tests" in reaches[name]}
    while more := {name for name in ours - needs if reaches[name] & needs}:
        needs |= more
    recipes = re.findall(r"^\t(.*python) benchmarks/(\w+)\.py", makefile, re.MULTILINE)
    assert {name for before, name in recipes if name in needs and "PYTHONPATH=." not in before} == set()
    assert {"peer_flower", "run"} <= needs


def test_messages_only_name_documents_in_the_wheel(repository: Path) -> None:
    files = (repository / "pyproject.toml").read_text(encoding="utf-8")
    data: dict[str, list[str]] = tomllib.loads(files)["tool"]["setuptools"]["package-data"]
    shipped = {name for names in data.values() for name in names}
    report(
        f"{module.file.relative_to(repository)}:{fault}"
        for module in shipped_modules(repository).values()
        for fault in message_faults(module.file.read_text(encoding="utf-8"), shipped)
    )


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("x = 'see SECURITY.md'", ["1 names SECURITY.md, which the wheel lacks"]),
        ("x = f'as {1} of protocols/README.md'", ["1 names protocols/README.md, which the wheel lacks"]),
        ("x = 'run make bench'", ["1 names make bench, which the wheel lacks"]),
        ("x = 'see benchmarks/README'", ["1 names benchmarks/, which the wheel lacks"]),
        ("x = f'in {files() / \"README.md\"}'", []),
        ('"""See SECURITY.md."""', []),
    ],
)
def test_a_message_that_names_an_absent_document_is_detected(text: str, faults: list[str]) -> None:
    assert [*message_faults(text, {"README.md"})] == faults


def message_faults(text: str, shipped: set[str]) -> Iterator[str]:
    """Check every string that is not a docstring: a file that it names must be in package-data."""
    for line, said in strings_of(ast.parse(text)):
        named = {*DOCUMENT.findall(said), *(found[0] for found in REPOSITORY_ONLY.finditer(said))}
        yield from (f"{line} names {name}, which the wheel lacks" for name in named - shipped - WRITTEN_BY_THE_PROGRAM)


def strings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def test_the_container_file_is_valid(repository: Path) -> None:
    text = (repository / "Containerfile").read_text(encoding="utf-8")
    assert [*container_faults(text, repository)] == []


@pytest.mark.parametrize(
    ("old", "new", "objection"),
    [
        ("python:3.13-slim", "python:latest", "name the version of the base image"),
        ("USER 10001", "USER root", "the last USER must be a number above 0"),
        ("--constraint constraints.txt ", "", "pin the versions of what pip installs"),
        ("COPY . .", "COPY absent.txt .", "absent.txt does not exist"),
        ('ENTRYPOINT ["secagg"]', "ENTRYPOINT secagg", "the entry point must be a list"),
        ("STOPSIGNAL", "STOPSIGN", "STOPSIGN is not a known instruction"),
        ("AS build", "AS other", "stage build does not exist"),
    ],
)
def test_a_fault_in_the_container_file_is_detected(repository: Path, old: str, new: str, objection: str) -> None:
    text = (repository / "Containerfile").read_text(encoding="utf-8")
    assert old in text
    assert objection in [*container_faults(text.replace(old, new), repository)]


def container_faults(text: str, root: Path) -> Iterator[str]:
    """Parse the instructions and compare them with the repository; this needs no builder."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps = [line.partition(" ") for line in "\n".join(lines).replace("\\\n", "").splitlines()]
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    yield from (f"{name} is not a known instruction" for name, _, _ in steps if name not in known)
    halves = [value.partition("=") for name, _, value in steps if name == "ARG"]
    arguments = {name: value for name, _, value in halves}
    if not re.search(r":\d+\.\d+", arguments["BASE"]):
        yield "name the version of the base image"
    stages = {value.partition(" AS ")[2] for name, _, value in steps if name == "FROM"}
    for value in (value.split() for name, _, value in steps if name == "COPY"):
        if value[0].startswith("--from="):
            if (stage := value[0].partition("=")[2]) not in stages:
                yield f"stage {stage} does not exist"
        else:
            yield from (f"{source} does not exist" for source in value[:-1] if not (root / source).exists())
    runs = [value for name, _, value in steps if name == "RUN"]
    if any("pip install" in run and "--constraint" not in run for run in runs):
        yield "pin the versions of what pip installs"
    users = [value for name, _, value in steps if name == "USER"]
    if not users[-1:] or not users[-1].isdigit() or int(users[-1]) == 0:
        yield "the last USER must be a number above 0"
    (entry,) = (value for name, _, value in steps if name == "ENTRYPOINT")
    scripts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    if not entry.startswith("["):
        yield "the entry point must be a list"
    elif json.loads(entry)[0] not in scripts:
        yield "the entry point must be a command of the package"


def test_the_container_context_excludes_local_environments(repository: Path) -> None:
    """Without this file, a local environment and its caches would be sent to the builder."""
    ignored = (repository / ".containerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "build", "dist"} <= {*ignored}
    assert not {*ignored} & {*SHIPPED, "pyproject.toml", ".ci"}
