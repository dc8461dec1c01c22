"""One half of an upload, from bytes to shares: who made it and for what, what it holds, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, MalformedMessage, Misuse, PeerError, Reason
from secagg.identifiers import ClientId, Party, ServerId
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.offers import Entry, RoundStamp, ServerOffer
from secagg.protocols.two_servers.one_hot.check import RoundChallenges
from secagg.protocols.two_servers.opened_upload import HalfOpener, OpenedUpload
from secagg.protocols.two_servers.upload import Upload, open_body, seal_body
from secagg.session.certificates import issue_certificate
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

ZERO, ONE = ServerId(0), ServerId(1)
SERVERS = (ZERO, ONE)
CLIENT = ClientId(1)
LAYOUT = Layout((RingSegment(20, 3), IndexSegment(5, 3), RingSegment(7, 2)))
SETUP = IndexingSetup(population=2, layout=LAYOUT, capacity=1 << 20, depth=1, weights=(1, 3))
CONFIGURATION = SETUP.configuration


def opener(server: ServerId, setup: IndexingSetup = SETUP, root: int = 0) -> HalfOpener:
    made = setup.configuration
    with Secret("root", bytes([16 * root + server.index] * 32)) as secret, setup.pair_key() as pair_key:
        challenges = RoundChallenges(pair_key, made.context, setup.round_number)
        return HalfOpener(made, server, setup.round_number, secret, challenges)


def halves(
    setup: IndexingSetup = SETUP, *, round_number: int | None = None, number: int = 1, weight: int = 3
) -> tuple[Upload, Upload]:
    """Let a client share its input with the openers of both servers."""
    made, at = setup.configuration, setup.round_number if round_number is None else round_number
    offers = [
        ServerOffer.signed(
            RoundStamp(context=made.context, round_number=at, server=server),
            opener(server, setup).sealing_key,
            setup.signing_key_of(f"server {server.index}"),
        ).encode()
        for server in SERVERS
    ]
    client = InsecureIndexingRound(setup).clients[number - 1]
    payload = setup.payload_of(number)
    return client.share(
        payload, configuration=made, round_number=at, offers=(offers[0], offers[1]), now=NOW, weight=weight
    )


HALVES = halves()


def opened(half: Upload, setup: IndexingSetup = SETUP) -> OpenedUpload:
    by = opener(half.server, setup)
    return by.open(by.read(half.encode()))


def is_refused(call: Callable[[], object], kind: type[PeerError], reason: Reason, *culprits: Party) -> None:
    with pytest.raises(PeerError) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.reason is reason
    assert caught.value.culprits == set(culprits)


# --- What comes out ---------------------------------------------------------------------------------------------------


def test_both_servers_know_an_upload_by_one_entry() -> None:
    zero, one = (opened(half) for half in HALVES)
    assert zero.entry == one.entry == Entry(CLIENT, HALVES[0].upload_id(CONFIGURATION), 3)
    assert zero.mask_key is not None
    assert zero.vectors == []
    assert one.mask_key is None
    assert len(one.vectors) == 2


@pytest.mark.parametrize("server", SERVERS)
def test_a_half_is_opened_as_often_as_it_comes(server: ServerId) -> None:
    by, message = opener(server), HALVES[server.index].encode()
    first, second = by.open(by.read(message)), by.open(by.read(message))
    assert first.entry == second.entry
    if server == ONE:
        for one, other in zip(first.vectors, second.vectors, strict=True):
            np.testing.assert_array_equal(one, other)


# --- Who made it, and for what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
def test_the_authority_vouches_for_the_client(server: ServerId) -> None:
    half, key = HALVES[server.index], SETUP.signing_key_of("client 1")
    stolen = issue_certificate(SETUP.signing_key_of("authority"), ClientId(2), key.public_key)
    uncertified = issue_certificate(SETUP.signing_key_of("another authority"), CLIENT, key.public_key)
    other_client = replace(uncertified, client=ClientId(2))
    for certificate in (uncertified, other_client):
        made = replace(half, header=replace(half.header, certificate=certificate))
        made = replace(made, signature=made.signature_by(key, CONFIGURATION))
        is_refused(
            lambda made=made: opener(server).read(made.encode()),  # type: ignore[misc]
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
        )
    made = replace(half, header=replace(half.header, certificate=stolen))
    opener(server).read(replace(made, signature=made.signature_by(key, CONFIGURATION)).encode())


# --- What it holds ----------------------------------------------------------------------------------------------------


def signed(half: Upload) -> Upload:
    return replace(half, signature=half.signature_by(SETUP.signing_key_of("client 1"), CONFIGURATION))


@pytest.mark.parametrize("server", SERVERS)
def test_seeds_are_sealed_to_this_server_for_this_header(server: ServerId) -> None:
    half = HALVES[server.index]
    seeds = (half.sealed_seeds[1], half.sealed_seeds[0])
    for other in (
        signed(replace(half, sealed_seeds=seeds)),
        signed(replace(half, header=replace(half.header, weight=1))),
    ):
        is_refused(lambda other=other: opened(other), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)  # type: ignore[misc]
    by = opener(server, root=1)
    is_refused(lambda: by.open(by.read(half.encode())), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


def sealed_with(change: Callable[[bytearray], None], server: ServerId) -> Upload:
    """Let a client put something else into a body, and seal and sign it as if nothing were wrong."""

    def changed(seed: Secret, to: ServerId, digest: bytes, body: bytearray) -> memoryview:
        if to == server:
            change(body)
        return seal_body(seed, to, digest, body)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_module, "seal_body", changed)
        return halves()[server.index]


def test_what_is_sealed_is_parsed_as_strictly_as_what_is_not() -> None:
    def fill(body: bytearray) -> None:
        body[-1] |= 0x80

    def other_kind(body: bytearray) -> None:
        body[16 + 6] ^= 1

    with pytest.raises(MalformedMessage) as caught:
        opened(sealed_with(fill, ONE))
    assert caught.value.culprits == {CLIENT}
    for server in SERVERS:
        with pytest.raises(PeerError) as other:
            opened(sealed_with(other_kind, server))
        assert other.value.culprits == {CLIENT}


# --- What is left of it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
def test_a_body_is_overwritten_whether_it_was_right_or_not(server: ServerId, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, seeds = list[bytearray](), list[Secret]()

    def recorded(seed: Secret, *args: Any, **named: Any) -> bytearray:
        seeds.append(seed)
        bodies.append(open_body(seed, *args, **named))
        return bodies[-1]

    broken = sealed_with(lambda body: body.__setitem__(16 + 6, 0), server)
    monkeypatch.setattr(opened_upload, "open_body", recorded)
    opened(HALVES[server.index])
    with pytest.raises(PeerError):
        opened(broken)
    assert len(bodies) == 2
    assert not any(any(body) for body in bodies)
    assert all(seed.is_wiped for seed in seeds)


@pytest.mark.parametrize("server", SERVERS)
def test_an_opener_that_was_wiped_opens_nothing(server: ServerId) -> None:
    by = opener(server)
    upload = by.read(HALVES[server.index].encode())
    by.wipe()
    with pytest.raises(Misuse):
        by.open(upload)
