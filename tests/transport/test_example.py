"""The example of a sum over HTTP: as short as promised, with the output in its README."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LINES = 25


def test_the_example_is_short(repository: Path) -> None:
    lines = 0
    for name in ("server.py", "client.py"):
        text = (repository / "examples" / "http" / name).read_text(encoding="utf-8")
        body = text.partition('"""\n')[2]
        lines += sum(bool(line) and not line.startswith(("import", "from")) for line in body.splitlines())
    assert lines <= LINES


@pytest.mark.wire
def test_the_readme_runs_as_it_stands(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "examples" / "http", tmp_path / "http")
    port = free_port()
    for name in ("server.py", "client.py"):
        file = tmp_path / "http" / name
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(":8750", f":{port}").replace('"pairwise", ', f'"pairwise", port={port}, '))
    readme = (tmp_path / "http" / "README.md").read_text(encoding="utf-8")
    commands, printed = re.findall(r"```\n(.*?)```", readme, re.DOTALL)[:2]
    install, folder, *rest = commands.splitlines()
    assert (install, folder) == ("pip install '.[http]'", "cd examples/http")
    done = subprocess.run(  # noqa: S603 -- the commands of our own page
        ["/bin/bash", "-c", "\n".join(rest)],
        cwd=tmp_path / "http",
        env={
            "PATH": f"{sysconfig.get_path('scripts')}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(repository),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    expected, mean = printed.splitlines()
    said = [line for line in done.stdout.splitlines() if not line.startswith("keys/")]
    assert sorted(said) == sorted([*[expected] * 5, mean]), done.stderr


def free_port() -> int:
    import socket  # noqa: PLC0415 -- for this one number

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
