"""Everything again: an upload, an update, a round, a client that was restored from a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract import Payload
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.opened_upload import HalfOpener, OpenedUpload
from secagg.protocols.two_servers.upload import Upload
from secagg.session.ledger import NO_MODEL
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
SETUP = IndexingSetup(layout=Layout((RingSegment(20, 16), IndexSegment(8, 16))))


@pytest.fixture
def made() -> InsecureIndexingRound:
    """Begin a round in which the fourth and the fifth client were counted already."""
    made = InsecureIndexingRound(SETUP)
    made.upload(4, 5)
    made.check()
    return made


# --- Uploads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["received", "asked", "taken", "rejected"])
def test_an_upload_that_is_replayed_changes_nothing(
    when: str, made: InsecureIndexingRound, memory_of: Callable[..., object], sum_is_exact: Check
) -> None:
    halves = made.share(1)
    made.deliver(halves)
    proposal = made.one.propose(made.one.waiting()) if when != "received" else b""
    if when == "rejected":
        # The last byte is of the last commitment that server 1 makes.
        conclusion = made.one.conclude(made.zero.answer(proposal[:-1] + bytes([proposal[-1] ^ 1])))
        made.zero.settle(conclusion)
        assert set(made.zero.rejected) == {ClientId(1)}
    elif when == "taken":
        made.check()
    before = [memory_of(server) for server in made.servers]
    for _ in range(3):
        for server, half in zip(made.servers, halves, strict=True):
            server.receive(half.encode())
    assert [memory_of(server) for server in made.servers] == before
    if when != "rejected":
        made.check()
        sum_is_exact(made, 1, 4, 5)


@pytest.mark.parametrize("when", ["received", "asked", "taken"])
def test_another_nonce_is_a_second_vote_and_refused_by_both(
    when: str, made: InsecureIndexingRound, both_refuse: Check, sum_is_exact: Check
) -> None:
    """The client has lost its ledger, and not its coins."""
    first = made.share(1)
    made.deliver(first)
    if when == "asked":
        made.one.propose(made.one.waiting())
    elif when == "taken":
        made.check()
    second = made.new_client(1)
    second.coins.draw(7)
    made.clients[0] = second
    again = made.share(1)
    assert again[0].header.segments != first[0].header.segments
    both_refuse(made, again, PeerMisbehaved, Reason.ALREADY_ANSWERED, ClientId(1))
    made.check()
    sum_is_exact(made, 1, 4, 5)


def test_the_order_in_which_halves_arrive_does_not_matter(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(SETUP)
    halves = [made.share(number) for number in (1, 2, 3)]
    for zero, _ in halves:
        made.zero.receive(zero.encode())
    made.one.receive(halves[2][1].encode())
    made.check()
    for _, one in halves[::-1]:
        made.one.receive(one.encode())
        made.check()
    sum_is_exact(made, 1, 2, 3)


# --- The ledger -------------------------------------------------------------------------------------------------------


def offers(made: InsecureIndexingRound) -> tuple[bytes, bytes]:
    return made.zero.offer, made.one.offer


def share_in(
    made: InsecureIndexingRound, client: Any, payload: Payload, model: bytes = NO_MODEL
) -> tuple[Upload, Upload]:
    halves: tuple[Upload, Upload] = client.share(
        payload,
        configuration=made.configuration,
        round_number=made.setup.round_number,
        offers=offers(made),
        now=NOW,
        model_digest=model,
    )
    return halves


def is_refused(
    raises_exactly: Check,
    made: InsecureIndexingRound,
    client: Any,
    payload: Payload,
    *outcome: Any,
    model: bytes = NO_MODEL,
) -> None:
    task = made.setup.task
    before = client.ledger.last(task), client.ledger.count(task)
    raises_exactly(lambda: share_in(made, client, payload, model), *outcome)
    assert (client.ledger.last(task), client.ledger.count(task)) == before


@pytest.mark.parametrize(
    "other", [*({"round_number": number} for number in (0, 6, 7)), {"maximum_cohort": 19}], ids=str
)
def test_a_round_has_one_upload_and_rounds_go_up(other: dict[str, Any], raises_exactly: Check) -> None:
    """Under another configuration of the task as well."""
    made, again = InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, **other))
    client = made.clients[0]
    share_in(made, client, SETUP.payload_of(1))
    is_refused(raises_exactly, again, client, SETUP.payload_of(2), PeerMisbehaved, Reason.ALREADY_ANSWERED)


def test_a_share_that_is_refused_has_spent_nothing_and_one_that_failed_has(
    raises_exactly: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InsecureIndexingRound(SETUP)
    client, payload = made.clients[0], SETUP.payload_of(1)
    with pytest.raises(PeerMisbehaved):
        client.share(
            payload, configuration=made.configuration, round_number=7, offers=(made.one.offer, made.zero.offer), now=NOW
        )
    assert client.ledger.last(SETUP.task) == -1

    def fails(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Client, "_sealed", fails)
        with pytest.raises(OSError):  # noqa: PT011 -- the transport's own
            share_in(made, client, payload)
    is_refused(raises_exactly, made, client, payload, PeerMisbehaved, Reason.ALREADY_ANSWERED)


# --- Coins ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenedUpload]:
    """Collect what the servers open."""
    uploads = list[OpenedUpload]()
    genuine = HalfOpener.open

    def recording(self: HalfOpener, upload: Upload) -> OpenedUpload:
        uploads.append(genuine(self, upload))
        return uploads[-1]

    monkeypatch.setattr(HalfOpener, "open", recording)
    return uploads


def sent_to_server_1(upload: OpenedUpload) -> tuple[np.ndarray[Any, Any], bytes]:
    [half] = vars(upload.exchange)["_halves"]
    return upload.vectors[0], half.share.encode()


@pytest.fixture
def body_keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Collect the keys under which bodies are sealed, all of them with one nonce."""
    keys = list[bytes]()

    def recording(key: bytes) -> AESGCM:
        keys.append(bytes(key))
        return AESGCM(key)

    monkeypatch.setattr(upload_module, "AESGCM", recording)
    return keys


