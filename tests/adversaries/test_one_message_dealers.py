"""Clients that deal badly, holders that lie, and a server that mixes up what it relays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.blame import unverified
from secagg.contract import Layout, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, HolderId, ServerId
from secagg.protocols.one_message import client as client_module
from secagg.protocols.one_message import sharing
from secagg.protocols.one_message.configuration import Agreement, Offer
from secagg.protocols.one_message.messages import (
    Upload,
    challenge_of,
    piece_digests,
    sealing_info,
    share_tree,
    upload_digest,
    vector_digest,
)
from secagg.protocols.one_message.opening import WrongSecret
from secagg.protocols.one_message.parameters import FIELD, PIECE_COEFFICIENTS
from secagg.protocols.one_message.requests import Answer, DeliveredShare, Delivery, Judged, Receipt, Verdict
from secagg.protocols.one_message.sharing import Dealing, holder_point
from secagg.protocols.one_message.tally import Tally
from secagg.session.certificates import SigningKey
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup


def signed_again(world: InsecureSum, offer: Offer, client: ClientId, upload: Upload) -> bytes:
    """Sign an altered upload as its client; the published polynomial stays what it was."""
    agreement = offer.agree()
    root = share_tree(agreement, upload.sealed).root
    pieces = piece_digests(agreement.t0, client, agreement.parameters.piece_bytes, upload.vector)
    upload = replace(upload, pieces=pieces)
    challenge = challenge_of(agreement, upload.header, vector_digest(pieces), root)
    digest = upload_digest(challenge, upload.polynomial)
    key = world.certified(client)[0]
    return replace(upload, signature=agreement.sign(key, Label.ONE_MESSAGE_SIGNED_UPLOAD, digest)).encode()


def badly_dealt(
    world: InsecureSum, offer: Offer, client: ClientId, positions: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> bytes:
    """Return an upload whose shares for some holders are off the polynomial that its client published."""

    def deal(*arguments: object, **named: object) -> Dealing:
        dealing = sharing.deal(*arguments, **named)  # type: ignore[arg-type]
        shares = list(dealing.shares)
        for position in positions:
            altered = bytearray(shares[position].expose())
            altered[0] ^= 1
            shares[position] = Secret("share of a ring secret", altered)
        dealing.shares = tuple(shares)
        return dealing

    with monkeypatch.context() as patched:
        patched.setattr(client_module, "deal", deal)
        return world.upload(client, offer)


# --- Dealers ----------------------------------------------------------------------------------------------------------


def test_a_dealer_off_its_polynomial_is_named_before_the_list_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum(SumSetup())
    offer, bad = world.offer(), world.setup.clients[2]
    server = world.collected(offer, uploads={bad: badly_dealt(world, offer, bad, [0, 3], monkeypatch)})
    assert isinstance(server.left_out[bad], PeerError)
    assert server.left_out[bad].culprits == {bad}
    assert [fault.culprits for fault in server.faults] == [{bad}]
    world.answered(server)
    others = [client for client in world.setup.clients if client != bad]
    assert server.open().aggregate.encode() == world.ideal(others).encode()


@pytest.mark.parametrize("position", range(5))
def test_a_dealer_that_cheats_one_holder_is_left_out_and_both_are_named(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holder may lie, so its word alone convicts nobody: shares from seeds and explicit ones alike."""
    world = InsecureSum(SumSetup())
    offer, bad = world.offer(), world.setup.clients[2]
    server = world.collected(offer, uploads={bad: badly_dealt(world, offer, bad, [position], monkeypatch)})
    assert server.left_out[bad].culprits == {bad, HolderId(position)}
    assert server.present == frozenset(range(5))


