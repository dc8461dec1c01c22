"""Answers to valid requests and to those of hostile clients, over HTTP without sockets."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import logging
import re
from argparse import Namespace
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from secagg import wire
from secagg.cli.shared import JsonLines
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerError, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession
from secagg.session.run import SimulatedKeys
from secagg.transport import client as requests
from secagg.transport import proof
from secagg.transport.client import Outcome, Patience, Refused, contribute
from secagg.transport.description import BACK_SECONDS, SessionDescription
from secagg.transport.proof import Certified, FirstCome, Prover, header_of, read_header
from secagg.transport.server import SumServer
from tests.harness.wire_sums import (
    ANSWER_BYTES,
    CLIENTS,
    PROOF,
    SUBJECT,
    answer_of,
    disconnected,
    headers_of,
    holding,
    in_memory,
    joining,
    past_httpx,
    plain_session,
    quick_limits,
    taking_part,
    until,
)

ONE, TWO = CLIENTS[:2]
STRANGER = bytes([1]) * 65
DESCRIPTION = SessionDescription(
    session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
)
WITHOUT_FORM = json.dumps(
    {"session": "0" * 32, "protocol": "plain", "task": "t", "mode": "active", "round_number": "1", "answer_bytes": 9}
    | {"terms": "{}"}
).encode()


def everybody(http: httpx.AsyncClient) -> list[Coroutine[Any, Any, Outcome]]:
    return [taking_part("http://sums", client, http=http) for client in CLIENTS]


async def test_a_sum_over_http_is_that_of_its_updates() -> None:
    server = SumServer(limits=quick_limits())
    async with in_memory(server) as http:
        description = server.description(SUBJECT, "plain", {"clip": 1.0})
        running = asyncio.create_task(server.run(plain_session(), description))
        outcomes = await asyncio.gather(*everybody(http))
        released = await running
        assert released.aggregate.values[0].tolist() == [15] * 4
        assert released.counted == frozenset(CLIENTS)
        for outcome in outcomes:
            assert outcome.is_released
            assert outcome.sentence == "the sum of 5 clients was released"
            assert outcome.description == description
        await server.told()


async def test_sessions_follow_one_another_and_a_client_waits_for_the_next() -> None:
    server = SumServer(limits=quick_limits())
    async with in_memory(server) as http:
        first = server.description(SUBJECT, "plain")
        await asyncio.gather(server.run(plain_session(), first), *everybody(http))
        waiting = asyncio.create_task(http.get("/v1/session", params={"after": first.session}))
        second = server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(plain_session(), second))
        assert SessionDescription.decode((await waiting).content) == second
        with pytest.raises(Misuse, match="one session at a time"):
            await server.run(plain_session(), first)
        running.cancel()


async def test_a_server_that_holds_nothing_yet_sends_nobody_away() -> None:
    async with in_memory(SumServer(limits=quick_limits())) as http:
        reply = await http.get(f"/v1/sessions/{bytes(16).hex()}/message", headers=headers_of(ONE))
        assert reply.status_code == 503


async def test_a_client_that_leaves_is_told_of_and_the_others_go_on() -> None:
    async with holding() as (held, task):
        with pytest.raises(Misuse, match="training failed"):
            await taking_part("http://sums", ONE, failing, held.http)
        for client in CLIENTS[1:]:
            assert await held.post(client) == 202
        assert (await task).counted == frozenset(CLIENTS[1:])


def failing(description: SessionDescription, suspended: Secret | None) -> ClientSession:
    session = joining(ONE)(description, suspended)

    def answer(message: bytes) -> bytes:
        del message
        raise Misuse("training failed")

    session.answer = answer  # type: ignore[method-assign]
    return session


def test_a_client_that_refuses_the_description_comes_back_with_other_options() -> None:
    def refusing(description: SessionDescription, suspended: Secret | None) -> ClientSession:
        del description, suspended
        raise InvalidParameters("another task")

    async def scene() -> None:
        async with holding() as (held, task):
            with pytest.raises(InvalidParameters, match="another task"):
                await taking_part("http://sums", ONE, refusing, held.http)
            for client in CLIENTS:
                assert await held.post(client) == 202
            assert (await task).counted == frozenset(CLIENTS)

    asyncio.run(scene())


async def test_a_stage_with_too_few_ends_and_everybody_is_told_why() -> None:
    server = SumServer(limits=quick_limits(seconds=0.3))
    async with holding(server) as (held, task):
        assert await held.post(ONE) == 202
        with pytest.raises(ThresholdNotMet):
            await task
        reply = await held.ask(ONE)
        assert reply.status_code == 410
        assert "not enough clients: 3 must answer (plain upload), 1 did" in reply.text
        assert (await held.http.get("/health")).text == "idle\n"


async def test_an_answer_is_taken_once_and_its_repeat_is_not_read() -> None:
    async with holding() as (held, _):
        assert await held.post(ONE) == 202
        assert await held.post(ONE) == 208
        assert await held.post(ONE, b"another one") == 208


async def test_an_answer_that_does_not_verify_puts_nobody_out() -> None:
    async with holding() as (held, task):
        assert await held.post(ONE, answer_of(TWO, held.session)) == 422
        assert (await held.ask(ONE)).status_code == 200
        for client in CLIENTS:
            assert await held.post(client) == 202
        assert (await task).counted == frozenset(CLIENTS)


async def test_a_second_client_cannot_take_the_name_of_the_first() -> None:
    async with holding() as (held, _):
        assert (await held.ask(ONE)).status_code == 200
        for method, path in (("GET", "message"), ("POST", "answers/0"), ("DELETE", "client")):
            reply = await held.http.request(
                method,
                f"{held.base}/{path}",
                headers=headers_of(ONE, STRANGER),
                content=b"x" if path[0] == "a" else None,
            )
            assert reply.status_code == 401
        assert await held.post(ONE) == 202


def test_a_certified_name_is_proved_by_its_key_for_one_session() -> None:
    coins = SystemCoins()
    keys = SimulatedKeys(coins)
    known = {client: keys.of(client)[1] for client in CLIENTS}
    one, other = (replace(DESCRIPTION, task=task).encode() for task in ("hospital", "weather"))
    provers = {client: Prover(client, coins, keys.of(client)[0]) for client in CLIENTS}
    admission = Certified(keys.authority.public_key, known)
    proof = provers[ONE].proof(one)
    assert admission.admits(one, ONE, proof)
    assert admission.admits(one, ONE, proof)
    assert not admission.admits(one, TWO, proof)
    assert not admission.admits(one, ONE, provers[TWO].proof(one))
    assert not admission.admits(other, ONE, proof)
    assert not admission.admits(one, ClientId(77), proof)
    stranger = SimulatedKeys(coins)
    assert not Certified(keys.authority.public_key, {ONE: stranger.of(ONE)[1]}).admits(
        one, ONE, Prover(ONE, coins, stranger.of(ONE)[0]).proof(one)
    )
    assert admission.claim_of(ONE) is None


def test_a_client_that_was_upgraded_within_a_session_still_proves_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SimulatedKeys(SystemCoins())
    key, certificate = keys.of(ONE)
    admission, shown = Certified(keys.authority.public_key, {ONE: certificate}), DESCRIPTION.encode()
    prover = Prover(ONE, SystemCoins(), key)
    before = prover.proof(shown)
    assert admission.admits(shown, ONE, before)
    monkeypatch.setattr(proof, "FORM", 4)
    after = prover.proof(shown)
    assert after != before
    assert admission.admits(shown, ONE, after)
    assert admission.admits(shown, ONE, before)
    assert not admission.admits(shown, ONE, before[:1] + after[1:])


async def test_another_server_gets_no_proof_that_this_one_accepts() -> None:
    """It presents this server's session to a client as one of its own task, and keeps the client's messages."""
    keys, kept = SimulatedKeys(SystemCoins()), list[str]()
    key, certificate = keys.of(ONE)
    server = SumServer(limits=quick_limits(), admission=Certified(keys.authority.public_key, {ONE: certificate}))
    async with holding(server) as (held, _):

        async def relayed(request: Request) -> Response:
            if request.url.path != "/v1/session":
                kept.append(request.headers["authorization"])
                return Response(status_code=403)
            return Response((await held.http.get("/v1/session")).content.replace(b"a task", b"weather"))

        prover, app = Prover(ONE, SystemCoins(), key), Starlette(routes=[Route("/{path:path}", relayed)])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
            with pytest.raises(ConnectionError, match="refused this client"):
                await contribute("http://weather", joining(ONE), prover=prover, task="weather", http=http)
        assert kept
        for method, path in (("GET", "message"), ("POST", "answers/0"), ("DELETE", "client"), ("GET", "progress")):
            reply = await held.http.request(method, f"{held.base}/{path}", headers={"authorization": kept[0]})
            assert reply.status_code == 401
        own = header_of(ONE, prover.proof(held.description.encode()))
        assert (await held.http.get(f"{held.base}/message", headers={"authorization": own})).status_code == 200


def test_claims_are_of_one_session_and_limited() -> None:
    one, other = b"one", b"other"
    admission = FirstCome({ONE, TWO})
    assert admission.admits(one, ONE, PROOF)
    assert not admission.admits(one, ONE, STRANGER)
    assert admission.admits(one, TWO, STRANGER)
    assert not admission.admits(one, CLIENTS[2], PROOF)
    known = {client: digest for client in CLIENTS if (digest := admission.claim_of(client)) is not None}
    assert set(known) == {ONE, TWO}
    again = FirstCome(CLIENTS, one, known)
    assert not again.admits(one, ONE, STRANGER)
    assert again.admits(one, ONE, PROOF)
    assert again.admits(other, ONE, STRANGER)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Secagg",
        f"Bearer 1:{PROOF.hex()}",
        f"Secagg 1:{PROOF.hex()}00",
        f"Secagg 1:{PROOF.hex().upper()[:-1]}A",
        f"Secagg -1:{PROOF.hex()}",
        f"Secagg 01:{PROOF.hex()}",
        f"Secagg 00:{PROOF.hex()}",
        f"Secagg {1 << 64}:{PROOF.hex()}",
        f"Secagg \u0661:{PROOF.hex()}",
        f"Secagg 1:{PROOF.hex()}\n",
        f"Secagg 1: {PROOF.hex()}",
    ],
)
def test_a_header_has_one_form(header: str) -> None:
    assert read_header(header) is None


async def test_a_request_for_another_session_gets_nothing_of_this_one() -> None:
    async with holding() as (held, _):
        answer = answer_of(ONE, held.session)
        for name in (
            bytes(16).hex(),
            held.description.session.upper() + "0",
            "..",
            "%2e%2e",
            held.description.session + "%00",
        ):
            for method, path in (("GET", "message"), ("POST", "answers/0"), ("DELETE", "client")):
                reply = await held.http.request(
                    method, f"/v1/sessions/{name}/{path}", headers=headers_of(ONE), content=answer
                )
                assert reply.status_code in (404, 410), (name, path)
        assert (await held.ask(ONE)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions/{}/answers/\u0660",
        "/v1/sessions/{}/answers/-0",
        "/v1/sessions/{}/answers/0000",
        "/v1/sessions/{}/answers/0.0",
        "/v1/sessions/{}/answers/0/",
        "/v1/sessions/{}/answers/0%2f",
        "/v1/sessions/{}//answers/0",
        "/v1/sessions/{}/answers/../answers/0;x",
        "/v1/sessions/{}/answers/%00",
    ],
)
async def test_paths_have_one_form(path: str) -> None:
    async with holding() as (held, _):
        url = path.format(held.description.session)
        reply = await held.http.post(url, headers=headers_of(ONE), content=answer_of(ONE, held.session))
        assert reply.status_code in (400, 404)
        assert await held.post(ONE) == 202


@pytest.mark.parametrize("name", ["authorization", "content-length", "content-encoding", "transfer-encoding"])
async def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    async with holding() as (held, _):
        body = answer_of(ONE, held.session)
        values = {
            "authorization": headers_of(ONE)["authorization"],
            "content-length": str(len(body)),
            "content-encoding": "identity",
            "transfer-encoding": "chunked",
        }
        headers = [("authorization", values["authorization"]), (name, values[name])]
        headers += [(name, values[name])] if name != "authorization" else []
        reply = await held.http.post(f"{held.base}/answers/0", headers=headers, content=body)
        assert reply.status_code == 400


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip"])
async def test_a_compressed_answer_is_not_unpacked(encoding: str) -> None:
    async with holding() as (held, _):
        bomb = gzip.compress(bytes(100 * ANSWER_BYTES))
        assert len(bomb) < ANSWER_BYTES
        assert await held.post(ONE, bomb, content_encoding=encoding) == 415
        assert await held.post(ONE) == 202


async def test_an_answer_that_is_declared_too_long_is_not_read() -> None:
    async with holding() as (held, _):
        read = list[int]()
        body = endless(read)
        reply = await held.http.post(
            f"{held.base}/answers/0", headers={**headers_of(ONE), "content-length": str(ANSWER_BYTES + 1)}, content=body
        )
        assert reply.status_code == 413
        assert reply.headers["connection"] == "close"
        assert await held.post(ONE) == 202
        for wrong in ("-1", "1e9", "\u0663", "9" * 16, ""):
            length = ("content-length", wrong)
            assert await past_httpx(held.server, f"{held.base}/answers/0", disconnected, length) == 400


async def endless(read: list[int]) -> AsyncIterator[bytes]:
    while True:
        read.append(100)
        yield bytes(100)


async def test_an_answer_without_a_length_is_read_to_the_limit_and_no_further() -> None:
    async with holding() as (held, _):
        sent = list[int]()

        async def receive() -> dict[str, Any]:
            sent.append(100)
            return {"type": "http.request", "body": bytes(100), "more_body": True}

        assert await past_httpx(held.server, f"{held.base}/answers/0", receive) == 413
        assert sum(sent) <= ANSWER_BYTES + 100
        assert await held.post(ONE) == 202


async def test_an_answer_that_breaks_off_can_be_sent_again() -> None:
    async with holding() as (held, _):
        assert await past_httpx(held.server, f"{held.base}/answers/0", disconnected) == 408
        assert await held.post(ONE) == 202


async def test_only_the_methods_that_there_are() -> None:
    async with holding() as (held, _):
        for method in ("PUT", "PATCH", "TRACE", "CONNECT", "OPTIONS", "X"):
            reply = await held.http.request(method, f"{held.base}/message", headers=headers_of(ONE))
            assert reply.status_code == 405


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "match"),
    [
        (
            200,
            {"content-encoding": "gzip", "secagg-stage": "0"},
            gzip.compress(bytes(9), mtime=0),
            MalformedMessage,
            "compressed",
        ),
        (200, {"secagg-stage": "0"}, bytes(3000), MalformedMessage, "at most 2000 bytes"),
        (200, {"secagg-stage": "\xb2"}, b"x", MalformedMessage, "does not name its stage"),
        (200, {"secagg-stage": "-1"}, b"x", MalformedMessage, "does not name its stage"),
        (200, {"secagg-stage": "0"}, b"x", PeerError, "."),
        (302, {"location": "http://elsewhere/"}, b"", Refused, "302"),
        (418, {}, b"\x1b[2J a teapot", Refused, r"client: \[2J a teapot"),
        (404, {}, b"Not Found", Refused, "no sums at this address; use https://HOST:PORT"),
    ],
)
async def test_a_client_is_not_led_on(
    status: int, headers: dict[str, str], body: bytes, error: type[Exception], match: str
) -> None:
    description = SessionDescription(
        session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
    )
    asked = list[str]()

    async def hostile(scope: Any, receive: Any, send: Any) -> None:
        del receive
        asked.append(f"{scope['method']} {scope['path']}")
        is_description = scope["path"] == "/v1/session"
        named = [] if is_description else [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200 if is_description else status, "headers": named})
        await send({"type": "http.response.body", "body": description.encode() if is_description else body})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=hostile)) as http:
        prover, patience = Prover(ONE, SystemCoins()), Patience(message_bytes=2000)
        with pytest.raises(error, match=match):
            await contribute("http://sums", joining(ONE), prover=prover, http=http, patience=patience)
    assert not any("elsewhere" in each for each in asked)
    if issubclass(error, PeerError):
        assert asked[-1] == f"DELETE /v1/sessions/{description.session}/client"


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        WITHOUT_FORM,
        b"[" * 100_000,
        b'{"session": 3}',
        b"\xff",
        b'{"session": "..", "protocol": "x"}',
    ],
)
def test_a_description_that_is_none_is_refused(encoded: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a session description"):
        SessionDescription.decode(encoded)


def test_terms_of_any_depth_are_read_or_refused() -> None:
    """Some depths can be decoded, but not encoded again, and their error would not be a refusal."""
    said = {"session": "0" * 32, "protocol": "x", "task": "t", "round_number": "1", "answer_bytes": 1, "form": 3}
    for depth in range(900, 1000):
        for begin, end in (("[", "]"), ('{"a": ', "}")):
            terms = f'{{"a": {begin * depth}1{end * depth}}}'
            with suppress(MalformedMessage):
                SessionDescription.decode(json.dumps(said | {"terms": terms}).encode())


def test_a_field_of_another_version_is_passed_over_unless_it_must_be_known() -> None:
    description = SessionDescription(
        session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
    )
    later = json.loads(description.encode()) | {"deadline": 3}
    assert SessionDescription.decode(json.dumps(later).encode()) == description
    # A resumed session shows the description that its clients signed, including private fields.
    for shown in (json.dumps(later, indent=1), json.dumps(later | {"_decoded": "0"})):
        assert SessionDescription.decode(shown.encode()).encode() == shown.encode()
        assert replace(SessionDescription.decode(shown.encode()), must_know=()).encode() == description.encode()
    with pytest.raises(MalformedMessage, match=r"'deadline', '\\x1b\[2J'; install the server's version") as refused:
        SessionDescription.decode(json.dumps(later | {"must_know": ["terms", "deadline", "\x1b[2J"]}).encode())
    assert refused.value.reason is Reason.WRONG_VERSION
    needed = replace(description, must_know=("terms",))
    assert SessionDescription.decode(needed.encode()) == needed


async def test_a_client_that_does_not_speak_the_form_says_so_and_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client of form 2 at a server of form 3; it has the version's check of forms, and claims no name."""
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with in_memory(server) as http:
        running = asyncio.create_task(server.run(plain_session(), server.description(SUBJECT, "plain")))
        await until(lambda: server.is_open)
        with monkeypatch.context() as old:
            old.setattr(wire, "FORMS", range(2, 3))
            old.setattr(proof, "FORM", 2)
            with pytest.raises(MalformedMessage, match=r"has form 3 .* supports form 2") as refused:
                await taking_part("http://sums", ONE, http=http)
        assert refused.value.reason is Reason.WRONG_VERSION
        metrics = (await http.get("/metrics")).text
        assert 'secagg_clients_total{newest_form="2",task="a task"} 1' in metrics
        # The place is free, also for the same client after an upgrade.
        await asyncio.gather(*everybody(http))
        assert (await running).counted == frozenset(CLIENTS)
        await server.told()


