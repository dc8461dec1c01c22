"""A server that sends different sets of survivors, to learn both secrets of a client or the sum of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from secagg.blame import unverified
from secagg.crypto.labels import Label
from secagg.errors import AuthenticationFailed, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import ClientState, ServerState
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput, upload_digest
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import (
    Endorsement,
    SignedView,
    SurvivorSet,
    SurvivorSignature,
    UnmaskingRequest,
    signed_survivors,
)
from secagg.session.signing_keys import issue_certificate
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import InsecurePairwiseSession, Outgoing, SessionSetup, insecure_signing_key

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]
EVERYBODY = range(8)


def at(state: ServerState, mode: SecurityMode = SecurityMode.ACTIVE, **others: object) -> InsecurePairwiseSession:
    session = InsecurePairwiseSession(replace(SessionSetup(mode=mode), **others))  # type: ignore[arg-type]
    session.reach(state)
    return session


def survivor_set(session: InsecurePairwiseSession, contributors: Iterable[int], sharers: Iterable[int]) -> bytes:
    roster = session.server.roster
    message = SurvivorSet(
        context=roster.context.tag, sharers=roster.set_of(sharers), contributors=roster.set_of(contributors)
    )
    return message.encode()


def signature_on(session: InsecurePairwiseSession, signer: int, contributors: Iterable[int]) -> bytes:
    """Sign like a corrupted committee member, whatever it signed before."""
    roster, client = session.server.roster, session.client_ids[signer]
    everybody = roster.set_of(range(roster.population))
    parts = signed_survivors(roster.context, client, everybody, roster.set_of(contributors))
    return session.member(client).sign(Label.SIGNED_SURVIVORS, *parts)


def ask(session: InsecurePairwiseSession, member: int, contributors: Iterable[int]) -> bytes:
    client = session.clients[session.client_ids[member]]
    answer = client.answer(survivor_set(session, contributors, range(session.server.roster.population)))
    return SurvivorSignature.decode(answer).signature


def endorsement(session: InsecurePairwiseSession, position: int, signature: bytes) -> Endorsement:
    member = session.member(session.client_ids[position])
    assert member.certificate is not None
    return Endorsement(
        position=position,
        identity_key=member.certificate.public_key,
        certificate=member.certificate.grant,
        signature=signature,
    )


def request(
    session: InsecurePairwiseSession, receiver: int, contributors: Iterable[int], signatures: dict[int, bytes]
) -> bytes:
    """Return the best request that the server can make."""
    roster, survivors = session.server.roster, session.server.roster.set_of(contributors)
    present = [other for other in roster.graph.neighbours(receiver) if other in survivors]
    if session.setup.mode is SecurityMode.SEMI_HONEST:
        present = []
    views = list[SignedView]()
    for other in present:
        client = session.client_ids[other]
        item = MaskedInput.decode(session.sent_by(client, MessageKind.MASKED_INPUT), roster)
        digest = upload_digest(item.packed)
        views.append(SignedView(upload=digest, signature=item.signature))
    message = UnmaskingRequest(
        context=roster.context.tag,
        contributors=survivors,
        endorsements=tuple(endorsement(session, position, signatures[position]) for position in sorted(signatures)),
        views=tuple(views),
    )
    return message.encode()


def certified(session: InsecurePairwiseSession, contributors: Iterable[int]) -> dict[int, bytes]:
    """Return a quorum's signatures, as if a majority of the committee were corrupted."""
    quorum, chosen = session.server.configuration.quorum, tuple(contributors)
    return {signer: signature_on(session, signer, chosen) for signer in chosen[:quorum]}


# --- Both secrets of one client ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_second_request_with_another_set_gets_nothing(mode: SecurityMode, refused: Refused) -> None:
    session = at(ServerState.AWAITING_UNMASKING_SHARES, mode)
    victim = session.client_ids[0]
    assert session.clients[victim].answer(session.take(victim))
    without_one = [0, 1, 2, 3, 4, 5, 6]
    signatures = certified(session, without_one) if mode is SecurityMode.ACTIVE else {}
    second = request(session, 0, without_one, signatures)
    refused(session, victim, second, PeerMisbehaved, Reason.ALREADY_ANSWERED, {ServerId()})


# --- Split sets -------------------------------------------------------------------------------------------------------

