"""Connections: slow ones, silent ones, thousands of them, and with wrong certificates."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.transport.client import Outcome, Patience, contribute
from secagg.transport.listener import allow_connections, listening
from secagg.transport.proof import Prover
from secagg.transport.server import SumServer
from secagg.transport.tls import Credentials, ServerTls, client_context
from tests.harness.certificates_of_tests import make_credentials
from tests.harness.planted import always
from tests.harness.wire_sums import (
    CLIENTS,
    SUBJECT,
    answer_of,
    headers_of,
    joining,
    plain_session,
    quick_limits,
    served,
    taking_part,
    until,
)

pytestmark = pytest.mark.wire
ONE = CLIENTS[0]
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


async def said_to(port: int, *pieces: bytes) -> bytes:
    """Send pieces, each after an answer to the previous one; return all received bytes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(60):
            for number, piece in enumerate(pieces):
                if number:
                    answer += await reader.read(1 << 16)
                writer.write(piece)
                await writer.drain()
            return answer + await reader.read()
    except ConnectionResetError:
        return answer
    finally:
        writer.close()


def head(path: str, *more: str) -> bytes:
    lines = [f"POST {path}/answers/0 HTTP/1.1", "host: x", *(f"{k}: {v}" for k, v in headers_of(ONE).items()), *more]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("piece", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\nslow:"])
async def test_a_head_that_does_not_come_whole_loses_its_connection(piece: bytes) -> None:
    async with served(quick_limits(grace=0.3)) as (_, port, _path):
        assert await said_to(port, piece) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 60_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"GET /health HTTP/1.1\r\nhost: x\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nfolded: a\r\n b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nfolded: a\r\n\tb\r\n\r\n",
    ],
)
@pytest.mark.parametrize("is_second", [False, True])
async def test_a_head_has_one_form_and_a_length(sent: bytes, *, is_second: bool) -> None:
    async with served(quick_limits(grace=2.0)) as (_, port, _path):
        answer = await said_to(port, *([HEALTH] if is_second else []), sent)
        assert b"HTTP/1.1 400" in answer
        assert answer.count(b"HTTP/1.1 200") == is_second


@pytest.mark.parametrize("second", [HEALTH, b"GET /health HTTP/1.1\nhost: x\n\n", b"x"])
async def test_a_request_on_the_heels_of_another_loses_the_connection(second: bytes) -> None:
    async with served(quick_limits(grace=2.0)) as (_, port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH + second)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        # Nor does one pass unchecked after the rest of an unread body.
        answer = await said_to(port, head(path, "content-length: 5", "authorization: x"), b"12345" + second)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


def test_strangers_who_wait_at_the_end_leave_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        server, limits = SumServer(limits=quick_limits(poll=60.0)), quick_limits(poll=60.0)
        async with listening(server.app, "127.0.0.1", 0, limits=limits) as port:
            running = asyncio.create_task(server.run(plain_session(), server.description(SUBJECT, "plain")))
            await until(lambda: server.is_open)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            asked = [
                asyncio.create_task(said_to(port, b"GET /v1/session HTTP/1.1\r\nhost: x\r\n\r\n")) for _ in range(20)
            ]
            await until(lambda: len(vars(server)["_asking"]) == 20)
            await server.told()
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in await asyncio.gather(*asked))

    with caplog.at_level("WARNING"):
        asyncio.run(scene())
    assert not [record for record in caplog.records if record.exc_info or record.name.startswith("uvicorn")]


