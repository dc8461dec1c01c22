"""A custom protocol on a platform: its own server with resources, and clients with certified keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.platforms.client_node import DIRECTORY_VARIABLE, PARTITION, ClientNode
from secagg.platforms.client_round import Node, Trained, Training
from secagg.platforms.plugs import NodeSide, Plug, ServerSide, plug_of
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.session import registry
from secagg.session.identities import ROSTER_FILE, make_identities
from secagg.session.roles import LazyUpdate, ServerSession, Subject
from secagg.session.sealed_state import StateDirectory
from tests.harness.plain_sum import ENTRY, PlainClientSession, PlainMember, open_session

CLIENTS = 5
SENT = {"w": np.zeros(4, np.float32)}
CLOSED: list[str] = []


@dataclass(slots=True)
class KeyedMember(PlainMember):
    """A client that has presented its key."""

    public_key: bytes

    def join(
        self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
    ) -> PlainClientSession:
        return PlainClientSession(self.client, subject, update, suspended)


def connect(side: ServerSide) -> ServerSession:
    assert {*side.certificates} == {ClientId(number) for number in range(CLIENTS)}
    side.resources.callback(CLOSED.append, "a connection")
    return open_session(side.subject, side.chosen, side.invited)


def member(side: NodeSide) -> KeyedMember:
    return KeyedMember(side.client, side.identity.signing_key.public_key)


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    make_identities(tmp_path / "keys", map(ClientId, range(CLIENTS)), SystemCoins())
    registry.register(replace(ENTRY, name="custom", is_certified=True, connect=connect, member=member))
    CLOSED.clear()
    yield tmp_path
    registry.unregister("custom")


def test_a_custom_protocol_brings_its_connections_and_its_members(custom: Path) -> None:
    roster = str(custom / "keys" / ROSTER_FILE)
    made = Rounds(SecAggSettings(protocol="custom", roster=roster, weighting="uniform"))
    task = made.begun(SENT, clients=CLIENTS, task="t", number=1, weighted_by="n")
    shown = set[bytes]()
    with ExitStack() as resources:
        session = task.opened(CLIENTS, frozenset(), SystemCoins(), resources)
        invitation = session.message_to(ClientId(0))
        assert invitation is not None
        for number in range(CLIENTS):
            identity = str(custom / "keys")
            node = Node(
                settings=ClientNode.of({"identity": identity, "data_name": f"data {number}", "protocols": "custom"}),
                config={PARTITION: number},
                client=ClientId(number),
                run="t",
                states=StateDirectory(custom / f"states-{number}", coins=SystemCoins()),
                custom={},
            ).begun(task.terms)
            trained = Trained([{"w": SENT["w"] + np.float32(number)}], {"n": 1}.get)
            training = Training(node.terms, node.update, node.charges, SENT, lambda trained=trained: trained)  # type: ignore[misc]
            own = node.member(invitation)
            assert isinstance(own, KeyedMember)
            shown.add(own.public_key)
            subject = node.terms.subject(node.update, training.model_digest)
            session.receive(ClientId(number), own.join(subject, training.late).answer(invitation))
        session.close_stage()
        model = made.model(task, task.means(session.release().aggregate))
        assert not CLOSED
    assert len(shown) == CLIENTS
    assert CLOSED == ["a connection"]
    assert np.abs(model["w"] - 2).max() < 2.0**-12


@pytest.mark.usefixtures("custom")
def test_its_clients_need_keys_and_a_roster() -> None:
    with pytest.raises(InvalidParameters, match="secagg-roster is required"):
        SecAggSettings(protocol="custom", weighting="uniform")


def test_an_entry_with_connections_has_members_too() -> None:
    with pytest.raises(Misuse, match="'plain' has only one of connect and member"):
        replace(ENTRY, connect=connect)


def test_a_protocol_that_resumes_from_memory_has_no_plug_where_processes_end(custom: Path) -> None:
    del custom
    registry.register(replace(ENTRY, name="in memory", is_suspended=False))
    try:
        with pytest.raises(InvalidParameters, match="cannot run on Flower"):
            plug_of("in memory")
        assert isinstance(plug_of("in memory", is_suspended=False), Plug)
    finally:
        registry.unregister("in memory")
