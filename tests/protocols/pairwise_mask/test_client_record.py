"""A client that is suspended after every message, and restored from its snapshot before the next."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secagg.choices import Topology
from secagg.crypto.secret import Secret
from secagg.errors import (
    NOBODY,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import Client, ClientState, ServerState, client_record, round0_advertise_keys
from secagg.protocols.pairwise_mask.client import PairwiseMember
from secagg.protocols.pairwise_mask.client_record import ClientRecord, RecordedCoins, Recorder
from secagg.protocols.pairwise_mask.configuration import ClientSet
from secagg.session.roles import LazyUpdate, Update
from secagg.session.sealed_state import Latch, MemoryLatch
from secagg.session.store import Store
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, same_sum

BOTH_MODES = pytest.mark.parametrize("mode", SecurityMode)


class PutAside:
    """Holds a client only as bytes between two messages."""

    def __init__(self, session: InsecurePairwiseSession, client: ClientId, latch: Latch | None = None) -> None:
        self.client = client
        self.brings: dict[str, Any] = {
            "policy": session.policy,
            "subject": session.setup.subject,
            "latch": latch or MemoryLatch(),
        }
        self.session = session
        self.made = 0
        self.live: Client | None = self.fresh()
        self.stored = b""

    def make(self) -> Update:
        self.made += 1
        return Update(self.session.payloads[self.client], self.session.setup.model_digest)

    def fresh(self, client: ClientId | None = None, **changes: Any) -> Client:
        brought = {**self.brings, **changes}
        latch, coins = brought["latch"], self.session.setup.coins_of(f"client {self.client.value}, in parts")
        recording = None if latch is None else partial(Recorder, latch)
        member = self.session.member(client or self.client, policy=brought["policy"], coins=coins, recording=recording)
        return member.join(brought["subject"], LazyUpdate(self.make))

    def resumed(self, **changes: Any) -> Client:
        client = self.fresh(**changes)
        client.resume(Secret("record", self.stored))
        return client

    def answer(self, message: bytes) -> bytes:
        client = self.live or self.resumed()
        answer = client.answer(message)
        self.live = None
        if client.state is not ClientState.COMPLETED:
            self.stored = put_aside(client)
        return answer


def put_aside(client: Client) -> bytes:
    record = client.suspend()
    assert record is not None
    with record:
        return bytes(record.expose())


def recording_of(client: Client) -> Recorder:
    recording = vars(client)["_recording"]
    assert isinstance(recording, Recorder)
    return recording


def session_of(setup: SessionSetup) -> InsecurePairwiseSession:
    session = InsecurePairwiseSession(setup)
    for client in session.client_ids:
        session.clients[client] = PutAside(session, client)  # type: ignore[assignment]
    return session


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


@BOTH_MODES
def test_the_same_bytes_again_get_the_stored_answer_and_other_bytes_end_the_session(mode: SecurityMode) -> None:
    session = session_of(SessionSetup(mode=mode))
    session.step()
    asked = session.client_ids[0]
    shown = next(outgoing.message for outgoing in session.pending if outgoing.receiver == asked)
    session.step()
    client = session.clients[asked]
    before = session.sent_by(asked, MessageKind.ENCRYPTED_SHARES)
    assert client.answer(shown) == before
    altered = shown[:-1] + bytes([shown[-1] ^ 1])
    with pytest.raises(PeerMisbehaved) as caught:
        client.answer(altered)
    assert caught.value.reason is Reason.ALREADY_ANSWERED


def test_of_its_own_secrets_a_client_that_has_uploaded_keeps_none() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = session.clients[session.client_ids[0]]
    session.step()
    early = ClientRecord.from_secret(Secret("record", client.stored))  # type: ignore[attr-defined]
    coins = [bytes(secret.expose()) for secret in early.secrets]
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
        remembered.append(len(recording_of(client).coins.drawn))
    assert remembered == [3, 3, 0]


def test_a_client_that_leaves_remembers_nothing() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    session.clients[session.client_ids[0]] = client
    session.step()
    coins = recording_of(client).coins
    (first, *_) = coins.drawn
    client.abort()
    assert first.is_wiped
    assert not coins.drawn


def test_what_a_client_drew_is_overwritten_when_it_is_put_aside() -> None:
    """The record has it; an attacker who reads this memory later finds nothing."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    client.answer(session.server.invitation)
    drawn = list(recording_of(client).coins.drawn)
    assert put_aside(client)
    assert drawn
    assert all(secret.is_wiped for secret in drawn)
    assert client.state is ClientState.ABORTED, "two would go on"
    with pytest.raises(UnexpectedMessage, match="the session is aborted"):
        client.answer(session.server.invitation)


