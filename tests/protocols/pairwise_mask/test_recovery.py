"""The server's recovery from shares: wrong ones are corrected or refused, and the culprits are named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from secagg.blame import unverified
from secagg.choices import Topology
from secagg.crypto.entropy import Coins
from secagg.crypto.reconstruction import Corrected, correct
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share, split_many
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
from secagg.protocols.pairwise_mask.configuration import Seat
from secagg.protocols.pairwise_mask.round2_masked_input import Complaint
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import AnsweredFor, Asked, UnmaskingShares
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.protocols.pairwise_mask.suites import HybridSuite, MaskKeys, SharePlace, key_suite
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    restored,
    same_sum,
    stored,
    unmask,
)
from tests.harness.secrets_held import left_over, secrets_from_now

Edit = Callable[[UnmaskingShares, AnsweredFor], UnmaskingShares]


def nine(mode: SecurityMode, suite: Suite = Suite.CLASSIC) -> SessionSetup:
    """Return a full graph of nine clients: eight hold shares of each, and five recover a secret."""
    return SessionSetup(population=9, corrupted=0, dropped=2, mode=mode, suite=suite)


def edited_session(setup: SessionSetup, edits: Mapping[ClientId, Edit]) -> InsecurePairwiseSession:
    """Return a session in which some clients rewrite their answers of the last round, and sign them."""
    session = InsecurePairwiseSession(setup)

    def rewrite(delivery: Delivery) -> Iterable[Delivery]:
        sender = delivery.sender
        if delivery.kind is not MessageKind.UNMASKING_SHARES or not isinstance(sender, ClientId) or sender not in edits:
            return (delivery,)
        settled = session.settled()
        position = settled.position_of(sender)
        answered = AnsweredFor.by(settled.roster, settled.sharers, settled.contributors, position)
        answer = edits[sender](UnmaskingShares.decode(delivery.message, Asked(settled.roster, answered)), answered)
        return (replace(delivery, message=session.signed_again(sender, answer.encode())),)

    session.adversary = rewrite
    return session


def lying_about(dealers: Collection[int], share_bytes: int) -> Edit:
    """Return an edit that changes the shares of the dealers at these positions."""

    def edit(answer: UnmaskingShares, answered: AnsweredFor) -> UnmaskingShares:
        shares = bytearray(answer.shares)
        for place, dealer in enumerate(answered.neighbours):
            if dealer in dealers:
                # Every client holds every share here, so a share is at its dealer's position.
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
    """Run the first two rounds, in which one client runs different code."""
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    own = session.take(who)
    session.deliver(session.pending)
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        shares = session.clients[who].answer(own)
    session.server.receive(who, shares)
    session.pending = close_round(session.server)


# --- Holders that lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("liars", [1, 5])
def test_liars_cost_one_search_each_and_nobody_else_a_name(
    liars: int, mode: SecurityMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lies about every client's share; without memory this costs a search for each client of the session."""
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
    assert session.server.state is ServerState.ABORTED


@pytest.mark.parametrize("mode", SecurityMode)
def test_shares_for_another_session_are_refused(mode: SecurityMode) -> None:
    liar = nine(mode).client_ids[0]
    session = edited_session(nine(mode), {liar: lambda answer, _: replace(answer, context=bytes(8))})
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    ((sender, refusal),) = session.refusals
    assert isinstance(refusal, PeerMisbehaved)
    assert (sender, refusal.reason, refusal.culprits) == (liar, Reason.WRONG_SESSION, unverified(liar))


# --- Dealers that deal badly ------------------------------------------------------------------------------------------


def commits_to_other_shares(receivers: Collection[ClientId]) -> Callable[[pytest.MonkeyPatch], None]:
    """Commit, for some receivers, to values other than those sealed to them."""
    commit = SharePlace.commit_to

    def commit_to(self: SharePlace, mask_root_digest: bytes, self_mask_seed_digest: bytes) -> bytes:
        spoilt = bytes(32) if self.holder in receivers else mask_root_digest
        return commit(self, spoilt, self_mask_seed_digest)

    return lambda monkeypatch: monkeypatch.setattr(SharePlace, "commit_to", commit_to)


def test_a_share_that_is_not_the_committed_one_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE))
    dealer, victim, *_ = session.client_ids
    dealing(dealer, session, commits_to_other_shares([victim]))
    own, made = session.take(victim), secrets_from_now(monkeypatch)
    session.clients[victim].answer(own)
    session.clients[victim].abort()
    assert made
    assert left_over(made) == []


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
    """Wrong and right secrets, shares, and key pairs made for checks."""
    setup = nine(SecurityMode.SEMI_HONEST, suite)
    session, _ = liars_session(setup, [1] if fault == "a liar" else [], [0])
    dealing(setup.client_ids[0], session, deals_another_secret if fault == "another secret" else lambda _: None)
    if drops:
        session.drop(setup.client_ids[0])
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    made, own = secrets_from_now(monkeypatch), type(key_suite(suite))
    pairs, wiped, pair_of = list[Any](), list[Any](), own.key_pair

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

    monkeypatch.setattr(own, "key_pair", noted_pair)
    if fault == "another secret":
        with pytest.raises(PeerMisbehaved):
            unmask(session.server)
    else:
        unmask(session.server)
    assert len(made) > 9
    assert left_over(made) == []
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


def garbage_for(*victims: ClientId) -> Callable[[pytest.MonkeyPatch], None]:
    """Commit to the right seeds, and seal garbage to some."""
    offer = HybridSuite.offer_edge

    def offer_edge(self: HybridSuite, own: MaskKeys, peer: Any, context: Any) -> bytes:
        offered = offer(self, own, peer, context)
        return offered[:32] + bytes(reversed(offered[32:])) if peer.client in victims else offered

    return lambda monkeypatch: monkeypatch.setattr(HybridSuite, "offer_edge", offer_edge)


