"""Clients that reveal wrong shares, deal wrong shares, or mask with other seeds than announced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.blame import unverified
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto import hybrid_key_agreement
from secagg.crypto.entropy import Coins
from secagg.crypto.prime_field import ELEMENT_BYTES, PRIME, decode, encode
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share, split_many
from secagg.errors import Fault, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ServerState, round1_share_keys
from secagg.protocols.pairwise_mask.round1_share_keys import signature_bytes
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedVector
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import shown_bytes
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import SMALL_LAYOUT, Adversary, Delivery, InsecurePairwiseSession, SessionSetup

GoesOn = Callable[..., None]
NothingIsReleased = Callable[..., SecAggError]
HEADER_BYTES, TAG_BYTES, HELD_BYTES = 7, 8, 1


def shares_start(session: InsecurePairwiseSession) -> int:
    return HEADER_BYTES + TAG_BYTES + signature_bytes(session.server.roster) + HELD_BYTES


def liars(session: InsecurePairwiseSession, *positions: int, dealers: Iterable[int] = range(7)) -> Adversary:
    """Let these clients alter the shares of these neighbours, by their place among the neighbours, in their answers."""
    chosen = {session.client_ids[position] for position in positions}
    places = list(dealers)

    def lie(delivery: Delivery) -> tuple[Delivery, ...]:
        if delivery.sender not in chosen or delivery.kind is not MessageKind.UNMASKING_SHARES:
            return (delivery,)
        message, step = bytearray(delivery.message), shown_bytes(session.server.roster)
        for place in places:
            message[shares_start(session) + place * step + ELEMENT_BYTES - 1] ^= 1
        assert isinstance(delivery.sender, ClientId)
        return (replace(delivery, message=session.signed_again(delivery.sender, bytes(message))),)

    return lie


def blame(faults: Iterable[Fault]) -> set[tuple[Reason, frozenset[object]]]:
    return {(fault.reason, frozenset(fault.culprits)) for fault in faults}


# --- Answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [PRIME, PRIME + 1, (1 << 256) - 1])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_share_that_is_no_field_element_leaves_out_its_sender_only(
    mode: SecurityMode, element: int, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    liar = session.client_ids[2]

    def leave_the_field(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.sender, delivery.kind) != (liar, MessageKind.UNMASKING_SHARES):
            return (delivery,)
        message = bytearray(delivery.message)
        start = shares_start(session)
        message[start : start + ELEMENT_BYTES] = element.to_bytes(ELEMENT_BYTES, "big")
        return (replace(delivery, message=session.signed_again(liar, bytes(message))),)

    session.adversary = leave_the_field
    goes_on(session)
    ((sender, error),) = session.refusals
    assert isinstance(error, PeerMisbehaved)
    culprits = frozenset({liar}) if mode is SecurityMode.ACTIVE else unverified(liar)
    assert (sender, error.reason, error.culprits) == (liar, Reason.SHARE_OUT_OF_RANGE, culprits)


def test_a_liar_about_the_digest_of_the_hidden_share_is_named_too(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession()
    liar = session.client_ids[0]
    wrong_share = liars(session, 0, dealers=[0])

    def lie_about_both(delivery: Delivery) -> tuple[Delivery, ...]:
        (lied,) = wrong_share(delivery)
        if (lied.sender, lied.kind) != (liar, MessageKind.UNMASKING_SHARES):
            return (lied,)
        message = bytearray(lied.message)
        message[shares_start(session) + 2 * ELEMENT_BYTES - 1] ^= 1
        return (replace(lied, message=session.signed_again(liar, bytes(message))),)

    session.adversary = lie_about_both
    goes_on(session)
    assert blame(session.server.faults) == {(Reason.COMMITMENT_MISMATCH, frozenset({liar}))}


@pytest.mark.parametrize(
    ("mode", "positions"), [(SecurityMode.ACTIVE, (1, 2, 3)), (SecurityMode.SEMI_HONEST, (1, 2))], ids=str
)
def test_more_liars_than_leave_the_threshold_end_the_session_and_in_active_mode_all_are_named(
    mode: SecurityMode, positions: tuple[int, ...], nothing_is_released: NothingIsReleased
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.adversary = liars(session, *positions)
    named = {session.client_ids[position] for position in positions if mode is SecurityMode.ACTIVE}
    nothing_is_released(session, PeerMisbehaved, Reason.COMMITMENT_MISMATCH, named)


# --- Dealers ----------------------------------------------------------------------------------------------------------

DEALER = 6


@contextmanager
def crooked_dealing(session: InsecurePairwiseSession, to: Sequence[int]) -> Generator[None]:
    """Let one corrupted client deal shares off the polynomial to these places among its neighbours."""
    attacker = session.clients[session.client_ids[DEALER]]
    answer = attacker.answer
    crooked = False

    def deal(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
        dealt = split_many(secrets, threshold=threshold, holders=holders, coins=coins)
        for shares in dealt if crooked else ():
            for place in to:
                value = decode(shares[place].value.expose())
                shares[place] = Share(shares[place].point, Secret("share", encode((value + 1) % PRIME)))
        return dealt

    def answer_crookedly(message: bytes) -> bytes:
        nonlocal crooked
        crooked = True
        try:
            return answer(message)
        finally:
            crooked = False

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(round1_share_keys, "split_many", deal)
        patched.setattr(attacker, "answer", answer_crookedly)
        yield


@pytest.mark.parametrize("drops_out", [False, True])
@pytest.mark.parametrize("off", [range(3), range(7)], ids=["off the polynomial", "another secret"])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_dealer_of_wrong_shares_ends_the_session_and_is_named_in_active_mode(
    mode: SecurityMode, off: range, nothing_is_released: NothingIsReleased, *, drops_out: bool
) -> None:
    """If all are off by the same constant, they are on the polynomial of another secret than the published one."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    dealer = session.client_ids[DEALER]
    with crooked_dealing(session, off):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    if drops_out:
        session.drop(dealer)
    blamed = {dealer} if mode is SecurityMode.ACTIVE else set[ClientId]()
    nothing_is_released(session, PeerMisbehaved, Reason.COMMITMENT_MISMATCH, blamed)