ONE_SET, OTHER_SET = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("first", [3, 4])
def test_two_sets_do_not_both_get_a_certificate_even_if_a_corrupted_member_signs_both(
    first: int, ended: Callable[[InsecurePairwiseSession, ClientId], None]
) -> None:
    session = at(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    quorum = session.server.configuration.quorum
    corrupted, honest = 0, [1, 2, 3, 4, 5]
    # The server wants to separate the inputs of 6 and 7: each is only in one set, and signs that one.
    ones, others = [*honest[: first - 1], 6], [*honest[first - 1 :], 7]
    signatures: dict[str, dict[int, bytes]] = {"one": {}, "other": {}}
    for name, group, chosen in (("one", ones, ONE_SET), ("other", others, OTHER_SET)):
        for member in group:
            signatures[name][member] = ask(session, member, chosen)
        signatures[name][corrupted] = signature_on(session, corrupted, chosen)
    assert sorted(len(made) >= quorum for made in signatures.values()) == [False, True]
    answered = set[str]()
    for name, group, chosen in (("one", ones, ONE_SET), ("other", others, OTHER_SET)):
        for member in group:
            client = session.clients[session.client_ids[member]]
            message = request(session, member, chosen, signatures[name])
            if len(signatures[name]) >= quorum:
                assert client.answer(message)
                answered.add(name)
                continue
            with pytest.raises(PeerMisbehaved) as caught:
                client.answer(message)
            assert (caught.value.reason, caught.value.culprits) == (Reason.QUORUM_NOT_MET, frozenset({ServerId()}))
            ended(session, client.client)
    assert len(answered) == 1


def test_signatures_on_two_sets_do_not_add_up_to_a_certificate(refused: Refused) -> None:
    session = at(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    victim = session.client_ids[1]
    signatures = {member: ask(session, member, ONE_SET) for member in (1, 2, 3, 6)}
    signatures[4] = ask(session, 4, OTHER_SET)
    message = request(session, 1, ONE_SET, signatures)
    session.pending.clear()
    refused(session, victim, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, {ServerId()})


# --- The certificate --------------------------------------------------------------------------------------------------


def with_committee_of_five() -> tuple[InsecurePairwiseSession, int, list[int]]:
    session = InsecurePairwiseSession()
    session.replan(replace(session.server.configuration, committee_size=5, quorum=4))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    committee = list(session.server.roster.committee)
    return session, next(position for position in EVERYBODY if position not in committee), committee


def forged_certificate(session: InsecurePairwiseSession, committee: list[int], forgery: str) -> list[Endorsement]:
    """Return a replacement for the last of four genuine endorsements."""
    genuine = [endorsement(session, member, signature_on(session, member, EVERYBODY)) for member in committee[:4]]
    first, last = genuine[0], genuine[3]
    outsiders = [position for position in EVERYBODY if position not in committee]
    own = insecure_signing_key("the server's authority", b"")
    identity = insecure_signing_key("an invented member", b"")
    fake = issue_certificate(own, session.client_ids[last.position], identity.public_key)
    second = issue_certificate(session.authority_key, session.client_ids[last.position], identity.public_key)
    roster = session.server.roster
    parts = signed_survivors(
        roster.context, session.client_ids[last.position], roster.set_of(EVERYBODY), roster.set_of(EVERYBODY)
    )
    client = session.client_ids[last.position]
    upload = MaskedInput.decode(session.sent_by(client, MessageKind.MASKED_INPUT), roster)
    other = {
        "out of order": [first],
        "an outsider": [endorsement(session, outsiders[-1], signature_on(session, outsiders[-1], EVERYBODY))],
        "from round 2": [replace(last, signature=upload.signature)],
        "of another member": [replace(last, signature=first.signature)],
        "of a corrupted client in a member's name": [
            replace(
                last, signature=session.member(session.client_ids[outsiders[0]]).sign(Label.SIGNED_SURVIVORS, *parts)
            )
        ],
        "of an invented member": [
            replace(
                last,
                identity_key=identity.public_key,
                certificate=fake.grant,
                signature=identity.sign(Label.SIGNED_SURVIVORS, *parts),
            )
        ],
        "of a member's second identity": [
            replace(
                last,
                identity_key=identity.public_key,
                certificate=second.grant,
                signature=identity.sign(Label.SIGNED_SURVIVORS, *parts),
            )
        ],
        "under a revoked certificate": [
            replace(
                last, certificate=issue_certificate(session.authority_key, client, last.identity_key, number=5).grant
            )
        ],
    }[forgery]
    return [*genuine[1:3], first, *genuine[3:]] if forgery == "out of order" else [*genuine[:3], *other]


@pytest.mark.parametrize(
    ("forgery", "kind", "reason"),
    [
        ("out of order", PeerMisbehaved, Reason.QUORUM_NOT_MET),
        ("an outsider", PeerMisbehaved, Reason.QUORUM_NOT_MET),
        ("from round 2", AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
        ("of another member", AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
        ("of a corrupted client in a member's name", AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
        ("of an invented member", AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
        ("of a member's second identity", PeerMisbehaved, Reason.QUORUM_NOT_MET),
        ("under a revoked certificate", AuthenticationFailed, Reason.AUTHENTICATION_FAILED),
    ],
)
def test_a_forged_certificate_unmasks_nothing(
    forgery: str, kind: type[SecAggError], reason: Reason, refused: Refused
) -> None:
    session, outside, committee = with_committee_of_five()
    victim = session.client_ids[outside]
    genuine = UnmaskingRequest.decode(session.take(victim), session.server.roster)
    forged = replace(genuine, endorsements=tuple(forged_certificate(session, committee, forgery)))
    refused(session, victim, forged.encode(), kind, reason, {ServerId()})


@pytest.mark.parametrize("signers", [4, 5])
def test_the_certificate_that_the_forgeries_start_from_is_accepted_from_a_quorum_and_from_all(
    signers: int, goes_on: GoesOn
) -> None:
    session, outside, committee = with_committee_of_five()
    victim = session.client_ids[outside]
    genuine = UnmaskingRequest.decode(session.take(victim), session.server.roster)
    endorsements = [
        endorsement(session, member, signature_on(session, member, EVERYBODY)) for member in committee[:signers]
    ]
    again = replace(genuine, endorsements=tuple(endorsements)).encode()
    answer = session.clients[victim].answer(again)
    session.server.receive(victim, answer)
    goes_on(session)


def test_a_certificate_of_another_attempt_unmasks_nothing(refused: Refused) -> None:
    earlier, session = (at(ServerState.AWAITING_UNMASKING_SHARES, attempt=attempt) for attempt in (0, 1))
    victim = session.client_ids[3]
    roster = session.server.roster
    old = UnmaskingRequest.decode(earlier.take(victim), roster)
    genuine = UnmaskingRequest.decode(session.take(victim), roster)
    forged = replace(genuine, endorsements=old.endorsements).encode()
    refused(session, victim, forged, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, {ServerId()})


# --- Views ------------------------------------------------------------------------------------------------------------


def with_a_split_view() -> tuple[InsecurePairwiseSession, int]:
    """Send client 3 fewer sharers than the others before it masks: client 6 is missing."""
    session, cheated, hidden = at(ServerState.AWAITING_MASKED_INPUTS), 3, 6
    message = session.delivery(cheated, set(EVERYBODY) - {hidden})
    session.take(session.client_ids[cheated])
    session.pending.append(Outgoing(session.client_ids[cheated], message))
    return session, cheated


def test_an_upload_under_fewer_sharers_does_not_count_and_its_client_signs_nothing(
    refused: Refused, goes_on: GoesOn
) -> None:
    session, cheated = with_a_split_view()
    victim = session.client_ids[cheated]
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    ((sender, error),) = session.refusals
    assert isinstance(error, AuthenticationFailed)
    assert (sender, error.culprits) == (victim, unverified(victim))
    message = survivor_set(session, EVERYBODY, EVERYBODY)
    refused(session, victim, message, PeerMisbehaved, Reason.SURVIVORS_INVALID, {ServerId()})
    goes_on(session, without=[victim])


def test_neighbours_do_not_unmask_a_client_that_masked_under_fewer_sharers(refused: Refused) -> None:
    session, cheated = with_a_split_view()
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    # The server still counts the upload, and a majority of the committee is corrupted, so only views help.
    signatures = certified(session, EVERYBODY)
    session.pending.clear()
    target = session.client_ids[0]
    ask(session, 0, EVERYBODY)
    message = request(session, 0, EVERYBODY, signatures)
    blamed = {session.client_ids[cheated], ServerId()}
    refused(session, target, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, blamed)


@pytest.mark.parametrize("change", ["one more", "swapped", "another upload", "from round 3"])
def test_views_that_do_not_belong_to_the_neighbours_unmask_nothing(change: str, refused: Refused) -> None:
    session = at(ServerState.AWAITING_UNMASKING_SHARES)
    victim, roster = session.client_ids[0], session.server.roster
    genuine = UnmaskingRequest.decode(session.take(victim), roster)
    views, first = genuine.views, session.client_ids[1]
    signed = SurvivorSignature.decode(session.sent_by(first, MessageKind.SURVIVOR_SIGNATURE))
    forged, number = {
        "one more": ((*views, views[-1]), True),
        "swapped": ((views[1], views[0], *views[2:]), False),
        "another upload": ((replace(views[0], upload=bytes(32)), *views[1:]), False),
        "from round 3": ((replace(views[0], signature=signed.signature), *views[1:]), False),
    }[change]
    message = replace(genuine, views=forged).encode()
    if number:
        refused(session, victim, message, PeerMisbehaved, Reason.QUORUM_NOT_MET, {ServerId()})
    else:
        refused(session, victim, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, {first, ServerId()})


def test_nobody_is_asked_before_the_quorum_is_there() -> None:
    session = at(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    quorum = session.server.configuration.quorum
    session.drop(*session.client_ids[quorum - 1 :])
    with pytest.raises(ThresholdNotMet) as caught:
        session.step()
    assert (caught.value.needed, caught.value.present) == (quorum, quorum - 1)
    assert session.server.state is ServerState.ABORTED
    assert all(client.state is ClientState.AWAITING_UNMASKING_REQUEST for client in session.clients.values())
