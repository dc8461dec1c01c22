"""What the server makes of the shares: wrong ones are corrected or refused, and whoever is to blame is named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, cast

import pytest

from secagg.blame import unverified
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Corrected, Share, correct, split_many
from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    InternalError,
    MalformedMessage,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId, Party, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import recovery, round1_share_keys
from secagg.protocols.pairwise_mask.client import ClientState
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.round1_share_keys import DeliveredShares
from secagg.protocols.pairwise_mask.round2_masked_input import Complaint
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import (
    AnsweredFor,
    UnmaskingRequest,
    UnmaskingShares,
    signed_unmasking,
)
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.protocols.pairwise_mask.suites import HybridSuite, MaskKeys, SharePlace, key_suite
from secagg.wire import MessageKind, message_kind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    same_sum,
    unmask,
)

Edit = Callable[[UnmaskingShares, AnsweredFor], UnmaskingShares]


def nine(mode: SecurityMode, suite: Suite = Suite.CLASSIC) -> SessionSetup:
    """Return a full graph of nine clients: eight hold shares of each, and five recover a secret."""
    return SessionSetup(population=9, corrupted=0, dropped=2, mode=mode, suite=suite)


class Editing:
    """An adversary that rewrites the answers of some clients in the last round, with their keys."""

    def __init__(self, edits: Mapping[ClientId, Edit]) -> None:
        self.edits = edits
        self.session: InsecurePairwiseSession | None = None
        self.known = dict[tuple[ClientId, MessageKind], bytes]()

    def __call__(self, delivery: Delivery) -> Iterable[Delivery]:
        if isinstance(delivery.receiver, ClientId):
            self.known[delivery.receiver, delivery.kind] = delivery.message
        if delivery.kind is not MessageKind.UNMASKING_SHARES or delivery.sender not in self.edits:
            return (delivery,)
        assert self.session is not None
        assert isinstance(delivery.sender, ClientId)
        roster = self.session.server.roster
        position = roster.position_of(delivery.sender)
        assert position is not None
        sharers = DeliveredShares.decode(
            self.known[delivery.sender, MessageKind.DELIVERED_SHARES], roster, position
        ).sharers
        request = UnmaskingRequest.decode(self.known[delivery.sender, MessageKind.UNMASKING_REQUEST], roster)
        answered = AnsweredFor.by(roster, sharers, request.contributors, position)
        answer = self.edits[delivery.sender](UnmaskingShares.decode(delivery.message, roster, answered), answered)
        if roster.configuration.is_active:
            parts = signed_unmasking(
                roster.context,
                delivery.sender,
                request.contributors,
                self.session.relayed_root(delivery.sender),
                answer,
            )
            key = self.session.signing_keys[delivery.sender]
            answer = replace(answer, signature=key.sign(Label.SIGNED_UNMASKING, *parts))
        return (replace(delivery, message=answer.encode()),)


def edited_session(setup: SessionSetup, edits: Mapping[ClientId, Edit]) -> InsecurePairwiseSession:
    editing = Editing(edits)
    session = InsecurePairwiseSession(setup, adversary=editing)
    editing.session = session
    return session


def lying_about(dealers: Collection[int], share_bytes: int) -> Edit:
    """Return an edit that changes the shares of the dealers at these positions."""

    def edit(answer: UnmaskingShares, answered: AnsweredFor) -> UnmaskingShares:
        shares = bytearray(answer.shares)
        for place, dealer in enumerate(answered.neighbours):
            if dealer in dealers:
                # Everybody holds every share here, so a share stands where its dealer does.
                shares[(place + 1) * share_bytes - (share_bytes - 31)] ^= 0x55
        return replace(answer, shares=bytes(shares))

    return edit


def share_bytes(mode: SecurityMode) -> int:
    return 64 if mode is SecurityMode.ACTIVE else 32


def liars_session(
    setup: SessionSetup, liars: Iterable[int], dealers: Collection[int]
) -> tuple[InsecurePairwiseSession, frozenset[ClientId]]:
    """Return a session in which the clients at some positions lie about the shares of some dealers."""
    named = frozenset(setup.client_ids[position] for position in liars)
    return edited_session(setup, dict.fromkeys(named, lying_about(dealers, share_bytes(setup.mode)))), named


def dealing(who: ClientId, session: InsecurePairwiseSession, patch: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Play the first two rounds, in which one client runs other code than the rest."""
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    own = session.take(who)
    session.deliver(session.pending)
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        shares = session.clients[who].answer(own)
    session.server.receive(who, shares)
    session.pending = close_round(session.server)


