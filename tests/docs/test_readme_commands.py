"""README's commands in order, with only the extras that its `Install` names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.harness.documents import blocks_of

SECONDS = 300
MAKES = {"make demo", "make test"}
"""They create separate environments and take minutes; other tests check that they are targets."""
BLOCKING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"no extra that README installs has {{name}}", name=name)

sys.meta_path.insert(0, Missing())
"""
NAMES = re.compile(r"[A-Za-z0-9_-]+")


def modules_of(requirements: list[str]) -> set[str]:
    return {NAMES.match(each)[0].replace("-", "_") for each in requirements if NAMES.match(each)}  # type: ignore[index]


@pytest.mark.site
def test_every_command_runs_after_the_install(repository: Path, tmp_path: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(text) if block.language in {"bash", "python"}]
    assert not [block for block in blocks_of(text) if block.language not in {"bash", "python", "diff", ""}]
    (plain,) = (block for block in blocks_of(text) if not block.language)
    assert {line.partition("#")[0].strip() for line in plain.body.splitlines()} == MAKES
    install, *others = blocks
    named = re.fullmatch(r"pip install '\.\[([a-z,]+)\]'\n", install.body)
    assert named, "the first block installs this library with its extras"
    extras = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    brought = set[str]().union(*(modules_of(extras[extra]) for extra in named[1].split(",")))
    blocked = set[str]().union(*map(modules_of, extras.values())) - brought - {"secagg"}
    assert {"torch", "matplotlib", "flwr"} <= blocked
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(BLOCKING.format(blocked=blocked))
    saved = {number: f"block-{number}.py" for number, block in enumerate(others) if block.language == "python"}
    script = list[str]()
    for number, block in enumerate(others):
        if number in saved:
            # A reader types all blocks into one interpreter.
            before = [others[other].body for other in saved if other <= number]
            (tmp_path / saved[number]).write_text("\n".join(before), encoding="utf-8")
        script.append(f"python {saved[number]}" if number in saved else block.body)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{tmp_path / 'hook'}{os.pathsep}{repository}"}
    done = subprocess.run(  # noqa: S603 -- README's commands are what is tested
        ["bash", "-eu", "-c", "\n".join(script)],  # noqa: S607 -- the reader's
        cwd=tmp_path,
        env=environment | {"SECAGG_LEDGER_DIRECTORY": str(tmp_path / "ledgers")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert (
        "next.npz: model.npz with the mean change of 3 clients, at least 3 trained, with 3072 examples in all" in said
    )
    assert done.stdout.count("the sum of 3 clients was released") == 3
    (clip,) = re.findall(r"secagg serve .* --clip ([\d.]+) ", text)
    assert f"With 16 bits per value, --clip {clip} leaves" in said, "README's clip is the one that is proposed"