@pytest.mark.parametrize("drops_out", [False, True])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_holder_is_not_blamed_alone_for_a_share_that_its_dealer_dealt_wrong(
    mode: SecurityMode, goes_on: GoesOn, *, drops_out: bool
) -> None:
    """A commitment to a wrong share is still valid; in semi-honest mode dealer and holder cannot be distinguished."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    dealer, holder = session.client_ids[DEALER], session.client_ids[0]
    with crooked_dealing(session, [0]):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session, without=[dealer] if drops_out else ())
    (fault,) = session.server.faults
    assert fault.reason is Reason.COMMITMENT_MISMATCH
    assert fault.culprits == ({dealer} if mode is SecurityMode.ACTIVE else unverified(dealer) | {holder})


# --- Edge seeds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("helped", [True, False])
def test_a_dropped_client_that_sealed_another_seed_than_its_root_gives_is_named_and_the_round_is_saved(
    mode: SecurityMode,
    helped: bool,  # noqa: FBT001 -- a parameter of the test
    goes_on: GoesOn,
    nothing_is_released: NothingIsReleased,
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=Suite.HYBRID))
    planned = InsecurePairwiseSession(session.setup)
    planned.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    graph = planned.server.roster.graph
    receiver = next(n for n in graph.neighbours(DEALER) if graph.sends_edge_seed(DEALER, n))
    attacker, victim = session.client_ids[DEALER], session.client_ids[receiver]
    true_seed = hybrid_key_agreement.edge_seed

    def other_seed(root: Secret, sender: ClientId, to: ClientId, context: SessionContext) -> Secret:
        if (sender, to) == (attacker, victim):
            return Secret("another seed", bytes(32))
        return true_seed(root, sender, to, context)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hybrid_key_agreement, "edge_seed", other_seed)
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(attacker)
    blamed = frozenset({attacker}) if mode is SecurityMode.ACTIVE else unverified(attacker)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    if not helped:
        # The only client that could reveal the seed has also left.
        session.drop(victim)
        nothing_is_released(session, PeerMisbehaved, Reason.COMMITMENT_MISMATCH, blamed)
        return
    goes_on(session, of=set(session.client_ids) - {attacker})
    assert blame(session.server.faults) == {(Reason.COMMITMENT_MISMATCH, blamed)}


def test_an_edge_seed_that_is_revealed_wrong_does_not_become_a_wrong_sum(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup(suite=Suite.HYBRID))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(session.client_ids[DEALER])

    def lie(delivery: Delivery) -> tuple[Delivery, ...]:
        if delivery.kind is not MessageKind.UNMASKING_SHARES:
            return (delivery,)
        # The edge seeds are the end of the message.
        assert isinstance(delivery.sender, ClientId)
        spoiled = delivery.message[:-1] + bytes([delivery.message[-1] ^ 1])
        return (replace(delivery, message=session.signed_again(delivery.sender, spoiled)),)

    session.adversary = lie
    goes_on(session, of=set(session.client_ids) - {session.client_ids[DEALER]})


# --- Uploads ----------------------------------------------------------------------------------------------------------


WIDE = Layout((RingSegment(40, 4),))


@pytest.mark.parametrize(
    ("layout", "place"), [(SMALL_LAYOUT, 0), (SMALL_LAYOUT, 5), (SMALL_LAYOUT, -1), (WIDE, 4)], ids=str
)
def test_an_upload_that_was_altered_on_its_way_gives_no_sum_where_nobody_signs(
    layout: Layout, place: int, nothing_is_released: NothingIsReleased
) -> None:
    """In a ring of 40 bits the error is a multiple of 2^32, which check words modulo 2^32 would not see."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=layout))
    target = session.client_ids[2]

    def flip(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.sender, delivery.kind) != (target, MessageKind.MASKED_INPUT):
            return (delivery,)
        message = bytearray(delivery.message)
        # The last byte has filler bits, which stay zero; its lowest bit is one of the weight's check words.
        message[len(message) - session.server.configuration.masked_bytes + place if place >= 0 else -1] ^= 1
        return (replace(delivery, message=bytes(message)),)

    session.adversary = flip
    nothing_is_released(session, PeerMisbehaved, Reason.CHECK_WORDS_MISMATCH, set())


