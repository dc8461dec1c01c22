"""Peers that block resources: connections, places, time, a disk; and servers that keep a client busy."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.session.roles import Stage
from secagg.transport.client import Outcome, Patience, contribute
from secagg.transport.description import SessionDescription, WireLimits
from secagg.transport.proof import FirstCome, Prover
from secagg.transport.server import SumServer
from tests.harness.wire_sums import (
    ANSWER_BYTES,
    CLIENTS,
    SUBJECT,
    Held,
    answer_of,
    headers_of,
    holding,
    joining,
    past_httpx,
    plain_session,
    quick_limits,
    until,
)

ONE, TWO = CLIENTS[:2]
PATIENT = 60.0
"""Seconds that pass if a defence is missing; a failing test waits for them."""


def patient_limits(**more: float) -> WireLimits:
    """Return limits that disconnect no peer for a minute."""
    return replace(quick_limits(seconds=PATIENT, poll=PATIENT, grace=PATIENT), **more)  # type: ignore[arg-type]


async def chunks(*parts: bytes, then: float = PATIENT) -> AsyncIterator[bytes]:
    """Send parts, then nothing."""
    for part in parts:
        yield part
    await asyncio.sleep(then)


async def post(held: Held, client: ClientId, body: AsyncIterator[bytes], declared: int | None = None) -> int:
    """Send an answer piece by piece, and return the status."""

    async def receive() -> dict[str, Any]:
        part = await anext(body, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    length = () if declared is None else (("content-length", str(declared)),)
    return await past_httpx(held.server, f"{held.base}/answers/0", receive, *length, client=client)


async def test_a_client_that_asks_again_gives_its_older_request_back() -> None:
    async with holding(SumServer(limits=patient_limits())) as (held, _):
        assert await held.post(ONE) == 202
        began = time.monotonic()
        crowd = [asyncio.create_task(held.ask(ONE)) for _ in range(50)]
        await asyncio.wait(crowd[:-1])
        assert {each.result().status_code for each in crowd[:-1]} == {204}
        assert not crowd[-1].done()
        # Another client has its own limit.
        assert (await held.ask(TWO)).status_code == 200
        assert time.monotonic() - began < PATIENT / 2
        crowd[-1].cancel()
        await asyncio.wait(crowd)


async def test_a_long_answer_that_does_not_come_loses_its_place_in_time() -> None:
    limits = patient_limits(grace=0.3, slowest=ANSWER_BYTES / PATIENT, memory=2 * ANSWER_BYTES)
    async with holding(SumServer(limits=limits)) as (held, _):
        began = time.monotonic()
        slow = asyncio.create_task(post(held, ONE, chunks(), declared=ANSWER_BYTES))
        endless = asyncio.create_task(post(held, TWO, chunks()))
        assert await slow == await endless == 408
        assert time.monotonic() - began < PATIENT / 2


async def dribble() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("room", [1 << 30, 6 * ANSWER_BYTES])
@pytest.mark.parametrize("declared", [None, ANSWER_BYTES])
async def test_slow_senders_keep_no_place_from_the_others(room: int, declared: int | None) -> None:
    """Sixteen send a byte now and then, for the whole stage; twenty others are accepted, some of them late."""
    everybody = [ClientId(number) for number in range(36)]

    limits = patient_limits(grace=1.0, slowest=1.0, memory=room)
    async with holding(SumServer(limits=limits), plain_session(everybody)) as (held, _):
        slow = [asyncio.create_task(post(held, client, dribble(), declared)) for client in everybody[:16]]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(PATIENT / 2):
            assert await asyncio.gather(*map(held.post, everybody[16:30])) == [202] * 14
            await asyncio.sleep(0.3)
            assert await asyncio.gather(*map(held.post, everybody[30:])) == [202] * 6
        # If memory has a place for each client of the cohort, none is disconnected.
        assert any(each.done() for each in slow) == (room < 1 << 30)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_senders_as_fast_as_each_other_give_way_once_at_most() -> None:
    sent = dict.fromkeys(CLIENTS[:3], 0)

    async with holding(SumServer(limits=patient_limits(grace=0.5, slowest=100.0, memory=2 * ANSWER_BYTES))) as (
        held,
        _,
    ):

        async def one(client: ClientId) -> int:
            body = answer_of(client, held.session)

            async def slowly() -> AsyncIterator[bytes]:
                sent[client] += 1
                for start in range(0, len(body), 30):
                    yield body[start : start + 30]
                    await asyncio.sleep(0.1)

            while (status := await post(held, client, slowly())) == 408:
                pass
            return status

        assert await asyncio.gather(*map(one, sent)) == [202] * 3
    assert max(sent.values()) == 2


async def test_an_answer_is_no_longer_than_its_stage_has_answers() -> None:
    session = plain_session()
    vars(session)["_stage"] = Stage(name="keys", takes_update=False, per_client=0)
    limits = replace(quick_limits(), answer_bytes=1 << 20, memory=1 << 30)
    async with holding(SumServer(limits=limits), session) as (held, _):
        assert await post(held, ONE, chunks(b"x"), declared=1 << 15) == 413
        assert await post(held, ONE, chunks(*[bytes(1 << 10)] * 17)) == 413
        assert await held.post(ONE) == 202


def test_who_leaves_again_and_again_is_written_down_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with holding(SumServer(limits=patient_limits())) as (held, _):
            dropped = list[ClientId]()
            drop = held.session.drop
            monkey = vars(held.session)

            def counted(client: ClientId) -> None:
                dropped.append(client)
                drop(client)

            monkey["drop"] = counted
            assert await held.post(ONE) == 202
            for _again in range(20):
                reply = await held.http.delete(f"{held.base}/client", headers=headers_of(ONE))
                assert reply.status_code == 204
            assert dropped == [ONE]

    with caplog.at_level("INFO", "secagg.transport"):
        asyncio.run(scene())
    assert sum(record.getMessage() == "client left" for record in caplog.records) == 1


async def test_what_is_read_when_its_stage_closes_takes_no_place_from_the_next() -> None:
    limits = replace(quick_limits(seconds=0.5, poll=PATIENT, grace=PATIENT), memory=4 * ANSWER_BYTES)
    async with holding(SumServer(limits=limits)) as (held, task):
        began = time.monotonic()
        slow = [asyncio.create_task(post(held, client, chunks(b"x"))) for client in CLIENTS[:3]]
        with pytest.raises(ThresholdNotMet):
            await task
        # Two were being read, and the third waited for a place.
        assert {await each for each in slow} <= {409, 410}
        assert time.monotonic() - began < PATIENT / 2


async def test_a_helper_that_is_lost_as_its_stage_is_closed_is_what_ended_the_session() -> None:
    def lost(*_: object) -> None:
        time.sleep(0.5)
        raise ConnectionError("a helper is lost")

    def closed() -> None:
        raise Misuse("no stage is open to close")

    session = plain_session()
    vars(session).update(receive=lost, close_stage=closed)
    async with holding(SumServer(limits=quick_limits(seconds=0.2)), session) as (held, task):
        assert await held.post(ONE) == 503
        with pytest.raises(ConnectionError, match="a helper is lost"):
            await task
        reply = await held.ask(ONE)
        assert (reply.status_code, reply.text) == (
            410,
            "the session ended without a sum: the server or a helper failed\n",
        )


@pytest.mark.parametrize("request_of", ["drop", "message_to"])
async def test_whatever_a_session_raises_ends_it_and_is_no_answer(request_of: str) -> None:
    def lost(*_: object) -> None:
        raise ConnectionError("a helper is lost")

    session = plain_session()
    async with holding(SumServer(limits=quick_limits()), session) as (held, task):
        vars(session)[request_of] = lost
        if request_of == "drop":
            assert await held.post(ONE) == 202  # Until then it may come back.
            await held.http.delete(f"{held.base}/client", headers=headers_of(ONE))
        else:
            assert (await held.ask(ONE)).status_code == 410
        with pytest.raises(ConnectionError, match="a helper is lost"):
            await task


async def test_a_session_that_refuses_to_speak_to_a_client_goes_on() -> None:
    def refused(client: ClientId) -> None:
        raise PeerMisbehaved("this client has no part", reason=Reason.NOT_ELIGIBLE, culprits={client})

    session = plain_session()
    async with holding(SumServer(limits=quick_limits(poll=0.2)), session) as (held, task):
        vars(session)["message_to"] = refused
        assert (await held.ask(ONE)).status_code == 204
        assert await held.post(TWO) == 202
        assert not task.done()


async def test_nobody_but_the_invited_is_read_or_waited_for() -> None:
    server = SumServer(limits=patient_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with holding(server) as (held, _):
        began = time.monotonic()
        stranger = ClientId(77)
        assert (await held.ask(stranger)).status_code == 401
        assert await post(held, stranger, chunks()) == 401
        assert await held.post(ONE) == 202
        assert time.monotonic() - began < PATIENT / 2


async def test_a_crowd_that_waits_for_a_session_keeps_nobody_from_this_one_or_the_next() -> None:
    server = SumServer(limits=patient_limits(connections=6))
    async with holding(server) as (held, task):
        began = time.monotonic()
        after = {"after": held.description.session}
        crowd = [asyncio.create_task(held.http.get("/v1/session", params=after)) for _ in range(30)]
        await until(lambda: sum(each.done() for each in crowd) == 27)
        assert {each.result().status_code for each in crowd if each.done()} == {204}
        assert len(vars(server)["_asking"]) == 3
        assert (await held.http.get("/v1/session")).status_code == 200
        honest = asyncio.create_task(held.http.get("/v1/session", params=after))
        await until(lambda: sum(each.done() for each in crowd) >= 28)
        for client in CLIENTS:
            assert await held.post(client) == 202
        await task
        following = server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(plain_session(), following))
        assert SessionDescription.decode((await honest).content) == following
        assert time.monotonic() - began < PATIENT / 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.gather(*crowd, return_exceptions=True)


def test_repeated_requests_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "secagg.transport")

    async def scene() -> str:
        async with holding() as (held, _):
            assert (await held.ask(ONE)).status_code == 200
            for _ in range(20):
                reply = await held.http.get(f"{held.base}/message", headers=headers_of(ONE, bytes([1]) * 65))
                assert reply.status_code == 401
                assert await held.post(ONE, stage=7) == 400
            return (await held.http.get("/metrics")).text

    metrics = asyncio.run(scene())
    assert len(caplog.records) < 6
    assert 'secagg_strangers_total{task="a task"} 20' in metrics
    assert 'secagg_answers_total{task="a task",verdict="wrong"} 20' in metrics


async def test_no_path_leads_elsewhere() -> None:
    async with holding() as (held, _):
        for path in (f"{held.base}/message/", "/v1/session/", "//evil.example/v1/session/", "/metrics/"):
            reply = await held.http.get(path, headers={**headers_of(ONE), "host": "evil.example"})
            assert reply.status_code == 404
            assert "location" not in reply.headers


Reaction = Callable[[str, str], tuple[int, dict[str, str], AsyncIterator[bytes]]]
DESCRIPTION = SessionDescription(
    session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
)


async def once(body: bytes) -> AsyncIterator[bytes]:
    yield body


@asynccontextmanager
async def hostile(react: Reaction) -> AsyncGenerator[tuple[str, list[str]]]:
    """Listen on a socket, and react to each request by method and path; yields the address and the requests."""
    asked = list[str]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path = head.split(" ")[:2]
            asked.append(f"{method} {path}")
            length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
            await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
            status, headers, body = react(method, path)
            lines = [f"HTTP/1.1 {status} x", "connection: close", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            async for part in body:
                writer.write(part)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client has disconnected.
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    tasks = asyncio.all_tasks()
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        rest = asyncio.all_tasks() - tasks
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def part(url: str, patience: Patience | None = None) -> Outcome:
    """Take part for as long as a client's patience."""
    return await contribute(url, joining(ONE), prover=Prover(ONE, SystemCoins()), patience=patience)


