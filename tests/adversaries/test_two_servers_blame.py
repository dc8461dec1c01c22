"""Bytes that are altered on the way or come under another's name: who is named, and who may still send its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import UNDECIDED, Fault, MalformedMessage, Party, PeerError, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.offers import Invitation, RoundStamp, UploadHalves
from secagg.protocols.two_servers.server import Server
from secagg.protocols.two_servers.server_messages import decode_batch, encode_batch
from secagg.protocols.two_servers.session import TwoServersOptions
from secagg.protocols.two_servers.simulation import TwoServersSimulation, cheater
from secagg.session.frames import decode_refusal
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.wire import HEADER_BYTES, MessageKind, message_kind
from tests.harness.indexing_rounds import NOW, flipped

LAYOUT = Layout((RingSegment(20, 4), IndexSegment(64, 2)))
CLIENTS = ALICE, MALLORY, CAROL, DAVE = tuple(map(ClientId, (1, 2, 3, 4)))
BOTH = frozenset({ServerId(0), ServerId(1)})
MODEL = bytes(32)
Ask = Callable[[bytes], bytes]


def payload_of(client: ClientId) -> Payload:
    ring, index = LAYOUT.segments
    values = np.arange(ring.length) + client.value, np.full(index.length, 7 * client.value)
    return Payload(LAYOUT, tuple(v.astype(s.ring.word) for v, s in zip(values, LAYOUT.segments, strict=True)))


@dataclass
class World:
    """One round among honest parties, on a network that the test is."""

    alter: Callable[[bytes, bytes], bytes] = lambda _, answer: answer
    """Given what server 0 asked and what server 1 answered, what arrives."""
    uploads: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes])

    def __post_init__(self) -> None:
        settings = TwoServersOptions(depth=1, maximum_rejections=4, lifetime=timedelta(hours=1))
        self.simulation = TwoServersSimulation(settings, coins=SystemCoins(), clock=lambda: NOW)
        plain: Ask = vars(self.simulation)["_asked"]

        def asked(request: bytes) -> bytes:
            return self.alter(request, plain(request))

        vars(self.simulation)["_asked"] = asked
        self.subject = Subject(task=b"a task", round_number=1, layout=LAYOUT, capacity=1 << 10, model_digest=MODEL)
        self.session: Server = self.simulation.open(self.subject, frozenset(CLIENTS))

    def joined(self, client: ClientId, *, cheats: bool = False) -> Any:
        member = cheater(self.simulation, client) if cheats else self.simulation.member(client)
        return member.join(self.subject, LazyUpdate(lambda: Update(payload_of(client), MODEL)))

    def upload_of(self, client: ClientId, *, cheats: bool = False) -> bytes:
        if client not in self.uploads:
            message = self.session.message_to(client)
            assert message is not None
            self.uploads[client] = self.joined(client, cheats=cheats).answer(message)
        return self.uploads[client]

    def is_exact(self, *missing: ClientId) -> Released:
        for client in CLIENTS:
            self.session.receive(client, self.upload_of(client))
        self.session.close_stage()
        released = self.session.release()
        ideal = ideal_aggregate(LAYOUT, [payload_of(client) for client in CLIENTS if client not in missing])
        assert released.aggregate.encode() == ideal.encode()
        return released

    def refused(self, sender: ClientId, message: bytes) -> PeerError:
        """Hand over what is refused, after which everybody is awaited who was before."""
        before = self.session.awaited
        with pytest.raises(PeerError) as caught:
            self.session.receive(sender, message)
        assert self.session.awaited == before
        return caught.value


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.simulation.close()


@pytest.mark.parametrize("bit", [0, *(pytest.param(bit, marks=pytest.mark.long) for bit in range(1, 8))])
def test_a_flipped_bit_names_no_client_alone_and_shuts_nobody_out(world: World, bit: int) -> None:
    upload = world.upload_of(ALICE)
    named = set[frozenset[Party]]()
    for position in range(len(upload)):
        named.add(world.refused(ALICE, flipped(upload, position, (position + bit) % 8)).culprits)
    assert named == {frozenset({ALICE, ServerId(0)}), BOTH | {ALICE}}
    world.is_exact()


def test_an_upload_under_another_name_names_who_hands_it_over_and_the_way(world: World) -> None:
    """Also if it is Alice's own, signed and genuine; she is awaited, and so is Mallory."""
    for message in (world.upload_of(ALICE), flipped(world.upload_of(ALICE), 200, 0)):
        error = world.refused(MALLORY, message)
        assert error.culprits == {MALLORY, ServerId(0)}
    assert ALICE in (world.session.awaited or ())
    world.is_exact()


