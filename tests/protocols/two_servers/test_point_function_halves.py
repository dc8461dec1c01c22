"""Index segments between the servers: four steps, each with the same bytes again, and every wrong byte refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.one_hot.check import RoundChallenges
from secagg.protocols.two_servers.one_hot.proof import prove
from secagg.protocols.two_servers.opened_upload import ClassTotals, PointFunctionExchange
from secagg.protocols.two_servers.upload import SharedIndices, UploadHeader, cut, index_body_bytes, public_bytes
from secagg.session.certificates import Certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins

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
    return IndexingConfiguration(
        task=b"a task",
        suite=Suite.CLASSIC,
        authority=b"a" * 32,
        server_keys=(b"0" * 32, b"1" * 32),
        layout=LAYOUT,
        mode=mode,
        depth=depth,
        minimum_cohort=2,
        maximum_cohort=4,
        maximum_rejections=0,
        weights=(1, 3),
        expiry=1 << 31,
    )


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
def test_every_step_again_gives_the_same_bytes(kind: str) -> None:
    zero, one = shared(kind).both()
    proposal, answer, conclusion = said(zero, one)
    assert one.propose() == proposal
    assert zero.answer(proposal) == answer
    assert one.conclude(answer) == conclusion
    zero.settle(conclusion)


@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_that_is_opened_again_gives_the_same_words(kind: str) -> None:
    upload = shared(kind)
    proposal, answer, conclusion = said(*upload.both())
    zero, one = upload.both()
    assert one.propose() == proposal
    assert zero.answer(proposal) == answer
    again = upload.at(ONE)
    assert again.propose() == proposal
    assert again.conclude(answer) == conclusion


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


def test_each_half_is_as_long_as_documented() -> None:
    """Unchecked: a seed of 16 bytes, or the lanes but the last at exactly their bits."""
    explicit, tree = configuration("unchecked"), configuration("an unchecked tree")
    bits = explicit.group.bits
    assert bits == (4 * 3).bit_length()
    assert index_body_bytes(explicit, ZERO) == index_body_bytes(tree, ZERO) == index_body_bytes(tree, ONE) == 2 * 16
    assert index_body_bytes(explicit, ONE) == (3 * 4 * bits + 7) // 8 + (2 * 8 * bits + 7) // 8
    assert public_bytes(explicit) == 0
    assert public_bytes(tree) > 0


def test_threads_change_nothing() -> None:
    upload = shared("a tree")
    made, header = upload.configuration, upload.header
    indices = SharedIndices(made, 7, CLIENT, payload(), InsecureSeededCoins(b"client"), threads=2)
    assert indices.headers == header.segments
    assert indices.bodies(header) == upload.bodies
    assert indices.public_part == upload.public_part
    assert said(upload.at(ZERO, threads=2), upload.at(ONE, threads=2)) == said(*upload.both())


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
def test_without_a_tree_no_correction_words_are_named(server: ServerId) -> None:
    upload = shared("explicit")
    first, second = upload.header.segments
    header = replace(upload.header, segments=(first, replace(second, correction_digest=b"d" * 32)))
    is_refused(lambda: upload.at(server, header=header), Reason.NOT_CANONICAL, CLIENT)


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


@pytest.mark.parametrize("kind", ["a tree", "an unchecked tree"])
def test_correction_words_are_those_that_the_client_signed(kind: str) -> None:
    upload = shared(kind)
    proposal = upload.at(ONE).propose()
    for position in (0, len(upload.public_part) - 20):
        altered = bytearray(upload.public_part)
        altered[position] ^= 1
        with pytest.raises(PeerError) as caught:
            upload.at(ONE, public_part=bytes(altered))
        assert caught.value.culprits is UNDECIDED
        relayed = bytes(altered) + proposal[len(altered) :]
        zero = upload.at(ZERO)
        with pytest.raises(PeerError) as caught:
            zero.answer(relayed)
        assert caught.value.culprits == {ONE}, "who relayed them"
        zero.answer(proposal)


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


@pytest.mark.parametrize("kind", ["explicit", "a tree", "cheapest"])
@pytest.mark.parametrize("server", [ZERO, ONE])
def test_shares_of_no_unit_vector_are_refused_by_both_servers(kind: str, server: ServerId) -> None:
    """Whichever half a client makes wrong: another seed, or other lanes."""
    upload = shared(kind)
    upload.bodies[server.index][0] ^= 1
    zero, one = upload.both()
    proposal = one.propose()
    answer = zero.answer(proposal)
    is_refused(lambda: one.conclude(answer), Reason.ONE_HOT_REFUTED, CLIENT, ZERO)
    assert isinstance(answer, bytes)


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


@pytest.mark.parametrize("kind", ["explicit", "a tree"])
def test_every_byte_that_a_server_says_is_checked(kind: str) -> None:
    """What is altered on the way is refused, and never in the client's name alone."""
    upload = shared(kind)
    proposal, answer, conclusion = said(*upload.both())

    def altered(message: bytes, position: int) -> bytes:
        return message[:position] + bytes([message[position] ^ 1]) + message[position + 1 :]

    def answered_and_settled(message: bytes) -> None:
        """Take a commitment, and then what it is to: there it is noticed at the latest."""
        zero = upload.at(ZERO)
        zero.answer(message)
        zero.settle(conclusion)

    for position in range(0, len(answer), 9):
        one = upload.at(ONE)
        one.propose()
        with pytest.raises(PeerError) as caught:
            one.conclude(altered(answer, position))
        assert ZERO in caught.value.culprits
    for position in range(len(upload.public_part), len(proposal), 9):
        with pytest.raises(PeerError) as caught:
            answered_and_settled(altered(proposal, position))
        assert ONE in caught.value.culprits
    for position in range(0, len(conclusion), 9):
        zero = upload.at(ZERO)
        zero.answer(proposal)
        with pytest.raises(PeerError) as caught:
            zero.settle(altered(conclusion, position))
        assert ONE in caught.value.culprits


