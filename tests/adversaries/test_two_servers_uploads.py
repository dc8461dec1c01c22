"""Uploads that a server does not take, and a server that lies to the other one while they decide about uploads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.blame import between_servers, unverified
from secagg.choices import SharingMode
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, MalformedMessage, PeerError, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.opened_upload import public_bytes
from secagg.protocols.two_servers.point_functions.one_hot_proof import OneHotProof
from secagg.protocols.two_servers.point_functions.shares import CorrectionWords, ExplicitShare, TreeShare
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import MAXIMUM_BATCH, decode_batch, encode_batch
from secagg.protocols.two_servers.upload import Upload, UploadHeader
from secagg.session.certificates import Certificate
from secagg.session.signing_keys import issue_certificate
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import MIXED_LAYOUT, NOW, IndexingSetup, InsecureIndexingRound, flipped

FIRST, SECOND = ClientId(1), ClientId(2)
SETUP = IndexingSetup()
ONE_SEGMENT = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
Check = Callable[..., Any]


@pytest.fixture
def made() -> InsecureIndexingRound:
    """Begin a round in which the third, the fourth and the fifth client were counted already."""
    made = InsecureIndexingRound(SETUP)
    made.upload(3, 4, 5)
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
def test_a_half_is_for_one_server(server: int, made: InsecureIndexingRound, refuses: Check) -> None:
    halves, receiver = made.share(1), made.servers[server]
    refuses(receiver.receive, halves[1 - server].encode(), MalformedMessage, Reason.NOT_CANONICAL)


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


# --- Another's name ---------------------------------------------------------------------------------------------------


def test_a_thief_cannot_sign_for_another(made: InsecureIndexingRound, refuses: Check) -> None:
    for server, half in zip(made.servers, made.share(1), strict=True):
        forged = replace(half, signature=half.signature_by(made.setup.signing_key_of("client 2"), made.configuration))
        refuses(server.receive, forged.encode(), AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


def test_an_upload_is_not_relayed_under_another_name(made: InsecureIndexingRound, refuses: Check) -> None:
    """A certified client that works for a server hands in another's upload as its own."""
    for server, half in zip(made.servers, made.share(1), strict=True):
        stolen = signed(made, 2, half)
        refuses(server.receive, stolen, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


def test_invented_names_are_nobodys(made: InsecureIndexingRound, refuses: Check) -> None:
    halves = made.share(1)
    for number in range(100, 120):
        stranger = made.setup.signing_key_of(f"client {number}")
        other_authority = made.setup.signing_key_of("server 1")
        for server, half in zip(made.servers, halves, strict=True):
            certificate = issue_certificate(other_authority, ClientId(number), stranger.public_key)
            invented = signed(made, number, half, certificate=certificate)
            refuses(server.receive, invented, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


def test_a_certificate_is_for_one_client_and_one_key(made: InsecureIndexingRound, refuses: Check) -> None:
    half = made.share(1)[0]
    genuine = half.header.certificate
    other = made.setup.signing_key_of("client 2").public_key
    for certificate in (
        Certificate(ClientId(9), genuine.public_key, genuine.grant),
        Certificate(FIRST, other, genuine.grant),
    ):
        refuses(
            made.zero.receive,
            signed(made, 1, half, certificate=certificate),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
        )


def test_a_certificate_of_another_authority_lets_nobody_upload(made: InsecureIndexingRound, refuses: Check) -> None:
    """Everything else about the upload is genuine, so nothing but the certificate stops it."""
    half = made.share(1)[0]
    other = issue_certificate(made.setup.signing_key_of("server 1"), FIRST, half.header.certificate.public_key)
    stopped = signed(made, 1, half, certificate=other)
    refuses(made.zero.receive, stopped, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)
    made.zero.receive(half.encode())


def test_a_client_with_two_keys_is_one_client(made: InsecureIndexingRound, both_refuse: Check) -> None:
    made.upload(1)
    setup, authority = made.setup, made.setup.signing_key_of("authority")
    second_key = setup.signing_key_of("client 2")
    twin = made.new_client(1)
    twin.certificate = issue_certificate(authority, FIRST, second_key.public_key)
    twin.signing_key = second_key
    made.clients[0] = twin
    both_refuse(made, made.share(1), PeerMisbehaved, Reason.ALREADY_ANSWERED)


# --- Everything in the header -----------------------------------------------------------------------------------------


def header_changes(header: UploadHeader, other: UploadHeader) -> dict[str, dict[str, Any]]:
    first, *further = header.segments
    return {
        "nonce": {"segments": (replace(first, nonce=other.segments[0].nonce), *further)},
        "correction": {"segments": (first, replace(further[0], correction_digest=other.segments[1].correction_digest))},
        "order": {"segments": header.segments[::-1]},
    }


@pytest.mark.parametrize("what", ["nonce", "correction", "order"])
def test_nothing_in_the_header_can_be_exchanged_under_what_is_sealed(
    what: str, made: InsecureIndexingRound, refuses: Check
) -> None:
    """Not even by the client itself, which signs it again; and a relay cannot sign."""
    halves, others = made.share(1), made.share(2)
    changes = header_changes(halves[0].header, others[0].header)[what]
    for server, half in zip(made.servers, halves, strict=True):
        unsigned = replace(half, header=replace(half.header, **changes)).encode()
        for message in (unsigned, signed(made, 1, half, **changes)):
            refuses(server.receive, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


# --- What no honest client sends --------------------------------------------------------------------------------------


def test_a_proof_for_the_other_server_is_refused_on_arrival(refuses: Check) -> None:
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
        refuses(server.receive, half.encode(), MalformedMessage, reason, ClientId(1))


@pytest.mark.parametrize(("kind", "place"), [(ExplicitShare, slice(0, 3)), (CorrectionWords, slice(-10, -7))])
def test_a_lane_that_is_none_is_refused_on_arrival(kind: Any, place: slice, refuses: Check) -> None:
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
    refuses(
        made.one.receive,
        forged[1].encode(),
        MalformedMessage,
        Reason.NOT_CANONICAL,
        *([FIRST] if kind is ExplicitShare else []),
    )


def test_ring_elements_with_bits_behind_the_last_are_their_clients(refuses: Check) -> None:
    """They are sealed, so the client alone can have set the bits that fill the last byte."""
    layout = Layout((RingSegment(20, 7), IndexSegment(8, 5)))
    made, genuine = InsecureIndexingRound(replace(SETUP, layout=layout)), upload_module.masked_rings

    def padded(*given: Any, **named: Any) -> list[bytes]:
        (packed,) = genuine(*given, **named)
        return [bytes(packed[:-1]) + bytes([packed[-1] | 0x80])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "masked_rings", padded)
        forged = made.share(1)
    refuses(made.one.receive, forged[1].encode(), MalformedMessage, Reason.NOT_CANONICAL, FIRST)


def test_where_there_are_no_correction_words_there_is_no_digest_of_any(
    both_refuse: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second header for one upload would be a second encoding of it."""
    made = InsecureIndexingRound(replace(SETUP, layout=ONE_SEGMENT, depth=0))

    def something(_: object) -> bytes:
        return bytes(range(32))

    with monkeypatch.context() as patch:
        patch.setattr(upload_module, "_correction_digest", something)
        forged = made.share(1)
    both_refuse(made, forged, MalformedMessage, Reason.NOT_CANONICAL, FIRST)


# --- Servers that do not mean the same --------------------------------------------------------------------------------

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
    "suite": {"suite": Suite.HYBRID},
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("deviant", [0, 1])
def test_a_server_with_another_configuration_understands_nothing(
    deviant: int, what: str, raises_exactly: Check, refuses: Check
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
        *unverified(astray.server),
    )
    assert made.clients[1].ledger.last(made.setup.task) == -1
    said = other.one.propose(()) if deviant else other.zero.answer(other.one.propose(()))
    hear = genuine.answer if deviant else genuine.conclude
    refuses(hear, said, PeerMisbehaved, Reason.WRONG_SESSION, *between_servers())


@pytest.mark.parametrize("number", [0, 6, 8, (1 << 64) - 1])
def test_an_upload_is_for_one_round(number: int, both_refuse: Check) -> None:
    """The other round has the same keys, as if a server had used its root again; the client itself moves its upload."""
    made, other = InsecureIndexingRound(SETUP), InsecureIndexingRound(replace(SETUP, round_number=number))
    halves = made.share(1)
    both_refuse(other, halves, PeerMisbehaved, Reason.WRONG_SESSION)
    moved = [signed(other, 1, half, round_number=number) for half in halves]
    both_refuse(other, moved, AuthenticationFailed, Reason.AUTHENTICATION_FAILED)


# --- Counts that wrap -------------------------------------------------------------------------------------------------


def test_everybody_may_vote_for_one_codeword(both_refuse: Check) -> None:
    """One more would be q or more, and nobody's vote would be left of it."""
    layout, cohort = Layout((IndexSegment(3, 1),)), 126
    made = InsecureIndexingRound(
        replace(SETUP, layout=layout, maximum_cohort=cohort, population=cohort + 1, capacity=126)
    )
    assert made.configuration.group.order == 127
    payload = replace(made.setup.payload_of(1), values=(np.zeros_like(made.setup.payload_of(1).values[0]),))
    made.upload(*range(1, cohort + 1), payload=payload)
    both_refuse(made, made.share(cohort + 1, payload=payload), PeerMisbehaved, Reason.BUFFER_FULL)
    made.check()
    for result in made.finish():
        assert np.asarray(result.aggregate.values[0]).tolist() == [[cohort, 0, 0]]


# --- What one server relays to the other ------------------------------------------------------------------------------


Item = tuple[bytes, bytes | None]
Said = tuple[bytes, bytes]
TREE = Layout((RingSegment(20, 6), IndexSegment(200, 4)))
PROPOSAL, ANSWER, CONCLUSION = (
    MessageKind.INDEXING_PROPOSAL,
    MessageKind.INDEXING_ANSWER,
    MessageKind.INDEXING_CONCLUSION,
)
POINT_FUNCTIONS = (SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS)


def items_of(made: InsecureIndexingRound, message: bytes, kind: MessageKind) -> list[Said]:
    said = decode_batch(message, kind, made.stamp(int(kind is not ANSWER)))
    return [(upload_id, blob) for upload_id, blob in said if blob is not None]


def batch(made: InsecureIndexingRound, kind: MessageKind, items: Sequence[Item]) -> bytes:
    return encode_batch(kind, made.stamp(int(kind is not ANSWER)), items)


def with_uploads(count: int, **named: Any) -> InsecureIndexingRound:
    return InsecureIndexingRound.of(IndexingSetup(population=count, **named), *range(1, count + 1))


def hears(made: InsecureIndexingRound, kind: MessageKind) -> tuple[IndexingServer, Callable[[bytes], object], bytes]:
    """Return who hears a message of this kind, with which step, and an honest one."""
    proposal = made.one.propose(made.one.waiting())
    if kind is PROPOSAL:
        return made.zero, made.zero.answer, proposal
    answer = made.zero.answer(proposal)
    if kind is ANSWER:
        return made.one, made.one.conclude, answer
    return made.zero, made.zero.settle, made.one.conclude(answer)


# --- The public part --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POINT_FUNCTIONS)
def test_server_0_rejects_an_altered_public_part_before_it_evaluates_anything(
    mode: SharingMode, sum_is_exact: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = 30
    made = with_uploads(clients + 2, layout=TREE, mode=mode, maximum_cohort=clients + 2, maximum_rejections=clients)
    size = public_bytes(made.configuration)
    honest = items_of(made, made.one.propose(made.one.waiting()), PROPOSAL)
    altered = [
        (upload_id, flipped(blob, place * (size - 1) // (clients - 1), place % 8))
        for place, (upload_id, blob) in enumerate(honest[:clients])
    ]

    def evaluate(*_: object, **__: object) -> None:
        raise AssertionError("server 0 evaluates shares under correction words that the client did not sign")

    with monkeypatch.context() as patch:
        patch.setattr(TreeShare, "accumulate", evaluate)
        patch.setattr(TreeShare, "lanes", evaluate)
        patch.setattr(opened_upload, "OneHotVerifier", evaluate)
        answer = made.zero.answer(batch(made, PROPOSAL, altered))
    assert items_of(made, answer, ANSWER) == []
    assert set(made.zero.rejected) == {ClientId(number) for number in range(1, clients + 1)}
    made.zero.settle(made.one.conclude(made.zero.answer(batch(made, PROPOSAL, honest))))
    sum_is_exact(made, clients + 1, clients + 2)


def test_server_1_cannot_relay_one_clients_public_part_for_another(sum_is_exact: Check) -> None:
    made = with_uploads(4, layout=TREE)
    size = public_bytes(made.configuration)
    (first, a), (second, b), *others = items_of(made, made.one.propose(made.one.waiting()), PROPOSAL)
    swapped = [(first, b[:size] + a[size:]), (second, a[:size] + b[size:]), *others]
    made.zero.settle(made.one.conclude(made.zero.answer(batch(made, PROPOSAL, swapped))))
    assert set(made.zero.rejected) == {ClientId(1), ClientId(2)}
    sum_is_exact(made, 3, 4)


# --- Messages that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
@pytest.mark.parametrize("what", ["round", "task", "server", "kind"])
def test_a_message_of_elsewhere_changes_nothing(what: str, kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    server, hear, message = hears(made, kind)
    items, genuine = items_of(made, message, kind), made.stamp(int(kind is not ANSWER))
    other_task = InsecureIndexingRound(IndexingSetup(task=b"another task")).configuration.context
    if what == "kind":
        wrong = encode_batch(CONCLUSION if kind is not CONCLUSION else PROPOSAL, genuine, items)
        refuses(hear, wrong, UnexpectedMessage, Reason.WRONG_KIND, *between_servers())
        return
    changes: dict[str, Any] = {
        "round": {"round_number": 8},
        "task": {"context": other_task},
        "server": {"server": server.server},
    }
    wrong = encode_batch(kind, replace(genuine, **changes[what]), items)
    refuses(hear, wrong, PeerMisbehaved, Reason.WRONG_SESSION, *between_servers())


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
def test_a_declared_length_allocates_nothing(kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    _, hear, message = hears(made, kind)
    head = len(batch(made, kind, [])) - 4
    lies = {
        "uploads": message[:head] + MAXIMUM_BATCH.to_bytes(4, "big") + message[head + 4 :],
        "bytes": message[: head + 37] + b"\xff" * 4 + message[head + 41 :],
    }
    for lie in lies.values():
        tracemalloc.start()
        with pytest.raises(MalformedMessage) as caught:
            hear(lie)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert caught.value.reason is Reason.TRUNCATED
        assert peak < 1 << 16
    too_many = message[:head] + (MAXIMUM_BATCH + 1).to_bytes(4, "big") + message[head + 4 :]
    refuses(hear, too_many, MalformedMessage, Reason.LENGTH_OVER_LIMIT, *between_servers())


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
def test_an_upload_stands_in_a_message_once(kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    _, hear, message = hears(made, kind)
    first, _ = items_of(made, message, kind)
    twice = batch(made, kind, [first, first])
    refuses(hear, twice, MalformedMessage, Reason.NOT_CANONICAL, *between_servers())


@pytest.mark.parametrize("damage", ["cut", "continued", "empty"])
@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER])
def test_what_is_no_word_about_an_upload_rejects_that_upload_alone(
    kind: MessageKind, damage: str, sum_is_exact: Check
) -> None:
    made = with_uploads(3)
    server, hear, message = hears(made, kind)
    (first, blob), *others = items_of(made, message, kind)
    damaged = {"cut": blob[:-1], "continued": blob + b"\0", "empty": b""}[damage]
    heard = hear(batch(made, kind, [(first, damaged), *others]))
    assert set(server.rejected) == {ClientId(1)}
    assert isinstance(heard, bytes)
    made.zero.settle(made.one.conclude(heard) if kind is PROPOSAL else heard)
    made.check()
    sum_is_exact(made, 2, 3)


# --- Said twice, or something else ------------------------------------------------------------------------------------


def test_an_upload_is_asked_about_once(refuses: Check, sum_is_exact: Check) -> None:
    """A second commitment, after server 1 has seen the opening, would let it choose what it opens."""
    made = with_uploads(2)
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    (first, blob), second = items_of(made, proposal, PROPOSAL)
    another = batch(made, PROPOSAL, [(first, flipped(blob, len(blob) - 1)), second])
    refuses(made.zero.answer, another, PeerMisbehaved, Reason.ALREADY_ANSWERED, ServerId(0), ServerId(1))
    assert made.zero.answer(proposal) == answer
    made.zero.settle(made.one.conclude(answer))
    sum_is_exact(made, 1, 2)


def test_an_upload_that_was_decided_is_not_opened_again(memory_of: Check, sum_is_exact: Check) -> None:
    made = with_uploads(3)
    answer = made.zero.answer(made.one.propose(made.one.waiting()))
    (first, blob), (second, other), third = items_of(made, answer, ANSWER)
    lie = [(first, flipped(blob, len(blob) - 1)), (second, other), third]
    conclusion = made.one.conclude(batch(made, ANSWER, lie))
    assert [upload_id for upload_id, _ in items_of(made, conclusion, CONCLUSION)] == [second, third[0]]
    before = memory_of(made.one)
    again = made.one.conclude(answer)
    assert items_of(made, again, CONCLUSION) == []
    assert memory_of(made.one) == before
    made.zero.settle(conclusion)
    sum_is_exact(made, 2, 3)


@pytest.mark.parametrize("lie", ["opening", "commitment", "echo", "another upload"])
def test_server_0_opens_what_it_committed_to(lie: str, sum_is_exact: Check) -> None:
    made = with_uploads(4)
    proposal = made.one.propose(made.one.waiting())
    asked = dict(items_of(made, proposal, PROPOSAL))
    (first, blob), (second, other), *others = items_of(made, made.zero.answer(proposal), ANSWER)
    commitments = len(asked[first]) - public_bytes(made.configuration)
    lies = {
        "opening": flipped(blob, len(blob) - 1),
        "commitment": flipped(blob, 39),
        "echo": asked[first][-commitments:] + blob[commitments:],
        "another upload": other,
    }
    conclusion = made.one.conclude(batch(made, ANSWER, [(first, lies[lie]), (second, other), *others]))
    assert set(made.one.rejected) == {ClientId(1)}
    made.zero.settle(conclusion)
    sum_is_exact(made, 2, 3, 4)


def test_what_server_1_took_and_server_0_must_reject_ends_the_round(raises_exactly: Check) -> None:
    made = with_uploads(3)
    conclusion = made.one.conclude(made.zero.answer(made.one.propose(made.one.waiting())))
    (first, blob), *others = items_of(made, conclusion, CONCLUSION)
    made.zero.settle(batch(made, CONCLUSION, [(first, flipped(blob, len(blob) - 1)), *others]))
    assert set(made.zero.rejected) == {ClientId(1)}
    lists = made.lists()
    for server, theirs in ((made.zero, lists[1]), (made.one, lists[0])):
        raises_exactly(
            lambda server=server, theirs=theirs: server.agree(theirs),
            PeerMisbehaved,
            Reason.SERVERS_DISAGREE,
            ServerId(0),
            ServerId(1),
        )


def test_what_nobody_asked_about_is_not_taken(memory_of: Check) -> None:
    made = with_uploads(2)
    first, second = made.one.waiting()
    answer = made.zero.answer(made.one.propose([first]))
    [(_, blob)] = items_of(made, answer, ANSWER)
    conclusion = made.one.conclude(batch(made, ANSWER, [(first, blob), (second, blob), (bytes(32), blob)]))
    [(_, opening)] = items_of(made, conclusion, CONCLUSION)
    assert made.one.waiting() == (second,)
    made.zero.settle(batch(made, CONCLUSION, [(first, opening), (second, opening), (bytes(32), opening)]))
    assert made.zero.waiting() == (second,)
    before = memory_of(made.zero)
    assert items_of(made, made.zero.answer(batch(made, PROPOSAL, [(bytes(32), blob)])), ANSWER) == []
    assert memory_of(made.zero) == before
