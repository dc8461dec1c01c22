"""One certified client that names another model first, in a buffer that also takes updates of older models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.client import Invitation, stamp_of
from secagg.protocols.enclave.plan import EnclaveSettings
from secagg.protocols.enclave.simulation import EnclaveSimulation
from secagg.session.roles import LateUpdate, Subject, Update

LAYOUT = Layout((RingSegment(20, 6),))
NEWEST = 7
MALLORY = ClientId(66)


def digest_of(version: int) -> bytes:
    return bytes([version]) * 32


def subject_of(version: int, digest: bytes | None = None) -> Subject:
    return Subject(
        task=b"a task",
        round_number=version,
        layout=LAYOUT,
        capacity=1 << 10,
        model_digest=digest_of(version) if digest is None else digest,
    )


@pytest.fixture
def world() -> Iterator[EnclaveSimulation]:
    settings = EnclaveSettings(suite=Suite.CLASSIC, staleness_weights=(1, 1, 1))
    made = EnclaveSimulation(settings, coins=SystemCoins(), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    with closing(made):
        yield made


def upload(world: EnclaveSimulation, client: ClientId, subject: Subject, invitation: bytes) -> bytes:
    values = LAYOUT.segments[0].ring.from_integers(np.full(6, client.value))
    late = LateUpdate(lambda: Update(Payload(LAYOUT, (values,)), subject.model_digest or b""))
    return world.member(client).join(subject, late).answer(invitation)


@pytest.mark.parametrize(
    ("version", "digest"),
    [(NEWEST - 1, b"m" * 32), (NEWEST - 2, b"m" * 32), (NEWEST - 2, digest_of(NEWEST - 1)), (NEWEST, b"m" * 32)],
)
def test_a_client_that_comes_first_shuts_nobody_out(world: EnclaveSimulation, version: int, digest: bytes) -> None:
    session = world.open(subject_of(NEWEST), None)
    claimed = subject_of(version, digest)
    stamp = stamp_of(claimed, digest)
    invited = Invitation.decode(session.invitation)
    crafted = replace(invited, version=version, model_digest=stamp.digest, is_short=False).encode()
    with pytest.raises(PeerMisbehaved) as caught:
        session.receive(MALLORY, upload(world, MALLORY, claimed, crafted))
    assert caught.value.reason is Reason.MODEL_MISMATCH
    assert caught.value.culprits == {MALLORY, ServerId()}
    clients = [ClientId(number) for number in range(1, 7)]
    for number, client in enumerate(clients):
        own = subject_of(NEWEST - number % 3)
        session.receive(client, upload(world, client, own, session.invitation_for(own)))
    assert [fault.culprits for fault in session.faults] == [{MALLORY, ServerId()}], "no honest client is named"
    session.close_stage()
    released = session.release()
    assert released.counted == set(clients)
    assert released.aggregate.values[0].tolist() == [sum(client.value for client in clients)] * 6