@pytest.mark.parametrize("what", ["round", "client", "configuration"])
def test_coins_that_repeat_repeat_no_mask(what: str, opened: list[OpenedUpload], body_keys: list[bytes]) -> None:
    """A client is restored from a snapshot, with its ledger, or two devices come from one image.

    The difference of two updates under one mask would be the difference of the updates.
    """
    other: Any = {"round": {"round_number": 8}, "configuration": {"maximum_cohort": 19}, "client": {}}[what]
    rounds = [InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, **other))]
    number = 2 if what == "client" else 1
    rounds[1].clients[number - 1] = rounds[1].new_client(number)
    rounds[1].clients[number - 1].coins = SETUP.coins_of("client 1")
    halves = [
        share_in(made, made.clients[index - 1], SETUP.payload_of(1))
        for made, index in zip(rounds, (1, number), strict=True)
    ]
    assert halves[0][0].header.segments[0].nonce == halves[1][0].header.segments[0].nonce, "the coins repeat"
    assert len(body_keys) == len(set(body_keys)) == 4
    for made, (_, half) in zip(rounds, halves, strict=True):
        made.one.receive(half.encode())
    (first, lanes), (second, other_lanes) = map(sent_to_server_1, opened)
    assert (first != second).sum() > 12, "elements of twenty bits, of which hardly any agree by chance"
    assert lanes != other_lanes


def test_an_offer_is_for_one_round_and_from_one_server(raises_exactly: Check) -> None:
    made, later = InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, round_number=8))
    client, zero, one = made.clients[0], made.zero.offer, made.one.offer
    wrong: list[tuple[tuple[bytes, bytes], int]] = [
        ((later.zero.offer, one), 0),
        ((zero, later.one.offer), 1),
        ((zero, zero), 1),
        ((one, one), 0),
    ]
    for offered, culprit in wrong:
        step = partial(
            client.share,
            SETUP.payload_of(1),
            configuration=made.configuration,
            round_number=7,
            offers=offered,
            now=NOW,
        )
        raises_exactly(step, PeerMisbehaved, Reason.WRONG_SESSION, ServerId(culprit))
    assert client.ledger.last(SETUP.task) == -1
