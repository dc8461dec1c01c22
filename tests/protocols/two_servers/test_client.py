"""What a client does before it shares anything, in what order, and that nothing secret is left."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.offers import RoundStamp, ServerOffer
from secagg.protocols.two_servers.upload import Upload, index_body_bytes, public_bytes, ring_bytes, seal_body
from secagg.session.certificates import Authority, issue_certificate
from secagg.session.ledger import Spent, SpentUpdates
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound, SharingClient

ZERO, ONE = ServerId(0), ServerId(1)
LAYOUT = Layout((RingSegment(20, 3), IndexSegment(5, 3), RingSegment(7, 2)))
SETUP = IndexingSetup(population=1, layout=LAYOUT, weights=(1, 3), capacity=60, depth=1)
ROUND = InsecureIndexingRound(SETUP)
"""Its servers hold nothing; what a test changes is the client's own."""


class CountedCoins:
    """Coins that say how many bytes were drawn, and fail where they are told to."""

    def __init__(self, coins: Any, limit: int = 1 << 40) -> None:
        self._coins, self.drawn, self._limit = coins, 0, limit

    def draw(self, count: int) -> bytearray:
        self.drawn += count
        if self.drawn > self._limit:
            raise Misuse("there are no more coins")
        drawn: bytearray = self._coins.draw(count)
        return drawn


def client_of(**changes: Any) -> SharingClient:
    key = SETUP.signing_key_of("client 1")
    chosen: dict[str, Any] = {
        "certificate": issue_certificate(SETUP.signing_key_of("authority"), ClientId(1), key.public_key),
        "signing_key": key,
        "floors": ROUND.floors,
        "layout": LAYOUT,
        "capacity": 60,
        "coins": SETUP.coins_of("client 1"),
    }
    return SharingClient(**(chosen | changes))


def share(client: SharingClient, *, payload: Any = None, **changes: Any) -> tuple[Upload, Upload]:
    chosen: dict[str, Any] = {
        "configuration": ROUND.configuration,
        "round_number": 7,
        "offers": (ROUND.zero.offer, ROUND.one.offer),
        "now": NOW,
        "weight": 3,
    }
    return client.share(SETUP.payload_of(1) if payload is None else payload, **(chosen | changes))


def shares_nothing(
    kind: type[SecAggError], saying: str | None = None, *, of: dict[str, Any] | None = None, **changes: Any
) -> SecAggError:
    """Check that a client refuses, before it has spent anything or drawn a coin."""
    coins = CountedCoins(SETUP.coins_of("client 1"))
    client = client_of(**({"coins": coins} | (of or {})))
    spent = client.ledger.last(SETUP.task)
    with pytest.raises(SecAggError, match=saying) as caught:
        share(client, **changes)
    assert type(caught.value) is kind
    assert coins.drawn == 0
    assert client.ledger.last(SETUP.task) == spent
    return caught.value


# --- What comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1])
def test_two_halves_have_one_header_one_signature_and_one_id(depth: int) -> None:
    session = InsecureIndexingRound(replace(SETUP, depth=depth))
    made = session.configuration
    zero, one = session.share(1, weight=3)
    assert (zero.server, one.server) == (ZERO, ONE)
    for name in ("header", "sealed_seeds", "signature"):
        assert getattr(zero, name) == getattr(one, name)
    assert zero.upload_id(made) == one.upload_id(made)
    assert (zero.header.round_number, zero.header.weight, zero.header.client) == (7, 3, ClientId(1))
    Authority(made.authority).verify(zero.header.certificate)
    zero.verify(made)
    one.verify(made)
    assert len(zero.header.segments) == 1
    assert len(zero.body) == index_body_bytes(made, ZERO) + 16
    assert len(one.body) == index_body_bytes(made, ONE) + ring_bytes(made) + 16
    assert len(zero.public_part) == 0
    assert len(one.public_part) == public_bytes(made)
    assert bool(depth) == bool(len(one.public_part))


def test_a_client_charges_its_ledger() -> None:
    client = client_of()
    share(client)
    assert client.ledger.last(SETUP.task) == 7
    assert client.client == ClientId(1)
    restarted = client_of(ledger=client.ledger, coins=SETUP.coins_of("another"))
    with pytest.raises(PeerMisbehaved) as caught:
        share(restarted)
    assert caught.value.reason is Reason.ALREADY_ANSWERED


def test_threads_change_nothing_but_what_hpke_draws() -> None:
    one, two = (share(client_of(threads=threads)) for threads in (1, 2))
    assert one[0].header == two[0].header
    for half, other in zip(one, two, strict=True):
        assert bytes(half.public_part) == bytes(other.public_part)


def test_two_uploads_of_one_update_share_nothing() -> None:
    first = share(client_of())
    second = share(client_of(coins=SETUP.coins_of("client 1, later")))
    for half, other in zip(first, second, strict=True):
        assert bytes(half.body) != bytes(other.body)
        assert half.header.segments[0].nonce != other.header.segments[0].nonce
        assert not set(half.sealed_seeds) & set(other.sealed_seeds)