@contextmanager
def uploading_with(session: InsecurePairwiseSession, name: str, stand_in: Callable[..., Any]) -> Generator[None]:
    """Let one corrupted client mask differently."""
    attacker = session.clients[session.client_ids[2]]
    answer = attacker.answer

    def answer_otherwise(message: bytes) -> bytes:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(MaskedVector, name, stand_in)
            return answer(message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attacker, "answer", answer_otherwise)
        yield


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_self_mask_of_another_seed_than_announced_gives_no_sum(
    mode: SecurityMode, nothing_is_released: NothingIsReleased
) -> None:
    session, apply = InsecurePairwiseSession(SessionSetup(mode=mode)), MaskedVector.apply
    session.reach(ServerState.AWAITING_MASKED_INPUTS)

    def apply_more(self: MaskedVector, add: Sequence[Secret], subtract: Sequence[Secret], **rest: Any) -> None:
        apply(self, [*add, Secret("another key", bytes(16))], subtract, **rest)

    with uploading_with(session, "apply", apply_more):
        session.step()
    nothing_is_released(session, PeerMisbehaved, Reason.CHECK_WORDS_MISMATCH, set())


@pytest.mark.parametrize("count", [0, 2, 15])
def test_a_client_that_does_not_count_once_gives_no_sum(count: int, nothing_is_released: NothingIsReleased) -> None:
    session, of_input = InsecurePairwiseSession(), MaskedVector.of_input
    session.reach(ServerState.AWAITING_MASKED_INPUTS)

    def heavy(configuration: Any, context: SessionContext, payload: Payload) -> MaskedVector:
        vector = of_input(configuration, context, payload)
        # Check words are linear, so those of the count stay correct.
        vector.vectors[-1] = vector.vectors[-1] * count % (1 << configuration.segments[-1].modulus_bits)
        return vector

    with uploading_with(session, "of_input", heavy):
        session.step()
    nothing_is_released(session, PeerMisbehaved, Reason.INPUT_OUT_OF_RANGE, set())


# --- What the check words say -----------------------------------------------------------------------------------------


def unmasked(narrow: list[int], wide: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let all clients upload the same values, and return the server's view of the sum, including check words."""
    layout = Layout((RingSegment(8, len(narrow)), RingSegment(40, 1)))
    first, second = layout.require_rings()
    values = (np.array(narrow, dtype=first.ring.word), np.array([wide], dtype=second.ring.word))
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=layout)
    session = InsecurePairwiseSession(setup, payload_of=lambda _: Payload(layout, values))
    seen = list[list[list[int]]]()
    check = MaskedVector.check

    def watch(self: MaskedVector, context: SessionContext) -> None:
        seen.append([vector.tolist() for vector in self.vectors])
        check(self, context)

    with monkeypatch.context() as patched:
        patched.setattr(MaskedVector, "check", watch)
        session.finish()
    return seen[0]


def test_check_words_do_not_tell_how_often_a_sum_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    # The sums over eight clients agree modulo 2^8 and 2^40, but not as integers.
    once = unmasked([1, 0, 31], 0, monkeypatch)
    wrapped = unmasked([33, 32, 63], 1 << 37, monkeypatch)
    assert once[0][:3] == [8, 0, 248]
    assert len(once[0]) > 3, "there are check words"
    assert wrapped == once
