"""Runs the code of a document as its reader would: all blocks in order, in one folder and one Python."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from secagg.cli import main
from secagg.session.registry import names, unregister

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 120.0
"""Timeout of a block on a slow machine."""
_FENCED = re.compile(
    r"^(?P<mark>`{3,})(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<body>.*?)^(?P=mark)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_OF_A_SHELL: Final = frozenset("&|;<>$()*")
_NO_CODE: Final = frozenset({"", "text", "diff", "mermaid"})


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    title: str
    """File name under which a reader saves it; empty if it is run directly."""
    body: str
    line: int

    @property
    def commands(self) -> str:
        """The commands of a ``console`` block; the rest is output."""
        typed, goes_on = list[str](), False
        for line in self.body.splitlines():
            if goes_on or line.startswith(("$ ", "> ")):
                typed.append(line[2:] if line.startswith(("$ ", "> ")) else line)
                goes_on = line.endswith("\\")
        return "\n".join(typed)


def blocks_of(text: str) -> list[Block]:
    """Return every fenced block of a document."""
    return [
        Block(found["language"], found["title"] or "", found["body"], text.count("\n", 0, found.start("body")))
        for found in _FENCED.finditer(text)
    ]


def run_python(blocks: list[Block], document: str, namespace: dict[str, object] | None = None) -> None:
    """Run blocks of Python in order, with the document's line numbers in tracebacks."""
    names = {"__name__": "__main__"} if namespace is None else namespace
    for block in blocks:
        program = compile("\n" * block.line + block.body, document, "exec", dont_inherit=True)
        exec(program, names)  # noqa: S102 - the documents of this repository are under test


def run_page(text: str, document: str, folder: Path) -> int:
    """Run every block of a page in a folder, and return their number; end processes that it left running."""
    namespace, count, groups = dict[str, object]({"__name__": "__main__"}), 0, list[int]()
    modules, path, protocols = set(sys.modules), list(sys.path), set(names())
    sys.path.insert(0, str(folder))
    with chdir(folder):
        try:
            for block in blocks_of(text):
                if block.title:
                    Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                    Path(block.title).write_text(block.body, encoding="utf-8")
                elif block.language == "python":
                    run_python([block], document, namespace)
                elif block.language == "console":
                    _type(block, document, groups)
                elif block.language not in _NO_CODE:
                    raise AssertionError(f"{document}:{block.line}: blocks of {block.language!r} cannot be run yet")
                count += bool(block.title) or block.language not in _NO_CODE
        finally:
            sys.path[:] = path
            for name in set(names()) - protocols:
                unregister(name)
            for name in set(sys.modules) - modules:
                # A page's own files are modules here, and another page may have files of the same names.
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
            for group in groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
    return count


def _type(block: Block, document: str, groups: list[int]) -> None:
    """Type the commands of a block into a shell; commands in the background outlive it.

    Commands of this library that need no shell are called here, without a separate interpreter.
    """
    commands = block.commands.replace("\\\n", " ").splitlines()
    if all(command.startswith("secagg ") and not _OF_A_SHELL & set(command) for command in commands):
        for command in commands:
            with redirect_stdout(StringIO()):
                status = main(shlex.split(command)[1:])
            assert status == 0, f"{document}:{block.line}: exit status {status} of {command}"
        return
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SECAGG_LEDGER_DIRECTORY": str(Path("ledgers").resolve()),
    }
    said = Path(f"line-{block.line}.said")
    with said.open("wb") as output:
        shell = subprocess.Popen(  # noqa: S603 - the documents of this repository are under test
            ["bash", "-eu", "-c", block.commands],  # noqa: S607 - whichever shell the reader has
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        groups.append(shell.pid)
        status = shell.wait(SECONDS)
    assert status == 0, f"{document}:{block.line}: exit status {status}\n{said.read_text(encoding='utf-8')}"
