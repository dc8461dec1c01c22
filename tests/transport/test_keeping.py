"""What survives a crash: the newest alone, once, and nothing after the end."""

from __future__ import annotations

import shutil
from pathlib import Path

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.session.metrics import Metrics
from secagg.session.sealed_state import StateDirectory
from secagg.transport.card import Card
from secagg.transport.keeping import Claim, ClientProgress, ClientStore, ServerRecord, ServerStore

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
    record = ServerRecord(CARD.encode(), 2, (Claim(ONE, bytes(32)),), b"a snapshot")
    store.put(ServerRecord(CARD.encode(), 1, (), b""))
    store.put(record)
    assert ServerStore(tmp_path / "server").get() == record
    assert Card.decode(record.card) == CARD
    store.erase()
    assert store.get() is None
    assert not list((tmp_path / "server").iterdir())


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