async def test_a_server_of_another_task_gets_no_proof_by_a_form_that_its_client_does_not_speak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It presents another server's description, whose sum the client does not want, and would end its session there."""
    asked, keys = list[str](), SimulatedKeys(SystemCoins())
    shown = replace(DESCRIPTION, task="hospital").encode()

    async def copied(request: Request) -> Response:
        asked.append(request.url.path)
        return Response(shown)

    monkeypatch.setattr(wire, "FORMS", range(2, 3))
    app = Starlette(routes=[Route("/{path:path}", copied, methods=["GET", "DELETE"])])
    prover = Prover(ONE, SystemCoins(), keys.of(ONE)[0])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        with pytest.raises(MalformedMessage, match="has form 3"):
            await contribute("http://weather", joining(ONE), prover=prover, task="weather", http=http)
    assert asked == ["/v1/session"]


def test_a_proof_with_another_form_is_none() -> None:
    """An attacker in between makes the client appear to support an older form."""
    coins, session = SystemCoins(), DESCRIPTION.encode()
    keys = SimulatedKeys(coins)
    key, certificate = keys.of(ONE)
    certified = Certified(keys.authority.public_key, {ONE: certificate})
    good = Prover(ONE, coins, key).proof(session)
    assert good[0] == 3
    for _ in range(2):
        assert not certified.admits(session, ONE, bytes([2]) + good[1:])
        assert certified.admits(session, ONE, good)