# --- Secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", [ZERO, ONE])
def test_wiping_overwrites_every_seed(kind: str, server: ServerId) -> None:
    exchange = shared(kind).at(server)
    halves = vars(exchange)["_halves"]
    seeds = [half.seed for half in halves if half.seed] + [half.proof.seed for half in halves if half.proof]
    mode, depth = KINDS[kind]
    assert bool(seeds) == (mode is CHECKED or depth != 0 or server == ZERO)
    assert not any(seed.is_wiped for seed in seeds)
    exchange.wipe()
    assert all(seed.is_wiped for seed in seeds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_keeps_no_seed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = list[Any]()

    def recorded(*args: Any, **named: Any) -> Any:
        proofs.extend(prove(*args, **named))
        return proofs[-2:]

    monkeypatch.setattr(upload_module, "prove", recorded)
    made = configuration(kind)
    indices = SharedIndices(made, 7, CLIENT, payload(), InsecureSeededCoins(b"client"))
    certificate = Certificate(CLIENT, b"p" * 32, b"c" * 64)
    indices.bodies(UploadHeader(round_number=7, certificate=certificate, weight=3, segments=indices.headers))
    assert len(proofs) == (4 if made.is_checked else 0)
    assert all(proof.seed.is_wiped for proof in proofs)
    shares = [share for _, _, _, pair in vars(indices)["segments"] for share in pair]
    seeds = [share.seed for share in shares if hasattr(share, "seed")]
    assert seeds
    assert not any(seed.is_wiped for seed in seeds)
    indices.wipe()
    assert all(seed.is_wiped for seed in seeds)


def test_shares_are_neither_copied_nor_pickled_nor_shown() -> None:
    upload = shared("explicit")
    indices = SharedIndices(upload.configuration, 7, CLIENT, payload(), InsecureSeededCoins(b"client"))
    for kept in (upload.at(ZERO), upload.at(ONE), indices):
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(Misuse):
                call(kept)
    assert repr(upload.at(ONE)) == "<PointFunctionExchange of client/9 at server/1>"
    assert "array" not in repr(indices)


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