def receivers_of(session: InsecurePairwiseSession, sender: ClientId) -> list[ClientId]:
    roster = session.server.roster
    position = roster.clients.index(sender)
    neighbours = roster.graph.neighbours(position)
    return [roster.clients[n] for n in neighbours if roster.graph.sends_edge_seed(position, n)]


def blamed(mode: SecurityMode, client: ClientId) -> frozenset[Party]:
    return frozenset({client}) if mode is SecurityMode.ACTIVE else unverified(client)


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
    assert stored(restored(stored(session.server))) == stored(session.server)
    total = session.finish()
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client != liar))
    accusation, verdict = session.server.faults
    assert liar in accusation.culprits
    assert verdict.culprits == frozenset({liar})


def test_whoever_drives_half_of_its_neighbours_out_is_named() -> None:
    """Ten of twenty-one leave, and the session ends; the complaints reveal more than ten dropouts."""
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
    # More accusers than the session assumes liars: from then on only the sender is named.
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
    """Seeds that fit their commitments but no root, also sent to clients that drop out."""
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


@pytest.mark.parametrize(
    ("mode", "spoil"),
    [
        *((SecurityMode.ACTIVE, spoil) for spoil in ("context", "signature", "nobody", "a stranger's seed")),
        (SecurityMode.SEMI_HONEST, "context"),
    ],
)
def test_a_complaint_that_is_not_its_senders_is_refused(mode: SecurityMode, spoil: str) -> None:
    session = InsecurePairwiseSession(nine(mode, Suite.HYBRID))
    cheat, victim = session.client_ids[2], session.client_ids[3]
    dealing(cheat, session, garbage_for(victim))
    message = session.clients[victim].answer(session.take(victim))
    position = session.client_ids.index(victim)
    settled = session.server.settled
    complaint = Complaint.decode(message, Seat(settled.roster, position))
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
    (fault,) = session.server.faults
    assert (fault.reason, fault.sentence, fault.culprits) == (
        caught.value.reason,
        str(caught.value),
        caught.value.culprits,
    )


@pytest.mark.parametrize("suite", Suite)
def test_a_complaint_is_about_somebody_who_sent_a_seed(suite: Suite) -> None:
    """No seeds are sent in the classic suite or by clients that shared no keys; each is sent in one direction."""
    session = InsecurePairwiseSession(nine(SecurityMode.SEMI_HONEST, suite))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    graph, neighbours = session.server.roster.graph, session.server.roster.graph.neighbours(3)
    sending = [place for place, n in enumerate(neighbours) if graph.sends_edge_seed(n, 3)]
    gone, good = sending[:2]
    session.drop(session.client_ids[neighbours[gone]])
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    settled, victim = session.server.settled, session.client_ids[3]

    def about(*places: int) -> bytes:
        accused = settled.roster.set_of(()).of(len(neighbours), places)
        return Complaint(context=settled.roster.context.tag, signature=b"", accused=accused).encode()

    receiving = next(place for place in range(8) if place not in sending)
    for wrong in ((), (gone,), (receiving,), (good, gone), (good, receiving), *(((good,),) * (suite is Suite.CLASSIC))):
        with pytest.raises(MalformedMessage, match="names no client"):
            session.server.receive(victim, about(*wrong))
    if suite is Suite.HYBRID:
        session.server.receive(victim, about(good))


# --- What is revealed -------------------------------------------------------------------------------------------------


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


# --- The last lie that can be borne -----------------------------------------------------------------------------------


def test_signed_liars_are_named_alone_where_just_enough_others_are_left() -> None:
    """Two of eight holders lie about one client, of whom six shares recover a secret; it is not blamed with them."""
    session, named = liars_session(SessionSetup(population=9, corrupted=1, dropped=2), (1, 2), [0])
    assert session.server.configuration.threshold == 6
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert frozenset[Party]().union(*(fault.culprits for fault in session.server.faults)) == named


def test_a_holder_that_is_wrong_about_one_client_more_than_could_deal_badly_is_named_alone() -> None:
    setup = SessionSetup(population=9, corrupted=1, dropped=2, mode=SecurityMode.SEMI_HONEST)
    session, named = liars_session(setup, (3,), (0, 1))
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert [fault.culprits for fault in session.server.faults] == [named | {ServerId()}]


def test_as_many_contributors_as_the_cohort_are_a_sum() -> None:
    session = InsecurePairwiseSession(SessionSetup(population=9, corrupted=0, dropped=2, minimum_cohort=7))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(*session.client_ids[:2])
    assert same_sum(session.finish(), session.sum_of(session.client_ids[2:]))


def test_a_server_that_is_resumed_still_finds_a_false_complaint_out() -> None:
    session = InsecurePairwiseSession(nine(SecurityMode.ACTIVE, Suite.HYBRID))
    liar = session.client_ids[3]
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    own = session.take(liar)

    def fail(*_: object, **__: object) -> Secret:
        raise AuthenticationFailed(culprits=UNDECIDED)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HybridSuite, "seed_of_received_edge", fail)
        complaint = session.clients[liar].answer(own)
    session.server.receive(liar, complaint)
    session.server = restored(stored(session.server))
    assert same_sum(session.finish(), session.sum_of(client for client in session.client_ids if client != liar))
    assert frozenset({liar}) in [fault.culprits for fault in session.server.faults]