# --- Before anything is shared ----------------------------------------------------------------------------------------


def test_the_floors_come_first() -> None:
    for floors in (
        {"minimum_cohort": 3},
        {"maximum_weight": 2},
        {"maximum_length": 7},
        {"suites": frozenset({Suite.HYBRID})},
        {"modes": frozenset({SharingMode.UNCHECKED_POINT_FUNCTIONS})},
        {"server_keys": ROUND.floors.server_keys[::-1]},
    ):
        changes: dict[str, Any] = floors
        error = shares_nothing(InvalidParameters, of={"floors": replace(ROUND.floors, **changes)})
        assert error.reason is Reason.BELOW_FLOOR
    error = shares_nothing(InvalidParameters, "expired", now=NOW + timedelta(days=1))
    assert error.reason is Reason.BELOW_FLOOR
    error = shares_nothing(InvalidParameters, of={"layout": replace(LAYOUT, version=b"v" * 32)})
    assert error.reason is Reason.BELOW_FLOOR


def test_the_time_has_a_zone() -> None:
    shares_nothing(Misuse, "time zone", now=datetime(2026, 1, 1))  # noqa: DTZ001 -- without a zone


def other_values(position: int, value: int) -> Payload:
    payload = SETUP.payload_of(1)
    payload.values[position][0] = value
    return payload


@pytest.mark.parametrize(
    "payload",
    [
        Payload(Layout(LAYOUT.segments, b"v" * 32), SETUP.payload_of(1).values),
        other_values(0, 1 << 20),
        other_values(1, 5),
        b"an update",
    ],
    ids=["another layout", "a value beyond its ring", "an index beyond its codebook", "no update"],
)
def test_an_update_that_does_not_fit_is_zeros_and_nobody_hears_of_it(payload: Any) -> None:
    """A refusal would tell a server about a client's data."""
    fits, does_not = share(client_of()), share(client_of(), payload=payload)
    for half, other in zip(fits, does_not, strict=True):
        assert len(half.encode()) == len(other.encode())
    assert does_not[0].header.weight == 1


@pytest.mark.parametrize(("weight", "counts"), [(0, 1), (2, 1), (4, 3), (-1, 1), (3.0, 3), (1 << 40, 3)])
def test_a_weight_is_the_greatest_of_the_configurations_that_is_not_above(weight: Any, counts: int) -> None:
    assert share(client_of(), weight=weight)[0].header.weight == counts


def test_the_codecs_capacity_covers_a_full_round_of_the_heaviest() -> None:
    assert ROUND.configuration.maximum_total_weight == 60
    shares_nothing(InvalidParameters, "capacity is 59", of={"capacity": 59})


def test_rounds_count_from_0() -> None:
    session = InsecureIndexingRound(replace(SETUP, round_number=0))
    assert session.share(1, weight=3)[0].header.round_number == 0


def offer(server: ServerId, **changes: Any) -> bytes:
    made = changes.pop("configuration", ROUND.configuration)
    stamp = RoundStamp(context=made.context, round_number=changes.pop("round_number", 7), server=server)
    key = SETUP.signing_key_of(changes.pop("signed by", f"server {server.index}"))
    sealing_key: bytes = changes.pop("sealing_key", ROUND.servers[server.index].offer[48 : 48 + 32])
    return ServerOffer.signed(stamp, sealing_key, key).encode()


@pytest.mark.parametrize("server", [ZERO, ONE])
def test_each_offer_is_that_of_its_server_for_this_round(server: ServerId) -> None:
    offers = [ROUND.zero.offer, ROUND.one.offer]

    def refused(wrong: bytes, kind: type[SecAggError], reason: Reason) -> None:
        given = list(offers)
        given[server.index] = wrong
        error: Any = shares_nothing(kind, offers=tuple(given))
        assert error.reason is reason
        assert error.culprits == {server}

    refused(offers[1 - server.index], PeerMisbehaved, Reason.WRONG_SESSION)
    refused(offer(server, round_number=8), PeerMisbehaved, Reason.WRONG_SESSION)
    other = replace(SETUP, task=b"b task").configuration
    refused(offer(server, configuration=other), PeerMisbehaved, Reason.WRONG_SESSION)
    for key in ("authority", f"server {1 - server.index}", "client 1"):
        refused(offer(server, **{"signed by": key}), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)
    altered = offers[server.index][:50] + b"\0" + offers[server.index][51:]
    refused(altered, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)
    refused(offers[server.index][:-1], MalformedMessage, Reason.TRUNCATED)
    refused(offer(server, sealing_key=bytes(32)), PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER)


