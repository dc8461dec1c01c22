"""What the README shows is what the program does today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.documents import blocks_of, run_python

INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s][^)\s]*)\)")
ROOMS = ("compression", "kit", "protocols", "proofs", "tests", "benchmarks", "examples", "training")
MAKE_COMMAND = re.compile(r"\bmake ([a-z][a-z-]*)")
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
SECTION = re.compile(r"^## Two commands\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "compression/README.md",
        "protocols/enclave/README.md",
        "secagg/session/README.md",
        "training/README.md",
    ],
)
def test_every_python_block_runs(repository: Path, document: str) -> None:
    text = (repository / document).read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(text) if block.language == "python"]
    assert blocks, f"{document} shows no example: add a fenced block marked `python`"
    run_python(blocks, document)


def test_the_two_commands_are_make_targets(readme: str, repository: Path) -> None:
    section = SECTION.search(readme)
    assert section, "README.md has no section `## Two commands`"
    code = [block.body for block in blocks_of(section[1])] + INLINE_CODE.findall(section[1])
    commands = {command for text in code for command in MAKE_COMMAND.findall(text)}
    targets = set(MAKE_TARGET.findall((repository / "Makefile").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= commands, "the section `Two commands` names `make demo` and `make test`"
    assert commands <= targets, f"README.md names targets that the Makefile lacks: {sorted(commands - targets)}"


def test_every_link_to_a_file_resolves(repository: Path) -> None:
    documents = [*repository.glob("*.md"), *(file for room in ROOMS for file in (repository / room).rglob("*.md"))]
    broken = [
        f"{document.relative_to(repository)}: {target}"
        for document in documents
        for target in LINK.findall(document.read_text(encoding="utf-8"))
        if "://" not in target and not (document.parent / target.partition("#")[0]).exists()
    ]
    assert not broken, "write these files or repair the links:\n" + "\n".join(broken)
