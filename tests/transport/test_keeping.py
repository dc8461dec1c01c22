"""State after a crash: only the newest survives, once, and nothing after the end."""

from __future__ import annotations

import asyncio
import shutil
from errno import ENOSPC
from pathlib import Path
from threading import Event

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.roles import Released
from secagg.session.run import Metrics
from secagg.session.sealed_state import StateDirectory
from secagg.transport.client import Outcome, contribute
from secagg.transport.description import SessionDescription
from secagg.transport.keeping import ClientProgress, ClientStore, ServerRecord, ServerStore
from secagg.transport.proof import FirstCome, Prover
from secagg.transport.server import SumServer
from tests.harness.wire_sums import (
    CLIENTS,
    PROOF,
    SUBJECT,
    headers_of,
    holding,
    in_memory,
    joining,
    plain_session,
    quick_limits,
    taking_part,
)

ONE = ClientId(1)
URL = "http://sums"
DESCRIPTION = SessionDescription(
    session=bytes(16).hex(), protocol="plain", task="a task", round_number=3, answer_bytes=1000
)


def progress(stage: int) -> ClientProgress:
    return ClientProgress(bytes(16), bytes(65), stage, b"an answer", is_last=False, suspended=b"a secret of a client")


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
    record = ServerRecord(DESCRIPTION.encode(), 2, b"a snapshot")
    store.put(ServerRecord(DESCRIPTION.encode(), 1, b""))
    store.put(record)
    assert ServerStore(tmp_path / "server").get() == record
    assert SessionDescription.decode(record.description) == DESCRIPTION
    store.erase()
    assert store.get() is None
    assert not list((tmp_path / "server").iterdir())


def test_names_that_were_claimed_stay_with_who_claimed_them(tmp_path: Path) -> None:
    store, other = ServerStore(tmp_path / "server"), bytes([1] * 16).hex()
    store.claim(DESCRIPTION.session, ONE, bytes([3] * 32))
    store.claim(other, ClientId(2), bytes([1] * 32))
    # A claim that a crash cut off was never answered.
    with (tmp_path / "server" / "session.claims").open("ab") as file:
        file.write(bytes(20))
    again = ServerStore(tmp_path / "server")
    assert again.claims(DESCRIPTION.session) == {ONE: bytes([3] * 32)}
    again.claim(DESCRIPTION.session, ClientId(3), bytes([2] * 32))
    assert store.claims(DESCRIPTION.session) == {ONE: bytes([3] * 32), ClientId(3): bytes([2] * 32)}
    assert store.claims(other) == {ClientId(2): bytes([1] * 32)}
    store.erase()
    assert store.claims(DESCRIPTION.session) == {}


async def test_a_name_is_kept_before_anything_is_said_to_it(tmp_path: Path) -> None:
    server = SumServer(limits=quick_limits(), store=ServerStore(tmp_path / "server"))
    async with holding(server) as (held, _):
        assert (await held.ask(ONE)).status_code == 200
        assert await held.post(ClientId(2)) == 202
        kept = ServerStore(tmp_path / "server").claims(held.description.session)
        assert set(kept) == {ONE, ClientId(2)}
        # The next process continues with these.
        admission = FirstCome(None, held.description.encode(), kept)
        assert admission.admits(held.description.encode(), ONE, PROOF)
        assert not admission.admits(held.description.encode(), ONE, bytes([1]) * 65)


async def test_a_name_that_was_given_up_is_free_in_the_next_process(tmp_path: Path) -> None:
    """Otherwise visitors who come and go would leave a restarted server without free seats."""
    server = SumServer(limits=quick_limits(), store=ServerStore(tmp_path / "server"))
    async with holding(server) as (held, _):
        shown, other = held.description.encode(), bytes([1] * 65)
        for client in (ONE, ClientId(2)):
            assert (await held.ask(client)).status_code == 200
            reply = await held.http.request("DELETE", f"{held.base}/client", headers=headers_of(client))
            assert reply.status_code == 204
        assert (await held.ask(ClientId(2))).status_code == 200
        kept = ServerStore(tmp_path / "server").claims(held.description.session)
        admission = FirstCome(None, shown, kept)
        assert admission.admits(shown, ONE, other)
        assert not admission.admits(shown, ClientId(2), other)


class FullStore(ServerStore):
    """A store whose disk has space again after ``refusals`` refusals."""

    def __init__(self, folder: Path, refusals: int) -> None:
        super().__init__(folder)
        self.refusals = refusals

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(ENOSPC, "no space left")

    def put(self, record: ServerRecord) -> None:
        self._refuse()
        super().put(record)

    def claim(self, session: str, client: ClientId, digest: bytes = bytes(32)) -> None:
        self._refuse()
        super().claim(session, client, digest)


async def test_a_stage_waits_until_the_disk_has_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("secagg.transport.conductor._AGAIN_SECONDS", 0.01)

    server = SumServer(limits=quick_limits(), store=FullStore(tmp_path / "server", 3))
    async with in_memory(server) as http:
        running = asyncio.create_task(server.run(plain_session(), server.description(SUBJECT, "plain")))
        await asyncio.gather(*(taking_part("http://sums", client, http=http) for client in CLIENTS))
        assert (await running).counted == frozenset(CLIENTS)
    assert [record.getMessage() for record in caplog.records].count("store not written, tried again") == 1