def test_one_key_of_both_servers_would_be_one_party() -> None:
    offers = offer(ZERO), offer(ONE, sealing_key=ROUND.zero.offer[48 : 48 + 32])
    error: Any = shares_nothing(PeerMisbehaved, offers=offers)
    assert error.reason is Reason.PUBLIC_KEY_REUSED
    assert error.culprits == {ZERO, ONE}


def test_a_ledger_that_is_spent_is_the_last_to_refuse() -> None:
    spent = SpentUpdates()
    spent.charge(Spent(SETUP.task, 6))
    error = shares_nothing(PeerMisbehaved, of={"ledger": spent}, round_number=6, offers=offers_for(6))
    assert error.reason is Reason.ALREADY_ANSWERED


def offers_for(round_number: int) -> tuple[bytes, bytes]:
    return offer(ZERO, round_number=round_number), offer(ONE, round_number=round_number)


def test_an_upload_that_failed_is_spent() -> None:
    """Nobody can know what of it was seen."""
    client = client_of(coins=CountedCoins(SETUP.coins_of("client 1"), limit=8))
    with pytest.raises(Misuse, match="no more coins"):
        share(client)
    assert client.ledger.last(SETUP.task) == 7
    with pytest.raises(PeerMisbehaved):
        share(client)


# --- Construction -----------------------------------------------------------------------------------------------------


def test_a_client_holds_a_certificate_of_its_authority_for_its_own_key() -> None:
    key, other = SETUP.signing_key_of("client 1"), SETUP.signing_key_of("client 2")
    with pytest.raises(InvalidParameters, match="another key"):
        share(client_of(signing_key=other))
    foreign = issue_certificate(SETUP.signing_key_of("another authority"), ClientId(1), key.public_key)
    with pytest.raises(AuthenticationFailed) as caught:
        share(client_of(certificate=foreign))
    assert caught.value.culprits == {ClientId(1)}


def test_floors_are_of_their_own_type() -> None:
    with pytest.raises(Misuse):
        share(client_of(floors=None))


# --- Secrets ----------------------------------------------------------------------------------------------------------


class Recorded:
    """What passes through the functions that make secrets."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.secrets, self.bodies, self.indices = list[Secret](), list[bytearray](), list[Any]()

        def recorded(seed: Secret, server: ServerId, digest: bytes, body: bytearray) -> memoryview:
            self.secrets.append(seed)
            self.bodies.append(body)
            assert any(body)
            return seal_body(seed, server, digest, body)

        def ring_mask_key(*args: Any) -> Secret:
            self.secrets.append(real["ring_mask_key"](*args))
            return self.secrets[-1]

        def shared_indices(*args: Any, **named: Any) -> Any:
            self.indices.append(real["SharedIndices"](*args, **named))
            return self.indices[-1]

        made: dict[str, Callable[..., Any]] = {
            "seal_body": recorded,
            "ring_mask_key": ring_mask_key,
            "SharedIndices": shared_indices,
        }
        real: dict[str, Any] = {name: getattr(client_module, name) for name in made}
        for name, function in made.items():
            patched.setattr(client_module, name, function)

    def everything_is_wiped(self) -> bool:
        held: list[dict[str, Any]] = [vars(made) for made in self.indices]
        segments: list[Any] = [segment for fields in held for segment in fields["segments"]]
        seeds: list[Secret] = [part.seed for segment in segments for part in segment[-1] if hasattr(part, "seed")]
        assert seeds
        return all(secret.is_wiped for secret in (*self.secrets, *seeds)) and not any(any(b) for b in self.bodies)


def test_nothing_secret_is_left_of_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)
    share(client_of())
    assert (len(recorded.secrets), len(recorded.bodies)) == (3, 2)
    assert recorded.everything_is_wiped()


def test_nothing_secret_is_left_of_an_upload_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, bodies = Recorded(monkeypatch), list[bytearray]()
    seal: Callable[..., memoryview] = vars(client_module)["seal_body"]

    def failing(seed: Secret, server: ServerId, digest: bytes, body: bytearray) -> memoryview:
        bodies.append(body)
        if server == ONE:
            raise Misuse("sealing fails")
        return seal(seed, server, digest, body)

    monkeypatch.setattr(client_module, "seal_body", failing)
    with pytest.raises(Misuse, match="sealing fails"):
        share(client_of())
    assert recorded.everything_is_wiped()
    assert not any(any(body) for body in bodies)


def test_a_client_is_neither_copied_nor_pickled_nor_shown() -> None:
    client = client_of().session(SETUP.payload_of(1), task=SETUP.task, round_number=7)
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(Misuse):
            call(client)
    assert repr(client) == "<Client client/1>"
    assert "memory" not in repr(share(client_of()))


def test_the_update_is_not_changed() -> None:
    payload = SETUP.payload_of(1)
    before = [value.copy() for value in payload.values]
    share(client_of(), payload=payload)
    for value, expected in zip(payload.values, before, strict=True):
        np.testing.assert_array_equal(value, expected)
