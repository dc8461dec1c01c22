"""Messages out of order, again, too late, in another client's name, or to a server that was rolled back.

| attack | defence |
|---|---|
| every message delivered several times, or in another order | stored replies; rounds take any order within them |
| a second, different message of a kind | the client leaves; of the server, only the first counts |
| a message that skips a round | not due: nothing changes |
| a client that sends in the name of another, or that is none of the session's | the transport's identity, signatures |
| an upload of a client that was declared dropped | discarded; its self mask is never shown |
| a server that is restored from a snapshot, or from two | uploads are neither lost nor counted twice; one answer |
| survivors chosen so that a smaller sum falls out | release refused below the minimum cohort |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from secagg.blame import unverified
from secagg.errors import (
    AuthenticationFailed,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import (
    ClientState,
    ServerState,
    Topology,
    Transcript,
    revealed_sets,
)
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import UnmaskingRequest
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    Outgoing,
    SessionSetup,
    close_round,
    is_spent,
    restored,
    same_sum,
    stored,
    unmask,
)

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]
NothingIsReleased = Callable[..., SecAggError]
ROUNDS = {
    MessageKind.SESSION_OFFER: ServerState.AWAITING_KEY_ADVERTISEMENTS,
    MessageKind.ADVERTISED_KEYS: ServerState.AWAITING_ENCRYPTED_SHARES,
    MessageKind.DELIVERED_SHARES: ServerState.AWAITING_MASKED_INPUTS,
    MessageKind.SURVIVOR_SET: ServerState.AWAITING_SURVIVOR_SIGNATURES,
    MessageKind.UNMASKING_REQUEST: ServerState.AWAITING_UNMASKING_SHARES,
}


# --- Again, and in another order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_network_that_delivers_everything_three_times_changes_nothing(mode: SecurityMode, goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode), adversary=lambda delivery: (delivery,) * 3)
    goes_on(session)
    assert (session.errors, session.refusals) == ({}, [])
    answers = [(d.sender, d.kind, d.message) for d in session.log if d.receiver == ServerId()]
    kinds = 5 if mode is SecurityMode.ACTIVE else 4
    assert len(answers) == 9 * 8 * kinds
    assert len(set(answers)) == 8 * kinds, "each time byte for byte the same"


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_network_that_delivers_in_another_order_changes_nothing(mode: SecurityMode) -> None:
    straight, backwards = (InsecurePairwiseSession(SessionSetup(mode=mode)) for _ in range(2))
    kept = list[Delivery]()

    def keep(delivery: Delivery) -> tuple[Delivery, ...]:
        if delivery.receiver != ServerId():
            return (delivery,)
        kept.append(delivery)
        if len(kept) < 8:
            return ()
        released = tuple(reversed(kept))
        kept.clear()
        return released

    backwards.adversary = keep
    assert same_sum(straight.finish(), backwards.finish())
    assert (backwards.errors, backwards.refusals) == ({}, [])


@pytest.mark.parametrize("kind", ROUNDS, ids=lambda kind: kind.name)
def test_a_second_message_of_a_kind_that_differs_ends_the_session(kind: MessageKind, refused: Refused) -> None:
    session = InsecurePairwiseSession()
    victim = session.client_ids[3]
    session.reach(ROUNDS[kind])
    message = session.take(victim)
    assert session.clients[victim].answer(message)
    second = message[:-1] + bytes([message[-1] ^ 1])
    session.pending.append(Outgoing(victim, message))
    refused(session, victim, second, PeerMisbehaved, Reason.ALREADY_ANSWERED, {ServerId()})


@pytest.mark.parametrize("kind", ROUNDS, ids=lambda kind: kind.name)
def test_a_second_message_that_differs_ends_the_session_in_every_later_round(
    kind: MessageKind, refused: Refused
) -> None:
    session = InsecurePairwiseSession()
    victim = session.client_ids[3]
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    assert session.clients[victim].state is ClientState.COMPLETED
    message = session.sent_to(victim, kind)
    second = message[:-1] + bytes([message[-1] ^ 1])
    refused(session, victim, second, PeerMisbehaved, Reason.ALREADY_ANSWERED, {ServerId()})


@pytest.mark.parametrize(
    "kind",
    [
        MessageKind.ENCRYPTED_SHARES,
        MessageKind.MASKED_INPUT,
        MessageKind.SURVIVOR_SIGNATURE,
        MessageKind.UNMASKING_SHARES,
        MessageKind.KEY_ADVERTISEMENT,
    ],
    ids=lambda kind: kind.name,
)
def test_of_a_clients_messages_of_one_kind_the_server_counts_the_first(kind: MessageKind, goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession()
    attacker = session.client_ids[2]

    def send_another_too(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.sender, delivery.kind) != (attacker, kind):
            return (delivery,)
        changed = delivery.message[:-1] + bytes([delivery.message[-1] ^ 1])
        return delivery, replace(delivery, message=changed)

    session.adversary = send_another_too
    goes_on(session)
    ((sender, error),) = session.refusals
    assert isinstance(error, PeerError)
    assert (sender, error.reason, error.culprits) == (attacker, Reason.AUTHENTICATION_FAILED, unverified(attacker))


@pytest.mark.parametrize("mode", SecurityMode)
def test_what_the_network_replays_or_alters_shuts_nobody_out(mode: SecurityMode, goes_on: GoesOn) -> None:
    """It has the victim's answers of another attempt, and hands them over first, in each round."""
    setup = SessionSetup(mode=mode)
    before = InsecurePairwiseSession(setup.next_attempt())
    before.finish()
    victim = setup.client_ids[2]

    def replay(delivery: Delivery) -> tuple[Delivery, ...]:
        if delivery.sender != victim:
            return (delivery,)
        replayed = replace(delivery, message=before.sent_by(victim, delivery.kind))
        cut = replace(delivery, message=delivery.message[:-1])
        flipped = replace(delivery, message=delivery.message[:-1] + bytes([delivery.message[-1] ^ 1]))
        # Without signatures the transport alone keeps what is sent from being altered.
        return (replayed, cut, *((flipped,) * (mode is SecurityMode.ACTIVE)), delivery)

    session = InsecurePairwiseSession(setup, adversary=replay)
    goes_on(session)
    assert session.server.revealed == {frozenset(setup.client_ids)}
    assert {sender for sender, _ in session.refusals} == {victim}
    assert all(fault.culprits == unverified(victim) for fault in session.server.faults)


