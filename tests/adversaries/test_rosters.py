"""A server, or a client, that puts other keys, other clients or other neighbours into the roster.

``semi_honest`` mode does not protect against a server that puts its own keys in the roster; a test shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from secagg.blame import unverified
from secagg.crypto.merkle import MerkleTree
from secagg.errors import (
    AuthenticationFailed,
    MalformedMessage,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
)
from secagg.identifiers import CONTEXT_TAG_BYTES, AttemptContext, ClientId, Party, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology
from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.configuration import encode_clients, entry_digest, roster_of
from secagg.protocols.pairwise_mask.graph import corrupted_in_window
from secagg.protocols.pairwise_mask.relay import PublishedRoster
from secagg.protocols.pairwise_mask.round0_advertise_keys import AdvertisedKeys, KeyAdvertisement, sign_advertisement
from secagg.session.signing_keys import issue_certificate
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    Delivery,
    InsecurePairwiseSession,
    SessionSetup,
    insecure_signing_key,
    update_of,
)

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]
NothingIsReleased = Callable[..., SecAggError]
P = 2**255 - 19
HEADER_BYTES = 7


def at_rosters(mode: SecurityMode = SecurityMode.ACTIVE, **others: object) -> InsecurePairwiseSession:
    """Run until the rosters are in transit."""
    session = InsecurePairwiseSession(replace(SessionSetup(mode=mode), **others))  # type: ignore[arg-type]
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    return session


def attempt_of(session: InsecurePairwiseSession) -> AttemptContext:
    return session.server.configuration.context


def advertised(session: InsecurePairwiseSession) -> dict[ClientId, KeyAdvertisement]:
    configuration = session.server.configuration
    return {
        client: KeyAdvertisement.decode(session.sent_by(client, MessageKind.KEY_ADVERTISEMENT), configuration)
        for client in session.client_ids
    }


def shown(
    session: InsecurePairwiseSession, victim: ClientId, others: Mapping[ClientId, KeyAdvertisement]
) -> AdvertisedKeys:
    """Return a consistent roster with the given advertisements, as sent to the victim."""
    published = PublishedRoster(session.server.configuration, session.server.roster.opening, others)
    position = published.roster.position_of(victim)
    assert position is not None
    return published.message_to(position)


# --- The list and the tree --------------------------------------------------------------------------------------------

LIST = encode_clients([ClientId(1000), ClientId(1007)])


def of_a_stranger(session: InsecurePairwiseSession, _: ClientId, message: AdvertisedKeys) -> AdvertisedKeys:
    neighbours = session.server.roster.graph.neighbours(3)
    stranger = next(p for p in range(12) if p != 3 and p not in neighbours)
    entry = advertised(session)[session.client_ids[stranger]].entry
    return replace(message, entries=(entry, *message.entries[1:]))


def of_another_graph(session: InsecurePairwiseSession, _: ClientId, __: AdvertisedKeys) -> AdvertisedKeys:
    """Open another graph seed; the whole message is consistent, and only the commitment differs."""
    return PublishedRoster(session.server.configuration, bytes(32), advertised(session)).message_to(3)


def with_another_own_key(session: InsecurePairwiseSession, victim: ClientId, _: AdvertisedKeys) -> AdvertisedKeys:
    entries = advertised(session)
    return shown(session, victim, {**entries, victim: replace(entries[victim], mask_key=bytes([9]) + bytes(31))})


def without_the_victim(session: InsecurePairwiseSession, victim: ClientId, _: AdvertisedKeys) -> AdvertisedKeys:
    others = {client: entry for client, entry in advertised(session).items() if client != victim}
    return shown(session, session.client_ids[4], others)


Forge = Callable[[InsecurePairwiseSession, ClientId, AdvertisedKeys], AdvertisedKeys]
ROSTERS: dict[str, Forge] = {
    "a client again by wrapping around": lambda _, __, m: replace(m, clients=LIST + b"\xff" * 9 + b"\x01"),
    "an unfinished gap": lambda _, __, m: replace(m, clients=LIST + b"\x80"),
    "an entry less": lambda _, __, m: replace(m, entries=m.entries[1:]),
    "an entry more": lambda _, __, m: replace(m, entries=(*m.entries, m.entries[0])),
    "a node less": lambda _, __, m: replace(m, proof=m.proof[1:]),
    "a node more": lambda _, __, m: replace(m, proof=(*m.proof, m.proof[0])),
    "a stranger": of_a_stranger,
    "another graph": of_another_graph,
    "another own key": with_another_own_key,
    "without the client": without_the_victim,
}


@pytest.mark.parametrize("forge", ROSTERS.values(), ids=ROSTERS)
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_roster_that_does_not_fit_together_is_refused(
    mode: SecurityMode, forge: Forge, refused: Refused, goes_on: GoesOn
) -> None:
    session = at_rosters(mode, population=12, topology=Topology.SPARSE)
    victim = session.client_ids[3]
    message = AdvertisedKeys.decode(session.take(victim), session.server.configuration)
    assert message.proof
    forged = forge(session, victim, message).encode()
    refused(session, victim, forged, PeerMisbehaved, Reason.ROSTER_INVALID, {ServerId()})
    goes_on(session, without=[victim])


@pytest.mark.parametrize("mode", SecurityMode)
def test_too_few_advertisers_are_not_called_an_invalid_roster(mode: SecurityMode, refused: Refused) -> None:
    """A sparse graph has more clients than neighbours; a smaller roster used to fail there first."""
    session = at_rosters(mode, population=12, topology=Topology.SPARSE)
    configuration = session.server.configuration
    for victim, count, kind, reason, culprits in (
        (3, configuration.minimum_cohort - 1, ThresholdNotMet, Reason.THRESHOLD_NOT_MET, set[Party]()),
        (4, configuration.degree, PeerMisbehaved, Reason.BELOW_FLOOR, {ServerId()}),
    ):
        client = session.client_ids[victim]
        message = AdvertisedKeys.decode(session.take(client), configuration)
        forged = replace(message, clients=encode_clients(session.client_ids[:count])).encode()
        refused(session, client, forged, kind, reason, culprits)


# --- Keys -------------------------------------------------------------------------------------------------------------


Entries = dict[ClientId, KeyAdvertisement]


def swapped(session: InsecurePairwiseSession, entries: Entries) -> Entries:
    one, other = session.client_ids[1:3]
    return {
        mine: replace(entries[mine], channel_key=entries[theirs].channel_key, mask_key=entries[theirs].mask_key)
        for mine, theirs in ((one, other), (other, one))
    }


def renamed(session: InsecurePairwiseSession, entries: Entries) -> Entries:
    one, other = session.client_ids[1:3]
    return {one: replace(entries[other], client=one), other: replace(entries[one], client=other)}


def with_keys_of_the_corrupted(session: InsecurePairwiseSession, entries: Entries) -> Entries:
    target, corrupted = session.client_ids[1:3]
    keys = entries[corrupted]
    return {target: replace(entries[target], channel_key=keys.channel_key, mask_key=keys.mask_key)}


def signed_by_the_corrupted(session: InsecurePairwiseSession, entries: Entries) -> Entries:
    ((target, forged),) = with_keys_of_the_corrupted(session, entries).items()
    return {target: sign_advertisement(forged, session.member(session.client_ids[2]), attempt_of(session))}


def with_a_certificate_of_its_own(session: InsecurePairwiseSession, entries: Entries) -> Entries:
    ((target, forged),) = with_keys_of_the_corrupted(session, entries).items()
    own = insecure_signing_key("the attacker", b"")
    member = session.member(target, signing_key=own, certificate=issue_certificate(own, target, own.public_key))
    return {target: sign_advertisement(forged, member, attempt_of(session))}


@pytest.mark.parametrize(
    "forge", [swapped, renamed, with_keys_of_the_corrupted, signed_by_the_corrupted, with_a_certificate_of_its_own]
)
def test_keys_that_their_certified_owner_did_not_sign_are_refused_in_active_mode(
    forge: Callable[[InsecurePairwiseSession, Entries], Entries], refused: Refused, goes_on: GoesOn
) -> None:
    session = at_rosters()
    victim, target = session.client_ids[:2]
    entries = advertised(session)
    message = shown(session, victim, entries | forge(session, entries)).encode()
    session.take(victim)
    refused(session, victim, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, {target, ServerId()})
    goes_on(session, without=[victim])


def test_semi_honest_mode_trusts_the_server_for_the_keys_as_its_name_says() -> None:
    session = at_rosters(SecurityMode.SEMI_HONEST)
    victim, target, corrupted = session.client_ids[:3]
    entries = advertised(session)
    entries[target] = replace(
        entries[target], channel_key=entries[corrupted].mask_key, mask_key=entries[corrupted].channel_key
    )
    del entries[corrupted]
    assert session.clients[victim].answer(shown(session, victim, entries).encode())
    assert session.clients[victim].state is ClientState.AWAITING_DELIVERED_SHARES


def bad_key(keys: KeyAdvertisement, others: KeyAdvertisement, defect: str) -> KeyAdvertisement:
    """Return an advertisement with one key that no honest client would make; its X25519 part comes last."""
    before = keys.mask_key[:-32]
    bad: dict[str, dict[str, bytes]] = {
        "top bit": {"mask_key": keys.mask_key[:-1] + bytes([keys.mask_key[-1] | 0x80])},
        "u + p": {"mask_key": before + (P + 9).to_bytes(32, "little")},
        "order 1": {"mask_key": before + bytes(32)},
        "order 4": {"channel_key": keys.channel_key[:-32] + (P - 1).to_bytes(32, "little")},
        "another client's": {"mask_key": others.mask_key},
        "another client's in the other role": {"channel_key": others.mask_key},
        "one key for both roles": {"mask_key": keys.channel_key},
    }
    return replace(keys, **bad[defect])  # type: ignore[arg-type]


DEFECTS: dict[str, tuple[type[PeerError], Reason]] = {
    "top bit": (MalformedMessage, Reason.PUBLIC_KEY_NOT_CANONICAL),
    "u + p": (MalformedMessage, Reason.PUBLIC_KEY_NOT_CANONICAL),
    "order 1": (PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER),
    "order 4": (PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER),
    "another client's": (PeerMisbehaved, Reason.PUBLIC_KEY_REUSED),
    "another client's in the other role": (PeerMisbehaved, Reason.PUBLIC_KEY_REUSED),
    "one key for both roles": (PeerMisbehaved, Reason.PUBLIC_KEY_REUSED),
}


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_bad_key_that_a_corrupted_client_advertises_is_stopped_by_the_server(
    mode: SecurityMode, defect: str, suite: Suite, goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode, suite=suite))
    honest, attacker = session.client_ids[4], session.client_ids[5]

    def replace_key(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.sender, delivery.kind) != (attacker, MessageKind.KEY_ADVERTISEMENT):
            return (delivery,)
        configuration = session.server.configuration
        own = KeyAdvertisement.decode(delivery.message, configuration)
        other = KeyAdvertisement.decode(session.sent_by(honest, MessageKind.KEY_ADVERTISEMENT), configuration)
        forged = bad_key(own, other, defect)
        if mode is SecurityMode.ACTIVE:
            forged = sign_advertisement(forged, session.member(attacker), attempt_of(session))
        return (replace(delivery, message=forged.encode()),)

    session.adversary = replace_key
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    ((sender, error),) = session.refusals
    kind, reason = DEFECTS[defect]
    assert isinstance(error, PeerError)
    assert (sender, type(error), error.reason) == (attacker, kind, reason)
    both = frozenset[Party]({attacker, honest}) if defect.startswith("another") else frozenset[Party]({attacker})
    # Without signatures, the network may have inserted the key.
    assert error.culprits == (both if mode is SecurityMode.ACTIVE else both | {ServerId()})
    goes_on(session, without=[attacker])


@pytest.mark.parametrize(("defect", "place"), [*((defect, 4) for defect in DEFECTS), ("another client's", 0)])
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_bad_key_that_the_server_lets_pass_is_stopped_by_every_neighbour(
    mode: SecurityMode, defect: str, place: int, refused: Refused, goes_on: GoesOn
) -> None:
    """The other client at place 0 is the neighbour itself."""
    session = at_rosters(mode)
    victim, honest, attacker = (session.client_ids[number] for number in (0, place, 5))
    entries = advertised(session)
    forged = bad_key(entries[attacker], entries[honest], defect)
    active = mode is SecurityMode.ACTIVE
    entries[attacker] = sign_advertisement(forged, session.member(attacker), attempt_of(session)) if active else forged
    session.take(victim)
    message = shown(session, victim, entries).encode()
    kind, reason = DEFECTS[defect]
    if defect.startswith("another"):
        # Whoever copied the key, the server would have detected it.
        culprits = {honest, attacker, ServerId()} - {victim}
    else:
        culprits = {attacker} if active else {attacker, ServerId()}
    refused(session, victim, message, kind, reason, culprits)
    goes_on(session, without=[victim])


def under_one_identity(
    session: InsecurePairwiseSession, client: ClientId, other: ClientId, keys: KeyAdvertisement
) -> KeyAdvertisement:
    """Return an advertisement in a client's name that is certified and signed with another's identity key."""
    shared = session.signing_keys[other]
    certificate = issue_certificate(session.authority_key, client, shared.public_key)
    member = session.member(client, signing_key=shared, certificate=certificate)
    return sign_advertisement(keys, member, attempt_of(session))


@pytest.mark.parametrize("twin", ["another neighbour's", "the client's own"])
def test_one_identity_under_two_names_is_stopped_by_every_neighbour(
    twin: str, refused: Refused, goes_on: GoesOn
) -> None:
    # The authority made a mistake: with it, one client would count as several of the corrupted ones.
    session = at_rosters()
    victim, attacker = session.client_ids[0], session.client_ids[5]
    other = victim if twin == "the client's own" else session.client_ids[4]
    entries = advertised(session)
    entries[attacker] = under_one_identity(session, attacker, other, entries[attacker])
    session.take(victim)
    message = shown(session, victim, entries).encode()
    culprits = {other, attacker, ServerId()} - {victim}
    refused(session, victim, message, PeerMisbehaved, Reason.PUBLIC_KEY_REUSED, culprits)
    goes_on(session, without=[victim])


def test_one_identity_under_two_names_is_stopped_by_the_server() -> None:
    session = InsecurePairwiseSession()
    session.reach(ServerState.AWAITING_KEY_ADVERTISEMENTS)
    *_, other, attacker = session.client_ids
    session.take(attacker)
    session.deliver(session.pending)
    message = session.clients[attacker].answer(session.server.invitation)
    keys = KeyAdvertisement.decode(message, session.server.configuration)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(attacker, under_one_identity(session, attacker, other, keys).encode())
    assert caught.value.reason is Reason.PUBLIC_KEY_REUSED
    assert caught.value.culprits == {other, attacker}


def test_a_server_that_may_try_many_rosters_finds_a_graph_that_is_rare_in_one_try() -> None:
    # A corrupted client that signs other keys changes the root, and with it the graph. Eight of 24 are corrupted.
    session = at_rosters(population=24, topology=Topology.SPARSE)
    configuration, opening = session.server.configuration, session.server.roster.opening
    configuration = replace(configuration, degree=8, threshold=8)
    listed, bad = encode_clients(session.client_ids), set(range(8))
    once, many = corrupted_in_window(24, 8, 8, 5), corrupted_in_window(24, 8, 8, session.policy.privacy_bits)
    worst = 0
    for attempt in range(6000):
        graph = roster_of(configuration, listed, attempt.to_bytes(32, "big"), opening).graph
        after = [{v for v in graph.neighbours(u) if graph.sends_edge_seed(u, v)} for u in range(24)]
        counts = sorted((len(window & bad) for window in after), reverse=True)
        full = [window for window in after if len(window & bad) == counts[0]]
        if any(not one & other for one in full for other in full):
            worst = max(worst, counts[0])
    assert once < worst <= many


# --- Identities -------------------------------------------------------------------------------------------------------


def invented(session: InsecurePairwiseSession, count: int) -> dict[ClientId, KeyAdvertisement]:
    """Return clients invented by the server, certified by its own authority."""
    own = insecure_signing_key("the server's authority", b"")
    made = dict[ClientId, KeyAdvertisement]()
    entries = list(advertised(at_rosters(session.setup.mode, seed=b"keys of nobody")).values())
    for index, keys in enumerate(entries[:count]):
        client = ClientId(2000 + index)
        identity = insecure_signing_key(str(client), b"")
        certificate = issue_certificate(own, client, identity.public_key)
        member = session.member(client, signing_key=identity, certificate=certificate)
        unsigned = replace(keys, client=client, attempt=session.server.configuration.context.tag)
        made[client] = sign_advertisement(unsigned, member, attempt_of(session))
    return made


def test_invented_clients_are_stopped_by_an_honest_server(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup(population=8, late=1))
    missing = session.client_ids[7]
    session.drop(missing)
    session.deliver(session.pending)
    session.pending = []
    for client, advertisement in invented(session, 1).items():
        with pytest.raises(AuthenticationFailed) as caught:
            session.server.receive(client, advertisement.encode())
        assert caught.value.culprits == unverified(client)
    goes_on(session, without=[missing])


def test_an_advertisement_for_an_attempt_whose_tag_is_the_same_does_not_count(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup())
    target, attempt = session.client_ids[4], attempt_of(session)
    answer = session.clients[target].answer(session.take(target))
    own = KeyAdvertisement.decode(answer, session.server.configuration)
    # Tags are short enough to collide by search; signatures bind the whole digest.
    alike = AttemptContext(attempt.tag + bytes(24))
    assert alike.tag == attempt.tag
    with pytest.raises(AuthenticationFailed) as caught:
        session.server.receive(target, sign_advertisement(own, session.member(target), alike).encode())
    assert caught.value.culprits == unverified(target)
    goes_on(session, without=[target])


# --- Split views ------------------------------------------------------------------------------------------------------


def split_lists(mode: SecurityMode) -> tuple[InsecurePairwiseSession, ClientId, bytes]:
    """Send one client a list in which a client that is not its neighbour has another name; it cannot detect it.

    The tree is the true one: the victim only knows its neighbours' leaves, which do not move.
    """
    session = at_rosters(mode, population=12, dropped=2, topology=Topology.SPARSE)
    victim, roster, entries = session.client_ids[3], session.server.roster, advertised(session)
    tree = MerkleTree([entry_digest(client, entries[client].entry) for client in session.client_ids])
    for far in range(4, 12):
        names = list(session.client_ids)
        names[far] = ClientId(names[far].value + 1)
        split = roster_of(roster.configuration, encode_clients(names), tree.root, roster.opening)
        neighbours = split.graph.neighbours(3)
        if far not in neighbours:
            break
    else:
        raise AssertionError("every client is a neighbour")
    message = AdvertisedKeys(
        attempt=roster.configuration.context.tag,
        clients=encode_clients(names),
        root=tree.root,
        opening=roster.opening,
        entries=tuple(entries[session.client_ids[position]].entry for position in neighbours),
        proof=tuple(tree.prove((3, *neighbours))),
    )
    session.take(victim)
    answer = session.clients[victim].answer(message.encode())
    return session, victim, answer


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_client_that_is_shown_another_list_is_in_a_session_of_its_own(mode: SecurityMode, goes_on: GoesOn) -> None:
    session, victim, answer = split_lists(mode)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(victim, answer)
    assert (caught.value.reason, caught.value.culprits) == (Reason.WRONG_SESSION, unverified(victim))
    goes_on(session, without=[victim])


def relabel(message: bytes, context: bytes) -> bytes:
    """Write another context into a message, like a server that wants it to pass."""
    return message[:HEADER_BYTES] + context + message[HEADER_BYTES + CONTEXT_TAG_BYTES :]


def test_shares_made_under_another_list_do_not_pass_a_neighbours_check_in_active_mode(
    refused: Refused, goes_on: GoesOn
) -> None:
    session, victim, answer = split_lists(SecurityMode.ACTIVE)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    roster = session.server.roster
    neighbour = roster.graph.neighbours(3)[0]
    # The server skips its own check, and puts the relabelled shares among the genuine ones.
    message = session.delivery(neighbour, sent={3: relabel(answer, roster.context.tag)})
    target = session.client_ids[neighbour]
    session.take(target)
    refused(session, target, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, {victim, ServerId()})
    session.drop(target)
    goes_on(session, without=[victim, target])


def test_a_server_that_relabels_what_a_client_with_another_model_sends_gets_no_sum(
    nothing_is_released: NothingIsReleased,
) -> None:
    # Semi-honest mode has no signatures, so the relabelled messages pass, but their content does not fit.
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    victim = session.client_ids[5]
    own_offer = replace(session.server.configuration, model_digest=b"\7" * 32)
    own = replace(session.setup.subject, model_digest=own_offer.model_digest)
    made = update_of(session.payloads[victim], model_digest=own_offer.model_digest)
    session.clients[victim] = Client(session.member(victim), own, made)
    contexts = dict[str, bytes]()

    def relay(delivery: Delivery) -> tuple[Delivery, ...]:
        message = delivery.message
        before_roster = delivery.state is ServerState.AWAITING_KEY_ADVERTISEMENTS
        truth = session.server.configuration if before_roster else session.server.roster
        if delivery.sender == victim:
            contexts["own"] = message[HEADER_BYTES : HEADER_BYTES + CONTEXT_TAG_BYTES]
            message = relabel(message, truth.context.tag)
        elif delivery.receiver == victim:
            message = own_offer.encode() if before_roster else relabel(message, contexts["own"])
        return (replace(delivery, message=message),)

    session.adversary = relay
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    client = session.clients[victim]
    assert client.state is ClientState.AWAITING_UNMASKING_REQUEST, "it noticed nothing"
    assert [complaint.reason for complaint in client.faults] == [Reason.AUTHENTICATION_FAILED] * 7
    nothing_is_released(session, ThresholdNotMet, Reason.THRESHOLD_NOT_MET)