def test_a_snapshot_is_overwritten_when_a_client_is_made_of_it_and_a_client_is_not_pickled() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.step()
    held = session.clients[session.client_ids[0]]
    snapshot = Secret("snapshot", held.stored)  # type: ignore[attr-defined]
    client = held.fresh()  # type: ignore[attr-defined]
    client.resume(snapshot)  # pyright: ignore[reportUnknownMemberType]
    assert snapshot.is_wiped
    with pytest.raises(Misuse) as caught:
        pickle.dumps(client)
    assert caught.value.reason is Reason.SECRET_EXPOSURE


@pytest.mark.parametrize(
    ("floor", "sentence", "state"),
    [
        ("minimum_cohort", "below 8", ServerState.AWAITING_ENCRYPTED_SHARES),
        ("minimum_cohort", "below 8", ServerState.AWAITING_UNMASKING_SHARES),
        ("assumed_corrupted", "with 8 corrupted of 8", ServerState.AWAITING_MASKED_INPUTS),
        ("assumed_corrupted", "with 8 corrupted of 8", ServerState.AWAITING_UNMASKING_SHARES),
    ],
)
def test_policies_are_compared_again_when_a_client_is_made_of_its_snapshot(
    floor: str, sentence: str, state: ServerState
) -> None:
    """Before the upload, and when it only holds its neighbours' shares."""
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.reach(state)
    held = vars(session)["clients"][session.client_ids[0]]
    with pytest.raises(InvalidParameters, match=sentence):
        held.resumed(policy=replace(held.brings["policy"], **{floor: 8}))


def test_a_session_about_something_else_than_the_client_knows_by_now_is_not_gone_on_with() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.ACTIVE))
    session.step()
    held = session.clients[session.client_ids[0]]
    known = replace(held.brings["subject"], round_number=99)  # type: ignore[attr-defined]
    with pytest.raises(InvalidParameters, match="round_number differs from this client"):
        held.resumed(subject=known)  # type: ignore[attr-defined]


def test_what_was_read_from_a_record_is_overwritten_when_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    held = session.clients[session.client_ids[0]]
    read, decode = list[ClientRecord](), ClientRecord.from_secret

    def decoded(record: Secret) -> ClientRecord:
        read.append(decode(record))
        return read[-1]

    monkeypatch.setattr(ClientRecord, "from_secret", decoded)
    with pytest.raises(InvalidParameters):
        held.resumed(policy=replace(held.brings["policy"], minimum_cohort=8))  # type: ignore[attr-defined]
    (refused,) = read
    assert refused.shares
    assert all(share.is_wiped for share in refused.shares.values())
    with pytest.raises(Misuse, match="already resumed"):
        held.resumed()  # type: ignore[attr-defined]
    assert len(read) == 1, "a number is claimed before anything is decoded"


# --- Two restores of one record ---------------------------------------------------------------------------------------


def suspended(folder: Path) -> int:
    with Store.at(folder).transaction() as rows:
        return int(rows.execute("SELECT count(*) FROM suspended").fetchone()[0])


def latches(folder: Path) -> list[Latch]:
    return [MemoryLatch(), Store.at(folder / "latch")]


@BOTH_MODES
@pytest.mark.parametrize("which", [0, 1], ids=["in memory", "in a folder"])
def test_of_two_restores_of_one_record_the_second_is_refused_before_it_answers(
    mode: SecurityMode, which: int, tmp_path: Path
) -> None:
    """Two clients from one record could reveal both shares of a neighbour, for different sets of contributors."""
    session = InsecurePairwiseSession(SessionSetup(mode=mode))
    asked = session.client_ids[0]
    held = PutAside(session, asked, latch=latches(tmp_path)[which])
    session.clients[asked] = held  # type: ignore[assignment]
    while session.server.state is not ServerState.AWAITING_UNMASKING_SHARES:
        session.step()
        if session.server.state is ServerState.COMPLETED:
            break
        stored = held.stored
        first = held.resumed()
        with pytest.raises(Misuse) as caught:
            held.resumed()
        assert caught.value.reason is Reason.ALREADY_SPENT
        held.stored = put_aside(first)
        before = Secret("record", stored)
        with pytest.raises(Misuse, match="not the newest"):
            held.fresh().resume(before)
        assert before.is_wiped
    assert same_sum(session.finish(), session.sum_of(session.client_ids))


@pytest.mark.parametrize("which", [0, 1], ids=["in memory", "in a folder"])
def test_when_a_client_left_no_record_of_its_session_is_resumed(which: int, tmp_path: Path) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0], latch=latches(tmp_path)[which])
    held.answer(session.server.invitation)
    held.resumed().abort()
    with pytest.raises(Misuse, match="session is over"):
        held.resumed()