def deals_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal shares of which one is off the polynomial, each in range and under a commitment."""

    def split(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
        dealt = split_many(secrets, threshold=threshold, holders=holders, coins=coins)
        for shares in dealt:
            for place in range(threshold):
                value = bytearray(shares[place].value.expose())
                value[-1] ^= 1 + place
                shares[place] = Share(shares[place].point, Secret("share", value))
        return dealt

    monkeypatch.setattr(round1_share_keys, "split_many", split)


def seals_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal to every neighbour a seed that does not follow from the root that was shared."""
    offer = HybridSuite.offer_edge

    def offer_another(self: HybridSuite, own: MaskKeys, peer: Any, context: Any) -> bytes:
        return offer(
            self, MaskKeys(own.client, own.pair, Secret("mask_root", b"another root".ljust(32))), peer, context
        )

    monkeypatch.setattr(HybridSuite, "offer_edge", offer_another)


# --- Holders that lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [0, 1], ids=["self masks", "a mask root"])
@pytest.mark.parametrize(("mode", "liars"), [(SecurityMode.SEMI_HONEST, 1), (SecurityMode.ACTIVE, 2)])
def test_wrong_shares_are_set_aside_and_their_holders_named(mode: SecurityMode, liars: int, dropped: int) -> None:
    setup = nine(mode)
    session, named = liars_session(setup, range(1, 1 + liars), [0])
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    if dropped:
        session.drop(setup.client_ids[0])
    total = session.finish()
    contributors = setup.client_ids[dropped:]
    assert same_sum(total, session.sum_of(contributors))
    (fault,) = session.server.faults
    assert isinstance(fault, PeerMisbehaved)
    assert fault.reason is Reason.COMMITMENT_MISMATCH
    # Without commitments a dealer that dealt badly looks the same as a holder that lies, so both are named.
    dealer = unverified(setup.client_ids[0]) if mode is SecurityMode.SEMI_HONEST else frozenset[Party]()
    assert fault.culprits == named | dealer
    assert fault.round_name == "unmasking"
    assert session.server.state is ServerState.COMPLETED


@pytest.mark.parametrize(("mode", "liars"), [(SecurityMode.SEMI_HONEST, 2), (SecurityMode.ACTIVE, 4)])
def test_too_many_wrong_shares_release_nothing(mode: SecurityMode, liars: int) -> None:
    session, named = liars_session(nine(mode), range(1, 1 + liars), [0])
    with pytest.raises(PeerMisbehaved) as caught:
        session.finish()
    assert caught.value.reason is Reason.COMMITMENT_MISMATCH
    # Without commitments the evidence does not tell who lies.
    assert caught.value.culprits == (named if mode is SecurityMode.ACTIVE else frozenset())
    assert session.server.state is ServerState.ABORTED


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_commitments_set_aside_as_many_as_are_not_needed(liars: int) -> None:
    session, named = liars_session(nine(SecurityMode.ACTIVE), range(1, 1 + liars), range(9))
    total = session.finish()
    assert same_sum(total, session.sum_of(session.client_ids))
    assert frozenset[Any]().union(*(fault.culprits for fault in session.server.faults)) == named
    for fault in session.server.faults:
        assert isinstance(fault, PeerMisbehaved)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("liars", [1, 5])
