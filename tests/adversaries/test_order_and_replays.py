"""Late messages, or messages to a rolled-back server; reused inputs; sums of too few clients or at the range's ends.

Repeated, reordered, late, foreign messages and those of other rounds or attempts are laws of every session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from secagg.conformance.rehearsal import Rehearsal
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.ring import Ring
from secagg.errors import Misuse, PeerError, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology, Transcript, revealed_sets
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.session.roles import LazyUpdate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import HEADER_BYTES, MessageKind
from tests.harness.pairwise_sessions import (
    InsecurePairwiseSession,
    SessionSetup,
    close_round,
    is_spent,
    restored,
    stored,
    unmask,
)
from tests.harness.session_worlds import SETTINGS, candidate_of

GoesOn = Callable[..., None]
NothingIsReleased = Callable[..., SecAggError]


# --- Too late ---------------------------------------------------------------------------------------------------------


def with_a_late_upload(mode: SecurityMode) -> tuple[InsecurePairwiseSession, ClientId]:
    """Close the upload round without one client, whose upload then arrives late."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    late = session.client_ids[5]
    message = session.take(late)
    session.step()
    assert session.clients[late].answer(message)
    return session, late


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_server_that_keeps_a_late_upload_learns_nothing_from_it(mode: SecurityMode) -> None:
    session, late = with_a_late_upload(mode)
    session.finish()
    everybody = frozenset(session.client_ids)
    contributors = everybody - {late}
    # It knows the reconstructed secrets: the seeds of the contributors and the root of the late client.
    transcript = Transcript(
        masked_with={client: everybody - {client} for client in everybody},
        self_mask_seeds=contributors,
        mask_roots=frozenset({late}),
    )
    assert revealed_sets(transcript) == {contributors}
    # With the seed of the late client's self mask it would learn its input.
    greedy = replace(transcript, self_mask_seeds=everybody)
    assert frozenset({late}) in revealed_sets(greedy)


# --- A server that is restored ----------------------------------------------------------------------------------------


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
    # Two neighbouring clients drop out on both sides of three: the sum splits into one of three and one of five.
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
    "state",
    [
        ServerState.AWAITING_KEY_ADVERTISEMENTS,
        ServerState.AWAITING_ENCRYPTED_SHARES,
        ServerState.AWAITING_MASKED_INPUTS,
    ],
    ids=lambda state: state.name,
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
    assert sum(map(is_spent, own)) == (6 if state is ServerState.AWAITING_MASKED_INPUTS else 0)


# --- A second upload --------------------------------------------------------------------------------------------------


NAMES = [
    name for name in SETTINGS if name.startswith(("pairwise", "enclave", "two servers", "plain", "one message, a"))
]
"""Other servers report an upload's fault before they check whether it was sent before."""
MOST_FLIPS = 400
"""Every byte of a short message is altered."""


