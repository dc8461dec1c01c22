"""Shares and edge seeds that are altered, moved, replayed or badly made on their way between two clients.

| attack | defence |
|---|---|
| shares that do not open, are no field elements, or are not those committed to | missing share and complaint |
| the relay alters, moves or replays an entry | encryption bound to session and both ends; signed tree of entries |
| a neighbour, or the relay, makes the seed of an edge unusable | the client leaves: it never leaves out a mask |
| a neighbour seals another edge seed than it committed to | commitment to edge seeds; the session ends, naming it |
| the receiver left out of the sharers, or too few sharers | checked before anything is uploaded |
| a dealer signs two trees, and the network delivers the other one | a holder signs which entries it speaks of |
| a round-1 message sealed a second time | keys that seal once; re-delivery gets the stored bytes |

An input whose upload never left is not spent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from secagg.blame import unverified
from secagg.crypto import hybrid_key_agreement
from secagg.crypto.prime_field import PRIME
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, Party, ServerId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology
from secagg.protocols.pairwise_mask.relay import RelayedShares, deliver_shares
from secagg.protocols.pairwise_mask.round0_advertise_keys import AdvertisedKeys, accept_advertised_keys, advertise_keys
from secagg.protocols.pairwise_mask.round1_share_keys import (
    DeliveredEntry,
    DeliveredShares,
    EncryptedShares,
    Shared,
    share_keys,
)
from secagg.protocols.pairwise_mask.round2_masked_input import complain
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import AnsweredFor, UnmaskingShares
from secagg.protocols.pairwise_mask.suites import ClassicSuite, HybridSuite, OwnKeys, PublishedKeys
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, is_spent

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]
HEADER_BYTES = 7
MODES_AND_SUITES = [(mode, suite) for mode in SecurityMode for suite in Suite]
SUITE_CLASSES: dict[Suite, type[ClassicSuite | HybridSuite]] = {
    Suite.CLASSIC: ClassicSuite,
    Suite.HYBRID: HybridSuite,
}


def at_delivery(
    mode: SecurityMode = SecurityMode.ACTIVE, suite: Suite = Suite.CLASSIC, attempt: int = 0
) -> InsecurePairwiseSession:
    """Play until the shares are on their way to their holders."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite, attempt=attempt))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    return session


def delivered_to(session: InsecurePairwiseSession, receiver: int) -> DeliveredShares:
    """Take what one client is about to get off the network."""
    message = session.take(session.client_ids[receiver])
    return DeliveredShares.decode(message, session.server.roster, receiver)


def with_entry(message: DeliveredShares, place: int, entry: DeliveredEntry) -> bytes:
    entries = (*message.entries[:place], entry, *message.entries[place + 1 :])
    return replace(message, entries=entries).encode()


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def held_by(session: InsecurePairwiseSession, holder: int) -> list[int]:
    """Return whose shares a client showed in the end."""
    roster = session.server.roster
    everybody = roster.set_of(range(roster.population))
    answered = AnsweredFor.by(roster, everybody, everybody, holder)
    sent = session.sent_by(session.client_ids[holder], MessageKind.UNMASKING_SHARES)
    message = UnmaskingShares.decode(sent, roster, answered)
    return [neighbour for place, neighbour in enumerate(answered.neighbours) if place in message.held]


@contextmanager
def corrupted_sealing(suite: Suite, attacker: ClientId, victim: ClientId, *, shares: bool) -> Generator[None]:
    """Let a corrupted client's program seal something useless for one neighbour: its shares, or its edge seed."""
    cls = SUITE_CLASSES[suite]
    seal_shares, offer_edge = cls.seal_shares, HybridSuite.offer_edge

    def bad_shares(
        self: ClassicSuite | HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext, both: Secret
    ) -> bytes:
        sealed = seal_shares(self, own, peer, context, both)  # type: ignore[arg-type]
        return flipped(sealed, -1) if (own.client, peer.client) == (attacker, victim) else sealed

    def bad_edge(self: HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext) -> bytes:
        edge = offer_edge(self, own, peer, context)  # type: ignore[arg-type]
        return flipped(edge, -1) if (own.client, peer.client) == (attacker, victim) else edge

    with pytest.MonkeyPatch.context() as patched:
        if shares:
            patched.setattr(cls, "seal_shares", bad_shares)
        else:
            patched.setattr(HybridSuite, "offer_edge", bad_edge)
        yield