@pytest.mark.parametrize("kind", ["description", "message", "answer"])
async def test_a_server_that_has_nothing_new_makes_no_client_spin(kind: str) -> None:
    invitation = plain_session().invitation

    def react(method: str, path: str) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        if path == "/v1/session":
            return (204, {}, once(b"")) if kind == "description" else (200, {}, once(DESCRIPTION.encode()))
        if method == "POST":
            return 409, {}, once(b"late")
        if kind == "message":
            return 204, {}, once(b"")
        return 200, {"secagg-stage": "0"}, once(invitation)

    async with hostile(react) as (url, asked):
        task = asyncio.create_task(part(url))
        await asyncio.sleep(1.5)
        assert 2 <= len(asked) < 24
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["description", "refusal"])
async def test_only_a_message_may_be_long(kind: str) -> None:
    async def zeros() -> AsyncIterator[bytes]:
        for _ in range(1 << 10):
            yield bytes(1 << 16)

    def react(method: str, path: str) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        del method
        if path == "/v1/session" and kind == "refusal":
            return 200, {}, once(DESCRIPTION.encode())
        return (200 if kind == "description" else 403), {}, zeros()

    async with hostile(react) as (url, _):
        with pytest.raises(MalformedMessage, match="at most 1048576 bytes"):
            await part(url)


