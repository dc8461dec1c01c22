"""Index segments between the servers: four steps, each with the same bytes again, and every wrong byte refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.one_hot.check import RoundChallenges
from secagg.protocols.two_servers.opened_upload import ClassTotals, PointFunctionExchange
from secagg.protocols.two_servers.upload import SharedIndices, UploadHeader, cut, index_body_bytes, public_bytes
from secagg.session.certificates import Certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.indexing_rounds import indexing_configuration

ZERO, ONE = ServerId(0), ServerId(1)
CLIENT = ClientId(9)
LAYOUT = Layout((IndexSegment(5, 3), RingSegment(7, 2), IndexSegment(9, 2)))
INDICES = ([4, 0, 2], [8, 3])
CHECKED, UNCHECKED = SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS
KINDS = {
    "explicit": (CHECKED, 0),
    "a tree": (CHECKED, 2),
    "cheapest": (CHECKED, None),
    "unchecked": (UNCHECKED, 0),
    "an unchecked tree": (UNCHECKED, 1),
}


def configuration(kind: str) -> IndexingConfiguration:
    mode, depth = KINDS[kind]
    return indexing_configuration(layout=LAYOUT, mode=mode, depth=depth, weights=(1, 3))


def payload() -> Payload:
    values = (np.array(INDICES[0], np.uint8), np.zeros(2, np.uint8), np.array(INDICES[1], np.uint8))
    return Payload(LAYOUT, values)


@dataclass
class Shared:
    """What a client shares, before it is sealed, and as whichever server reads it."""

    configuration: IndexingConfiguration
    header: UploadHeader
    bodies: tuple[bytearray, bytearray]
    public_part: bytes

    def at(
        self, server: ServerId, *, challenges: RoundChallenges | None = None, **changes: Any
    ) -> PointFunctionExchange:
        chosen: dict[str, Any] = {
            "header": self.header,
            "body": self.bodies[server.index],
            "public_part": self.public_part if server == ONE else b"",
        }
        if challenges is None:
            with Secret("pair key", b"\5" * 32) as pair_key:
                challenges = RoundChallenges(pair_key, self.configuration.context, 7)
        return PointFunctionExchange(self.configuration, server, challenges=challenges, **(chosen | changes))

    def both(self) -> tuple[PointFunctionExchange, PointFunctionExchange]:
        return self.at(ZERO), self.at(ONE)


def shared(kind: str, weight: int = 3) -> Shared:
    made = configuration(kind)
    indices = SharedIndices(made, 7, CLIENT, payload(), InsecureSeededCoins(b"client"))
    certificate = Certificate(CLIENT, b"p" * 32, b"c" * 64)
    header = UploadHeader(round_number=7, certificate=certificate, weight=weight, segments=indices.headers)
    return Shared(made, header, indices.bodies(header), indices.public_part)


def said(zero: PointFunctionExchange, one: PointFunctionExchange) -> tuple[bytes, bytes, bytes]:
    """Go through all four steps, and return what crosses between the servers."""
    proposal = one.propose()
    answer = zero.answer(proposal)
    conclusion = one.conclude(answer)
    zero.settle(conclusion)
    return proposal, answer, conclusion


def is_refused(call: Callable[[], object], reason: Reason, *culprits: ClientId | ServerId) -> None:
    with pytest.raises(PeerError) as caught:
        call()
    assert caught.value.reason is reason
    assert caught.value.culprits == set(culprits)


# --- What comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_of_both_servers_are_the_unit_vectors(kind: str) -> None:
    upload = shared(kind)
    zero, one = upload.both()
    said(zero, one)
    made, sums = upload.configuration, list[ClassTotals]()
    for server, exchange in ((ZERO, zero), (ONE, one)):
        sums.append(ClassTotals(made, server))
        exchange.add_to(sums[-1])
    left, right = (total.weighted([3]) for total in sums)
    for (number, segment), indices in zip(made.index_segments, INDICES, strict=True):
        lanes = left[number]
        made.group.add_into(lanes, right[number])
        made.group.reduce_into(lanes)
        np.testing.assert_array_equal(
            lanes.reshape(segment.blocks, segment.codewords), 3 * np.eye(segment.codewords)[indices]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_follow_from_the_configuration(kind: str) -> None:
    upload = shared(kind)
    made = upload.configuration
    assert [len(body) for body in upload.bodies] == [index_body_bytes(made, server) for server in (ZERO, ONE)]
    assert len(upload.public_part) == public_bytes(made)
    proposal, answer, conclusion = said(*upload.both())
    assert proposal.startswith(upload.public_part)
    if not made.is_checked:
        assert (proposal, answer, conclusion) == (upload.public_part, b"", b"")
        return
    commitments, openings = len(proposal) - len(upload.public_part), len(conclusion)
    assert commitments == 2 * (7 + 1 + 64)
    assert len(answer) == commitments + openings


# --- A client's half --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", [ZERO, ONE])
def test_a_body_of_another_length_is_refused_in_the_clients_name(kind: str, server: ServerId) -> None:
    upload = shared(kind)
    body = upload.bodies[server.index]
    is_refused(lambda: upload.at(server, body=body[:-1]), Reason.TRUNCATED, CLIENT)
    is_refused(lambda: upload.at(server, body=body + b"\0"), Reason.TRAILING_BYTES, CLIENT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_public_part_of_another_length_is_refused_in_the_clients_name(kind: str) -> None:
    upload = shared(kind)
    is_refused(lambda: upload.at(ONE, public_part=upload.public_part + b"\0"), Reason.TRAILING_BYTES)
    if upload.public_part:
        is_refused(lambda: upload.at(ONE, public_part=upload.public_part[:-1]), Reason.TRUNCATED)


@pytest.mark.parametrize("server", [ZERO, ONE])
def test_a_proof_is_for_the_server_that_reads_it(server: ServerId) -> None:
    upload = shared("a tree")
    body = upload.bodies[server.index]
    place = 16 + 7
    assert body[place] == server.index
    body[place] ^= 1
    with pytest.raises(MalformedMessage) as caught:
        upload.at(server)
    assert caught.value.culprits == {CLIENT}


def test_server_0_evaluates_nothing_before_it_knows_the_correction_words(monkeypatch: pytest.MonkeyPatch) -> None:
    upload = shared("a tree")
    proposal = bytearray(upload.at(ONE).propose())
    proposal[5] ^= 1

    def evaluated(*_: Any, **__: Any) -> Any:
        raise AssertionError("a verifier evaluates a share")

    monkeypatch.setattr(opened_upload, "OneHotVerifier", evaluated)
    is_refused(lambda: upload.at(ZERO).answer(bytes(proposal)), Reason.COMMITMENT_MISMATCH, ONE)


@pytest.mark.parametrize("kind", ["a tree", "an unchecked tree"])
def test_server_0_adds_no_tree_whose_correction_words_it_does_not_know(kind: str) -> None:
    upload = shared(kind)
    zero, totals = upload.at(ZERO), ClassTotals(upload.configuration, ZERO)
    with pytest.raises(Misuse):
        zero.add_to(totals)
    zero.answer(upload.at(ONE).propose())
    zero.add_to(totals)


def test_another_weight_is_another_statement() -> None:
    upload = shared("explicit")
    other = replace(upload.header, weight=1)
    zero, one = upload.at(ZERO, header=other), upload.at(ONE)
    proposal = one.propose()
    is_refused(lambda: zero.answer(proposal), Reason.WRONG_SESSION, ONE)


@pytest.mark.parametrize("kind", ["explicit", "a tree"])
def test_two_uploads_of_one_client_are_not_both_asked_about(kind: str) -> None:
    upload = shared(kind)
    other = replace(upload.header, weight=1)
    with Secret("pair key", b"\5" * 32) as pair_key:
        challenges = RoundChallenges(pair_key, upload.configuration.context, 7)
    upload.at(ONE, challenges=challenges).propose()
    second = upload.at(ONE, challenges=challenges, header=other)
    with pytest.raises(PeerMisbehaved) as caught:
        second.propose()
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {CLIENT}


# --- What the other server says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_or_goes_on_is_the_other_servers_doing(kind: str) -> None:
    upload = shared(kind)
    proposal, answer, conclusion = said(*upload.both())

    def asked(server: ServerId) -> PointFunctionExchange:
        exchange = upload.at(server)
        _ = exchange.propose() if server == ONE else exchange.answer(proposal)
        return exchange

    steps: list[tuple[bytes, ServerId, Callable[[bytes], object]]] = [
        (proposal, ONE, lambda data: upload.at(ZERO).answer(data)),
        (answer, ZERO, lambda data: asked(ONE).conclude(data)),
        (conclusion, ONE, lambda data: asked(ZERO).settle(data)),
    ]
    for message, blamed, step in steps:
        for wrong, reason in ((message[:-1], Reason.TRUNCATED), (message + b"\0", Reason.TRAILING_BYTES)):
            if wrong != message:
                is_refused(partial(step, wrong), reason, blamed)


# --- Cutting ----------------------------------------------------------------------------------------------------------


def test_bytes_are_cut_into_pieces_of_exactly_their_sizes() -> None:
    assert [bytes(piece) for piece in cut(b"abcdef", [2, 0, 3, 1])] == [b"ab", b"", b"cde", b"f"]
    assert list(cut(b"", [])) == []
    data = bytearray(b"abc")
    first, _ = cut(data, [1, 2])
    data[0] = 0
    assert bytes(first) == b"\0", "without a copy"
    for wrong, reason in ((b"ab", Reason.TRUNCATED), (b"abcd", Reason.TRAILING_BYTES)):
        with pytest.raises(MalformedMessage) as caught:
            cut(wrong, [1, 2])
        assert caught.value.reason is reason
