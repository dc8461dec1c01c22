"""What the README shows is what the program does today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FENCED_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
MAKE_COMMAND = re.compile(r"\bmake ([a-z][a-z-]*)")
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
SECTION = re.compile(r"^## Two commands\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def test_every_python_block_runs(readme: str) -> None:
    blocks = [block for block in FENCED_BLOCK.finditer(readme) if block["language"] == "python"]
    assert blocks, "README.md shows no example: add a fenced block marked `python`"
    for block in blocks:
        lines_above = readme.count("\n", 0, block.start("body"))
        program = compile("\n" * lines_above + block["body"], "README.md", "exec")
        exec(program, {"__name__": "__main__"})  # noqa: S102 - the README of this repository is what is tested


def test_the_two_commands_are_make_targets(readme: str, repository: Path) -> None:
    section = SECTION.search(readme)
    assert section, "README.md has no section `## Two commands`"
    code = [block["body"] for block in FENCED_BLOCK.finditer(section[1])] + INLINE_CODE.findall(section[1])
    commands = {command for text in code for command in MAKE_COMMAND.findall(text)}
    targets = set(MAKE_TARGET.findall((repository / "Makefile").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= commands, "the section `Two commands` names `make demo` and `make test`"
    assert commands <= targets, f"README.md names targets that the Makefile lacks: {sorted(commands - targets)}"