def test_mallorys_upload_that_says_it_is_alices_names_mallory(world: World) -> None:
    """The header is Mallory's to write, until a signature says whose it is."""
    forged = world.upload_of(MALLORY).replace(MALLORY.encode(), ALICE.encode())
    assert forged != world.upload_of(MALLORY)
    assert world.refused(MALLORY, forged).culprits == {MALLORY, ServerId(0)}
    assert world.refused(ALICE, forged).culprits == {ALICE, ServerId(0)}
    world.is_exact()


def test_a_server_1_that_refuses_an_honest_half_names_itself_as_well(world: World) -> None:

    def refusing(request: bytes, answer: bytes) -> bytes:
        if message_kind(request) is MessageKind.INDEXING_UPLOAD:
            raise MalformedMessage("no half", reason=Reason.NOT_CANONICAL, culprits={ALICE})
        return answer

    genuine, world.alter = world.alter, refusing
    assert world.refused(ALICE, world.upload_of(ALICE)).culprits == BOTH | {ALICE}
    world.alter = genuine
    world.is_exact()


def test_a_client_that_votes_twice_is_named_with_both_servers(world: World) -> None:
    """Either server could have opened something else than it was sent."""
    world.upload_of(MALLORY, cheats=True)
    released = world.is_exact(MALLORY)
    error = released.left_out[MALLORY]
    assert error.culprits == BOTH | {MALLORY}
    assert {fault.culprits for fault in world.session.faults} == {BOTH | {MALLORY}}


def test_an_upload_that_server_1_never_proposes_is_left_out_in_the_name_of_both(world: World) -> None:
    """Server 0 cannot decide about it alone, and its operator sees whose upload it was."""
    stamp = RoundStamp(context=world.session.configuration.context, round_number=1, server=ServerId(1))

    def omitting(request: bytes, answer: bytes) -> bytes:
        if message_kind(request) is not MessageKind.PROPOSE_UPLOADS:
            return answer
        items = decode_batch(answer, MessageKind.INDEXING_PROPOSAL, stamp)
        return encode_batch(MessageKind.INDEXING_PROPOSAL, stamp, items[1:])

    world.alter = omitting
    released = world.is_exact(ALICE)
    assert released.left_out[ALICE].culprits == BOTH | {ALICE}
    assert [fault.culprits for fault in world.session.faults] == [BOTH | {ALICE}]


@pytest.mark.parametrize(("cheats", "limit"), [(1, None), (2, None), (1, 0)])
def test_one_bad_proof_of_twenty_is_named_and_ends_no_round(cheats: int, limit: int | None) -> None:
    """By default a tenth of the cohort may fail the check; where too many do, the faults name them all the same."""
    clients = tuple(map(ClientId, range(20)))
    settings = TwoServersOptions(depth=1, maximum_rejections=limit, lifetime=timedelta(hours=1))
    with closing(TwoServersSimulation(settings, coins=SystemCoins(), clock=lambda: NOW)) as simulation:
        subject = Subject(task=b"a task", round_number=1, layout=LAYOUT, capacity=1 << 10, model_digest=MODEL)
        session = simulation.open(subject, frozenset(clients))
        for client in clients:
            member = cheater(simulation, client) if client.value < cheats else simulation.member(client)
            late = LazyUpdate(lambda client=client: Update(payload_of(client), MODEL))  # type: ignore[misc]
            message = session.message_to(client)
            assert message is not None
            session.receive(client, member.join(subject, late).answer(message))
        session.close_stage()
        named = {BOTH | {client} for client in clients[:cheats]}
        assert {fault.culprits for fault in session.faults} == named
        if limit is None:
            assert session.release().counted == frozenset(clients[cheats:])
        else:
            with pytest.raises(PeerMisbehaved, match="1 uploads were rejected; maximum_rejections is 0") as caught:
                session.release()
            assert caught.value.culprits == BOTH | {clients[0]}
        assert {fault.culprits for fault in session.faults} == named


