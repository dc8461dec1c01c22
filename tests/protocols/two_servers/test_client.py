"""What a client refuses and clamps before it shares anything, and what a failure leaves of an upload.

Policies, offers, ledger and secrets of uploads that go through are in ``tests/adversaries/test_two_servers_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers.offers import Invitation, RoundOffers, RoundStamp, ServerOffer
from secagg.protocols.two_servers.upload import Upload
from secagg.session.ledger import NO_MODEL
from secagg.session.roles import LazyUpdate, Update
from secagg.session.signing_keys import issue_certificate
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound, SharingClient, invitation_of

ZERO, ONE = ServerId(0), ServerId(1)
LAYOUT = Layout((RingSegment(20, 3), IndexSegment(5, 3), RingSegment(7, 2)))
SETUP = IndexingSetup(population=1, layout=LAYOUT, capacity=60, depth=1)
ROUND = InsecureIndexingRound(SETUP)
"""Its servers hold nothing; what a test changes is the client's own."""


def client_of(**changes: Any) -> SharingClient:
    key = SETUP.signing_key_of("client 1")
    chosen: dict[str, Any] = {
        "certificate": issue_certificate(SETUP.signing_key_of("authority"), ClientId(1), key.public_key),
        "signing_key": key,
        "policy": ROUND.policy,
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
    }
    return client.share(SETUP.payload_of(1) if payload is None else payload, **(chosen | changes))


def test_two_uploads_of_one_update_share_nothing() -> None:
    first = share(client_of())
    second = share(client_of(coins=SETUP.coins_of("client 1, later")))
    for half, other in zip(first, second, strict=True):
        assert bytes(half.body) != bytes(other.body)
        assert half.header.segments[0].nonce != other.header.segments[0].nonce
        assert not set(half.sealed_seeds) & set(other.sealed_seeds)


@pytest.mark.parametrize(
    "changes",
    [
        {"round_number": 8},
        {"configuration": replace(ROUND.configuration, task=b"another")},
        {"layout": Layout(LAYOUT.segments, b"v" * 32)},
        {"is_simulated": True},
    ],
    ids=["another round", "another task", "another codec", "a simulated server"],
)
def test_a_round_of_something_else_is_refused_before_anything_is_spent(changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"configuration": ROUND.configuration, "round_number": 7, "is_simulated": False}
    chosen = usual | changes
    offers = RoundOffers(is_simulated=chosen["is_simulated"], offers=(ROUND.zero.offer, ROUND.one.offer))
    client = client_of(layout=changes.get("layout", LAYOUT))
    session = client.session(SETUP.payload_of(1), task=ROUND.configuration.task, round_number=7)
    with pytest.raises(InvalidParameters) as caught:
        session.answer(Invitation(chosen["round_number"], chosen["configuration"], offers).encode())
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert "from this client's" in str(caught.value) or chosen["is_simulated"]
    assert client.ledger.last(SETUP.task) == -1


@pytest.mark.parametrize("was_taken", [False, True], ids=["the update's ledger refuses", "the update was taken"])
def test_no_round_is_spent_on_an_update_that_is_not_made(was_taken: bool) -> None:  # noqa: FBT001 -- a parameter
    def refuse() -> None:
        raise PeerMisbehaved("a ledger of its own", reason=Reason.ALREADY_ANSWERED, culprits=NOBODY)

    client = client_of()
    session = client.session(SETUP.payload_of(1), task=SETUP.task, round_number=7)
    vars(session)["_update"] = update = LazyUpdate(
        lambda: Update(SETUP.payload_of(1), NO_MODEL), NO_MODEL, charge=(lambda: None) if was_taken else refuse
    )
    if was_taken:
        update.take(LAYOUT)
    with pytest.raises(Misuse if was_taken else PeerMisbehaved):
        session.answer(invitation_of(ROUND.configuration, 7, (ROUND.zero.offer, ROUND.one.offer)))
    assert client.ledger.last(SETUP.task) == -1


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


def test_one_key_of_both_servers_would_be_one_party() -> None:
    stamp = RoundStamp(context=ROUND.configuration.context, round_number=7, server=ONE)
    same = ServerOffer.signed(stamp, ROUND.zero.offer[48 : 48 + 32], SETUP.signing_key_of("server 1")).encode()
    client = client_of()
    with pytest.raises(PeerMisbehaved) as caught:
        share(client, offers=(ROUND.zero.offer, same))
    assert caught.value.reason is Reason.PUBLIC_KEY_REUSED
    assert caught.value.culprits == {ZERO, ONE}
    assert client.ledger.last(SETUP.task) == -1, "nothing is spent"


def test_policies_are_of_their_own_type() -> None:
    with pytest.raises(Misuse):
        share(client_of(policy=None))


@pytest.mark.parametrize("unpinned", ["authority", "server_keys"])
def test_a_client_that_pins_not_both_servers_and_their_authority_joins_nothing(unpinned: str) -> None:
    """Otherwise the inviting server would choose them."""
    none: dict[str, Any] = {unpinned: None}
    with pytest.raises(InvalidParameters, match="a client pins both servers: set authority and server_keys"):
        share(client_of(policy=replace(ROUND.policy, **none)))


@pytest.mark.parametrize("now", [None, NOW.timestamp(), NOW.replace(tzinfo=None)], ids=["none", "a number", "no zone"])
def test_a_clock_tells_the_time_of_a_zone(now: Any) -> None:
    """A time without one is read as local time, by which a round may not have expired yet."""
    client = client_of()
    with pytest.raises(Misuse, match="must be a datetime with a time zone"):
        share(client, now=now)
    assert client.ledger.last(SETUP.task) == -1


def test_nothing_secret_is_left_of_an_upload_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, bodies = list[Secret](), list[bytearray]()
    initialise: Callable[..., None] = Secret.__init__
    seal: Callable[..., memoryview] = vars(client_module)["seal_body"]

    def recording(self: Secret, kind: str, data: Any) -> None:
        initialise(self, kind, data)
        secrets.append(self)

    def failing(seed: Secret, server: ServerId, digest: bytes, body: bytearray) -> memoryview:
        bodies.append(body)
        if server == ONE:
            raise Misuse("sealing fails")
        return seal(seed, server, digest, body)

    client = client_of()
    monkeypatch.setattr(Secret, "__init__", recording)
    monkeypatch.setattr(client_module, "seal_body", failing)
    with pytest.raises(Misuse, match="sealing fails"):
        share(client)
    assert {"upload seed", "point function seed", "ring_mask_key"} <= {secret.kind for secret in secrets}
    assert all(secret.is_wiped for secret in secrets)
    assert len(bodies) == 2
    assert not any(any(body) for body in bodies)