def test_liars_cost_one_search_each_and_nobody_else_a_name(
    liars: int, mode: SecurityMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lies about everybody's share; without a memory that is one search for each client of the session."""
    searches = list[int]()

    def counted(shares: Sequence[Share], *, threshold: int, kind: str) -> Corrected:
        searches.append(len(shares))
        return correct(shares, threshold=threshold, kind=kind)

    monkeypatch.setattr(recovery, "correct", counted)
    setup = SessionSetup(population=40, corrupted=liars, dropped=2, mode=mode, minimum_cohort=20)
    session, named = liars_session(setup, range(3, 3 + liars), range(40))
    total = session.finish()
    assert same_sum(total, session.sum_of(session.client_ids))
    assert 1 <= len(searches) <= liars
    culprits = frozenset[Party]().union(*(fault.culprits for fault in session.server.faults))
    assert culprits == named | (frozenset({ServerId()}) if mode is SecurityMode.SEMI_HONEST else frozenset())
    assert len(session.server.faults) <= liars + 1


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_share_that_is_no_field_element_excludes_its_holder(
    mode: SecurityMode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def overflow(answer: UnmaskingShares, _: AnsweredFor) -> UnmaskingShares:
        return replace(answer, shares=b"\xff" * 32 + answer.shares[32:])

    liar = nine(mode).client_ids[4]
    session = edited_session(nine(mode), {liar: overflow})
    total = session.finish()
    assert same_sum(total, session.sum_of(session.client_ids))
    ((sender, error),) = session.refusals
    assert sender == liar
    assert isinstance(error, PeerMisbehaved)
    assert error.reason is Reason.SHARE_OUT_OF_RANGE
    assert error.culprits == ({liar} if mode is SecurityMode.ACTIVE else unverified(liar))
    assert session.server.faults == (error,)
    assert "reveals the sums of 1 sets of clients, of sizes [9]" in caplog.text


@pytest.mark.parametrize("mode", SecurityMode)
def test_shares_that_are_held_back_are_missing_and_nobody_is_blamed(mode: SecurityMode) -> None:
    def nothing(answer: UnmaskingShares, answered: AnsweredFor) -> UnmaskingShares:
        return replace(answer, held=type(answer.held).of(len(answered.neighbours), []), shares=b"")

    clients = nine(mode).client_ids
    session = edited_session(nine(mode), dict.fromkeys(clients[:3], nothing))
    # The other six hold five shares of one another and six of the first three.
    assert same_sum(session.finish(), session.sum_of(clients))
    assert not session.server.faults
    session = edited_session(nine(mode), dict.fromkeys(clients[:4], nothing))
    with pytest.raises(ThresholdNotMet, match="self-mask seed") as caught:
        session.finish()
    assert (caught.value.needed, caught.value.present) == (5, 4)
    assert caught.value.round_name == "unmasking"
    assert session.server.state is ServerState.ABORTED


@pytest.mark.parametrize("mode", SecurityMode)
def test_too_few_answers_release_nothing(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(nine(mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(session.client_ids[0])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.drop(*session.client_ids[1:5])
    with pytest.raises(ThresholdNotMet):
        session.finish()
    assert session.server.state is ServerState.ABORTED


# --- Dealers that deal badly ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_dealer_that_deals_more_than_can_be_corrected_ends_the_session(mode: SecurityMode, *, drops: bool) -> None:
    session = InsecurePairwiseSession(nine(mode))
    dealer = session.client_ids[3]
    dealing(dealer, session, deals_badly)
    if drops:
        session.drop(dealer)
    with pytest.raises(PeerMisbehaved) as caught:
        session.finish()
    assert caught.value.reason is Reason.COMMITMENT_MISMATCH
    assert caught.value.culprits == ({dealer} if mode is SecurityMode.ACTIVE else frozenset())
    assert session.server.state is ServerState.ABORTED


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("mode", SecurityMode)
def test_one_share_that_was_dealt_wrongly_is_corrected_in_both_modes(mode: SecurityMode, *, drops: bool) -> None:
    """A commitment to a wrong share is a commitment; what is left behind them is decoded all the same."""

    def deals_one_badly(monkeypatch: pytest.MonkeyPatch) -> None:
        def split(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
            dealt = split_many(secrets, threshold=threshold, holders=holders, coins=coins)
            for shares in dealt:
                value = bytearray(shares[1].value.expose())
                value[-1] ^= 1
                shares[1] = Share(shares[1].point, Secret("share", value))
            return dealt

        monkeypatch.setattr(round1_share_keys, "split_many", split)

    session = InsecurePairwiseSession(nine(mode))
    dealer, holder = session.client_ids[3], session.client_ids[1]
    dealing(dealer, session, deals_one_badly)
    if drops:
        session.drop(dealer)
    total = session.finish()
    assert same_sum(total, session.sum_of(c for c in session.client_ids if c != dealer or not drops))
    (fault,) = session.server.faults
    assert fault.culprits == ({dealer} if mode is SecurityMode.ACTIVE else unverified(dealer) | {holder})


def commits_to_other_shares(receivers: Collection[ClientId]) -> Callable[[pytest.MonkeyPatch], None]:
    """Commit, for some receivers, to something else than to what was sealed to them."""
    commit = SharePlace.commit_to

    def commit_to(self: SharePlace, mask_root_digest: bytes, self_mask_seed_digest: bytes) -> bytes:
        spoilt = bytes(32) if self.holder in receivers else mask_root_digest
        return commit(self, spoilt, self_mask_seed_digest)

    return lambda monkeypatch: monkeypatch.setattr(SharePlace, "commit_to", commit_to)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("spoilt", [3, 4])
def test_a_share_that_is_not_the_committed_one_is_missing_and_evicts_nobody(spoilt: int, suite: Suite) -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE, suite))
    dealer, *others = session.client_ids
    dealing(dealer, session, commits_to_other_shares(others[:spoilt]))
    session.deliver(session.pending)
    assert not session.errors
    for client in others:
        complaints = session.clients[client].faults
        assert len(complaints) == (client in others[:spoilt])
        for complaint in complaints:
            assert complaint.reason is Reason.COMMITMENT_MISMATCH
            assert complaint.culprits == frozenset({dealer})
            assert complaint.round_name == "masked_input"
    session.pending = close_round(session.server)
    if 8 - spoilt < 5:
        with pytest.raises(ThresholdNotMet):
            session.finish()
        return
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert not session.server.faults


@pytest.mark.parametrize("which", [0, 1], ids=["of the mask root", "of the self-mask seed"])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_share_that_is_dealt_out_of_range_is_missing_and_evicts_nobody(mode: SecurityMode, which: int) -> None:
    """Its holder would be taken for a liar if it showed it."""

    def deals_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
        def split(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
            dealt = split_many(secrets, threshold=threshold, holders=holders, coins=coins)
            dealt[which][0] = Share(1, Secret("share", b"\xff" * 32))
            return dealt

        monkeypatch.setattr(round1_share_keys, "split_many", split)

    session = InsecurePairwiseSession(nine(mode))
    dealer, holder = session.client_ids[3], session.client_ids[0]
    dealing(dealer, session, deals_out_of_range)
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    (complaint,) = session.clients[holder].faults
    assert complaint.reason is Reason.SHARE_OUT_OF_RANGE
    blamed: set[Party] = {dealer} if mode is SecurityMode.ACTIVE else {dealer, ServerId()}
    assert complaint.culprits == blamed
    assert not session.errors
    assert not session.refusals


def test_a_share_that_is_not_the_committed_one_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE))
    dealer, victim, *_ = session.client_ids
    dealing(dealer, session, commits_to_other_shares([victim]))
    own, made = session.take(victim), list[Secret]()
    initialise = Secret.__init__

    def collect(self: Secret, kind: str, data: bytes | bytearray | memoryview) -> None:
        initialise(self, kind, data)
        made.append(self)

    monkeypatch.setattr(Secret, "__init__", collect)
    session.clients[victim].answer(own)
    session.clients[victim].abort()
    assert made
    assert [secret.kind for secret in made if not secret.is_wiped] == []


@pytest.mark.parametrize("suite", Suite)
def test_a_share_that_does_not_open_is_missing_and_evicts_nobody(suite: Suite) -> None:
    """In semi_honest mode nothing is signed, so the sender and the relay are both named."""

    def spoil(delivery: Delivery) -> Iterable[Delivery]:
        if delivery.kind is not MessageKind.DELIVERED_SHARES or delivery.receiver != victim:
            return (delivery,)
        message = bytearray(delivery.message)
        # Behind the header, the context and the set: the end of the first sealed pair of shares.
        message[7 + 8 + 2 + key_suite(suite).sealed_bytes - 1] ^= 1
        return (replace(delivery, message=bytes(message)),)

    setup = nine(SecurityMode.SEMI_HONEST, suite)
    sender, victim = setup.client_ids[0], setup.client_ids[4]
    session = InsecurePairwiseSession(setup, adversary=spoil)
    assert same_sum(session.finish(), session.sum_of(setup.client_ids))
    (complaint,) = session.clients[victim].faults
    assert isinstance(complaint, AuthenticationFailed)
    assert complaint.culprits == frozenset[Party]({sender, ServerId()})
    assert not session.errors


def deals_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal shares that fit one polynomial and their commitments, of secrets that the dealer does not use."""

    def split(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
        others = [Secret(secret.kind, bytes(len(secret))) for secret in secrets]
        return split_many(others, threshold=threshold, holders=holders, coins=coins)

    monkeypatch.setattr(round1_share_keys, "split_many", split)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("fault", ["none", "a liar", "another secret"])
def test_what_is_recovered_despite_lies_is_overwritten(
    fault: str, suite: Suite, *, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong secrets as well as right ones, shares, and key pairs that were made to look."""
    setup = nine(SecurityMode.SEMI_HONEST, suite)
    session, _ = liars_session(setup, [1] if fault == "a liar" else [], [0])
    dealing(setup.client_ids[0], session, deals_another_secret if fault == "another secret" else lambda _: None)
    if drops:
        session.drop(setup.client_ids[0])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    made, make, own = list[Secret](), Secret.__init__, type(key_suite(suite))
    pairs, wiped, pair_of = list[Any](), list[Any](), own.key_pair

    def noted(secret: Secret, kind: str, data: bytes) -> None:
        make(secret, kind, data)
        made.append(secret)

    def noted_pair(*arguments: Any) -> Any:
        pair = pair_of(*arguments)
        if not pairs:
            made_of: Any = pair.__class__
            wipe: Any = made_of.wipe

            def noted_wipe(wiped_pair: Any) -> None:
                wiped.append(wiped_pair)
                wipe(wiped_pair)

            monkeypatch.setattr(made_of, "wipe", noted_wipe)
        pairs.append(pair)
        return pair

    monkeypatch.setattr(Secret, "__init__", noted)
    monkeypatch.setattr(own, "key_pair", noted_pair)
    if fault == "another secret":
        with pytest.raises(PeerMisbehaved):
            unmask(session.server)
    else:
        unmask(session.server)
    assert len(made) > 9
    assert [secret.kind for secret in made if not secret.is_wiped] == []
    assert bool(pairs) is drops
    assert set(map(id, pairs)) == set(map(id, wiped))


@pytest.mark.parametrize(("dealers", "looked_at"), [([0], 4), (range(9), 1)])
def test_a_suspect_is_looked_at_a_few_times_and_no_more(
    dealers: Collection[int], looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as often as liars are assumed, and one; not at all once it was wrong for more dealers than could lie."""
    session, _ = liars_session(nine(SecurityMode.SEMI_HONEST), [1], dealers)
    looks, combine = list[int](), recovery._combine  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def counted(shown: Sequence[Any], threshold: int, secret: Any) -> Secret:
        looks.append(len(shown) > threshold)
        return combine(shown, threshold, secret)

    monkeypatch.setattr(recovery, "_combine", counted)
    session.finish()
    assert sum(looks) == looked_at


def test_a_dealer_whose_shares_are_wrong_at_more_holders_than_could_lie_is_named_alone() -> None:
    def deals_two_badly(monkeypatch: pytest.MonkeyPatch) -> None:
        def split(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
            dealt = split_many(secrets, threshold=threshold, holders=holders, coins=coins)
            for shares in dealt:
                for place in (1, 2):
                    value = bytearray(shares[place].value.expose())
                    value[-1] ^= 1 + place
                    shares[place] = Share(shares[place].point, Secret("share", value))
            return dealt

        monkeypatch.setattr(round1_share_keys, "split_many", split)

    session = InsecurePairwiseSession(
        SessionSetup(population=13, corrupted=0, dropped=4, mode=SecurityMode.SEMI_HONEST)
    )
    dealer = session.client_ids[5]
    dealing(dealer, session, deals_two_badly)
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    (fault,) = session.server.faults
    assert fault.culprits == unverified(dealer)


# --- Edges of the hybrid suite ----------------------------------------------------------------------------------------


def hybrid_session(
    edits: Mapping[ClientId, Edit] | None = None, mode: SecurityMode = SecurityMode.ACTIVE
) -> InsecurePairwiseSession:
    return edited_session(nine(mode, Suite.HYBRID), edits or {})


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_dropped_client_that_sealed_other_seeds_does_not_cost_the_round(mode: SecurityMode) -> None:
    session = hybrid_session(mode=mode)
    cheat = session.client_ids[2]
    dealing(cheat, session, seals_other_seeds)
    session.drop(cheat)
    total = session.finish()
    others = [client for client in session.client_ids if client != cheat]
    assert same_sum(total, session.sum_of(others))
    # It sends the seeds of half of its eight edges.
    (fault,) = session.server.faults
    assert "4 of its neighbours" in str(fault)
    assert fault.reason is Reason.COMMITMENT_MISMATCH
    assert fault.culprits == ({cheat} if mode is SecurityMode.ACTIVE else unverified(cheat))


def test_a_dropped_client_that_sealed_other_seeds_is_to_blame_if_they_are_not_shown() -> None:
    cheat, receiver = (nine(SecurityMode.ACTIVE).client_ids[position] for position in (2, 3))

    def another_seed(answer: UnmaskingShares, answered: AnsweredFor) -> UnmaskingShares:
        assert list(answered.edges) == [2]  # the one that dropped out
        return replace(answer, edge_seeds=bytes(32))

    for edits, leaves in (({receiver: another_seed}, False), ({}, True)):
        session = hybrid_session(edits)
        dealing(cheat, session, seals_other_seeds)
        session.drop(cheat)
        session.reach(ServerState.AWAITING_UNMASKING_SHARES)
        if leaves:
            session.drop(receiver)
        with pytest.raises(PeerMisbehaved) as caught:
            session.finish()
        assert caught.value.reason is Reason.COMMITMENT_MISMATCH
        assert caught.value.culprits == frozenset({cheat})
        assert caught.value.round_name == "unmasking"


def garbage_for(*victims: ClientId) -> Callable[[pytest.MonkeyPatch], None]:
    """Commit to the right seeds, and seal garbage to some."""
    offer = HybridSuite.offer_edge

    def offer_edge(self: HybridSuite, own: MaskKeys, peer: Any, context: Any) -> bytes:
        offered = offer(self, own, peer, context)
        return offered[:32] + bytes(reversed(offered[32:])) if peer.client in victims else offered

    return lambda monkeypatch: monkeypatch.setattr(HybridSuite, "offer_edge", offer_edge)


def receivers_of(session: InsecurePairwiseSession, sender: ClientId) -> list[ClientId]:
    """Return to whom a client sends the seeds of edges."""
    roster = session.server.roster
    position = roster.clients.index(sender)
    neighbours = roster.graph.neighbours(position)
    return [roster.clients[n] for n in neighbours if roster.graph.sends_edge_seed(position, n)]


def blamed(mode: SecurityMode, client: ClientId) -> frozenset[Party]:
    return frozenset({client}) if mode is SecurityMode.ACTIVE else unverified(client)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("mode", SecurityMode)
def test_garbage_in_place_of_a_seed_evicts_its_receiver_and_convicts_its_sender(
    mode: SecurityMode, *, stays: bool
) -> None:
    """The victim complains and leaves; its mask is removed with the seed that the sender shows, or needs no seed."""
    session = InsecurePairwiseSession(nine(mode, Suite.HYBRID))
    cheat, victim = session.client_ids[2], session.client_ids[3]
    dealing(cheat, session, garbage_for(victim))
    if not stays:
        session.drop(cheat)
    total = session.finish()
    gone = {victim} if stays else {victim, cheat}
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client not in gone))
    assert session.clients[victim].state is ClientState.ABORTED
    (own,) = session.clients[victim].faults
    assert isinstance(own, AuthenticationFailed)
    assert own.culprits == blamed(mode, cheat)
    accusation, *verdict = session.server.faults
    assert accusation.reason is Reason.EDGE_UNUSABLE
    assert accusation.culprits == blamed(mode, cheat) | blamed(mode, victim)
    # The victim's root is recovered, and opens nothing either.
    assert [fault.culprits for fault in verdict] == [blamed(mode, cheat)]
    assert not session.refusals
    assert f"{victim} leaves: it cannot use the seeds of its edges with {cheat}" in str(accusation)


def test_a_client_that_complains_records_wrong_shares_as_well() -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE, Suite.HYBRID))
    cheat, victim = session.client_ids[2], session.client_ids[3]

    def both(monkeypatch: pytest.MonkeyPatch) -> None:
        garbage_for(victim)(monkeypatch)
        commits_to_other_shares([victim])(monkeypatch)

    dealing(cheat, session, both)
    session.clients[victim].answer(session.take(victim))
    reasons = [fault.reason for fault in session.clients[victim].faults]
    assert reasons == [Reason.COMMITMENT_MISMATCH, Reason.AUTHENTICATION_FAILED]


def test_a_client_that_complains_of_a_good_seed_is_found_out() -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE, Suite.HYBRID))
    honest, liar = session.client_ids[2], session.client_ids[3]
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    own = session.take(liar)

    def fail(*_: object, **__: object) -> Secret:
        raise AuthenticationFailed(culprits=UNDECIDED)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HybridSuite, "seed_of_received_edge", fail)
        complaint = session.clients[liar].answer(own)
    session.server.receive(liar, complaint)
    # Its word alone excludes nobody.
    awaited = session.server.awaited or frozenset()
    assert honest in awaited
    assert liar not in awaited
    total = session.finish()
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client != liar))
    accusation, verdict = session.server.faults
    assert liar in accusation.culprits
    assert verdict.culprits == frozenset({liar})


def test_whoever_drives_half_of_its_neighbours_out_is_named() -> None:
    """Ten of twenty-one leave, and the session ends; the complaints tell more than that ten dropped out."""
    setup = SessionSetup(population=21, corrupted=1, dropped=2, suite=Suite.HYBRID, minimum_cohort=15)
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    cheat = session.client_ids[4]
    victims = receivers_of(session, cheat)
    dealing(cheat, session, garbage_for(*victims))
    session.drop(cheat)
    session.deliver(session.pending)
    with pytest.raises(ThresholdNotMet):
        close_round(session.server)
    assert len(victims) == 10
    assert len(session.server.faults) == 10
    assert all(cheat in fault.culprits for fault in session.server.faults)
    # More accusers than the session assumes liars: from then on the sender is named alone.
    assert [fault.culprits for fault in session.server.faults[1:]] == [frozenset({cheat})] * 9


@pytest.mark.parametrize("mode", SecurityMode)
def test_garbage_for_a_client_that_left_before_it_could_complain_convicts_its_sender(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(nine(mode, Suite.HYBRID))
    cheat, victim = session.client_ids[2], session.client_ids[3]
    dealing(cheat, session, garbage_for(victim))
    session.drop(victim)
    total = session.finish()
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client != victim))
    assert [fault.culprits for fault in session.server.faults] == [blamed(mode, cheat)]


def test_a_stranger_stands_nowhere_and_no_round_reads_what_none_has_settled() -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    settled = session.server.settled
    with pytest.raises(PeerMisbehaved) as caught:
        settled.position_of(ClientId(999))
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(ClientId(999)))
    with pytest.raises(InternalError):
        _ = settled.sharers


def test_every_edge_that_a_recovered_client_committed_to_is_checked() -> None:
    """Seeds that fit their commitments and no root, sent to clients that drop out as well."""
    session = hybrid_session()
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    cheat = session.client_ids[2]
    (gone, *_) = receivers_of(session, cheat)
    offer = HybridSuite.offer_edge

    def to_one(monkeypatch: pytest.MonkeyPatch) -> None:
        def offer_edge(self: HybridSuite, own: MaskKeys, peer: Any, context: Any) -> bytes:
            other = MaskKeys(own.client, own.pair, Secret("mask_root", b"another root".ljust(32)))
            return offer(self, other if peer.client == gone else own, peer, context)

        monkeypatch.setattr(HybridSuite, "offer_edge", offer_edge)

    dealing(cheat, session, to_one)
    session.drop(cheat, gone)
    total = session.finish()
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client not in {cheat, gone}))
    assert [fault.culprits for fault in session.server.faults] == [frozenset({cheat})]


@pytest.mark.parametrize("spoil", ["context", "signature", "nobody", "a stranger's seed"])
def test_a_complaint_that_is_not_its_senders_is_refused(spoil: str) -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE, Suite.HYBRID))
    cheat, victim = session.client_ids[2], session.client_ids[3]
    dealing(cheat, session, garbage_for(victim))
    message = session.clients[victim].answer(session.take(victim))
    position = session.client_ids.index(victim)
    settled = session.server.settled
    complaint = Complaint.decode(message, settled.roster, position, settled.sharers)
    graph, neighbours = session.server.roster.graph, session.server.roster.graph.neighbours(position)
    sent = next(place for place, n in enumerate(neighbours) if graph.sends_edge_seed(position, n))
    spoilt = {
        "context": replace(complaint, context=bytes(8)),
        "signature": replace(complaint, signature=bytes(64)),
        "nobody": replace(complaint, accused=type(complaint.accused).of(len(neighbours), [])),
        "a stranger's seed": replace(complaint, accused=type(complaint.accused).of(len(neighbours), [sent])),
    }[spoil]
    with pytest.raises(PeerError) as caught:
        session.server.receive(victim, spoilt.encode())
    assert caught.value.culprits == unverified(victim)
    assert session.server.faults == (caught.value,)


@pytest.mark.parametrize("suite", Suite)
def test_a_complaint_is_about_somebody_who_sent_a_seed(suite: Suite) -> None:
    """No seeds are sent in the classic suite, none by who shared no keys, and each along one direction of its edge."""
    session = InsecurePairwiseSession(nine(SecurityMode.SEMI_HONEST, suite))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    graph, neighbours = session.server.roster.graph, session.server.roster.graph.neighbours(3)
    sending = [place for place, n in enumerate(neighbours) if graph.sends_edge_seed(n, 3)]
    gone, good = sending[:2]
    session.drop(session.client_ids[neighbours[gone]])
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    settled = session.server.settled

    def about(*places: int) -> bytes:
        accused = settled.roster.set_of(()).of(len(neighbours), places)
        return Complaint(context=settled.roster.context.tag, signature=b"", accused=accused).encode()

    receiving = next(place for place in range(8) if place not in sending)
    for wrong in ((), (gone,), (receiving,), (good, gone), (good, receiving), *(((good,),) * (suite is Suite.CLASSIC))):
        with pytest.raises(MalformedMessage, match="about nobody who sent a seed"):
            Complaint.decode(about(*wrong), settled.roster, 3, settled.sharers)
    if suite is Suite.HYBRID:
        assert list(Complaint.decode(about(good), settled.roster, 3, settled.sharers).accused) == [good]


# --- What is revealed -------------------------------------------------------------------------------------------------


def cut_apart(neighbours: Mapping[int, Sequence[int]], dropped: Collection[int]) -> list[frozenset[int]]:
    parts, left = list[frozenset[int]](), set(neighbours) - set(dropped)
    while left:
        part, frontier = set[int](), {left.pop()}
        while frontier:
            part |= frontier
            frontier = {peer for one in frontier for peer in neighbours[one]} - part - set(dropped)
        left -= part
        parts.append(frozenset(part))
    return parts


@pytest.mark.parametrize("cohort", [4, 5])
def test_a_sum_over_fewer_than_the_minimum_cohort_is_not_released(cohort: int) -> None:
    """Dropouts beyond the plan cut a sparse semi_honest session into two parts of four."""
    setup = SessionSetup(population=12, mode=SecurityMode.SEMI_HONEST, topology=Topology.SPARSE, minimum_cohort=cohort)
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    roster = session.server.roster
    neighbours = {position: roster.graph.neighbours(position) for position in range(12)}
    parts = next(
        parts
        for parts in (cut_apart(neighbours, dropped) for dropped in combinations(range(12), 4))
        if [len(part) for part in parts] == [4, 4]
    )
    kept = frozenset[int]().union(*parts)
    session.drop(*(client for position, client in enumerate(roster.clients) if position not in kept))
    if cohort > 4:
        with pytest.raises(ThresholdNotMet, match="smallest set") as caught:
            session.finish()
        assert (caught.value.needed, caught.value.present) == (5, 4)
        assert session.server.state is ServerState.ABORTED
        return
    total = session.finish()
    assert same_sum(total, session.sum_of(roster.clients[position] for position in kept))
    assert session.server.revealed == {frozenset(roster.clients[position] for position in part) for part in parts}


def test_nobody_recovers_a_dropped_client_with_whom_nobody_masked() -> None:
    """A client whose neighbours never shared, and that shared and dropped, has left no mask in the sum."""
    setup = SessionSetup(
        population=14, mode=SecurityMode.SEMI_HONEST, topology=Topology.SPARSE, minimum_cohort=2, dropped=2
    )
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    roster = session.server.roster
    around = roster.graph.neighbours(0)
    session.drop(*(roster.clients[position] for position in around))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(roster.clients[0])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    counts = set[int]()
    total = unmask(session.server, lambda _, count: counts.add(count))
    kept = [client for position, client in enumerate(roster.clients) if position not in {0, *around}]
    assert same_sum(total, session.sum_of(kept))
    assert counts == {len(kept)}


def test_an_altered_upload_is_noticed_by_the_check_words() -> None:
    def alter(delivery: Delivery) -> Iterable[Delivery]:
        if message_kind(delivery.message) is MessageKind.MASKED_INPUT and delivery.sender == victim:
            message = bytearray(delivery.message)
            message[-40] ^= 1
            return (replace(delivery, message=bytes(message)),)
        return (delivery,)

    setup = nine(SecurityMode.SEMI_HONEST)
    victim = setup.client_ids[5]
    session = InsecurePairwiseSession(setup, adversary=alter)
    with pytest.raises(PeerMisbehaved) as caught:
        session.finish()
    assert caught.value.reason is Reason.CHECK_WORDS_MISMATCH
    assert caught.value.culprits == frozenset()
    assert session.server.state is ServerState.ABORTED


def test_a_weight_that_no_weights_add_up_to_is_refused() -> None:
    """A client that lies about its weight and computes the check words for it is caught only where it goes too far."""
    from secagg.protocols.pairwise_mask.round2_masked_input import MaskedVector  # noqa: PLC0415 -- beside what it patches

    honest = MaskedVector.of_input.__func__  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]
    setup = nine(SecurityMode.SEMI_HONEST)
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    who = setup.client_ids[0]
    own = session.take(who)

    def heavy(cls: Any, configuration: Any, context: Any, payload: Any, weight: int) -> MaskedVector:
        return cast("MaskedVector", honest(cls, configuration, context, payload, weight + 1))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MaskedVector, "of_input", classmethod(heavy))
        upload = session.clients[who].answer(own)
    session.server.receive(who, upload)
    with pytest.raises(PeerMisbehaved, match="total weight of 10") as caught:
        session.finish()
    assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE
