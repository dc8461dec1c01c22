"""Uploads that a server does not take: altered, moved, stolen, of nobody, or halves of two uploads.

| attack | defence |
|---|---|
| any byte of a half is altered, or some are missing | signature, HPKE and AES-GCM cover all of them |
| a half goes to the other server | it says for which server it is, and so do all its keys |
| whoever relays a half squats its id with another body | nothing is remembered of a half that does not open |
| a thief signs another's upload, or takes parts of it | everything is bound to the header, and it to the client |
| one upload is relayed under invented names | an authority certifies clients; the halves are bound to one of them |
| two certificates for one client | a client is counted by its id, once |
| a client weighs what nobody may | weights are a list that the configuration holds |
| a lane, a length or a proof that no honest client sends | it is refused on arrival |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, MalformedMessage, PeerError, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.one_hot.statement import OneHotProof
from secagg.protocols.two_servers.point_functions.shares import CorrectionWords, ExplicitShare
from secagg.protocols.two_servers.upload import Upload, UploadHeader
from secagg.session.certificates import Certificate, issue_certificate
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

FIRST, SECOND = ClientId(1), ClientId(2)
SETUP = IndexingSetup(weights=(1, 3))
ONE_SEGMENT = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
Check = Callable[..., Any]


@pytest.fixture
def made() -> InsecureIndexingRound:
    """Begin a round in which the third, the fourth and the fifth client were counted already."""
    made = InsecureIndexingRound(SETUP)
    for number in (3, 4, 5):
        made.upload(number)
    made.check()
    return made


def signed(made: InsecureIndexingRound, number: int, half: Upload, **changes: Any) -> bytes:
    """Let a corrupt client put its own name and signature under a half with another header."""
    key = made.setup.signing_key_of(f"client {number}")
    certificate = issue_certificate(made.setup.signing_key_of("authority"), ClientId(number), key.public_key)
    forged = replace(half, header=replace(half.header, **({"certificate": certificate} | changes)))
    return replace(forged, signature=forged.signature_by(key, made.configuration)).encode()


# --- Altered on the way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [0, 1])
def test_no_bit_of_a_half_can_be_altered(
    server: int, made: InsecureIndexingRound, memory_of: Callable[..., object]
) -> None:
    message = made.share(1)[server].encode()
    before = memory_of(made.servers[server])
    positions = {*range(0, len(message), 7), *range(200), *range(len(message) - 40, len(message))}
    for position in sorted(positions):
        altered = bytearray(message)
        altered[position] ^= 1 << position % 8
        with pytest.raises(PeerError):
            made.servers[server].receive(bytes(altered))
    assert memory_of(made.servers[server]) == before
    made.servers[server].receive(message)


@pytest.mark.parametrize("server", [0, 1])
def test_a_half_has_one_length(server: int, made: InsecureIndexingRound, raises_exactly: Check) -> None:
    message, receiver = made.share(1)[server].encode(), made.servers[server]
    for cut in {*range(0, len(message), 11), len(message) - 1}:
        raises_exactly(
            lambda cut=cut: receiver.receive(message[:cut]), MalformedMessage, Reason.TRUNCATED, unchanged=[receiver]
        )
    for more in (b"\0", message):
        raises_exactly(
            lambda more=more: receiver.receive(message + more),
            MalformedMessage,
            Reason.TRAILING_BYTES,
            unchanged=[receiver],
        )


def test_what_is_no_upload_is_not_read(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    message = made.one.propose(())
    raises_exactly(lambda: made.zero.receive(message), UnexpectedMessage, Reason.WRONG_KIND, unchanged=[made.zero])


@pytest.mark.parametrize("server", [0, 1])
def test_a_half_is_for_one_server(server: int, made: InsecureIndexingRound, raises_exactly: Check) -> None:
    halves, receiver = made.share(1), made.servers[server]
    raises_exactly(
        lambda: receiver.receive(halves[1 - server].encode()),
        MalformedMessage,
        Reason.NOT_CANONICAL,
        unchanged=[receiver],
    )


def test_a_body_of_the_other_server_does_not_open_even_where_the_lengths_agree(raises_exactly: Check) -> None:
    """A tree without rings or proofs is a seed at either server."""
    setup = IndexingSetup(layout=Layout((IndexSegment(8, 5),)), mode=SharingMode.UNCHECKED_POINT_FUNCTIONS, depth=1)
    made = InsecureIndexingRound(setup)
    zero, one = made.share(1)
    assert len(zero.body) == len(one.body)
    moved = replace(zero, body=one.body)
    raises_exactly(lambda: made.zero.receive(moved.encode()), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)
    swapped = replace(zero, sealed_seeds=zero.sealed_seeds[::-1])
    key = setup.signing_key_of("client 1")
    swapped = replace(swapped, body=one.body, signature=swapped.signature_by(key, made.configuration))
    raises_exactly(lambda: made.zero.receive(swapped.encode()), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


@pytest.mark.parametrize("part", ["body", "public_part"])
def test_nobody_can_squat_an_upload_with_another_body(
    part: str, made: InsecureIndexingRound, sum_is_exact: Check
) -> None:
    """The other server holds the header, both sealed seeds and the signature, and delivers them before the client."""
    halves = made.share(1)
    zeros: dict[str, Any] = {part: bytes(len(getattr(halves[1], part)))}
    squatting = replace(halves[1], **zeros)
    with pytest.raises(PeerError):
        made.one.receive(squatting.encode())
    made.deliver(halves)
    with pytest.raises(PeerError):
        made.one.receive(replace(squatting, signature=bytes(64)).encode())
    made.check()
    sum_is_exact(made, 1, 3, 4, 5)


@pytest.mark.parametrize("suite", Suite)
def test_the_same_half_again_changes_nothing(suite: Suite, memory_of: Callable[..., object]) -> None:
    made = InsecureIndexingRound(replace(SETUP, suite=suite))
    halves = made.share(1)
    for server, half in zip(made.servers, halves, strict=True):
        upload_id = server.receive(half.encode())
        before = memory_of(server)
        assert server.receive(half.encode()) == upload_id
        assert memory_of(server) == before


# --- Another's name ---------------------------------------------------------------------------------------------------


def test_a_thief_cannot_sign_for_another(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    for server, half in zip(made.servers, made.share(1), strict=True):
        forged = replace(half, signature=half.signature_by(made.setup.signing_key_of("client 2"), made.configuration))
        raises_exactly(
            lambda server=server, forged=forged: server.receive(forged.encode()),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            unchanged=[server],
        )


def test_an_upload_is_not_relayed_under_another_name(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    """A certified client that works for a server hands in another's upload as its own."""
    for server, half in zip(made.servers, made.share(1), strict=True):
        stolen = signed(made, 2, half)
        raises_exactly(
            lambda server=server, stolen=stolen: server.receive(stolen),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            unchanged=[server],
        )


