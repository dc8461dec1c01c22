"""The client's tests that only need files, including the interop suite, run in Chromium as in Node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.web
HOME = "/clients/web/tests/"
SUITES = ("interop", "vectors", "one_message", "hostile_offers")
OF_NODE = ("node:assert/strict", "node:fs", "node:test", "node:url")


def page_of(suite: str) -> str:
    names = json.dumps({"imports": dict.fromkeys(OF_NODE, f"{HOME}in_browser.js")})
    return (
        f'<!doctype html><script type="importmap">{names}</script><script type="module">'
        f'import {{ playAll }} from "{HOME}in_browser.js"; await import("{HOME}{suite}.test.js");'
        "window.outcome = await playAll();</script>"
    )


def play(browser: Any, files: Any, suite: str) -> dict[str, Any]:
    files.pages["/play"] = page_of(suite)
    tab = browser.new_page()
    errors = list[str]()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"{files.url}/play")
    tab.wait_for_function("window.outcome", timeout=120_000)
    assert not errors
    found: dict[str, Any] = tab.evaluate("window.outcome")
    return found


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_in_chromium_with_the_count_of_node(
    repository: Path, browser: Any, files: Any, suite: str, capsys: pytest.CaptureFixture[str]
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


def test_a_suite_with_other_bytes_fails_in_chromium(browser: Any, files: Any) -> None:
    files.altered = "/interop/3/bind/bound.json"
    failed = play(browser, files, "interop")["failed"]
    assert len(failed) == 1
    assert failed[0].startswith("bind/bound")