# --- A share that does not open ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", Suite)
def test_in_semi_honest_mode_an_altered_share_is_recorded_as_missing_and_evicts_nobody(
    suite: Suite, goes_on: GoesOn
) -> None:
    session = at_delivery(SecurityMode.SEMI_HONEST, suite)
    victim, sender = session.client_ids[3], session.client_ids[0]
    message = delivered_to(session, 3)
    entry = message.entries[0]
    sealed_end = ClassicSuite.sealed_bytes if suite is Suite.CLASSIC else HybridSuite().sealed_bytes
    forged = with_entry(message, 0, replace(entry, entry=flipped(entry.entry, sealed_end - 1)))
    upload = session.clients[victim].answer(forged)
    session.server.receive(victim, upload)
    (complaint,) = session.clients[victim].faults
    assert isinstance(complaint, AuthenticationFailed)
    assert complaint.culprits == {sender, ServerId()}, "the sender or the relay; nothing tells which"
    goes_on(session)
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(("mode", "suite"), MODES_AND_SUITES)
def test_a_sender_of_shares_that_do_not_open_is_complained_about_and_stays_in(
    mode: SecurityMode, suite: Suite, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite))
    attacker, victim = session.client_ids[0], session.client_ids[3]
    with corrupted_sealing(suite, attacker, victim, shares=True):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session)
    (complaint,) = session.clients[victim].faults
    assert isinstance(complaint, AuthenticationFailed)
    signed = mode is SecurityMode.ACTIVE
    blamed: set[Party] = {attacker} if signed else {attacker, ServerId()}
    assert complaint.culprits == blamed
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]
    assert not session.server.faults, "a complaint of the victim's alone excludes nobody"


@pytest.mark.parametrize("suite", Suite)
def test_a_sender_of_other_shares_than_it_committed_to_is_found_out_at_once_in_active_mode(
    suite: Suite, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(suite=suite))
    attacker, victim = session.client_ids[0], session.client_ids[3]
    cls = SUITE_CLASSES[suite]
    seal_shares = cls.seal_shares

    def other_shares(
        self: ClassicSuite | HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext, both: Secret
    ) -> bytes:
        if (own.client, peer.client) == (attacker, victim):
            both = Secret("shares", flipped(bytes(both.expose()), -1))
        return seal_shares(self, own, peer, context, both)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, "seal_shares", other_shares)
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session)
    (complaint,) = session.clients[victim].faults
    assert isinstance(complaint, PeerMisbehaved)
    assert (complaint.reason, complaint.culprits) == (Reason.COMMITMENT_MISMATCH, frozenset({attacker}))
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(("mode", "suite"), MODES_AND_SUITES)
def test_a_dealer_cannot_have_a_holder_blamed_for_a_share_that_is_no_field_element(
    mode: SecurityMode, suite: Suite, goes_on: GoesOn
) -> None:
    # Shown at unmasking, such a share would be refused by the server as its holder's.
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite))
    attacker, victim = session.client_ids[0], session.client_ids[3]
    cls = SUITE_CLASSES[suite]
    seal_shares = cls.seal_shares

    def out_of_the_field(
        self: ClassicSuite | HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext, both: Secret
    ) -> bytes:
        if (own.client, peer.client) == (attacker, victim):
            both = Secret("shares", PRIME.to_bytes(32, "big") * 2)
        return seal_shares(self, own, peer, context, both)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, "seal_shares", out_of_the_field)
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session)
    (complaint,) = session.clients[victim].faults
    assert isinstance(complaint, PeerMisbehaved)
    signed = mode is SecurityMode.ACTIVE
    blamed: set[Party] = {attacker} if signed else {attacker, ServerId()}
    assert (complaint.reason, complaint.culprits) == (Reason.SHARE_OUT_OF_RANGE, frozenset(blamed))
    assert (session.refusals, session.server.faults) == ([], ())
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]


# --- The relay --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["sealed shares", "commitment", "signature", "path"])
@pytest.mark.parametrize("suite", Suite)
def test_in_active_mode_whatever_the_relay_alters_in_an_entry_ends_the_session_for_the_receiver(
    suite: Suite, part: str, refused: Refused, goes_on: GoesOn
) -> None:
    session = at_delivery(suite=suite)
    victim, sender = session.client_ids[3], session.client_ids[0]
    message = delivered_to(session, 3)
    entry = message.entries[0]
    forged = {
        "sealed shares": replace(entry, entry=flipped(entry.entry, 0)),
        "commitment": replace(entry, entry=flipped(entry.entry, -1)),
        "signature": replace(entry, signature=flipped(entry.signature, 0)),
        "path": replace(entry, path=(flipped(entry.path[0], 0), *entry.path[1:])),
    }[part]
    refused(
        session,
        victim,
        with_entry(message, 0, forged),
        AuthenticationFailed,
        Reason.AUTHENTICATION_FAILED,
        {sender, ServerId()},
    )
    goes_on(session, without=[victim])