@pytest.mark.parametrize("name", ["protocol", "task", "mode"])
def test_a_description_that_a_terminal_would_obey_is_refused(name: str) -> None:
    description = SessionDescription(
        session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
    )
    encoded = json.dumps({**json.loads(description.encode()), name: "\x1b[2J"}).encode()
    with pytest.raises(MalformedMessage, match="control characters"):
        SessionDescription.decode(encoded)


async def test_a_client_asks_in_the_clear_on_this_machine_alone() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        await taking_part("http://sums.example:8750", ONE)


async def test_no_client_pauses_for_longer_than_a_server_tells_how_its_session_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An absent server refuses connections, so only the client's pauses delay its return."""
    pauses, now = list[float](), [0.0]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(requests, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(away)) as http:
        for number in range(200):
            made = requests.Requests("http://sums", http, Patience(), ClientId(number))
            with pytest.raises(ConnectionError, match="is lost"):
                await made.ask("GET", "/v1/session")
            for _ in range(20):
                await made.rest()
    assert max(pauses) <= 0.8 * BACK_SECONDS
    assert max(pauses) >= 0.7 * BACK_SECONDS
    assert inspect.signature(SumServer.told).parameters["seconds"].default == BACK_SECONDS


def test_logs_and_metrics_tell_what_happens_and_nothing_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    proofs, answers = list[bytes](), list[bytes]()

    async def scene() -> str:
        async with holding() as (held, task):
            for client in CLIENTS:
                answers.append(answer_of(client, held.session))
                proofs.append(bytes([3]) + bytes([client.value + 10]) * 64)
                reply = await held.http.post(
                    f"{held.base}/answers/0", content=answers[-1], headers=headers_of(client, proofs[-1])
                )
                assert reply.status_code == 202
            await task
            await held.http.get(f"{held.base}/message", headers=headers_of(ONE, STRANGER))
            return (await held.http.get("/metrics")).text

    metrics = asyncio.run(scene())
    lines = [JsonLines(Namespace()).format(record) for record in caplog.records]
    events = [json.loads(line)["event"] for line in lines if json.loads(line)["logger"] == "secagg.transport"]
    assert events == ["stage opened", "stage closed", "session ended", "stranger"]
    own = [record for record in caplog.records if record.name == "secagg.transport"]
    people = [JsonLines(Namespace(), is_for_people=True).format(record) for record in own]
    assert re.fullmatch(r"\d\d:\d\d:\d\d stage opened, session [0-9a-f]{32}, stage plain upload, number 0", people[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: stranger, .*client 1", people[-1])
    own[-1].__dict__["fields"] = {"why": "said\x1b[2Jso"}
    assert JsonLines(Namespace(), is_for_people=True).format(own[-1]).endswith(", why said [2Jso")
    said = "\n".join(lines + people) + metrics
    for secret in (*proofs, *answers, STRANGER):
        assert secret.hex() not in said
        assert repr(secret)[2:40] not in said
    assert 'secagg_answers_total{task="a task",verdict="taken"} 5' in metrics
    assert 'secagg_sessions_total{outcome="released",task="a task"} 1' in metrics
    assert f'secagg_answer_bytes_total{{task="a task"}} {sum(map(len, answers))}' in metrics
    assert 'secagg_clients_total{newest_form="3",task="a task"} 5' in metrics
    assert "client" not in metrics.replace("secagg_clients", "").replace("of a client", "").replace("Clients of", "")