async def test_a_name_waits_until_the_disk_has_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.transport.conductor._AGAIN_SECONDS", 0.01)

    store = FullStore(tmp_path / "server", 0)
    async with holding(SumServer(limits=quick_limits(poll=0.3), store=store)) as (held, _):
        store.refusals = 3
        assert (await held.ask(ONE)).status_code == 200
        store.refusals = 1_000_000
        assert (await held.ask(ClientId(2))).status_code == 204
        store.refusals = 3
        assert await held.post(ClientId(2)) == 202
        assert set(store.claims(held.description.session)) == {ONE, ClientId(2)}


class StuckStore(ServerStore):
    """A store whose disk blocks until it is released."""

    def __init__(self, folder: Path, is_let: Event) -> None:
        super().__init__(folder)
        self._is_let = is_let

    def put(self, record: ServerRecord) -> None:
        self._is_let.wait(20)
        super().put(record)


@pytest.mark.parametrize("is_stuck", [True, False])
async def test_a_disk_that_takes_nothing_is_seen_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stuck: bool
) -> None:
    monkeypatch.setattr("secagg.transport.server._STUCK_SECONDS", 0.2)
    monkeypatch.setattr("secagg.transport.conductor._AGAIN_SECONDS", 0.01)
    let, folder = Event(), tmp_path / "server"
    store = StuckStore(folder, let) if is_stuck else FullStore(folder, 1_000_000)
    server = SumServer(limits=quick_limits(), store=store)
    async with in_memory(server) as http:
        running = asyncio.create_task(server.run(plain_session(), server.description(SUBJECT, "plain")))
        async with asyncio.timeout(20):
            while (health := await http.get("/health")).status_code == 200:
                await asyncio.wait([running], timeout=0.01)
        assert health.status_code == 503
        assert "a disk has accepted no write" in health.text
        assert (await http.get("/ready")).status_code == 503
        [line] = [line for line in (await http.get("/metrics")).text.splitlines() if line.startswith("secagg_disk")]
        assert float(line.split()[-1]) > 0.2
        let.set()
        vars(store)["refusals"] = 0
        await asyncio.gather(*(taking_part("http://sums", client, http=http) for client in CLIENTS))
        await running
        assert (await http.get("/health")).status_code == 200
        assert 'secagg_disk_wait_seconds{task="a task"} 0\n' in (await http.get("/metrics")).text


def test_one_process_of_a_client_goes_on_with_its_progress(tmp_path: Path) -> None:
    """Another one would take it, and the first could not continue."""
    with store_in(tmp_path).held():
        with pytest.raises(InvalidParameters, match="another process"), store_in(tmp_path).held():
            pass
        with store_in(tmp_path, ClientId(2)).held():
            pass
    with store_in(tmp_path).held():
        pass


async def test_a_second_process_of_a_client_asks_for_nothing(tmp_path: Path) -> None:
    server, states = SumServer(limits=quick_limits()), StateDirectory(tmp_path, coins=SystemCoins())
    async with in_memory(server) as http:
        with store_in(tmp_path).held(), pytest.raises(InvalidParameters, match="another process"):
            async with asyncio.timeout(20):
                await contribute(URL, joining(ONE), prover=Prover(ONE, SystemCoins()), states=states, http=http)


async def test_a_client_that_cannot_put_its_answer_aside_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ClientStore, _: ClientProgress) -> None:
        del self
        raise OSError(ENOSPC, "no space left")

    monkeypatch.setattr(ClientStore, "put", full)

    states = StateDirectory(tmp_path, coins=SystemCoins())
    async with holding(SumServer(limits=quick_limits())) as (held, _):
        with pytest.raises(InvalidParameters, match="cannot store its answer"):
            await contribute(URL, joining(ONE), prover=Prover(ONE, SystemCoins()), states=states, http=held.http)
        assert (await held.http.get("/status")).json()["a task"]["clients"]["awaited"] == len(CLIENTS) - 1


async def test_a_sum_that_cannot_be_kept_is_told_to_nobody(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "server")

    async def full(_: Released) -> bytes:
        raise OSError(ENOSPC, "no space left")

    server = SumServer(limits=quick_limits(), store=store)
    async with in_memory(server) as http:
        description = server.description(SUBJECT, "plain")
        running = asyncio.create_task(server.run(plain_session(), description, keep=full))
        clients = [asyncio.create_task(taking_part("http://sums", client, http=http)) for client in CLIENTS]
        with pytest.raises(OSError, match="no space left"):
            await running
        reply = await http.get(f"/v1/sessions/{description.session}/message", headers=headers_of(CLIENTS[0]))
        assert reply.status_code in {401, 503}
        for client in clients:
            client.cancel()
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
        assert not any(isinstance(outcome, Outcome) for outcome in outcomes)
        await server.told()
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
    metrics.histogram("c", "What c is.", (1, 10))
    for value in (0.5, 2, 20):
        metrics.observe("c", value, stage="x")
    assert metrics.text().splitlines()[-7:] == [
        "# HELP c What c is.",
        "# TYPE c histogram",
        'c_bucket{le="1",stage="x"} 1',
        'c_bucket{le="10",stage="x"} 2',
        'c_bucket{le="+Inf",stage="x"} 3',
        'c_sum{stage="x"} 22.5',
        'c_count{stage="x"} 3',
    ]
