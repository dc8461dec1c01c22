"""Two servers that do not mean the same: other halves, another configuration, another round.

| attack | defence |
|---|---|
| the servers are given halves of two uploads | the id that both know is that of both halves together |
| one server has another configuration | its digest is in every key, signature and message; nothing is misaligned |
| an upload of one round is handed to another | the round is in every key, signature and message as well |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.upload import Upload
from secagg.session.certificates import issue_certificate
from tests.harness.indexing_rounds import MIXED_LAYOUT, NOW, IndexingSetup, InsecureIndexingRound

FIRST = ClientId(1)
SETUP = IndexingSetup(weights=(1, 3))
Check = Callable[..., Any]


def test_two_halves_of_two_uploads_are_counted_by_neither(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(SETUP)
    one_upload = made.share(1)
    made.clients[0] = made.new_client(1)
    payload = replace(made.setup.payload_of(1), values=made.setup.payload_of(2).values)
    another = made.share(1, payload=payload)
    assert made.zero.receive(one_upload[0].encode()) != made.one.receive(another[1].encode())
    for number in (2, 3):
        made.upload(number)
    made.check()
    sum_is_exact(made, 2, 3)


OTHERS: dict[str, dict[str, Any]] = {
    "task": {"task": b"another task"},
    "blocks": {"layout": Layout((RingSegment(20, 6), IndexSegment(8, 6), RingSegment(7, 3), IndexSegment(200, 4)))},
    "codewords": {"layout": Layout((RingSegment(20, 6), IndexSegment(7, 5), RingSegment(7, 3), IndexSegment(200, 4)))},
    "ring": {"layout": Layout((RingSegment(21, 6), IndexSegment(8, 5), RingSegment(7, 3), IndexSegment(200, 4)))},
    "order": {"layout": Layout(MIXED_LAYOUT.segments[::-1])},
    "mode": {"mode": SharingMode.UNCHECKED_POINT_FUNCTIONS},
    "depth": {"depth": 2},
    "lanes": {"maximum_cohort": 100},
    "cohort": {"maximum_cohort": 21},
    "minimum": {"minimum_cohort": 3},
    "rejections": {"maximum_rejections": 4},
    "weights": {"weights": (1, 2, 3)},
    "suite": {"suite": Suite.HYBRID},
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("deviant", [0, 1])
def test_a_server_with_another_configuration_understands_nothing(
    deviant: int, what: str, raises_exactly: Check
) -> None:
    """Neither what clients send nor what the other server says; and a client refuses its offer."""
    made, other = InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, **OTHERS[what]))
    genuine, astray = made.servers[1 - deviant], other.servers[deviant]
    half, offers = made.share(1)[deviant].encode(), [made.zero.offer, made.one.offer]
    with pytest.raises(PeerError) as caught:
        astray.receive(half)
    assert caught.value.reason in {Reason.AUTHENTICATION_FAILED, Reason.TRUNCATED, Reason.TRAILING_BYTES}
    assert astray.waiting() == ()
    offers[deviant] = astray.offer
    raises_exactly(
        lambda: made.clients[1].share(
            made.setup.payload_of(2),
            configuration=made.configuration,
            round_number=7,
            offers=(offers[0], offers[1]),
            now=NOW,
        ),
        PeerMisbehaved,
        Reason.WRONG_SESSION,
        astray.server,
    )
    assert made.clients[1].ledger.last(made.setup.task) == -1
    said = other.one.propose(()) if deviant else other.zero.answer(other.one.propose(()))
    hear = genuine.answer if deviant else genuine.conclude
    raises_exactly(lambda: hear(said), PeerMisbehaved, Reason.WRONG_SESSION, astray.server, unchanged=[genuine])


def signed_for(made: InsecureIndexingRound, half: Upload, number: int) -> bytes:
    """Let the client itself put another round into the header, and sign it."""
    key = made.setup.signing_key_of("client 1")
    certificate = issue_certificate(made.setup.signing_key_of("authority"), FIRST, key.public_key)
    moved = replace(half, header=replace(half.header, certificate=certificate, round_number=number))
    return replace(moved, signature=moved.signature_by(key, made.configuration)).encode()


@pytest.mark.parametrize("number", [0, 6, 8, (1 << 64) - 1])
def test_an_upload_is_for_one_round(number: int, raises_exactly: Check) -> None:
    """The other round has the same keys, as if a server had used its root again."""
    made, other = InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, round_number=number))
    halves = made.share(1)
    for server, half in zip(other.servers, halves, strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            PeerMisbehaved,
            Reason.WRONG_SESSION,
            unchanged=[server],
        )
        moved = signed_for(other, half, number)
        raises_exactly(
            lambda server=server, moved=moved: server.receive(moved),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            unchanged=[server],
        )