def test_of_a_session_that_is_over_the_store_knows_nothing(tmp_path: Path) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    asked = session.client_ids[0]
    session.clients[asked] = PutAside(session, asked, latch=Store.at(tmp_path / "latch"))  # type: ignore[assignment]
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    assert suspended(tmp_path / "latch") == 1
    session.finish()
    assert suspended(tmp_path / "latch") == 0


def test_of_a_session_that_is_not_gone_on_with_the_store_knows_nothing(tmp_path: Path) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0], latch=Store.at(tmp_path / "latch"))
    held.answer(session.server.invitation)
    with pytest.raises(InvalidParameters, match="below 8"):
        held.resumed(policy=replace(held.brings["policy"], minimum_cohort=8))
    assert suspended(tmp_path / "latch") == 0


def test_a_record_is_resumed_by_the_client_that_it_is_of_and_by_no_other() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0])
    held.answer(session.server.invitation)
    stranger, record = held.fresh(session.client_ids[1]), Secret("record", held.stored)
    with pytest.raises(Misuse, match="belongs to another client"):
        stranger.resume(record)
    assert stranger.state is ClientState.AWAITING_OFFER
    assert not record.is_wiped
    assert held.resumed().state is ClientState.AWAITING_ADVERTISED_KEYS, "nobody else ends its session"


def test_a_record_that_its_store_has_changed_ends_the_session_and_names_nobody() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.ACTIVE))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    held = vars(session)["clients"][session.client_ids[0]]
    stored, entries = held.stored, session.sent_to(held.client, MessageKind.ADVERTISED_KEYS)
    at = stored.index(entries) + len(entries) // 2
    held.stored = stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
    with pytest.raises(PeerError) as caught:
        held.resumed()
    assert caught.value.culprits is NOBODY
    held.stored = stored
    with pytest.raises(Misuse, match="session is over"):
        held.resumed()


def test_a_latch_that_fails_hides_no_peers_error(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryLatch):
        def end(self, name: bytes) -> None:
            raise OSError(f"no room for {name!r}")

    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0], latch=Failing())
    held.answer(session.server.invitation)
    client = held.resumed()
    coins = recording_of(client).coins.drawn
    with pytest.raises(MalformedMessage):
        client.answer(b"SAGG\x01\x00\x12")
    assert client.state is ClientState.ABORTED
    assert not coins
    assert "no room" in caplog.text