def test_bad_clients_cannot_have_an_honest_holder_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients as may be bad deal badly to one holder alone, which tells the truth of them."""
    world = InsecureSum(SumSetup(population=9, corrupted_clients=3, minimum_cohort=5))
    offer, bad = world.offer(), world.setup.clients[:3]
    uploads = {client: badly_dealt(world, offer, client, [4], monkeypatch) for client in bad}
    server = world.collected(offer, uploads=uploads)
    assert server.present == frozenset(range(5))
    assert frozenset(server.left_out) == frozenset(bad)
    assert {HolderId(4)} not in [fault.culprits for fault in server.faults]
    world.answered(server)
    assert server.open().aggregate.encode() == world.ideal(world.setup.clients[3:]).encode()


def test_words_that_are_no_field_elements_do_not_open() -> None:
    world = InsecureSum(SumSetup())
    offer = world.offer()
    agreement, bad = offer.agree(), world.setup.clients[0]
    upload = Upload.decode(world.upload(bad, offer))
    position = 4
    with Secret("share", b"\xff" * agreement.parameters.share_bytes(position)) as words:
        key = agreement.epoch.sealing_keys[position]
        assert key is not None
        sealed = key.seal(words, sealing_info(agreement, upload.header, position))
    altered = replace(upload, sealed=(*upload.sealed[:position], sealed))
    server = world.collected(offer, uploads={bad: signed_again(world, offer, bad, altered)})
    judged = {p: Receipt.decode(server.receipts[p][-1]).judged[0].verdict for p in range(5)}
    # The tree is another one, so the challenge is too, and the old polynomial is off for everybody else.
    assert judged[position] is Verdict.DOES_NOT_OPEN
    assert server.left_out[bad].culprits == {bad}


@pytest.mark.parametrize(("end", "sentence"), [(b"", "lengths do not match"), (b"\xff", "must be zero")])
def test_a_vector_that_does_not_decode_is_not_taken(end: bytes, sentence: str) -> None:
    """Holders see a digest of the vector; the server judges each of its pieces when it comes."""
    world = InsecureSum(SumSetup(layout=Layout((RingSegment(12, PIECE_COEFFICIENTS + 5), RingSegment(7, 9)))))
    offer, bad = world.offer(), world.setup.clients[0]
    server, upload = Tally(offer, COINS), Upload.decode(world.upload(bad, offer))
    altered = replace(upload, vector=upload.vector[:-1] + end)
    with pytest.raises(MalformedMessage, match=sentence) as refused:
        server.receive_upload(bad, signed_again(world, offer, bad, altered))
    assert bad in refused.value.culprits
    assert not server.taken


# --- The server mixes things up ---------------------------------------------------------------------------------------


def altered_deliveries(requests: dict[int, bytes]) -> dict[str, DeliveredShare]:
    delivery = Delivery.decode(requests[0])
    first, second, *_ = delivery.shares
    return {
        "shares of two clients swapped": replace(first, sealed=second.sealed),
        "another client's name": replace(first, header=replace(first.header, client=second.header.client)),
        "another client's certificate": replace(first, header=replace(first.header, identity=second.header.identity)),
        "no certificate": replace(first, header=replace(first.header, identity=b"")),
        "another model": replace(
            first, header=replace(first.header, terms=replace(first.header.terms, model_digest=bytes(32)))
        ),
        "another nonce": replace(first, header=replace(first.header, nonce=bytes(32))),
        "no signature": replace(first, signature=b""),
    }


def test_a_server_that_mixes_shares_up_is_to_blame_and_no_client() -> None:
    world = InsecureSum(SumSetup())
    server = world.server()
    requests = server.deliver()
    holder = world.holders[0]
    for name, share in altered_deliveries(requests).items():
        altered = replace(Delivery.decode(requests[0]), shares=(share,))
        judged = Receipt.decode(holder.respond(altered.encode())).judged
        assert [one.verdict for one in judged] == [Verdict.NOT_AUTHENTIC], name
    assert {one.verdict for one in Receipt.decode(holder.respond(requests[0])).judged} == {Verdict.ACCEPTED}


def test_uploads_replayed_across_clients_sums_rounds_and_epochs() -> None:
    world = InsecureSum(SumSetup())
    offer, (first, second, *_) = world.offer(), world.setup.clients
    upload = world.upload(first, offer)
    with pytest.raises(PeerMisbehaved, match="sent an upload of"):
        Tally(offer, COINS).receive_upload(second, upload)
    later = world.offer(replace(world.setup, round_number=world.setup.round_number + 1))
    with pytest.raises(PeerMisbehaved, match="another sum") as refused:
        Tally(later, COINS).receive_upload(first, upload)
    assert refused.value.culprits == {first, ServerId()}
    next_epoch = InsecureSum(replace(world.setup, number=2))
    with pytest.raises(PeerMisbehaved, match="another sum"):
        Tally(next_epoch.offer(), COINS).receive_upload(first, upload)
    # A server that relays it all the same learns nothing: the holders of the next epoch cannot open it.
    server = Tally(next_epoch.offer(), COINS)
    next_epoch.ask(server, server.introduce())
    old = world.server(offer).deliver()
    moved = replace(Delivery.decode(old[0]), t0=next_epoch.offer().agree().t0)
    judged = Receipt.decode(next_epoch.holders[0].respond(moved.encode())).judged
    assert {one.verdict for one in judged} == {Verdict.NOT_AUTHENTIC}


# --- Holders that lie -------------------------------------------------------------------------------------------------


def altered_answer(said: bytes, agreement: Agreement, key: SigningKey, change: Callable[[np.ndarray], Any]) -> bytes:
    answer = Answer.decode(said)
    words = change(np.frombuffer(answer.sums, "<u2").astype(np.int64)) % FIELD
    altered = replace(answer, sums=words.astype("<u2").tobytes())
    return replace(altered, signature=agreement.sign(key, Label.ONE_MESSAGE_ANSWER, *altered.parts)).encode()


def lying(world: InsecureSum, position: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[bytes], bytes]:

    def respond(request: bytes) -> bytes:
        said = world.holders[position].respond(request)
        return altered_answer(said, world.offer().agree(), world.holder_keys[position], change)

    return respond


@pytest.mark.parametrize("there", [10, 8, 7])
def test_a_liar_is_named_off_what_enough_others_agree_on(there: int) -> None:
    """T + c = 7 others show that it lied; with 6 of them the sum is released as well, and nobody is named."""
    world = InsecureSum(SumSetup(holders=10, threshold=6))
    server = world.listed()
    respond = lying(world, 2, lambda words: words + 1)
    for position, request in server.requests().items():
        if position < there:
            server.receive(position, respond(request) if position == 2 else world.holders[position].respond(request))
    assert server.open().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert [fault.culprits for fault in server.faults] == ([{HolderId(2)}] if there > 7 else [])


def coefficient(position: int, present: Sequence[int], amount: int) -> int:
    """Return what a holder adds to its answer to move the secret by an amount, given who answers."""
    top = bottom = 1
    for other in present:
        if other != position:
            top = top * -holder_point(other) % FIELD
            bottom = bottom * (holder_point(position) - holder_point(other)) % FIELD
    return amount * bottom * pow(top, -1, FIELD) % FIELD


@pytest.mark.parametrize("index", [0, 5, 1023])
def test_one_liar_among_exactly_t_answers_shifts_the_secret_and_nothing_is_released(index: int) -> None:
    """S + 2^g X^index leaves every guard bit as it was; the size of S gives it away."""
    world = InsecureSum(SumSetup(threshold=4))
    server, parameters = world.listed(), world.offer().agree().parameters
    present = range(parameters.threshold)
    assert parameters.packing == 1
    added = coefficient(1, present, 1 << parameters.guard_bits)

    def change(words: np.ndarray) -> np.ndarray:
        words[index] += added
        return words

    respond = lying(world, 1, change)
    for position in present:
        request = server.requests()[position]
        server.receive(position, respond(request) if position == 1 else world.holders[position].respond(request))
    with pytest.raises(WrongSecret) as refused:
        server.open()
    assert not refused.value.culprits
    assert not server.faults
    # One more answer gives the sum; four that agree are not enough to name the fifth.
    world.ask(server, server.requests())
    assert server.open().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert not server.faults


def test_what_a_server_refuses_of_a_holder() -> None:
    world = InsecureSum(SumSetup())
    server = world.listed()
    request = server.requests()[0]
    good = world.holders[0].respond(request)
    with pytest.raises(PeerMisbehaved) as refused:
        server.receive(0, replace(Answer.decode(good), t0=bytes(32)).encode())
    assert refused.value.culprits == unverified(HolderId(0))
    with pytest.raises(PeerError) as in_anothers_name:
        server.receive(1, good)
    assert in_anothers_name.value.culprits == unverified(HolderId(1))
    server.receive(0, good)
    server.receive(0, good)
    with pytest.raises(PeerMisbehaved, match="two different messages") as refused:
        server.receive(0, lying(world, 0, lambda words: words + 1)(request))
    assert refused.value.reason is Reason.ALREADY_ANSWERED
    # No restart and no copy of a delivery makes an honest holder sign two answers to one list.
    assert refused.value.culprits == {HolderId(0)}


def refusing(world: InsecureSum, position: int, verdict: Verdict, count: int) -> Callable[[bytes], bytes]:
    """Return what a holder says that refuses the first few uploads of a delivery, and signs that."""

    def respond(request: bytes) -> bytes:
        receipt = Receipt.decode(world.holders[position].respond(request))
        judged = tuple(Judged(upload=one.upload, verdict=verdict) for one in receipt.judged[:count])
        altered = replace(receipt, judged=judged + receipt.judged[count:])
        key = world.holder_keys[position]
        signature = world.offer().agree().sign(key, Label.ONE_MESSAGE_RECEIPT, *altered.parts)
        return replace(altered, signature=signature).encode()

    return respond


def test_a_holder_that_judges_one_delivery_twice_is_named_with_the_way() -> None:
    """The network may have shown it the delivery twice, and altered it once; the first receipt counts."""
    world = InsecureSum(SumSetup())
    server = world.server(clients=world.setup.clients[:2])
    request = server.deliver()[0]
    server.receive(0, world.holders[0].respond(request))
    with pytest.raises(PeerMisbehaved, match="two different messages") as refused:
        server.receive(0, refusing(world, 0, Verdict.OFF_POLYNOMIAL, 1)(request))
    assert refused.value.culprits == unverified(HolderId(0))
    assert len(server.receipts[0]) == 1


@pytest.mark.parametrize(
    ("verdict", "count", "left_out", "is_lost"),
    [(Verdict.OFF_POLYNOMIAL, 2, 2, False), (Verdict.DOES_NOT_OPEN, 5, 0, True), (Verdict.NOT_AUTHENTIC, 1, 0, True)],
)
def test_a_holder_that_refuses_clients(verdict: Verdict, count: int, left_out: int, is_lost: bool) -> None:  # noqa: FBT001
    world = InsecureSum(SumSetup())
    server = world.server()
    respond = refusing(world, 3, verdict, count)
    for position, request in server.deliver().items():
        server.receive(position, respond(request) if position == 3 else world.holders[position].respond(request))
    server.settle()
    assert len(server.left_out) == left_out
    assert (3 not in server.present) is is_lost
    assert all(HolderId(3) in fault.culprits for fault in server.faults)
    world.answered(server)
    counted = [client for client in world.setup.clients if client not in server.left_out]
    assert server.open().aggregate.encode() == world.ideal(counted).encode()
