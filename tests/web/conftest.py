"""Servers, clients in Python and JavaScript, and tabs of Chromium, in separate processes on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SECONDS = 120.0
Update = list[float]


class Town:
    """A folder with keys, updates and logs, and its processes."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository, self.folder = repository, folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(repository),
            "SECAGG_LEDGER_DIRECTORY": str(folder / "ledgers"),
        }
        self._running = list[subprocess.Popen[str]]()

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the library."""
        return self._started([sys.executable, "-m", "secagg.cli", *arguments])

    def serve(self, *arguments: str) -> str:
        """Start a server, and return its address."""
        server = self.command("serve", "--listen", "127.0.0.1:0", *arguments)
        assert server.stdout is not None
        for line in server.stdout:
            if (found := re.search(r"listening at (\S+?:\d+)", line)) is not None:
                return f"http://{found[1]}"
        raise AssertionError(f"the server ended with {server.wait()}")

    def contribute(self, url: str, update: Update, *who: str) -> subprocess.Popen[str]:
        """Start a client in Python."""
        file = self.folder / f"{len(self._running)}.npy"
        np.save(file, np.array(update))
        return self.command("contribute", url, "--update", str(file), *who)

    def node(self, url: str, update: Update | str, *options: str) -> subprocess.Popen[str]:
        """Start a client in Node; an update is values, or ``ramp:COUNT``."""
        values = update if isinstance(update, str) else ",".join(map(str, update))
        script = self.repository / "clients" / "web" / "tests" / "contribute.js"
        return self._started(["node", str(script), url, *options, "--", values])

    def keys(self, clients: int) -> Path:
        """Make keys for ``clients`` clients."""
        done = self.command("keys", "--clients", str(clients), "--out", str(self.folder / "keys"))
        assert done.wait(SECONDS) == 0
        return self.folder / "keys"

    def _started(self, arguments: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 -- fixed commands
            arguments,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        return process

    def close(self) -> None:
        """End everything."""
        for process in self._running:
            process.kill()
            process.communicate()


class Files:
    """A server of the repository's files, of folders' lists as JSON, and of a test's pages."""

    def __init__(self, repository: Path) -> None:
        self.pages, self.altered = dict[str, str](), ""
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                place = Path(self.translate_path(self.path))
                if (page := outer.pages.get(self.path)) is not None:
                    self._answer(page.encode(), "text/html")
                elif place.is_dir():
                    self._answer(json.dumps([each.name for each in place.iterdir()]).encode(), "application/json")
                elif self.path == outer.altered:
                    self._answer(re.sub(rb'(": ?")([0-9a-f])', rb"\1f\2", place.read_bytes()), "application/json")
                else:
                    super().do_GET()

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(repository)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def said_by(process: subprocess.Popen[str]) -> str:
    """Wait for a process, and return its output."""
    return process.communicate(timeout=SECONDS)[0]


def outcomes_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for clients in Node, and return each one's outcome."""
    return [json.loads(line) for line in said_by(process).splitlines() if line.startswith("{")]


@pytest.fixture
def town(repository: Path, tmp_path: Path) -> Iterator[Town]:
    assert shutil.which("node"), "Node 20 or newer is needed; `.ci/web_tools` installs it on Debian"
    made = Town(repository, tmp_path)
    yield made
    made.close()


@pytest.fixture
def files(repository: Path) -> Iterator[Files]:
    made = Files(repository)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- only `make web` has it

    path = shutil.which("chromium")
    assert path, "Chromium is needed; `.ci/web_tools` installs it on Debian"
    with sync_playwright() as playwright:
        # Tests may run as root, where Chromium has no sandbox.
        opened = playwright.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def outcomes() -> Callable[[subprocess.Popen[str]], list[dict[str, Any]]]:
    return outcomes_of


@pytest.fixture
def said() -> Callable[[subprocess.Popen[str]], str]:
    return said_by