async def test_a_second_head_on_a_connection_has_no_more_time_than_the_first() -> None:
    async with served(quick_limits(grace=0.5)) as (_, port, _path):
        answer = await said_to(port, HEALTH, b"GET /health HTTP/1.1\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_body_that_dribbles_is_cut_off() -> None:
    limits = quick_limits(grace=0.4)
    async with served(limits) as (_, port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(path, "content-length: 500"))
        # Only the status line: data in transit may reset the connection after it.
        answer = asyncio.create_task(reader.readexactly(len("HTTP/1.1 408")))
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(0.05)
        assert (await answer).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_long_body_is_refused_before_it_is_sent() -> None:
    async with served(quick_limits()) as (server, port, path):
        answer = await said_to(port, head(path, f"content-length: {1 << 40}"))
        assert answer.startswith(b"HTTP/1.1 413")
        answer = await said_to(port, head(path, "content-length: -5"))
        assert answer.startswith(b"HTTP/1.1 400")
        assert "secagg_answer_bytes_total 0" not in server.metrics.text()


async def test_two_lengths_or_a_length_with_chunks_are_one_request_at_most() -> None:
    async with served(quick_limits()) as (_, port, path):
        for more in (
            ("content-length: 5", "content-length: 6"),
            ("content-length: 5", "transfer-encoding: chunked", "transfer-encoding: chunked"),
            ("transfer-encoding: gzip, chunked",),
        ):
            answer = await said_to(port, head(path, *more) + b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer[9:12] in (b"400", b"501"), (more, answer)
            assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_silent_crowd_keeps_nobody_out(tmp_path: Path, is_tls: bool) -> None:  # noqa: FBT001 -- a parameter
    own = make_credentials(tmp_path, "server")
    tls = (ServerTls(own), client_context(own.certificate)) if is_tls else (None, None)
    url = f"http{'s' if is_tls else ''}://127.0.0.1"

    limits = quick_limits(grace=600, connections=50)
    async with served(limits, tls[0]) as (_, port, _path):
        # They receive no byte, so with TLS not even a handshake.
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
        outcomes = await asyncio.gather(
            *(
                contribute(f"{url}:{port}", joining(each), prover=Prover(each, SystemCoins()), tls=tls[1])
                for each in CLIENTS
            )
        )
        assert all(outcome.is_released for outcome in outcomes)
        # The first ones were disconnected; otherwise they would wait for ten minutes.
        async with asyncio.timeout(30):
            for reader, _writer in crowd[:300]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        for _, writer in crowd:
            writer.close()


async def test_a_handshake_that_does_not_come_whole_loses_its_connection(tmp_path: Path) -> None:
    tls = ServerTls(make_credentials(tmp_path, "server"))
    async with served(quick_limits(grace=0.3), tls) as (_, port, _path):
        began = asyncio.get_running_loop().time()
        for piece in (b"", bytes([22, 3, 1, 2, 0, 1]), b"GET / HTTP/1.1\r\n\r\n"):
            assert b"HTTP" not in await said_to(port, piece)
        assert asyncio.get_running_loop().time() - began < 30


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_long_message_is_taken_in_a_client_s_own_time(is_taken: bool) -> None:  # noqa: FBT001 -- a parameter
    whole = 1 << 25

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(whole)})

    limits = replace(quick_limits(grace=0.3), slowest=1 << 10 if is_taken else 1 << 40)
    async with listening(app, "127.0.0.1", 0, limits=limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(1.5)
        with suppress(ConnectionResetError):
            assert (len(await reader.read()) > whole) == is_taken
        writer.close()


async def test_clients_that_wait_are_no_silent_crowd() -> None:
    limits = quick_limits(grace=60, connections=6, poll=60)
    async with served(limits) as (server, port, path):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            for client in CLIENTS[:4]:
                reply = await http.post(
                    f"{path}/answers/0", content=answer_of(client, plain_session()), headers=headers_of(client)
                )
                assert reply.status_code == 202
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            waiting = [
                asyncio.create_task(http.get(f"{path}/message", headers=headers_of(client))) for client in CLIENTS[:4]
            ]
            crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            await taking_part(f"http://127.0.0.1:{port}", CLIENTS[4])
            assert {(await each).status_code for each in waiting} == {200}
            for _, writer in crowd:
                writer.close()
        assert not server.is_open


async def test_five_hundred_clients() -> None:
    clients = [ClientId(number) for number in range(1, 501)]
    limits = quick_limits(seconds=120, connections=2000, bodies=16)
    allow_connections(limits)
    server = SumServer(limits=limits)
    description = server.description(SUBJECT, "plain")
    async with listening(server.app, "127.0.0.1", 0, limits=limits) as port:
        context = client_context()

        async def one(client: ClientId) -> Outcome:
            prover = Prover(client, SystemCoins())
            async with httpx.AsyncClient(verify=context, trust_env=False) as http:
                return await contribute(f"http://127.0.0.1:{port}", joining(client), prover=prover, http=http)

        running = asyncio.create_task(server.run(plain_session(clients), description))
        outcomes = await asyncio.gather(*map(one, clients))
        released = await running
        assert released.aggregate.values[0].tolist() == [500 * 501 // 2] * 4
        assert all(outcome.is_released for outcome in outcomes)


async def test_a_server_says_that_its_system_allows_fewer_connections(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", always((200, 200)))
    monkeypatch.setattr(resource, "setrlimit", always(None))
    for connections, is_said in ((72, False), (73, True)):
        async with served(quick_limits(connections=connections)):
            said = [vars(record)["fields"] for record in caplog.records if record.message == "fewer connections"]
            assert [each["most"] for each in said] == [72] * is_said


async def test_a_sum_over_mutual_tls(tmp_path: Path) -> None:
    server, client, stranger = (make_credentials(tmp_path, name) for name in ("server", "client", "stranger"))

    async with served(quick_limits(), ServerTls(server, client.certificate)) as (_, port, _path):
        url = f"https://127.0.0.1:{port}"

        async def part(number: int, trusted: Path, own: Credentials | None) -> Outcome:
            return await contribute(
                url,
                joining(CLIENTS[number]),
                prover=Prover(CLIENTS[number], SystemCoins()),
                tls=client_context(trusted, own),
                patience=Patience(lost=1),
            )

        for trusted, own in (
            (stranger.certificate, client),
            (server.certificate, None),
            (server.certificate, stranger),
        ):
            with pytest.raises(ConnectionError, match=r"TLS verification failed|is lost"):
                await part(0, trusted, own)
        good = await asyncio.gather(*(part(number, server.certificate, client) for number in range(5)))
        assert all(outcome.is_released for outcome in good)
