"""A client that is put aside after every message, and made again from its snapshot before the next."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract import Payload
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.flower.resumable_client import ResumableClient
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ClientState, ServerState, Topology
from secagg.wire import MessageKind, message_kind
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, same_sum

BOTH_MODES = pytest.mark.parametrize("mode", SecurityMode)


class PutAside:
    """Holds a client in bytes alone, between two messages."""

    def __init__(self, session: InsecurePairwiseSession, client: ClientId, weight: int = 1) -> None:
        member = session.member(client)
        self.client = client
        self.brings: dict[str, Any] = {
            "floors": member.floors,
            "authority": member.authority,
            "signing_key": member.signing_key,
            "certificate": member.certificate,
        }
        self.session = session
        self.weight = weight
        self.made = 0
        self.live: ResumableClient | None = ResumableClient(
            client, take_input=self.make, capacity=1 << 40, **self.brings
        )
        self.stored = b""

    def make(self) -> tuple[Payload, int]:
        self.made += 1
        return self.session.payloads[self.client], self.weight

    def receive(self, message: bytes) -> list[bytes]:
        client = self.live or ResumableClient.restore(
            Secret("snapshot", self.stored), take_input=self.make, **self.brings
        )
        answers = client.receive(message)
        self.live = None
        if client.state is not ClientState.COMPLETED:
            with client.snapshot() as snapshot:
                self.stored = bytes(snapshot.expose())
        return answers


def session_of(setup: SessionSetup) -> InsecurePairwiseSession:
    session = InsecurePairwiseSession(setup)
    for client in session.client_ids:
        session.clients[client] = PutAside(session, client)  # type: ignore[assignment]
    return session


@BOTH_MODES
@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("topology", Topology)
def test_a_session_of_clients_that_are_put_aside_gives_the_same_sum(
    mode: SecurityMode, suite: Suite, topology: Topology
) -> None:
    size = 8 if topology is Topology.FULL else 16
    session = session_of(SessionSetup(mode=mode, suite=suite, topology=topology, population=size, dropped=1))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(session.client_ids[2])
    aggregate = session.finish()
    assert same_sum(aggregate, session.sum_of(set(session.client_ids) - {session.client_ids[2]}))
    assert not session.errors


@BOTH_MODES
def test_an_input_is_made_once_when_it_is_uploaded_and_is_in_no_snapshot(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    held: Any = session.clients[session.client_ids[0]]
    encoded = session.payloads[session.client_ids[0]].encode()
    made = list[int]()
    while session.server.state is not ServerState.AWAITING_UNMASKING_SHARES:
        session.step()
        made.append(held.made)
        assert encoded[-64:] not in held.stored
    assert made[:3] == [0, 0, 1]
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert held.made == 1


def test_an_input_for_another_session_is_refused_and_ends_the_clients_part() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held: Any = session.clients[session.client_ids[0]]
    held.weight = 0
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    delivered = next(outgoing.message for outgoing in session.pending if outgoing.receiver == session.client_ids[0])
    client = ResumableClient.restore(Secret("snapshot", held.stored), take_input=held.make, **held.brings)
    with pytest.raises(InvalidParameters, match="a weight is an integer in 1"):
        client.receive(delivered)
    assert client.state is ClientState.ABORTED


@BOTH_MODES
def test_the_same_bytes_again_get_the_stored_answer_and_other_bytes_end_the_session(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    session.step()
    asked = session.client_ids[0]
    shown = next(outgoing.message for outgoing in session.pending if outgoing.receiver == asked)
    session.step()
    client = session.clients[asked]
    before = session.sent_by(asked, MessageKind.ENCRYPTED_SHARES)
    assert client.receive(shown) == [before]
    altered = shown[:-1] + bytes([shown[-1] ^ 1])
    with pytest.raises(PeerMisbehaved) as caught:
        client.receive(altered)
    assert caught.value.reason is Reason.ALREADY_ANSWERED


@BOTH_MODES
def test_an_upload_is_not_kept_to_be_given_again(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    asked = session.client_ids[0]
    delivered = next(outgoing.message for outgoing in session.pending if outgoing.receiver == asked)
    session.step()
    assert session.clients[asked].receive(delivered) == []


def test_of_its_own_secrets_a_client_that_has_uploaded_keeps_none() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = session.clients[session.client_ids[0]]
    session.step()
    early = ResumableClient.restore(Secret("snapshot", client.stored), **client.brings)  # type: ignore[attr-defined]
    coins = [bytes(secret.expose()) for secret in early.coins.record]
    assert len(coins) == 3
    assert all(secret in client.stored for secret in coins)  # type: ignore[attr-defined]
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    late = client.stored  # type: ignore[attr-defined]
    assert not any(secret in late for secret in coins)


@BOTH_MODES
def test_coins_are_remembered_for_keys_alone_and_until_the_upload(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    session.clients[session.client_ids[0]] = client
    remembered = list[int]()
    for _ in range(3):
        session.step()
        remembered.append(len(client.coins.record))
    assert remembered == [3, 3, 0]


def test_a_client_that_leaves_remembers_nothing() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    session.clients[session.client_ids[0]] = client
    session.step()
    (first, *_) = client.coins.record
    client.abort()
    assert first.is_wiped
    assert not client.coins.record


def test_a_snapshot_is_overwritten_when_a_client_is_made_of_it_and_a_client_is_not_pickled() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.step()
    held = session.clients[session.client_ids[0]]
    snapshot = Secret("snapshot", held.stored)  # type: ignore[attr-defined]
    client = ResumableClient.restore(snapshot, **held.brings)  # type: ignore[attr-defined]
    assert snapshot.is_wiped
    with pytest.raises(Misuse) as caught:
        pickle.dumps(client)
    assert caught.value.reason is Reason.SECRET_EXPOSURE


@BOTH_MODES
def test_a_message_that_is_not_due_is_refused_by_a_client_that_was_put_aside(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    session.step()
    session.step()
    delivered = session.pending[0].message
    assert message_kind(delivered) is MessageKind.DELIVERED_SHARES
    fresh = session_of(SessionSetup(mode=mode))
    fresh.step()
    with pytest.raises(UnexpectedMessage):
        fresh.clients[fresh.client_ids[0]].receive(delivered)


def test_a_client_without_a_session_has_nothing_to_put_aside() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    fresh = PutAside(session, session.client_ids[0]).live
    assert fresh is not None
    with pytest.raises(Misuse, match="nothing that could be gone on with"):
        fresh.snapshot()


def test_floors_are_compared_again_when_a_client_is_made_of_its_snapshot() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.step()
    held = session.clients[session.client_ids[0]]
    strict = {**held.brings, "floors": replace(held.brings["floors"], minimum_cohort=8)}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="below 8"):
        ResumableClient.restore(Secret("snapshot", held.stored), **strict)  # type: ignore[attr-defined]
