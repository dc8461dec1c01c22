"""Shares and edge seeds that are altered, moved, replayed or badly made between two clients.

An input whose upload was never sent is not spent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from secagg.blame import unverified
from secagg.crypto.prime_field import PRIME
from secagg.crypto.secret import Secret
from secagg.errors import NOBODY, AuthenticationFailed, PeerError, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, Party, ServerId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ServerState, Topology
from secagg.protocols.pairwise_mask.configuration import Seat
from secagg.protocols.pairwise_mask.relay import RelayedShares
from secagg.protocols.pairwise_mask.round0_advertise_keys import AdvertisedKeys, accept_advertised_keys, advertise_keys
from secagg.protocols.pairwise_mask.round1_share_keys import DeliveredEntry, DeliveredShares, Shared, share_keys
from secagg.protocols.pairwise_mask.round2_masked_input import complain
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import AnsweredFor, Asked, UnmaskingShares
from secagg.protocols.pairwise_mask.suites import ClassicSuite, HybridSuite, OwnKeys, PublishedKeys
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, is_spent

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]
HEADER_BYTES = 7
SUITE_CLASSES: dict[Suite, type[ClassicSuite | HybridSuite]] = {Suite.CLASSIC: ClassicSuite, Suite.HYBRID: HybridSuite}


def at_delivery(
    mode: SecurityMode = SecurityMode.ACTIVE, suite: Suite = Suite.CLASSIC, attempt: int = 0
) -> InsecurePairwiseSession:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite, attempt=attempt))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    return session


def delivered_to(session: InsecurePairwiseSession, receiver: int) -> DeliveredShares:
    message = next(out.message for out in session.pending if out.receiver == session.client_ids[receiver])
    return DeliveredShares.decode(message, Seat(session.server.roster, receiver))


def with_entry(message: DeliveredShares, place: int, entry: DeliveredEntry) -> bytes:
    entries = (*message.entries[:place], entry, *message.entries[place + 1 :])
    return replace(message, entries=entries).encode()


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def held_by(session: InsecurePairwiseSession, holder: int) -> list[int]:
    roster = session.server.roster
    everybody = roster.set_of(range(roster.population))
    answered = AnsweredFor.by(roster, everybody, everybody, holder)
    sent = session.sent_by(session.client_ids[holder], MessageKind.UNMASKING_SHARES)
    message = UnmaskingShares.decode(sent, Asked(roster, answered))
    return [neighbour for place, neighbour in enumerate(answered.neighbours) if place in message.held]


# --- A share that does not open ---------------------------------------------------------------------------------------


Seal = Callable[[Callable[[Secret], bytes], Secret], bytes]
CROOKED: dict[str, tuple[Seal, type[PeerError], Reason]] = {
    "does not open": (lambda seal, both: flipped(seal(both), -1), AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
    "is no field element": (
        lambda seal, _: seal(Secret("shares", PRIME.to_bytes(32, "big") * 2)),
        PeerMisbehaved,
        Reason.SHARE_OUT_OF_RANGE,
    ),
    "is not the one committed to": (
        lambda seal, both: seal(Secret("shares", flipped(bytes(both.expose()), -1))),
        PeerMisbehaved,
        Reason.COMMITMENT_MISMATCH,
    ),
}


@contextmanager
def crooked_shares(suite: Suite, attacker: ClientId, victim: ClientId, crooked: Seal) -> Generator[None]:
    """Let a corrupted client seal something other than its shares for one neighbour."""
    cls = SUITE_CLASSES[suite]
    seal_shares = cls.seal_shares

    def sealing(
        self: ClassicSuite | HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext, both: Secret
    ) -> bytes:
        def seal(content: Secret) -> bytes:
            return seal_shares(self, own, peer, context, content)  # type: ignore[arg-type]

        return crooked(seal, both) if (own.client, peer.client) == (attacker, victim) else seal(both)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, "seal_shares", sealing)
        yield


@contextmanager
def unusable_edge(attacker: ClientId, victim: ClientId) -> Generator[None]:
    """Let a corrupted client seal a useless edge seed for one neighbour."""
    offer_edge = HybridSuite.offer_edge

    def bad_edge(self: HybridSuite, own: OwnKeys, peer: PublishedKeys, context: SessionContext) -> bytes:
        edge = offer_edge(self, own, peer, context)  # type: ignore[arg-type]
        return flipped(edge, -1) if (own.client, peer.client) == (attacker, victim) else edge

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HybridSuite, "offer_edge", bad_edge)
        yield


@pytest.mark.parametrize("what", CROOKED)
@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_sender_of_a_crooked_share_is_complained_about_and_no_holder_is_blamed_for_it(
    mode: SecurityMode, suite: Suite, what: str, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite))
    attacker, victim = session.client_ids[0], session.client_ids[3]
    crooked, _, reason = CROOKED[what]
    is_active = mode is SecurityMode.ACTIVE
    with crooked_shares(suite, attacker, victim, crooked):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    goes_on(session)
    if reason is Reason.COMMITMENT_MISMATCH and not is_active:
        assert not session.clients[victim].faults, "nobody published what the shares are"
        return
    (complaint,) = session.clients[victim].faults
    blamed: set[Party] = {attacker} if is_active else {attacker, ServerId()}
    assert (complaint.reason, complaint.culprits) == (reason, frozenset(blamed))
    assert (session.refusals, session.server.faults) == ([], ()), "a complaint of the victim's alone excludes nobody"
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]


# --- The relay --------------------------------------------------------------------------------------------------------


Entry = Callable[[InsecurePairwiseSession, DeliveredShares], DeliveredEntry]


def sealed_end(session: InsecurePairwiseSession) -> int:
    return ClassicSuite.sealed_bytes if session.setup.suite is Suite.CLASSIC else HybridSuite().sealed_bytes


def of_another_attempt(session: InsecurePairwiseSession, _: DeliveredShares) -> DeliveredEntry:
    return delivered_to(at_delivery(session.setup.mode, session.setup.suite, attempt=1), 3).entries[0]


OPENED_BY_NOBODY: dict[str, Entry] = {
    "sealed shares": lambda s, m: replace(m.entries[0], entry=flipped(m.entries[0].entry, sealed_end(s) - 1)),
    "another client's": lambda s, _: delivered_to(s, 4).entries[0],
    "another attempt's": of_another_attempt,
}
"""Sealed data that does not open, signed or not."""


def path_of(message: DeliveredShares) -> tuple[bytes, ...]:
    path = message.entries[0].path
    assert path is not None
    return path


ALTERED: dict[str, Entry] = {
    **OPENED_BY_NOBODY,
    "commitment": lambda _, m: replace(m.entries[0], entry=flipped(m.entries[0].entry, -1)),
    "signature": lambda _, m: replace(m.entries[0], signature=flipped(m.entries[0].signature, 0)),
    "path": lambda _, m: replace(m.entries[0], path=(flipped(path_of(m)[0], 0), *path_of(m)[1:])),
    "a node less": lambda _, m: replace(m.entries[0], path=path_of(m)[1:]),
    "a node more": lambda _, m: replace(m.entries[0], path=(*path_of(m), path_of(m)[0])),
    "another sender's": lambda _, m: m.entries[1],
}


@pytest.mark.parametrize("part", ALTERED)
@pytest.mark.parametrize("suite", Suite)
def test_in_active_mode_whatever_the_relay_alters_in_an_entry_ends_the_session_for_the_receiver(
    suite: Suite, part: str, refused: Refused, goes_on: GoesOn
) -> None:
    session = at_delivery(suite=suite)
    victim, blamed = session.client_ids[3], {session.client_ids[0], ServerId()}
    message = delivered_to(session, 3)
    forged = with_entry(message, 0, ALTERED[part](session, message))
    session.take(victim)
    refused(session, victim, forged, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, blamed)
    goes_on(session, without=[victim])


@pytest.mark.parametrize(
    ("suite", "part"), [*((Suite.CLASSIC, part) for part in OPENED_BY_NOBODY), (Suite.HYBRID, "sealed shares")], ids=str
)
def test_in_semi_honest_mode_it_is_recorded_as_missing_and_evicts_nobody(
    suite: Suite, part: str, goes_on: GoesOn
) -> None:
    session = at_delivery(SecurityMode.SEMI_HONEST, suite)
    victim, sender = session.client_ids[3], session.client_ids[0]
    message = delivered_to(session, 3)
    upload = session.clients[victim].answer(with_entry(message, 0, OPENED_BY_NOBODY[part](session, message)))
    session.take(victim)
    session.server.receive(victim, upload)
    (complaint,) = session.clients[victim].faults
    assert complaint.reason is Reason.AUTHENTICATION_FAILED
    assert complaint.culprits == {sender, ServerId()}, "the sender or the relay; nothing tells which"
    goes_on(session)
    assert held_by(session, 3) == [1, 2, 4, 5, 6, 7]


# --- The seeds of edges -----------------------------------------------------------------------------------------------


def sender_of_an_edge_to(session: InsecurePairwiseSession, receiver: int) -> int:
    """Return the last one, so that other edges were opened before it and their seeds have to be overwritten."""
    graph = session.server.roster.graph
    return [n for n in graph.neighbours(receiver) if graph.sends_edge_seed(n, receiver)][-1]


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_neighbour_that_seals_an_unusable_edge_seed_drives_one_out_and_is_named(
    mode: SecurityMode, ended: Refused, goes_on: GoesOn, *, stays: bool
) -> None:
    planned = at_delivery(mode, Suite.HYBRID)
    sender = sender_of_an_edge_to(planned, 3)
    session = InsecurePairwiseSession(planned.setup)
    attacker, victim = session.client_ids[sender], session.client_ids[3]
    with unusable_edge(attacker, victim):
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
    # The attacker masked with a seed that its victim does not know; it reveals the seed, or is excluded from the sum.
    gone = {victim} if stays else {victim, attacker}
    goes_on(session, of=set(session.client_ids) - gone, without=[] if stays else [attacker])
    blamed = frozenset[Party]({attacker}) if mode is SecurityMode.ACTIVE else unverified(attacker)
    accusation, verdict = session.server.faults
    assert f"{victim} leaves: it cannot use the seeds of its edges with {attacker}" in str(accusation)
    assert (accusation.reason, accusation.culprits) == (Reason.EDGE_UNUSABLE, blamed | {victim})
    # The victim's root is recovered, but also opens nothing.
    assert verdict.culprits == blamed
    (error,) = session.clients[victim].faults
    assert error.reason is Reason.AUTHENTICATION_FAILED
    assert error.culprits == blamed
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
    assert (caught.value.reason, caught.value.culprits) == (reason, NOBODY if signed else unverified(attacker))
    assert (session.server.message_to(attacker) is None) is complains_first
    if complains_first:
        assert [fault.reason for fault in faults] == [Reason.EDGE_UNUSABLE]
        return
    goes_on(session)
    assert [fault.reason for fault in session.server.faults] == [Reason.ALREADY_ANSWERED]


# --- Who shared -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", ["clients", "neighbours"])
@pytest.mark.parametrize("mode", SecurityMode)
def test_nothing_is_uploaded_when_fewer_shared_than_the_minimum_cohort_or_the_threshold(
    mode: SecurityMode, few: str, refused: Refused
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "clients": {"minimum_cohort": 7},
        "neighbours": {"population": 20, "topology": Topology.SPARSE},
    }
    session = InsecurePairwiseSession(replace(SessionSetup(mode=mode), **kinds[few]))
    victim = session.client_ids[3]
    own = session.update_of(victim)
    session.clients[victim] = session.enrol(victim, update=own)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.take(victim)
    everybody, neighbours = set(range(session.setup.population)), session.server.roster.graph.neighbours(3)
    needed = 7 if few == "clients" else session.server.configuration.threshold
    gone = {6, 7} if few == "clients" else set(neighbours[: len(neighbours) - needed + 1])
    message = session.delivery(3, everybody - gone)
    error = refused(session, victim, message, ThresholdNotMet, Reason.THRESHOLD_NOT_MET)
    assert isinstance(error, ThresholdNotMet)
    assert (error.needed, error.present) == (needed, needed - 1)
    assert not is_spent(own), "nothing of it left"


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
        message = DeliveredShares.decode(delivery.message, Seat(session.server.roster, holder))
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
    with unusable_edge(dealer, victim):
        other = second_tree(session, dealer, offered)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    with_entries_exchanged(session, other, holder)
    goes_on(session, of=set(session.client_ids) - {victim})
    assert [fault.culprits for fault in session.server.faults] == [unverified(victim)]


# --- Sealing once -----------------------------------------------------------------------------------------------------


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