@pytest.mark.parametrize("change", ["a node less", "a node more"])
def test_a_path_of_another_length_is_refused(change: str, refused: Refused, goes_on: GoesOn) -> None:
    session = at_delivery(suite=Suite.HYBRID)
    victim, sender = session.client_ids[3], session.client_ids[0]
    message = delivered_to(session, 3)
    path = message.entries[0].path
    forged = replace(message.entries[0], path=path[1:] if change == "a node less" else (*path, path[0]))
    refused(
        session,
        victim,
        with_entry(message, 0, forged),
        AuthenticationFailed,
        Reason.AUTHENTICATION_FAILED,
        {sender, ServerId()},
    )
    goes_on(session, without=[victim])


@pytest.mark.parametrize("mode", SecurityMode)
def test_shares_that_were_meant_for_another_client_are_of_no_use(
    mode: SecurityMode, refused: Refused, goes_on: GoesOn
) -> None:
    session = at_delivery(mode)
    victim, sender = session.client_ids[3], session.client_ids[0]
    moved = delivered_to(session, 4).entries[0]
    session.drop(session.client_ids[4])
    forged = with_entry(delivered_to(session, 3), 0, moved)
    if mode is SecurityMode.ACTIVE:
        blamed = {sender, ServerId()}
        refused(session, victim, forged, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, blamed)
        return
    upload = session.clients[victim].answer(forged)
    session.server.receive(victim, upload)
    (complaint,) = session.clients[victim].faults
    assert (complaint.reason, complaint.culprits) == (Reason.AUTHENTICATION_FAILED, frozenset({sender, ServerId()}))
    goes_on(session, without=[session.client_ids[4]])
    assert 0 not in held_by(session, 3)


def test_a_signature_on_one_clients_shares_does_not_serve_for_anothers(refused: Refused, goes_on: GoesOn) -> None:
    session = at_delivery()
    victim, sender = session.client_ids[3], session.client_ids[0]
    message = delivered_to(session, 3)
    first, second = message.entries[:2]
    # The whole of what the second neighbour sent, in the first one's place: it was for this receiver too.
    assert second.entry != first.entry
    blamed = {sender, ServerId()}
    forged = with_entry(message, 0, second)
    refused(session, victim, forged, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, blamed)
    goes_on(session, without=[victim])


@pytest.mark.parametrize("mode", SecurityMode)
def test_shares_of_another_attempt_are_refused(mode: SecurityMode, refused: Refused, goes_on: GoesOn) -> None:
    earlier, session = at_delivery(mode), at_delivery(mode, attempt=1)
    victim = session.client_ids[3]
    session.take(victim)
    refused(session, victim, earlier.take(victim), PeerMisbehaved, Reason.WRONG_SESSION, {ServerId()})
    goes_on(session, without=[victim])


@pytest.mark.parametrize("mode", SecurityMode)
def test_shares_of_another_attempt_do_not_open_under_a_new_label(
    mode: SecurityMode, refused: Refused, goes_on: GoesOn
) -> None:
    earlier, session = at_delivery(mode), at_delivery(mode, attempt=1)
    victim, sender = session.client_ids[3], session.client_ids[0]
    old = delivered_to(earlier, 3).entries[0]
    forged = with_entry(delivered_to(session, 3), 0, old)
    if mode is SecurityMode.ACTIVE:
        blamed = {sender, ServerId()}
        refused(session, victim, forged, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, blamed)
        goes_on(session, without=[victim])
        return
    upload = session.clients[victim].answer(forged)
    session.server.receive(victim, upload)
    (complaint,) = session.clients[victim].faults
    assert (complaint.reason, complaint.culprits) == (Reason.AUTHENTICATION_FAILED, frozenset({sender, ServerId()}))
    goes_on(session)


# --- The seeds of edges -----------------------------------------------------------------------------------------------