# --- Out of turn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(ROUNDS.values()))
def test_a_message_that_skips_or_reverses_rounds_changes_nothing(state: ServerState, goes_on: GoesOn) -> None:
    recorded = InsecurePairwiseSession()
    recorded.finish()
    session = InsecurePairwiseSession()
    victim = session.clients[session.client_ids[3]]
    session.reach(state)
    due = next(kind for kind, awaited in ROUNDS.items() if awaited is state)
    # All of these are genuine: they are the very messages of this session, only not now.
    for kind in list(ROUNDS)[list(ROUNDS).index(due) + 1 :]:
        before = victim.state
        with pytest.raises(UnexpectedMessage):
            victim.answer(recorded.sent_to(victim.client, kind))
        assert victim.state is before
    goes_on(session)


def test_what_a_client_sends_too_early_or_unasked_changes_nothing_for_the_server(goes_on: GoesOn) -> None:
    recorded = InsecurePairwiseSession()
    recorded.finish()
    session = InsecurePairwiseSession()
    early = session.client_ids[3]
    for kind in (
        MessageKind.ENCRYPTED_SHARES,
        MessageKind.MASKED_INPUT,
        MessageKind.SURVIVOR_SIGNATURE,
        MessageKind.UNMASKING_SHARES,
        MessageKind.SESSION_OFFER,
    ):
        message = session.server.invitation if kind is MessageKind.SESSION_OFFER else recorded.sent_by(early, kind)
        with pytest.raises(UnexpectedMessage) as caught:
            session.server.receive(early, message)
        assert caught.value.culprits == unverified(early)
    goes_on(session)
    assert not session.server.faults


