"""Processes of two versions over HTTP: a client one form behind can take part, but no other party is downgraded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.harness.wire_town import SECONDS, VALUES

pytestmark = pytest.mark.wire
PLAN = ("--values", str(VALUES), "--clip", "1", "--listen", "127.0.0.1:0", "--clients", "3", "--exchange-seconds", "20")
TAKES_FORM_2 = ("--set", "minimum_form=2")


class Versions:
    """Programs of both versions, in one folder."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder, self.running = folder, list[subprocess.Popen[str]]()
        self.environment = {**os.environ, "SECAGG_LEDGER_DIRECTORY": str(folder / "ledgers")}
        self.environment["PYTHONPATH"] = str(repository)
        self.url = ""

    def run(self, version: str, *arguments: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(  # noqa: S603 -- fixed command
            [sys.executable, "-m", "tests.harness.form_two", version, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(made)
        return made

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        server = self.run("new", "serve", *PLAN, "--out", "mean.npy", *arguments)
        assert server.stdout is not None
        lines = list[str]()
        for line in server.stdout:
            lines.append(line)
            if found := re.search(r"listening at \S+:(\d+)", line):
                self.url = f"http://127.0.0.1:{found[1]}"
                return server
        pytest.fail("".join(lines))

    def contribute(self, version: str, number: int, *arguments: str) -> subprocess.Popen[str]:
        np.save(self.folder / f"update-{number}.npy", np.full(VALUES, number / 100))
        about = ("--update", f"update-{number}.npy", "--client", str(number), "--state", f"state-{number}")
        return self.run(version, "contribute", self.url, *about, *arguments)

    def close(self) -> None:
        while self.running:
            each = self.running.pop()
            each.kill()
            each.communicate()


@pytest.fixture
def versions(tmp_path: Path, repository: Path) -> Iterator[Versions]:
    found = Versions(tmp_path, repository)
    yield found
    found.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said = process.communicate(timeout=SECONDS)[0]
    return process.returncode, said


def test_a_client_of_the_form_before_takes_part_exactly_in_a_session_of_a_new_server(versions: Versions) -> None:
    server = versions.serve("--form", "2")
    clients = [versions.contribute("old" if number == 0 else "new", number, *TAKES_FORM_2) for number in range(3)]
    for client in clients:
        status, said = ended(client)
        assert status == 0, said
        assert "the sum of 3 clients was released" in said
    assert ended(server)[0] == 0
    assert np.allclose(np.load(versions.folder / "mean.npy"), 0.01, atol=1e-4)


def test_nobody_follows_a_server_or_an_old_client_down(versions: Versions) -> None:
    """A new client refuses form 2 by policy; in form 3 the old one is excluded by name, and the operator sees it."""
    versions.serve("--form", "2")
    status, said = ended(versions.contribute("new", 1))
    assert status == 2
    assert "form 2 of its messages is below 3" in said
    versions.close()
    versions.serve("--form", "3")
    status, said = ended(versions.contribute("old", 0, *TAKES_FORM_2))
    assert status == 2
    assert re.search(r"the session has form 3 .* this version supports form 2; use versions of secagg", said)
    counted = httpx.get(f"{versions.url}/metrics").text
    assert re.search(r'secagg_clients_total\{[^}]*newest_form="2"[^}]*\} 1\b', counted)


def test_a_server_refuses_a_form_that_it_does_not_speak(versions: Versions) -> None:
    for form in ("1", "4"):
        status, said = ended(versions.run("new", "serve", *PLAN, "--out", "mean.npy", "--form", form))
        assert status == 2
        assert f"--form must be an integer between 2 and 3; got {form}" in said