def sender_of_an_edge_to(session: InsecurePairwiseSession, receiver: int) -> int:
    """Return the last one, so that other edges were opened before it and their seeds have to be overwritten."""
    graph = session.server.roster.graph
    return [n for n in graph.neighbours(receiver) if graph.sends_edge_seed(n, receiver)][-1]


def test_a_client_whose_edge_seed_the_relay_made_unusable_leaves_and_the_others_go_on(
    ended: Refused, goes_on: GoesOn
) -> None:
    session = at_delivery(SecurityMode.SEMI_HONEST, Suite.HYBRID)
    sender = sender_of_an_edge_to(session, 3)
    victim, culprit = session.client_ids[3], session.client_ids[sender]
    message = delivered_to(session, 3)
    place = session.server.roster.graph.neighbours(3).index(sender)
    entry = message.entries[place]
    forged = with_entry(message, place, replace(entry, entry=flipped(entry.entry, -1)))
    complaint = session.clients[victim].answer(forged)
    ended(session, victim)
    (own,) = session.clients[victim].faults
    assert (type(own), own.culprits) == (AuthenticationFailed, frozenset({culprit, ServerId()}))
    session.server.receive(victim, complaint)
    goes_on(session, without=[victim])
    accusation, verdict = session.server.faults
    assert accusation.culprits == {victim, culprit, ServerId()}
    # What the sender sent opens at the server: the way altered it, or the one who complains lies.
    assert (verdict.reason, verdict.culprits) == (Reason.EDGE_UNUSABLE, unverified(victim))


def test_a_neighbour_that_signs_an_unusable_edge_seed_drives_one_out_and_is_named_alone(
    ended: Refused, goes_on: GoesOn
) -> None:
    planned = at_delivery(SecurityMode.ACTIVE, Suite.HYBRID)
    sender = sender_of_an_edge_to(planned, 3)
    session = InsecurePairwiseSession(planned.setup)
    attacker, victim = session.client_ids[sender], session.client_ids[3]
    with corrupted_sealing(Suite.HYBRID, attacker, victim, shares=False):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    # The attacker masked with a seed that its victim does not know; it shows it, or its neighbours do without its sum.
    goes_on(session, of=set(session.client_ids) - {victim})
    assert [fault.culprits for fault in session.server.faults] == [{attacker, victim}, {attacker}]
    (error,) = session.clients[victim].faults
    assert isinstance(error, AuthenticationFailed)
    assert error.culprits == {attacker}
    ended(session, victim)


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_neighbour_that_commits_to_another_edge_seed_than_it_seals_drives_one_out_and_is_named(
    mode: SecurityMode, ended: Refused, goes_on: GoesOn
) -> None:
    planned = at_delivery(mode, Suite.HYBRID)
    sender = sender_of_an_edge_to(planned, 3)
    session = InsecurePairwiseSession(planned.setup)
    attacker, victim = session.client_ids[sender], session.client_ids[3]
    seal = hybrid_key_agreement.seal_edge_seed

    def seal_another(
        seed: Secret,
        receiver_key: hybrid_key_agreement.HybridPublicKey,
        sender: ClientId,
        receiver: ClientId,
        context: SessionContext,
    ) -> bytes:
        if (sender, receiver) == (attacker, victim):
            seed = Secret("another seed", bytes(32))
        return seal(seed, receiver_key, sender, receiver, context)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hybrid_key_agreement, "seal_edge_seed", seal_another)
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session, of=set(session.client_ids) - {victim})
    assert attacker in session.server.faults[-1].culprits
    assert victim not in session.server.faults[-1].culprits
    (error,) = session.clients[victim].faults
    assert isinstance(error, PeerMisbehaved)
    signed = mode is SecurityMode.ACTIVE
    blamed: set[Party] = {attacker} if signed else {attacker, ServerId()}
    assert (error.reason, error.culprits) == (Reason.COMMITMENT_MISMATCH, frozenset(blamed))
    ended(session, victim)


