"""All parties are honest, but not the network: its changes are refused or have no effect, and blame no client.

In active mode signatures cover all of a client's messages, so the network is only trusted to deliver. In
``semi_honest`` mode the transport has to authenticate both ends and their messages; without that the check words detect
a flipped bit, but not a careful change. The last test shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.crypto.ring import add_into, reduce_into
from secagg.errors import AuthenticationFailed, Fault, PeerError, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput, MaskedVector, upload_digest
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, same_sum

Alter = Callable[[bytes], bytes]
FROM_SERVER = (
    MessageKind.SESSION_OFFER,
    MessageKind.ADVERTISED_KEYS,
    MessageKind.DELIVERED_SHARES,
    MessageKind.SURVIVOR_SET,
    MessageKind.UNMASKING_REQUEST,
)
FROM_CLIENTS = (
    MessageKind.KEY_ADVERTISEMENT,
    MessageKind.ENCRYPTED_SHARES,
    MessageKind.MASKED_INPUT,
    MessageKind.SURVIVOR_SIGNATURE,
    MessageKind.UNMASKING_SHARES,
)
ACTIVE_ALONE = {MessageKind.SURVIVOR_SET, MessageKind.SURVIVOR_SIGNATURE}
FLIPS = {Suite.CLASSIC: ((0.0, 0), (0.5, 3), (0.97, 7)), Suite.HYBRID: ((0.2, 7), (0.8, 0), (1.0, 6))}
"""Offset after the header, and the bit."""
CASES = [
    pytest.param(mode, suite, kind, id=f"{mode}-{suite.name}-{kind.name}")
    for mode in SecurityMode
    for suite in Suite
    for kind in (*FROM_SERVER, *FROM_CLIENTS)
    if mode is SecurityMode.ACTIVE or kind not in ACTIVE_ALONE
]


def setup_of(mode: SecurityMode, suite: Suite = Suite.CLASSIC) -> SessionSetup:
    return SessionSetup(population=7, corrupted=0, dropped=2, mode=mode, suite=suite, check_words=40)


def session_altered(setup: SessionSetup, kind: MessageKind, alter: Alter) -> tuple[InsecurePairwiseSession, ClientId]:
    """Return a session in which one client's messages of a kind, sent or received, are altered in transit."""
    victim = setup.client_ids[2]

    def adversary(delivery: Delivery) -> Iterable[Delivery]:
        if delivery.kind is kind and victim in {delivery.sender, delivery.receiver}:
            return (replace(delivery, message=alter(delivery.message)),)
        return (delivery,)

    return InsecurePairwiseSession(setup, adversary=adversary), victim


def flip(at: float, bit: int) -> Alter:

    def alter(message: bytes) -> bytes:
        place = 7 + int(at * (len(message) - 8))
        return message[:place] + bytes([message[place] ^ 1 << bit]) + message[place + 1 :]

    return alter


def outcome(session: InsecurePairwiseSession) -> tuple[Aggregate | None, SecAggError | None]:
    try:
        return session.finish(), None
    except SecAggError as error:
        return None, error


def blamed(session: InsecurePairwiseSession) -> list[Fault]:
    told = [Fault.of(error) for _, error in session.refusals]
    told += [Fault.of(error) for errors in session.errors.values() for error in errors]
    clients = [fault for client in session.clients.values() for fault in client.faults]
    return [*session.server.faults, *told, *clients]


@pytest.mark.parametrize(("mode", "suite", "kind"), CASES)
def test_a_flipped_bit_is_refused_or_changes_nothing_and_blames_no_client_alone(
    mode: SecurityMode, suite: Suite, kind: MessageKind
) -> None:
    for at, bit in FLIPS[suite]:
        session, victim = session_altered(setup_of(mode, suite), kind, flip(at, bit))
        total, error = outcome(session)
        if total is None:
            # Nothing is released; in active mode one altered message never costs more than its sender.
            assert mode is SecurityMode.SEMI_HONEST
            assert isinstance(error, PeerError)
            assert not error.culprits or ServerId() in error.culprits
        else:
            (contributors,) = session.server.revealed
            # Its sender, or in the hybrid suite without signatures a receiver of an altered seed.
            assert len(contributors) >= len(session.client_ids) - 1
            assert same_sum(total, session.sum_of(contributors))
        for told in blamed(session):
            assert ServerId() in told.culprits or not told.culprits
        if mode is SecurityMode.ACTIVE and kind in FROM_CLIENTS:
            (refused, *_) = session.refusals
            assert refused[0] == victim
            assert isinstance(refused[1], PeerError)
            assert refused[1].culprits == unverified(victim)


def add_a_thousand(made: list[InsecurePairwiseSession]) -> Alter:
    """Return a change that adds 1000 to the first coordinate of an upload, and adjusts its check words."""

    def alter(message: bytes) -> bytes:
        (session,) = made
        roster = session.server.roster
        upload, vector = MaskedInput.decode(message, roster), MaskedVector(roster.configuration)
        vector.add_packed(b"".join(upload.packed))
        payload = session.payloads[session.client_ids[0]]
        for values in payload.values:
            values[:] = 0
        payload.values[0][0] = 1000
        # The check words are linear, under a public key.
        change = MaskedVector.of_input(roster.configuration, roster.context, payload)
        change.vectors[-1][:] = 0  # the count, and its check words
        for segment, whole, part in zip(roster.configuration.segments, vector.vectors, change.vectors, strict=True):
            add_into(whole, part)
            reduce_into(whole, segment.modulus_bits)
        return replace(upload, packed=vector.pack()).encode()

    return alter


@pytest.mark.parametrize("suite", Suite)
def test_whoever_adds_to_an_upload_on_the_way_is_refused_in_active_mode(suite: Suite) -> None:
    made = list[InsecurePairwiseSession]()
    session, victim = session_altered(
        setup_of(SecurityMode.ACTIVE, suite), MessageKind.MASKED_INPUT, add_a_thousand(made)
    )
    made.append(session)
    others = [client for client in session.client_ids if client != victim]
    expected = session.sum_of(others[1:])
    session.drop(others[0])  # the adversary computes with its payload
    total = session.finish()
    assert same_sum(total, expected)
    ((sender, error),) = session.refusals
    assert sender == victim
    assert isinstance(error, AuthenticationFailed)
    assert error.culprits == unverified(victim)


def test_the_server_keeps_evidence_of_what_each_client_uploaded() -> None:
    session = InsecurePairwiseSession(setup_of(SecurityMode.ACTIVE))
    session.finish()
    for client in session.client_ids:
        evidence = session.server.evidence_of(client)
        upload = MaskedInput.decode(session.sent_by(client, MessageKind.MASKED_INPUT), session.server.roster)
        assert evidence == upload_digest(upload.packed) + upload.signature


def test_semi_honest_mode_depends_on_the_transport_for_what_is_uploaded() -> None:
    """Without signatures a change with matching check words is released, so the transport has to authenticate."""
    made = list[InsecurePairwiseSession]()
    session, victim = session_altered(
        setup_of(SecurityMode.SEMI_HONEST), MessageKind.MASKED_INPUT, add_a_thousand(made)
    )
    made.append(session)
    others = [client for client in session.client_ids if client != victim]
    expected = session.sum_of([victim, *others[1:]])
    session.drop(others[0])
    total = session.finish()
    assert int(total.values[0][0]) == (int(expected.values[0][0]) + 1000) % (1 << 20)
    assert not session.server.faults
