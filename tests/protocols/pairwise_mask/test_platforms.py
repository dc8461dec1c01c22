"""What platforms do: several threads, buffers that are reused, sessions about something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from time import sleep

import pytest

from secagg.crypto.labels import Label
from secagg.errors import PeerMisbehaved, SecAggError
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.client import Client, ClientState
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import SurvivorSet
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.session.certificates import SigningKey
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, close_round


def test_two_survivor_sets_at_once_get_one_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecurePairwiseSession(SessionSetup(dropped=2, minimum_cohort=3))
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    member = session.client_ids[0]
    first = session.take(member)
    sets = SurvivorSet.decode(first, session.server.roster)
    fewer = session.server.roster.set_of(position for position in sets.contributors if position != 3)
    second = SurvivorSet(context=sets.context, sharers=sets.sharers, contributors=fewer).encode()
    together, sign = Barrier(2), SigningKey.sign

    def slowly(self: SigningKey, label: Label, *parts: bytes) -> bytes:
        sleep(0.2)
        return sign(self, label, *parts)

    def deliver(client: Client, message: bytes) -> object:
        together.wait()
        try:
            return client.answer(message)
        except SecAggError as error:
            return error

    monkeypatch.setattr(SigningKey, "sign", slowly)
    client = session.clients[member]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(deliver, (client, client), (first, second)))
    assert sum(isinstance(answer, bytes) for answer in answers) == 1
    assert sum(isinstance(answer, PeerMisbehaved) for answer in answers) == 1
    assert client.state is ClientState.ABORTED


def test_what_a_neighbour_sent_wrong_does_not_keep_the_input_alive() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    receiver = session.client_ids[0]

    def alter(delivery: Delivery) -> tuple[Delivery, ...]:
        if (delivery.receiver, delivery.kind) != (receiver, MessageKind.DELIVERED_SHARES):
            return (delivery,)
        # The last byte is of the tag of the last neighbour's shares.
        return (replace(delivery, message=delivery.message[:-1] + bytes([delivery.message[-1] ^ 1])),)

    session.adversary = alter
    session.finish()
    (complaint,) = session.clients[receiver].faults
    # A traceback would lead to the frames in which the input was masked.
    assert complaint.__traceback__ is None
    assert complaint.__context__ is None


def test_a_buffer_that_the_transport_reuses_is_not_kept() -> None:
    session = InsecurePairwiseSession()
    for client_id, client in session.clients.items():
        buffer = bytearray(client.answer(session.server.invitation))
        session.server.receive(client_id, memoryview(buffer))  # type: ignore[arg-type]
        buffer[:] = bytes(len(buffer))
    assert len(close_round(session.server)) == len(session.clients)