@pytest.mark.parametrize("complains_first", [False, True])
@pytest.mark.parametrize("mode", SecurityMode)
def test_who_has_uploaded_complains_of_nobody_and_who_complained_uploads_nothing(
    mode: SecurityMode, goes_on: GoesOn, *, complains_first: bool
) -> None:
    """Its root is not recovered, so nobody could judge a complaint that names honest neighbours."""
    session = at_delivery(mode, Suite.HYBRID)
    attacker, client = session.client_ids[3], session.clients[session.client_ids[3]]
    step = client._step  # noqa: SLF001 -- a client that lies  # pyright: ignore[reportPrivateUsage]
    assert isinstance(step, Shared)
    sharers = session.server.roster.set_of(range(session.server.roster.population))
    accused = sender_of_an_edge_to(session, 3)
    member = client._member  # noqa: SLF001 -- a client that lies  # pyright: ignore[reportPrivateUsage]
    root = session.relayed_root(attacker)
    complaint = complain(member, step.key_set, sharers, root, [accused]).encode()
    upload = client.answer(delivered_to(session, 3).encode())
    first, second = (complaint, upload) if complains_first else (upload, complaint)
    session.server.receive(attacker, first)
    faults = list(session.server.faults)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(attacker, second)
    reason = Reason.NOT_ELIGIBLE if complains_first else Reason.ALREADY_ANSWERED
    signed = mode is SecurityMode.ACTIVE and not complains_first
    assert (caught.value.reason, caught.value.culprits) == (reason, {attacker} if signed else unverified(attacker))
    assert (session.server.message_to(attacker) is None) is complains_first
    if complains_first:
        assert [fault.reason for fault in faults] == [Reason.EDGE_UNUSABLE]
        return
    goes_on(session)
    assert [fault.reason for fault in session.server.faults] == [Reason.ALREADY_ANSWERED]


# --- Who shared -------------------------------------------------------------------------------------------------------


def delivered_for(session: InsecurePairwiseSession, receiver: int, sharers: set[int]) -> bytes:
    """Return a delivery that fits together for a set of sharers of the server's choice."""
    roster = session.server.roster
    relayed = {
        position: RelayedShares(
            roster,
            position,
            EncryptedShares.decode(
                session.sent_by(session.client_ids[position], MessageKind.ENCRYPTED_SHARES), roster, position
            ),
            None,
        )
        for position in range(roster.population)
    }
    return deliver_shares(session.settled(sharers), relayed, receiver).encode()


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_client_that_is_told_that_it_shared_nothing_leaves(
    mode: SecurityMode, refused: Refused, goes_on: GoesOn
) -> None:
    session = at_delivery(mode)
    victim = session.client_ids[3]
    session.take(victim)
    message = delivered_for(session, 3, set(range(8)) - {3})
    refused(session, victim, message, PeerMisbehaved, Reason.SURVIVORS_INVALID, {ServerId()})
    goes_on(session, without=[victim])


@pytest.mark.parametrize("mode", SecurityMode)
def test_nothing_is_uploaded_when_fewer_shared_than_the_minimum_cohort(mode: SecurityMode, refused: Refused) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, minimum_cohort=7))
    victim = session.client_ids[3]
    own = session.update_of(victim)
    session.clients[victim] = session.enrol(victim, update=own)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.take(victim)
    message = delivered_for(session, 3, {0, 1, 2, 3, 4, 5})
    error = refused(session, victim, message, ThresholdNotMet, Reason.THRESHOLD_NOT_MET)
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (7, 6)
    assert not is_spent(own), "nothing of it left"


@pytest.mark.parametrize("mode", SecurityMode)
def test_nothing_is_uploaded_when_fewer_neighbours_shared_than_the_threshold(
    mode: SecurityMode, refused: Refused
) -> None:
    session = InsecurePairwiseSession(
        SessionSetup(mode=mode, population=20, topology=Topology.SPARSE, minimum_cohort=3)
    )
    victim = session.client_ids[3]
    own = session.update_of(victim)
    session.clients[victim] = session.enrol(victim, update=own)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.take(victim)
    neighbours = session.server.roster.graph.neighbours(3)
    threshold = session.server.configuration.threshold
    gone = neighbours[: len(neighbours) - threshold + 1]
    message = delivered_for(session, 3, set(range(20)) - set(gone))
    error = refused(session, victim, message, ThresholdNotMet, Reason.THRESHOLD_NOT_MET)
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (threshold, threshold - 1)
    assert not is_spent(own)


def test_an_input_is_spent_as_soon_as_its_upload_is_handed_over() -> None:
    session = InsecurePairwiseSession()
    victim = session.client_ids[3]
    own = session.update_of(victim)
    session.clients[victim] = session.enrol(victim, update=own)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    message = session.take(victim)
    assert not is_spent(own)
    assert session.clients[victim].answer(message)
    assert is_spent(own)


# --- Two trees of one dealer ------------------------------------------------------------------------------------------