SAID = (
    MessageKind.PROPOSE_UPLOADS,
    MessageKind.INDEXING_ANSWER,
    MessageKind.ACCEPTED_LIST,
    MessageKind.OUTPUT_COMMITMENT,
    MessageKind.OUTPUT_SHARE,
)


@pytest.mark.parametrize("asked", SAID, ids=lambda kind: kind.name)
def test_a_flipped_bit_between_the_servers_names_nobody_without_both(asked: MessageKind) -> None:
    """Whether server 1's answer was altered on the way, or by server 1."""
    lengths, names_a_client = list[int](), list[bool]()
    for step in range(24):

        def alter(request: bytes, answer: bytes, step: int = step) -> bytes:
            if message_kind(request) is not asked:
                return answer
            lengths.append(len(answer))
            return flipped(answer, step * len(answer) // 24, step % 8)

        world = World(alter)
        errors = list[SecAggError | Fault]()
        try:
            for client in CLIENTS:
                world.session.receive(client, world.upload_of(client))
            world.session.close_stage()
            released = world.session.release()
        except SecAggError as error:
            errors.append(error)
        else:
            errors += released.left_out.values()
            assert errors, "what was altered is noticed"
        for found in [*errors, *world.session.faults]:
            if isinstance(found, PeerError | Fault):
                names_a_client.append(bool(found.culprits - BOTH))
                assert found.culprits is not UNDECIDED
                assert not found.culprits or found.culprits >= BOTH
        world.simulation.close()
    assert len(lengths) == 24


def test_a_flipped_bit_of_an_invitation_names_no_client_and_costs_no_update(world: World) -> None:
    message = world.session.message_to(ALICE)
    assert message is not None
    joined = world.joined(ALICE)
    shown = Invitation.decode(message).shown.encode()
    # Whether server 1 is simulated is server 0's own statement, which nothing signs.
    statement = message.index(shown) + HEADER_BYTES
    for position in set(range(len(message))) - {statement}:
        with pytest.raises(SecAggError) as caught:
            joined.answer(flipped(message, position, position % 8))
        if isinstance(caught.value, PeerError):
            assert caught.value.culprits <= BOTH
    world.uploads[ALICE] = joined.answer(message)
    world.is_exact()


def test_two_halves_of_two_uploads_name_the_client_and_both_servers(world: World) -> None:
    first, second = UploadHalves.decode(world.upload_of(ALICE)).both, UploadHalves.decode(world.upload_of(MALLORY)).both
    crossed = world.upload_of(ALICE).replace(first[1], second[1])
    assert world.refused(ALICE, crossed).culprits == BOTH | {ALICE}


NAMED: list[set[Party]] = [{CAROL}, {ServerId(0)}, {CAROL, MALLORY}, set()]


@pytest.mark.parametrize("named", NAMED, ids=str)
@pytest.mark.parametrize("asked", SAID, ids=lambda kind: kind.name)
def test_whom_a_refusal_of_server_1_names_is_not_believed(world: World, asked: MessageKind, named: set[Party]) -> None:
    """Nothing signs a refusal, so it names both servers or nobody."""

    def refusing(request: bytes, answer: bytes) -> bytes:
        if message_kind(request) is asked:
            raise PeerMisbehaved("it was Carol", reason=Reason.ONE_HOT_REFUTED, culprits=named)
        return answer

    world.alter = refusing
    with pytest.raises(PeerMisbehaved, match="it was Carol") as caught:
        world.is_exact()
    assert caught.value.culprits == (BOTH if named else set())
    assert not world.session.faults


def test_a_request_that_does_not_read_is_refused_in_the_name_of_both_servers(world: World) -> None:
    for request in (b"", b"no message"):
        refusal = decode_refusal(vars(world.simulation)["_standing"].answer(request))
        assert isinstance(refusal, PeerError)
        assert refusal.culprits == BOTH


def test_a_refusal_to_begin_names_both_servers() -> None:
    def refusing(*_: bytes) -> bytes:
        raise PeerMisbehaved("it was Carol", reason=Reason.WRONG_SESSION, culprits={CAROL})

    with pytest.raises(PeerMisbehaved, match="it was Carol") as caught:
        World(refusing)
    assert caught.value.culprits == BOTH
