"""Offers and configurations that a client does not follow; and an upload, an update or a round again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.blame import unverified
from secagg.choices import SharingMode
from secagg.contract import Payload
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, InvalidParameters, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import ATTEMPTS, Suite
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.offers import ServerOffer
from secagg.protocols.two_servers.opened_upload import HalfOpener, OpenedUpload
from secagg.protocols.two_servers.upload import Upload
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import NO_MODEL
from secagg.session.signing_keys import issue_certificate
from tests.harness.indexing_rounds import MIXED_LAYOUT, NOW, IndexingSetup, InsecureIndexingRound, SharingClient

Check = Callable[..., Any]
SETUP = IndexingSetup(minimum_cohort=5)
Offers = tuple[bytes, bytes]


class NoCoins:
    """Coins of a client that must not begin to share."""

    def draw(self, count: int) -> bytearray:
        raise AssertionError(f"{count} coins are drawn for servers that are refused")


def client_of(made: InsecureIndexingRound, policy: ClientPolicy | None = None, **named: Any) -> SharingClient:
    setup = made.setup
    key = setup.signing_key_of("client 1")
    brings: dict[str, Any] = {
        "certificate": issue_certificate(setup.signing_key_of("authority"), ClientId(1), key.public_key),
        "layout": setup.layout,
        "capacity": setup.capacity,
        "coins": NoCoins(),
    }
    return SharingClient(signing_key=key, policy=policy or made.policy, **{**brings, **named})


def shares(made: InsecureIndexingRound, client: SharingClient, **named: Any) -> Any:
    given: dict[str, Any] = {
        "configuration": made.configuration,
        "round_number": 7,
        "offers": (made.zero.offer, made.one.offer),
        "now": NOW,
    }
    return client.share(made.setup.payload_of(1), **{**given, **named})


def is_below(made: InsecureIndexingRound, client: SharingClient, match: str, **named: Any) -> None:
    with pytest.raises(InvalidParameters, match=match) as caught:
        shares(made, client, **named)
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert client.ledger.last(SETUP.task) == -1


# --- Policy -----------------------------------------------------------------------------------------------------------


def key_of(party: str) -> bytes:
    return SETUP.signing_key_of(party).public_key


WEAKER: dict[str, tuple[dict[str, Any], str]] = {
    "suite": ({"suite": Suite.CLASSIC}, "suite"),
    "mode": ({"mode": SharingMode.UNCHECKED_POINT_FUNCTIONS}, "mode UNCHECKED_POINT_FUNCTIONS"),
    "authority": ({"authority": key_of("client 9")}, "is not the pinned one.*secagg keys follow"),
    "server 0": ({"server_keys": (key_of("client 9"), key_of("server 1"))}, "are not the pinned ones"),
    "server 1": ({"server_keys": (key_of("server 0"), key_of("client 9"))}, "are not the pinned ones"),
    "both swapped": ({"server_keys": (key_of("server 1"), key_of("server 0"))}, "are not the pinned ones"),
    "cohort": ({"minimum_cohort": 4}, "cohort of 4"),
    "layout": ({"layout": Layout(MIXED_LAYOUT.segments[:3])}, "layout"),
    "codebook": (
        {"layout": Layout((RingSegment(20, 6), IndexSegment(9, 5), RingSegment(7, 3), IndexSegment(200, 4)))},
        "layout",
    ),
    "expiry": ({"expiry": int(NOW.timestamp())}, "expired"),
}


@pytest.mark.parametrize("what", WEAKER)
def test_a_configuration_that_is_weaker_in_anything_is_refused(what: str) -> None:
    changes, match = WEAKER[what]
    made = InsecureIndexingRound(replace(SETUP, suite=Suite.HYBRID if what == "suite" else Suite.CLASSIC))
    is_below(made, client_of(made), match, configuration=replace(made.configuration, **changes))


def test_a_configuration_that_just_meets_the_policy_is_followed() -> None:
    made = InsecureIndexingRound(SETUP)
    client = client_of(made, coins=SETUP.coins_of("client 1"))
    shares(made, client, now=NOW + timedelta(days=1, seconds=-1))
    is_below(made, client_of(made), "expired", now=NOW + timedelta(days=1))


def test_a_client_with_default_policy_refuses_all_modes_but_the_checked_one() -> None:
    made = InsecureIndexingRound(SETUP)
    policy = made.policy
    default = ClientPolicy(
        suites=policy.suites,
        authority=policy.authority,
        server_keys=policy.server_keys,
        minimum_cohort=policy.minimum_cohort,
        maximum_length=policy.maximum_length,
    )
    assert default.sharings == {SharingMode.CHECKED_POINT_FUNCTIONS}
    for mode in set(SharingMode) - default.sharings:
        is_below(made, client_of(made, default), "mode", configuration=replace(made.configuration, mode=mode))


def test_longer_vectors_than_a_client_will_share_are_refused() -> None:
    made = InsecureIndexingRound(SETUP)
    short = replace(made.policy, maximum_length=made.policy.maximum_length - 1)
    is_below(made, client_of(made, short), "longer than")


def test_more_clients_than_the_codec_holds_are_refused() -> None:
    made = InsecureIndexingRound(SETUP)
    most = made.configuration.maximum_cohort
    with pytest.raises(InvalidParameters, match="capacity"):
        shares(made, client_of(made, capacity=most - 1))
    shares(made, client_of(made, capacity=most, coins=SETUP.coins_of("client 1")))


# --- In one hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["server 1", "client 1", "authority"])
def test_a_server_is_not_started_with_anothers_key(party: str) -> None:
    made = InsecureIndexingRound(SETUP)
    with pytest.raises(InvalidParameters, match="the signing key differs"):
        made.new_server(0, signing_key=SETUP.signing_key_of(party))


def test_a_client_of_another_authority_is_not_even_made() -> None:
    made = InsecureIndexingRound(SETUP)
    key = SETUP.signing_key_of("client 1")
    stranger = issue_certificate(SETUP.signing_key_of("server 1"), ClientId(1), key.public_key)
    with pytest.raises(AuthenticationFailed):
        shares(made, client_of(made, certificate=stranger))
    other = issue_certificate(SETUP.signing_key_of("authority"), ClientId(1), key_of("client 2"))
    with pytest.raises(InvalidParameters, match="does not match the signing key"):
        shares(made, client_of(made, certificate=other))


# --- Offers -----------------------------------------------------------------------------------------------------------


def is_refused(made: InsecureIndexingRound, offers: Offers, raises_exactly: Check, *outcome: Any) -> None:
    client = client_of(made)
    raises_exactly(lambda: shares(made, client, offers=offers), *outcome)
    assert client.ledger.last(SETUP.task) == -1


def offered(made: InsecureIndexingRound, index: int, signer: str, **changes: Any) -> bytes:
    key = bytes(made.servers[1 - index].offer[48:80])
    return ServerOffer.signed(made.stamp(index, **changes), key, SETUP.signing_key_of(signer)).encode()


@pytest.mark.parametrize("signer", ["server 1", "client 1", "authority"])
def test_a_server_does_not_offer_a_key_in_the_others_name(signer: str, raises_exactly: Check) -> None:
    """With both keys it would hold both halves."""
    made = InsecureIndexingRound(SETUP)
    forged = offered(made, 0, signer)
    outcome = AuthenticationFailed, Reason.AUTHENTICATION_FAILED, ServerId(0)
    is_refused(made, (forged, made.one.offer), raises_exactly, *outcome)


@pytest.mark.parametrize("weak", [bytes(32), (1).to_bytes(32, "little"), b"\xff" * 32])
def test_a_weak_key_is_refused_although_its_server_signed_it(weak: bytes) -> None:
    made = InsecureIndexingRound(SETUP)
    signed = ServerOffer.signed(made.stamp(1), weak, SETUP.signing_key_of("server 1")).encode()
    with pytest.raises(PeerError) as caught:
        shares(made, client_of(made), offers=(made.zero.offer, signed))
    assert caught.value.reason in {Reason.PUBLIC_KEY_LOW_ORDER, Reason.PUBLIC_KEY_NOT_CANONICAL}
    assert caught.value.culprits == {ServerId(1)}


# --- Everything again -------------------------------------------------------------------------------------------------


ROUND = IndexingSetup(layout=Layout((RingSegment(20, 16), IndexSegment(8, 16))))


@pytest.fixture
def made() -> InsecureIndexingRound:
    """Begin a round in which the fourth and the fifth client were counted already."""
    made = InsecureIndexingRound(ROUND)
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
    both_refuse(made, again, PeerMisbehaved, Reason.ALREADY_ANSWERED)
    made.check()
    sum_is_exact(made, 1, 4, 5)


def test_the_order_in_which_halves_arrive_does_not_matter(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(ROUND)
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


def costs_nothing(
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
    made, again = InsecureIndexingRound(ROUND), InsecureIndexingRound(replace(ROUND, **other))
    client = made.clients[0]
    share_in(made, client, ROUND.payload_of(1))
    costs_nothing(raises_exactly, again, client, ROUND.payload_of(2), PeerMisbehaved, Reason.ALREADY_ANSWERED)


def test_a_share_that_is_refused_has_spent_nothing_and_one_that_failed_has(
    raises_exactly: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InsecureIndexingRound(ROUND)
    client, payload = made.clients[0], ROUND.payload_of(1)
    with pytest.raises(PeerMisbehaved):
        client.share(
            payload, configuration=made.configuration, round_number=7, offers=(made.one.offer, made.zero.offer), now=NOW
        )
    assert client.ledger.last(ROUND.task) == -1

    def fails(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Client, "_sealed", fails)
        with pytest.raises(OSError):  # noqa: PT011 -- the transport's own
            share_in(made, client, payload)
    costs_nothing(raises_exactly, made, client, payload, PeerMisbehaved, Reason.ALREADY_ANSWERED)


# --- Coins ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenedUpload]:
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
    rounds = [InsecureIndexingRound(ROUND), InsecureIndexingRound(replace(ROUND, **other))]
    number = 2 if what == "client" else 1
    rounds[1].clients[number - 1] = rounds[1].new_client(number)
    rounds[1].clients[number - 1].coins = ROUND.coins_of("client 1")
    halves = [
        share_in(made, made.clients[index - 1], ROUND.payload_of(1))
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
    made, later = InsecureIndexingRound(ROUND), InsecureIndexingRound(replace(ROUND, round_number=8))
    client, zero, one = made.clients[0], made.zero.offer, made.one.offer
    wrong: list[tuple[tuple[bytes, bytes], int]] = [
        ((later.zero.offer, one), 0),
        ((zero, later.one.offer), 1),
        ((zero, zero), 1),
        ((one, one), 0),
    ]
    for offered, culprit in wrong:
        step = partial(
            client.share, ROUND.payload_of(1), configuration=made.configuration, round_number=7, offers=offered, now=NOW
        )
        raises_exactly(step, PeerMisbehaved, Reason.WRONG_SESSION, *unverified(ServerId(culprit)))
    assert client.ledger.last(ROUND.task) == -1


def test_updates_of_one_model_are_in_few_rounds(raises_exactly: Check) -> None:
    """Of which the first may have failed after the uploads, by a server's doing or not."""
    model = b"m" * 32
    rounds = [InsecureIndexingRound(replace(SETUP, round_number=number)) for number in range(7, 8 + ATTEMPTS)]
    client = rounds[0].clients[0]
    for made in rounds[:-1]:
        share_in(made, client, SETUP.payload_of(1), model)
        client = rounds[0].new_client(1, client.ledger)
    before = client.ledger.last(SETUP.task), client.ledger.count(SETUP.task)
    again = partial(share_in, rounds[-1], client, SETUP.payload_of(2), model)
    raises_exactly(again, PeerMisbehaved, Reason.ALREADY_ANSWERED)
    assert (client.ledger.last(SETUP.task), client.ledger.count(SETUP.task)) == before
    share_in(rounds[-1], client, SETUP.payload_of(1), b"n" * 32)
