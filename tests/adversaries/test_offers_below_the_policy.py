"""A server that offers, or continues with, parameters that do not protect the clients.

A refused offer leaves the client unchanged: it has drawn nothing, so a better offer may follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, Server, SessionConfiguration, SessionPlan, Topology
from secagg.protocols.pairwise_mask.relay import PublishedRoster
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement
from secagg.session.certificates import NO_STANDING
from secagg.session.client_policy import ClientPolicy
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    insecure_signing_key,
    is_spent,
)

Refused = Callable[..., SecAggError]
GoesOn = Callable[..., None]


CROWD = SessionSetup(
    population=1000,
    corrupted=50,
    dropped=50,
    mode=SecurityMode.SEMI_HONEST,
    topology=Topology.SPARSE,
    layout=Layout((RingSegment(8, 1),)),
)


class CountedCoins:
    """A client's coins, which count their draws."""

    def __init__(self, session: InsecurePairwiseSession) -> None:
        self.draws = 0
        self._coins = session.setup.coins_of("counted")

    def draw(self, count: int) -> bytearray:
        self.draws += 1
        return self._coins.draw(count)


OWN_AUTHORITY = insecure_signing_key("the server's own authority", b"").public_key


@pytest.mark.parametrize(
    ("offered", "policy"),
    [
        ({"threshold": 4}, {}),
        ({"minimum_cohort": 2}, {}),
        ({"maximum_population": 9}, {}),
        ({"suite": Suite.HYBRID}, {}),
        ({"mode": SecurityMode.SEMI_HONEST, "quorum": 0, "authority": bytes(32), "standing": NO_STANDING}, {}),
        ({"authority": OWN_AUTHORITY}, {}),
        ({"layout": Layout((RingSegment(16, 6), RingSegment(7, 3)))}, {}),
        ({}, {"minimum_modulus_bits": 16}),
        ({}, {"maximum_length": 8}),
    ],
    ids=["threshold", "cohort", "population", "suite", "mode", "authority", "another ring", "a narrow ring", "length"],
)
def test_an_offer_below_the_policy_is_refused_before_anything_is_drawn(
    offered: dict[str, Any], policy: dict[str, Any], goes_on: GoesOn
) -> None:
    session = InsecurePairwiseSession()
    victim, coins = session.client_ids[2], CountedCoins(session)
    own, threshold = session.update_of(victim), session.server.configuration.threshold
    insists: ClientPolicy = replace(session.policy, minimum_threshold=threshold, **policy)
    client = session.clients[victim] = session.enrol(victim, policy=insists, coins=coins, update=own)
    with pytest.raises(InvalidParameters) as caught:
        client.answer(replace(session.server.configuration, **offered).encode())
    reason = Reason.PARAMETER_OUT_OF_RANGE if "authority" in offered and len(offered) == 1 else Reason.BELOW_FLOOR
    assert (caught.value.reason, coins.draws) == (reason, 0)
    assert client.state is ClientState.AWAITING_OFFER
    assert not is_spent(own)
    # A better offer may follow.
    goes_on(session, without=[victim] if policy else [])


@pytest.mark.parametrize("room", [-1, 0])
def test_a_cohort_that_could_wrap_the_sum_is_refused_before_anything_is_drawn(room: int) -> None:
    session = InsecurePairwiseSession()
    victim, configuration = session.client_ids[2], session.server.configuration
    own, coins, most = session.update_of(victim), CountedCoins(session), configuration.maximum_population
    client = session.enrol(victim, capacity=most + room, coins=coins, update=own)
    if room < 0:
        with pytest.raises(InvalidParameters, match=f"{most} clients exceed the decoder's capacity of {most - 1}"):
            client.answer(configuration.encode())
        assert (coins.draws, client.state, is_spent(own)) == (0, ClientState.AWAITING_OFFER, False)
    else:
        assert client.answer(configuration.encode())


# --- Parameters that only show when it is known how many advertised ---------------------------------------------------


def roster_for(session: InsecurePairwiseSession) -> PublishedRoster:
    """Return the message of a server that checks nothing."""
    configuration = session.server.configuration
    advertised = {
        client: KeyAdvertisement.decode(session.sent_by(client, MessageKind.KEY_ADVERTISEMENT), configuration)
        for client in session.clients
    }
    return PublishedRoster(configuration, session.setup.plan(session.authority.public_key).opening, advertised)


