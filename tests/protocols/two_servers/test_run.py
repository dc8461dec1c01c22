"""Whole rounds: any number of codewords, threads and uploads, and halves that one server refuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from secagg.choices import SharingMode
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.run import run
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import BATCH
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

CHECKED, UNCHECKED = SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS
SMALL = Layout((RingSegment(20, 3), IndexSegment(5, 3)))
SETUP = IndexingSetup(layout=SMALL)


def joined(made: InsecureIndexingRound, payloads: Sequence[Payload] = ()) -> list[Client]:
    given = payloads or [made.setup.payload_of(number) for number in range(1, len(made.clients) + 1)]
    return [
        client.session(payload, task=made.setup.task, round_number=made.setup.round_number)
        for client, payload in zip(made.clients, given, strict=False)
    ]


def ran(made: InsecureIndexingRound, **named: Any) -> tuple[RoundResult, RoundResult]:
    return run(made.zero, made.one, joined(made), **named)


def ideal(setup: IndexingSetup, numbers: Sequence[int]) -> Aggregate:
    payloads = [setup.payload_of(number) for number in numbers]
    return ideal_aggregate(setup.layout, payloads)


def test_the_ends_of_every_codebook_are_counted() -> None:
    """All clients choose the first codeword in one block and the last in the next, so counts reach the total."""
    setup = replace(SETUP, layout=Layout((IndexSegment(5, 2), IndexSegment(9, 2))), maximum_cohort=126)
    made = InsecureIndexingRound(setup)
    assert made.configuration.largest_count == 126, "one below the modulus"
    payloads = [setup.payload_of(number) for number in (1, 2)]
    for payload in payloads:
        for segment, value in zip(setup.layout.segments, payload.values, strict=True):
            assert isinstance(segment, IndexSegment)
            value[:] = [0, segment.codewords - 1]
    results = run(made.zero, made.one, joined(made, payloads))
    for result in results:
        assert result.aggregate.encode() == ideal_aggregate(setup.layout, payloads).encode()


@pytest.mark.parametrize("mode", [CHECKED, UNCHECKED])
def test_threads_change_nothing(mode: SharingMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients and servers with two threads each."""
    init = IndexingServer.__init__

    def threaded(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **(named | {"threads": 2}))

    monkeypatch.setattr(IndexingServer, "__init__", threaded)
    layout = Layout((RingSegment(20, 3), IndexSegment(5, 40), IndexSegment(200, 40)))
    setup = replace(SETUP, layout=layout, mode=mode, population=2)
    made = InsecureIndexingRound(setup)
    for client in made.clients:
        client.threads = 2
    for result in ran(made):
        assert result.aggregate.encode() == ideal(setup, [1, 2]).encode()


@pytest.mark.parametrize("population", [BATCH, BATCH + 1, 2 * BATCH + 3])
def test_servers_speak_of_so_many_uploads_at_a_time(population: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = replace(
        SETUP, layout=Layout((IndexSegment(2, 1),)), mode=UNCHECKED, population=population, maximum_cohort=99
    )
    asked, held, propose = list[int](), list[int](), IndexingServer.propose

    def counting(self: IndexingServer, uploads: Sequence[bytes]) -> bytes:
        asked.append(len(uploads))
        held.append(len(self.waiting()))
        return propose(self, uploads)

    monkeypatch.setattr(IndexingServer, "propose", counting)
    for result in ran(InsecureIndexingRound(setup)):
        assert result.aggregate.encode() == ideal(setup, range(1, population + 1)).encode()
    assert sum(asked) == population
    assert max(asked) == max(held) == BATCH, "and hold no more before they do"


def crooked(monkeypatch: pytest.MonkeyPatch, numbers: set[int]) -> None:
    """Let the halves of some clients be altered where they arrive at server 1."""
    receive = IndexingServer.receive

    def altered(self: IndexingServer, message: bytes, sender: ClientId | None = None) -> bytes:
        client = int.from_bytes(message[16:24], "big")
        if self.server.index == 1 and client in numbers:
            message = message[:-1] + bytes([message[-1] ^ 1])
        return receive(self, message, sender)

    monkeypatch.setattr(IndexingServer, "receive", altered)


def test_a_half_that_one_server_does_not_take_costs_its_client_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = InsecureIndexingRound(replace(SETUP, layout=Layout((IndexSegment(5, 3), RingSegment(20, 3))), depth=0))
    crooked(monkeypatch, {2, 5})
    with caplog.at_level(logging.WARNING):
        results = ran(made)
    for result in results:
        assert [client.value for client in result.counted] == [1, 3, 4]
        assert result.aggregate.encode() == made.ideal([1, 3, 4]).encode()
    assert sum("rejects the upload" in record.message for record in caplog.records) == 2
    assert made.zero.waiting()
