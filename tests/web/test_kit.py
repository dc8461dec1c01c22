"""The tests of the client that need files alone, the kit first among them, played in Chromium as in Node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytestmark = pytest.mark.web
HOME = "/clients/web/tests/"
SUITES = ("kit", "vectors", "one_message", "hostile_offers")
OF_NODE = ("node:assert/strict", "node:fs", "node:test", "node:url")


class Files(SimpleHTTPRequestHandler):
    """Serves the repository, lists of folders as JSON, and a page for each suite; a file may be altered."""

    altered: ClassVar[str] = ""

    def do_GET(self) -> None:
        place = Path(self.translate_path(self.path))
        if self.path.startswith("/play/"):
            self._answer(page_of(self.path.removeprefix("/play/")).encode(), "text/html")
        elif place.is_dir():
            self._answer(json.dumps([each.name for each in place.iterdir()]).encode(), "application/json")
        elif self.path == self.altered:
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


def page_of(suite: str) -> str:
    names = json.dumps({"imports": dict.fromkeys(OF_NODE, f"{HOME}in_browser.js")})
    return (
        f'<!doctype html><script type="importmap">{names}</script><script type="module">'
        f'import {{ playAll }} from "{HOME}in_browser.js"; await import("{HOME}{suite}.test.js");'
        "window.outcome = await playAll();</script>"
    )


@pytest.fixture
def files(repository: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(repository)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    Files.altered = ""


def play(browser: Any, url: str, suite: str) -> dict[str, Any]:
    tab = browser.new_page()
    errors = list[str]()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"{url}/play/{suite}")
    tab.wait_for_function("window.outcome", timeout=120_000)
    assert not errors
    found: dict[str, Any] = tab.evaluate("window.outcome")
    return found


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_in_chromium_with_the_count_of_node(
    repository: Path, browser: Any, files: str, suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(  # noqa: S603 -- a fixed command
        ["node", "--test", "--test-reporter=tap", f".{HOME}{suite}.test.js"],  # noqa: S607 -- whichever Node is here
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    counted = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert counted is not None
    outcome = play(browser, files, suite)
    assert outcome["failed"] == []
    assert outcome["played"] == int(counted[1]) > 0
    with capsys.disabled():
        sys.stdout.write(f"\n{suite}: {counted[1]} in Node, {outcome['played']} in Chromium {browser.version}")


def test_a_kit_with_other_bytes_fails_in_chromium(browser: Any, files: str) -> None:
    Files.altered = "/kit/bind/bound.json"
    failed = play(browser, files, "kit")["failed"]
    assert len(failed) == 1
    assert failed[0].startswith("bind/bound")