def second_tree(session: InsecurePairwiseSession, dealer: ClientId, offered: bytes) -> RelayedShares:
    """Let a corrupted client sign a second tree: under the same keys, with other shares."""
    member, configuration = session.member(dealer), session.server.configuration
    advertised, _ = advertise_keys(member, configuration, member.coins)
    key_set = accept_advertised_keys(member, advertised, AdvertisedKeys.decode(offered, configuration))
    member.coins.draw(32)
    return RelayedShares(
        key_set.roster, key_set.position, share_keys(member, advertised, key_set, member.coins)[1], None
    )


def with_entries_exchanged(session: InsecurePairwiseSession, other: RelayedShares, *holders: int) -> None:
    """Let the network deliver to these holders the first client's entries of the other tree."""
    victims: dict[Party, int] = {session.client_ids[holder]: holder for holder in holders}

    def exchange(delivery: Delivery) -> tuple[Delivery, ...]:
        if delivery.kind is not MessageKind.DELIVERED_SHARES or delivery.receiver not in victims:
            return (delivery,)
        holder = victims[delivery.receiver]
        message = DeliveredShares.decode(delivery.message, session.server.roster, holder)
        assert message.entries[0].entry != other.deliver_to(holder).entry
        return (replace(delivery, message=with_entry(message, 0, other.deliver_to(holder))),)

    session.adversary = exchange


@pytest.mark.parametrize("suite", Suite)
def test_a_dealer_that_signs_two_trees_and_the_network_have_no_honest_holder_named_alone(
    suite: Suite, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(suite=suite))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    dealer, victims = session.client_ids[0], session.client_ids[3:5]
    offered = next(outgoing.message for outgoing in session.pending if outgoing.receiver == dealer)
    other = second_tree(session, dealer, offered)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    with_entries_exchanged(session, other, 3, 4)
    goes_on(session)
    assert [fault.culprits for fault in session.server.faults] == [unverified(victim) for victim in victims]


def test_a_dealer_that_signs_an_unusable_seed_for_the_network_alone_has_no_honest_client_named_alone(
    goes_on: GoesOn,
) -> None:
    session = InsecurePairwiseSession(at_delivery(SecurityMode.ACTIVE, Suite.HYBRID).setup)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    dealer, graph = session.client_ids[0], session.server.roster.graph
    holder = next(n for n in graph.neighbours(0) if graph.sends_edge_seed(0, n))
    victim = session.client_ids[holder]
    offered = next(outgoing.message for outgoing in session.pending if outgoing.receiver == dealer)
    with corrupted_sealing(Suite.HYBRID, dealer, victim, shares=False):
        other = second_tree(session, dealer, offered)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    with_entries_exchanged(session, other, holder)
    goes_on(session, of=set(session.client_ids) - {victim})
    assert [fault.culprits for fault in session.server.faults] == [unverified(victim)]


# --- Sealing once -----------------------------------------------------------------------------------------------------


def test_secrets_are_not_shared_a_second_time_under_the_same_keys() -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    client = session.client_ids[0]
    member, configuration = session.member(client), session.server.configuration
    advertised, _ = advertise_keys(member, configuration, member.coins)
    key_set = accept_advertised_keys(member, advertised, AdvertisedKeys.decode(session.take(client), configuration))
    share_keys(member, advertised, key_set, member.coins)
    with pytest.raises(Misuse) as caught:
        share_keys(member, advertised, key_set, member.coins)
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_a_roster_that_is_delivered_again_gets_the_same_shares_byte_for_byte() -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    client = session.clients[session.client_ids[0]]
    message = session.take(client.client)
    first = client.answer(message)
    assert client.answer(message) == first
    assert client.state is ClientState.AWAITING_DELIVERED_SHARES


def test_shares_of_a_client_under_the_label_of_another_session_are_refused_by_the_server(goes_on: GoesOn) -> None:
    earlier, session = at_delivery(), InsecurePairwiseSession(SessionSetup(attempt=1))
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    target = session.client_ids[3]
    old = earlier.sent_by(target, MessageKind.ENCRYPTED_SHARES)
    relabelled = old[:HEADER_BYTES] + session.server.roster.context.tag + old[HEADER_BYTES + CONTEXT_TAG_BYTES :]
    with pytest.raises(AuthenticationFailed) as caught:
        session.server.receive(target, relabelled)
    assert caught.value.culprits == unverified(target)
    goes_on(session, without=[target])