def test_invented_names_are_nobodys(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    halves = made.share(1)
    for number in range(100, 120):
        stranger = made.setup.signing_key_of(f"client {number}")
        other_authority = made.setup.signing_key_of("server 1")
        for server, half in zip(made.servers, halves, strict=True):
            certificate = issue_certificate(other_authority, ClientId(number), stranger.public_key)
            invented = signed(made, number, half, certificate=certificate)
            raises_exactly(
                lambda server=server, invented=invented: server.receive(invented),
                AuthenticationFailed,
                Reason.AUTHENTICATION_FAILED,
                unchanged=[server],
            )


def test_a_certificate_is_for_one_client_and_one_key(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    half = made.share(1)[0]
    genuine = half.header.certificate
    other = made.setup.signing_key_of("client 2").public_key
    for certificate in (
        Certificate(ClientId(9), genuine.public_key, genuine.signature),
        Certificate(FIRST, other, genuine.signature),
    ):
        raises_exactly(
            lambda certificate=certificate: made.zero.receive(signed(made, 1, half, certificate=certificate)),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            unchanged=[made.zero],
        )


def test_a_client_with_two_keys_is_one_client(made: InsecureIndexingRound, raises_exactly: Check) -> None:
    made.upload(1)
    setup, authority = made.setup, made.setup.signing_key_of("authority")
    second_key = setup.signing_key_of("client 2")
    twin = made.new_client(1)
    twin.certificate = issue_certificate(authority, FIRST, second_key.public_key)
    twin.signing_key = second_key
    made.clients[0] = twin
    for server, half in zip(made.servers, made.share(1), strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            PeerMisbehaved,
            Reason.ALREADY_ANSWERED,
            FIRST,
            unchanged=[server],
        )


# --- Everything in the header -----------------------------------------------------------------------------------------


def header_changes(header: UploadHeader, other: UploadHeader) -> dict[str, dict[str, Any]]:
    first, *further = header.segments
    return {
        "weight": {"weight": 3},
        "nonce": {"segments": (replace(first, nonce=other.segments[0].nonce), *further)},
        "correction": {"segments": (first, replace(further[0], correction_digest=other.segments[1].correction_digest))},
        "order": {"segments": header.segments[::-1]},
    }


@pytest.mark.parametrize("what", ["weight", "nonce", "correction", "order"])
def test_nothing_in_the_header_can_be_exchanged_under_what_is_sealed(
    what: str, made: InsecureIndexingRound, raises_exactly: Check
) -> None:
    """Not even by the client itself, which signs it again; and a relay cannot sign."""
    halves, others = made.share(1), made.share(2)
    changes = header_changes(halves[0].header, others[0].header)[what]
    for server, half in zip(made.servers, halves, strict=True):
        unsigned = replace(half, header=replace(half.header, **changes)).encode()
        for message in (unsigned, signed(made, 1, half, **changes)):
            raises_exactly(
                lambda server=server, message=message: server.receive(message),
                AuthenticationFailed,
                Reason.AUTHENTICATION_FAILED,
                unchanged=[server],
            )


def anything_fits(*_: object) -> None:
    """Stand for what an honest client checks of itself."""


@pytest.mark.parametrize("weight", [0, 2, 4, (1 << 32) - 1])
def test_a_weight_that_nobody_may_have_is_refused(
    weight: int, made: InsecureIndexingRound, raises_exactly: Check
) -> None:
    halves = [replace(half, header=replace(half.header, weight=weight)) for half in made.share(1)]
    messages = [signed(made, 1, half) for half in halves]
    for server, message in zip(made.servers, messages, strict=True):
        raises_exactly(
            lambda server=server, message=message: server.receive(message),
            PeerMisbehaved,
            Reason.INPUT_OUT_OF_RANGE,
            FIRST,
            unchanged=[server],
        )


# --- What no honest client sends --------------------------------------------------------------------------------------


def test_a_proof_for_the_other_server_is_refused_on_arrival(raises_exactly: Check) -> None:
    """They have different lengths, so that it is seen at once."""
    made = InsecureIndexingRound(replace(SETUP, layout=ONE_SEGMENT))
    shape = made.configuration.check_shape(made.configuration.index_segments[0][1])
    genuine = OneHotProof.encode

    def encode(self: OneHotProof, of: Any) -> bytes:
        encoded = bytearray(genuine(self, of))
        encoded[7] ^= 1
        return bytes(encoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneHotProof, "encode", encode)
        forged = made.share(1)
    assert shape.proof_points > 0
    for server, half, reason in zip(made.servers, forged, (Reason.TRUNCATED, Reason.TRAILING_BYTES), strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            MalformedMessage,
            reason,
            ClientId(1),
            unchanged=[server],
        )


@pytest.mark.parametrize(("kind", "place"), [(ExplicitShare, slice(0, 3)), (CorrectionWords, slice(-10, -7))])
def test_a_lane_that_is_none_is_refused_on_arrival(kind: Any, place: slice, raises_exactly: Check) -> None:
    """127 has seven bits like all lanes, and is no element of the field."""
    made = InsecureIndexingRound(replace(SETUP, layout=ONE_SEGMENT, depth=0 if kind is ExplicitShare else 1))
    genuine = kind.encode

    def encode(self: Any) -> bytes:
        encoded = bytearray(genuine(self))
        encoded[place] = b"\xff" * 3
        return bytes(encoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "encode", encode)
        forged = made.share(1)
    raises_exactly(
        lambda: made.one.receive(forged[1].encode()),
        MalformedMessage,
        Reason.NOT_CANONICAL,
        # What was sealed is the client's; what was not may have been altered on the way.
        *([FIRST] if kind is ExplicitShare else []),
        unchanged=[made.one],
    )


def test_where_there_are_no_correction_words_there_is_no_digest_of_any(
    raises_exactly: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second header for one upload would be a second encoding of it."""
    made = InsecureIndexingRound(replace(SETUP, layout=ONE_SEGMENT, depth=0))

    def something(_: object) -> bytes:
        return bytes(range(32))

    with monkeypatch.context() as patch:
        patch.setattr(upload_module, "_correction_digest", something)
        forged = made.share(1)
    for server, half in zip(made.servers, forged, strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            MalformedMessage,
            Reason.NOT_CANONICAL,
            FIRST,
            unchanged=[server],
        )
