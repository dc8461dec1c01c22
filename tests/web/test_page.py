"""The page in Chromium: visitors draw, one leaves, and the others see the sum; a hostile server gets nothing."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from typing import Any, ClassVar
from urllib.parse import quote

import httpx
import pytest

from secagg.transport.page import Paged

pytestmark = pytest.mark.web
LONG = 120_000.0


def draw(tab: Any) -> None:
    box = tab.locator("#drawing").bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    tab.mouse.up()


def tab_of(browser: Any, url: str, **settings: Any) -> Any:
    tab = browser.new_context(**settings).new_page()
    tab.on("pageerror", lambda error: tab.evaluate(f"document.body.dataset.error = {json.dumps(str(error))}"))
    tab.goto(url)
    return tab


def test_three_visitors_see_their_sum(town: Any, browser: Any) -> None:
    url = town.serve("--page")
    tabs = [tab_of(browser, url) for _ in range(3)]
    for tab in tabs:
        draw(tab)
        tab.click("#send")
    for tab in tabs:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        assert tab.inner_text("#say") == "the sum of 3 clients was released"
        assert "3 drawings" in tab.inner_text("#mean-note")
        assert "random" in tab.inner_text("#seen-note")
        assert tab.locator("body").get_attribute("data-error") is None


def test_tabs_of_one_browser_are_visitors_of_their_own_and_rounds_follow_each_other(town: Any, browser: Any) -> None:
    url = town.serve("--page")
    context = browser.new_context()
    tabs = [context.new_page() for _ in range(3)]
    for tab in tabs:
        tab.goto(url)
        draw(tab)
    for _ in range(5):
        for tab in tabs:
            tab.evaluate("document.getElementById('send').click()")
        for tab in tabs:
            tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
            assert tab.inner_text("#say") == "the sum of 3 clients was released"
            assert "3 drawings" in tab.inner_text("#mean-note")


@pytest.mark.parametrize("place", ["a new tab", "an open tab"])
def test_an_invitation_takes_part_once_with_one_drawing(town: Any, browser: Any, place: str) -> None:
    keys = town.keys(6)
    authority = re.search(r"^authority ([0-9a-f]{64})$", (keys / "roster.txt").read_text(), re.MULTILINE)
    assert authority
    url = town.serve("--page", "--set", f"roster={keys / 'roster.txt'}")
    context = browser.new_context()
    context.add_init_script(
        "navigator.storage.persist = async () => { document.body.dataset.persists = 'asked'; return false; };"
    )
    tabs = [context.new_page() for _ in range(6)]
    for number, tab in enumerate(tabs):
        if place == "an open tab":
            tab.goto(url)
        tab.goto(f"{url}/page/#{quote((keys / f'client-{number}.key').read_text())}")
        # A shared screen, a bookmark or the history would leak the key.
        tab.wait_for_url(f"{url}/page/", timeout=LONG)
        draw(tab)
        tab.evaluate("document.getElementById('send').click()")
    for tab in tabs:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        assert tab.inner_text("#say") == "the sum of 6 clients was released"
        # A server that is the authority could fill all other seats: the visitor can compare the authority's key.
        shown = tab.inner_text("#mode")
        assert re.sub(r"(?<=[0-9a-f]{4}) (?=[0-9a-f]{4})", "", shown).count(authority[1][:32]) == 1
        assert "need not be trusted" not in shown
        # The ledger must survive a browser that runs out of space.
        assert tab.locator("body").get_attribute("data-persists") == "asked"
    tabs[0].evaluate("document.getElementById('send').click()")
    tabs[0].wait_for_selector("body[data-ended=yes]", timeout=LONG)
    assert "already sent" in tabs[0].inner_text("#say")


def invited(town: Any, context: Any, count: int) -> list[Any]:
    """Open tabs with an invitation each, and a drawing; the first two have the same."""
    keys = town.keys(count - 1)
    patience = ("--patience", "1", "--exchange-seconds", "30")
    url = town.serve("--page", "--set", f"roster={keys / 'roster.txt'}", *patience)
    tabs = [context.new_page() for _ in range(count)]
    for number, tab in enumerate(tabs):
        tab.goto(f"{url}/page/#{quote((keys / f'client-{max(0, number - 1)}.key').read_text())}")
        tab.wait_for_url(f"{url}/page/", timeout=LONG)
        draw(tab)
    return tabs


def said_at_the_end(tabs: list[Any]) -> list[str]:
    for tab in tabs:
        tab.evaluate("document.getElementById('send').click()")
    for tab in tabs:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
    return [tab.inner_text("#say") for tab in tabs]


def test_two_tabs_with_one_invitation_at_once_take_part_at_most_once(town: Any, browser: Any) -> None:
    tabs = invited(town, browser.new_context(), 7)
    ended = said_at_the_end(tabs)
    assert sum(each.startswith("the sum of") for each in ended[:2]) <= 1
    assert set(ended[2:]) <= {"the sum of 5 clients was released", "the sum of 6 clients was released"}


def test_a_browser_without_room_for_what_is_spent_sends_no_drawing(town: Any, browser: Any) -> None:
    """The disk is full only for one visitor, whose tab stops before its upload."""
    tabs = invited(town, browser.new_context(), 7)[1:]
    tabs[0].evaluate(
        """() => {
        IDBObjectStore.prototype.put = () => { throw new DOMException("the disk is full", "QuotaExceededError"); };
    }"""
    )
    ended = said_at_the_end(tabs)
    assert ended[0] == "This browser cannot take part."
    assert "Nothing yet" in tabs[0].inner_text("#seen-note")
    assert set(ended[1:]) == {"the sum of 5 clients was released"}


def test_a_tab_that_is_closed_has_dropped_out_and_the_next_sum_begins(town: Any, browser: Any) -> None:
    url = town.serve("--page", "--clients", "5", "--patience", "1", "--exchange-seconds", "30")
    tabs = [tab_of(browser, url) for _ in range(5)]
    for tab in tabs:
        draw(tab)
        tab.click("#send")
    tabs[0].wait_for_selector("#stages li.done", timeout=LONG)
    tabs.pop(0).close()
    ended = set[str]()
    for tab in tabs:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        ended.add(tab.inner_text("#say"))
    assert ended <= {"the sum of 4 clients was released", "the sum of 5 clients was released"}
    description = httpx.get(f"{url}/v1/session", timeout=60).json()
    assert description["protocol"] == "pairwise"


def test_a_tab_that_leaves_before_the_others_came_gives_its_seat_back(town: Any, browser: Any) -> None:
    """A failed sum is followed by the next, in which the remaining visitors take part automatically."""
    url = town.serve("--page")
    tabs = [tab_of(browser, url) for _ in range(4)]
    for tab in tabs:
        draw(tab)
    tabs[0].click("#send")
    tabs[0].get_by_text("1 of up to 3 visitors are here. This step ends in").wait_for(timeout=LONG)
    began = time.monotonic()
    tabs[0].goto("about:blank")
    for tab in tabs[1:]:
        tab.click("#send")
    for tab in tabs[1:]:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        assert tab.inner_text("#say") == "the sum of 3 clients was released"
    assert time.monotonic() - began < 30
    # A visitor that has sent something is missing only in its sum.
    with tabs[1].expect_request("**/answers/1", timeout=LONG):
        tabs[1].route("**/answers/1", lambda _: None)
        for tab in tabs[1:]:
            tab.evaluate("document.getElementById('send').click()")
    tabs[1].goto("about:blank")
    tabs[2].get_by_text("You take part in the next sum: stay here.").wait_for(timeout=LONG)
    tabs[1].unroute_all()
    tabs[1].goto(url)
    draw(tabs[1])
    tabs[1].click("#send")
    for tab in tabs[1:]:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        assert tab.inner_text("#say") == "the sum of 3 clients was released"
    assert time.monotonic() - began < 60


def test_the_page_is_drawn_by_keyboard_and_asks_nowhere_else(town: Any, browser: Any) -> None:
    url = town.serve("--page")
    tab = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark").new_page()
    asked = list[str]()
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(url)
    # On a phone the drawing fills the width, and its button is on the first screen.
    assert tab.locator("#drawing").bounding_box()["width"] >= 320
    button = tab.locator("#send").bounding_box()
    assert button["y"] + button["height"] <= 800
    tab.focus("#drawing")
    for key in ("ArrowLeft", "ArrowUp", " "):
        tab.keyboard.press(key)
    tab.click("#send")
    tab.wait_for_selector("#stages li.now", timeout=LONG)
    assert all(each.startswith(url) for each in asked)
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_visitor_without_a_seat_waits_for_the_next_sum(town: Any, browser: Any) -> None:
    url = town.serve("--page")
    tabs = [tab_of(browser, url) for _ in range(4)]
    for tab in tabs:
        draw(tab)
    for tab in tabs[:3]:
        tab.click("#send")
        # The last one's sum may be over before the test looks.
        tab.wait_for_selector("#stages li.now, body[data-ended=yes]", timeout=LONG)
    tabs[3].click("#send")
    for tab in tabs[:3]:
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
    for tab in tabs[:2]:
        tab.click("#send")
    for tab in (*tabs[:2], tabs[3]):
        tab.wait_for_function("document.getElementById('mean-note').textContent.includes('3 drawings')", timeout=LONG)
        tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
        assert tab.inner_text("#say") == "the sum of 3 clients was released"


def test_the_address_of_the_page_is_copied(town: Any, browser: Any) -> None:
    url = town.serve("--page")
    tab = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    tab.goto(url)
    assert tab.inner_text("#link") == f"{url}/page/"
    tab.click("#copy")
    tab.get_by_text("The address is copied.").wait_for(timeout=LONG)
    assert tab.evaluate("navigator.clipboard.readText()") == f"{url}/page/"


def test_the_page_has_a_policy_and_one_form(town: Any) -> None:
    url = town.serve("--page")
    page = httpx.get(f"{url}/page/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert httpx.get(url, follow_redirects=False).status_code == 307
    for path in ("/page/index.html", "/tests/contribute.js", "/page/%2e%2e/wire.js", "/package.json"):
        assert httpx.get(url + path).status_code == 404
    files = Paged(None)._files  # type: ignore[arg-type]  # noqa: SLF001 -- what is served
    assert sum(len(file.packed) for file in files.values()) <= 60_000
    assert not any("test" in name for name in files)


def test_pages_elsewhere_ask_only_where_they_are_named(town: Any) -> None:
    url = town.serve(
        "--values", "1", "--clip", "1", "--clients", "3", "--out", "x.npy", "--allow-origin", "https://a.example"
    )
    asked = {"origin": "https://a.example"}
    for path in ("/v1/session", "/v1/sessions/" + "0" * 32 + "/message", "/nowhere"):
        found = httpx.get(url + path, headers=asked, timeout=60)
        assert found.headers["access-control-allow-origin"] == "https://a.example"
        assert found.headers["access-control-expose-headers"] == "secagg-stage"
    assert httpx.options(f"{url}/v1/session", headers=asked).status_code == 204
    for origin in ("https://b.example", "https://a.example.b.example", "null"):
        assert "access-control-allow-origin" not in httpx.get(f"{url}/v1/session", headers={"origin": origin}).headers


class Hostile(BaseHTTPRequestHandler):
    """Serves an honest server's page, and its own answers."""

    honest: ClassVar[str] = ""
    description: ClassVar[dict[str, Any]] = {}
    message: ClassVar[bytes] = b""
    heard: ClassVar[list[tuple[str, bytes]]] = []
    stages: ClassVar[Iterator[int]] = repeat(0)

    def do_GET(self) -> None:
        if self.path.startswith("/v1/session") and not self.path.startswith("/v1/sessions"):
            self._answer(200, json.dumps(self.description).encode(), "application/json")
        elif self.path.endswith("/message"):
            self._answer(200, self.message, "application/octet-stream", stage=str(next(self.stages)))
        else:
            found = httpx.get(self.honest + self.path)
            self._answer(found.status_code, found.content, found.headers.get("content-type", "text/plain"))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.heard.append((self.path, body))
        self._answer(201 if self.path.endswith("/seats") else 202, b"0", "text/plain")

    def do_DELETE(self) -> None:
        self.heard.append((self.path, b""))
        self._answer(204, b"", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str, stage: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if stage:
            self.send_header("secagg-stage", stage)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hostile(town: Any) -> Iterator[str]:
    Hostile.honest, Hostile.heard, Hostile.stages = town.serve("--page"), [], repeat(0)
    Hostile.description = httpx.get(f"{Hostile.honest}/v1/session", timeout=60).json()
    seat = httpx.post(f"{Hostile.honest}/v1/sessions/{Hostile.description['session']}/seats", content=b"1" * 130)
    authorization = {"authorization": f"Secagg {seat.text}:{'1' * 130}"}
    path = f"{Hostile.honest}/v1/sessions/{Hostile.description['session']}/message"
    Hostile.message = httpx.get(path, headers=authorization, timeout=60).content
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/page/"
    server.shutdown()
    server.server_close()


def altered(terms: str, **changes: Any) -> dict[str, Any]:
    return {**Hostile.description, "terms": json.dumps(json.loads(terms) | changes, sort_keys=True)}


@pytest.mark.parametrize(
    "attack",
    [
        *("more clients", "another clip", "another round", "another task", "a cohort of two", "garbage", "a flood"),
        *("another model", "a mode that it says", "markup"),
    ],
)
def test_a_hostile_server_gets_no_drawing(hostile: str, browser: Any, attack: str) -> None:
    terms, message = Hostile.description["terms"], bytearray(Hostile.message)
    match attack:
        case "more clients":
            Hostile.description = altered(terms, all_clients=1000)
        case "another clip":
            Hostile.description = altered(terms, clip=1000.0)
        case "another round":
            Hostile.description = {**Hostile.description, "round_number": "1"}
        case "another task":
            Hostile.description = {**Hostile.description, "task": "another"}
        case "a cohort of two":
            # The offer's fields are at fixed places after the task: the minimum cohort is the 13th.
            at = 7 + 1 + 4 + len(Hostile.description["task"]) + 32 + 8 + 4 + 3 + 16
            assert int.from_bytes(message[at : at + 4], "big") >= 3
            message[at : at + 4] = (2).to_bytes(4, "big")
            Hostile.message = bytes(message)
        case "another model":
            message[7 + 1 + 4 + len(Hostile.description["task"])] ^= 1
            Hostile.message = bytes(message)
        case "a mode that it says":
            Hostile.description = {**Hostile.description, "mode": "active"}
        case "markup":
            Hostile.description = {**Hostile.description, "task": "<img src=x onerror=document.body.dataset.error=1>"}
        case "garbage":
            Hostile.message = b"SAGG\x01\x00\x10" + bytes(100)
        case _:
            Hostile.message = bytes(10_000_000)
    tab = tab_of(browser, hostile)
    draw(tab)
    tab.click("#send")
    tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
    assert tab.inner_text("#say").startswith("Nothing more was sent")
    assert tab.locator("body").get_attribute("data-error") is None
    assert "certified:" not in tab.inner_text("#mode")
    assert not [path for path, _ in Hostile.heard if "/answers/" in path]
    assert "Nothing yet" in tab.inner_text("#seen-note")


def test_a_second_message_that_differs_gets_no_second_answer(hostile: str, browser: Any) -> None:
    """The page answers the offer once; the same offer as the next stage's message is not expected."""
    Hostile.stages = chain([0, 0], repeat(1))
    tab = tab_of(browser, hostile)
    draw(tab)
    tab.click("#send")
    tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
    answers = [path for path, _ in Hostile.heard if "/answers/" in path]
    assert answers
    assert {path.rpartition("/")[2] for path in answers} == {"0"}
    assert len({body for path, body in Hostile.heard if "/answers/" in path}) == 1
    assert tab.inner_text("#say").startswith("Nothing more was sent")


def test_a_stage_before_the_last_one_gets_no_answer(hostile: str, browser: Any) -> None:
    Hostile.stages = chain([1, 1], repeat(0))
    tab = tab_of(browser, hostile)
    draw(tab)
    tab.click("#send")
    tab.wait_for_selector("body[data-ended=yes]", timeout=LONG)
    assert tab.inner_text("#say") == "Nothing more was sent: a stage was requested after a later one."
    assert {path.rpartition("/")[2] for path, _ in Hostile.heard if "/answers/" in path} == {"1"}