def test_a_client_that_wakes_up_in_another_process_leaves(
    ended: Callable[[InsecurePairwiseSession, ClientId], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    victim = session.client_ids[3]
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(Misuse):
            session.clients[victim].answer(session.take(victim))
    ended(session, victim)


# --- In the name of another -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
def test_keys_are_not_advertised_in_the_name_of_another_client(mode: SecurityMode, goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    attacker, target = session.client_ids[2], session.client_ids[3]
    genuine = session.clients[target].answer(session.server.invitation)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(attacker, genuine)
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(attacker))
    # The target itself is not harmed; the attacker has excluded itself.
    session.drop(attacker)
    goes_on(session, without=[attacker])


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (MessageKind.ENCRYPTED_SHARES, ServerState.AWAITING_ENCRYPTED_SHARES),
        (MessageKind.MASKED_INPUT, ServerState.AWAITING_MASKED_INPUTS),
        (MessageKind.SURVIVOR_SIGNATURE, ServerState.AWAITING_SURVIVOR_SIGNATURES),
    ],
    ids=lambda value: value.name,
)
def test_what_another_client_signed_is_not_taken_for_the_senders(
    kind: MessageKind, state: ServerState, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession()
    attacker, target = session.client_ids[2], session.client_ids[3]
    session.reach(state)
    session.drop(attacker)
    session.deliver(session.pending)
    session.pending = []
    with pytest.raises(AuthenticationFailed) as caught:
        session.server.receive(attacker, session.sent_by(target, kind))
    assert caught.value.culprits == unverified(attacker)
    uploaded = state is ServerState.AWAITING_SURVIVOR_SIGNATURES
    goes_on(session, of=session.client_ids if uploaded else set(session.client_ids) - {attacker})


def test_an_upload_that_is_sent_once_more_under_another_name_gives_no_sum_in_semi_honest_mode(
    nothing_is_released: NothingIsReleased,
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    attacker, target = session.client_ids[2], session.client_ids[3]

    def copy(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.sender, delivery.kind) == (attacker, MessageKind.MASKED_INPUT):
            return ()
        if (delivery.sender, delivery.kind) == (target, MessageKind.MASKED_INPUT):
            return delivery, replace(delivery, sender=attacker)
        return (delivery,)

    session.adversary = copy
    nothing_is_released(session, PeerMisbehaved, Reason.CHECK_WORDS_MISMATCH, set())


@pytest.mark.parametrize(
    "state", [state for state in ROUNDS.values() if state is not ROUNDS[MessageKind.SESSION_OFFER]]
)
def test_a_stranger_is_not_heard_once_the_roster_is_fixed(state: ServerState, goes_on: GoesOn) -> None:
    recorded = InsecurePairwiseSession()
    recorded.finish()
    session = InsecurePairwiseSession()
    session.reach(state)
    stranger = ClientId(5)
    message = next(d.message for d in recorded.log if d.state is state and d.receiver == ServerId())
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(stranger, message)
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(stranger))
    goes_on(session)


def test_a_client_that_was_dropped_is_not_heard_again(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession()
    gone = session.client_ids[2]
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    genuine = session.clients[gone].answer(session.take(gone))
    session.server.drop(gone)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(gone, genuine)
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(gone))
    assert gone not in (session.server.awaited or ())
    goes_on(session, without=[gone])


@pytest.mark.parametrize(
    ("mode", "kind", "state"),
    [
        (SecurityMode.ACTIVE, MessageKind.SURVIVOR_SIGNATURE, ServerState.AWAITING_SURVIVOR_SIGNATURES),
        *(
            (mode, kind, state)
            for mode in SecurityMode
            for kind, state in (
                (MessageKind.ENCRYPTED_SHARES, ServerState.AWAITING_ENCRYPTED_SHARES),
                (MessageKind.MASKED_INPUT, ServerState.AWAITING_MASKED_INPUTS),
                (MessageKind.UNMASKING_SHARES, ServerState.AWAITING_UNMASKING_SHARES),
            )
        ),
    ],
    ids=lambda value: value.name,
)
def test_what_a_client_sent_in_another_attempt_leaves_it_out_of_this_one(
    mode: SecurityMode, kind: MessageKind, state: ServerState, goes_on: GoesOn
) -> None:
    earlier = InsecurePairwiseSession(SessionSetup(mode=mode))
    earlier.finish()
    session = InsecurePairwiseSession(earlier.setup.next_attempt())
    attacker = session.client_ids[2]
    session.reach(state)
    session.drop(attacker)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(attacker, earlier.sent_by(attacker, kind))
    assert (caught.value.reason, caught.value.culprits) == (Reason.WRONG_SESSION, unverified(attacker))
    in_the_sum = state in {ServerState.AWAITING_SURVIVOR_SIGNATURES, ServerState.AWAITING_UNMASKING_SHARES}
    goes_on(session, of=session.client_ids if in_the_sum else set(session.client_ids) - {attacker})


# --- Too late ---------------------------------------------------------------------------------------------------------


def with_a_late_upload(mode: SecurityMode) -> tuple[InsecurePairwiseSession, ClientId, bytes]:
    """Close the upload round without one client, whose upload then arrives after all."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    late = session.client_ids[5]
    message = session.take(late)
    session.step()
    upload = session.clients[late].answer(message)
    return session, late, upload


@pytest.mark.parametrize("mode", SecurityMode)
def test_an_upload_that_arrives_late_is_discarded(mode: SecurityMode, goes_on: GoesOn) -> None:
    session, late, upload = with_a_late_upload(mode)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(late, upload)
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(late))
    assert not session.server.faults
    goes_on(session, without=[late])


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_server_that_keeps_a_late_upload_learns_nothing_from_it(mode: SecurityMode) -> None:
    session, late, _ = with_a_late_upload(mode)
    session.finish()
    everybody = frozenset(session.client_ids)
    contributors = everybody - {late}
    # It knows what was reconstructed: the seeds of the contributors and the root of the late one.
    transcript = Transcript(
        masked_with={client: everybody - {client} for client in everybody},
        self_mask_seeds=contributors,
        mask_roots=frozenset({late}),
    )
    assert revealed_sets(transcript) == {contributors}
    # With the seed of the late client's self mask it would learn its input.
    greedy = replace(transcript, self_mask_seeds=everybody)
    assert frozenset({late}) in revealed_sets(greedy)


@pytest.mark.parametrize("mode", SecurityMode)
def test_nobody_shows_the_self_mask_seed_of_a_client_declared_dropped_after_the_fact(
    mode: SecurityMode, refused: Refused
) -> None:
    session, _, _ = with_a_late_upload(mode)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    victim = session.client_ids[0]
    message = session.take(victim)
    assert session.clients[victim].answer(message)
    genuine = UnmaskingRequest.decode(message, session.server.roster)
    everybody = session.server.roster.set_of(range(8))
    second = replace(genuine, contributors=everybody).encode()
    refused(session, victim, second, PeerMisbehaved, Reason.ALREADY_ANSWERED, {ServerId()})


# --- A server that is restored ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("uploads", [0, 1, 4, 8])
def test_a_restored_server_neither_loses_nor_doubles_an_upload(
    mode: SecurityMode, uploads: int, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    pending = session.pending
    session.deliver(pending[:uploads])
    session.server = restored(stored(session.server))
    # Whoever has answered answers again, as a network does that was told nothing.
    session.pending = pending
    goes_on(session)
    assert session.refusals == []


def test_an_upload_that_came_after_the_snapshot_is_counted_once(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending[:3])
    snapshot = stored(session.server)
    session.deliver(session.pending[3:5])
    session.server = restored(snapshot)
    goes_on(session)


def test_another_upload_than_the_first_is_refused_by_a_restored_server(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending)
    session.pending = []
    session.server = restored(stored(session.server))
    attacker = session.client_ids[2]
    sent = session.sent_by(attacker, MessageKind.MASKED_INPUT)
    with pytest.raises(PeerError) as caught:
        session.server.receive(attacker, sent[:-1] + bytes([sent[-1] ^ 1]))
    assert (caught.value.reason, caught.value.culprits) == (Reason.AUTHENTICATION_FAILED, unverified(attacker))
    goes_on(session)


def test_a_client_that_was_dropped_stays_out_of_a_restored_server() -> None:
    session = InsecurePairwiseSession()
    gone = session.client_ids[2]
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    genuine = session.clients[gone].answer(session.take(gone))
    session.server.drop(gone)
    again = restored(stored(session.server))
    with pytest.raises(PeerMisbehaved) as caught:
        again.receive(gone, genuine)
    assert caught.value.reason is Reason.NOT_ELIGIBLE


@pytest.mark.parametrize("mode", SecurityMode)
def test_two_servers_from_one_snapshot_do_not_get_two_answers(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending[:7])
    snapshot = stored(session.server)
    session.deliver(session.pending[7:])
    session.pending = close_round(session.server)
    session.finish()
    assert session.server.revealed == {frozenset(session.client_ids)}
    # The other server closes the round without the last upload, and asks the same clients.
    session.server = restored(snapshot)
    session.pending = close_round(session.server)
    before = len(session.log)
    with pytest.raises(ThresholdNotMet):
        session.finish()
    assert [d for d in session.log[before:] if d.receiver == ServerId()] == [], "nobody answers"
    assert {type(error) for errors in session.errors.values() for error in errors} == {PeerMisbehaved}
    assert all(session.clients[client].state is ClientState.ABORTED for client in session.client_ids[:7])


# --- Small sums -------------------------------------------------------------------------------------------------------


def ring_of(graph: Graph) -> list[int]:
    """Return the positions in the order of the ring; its degree is 4."""
    after = {
        position: [n for n in graph.neighbours(position) if graph.sends_edge_seed(position, n)]
        for position in range(graph.population)
    }
    order = [0]
    while len(order) < graph.population:
        one, other = after[order[-1]]
        order.append(one if other in after[one] else other)
    return order


def test_a_sum_of_fewer_than_the_minimum_cohort_is_not_released_where_dropouts_cut_the_graph_apart() -> None:
    setup = SessionSetup(
        population=12, mode=SecurityMode.SEMI_HONEST, topology=Topology.SPARSE, minimum_cohort=4, dropped=1
    )
    session = InsecurePairwiseSession(setup)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    assert session.server.roster.graph.degree == 4
    order = ring_of(session.server.roster.graph)
    # Two neighbouring clients drop out on either side of three: the sum falls into one of three and one of five.
    island, gone = order[2:5], [*order[:2], *order[5:7]]
    session.drop(*(session.client_ids[position] for position in gone))
    with pytest.raises(ThresholdNotMet) as caught:
        session.finish()
    assert (caught.value.needed, caught.value.present) == (4, 3)
    assert len(island) == caught.value.present
    assert not session.server.revealed
    assert session.server.state is ServerState.ABORTED
    with pytest.raises(Misuse):
        unmask(session.server)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize(
    "state", [ServerState.AWAITING_ENCRYPTED_SHARES, ServerState.AWAITING_MASKED_INPUTS], ids=lambda state: state.name
)
def test_the_server_ends_a_session_of_fewer_than_the_minimum_cohort(mode: SecurityMode, state: ServerState) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, minimum_cohort=7))
    own = [session.update_of(client) for client in session.client_ids]
    for client, unspent in zip(session.client_ids, own, strict=True):
        session.clients[client] = session.enrol(client, update=unspent)
    session.reach(state)
    session.drop(*session.client_ids[:2])
    with pytest.raises(ThresholdNotMet) as caught:
        session.step()
    assert (caught.value.needed, caught.value.present) == (7, 6)
    assert session.server.state is ServerState.ABORTED
    uploaded = 6 if state is ServerState.AWAITING_MASKED_INPUTS else 0
    assert sum(map(is_spent, own)) == uploaded