def altered(message: bytes) -> Iterator[bytes]:
    """Alter a message after its header: each byte, or one byte in several."""
    for at in range(HEADER_BYTES, len(message), 1 + len(message) // MOST_FLIPS):
        yield message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
    yield from (message[:-1], message + b"\0", message[:HEADER_BYTES])


@pytest.mark.parametrize("name", NAMES)
def test_a_second_upload_is_refused_whichever_byte_of_it_is_another(name: str) -> None:
    candidate = candidate_of(name)
    rehearsal = Rehearsal.begin(candidate)
    server = rehearsal.server
    while server.stage is not None and not server.stage.takes_update:
        rehearsal.step()
    answers = rehearsal.all_answers()
    rehearsal.deliver(answers)
    first, other = candidate.clients[:2]
    before = server.participation, server.awaited
    for second in (*altered(answers[first]), answers[other]):
        try:
            server.receive(first, second)
        except PeerError as error:
            assert first in error.culprits <= {first, ServerId()}  # noqa: PT017
    server.receive(first, answers[first])
    assert (server.participation, server.awaited) == before
    rehearsal.require_exact(rehearsal.finish(), candidate.clients)
    rehearsal.world.close()


# --- Retries ----------------------------------------------------------------------------------------------------------


def with_inputs(session: InsecurePairwiseSession, inputs: dict[ClientId, LazyUpdate]) -> InsecurePairwiseSession:
    """Enrol the clients with inputs that other attempts may share."""
    for client, own in inputs.items():
        session.clients[client] = session.enrol(client, update=own)
    return session


@pytest.mark.parametrize("mode", SecurityMode)
def test_an_input_whose_attempt_failed_after_the_upload_does_not_enter_a_retry(
    mode: SecurityMode, nothing_is_released: NothingIsReleased
) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    inputs = {client: session.update_of(client) for client in session.client_ids}
    with_inputs(session, inputs).reach(ServerState.AWAITING_UNMASKING_SHARES)
    # The server has all uploads, could have all answers, and claims that the attempt failed.
    session.drop(*session.client_ids[:5])
    nothing_is_released(session, ThresholdNotMet, Reason.THRESHOLD_NOT_MET)
    retry = with_inputs(InsecurePairwiseSession(session.setup.next_attempt()), inputs)
    retry.reach(ServerState.AWAITING_MASKED_INPUTS)
    retry.deliver(retry.pending)
    for client in inputs:
        (error,) = retry.errors[client]
        assert error.reason is Reason.ALREADY_SPENT
        assert retry.clients[client].state is ClientState.ABORTED


def test_an_update_that_is_trained_late_goes_into_one_attempt_of_several_that_run_at_once() -> None:
    """Each was opened while unspent; the server would get two sums with it."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    beside = InsecurePairwiseSession(session.setup.next_attempt())
    victim = session.client_ids[0]
    update = session.update_of(victim)
    for each in (session, beside):
        each.clients[victim] = each.enrol(victim, update=update)
        each.reach(ServerState.AWAITING_MASKED_INPUTS)
    messages = [
        next(outgoing.message for outgoing in each.pending if outgoing.receiver == victim) for each in (session, beside)
    ]
    assert session.clients[victim].answer(messages[0])
    assert is_spent(update)
    with pytest.raises(Misuse) as caught:
        beside.clients[victim].answer(messages[1])
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_a_key_that_cannot_sign_any_more_costs_no_input() -> None:
    """The upload would be refused for lack of a signature, and the input spent for nothing."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    victim = session.client_ids[0]
    own = session.update_of(victim)
    session.clients[victim] = session.enrol(victim, update=own)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    delivered = next(outgoing.message for outgoing in session.pending if outgoing.receiver == victim)
    session.signing_keys[victim].wipe()
    with pytest.raises(Misuse):
        session.clients[victim].answer(delivered)
    assert session.clients[victim].state is ClientState.ABORTED
    assert not is_spent(own)


def test_an_input_whose_attempt_failed_before_the_upload_may_enter_a_retry(goes_on: GoesOn) -> None:
    session = InsecurePairwiseSession(SessionSetup(minimum_cohort=7))
    inputs = {client: session.update_of(client) for client in session.client_ids}
    with_inputs(session, inputs).reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    session.drop(*session.client_ids[:2])
    with pytest.raises(ThresholdNotMet):
        session.step()
    goes_on(with_inputs(InsecurePairwiseSession(session.setup.next_attempt()), inputs))


def test_an_input_whose_numbers_were_changed_after_it_was_encoded_counts_as_zeros() -> None:
    layout = Layout((RingSegment(20, 4),))
    payloads = {index: Payload(layout, (Ring(20).zeros(4),)) for index in range(8)}
    session = InsecurePairwiseSession(
        SessionSetup(layout=layout), payload_of=lambda client: payloads[(client.value - 1000) // 7]
    )
    payloads[2].values[0][1] = 1 << 20
    assert session.finish().values[0].tolist() == [0] * 4


def test_a_signed_upload_of_another_session_is_refused_before_it_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone can send a long one in an invited client's name."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    client, roster = session.client_ids[0], session.server.roster
    (message,) = (each.message for each in session.pending if each.receiver == client)
    sent = MaskedInput.decode(session.clients[client].answer(message), roster)
    monkeypatch.setattr(hashlib, "sha256", None)
    with pytest.raises(PeerMisbehaved) as caught:
        session.server.receive(client, replace(sent, context=bytes(8)).encode())
    assert caught.value.reason is Reason.WRONG_SESSION


def masked_words(session: InsecurePairwiseSession, client: ClientId) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return a client's upload minus its input: its masks."""
    configuration = session.server.configuration
    message = MaskedInput.decode(session.sent_by(client, MessageKind.MASKED_INPUT), session.server.roster)
    (segment,) = configuration.layout.require_rings()
    framed = segment.length + configuration.check_words_of(segment)
    uploaded = segment.ring.unpack(message.packed[0][: segment.ring.packed_bytes(framed)], framed)[: segment.length]
    return segment.ring.subtract(uploaded, session.payloads[client].values[0])


@pytest.mark.parametrize("suite", Suite)
def test_two_attempts_with_the_same_input_and_the_same_coins_have_no_mask_in_common(suite: Suite) -> None:
    layout = Layout((RingSegment(64, 64),))
    first = InsecurePairwiseSession(SessionSetup(layout=layout, suite=suite))
    second = InsecurePairwiseSession(first.setup.next_attempt())
    for session in (first, second):
        session.finish()
    for client in first.client_ids:
        one, other = masked_words(first, client), masked_words(second, client)
        assert not np.isin(one, other).any(), "64 words of 64 bits: a single one in common is no accident"
    before, after = (
        KeyAdvertisement.decode(
            session.sent_by(session.client_ids[0], MessageKind.KEY_ADVERTISEMENT), session.server.configuration
        )
        for session in (first, second)
    )
    assert {before.channel_key, before.mask_key}.isdisjoint({after.channel_key, after.mask_key})
    assert before.self_mask_commitment != after.self_mask_commitment


class CoinsChangedOnce:
    """Coins with one draw that differs from the original."""

    def __init__(self, changed: int) -> None:
        self._coins, self._other = InsecureSeededCoins(b"coins"), InsecureSeededCoins(b"other coins")
        self._changed, self._draws = changed, 0

    def draw(self, count: int) -> bytearray:
        self._draws += 1
        original = self._coins.draw(count)
        return self._other.draw(count) if self._draws == self._changed else original


@pytest.mark.parametrize("suite", Suite)
def test_channel_key_mask_key_and_self_mask_seed_come_from_three_independent_draws(suite: Suite) -> None:
    session = InsecurePairwiseSession(SessionSetup(suite=suite))

    def published(changed: int) -> tuple[bytes, bytes, bytes]:
        client = session.enrol(session.client_ids[0], coins=CoinsChangedOnce(changed))
        answer = client.answer(session.server.invitation)
        made = KeyAdvertisement.decode(answer, session.server.configuration)
        return made.channel_key, made.mask_key, made.self_mask_commitment

    original = published(0)
    differences = {tuple(a != b for a, b in zip(original, published(draw), strict=True)) for draw in (1, 2, 3)}
    assert differences == {(True, False, False), (False, True, False), (False, False, True)}


# --- Edges ------------------------------------------------------------------------------------------------------------


def extreme_session(value: int, modulus_bits: int, topology: Topology) -> InsecurePairwiseSession:
    population = 12 if topology is Topology.SPARSE else 8
    layout = Layout((RingSegment(modulus_bits, 5),))
    setup = SessionSetup(population=population, topology=topology, layout=layout)
    payload = Payload(layout, (Ring(modulus_bits).from_integers([value] * 5),))
    return InsecurePairwiseSession(setup, payload_of=lambda _: payload)


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("sign", [1, -1])
def test_everybody_at_the_extreme_of_its_range_gives_the_exact_sum(topology: Topology, sign: int) -> None:
    population = 12 if topology is Topology.SPARSE else 8
    bits = 5
    bound = (1 << bits) - 1
    modulus_bits = next(p for p in range(bits + 1, 64) if bound * population < 1 << (p - 1))
    session = extreme_session(sign * bound, modulus_bits, topology)
    aggregate = session.finish()
    assert Ring(modulus_bits).lift(aggregate.values[0]).tolist() == [sign * bound * population] * 5
    assert aggregate.contributors == population


def test_the_most_negative_sum_of_a_ring_is_still_exact() -> None:
    # Eight times -16 is -128, the minimum of a ring of 8 bits; the ring does not hold +128.
    session = extreme_session(-16, 8, Topology.FULL)
    aggregate = session.finish()
    assert Ring(8).lift(aggregate.values[0]).tolist() == [-128] * 5