async def test_a_server_that_dribbles_is_given_up() -> None:
    async def dribble() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    def react(method: str, path: str) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        del method
        return 200, {"secagg-stage": "0"}, once(DESCRIPTION.encode()) if path == "/v1/session" else dribble()

    async with hostile(react) as (url, _), asyncio.timeout(PATIENT):
        with pytest.raises(ConnectionError, match=r"is lost \(the server's answer arrives too slowly"):
            await part(url, Patience(lost=0.5, poll=0.5))


@pytest.mark.parametrize("said", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"x"])
async def test_a_server_that_never_comes_to_an_answer_is_given_up(said: bytes) -> None:
    """Interim responses, or the bytes of a head, one after the other; each arrives in time."""
    over = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if said == b"x":
            writer.write(b"HTTP/1.1 200 OK\r\nendless: ")
        with suppress(OSError):
            while not over.is_set():
                writer.write(said)
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENT / 2):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionError, match=r"is lost \(the server's answer arrives too slowly"):
            await part(url, Patience(lost=0.5, poll=0.5))
        over.set()
        await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        *((Patience(), name) for name in ("lost", "poll", "slowest")),
        *((WireLimits(), f) for f in ("answer_bytes", "memory", "grace", "slowest", "poll", "connections")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_limits_are_positive_numbers(limits: Any, name: str) -> None:
    # A patience of zero is valid.
    for wrong in (float("nan"), *((0, -1) if isinstance(limits, WireLimits) else ())):
        with pytest.raises(InvalidParameters, match="positive"):
            replace(limits, **{name: wrong})


async def test_a_client_that_is_told_to_wait_is_patient() -> None:
    asks = list[float]()

    def react(method: str, path: str) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        del method
        if path == "/v1/session":
            return 200, {}, once(DESCRIPTION.encode())
        asks.append(time.monotonic())
        is_over = asks[-1] - asks[0] > 1.5
        return (410 if is_over else 429), {}, once(b"it is over" if is_over else b"being read")

    async with hostile(react) as (url, _):
        outcome = await part(url, Patience(lost=1.0))
        assert outcome.sentence == "it is over"


@pytest.mark.parametrize("url", ["https://me:word@sums.example", "https://sums.example?a=b", "https://me@sums.example"])
def test_an_address_holds_no_password(url: str) -> None:
    with pytest.raises(InvalidParameters, match="no password and no query") as caught:
        asyncio.run(part(url))
    assert "word@" not in str(caught.value)


async def test_refused_answers_do_not_stay_in_memory() -> None:
    """Each client's fault stays in the session, the operator's status and the log; its 2 MiB do not."""
    length = 2 << 20
    limits = replace(quick_limits(), answer_bytes=length, memory=1 << 30)
    async with holding(SumServer(limits=limits)) as (held, _):
        assert await held.post(ONE, bytes(8)) == 422
        gc.collect()
        tracemalloc.start()
        try:
            for client in CLIENTS:
                assert await held.post(client, answer_of(client, held.session)[:-1] + bytes(length >> 1)) == 422
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(held.session.faults) == len(CLIENTS) + 1
        assert kept < length >> 1
