"""What survives a crash: the newest alone, once, and nothing after the end."""

from __future__ import annotations

import asyncio
import shutil
from errno import ENOSPC
from pathlib import Path

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.session.metrics import Metrics
from secagg.session.roles import Released
from secagg.session.sealed_state import StateDirectory
from secagg.transport.card import Card
from secagg.transport.client import Outcome
from secagg.transport.keeping import ClientProgress, ClientStore, ServerRecord, ServerStore
from secagg.transport.proof import FirstCome
from secagg.transport.server import SumServer
from tests.harness.wire_sums import (
    CLIENTS,
    PROOF,
    SUBJECT,
    headers_of,
    holding,
    in_memory,
    plain_session,
    quick_limits,
    taking_part,
)

ONE = ClientId(1)
URL = "http://sums"
CARD = Card(session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000)


def progress(stage: int) -> ClientProgress:
    return ClientProgress(bytes(16), bytes(64), stage, b"an answer", is_last=False, suspended=b"a secret of a client")


def store_in(folder: Path, client: ClientId = ONE) -> ClientStore:
    return ClientStore(StateDirectory(folder, coins=SystemCoins()), URL, client)


def test_a_client_goes_on_from_what_it_put_last(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    assert first.take() is None
    for stage in range(3):
        first.put(progress(stage))
    assert store_in(tmp_path, ClientId(2)).take() is None
    second = store_in(tmp_path)
    assert second.take() == progress(2)
    third = store_in(tmp_path)
    assert third.take() == progress(2)
    third.erase()
    assert store_in(tmp_path).take() is None


def test_a_copy_of_an_older_state_opens_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.put(progress(0))
    shutil.copytree(tmp_path / "wire", tmp_path / "copy")
    store.put(progress(1))
    for file in (tmp_path / "copy").iterdir():
        if file.name != "swept":
            shutil.copy(file, tmp_path / "wire" / file.name)
    assert store_in(tmp_path).take() is None


def test_nothing_of_a_client_lies_about_in_the_clear(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.put(progress(0))
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"secret" in content or b"answer" in content for content in files)
    keys = [file for file in tmp_path.iterdir() if file.is_file() and file.name != "swept"]
    store.erase()
    assert len(keys) == 1
    assert not keys[0].exists()
    assert "secret" not in repr(progress(0))


def test_a_server_keeps_one_record(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "server")
    assert store.get() is None
    record = ServerRecord(CARD.encode(), 2, b"a snapshot")
    store.put(ServerRecord(CARD.encode(), 1, b""))
    store.put(record)
    assert ServerStore(tmp_path / "server").get() == record
    assert Card.decode(record.card) == CARD
    store.erase()
    assert store.get() is None
    assert not list((tmp_path / "server").iterdir())


def test_names_that_were_claimed_stay_with_who_claimed_them(tmp_path: Path) -> None:
    store, other = ServerStore(tmp_path / "server"), bytes([1] * 16).hex()
    store.claim(CARD.session, ONE, bytes(32))
    store.claim(other, ClientId(2), bytes([1] * 32))
    # A claim that a crash cut off was never answered.
    with (tmp_path / "server" / "session.claims").open("ab") as file:
        file.write(bytes(20))
    again = ServerStore(tmp_path / "server")
    assert again.claims(CARD.session) == {ONE: bytes(32)}
    again.claim(CARD.session, ClientId(3), bytes([2] * 32))
    assert store.claims(CARD.session) == {ONE: bytes(32), ClientId(3): bytes([2] * 32)}
    assert store.claims(other) == {ClientId(2): bytes([1] * 32)}
    store.erase()
    assert store.claims(CARD.session) == {}


def test_a_name_is_kept_before_anything_is_said_to_it(tmp_path: Path) -> None:
    async def scene() -> None:
        server = SumServer(limits=quick_limits(), store=ServerStore(tmp_path / "server"))
        async with holding(server) as (held, _):
            assert (await held.ask(ONE)).status_code == 200
            assert await held.post(ClientId(2)) == 202
            kept = ServerStore(tmp_path / "server").claims(held.card.session)
            assert set(kept) == {ONE, ClientId(2)}
            # The next process goes on with these.
            admission = FirstCome(None, held.card.session, kept)
            assert admission.admits(held.card.session, ONE, PROOF)
            assert not admission.admits(held.card.session, ONE, bytes([1]) * 64)

    asyncio.run(scene())


def test_a_sum_that_cannot_be_kept_is_told_to_nobody(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "server")

    async def full(_: Released) -> None:
        raise OSError(ENOSPC, "no space left")

    async def scene() -> None:
        server = SumServer(limits=quick_limits(), store=store)
        async with in_memory(server) as http:
            card = server.card(SUBJECT, "plain")
            running = asyncio.create_task(server.run(plain_session(), card, keep=full))
            clients = [asyncio.create_task(taking_part("http://sums", client, http=http)) for client in CLIENTS]
            with pytest.raises(OSError, match="no space left"):
                await running
            reply = await http.get(f"/v1/sessions/{card.session}/message", headers=headers_of(CLIENTS[0]))
            assert reply.status_code in {401, 503}
            for client in clients:
                client.cancel()
            outcomes = await asyncio.gather(*clients, return_exceptions=True)
            assert not any(isinstance(outcome, Outcome) for outcome in outcomes)
            await server.told()

    asyncio.run(scene())
    kept = store.get()
    assert kept is not None
    assert not kept.ending


def test_metrics_are_text_for_prometheus() -> None:
    metrics = Metrics()
    metrics.counter("a_total", "What a is.")
    metrics.gauge("b", "What b is.")
    metrics.add("a_total", outcome='said "so"\n')
    metrics.add("a_total", 2, outcome="x")
    metrics.set("b", 1.5)
    assert metrics.text().splitlines() == [
        "# HELP a_total What a is.",
        "# TYPE a_total counter",
        r'a_total{outcome="said \"so\"\n"} 1',
        'a_total{outcome="x"} 2',
        "# HELP b What b is.",
        "# TYPE b gauge",
        "b 1.5",
    ]