def careless(session: InsecurePairwiseSession, configuration: SessionConfiguration) -> None:
    """Let the session continue with a configuration that its server did not plan."""
    opening = session.setup.plan(session.authority.public_key).opening
    session.server = Server(SessionPlan(configuration, opening, corrupted=0, dropped=0, privacy_bits=1))
    session.pending = [replace(outgoing, message=session.server.invitation) for outgoing in session.pending]
    session.deliver(session.pending)


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_threshold_below_the_rule_for_the_advertisers_ends_the_session_for_the_client(
    mode: SecurityMode, refused: Refused
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    weak = {SecurityMode.SEMI_HONEST: 3, SecurityMode.ACTIVE: 5}[mode]
    policy = replace(session.policy, assumed_corrupted=3)
    victim = session.client_ids[4]
    session.clients[victim] = session.enrol(victim, policy=policy)
    careless(session, replace(session.server.configuration, threshold=weak))
    roster = roster_for(session)
    message = roster.message_to(4).encode()
    refused(session, victim, message, PeerMisbehaved, Reason.BELOW_FLOOR, {ServerId()})


def test_a_threshold_for_a_graph_that_is_drawn_once_ends_a_session_in_active_mode(refused: Refused) -> None:
    # At 40 bits, 31 would suffice for 30 corrupted of 100 clients. This server may try many rosters.
    session = InsecurePairwiseSession(SessionSetup(population=100, topology=Topology.SPARSE))
    victim = session.client_ids[4]
    policy = replace(session.policy, assumed_corrupted=30, privacy_bits=40)
    session.clients[victim] = session.enrol(victim, policy=policy)
    careless(session, replace(session.server.configuration, degree=32, threshold=31, quorum=66))
    message = roster_for(session).message_to(4).encode()
    error = refused(session, victim, message, PeerMisbehaved, Reason.BELOW_FLOOR, {ServerId()})
    assert "must be in 32..32" in str(error)


@pytest.mark.parametrize(
    "weakness", [{"quorum": 4}, {"committee_size": 3, "quorum": 2}], ids=["quorum too small", "committee too small"]
)
def test_a_committee_that_can_sign_two_sets_ends_the_session_for_the_client(
    weakness: dict[str, Any], refused: Refused
) -> None:
    session = InsecurePairwiseSession()
    careless(session, replace(session.server.configuration, **weakness))
    message = roster_for(session).message_to(0).encode()
    refused(session, session.client_ids[0], message, PeerMisbehaved, Reason.BELOW_FLOOR, {ServerId()})


def test_leaving_honest_advertisers_out_does_not_raise_the_corrupted_fraction_that_a_client_accepts(
    refused: Refused,
) -> None:
    session = InsecurePairwiseSession(CROWD)
    # The server keeps all 50 corrupted clients and 350 of the 950 honest ones.
    session.drop(*session.client_ids[400:])
    careless(session, session.server.configuration)
    session.pending = close_round(session.server)
    victim = session.client_ids[0]
    refused(session, victim, session.take(victim), PeerMisbehaved, Reason.BELOW_FLOOR, {ServerId()})


def test_the_same_parameters_are_accepted_while_the_planned_population_advertises() -> None:
    session = InsecurePairwiseSession(CROWD)
    session.step()
    victim = session.client_ids[0]
    assert session.clients[victim].answer(session.take(victim))


@pytest.mark.parametrize("modes", [frozenset(SecurityMode), frozenset({SecurityMode.SEMI_HONEST})])
def test_a_server_does_not_choose_the_mode_in_which_a_clients_key_protects_nothing(
    modes: frozenset[SecurityMode],
) -> None:
    session = InsecurePairwiseSession(SessionSetup())
    asked = session.client_ids[0]
    offered = replace(
        SessionConfiguration.decode(session.server.invitation),
        mode=SecurityMode.SEMI_HONEST,
        quorum=0,
        authority=bytes(32),
        standing=NO_STANDING,
    ).encode()
    client = session.enrol(asked, policy=replace(session.policy, modes=modes))
    if modes == frozenset(SecurityMode):
        with pytest.raises(InvalidParameters, match="mode semi_honest is not among active") as caught:
            client.answer(offered)
        assert caught.value.reason is Reason.BELOW_FLOOR
    else:
        # A client that accepts only that mode has decided to trust the server.
        assert client.answer(offered)
