"""Names assigned to visitors, and a result that only its clients receive."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from secagg.cli.serve import _complete  # pyright: ignore[reportPrivateUsage]
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.roles import Released
from secagg.transport.page import CrossOrigin
from secagg.transport.proof import FirstCome
from secagg.transport.server import SumServer
from tests.harness.wire_sums import (
    CLIENTS,
    SUBJECT,
    Held,
    answer_of,
    disconnected,
    headers_of,
    holding,
    in_memory,
    past_httpx,
    plain_session,
    quick_limits,
    until,
)

RESULT = {"sentence": "the sum of 3 clients was released", "mean": [0.0], "count": 3}
LATE = bytes([9] * 65)


async def kept(released: Released) -> bytes:
    del released
    return json.dumps(RESULT).encode()


async def test_a_result_is_shown_to_the_clients_of_its_sum_alone() -> None:
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with in_memory(server) as http:
        session, description = plain_session(), server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(session, description, keep=kept))
        await until(lambda: server.is_open)
        base, members = f"/v1/sessions/{description.session}", CLIENTS[:4]
        for client in members:
            body = answer_of(client, session)
            await http.post(f"{base}/answers/0", content=body, headers=headers_of(client))
        await http.request("DELETE", f"{base}/client", headers=headers_of(CLIENTS[4]))
        await running

        async def shown(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bool:
            reply = await http.request(method, base + path, headers=headers, content=body)
            return "mean" in reply.text

        async def look() -> None:
            assert await shown("GET", "/message", headers_of(members[0]))
            assert not await shown("GET", "/message", {})
            assert not await shown("GET", "/message", headers_of(members[0], LATE))
            assert not await shown("POST", "/answers/0", headers_of(members[0], LATE), b"x")
            assert not await shown("DELETE", "/client", {})
            assert not await shown("POST", "/seats", {}, LATE.hex().encode())

        await look()
        other = server.description(SUBJECT, "plain")
        following = asyncio.create_task(server.run(plain_session(), other))
        await until(lambda: server.is_open)
        await look()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_name_that_nobody_took_shows_nobody_a_result_after_the_end() -> None:
    invited = frozenset({*CLIENTS, ClientId(99)})
    server = SumServer(limits=quick_limits(), admission=FirstCome(invited))
    async with in_memory(server) as http:
        session, description = plain_session(), server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(session, description, keep=kept))
        await until(lambda: server.is_open)
        for client in CLIENTS:
            path = f"/v1/sessions/{description.session}/answers/0"
            await http.post(path, content=answer_of(client, session), headers=headers_of(client))
        await running
        path = f"/v1/sessions/{description.session}/message"
        assert (await http.get(path, headers=headers_of(CLIENTS[0]))).json() == RESULT
        late = await http.get(path, headers=headers_of(ClientId(99), LATE))
        assert late.text.strip() == "the sum of 5 clients was released"


async def seat(held: Held, proof: bytes) -> tuple[int, str]:
    reply = await held.http.post(f"{held.base}/seats", content=proof.hex().encode())
    return reply.status_code, reply.text


async def test_each_visitor_has_one_seat_and_there_are_no_more_than_invited() -> None:
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with holding(server) as (held, _):
        await held.ask(CLIENTS[1])  # Sends its own name, which is then assigned to no other client.
        proofs = [bytes([number] * 65) for number in range(1, 6)]
        given = [await seat(held, proof) for proof in proofs]
        names = [str(client.value) for client in CLIENTS if client != CLIENTS[1]]
        assert given[:4] == [(201, name) for name in names]
        assert given[4][0] == 403
        assert await seat(held, proofs[0]) == given[0]
        assert (await held.http.post(f"{held.base}/seats", content=b"f" * 129)).status_code == 400
        assert (await held.http.post(f"/v1/sessions/{'0' * 32}/seats", content=b"f" * 130)).status_code == 403


async def test_who_leaves_before_it_sends_anything_gives_its_seat_to_the_next_or_comes_back() -> None:
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with holding(server) as (held, task):
        for again in range(3):
            for number in range(1, 5):
                proof = bytes([10 * again + number] * 65)
                status, name = await seat(held, proof)
                assert status == 201
                client = ClientId(int(name))
                reply = await held.http.get(f"{held.base}/message", headers=headers_of(client, proof))
                assert reply.status_code == 200
                if again < 2:
                    await held.http.request("DELETE", f"{held.base}/client", headers=headers_of(client, proof))
        shown = (await held.http.get(f"{held.base}/progress", headers=headers_of(ClientId(1), bytes([21] * 65)))).json()
        assert shown["present"] == 4
        assert 0 < shown["seconds_left"] <= 20
        # With its own number it returns with a new proof, since it keeps none.
        for client in CLIENTS[:4]:
            body, headers = answer_of(client, held.session), headers_of(client, bytes([20 + client.value] * 65))
            assert (await held.http.post(f"{held.base}/answers/0", content=body, headers=headers)).status_code == 202
        assert await held.post(CLIENTS[4]) == 202
        assert (await task).counted == frozenset(CLIENTS)
        assert (await held.http.get(f"{held.base}/progress", headers=headers_of(CLIENTS[0], LATE))).status_code == 401


async def test_who_comes_and_goes_costs_no_memory_and_sees_no_result_of_its_successor() -> None:
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with in_memory(server) as http:
        session, description = plain_session(), server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(session, description, keep=kept))
        await until(lambda: server.is_open)
        base, visits = f"/v1/sessions/{description.session}", [bytes([3, number] + [0] * 63) for number in range(1, 51)]
        for proof in visits:
            assert (await http.get(f"{base}/message", headers=headers_of(CLIENTS[0], proof))).status_code == 200
            await http.request("DELETE", f"{base}/client", headers=headers_of(CLIENTS[0], proof))
        (known,) = server._members.values()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        assert not known
        for client in CLIENTS:
            await http.post(f"{base}/answers/0", content=answer_of(client, session), headers=headers_of(client))
        await running
        assert (await http.get(f"{base}/message", headers=headers_of(CLIENTS[0]))).json() == RESULT
        for proof in visits:
            assert "mean" not in (await http.get(f"{base}/message", headers=headers_of(CLIENTS[0], proof))).text


async def test_a_visitor_that_left_before_it_sent_anything_sees_no_result() -> None:
    """Nobody takes its name after it, so nobody takes its place among those that the result is shown to."""
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with in_memory(server) as http:
        session, description = plain_session(), server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(session, description, keep=kept))
        await until(lambda: server.is_open)
        base, left = f"/v1/sessions/{description.session}", headers_of(CLIENTS[4], LATE)
        assert (await http.get(f"{base}/message", headers=left)).status_code == 200
        await http.request("DELETE", f"{base}/client", headers=left)
        for client in CLIENTS[:4]:
            await http.post(f"{base}/answers/0", content=answer_of(client, session), headers=headers_of(client))
        await running
        assert (await http.get(f"{base}/message", headers=headers_of(CLIENTS[0]))).json() == RESULT
        assert "mean" not in (await http.get(f"{base}/message", headers=left)).text


async def test_who_comes_and_goes_under_ever_new_names_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where any name is taken, a client that gives its name back has used it up."""
    monkeypatch.setattr("secagg.transport.proof._NAMES", 50)
    server = SumServer(limits=quick_limits())
    async with in_memory(server) as http:
        description = server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(plain_session(), description))
        await until(lambda: server.is_open)
        base, taken = f"/v1/sessions/{description.session}", 0
        for number in range(100):
            headers = headers_of(ClientId(number))
            taken += (await http.get(f"{base}/progress", headers=headers)).status_code == 200
            await http.request("DELETE", f"{base}/client", headers=headers)
        assert taken == 50
        assert server.current is not None
        assert len(server.current.exchange.away) == 50
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_names_of_a_session_that_is_taken_over_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every restart of a server would admit as many names again."""
    monkeypatch.setattr("secagg.transport.proof._NAMES", 2)
    resumed = FirstCome(shown=b"shown", known={ClientId(0): bytes(32), ClientId(1): bytes(32)})
    assert not resumed.admits(b"shown", ClientId(2), b"a proof")
    assert FirstCome(shown=b"shown", known={ClientId(0): bytes(32)}).admits(b"shown", ClientId(2), b"a proof")


async def test_a_client_that_left_is_waited_for_no_longer_than_any_other() -> None:
    limits = quick_limits(seconds=60)
    limits = replace(limits, stages=replace(limits.stages, patience=None, least=0.5))
    async with holding(SumServer(limits=limits)) as (held, task):
        for client in CLIENTS[1:]:
            assert await held.post(client) == 202
        began = time.monotonic()
        await held.http.request("DELETE", f"{held.base}/client", headers=headers_of(CLIENTS[0]))
        assert (await task).counted == frozenset(CLIENTS[1:])
        assert 0.4 < time.monotonic() - began < 10
        assert await held.post(CLIENTS[0]) == 410 or (await held.ask(CLIENTS[0])).status_code in {200, 403}


async def test_a_seat_is_of_a_session_that_has_not_closed_its_first_stage() -> None:
    server = SumServer(limits=quick_limits(), admission=FirstCome(frozenset(CLIENTS)))
    async with holding(server) as (held, _):
        assert held.server.current is not None
        held.server.current.exchange.number = 1  # A later stage.
        assert (await seat(held, LATE))[0] == 403


async def test_a_request_for_a_seat_that_does_not_come_loses_its_connection() -> None:
    limits = replace(quick_limits(), grace=0.2)
    async with holding(SumServer(limits=limits, admission=FirstCome(frozenset(CLIENTS)))) as (held, _):

        async def dribble() -> dict[str, Any]:
            await asyncio.sleep(0.1)
            return {"type": "http.request", "body": b"f", "more_body": True}

        for receive in (dribble, disconnected):
            async with asyncio.timeout(2):
                assert await past_httpx(held.server, f"{held.base}/seats", receive, client=None) == 408


def test_a_crowd_of_visitors_costs_a_server_no_more_than_a_list_of_names() -> None:
    admission = FirstCome(frozenset(map(ClientId, range(20_000))))
    began = time.monotonic()
    names = [admission.seat(b"", number.to_bytes(64, "big")) for number in range(20_000)]
    assert names == list(map(ClientId, range(20_000)))
    assert admission.seat(b"", b"x") is None
    assert time.monotonic() - began < 5


def test_a_name_that_comes_and_goes_takes_no_other_clients_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.transport.proof._NAMES", 3)
    admission = FirstCome()
    for _ in range(5):
        assert admission.admits(b"", CLIENTS[0], b"0")
        admission.release(CLIENTS[0])
    assert admission.admits(b"", CLIENTS[1], b"1")
    assert admission.admits(b"", CLIENTS[2], b"2")
    assert not admission.admits(b"", CLIENTS[3], b"3")
    assert admission.admits(b"", CLIENTS[0], b"0")


def options_of(**more: Any) -> argparse.Namespace:
    names = ("state", "group", "engine", "values", "bits", "model", "clip", "out", "clients", "round", "statistics")
    return argparse.Namespace(**{**dict.fromkeys(names), "page": True, "protocol": "pairwise", "set": [], **more})


@pytest.mark.parametrize("more", [{"round": 3}, {"protocol": "one-message"}, {"values": 3}, {"state": "x"}])
def test_a_page_refuses_what_it_cannot_do(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        _complete(options_of(**more))


def test_a_page_leaves_a_clip_as_it_was_given() -> None:
    options = options_of(clip=0.0)
    _complete(options)
    assert options.clip == 0.0


@pytest.mark.parametrize(
    "origin",
    ["null", "*", "https://*", "https://a/b", "https://A.example", "https://u@a.example", "https://a.example\r\nx: y"],
)
def test_an_origin_has_the_form_that_browsers_send(origin: str) -> None:
    with pytest.raises(InvalidParameters):
        CrossOrigin(None, [origin])  # type: ignore[arg-type]