def test_an_offer_that_is_refused_leaves_no_coins_behind() -> None:
    """Otherwise those of the next offer would be replayed after them."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    coins = recording_of(client).coins
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(round0_advertise_keys, "_require_fresh", refused)
        with pytest.raises(Misuse, match="refused"):
            client.answer(session.server.invitation)
    assert not coins.drawn
    client.answer(session.server.invitation)
    assert len(coins.drawn) == 3


def refused(*_: object) -> None:
    raise Misuse("refused")


@pytest.mark.parametrize("latch", [None, MemoryLatch()], ids=["no latch", "a session of its own"])
def test_a_client_resumes_nothing_without_a_latch_or_amid_a_session(latch: MemoryLatch | None) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0])
    held.answer(session.server.invitation)
    client = held.fresh(latch=latch)
    if latch is not None:
        client.answer(session.server.invitation)
    with pytest.raises(Misuse, match="new client that has the same latch"):
        client.resume(Secret("record", held.stored))
    assert held.resumed().state is ClientState.AWAITING_ADVERTISED_KEYS


def test_a_client_without_a_latch_is_not_suspended() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.step()
    with pytest.raises(Misuse, match="needs a latch"):
        session.clients[session.client_ids[0]].suspend()


def test_a_record_that_is_cut_or_goes_on_is_refused_before_a_secret_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(SessionSetup(mode=SecurityMode.ACTIVE))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    stored: bytes = vars(session.clients[session.client_ids[0]])["stored"]
    spoiled = (b"", stored[:7], stored[:-1], stored + b"!", stored[:60], stored[:8] + b"?" + stored[9:])
    records = [Secret("record", each) for each in spoiled]
    monkeypatch.setattr(client_record, "Secret", None)
    for record in records:
        with pytest.raises(MalformedMessage):
            ClientRecord.from_secret(record)


def test_a_record_of_a_session_that_is_over_or_with_more_behind_its_fields_is_refused() -> None:
    session = session_of(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    stored: bytes = vars(session.clients[session.client_ids[0]])["stored"]
    end = 8 + int.from_bytes(stored[:8], "big")
    longer = (end - 7).to_bytes(8, "big") + stored[8:end] + b"!" + stored[end:]
    with pytest.raises(MalformedMessage):
        ClientRecord.from_secret(Secret("record", longer))
    for state in (ClientState.AWAITING_OFFER, ClientState.COMPLETED, ClientState.ABORTED):
        record = ClientRecord.from_secret(Secret("record", stored))
        record.state = state
        with pytest.raises(MalformedMessage):
            ClientRecord.from_secret(record.to_secret())


def test_where_a_record_is_put_together_nothing_of_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    client = PutAside(session, session.client_ids[0]).live
    assert client is not None
    client.answer(session.server.invitation)
    drawn = [bytes(secret.expose()) for secret in recording_of(client).coins.drawn]
    joined = list[bytearray]()

    def noted(kind: str, data: bytearray) -> Secret:
        joined.append(data)
        return Secret(kind, data)

    monkeypatch.setattr(client_record, "Secret", noted)
    record = put_aside(client)
    assert all(secret in record for secret in drawn)
    (buffer,) = joined
    assert not any(buffer)


def test_a_client_that_would_draw_other_coins_than_it_drew_does_not_go_on() -> None:
    """Its keys would differ from the advertised ones."""
    coins = RecordedCoins(InsecureSeededCoins(b""))
    coins.replay([Secret("coins", bytes(32))])
    with pytest.raises(InternalError, match="coins of different lengths than before"):
        coins.draw(31)


# --- What a record is made of, and who continues from it --------------------------------------------------------------


def test_a_member_joins_from_a_record_and_has_the_keys_that_it_advertised_whatever_its_coins_are_now() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    own, latch = session.client_ids[0], MemoryLatch()

    def member(seed: bytes) -> PairwiseMember:
        return session.member(own, coins=InsecureSeededCoins(seed), recording=partial(Recorder, latch))

    first = member(b"before").join(session.setup.subject, session.update_of(own))
    session.clients[own] = first
    session.step()
    record = first.suspend()
    assert record is not None
    session.clients[own] = member(b"after").join(session.setup.subject, session.update_of(own), record)
    assert session.clients[own].state is ClientState.AWAITING_ADVERTISED_KEYS
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert not session.errors


def test_a_forked_client_resumes_nothing_and_leaves_its_parents_session_in_the_latch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[bytes]()

    class Watched(MemoryLatch):
        def end(self, name: bytes) -> None:
            ended.append(name)
            super().end(name)

    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0], latch=Watched())
    held.answer(session.server.invitation)
    fresh, record = held.fresh(), Secret("record", held.stored)
    with monkeypatch.context() as forked:
        forked.setattr("secagg.protocols.pairwise_mask.client.os.getpid", lambda: -1)
        with pytest.raises(Misuse, match="forked"):
            fresh.resume(record)
    assert not record.is_wiped
    client = held.resumed()
    with monkeypatch.context() as forked:
        forked.setattr("secagg.protocols.pairwise_mask.client.os.getpid", lambda: -1)
        with pytest.raises(Misuse, match="forked"):
            client.answer(session.server.invitation)
    assert not ended
    client.abort()
    assert not ended, "the copy has forgotten its latch"
    resumed = PutAside(session, session.client_ids[1], latch=Watched())
    resumed.answer(session.server.invitation)
    parents = resumed.resumed()
    with monkeypatch.context() as forked:
        forked.setattr("secagg.protocols.pairwise_mask.client.os.getpid", lambda: -1)
        parents.abort()
    assert not ended, "the number is the parent's"


def test_a_record_whose_roster_does_not_name_its_client_is_refused() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    stranger = session.member(session.client_ids[0])
    session.drop(session.client_ids[0])
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    with pytest.raises(MalformedMessage, match="does not contain its client"):
        vars(client_record)["_verified_keys"](stranger, session.server.roster, ())


@pytest.mark.parametrize(("encoded", "population"), [(b"", 8), (b"\0\0", 8), (b"\x80", 7), (b"\0", 9)])
def test_a_set_in_a_record_has_the_population_of_its_roster(encoded: bytes, population: int) -> None:
    with pytest.raises(MalformedMessage, match="is not one of"):
        ClientSet.decode(encoded, population)


def test_a_name_that_the_latch_knows_does_not_end_the_session_that_has_it() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.SEMI_HONEST))
    held = PutAside(session, session.client_ids[0])
    held.answer(session.server.invitation)
    twin = held.fresh()
    twin.answer(session.server.invitation)
    with pytest.raises(Misuse, match="already suspended"):
        twin.suspend()
    twin.abort()
    assert held.resumed().state is ClientState.AWAITING_ADVERTISED_KEYS


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
