"""A session's status for its operator, and the host names under which a loopback server answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from secagg.errors import InvalidParameters
from secagg.transport.page import OwnHost
from secagg.transport.proof import Operators
from secagg.transport.server import SumServer
from tests.harness.commands import refusal
from tests.harness.wire_sums import CLIENTS, answer_of, headers_of, holding, in_memory, quick_limits, served

TOKEN = "0123456789abcdef"  # noqa: S105 -- a test's
FAR = "203.0.113.5"


async def ask(server: SumServer, path: str, host: str = "127.0.0.1", **headers: str) -> httpx.Response:
    """Ask a server from a machine."""
    transport = httpx.ASGITransport(app=server.app, client=(host, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://sums") as http:
        return await http.get(path, headers=headers)


async def test_an_operator_sees_how_a_session_stands() -> None:
    async with holding() as (held, task):
        first = (await held.http.get("/status")).json()["a task"]
        assert first["stage"] == {"number": 0, "name": held.session.stage.name}  # type: ignore[union-attr]
        assert 0 < first["seconds_left"] <= 20
        assert first["clients"] == {"taken": 0, "sending": 0, "out": 0, "awaited": 5}
        one, other, *rest = CLIENTS
        answer = answer_of(one, held.session)
        assert await held.post(one, answer) == 202
        assert await held.post(other, b"wrong") == 422
        await held.http.request("DELETE", f"{held.base}/client", headers=headers_of(rest[0]))
        received = len(answer) + len(b"wrong")
        then = (await held.http.get("/status")).json()["a task"]
        assert then["bytes"] == {"received": received, "sent": 0}
        await held.ask(rest[1])
        then = (await held.http.get("/status")).json()["a task"]
        assert then["bytes"] == {"received": received, "sent": len(held.session.invitation)}
        assert then["clients"]["taken"] == 1
        assert then["clients"]["out"] >= 1
        [fault] = then["faults"]
        assert f"client/{other.value}" in fault["culprits"]
        assert fault["sentence"]
        named = (await held.http.get("/status?names")).json()["a task"]["clients"]
        assert named["taken"] == [one.value]
        assert {one.value, rest[0].value}.isdisjoint(named["awaited"])
        for client in rest[1:]:
            await held.post(client)
        await held.post(other)
        await task
        last = (await held.http.get("/status")).json()["a task"]
        assert last["stage"] is None
        assert last["ended"] == "the sum of 4 clients was released"


async def test_a_server_without_a_session_has_no_status() -> None:
    async with in_memory(SumServer(task="sum")) as http:
        assert (await http.get("/status")).json() == {"sum": None}
    async with in_memory(SumServer(limits=quick_limits())) as http:
        assert (await http.get("/status")).json() == {}


async def test_the_status_is_for_this_machine_or_for_the_token() -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    near, behind = SumServer(), SumServer(operators=Operators(is_behind_proxy=True))
    asked = SumServer(operators=Operators(TOKEN, is_behind_proxy=True))
    assert (await ask(near, "/status")).status_code == 200
    assert (await ask(near, "/status", "::1")).status_code == 200
    assert (await ask(near, "/status", FAR)).status_code == 401
    assert (await ask(near, "/status", FAR, authorization="Bearer ")).status_code == 401
    assert (await ask(near, "/metrics", FAR)).status_code == 401
    assert (await ask(behind, "/status")).status_code == 401
    for path in ("/status", "/metrics"):
        for host in ("127.0.0.1", FAR):
            assert (await ask(asked, path, host)).status_code == 401
            assert (await ask(asked, path, host, authorization=f"Bearer {TOKEN}x")).status_code == 401
            assert (await ask(asked, path, host, **bearer)).status_code == 200


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "Forwarded", "Via"]
)
async def test_a_proxy_that_nobody_spoke_of_shows_no_status(header: str) -> None:
    for path in ("/status", "/status?names", "/metrics"):
        assert (await ask(SumServer(), path, **{header: FAR})).status_code == 401


@pytest.mark.wire
async def test_a_request_as_nginx_makes_it_by_default_shows_no_status() -> None:
    async with served(quick_limits()) as (_, port, _path):
        for version, status in ((b"1.0", b"401"), (b"1.1", b"200")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /status HTTP/%b\r\nhost: 127.0.0.1\r\n\r\n" % version)
            assert (await reader.readline())[9:12] == status
            writer.close()


@pytest.mark.parametrize("token", ["short", "with a blank in it", "ä" * 20, "0123456789abcdef\n"])
def test_a_token_that_can_be_guessed_or_does_not_travel_is_refused(token: str) -> None:
    with pytest.raises(InvalidParameters, match="openssl rand"):
        Operators(token)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        *((name, 200) for name in ("127.0.0.1:8750", "localhost", "LOCALHOST:1", "[::1]:8750", "127.0.1.1")),
        *((name, 421) for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8750", "")),
        *((name, 421) for name in ("localhost:8750@evil.example", "127.0.0.1:8750\nevil", "0.0.0.0")),  # noqa: S104
    ],
)
def test_a_server_at_loopback_answers_to_its_own_names(hosts: str, status: int) -> None:
    """A foreign page may point its name to this machine's address; the browser then sends that name."""
    said = list[Any]()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", hosts.encode())]}
    asyncio.run(OwnHost(inner)(scope, None, send))  # type: ignore[arg-type]
    assert said[0]["status"] == status
    said.clear()
    twice = {**scope, "headers": [(b"host", b"localhost"), (b"host", hosts.encode())]}
    asyncio.run(OwnHost(inner)(twice, None, send))  # type: ignore[arg-type]
    assert said[0]["status"] == 421


async def test_a_server_is_ready_while_there_is_a_session() -> None:
    async with in_memory(SumServer(limits=quick_limits())) as http:
        assert ((await http.get("/health")).status_code, (await http.get("/ready")).status_code) == (200, 503)
    async with holding() as (held, _):
        assert ((await held.http.get("/ready")).status_code, (await held.http.get("/health")).text) == (
            200,
            "stage 0\n",
        )


SERVE = ("serve", "--page", "--listen", "127.0.0.1:0")


def test_a_page_refuses_the_hybrid_suite_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert "few browsers have ML-KEM in WebCrypto" in refusal(capsys, *SERVE, "--set", "suite=hybrid")


def test_a_token_comes_from_a_file_that_has_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert "No such file" in refusal(capsys, *SERVE, "--metrics-token", str(file))
    for text in ("", "guess\n", "\xff" * 20):
        file.write_text(text, encoding="latin-1")
        assert "openssl rand" in refusal(capsys, *SERVE, "--metrics-token", str(file))
