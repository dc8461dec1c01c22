"""Offers and configurations that a client does not follow, and servers that are not who they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, InvalidParameters, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from secagg.protocols.two_servers.offers import ServerOffer
from secagg.session.certificates import issue_certificate
from tests.harness.indexing_rounds import MIXED_LAYOUT, NOW, IndexingSetup, InsecureIndexingRound, SharingClient

Check = Callable[..., Any]
SETUP = IndexingSetup(minimum_cohort=5)
Offers = tuple[bytes, bytes]


class NoCoins:
    """Coins of a client that must not begin to share."""

    def draw(self, count: int) -> bytearray:
        raise AssertionError(f"{count} coins are drawn for servers that are refused")


def client_of(made: InsecureIndexingRound, floors: IndexingFloors | None = None, **named: Any) -> SharingClient:
    setup = made.setup
    key = setup.signing_key_of("client 1")
    brings: dict[str, Any] = {
        "certificate": issue_certificate(setup.signing_key_of("authority"), ClientId(1), key.public_key),
        "layout": setup.layout,
        "capacity": setup.capacity,
        "coins": NoCoins(),
    }
    return SharingClient(signing_key=key, floors=floors or made.floors, **{**brings, **named})


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


# --- Floors -----------------------------------------------------------------------------------------------------------


def key_of(party: str) -> bytes:
    return SETUP.signing_key_of(party).public_key


WEAKER: dict[str, tuple[dict[str, Any], str]] = {
    "suite": ({"suite": Suite.CLASSIC}, "suite"),
    "mode": ({"mode": SharingMode.UNCHECKED_POINT_FUNCTIONS}, "mode unchecked_point_functions"),
    "authority": ({"authority": key_of("client 9")}, "another authority"),
    "server 0": ({"server_keys": (key_of("client 9"), key_of("server 1"))}, "the servers are not the two"),
    "server 1": ({"server_keys": (key_of("server 0"), key_of("client 9"))}, "the servers are not the two"),
    "both swapped": ({"server_keys": (key_of("server 1"), key_of("server 0"))}, "the servers are not the two"),
    "cohort": ({"minimum_cohort": 4}, "cohort of 4"),
    "weight": ({"weights": (1, 2)}, "weigh 2"),
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


def test_a_configuration_that_just_meets_the_floors_is_followed() -> None:
    made = InsecureIndexingRound(SETUP)
    client = client_of(made, coins=SETUP.coins_of("client 1"))
    shares(made, client, now=NOW + timedelta(days=1, seconds=-1))
    is_below(made, client_of(made), "expired", now=NOW + timedelta(days=1))


def test_a_client_with_default_floors_refuses_all_modes_but_the_checked_one() -> None:
    made = InsecureIndexingRound(SETUP)
    floors = made.floors
    default = IndexingFloors(
        suites=floors.suites,
        authority=floors.authority,
        server_keys=floors.server_keys,
        minimum_cohort=floors.minimum_cohort,
        maximum_length=floors.maximum_length,
    )
    assert default.modes == {SharingMode.CHECKED_POINT_FUNCTIONS}
    for mode in set(SharingMode) - default.modes:
        is_below(
            made,
            client_of(made, default),
            "mode",
            configuration=replace(made.configuration, mode=mode),
        )


def test_longer_vectors_than_a_client_will_share_are_refused() -> None:
    made = InsecureIndexingRound(SETUP)
    short = replace(made.floors, maximum_length=made.floors.maximum_length - 1)
    is_below(made, client_of(made, short), "longer than")


def test_more_weight_than_the_codec_holds_is_refused() -> None:
    made = InsecureIndexingRound(SETUP)
    most = made.configuration.maximum_total_weight
    with pytest.raises(InvalidParameters, match="capacity"):
        shares(made, client_of(made, capacity=most - 1))
    shares(made, client_of(made, capacity=most, coins=SETUP.coins_of("client 1")))


@pytest.mark.parametrize(
    ("weight", "counts"), [(0, 1), (2, 1), (4, 3), (-1, 1), (True, 1), (3.0, 3), (1.0, 1), (1 << 40, 3)]
)
def test_a_client_has_a_weight_that_is_allowed(weight: Any, counts: int) -> None:
    """It is clamped to the greatest of the configuration's that is not above, because a refusal would tell it."""
    made = InsecureIndexingRound(replace(SETUP, weights=(1, 3)))
    halves = shares(made, client_of(made, coins=SETUP.coins_of("client 1")), weight=weight)
    assert [half.header.weight for half in halves] == [counts, counts]


# --- In one hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["server 1", "client 1", "authority"])
def test_a_server_is_not_started_with_anothers_key(party: str) -> None:
    made = InsecureIndexingRound(SETUP)
    with pytest.raises(InvalidParameters, match="the signing key is not the one"):
        made.new_server(0, signing_key=SETUP.signing_key_of(party))


def test_a_client_of_another_authority_is_not_even_made() -> None:
    made = InsecureIndexingRound(SETUP)
    key = SETUP.signing_key_of("client 1")
    stranger = issue_certificate(SETUP.signing_key_of("server 1"), ClientId(1), key.public_key)
    with pytest.raises(AuthenticationFailed):
        shares(made, client_of(made, certificate=stranger))
    other = issue_certificate(SETUP.signing_key_of("authority"), ClientId(1), key_of("client 2"))
    with pytest.raises(InvalidParameters, match="another key"):
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
