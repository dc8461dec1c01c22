"""Clients that hold, each message in another process: what they publish, remember, and answer no more.

Requests of other rounds than the holder's stand in ``tests/adversaries/test_one_message_holder_memory.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import (
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.one_message import Holdings, OneMessageMember
from secagg.protocols.one_message.configuration import HolderKeys
from secagg.protocols.one_message.messages import NoHolder
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.session.roles import Released, ServerSession, Turnout
from tests.harness.one_message_sums import InsecureSum, SumSetup

RULES = tuple(ThresholdRule)
POPULATION, HOLDERS = 6, 5


class Committee:
    """Clients of which the first hold; each of their messages finds a process that knows nothing of the last."""

    def __init__(self, folder: Path, rule: ThresholdRule | None = None) -> None:
        self.setup = SumSetup(rule=rule, population=POPULATION, holders=HOLDERS, round_number=1)
        self.world = InsecureSum(self.setup)
        self.world.number_holders_as_clients()
        self.folder, self.keys = folder, tuple[bytes, ...]()
        self.suspended = dict[ClientId, Secret]()
        self.said = list[tuple[ClientId, bytes]]()

    def begin_round(self, number: int) -> None:
        self.setup = self.world.setup = replace(self.setup, round_number=number)
        self.suspended.clear()

    def holdings(self, client: ClientId) -> Holdings:
        position = self.setup.clients.index(client)
        key = self.world.holder_keys[position] if position < HOLDERS else self.setup.key_of("a client")
        return Holdings(self.folder / str(position), key, self.world.floors, self.world.clock, SystemCoins())

    def member(self, client: ClientId) -> OneMessageMember:
        return self.world.member(client, holding=self.holdings(client).open)

    def answer(self, client: ClientId, message: bytes) -> bytes:
        joined = self.member(client).join(
            self.setup.subject, self.world.update(client), self.suspended.pop(client, None)
        )
        answer = joined.answer(message)
        assert not joined.faults
        if (rest := joined.suspend()) is not None:
            self.suspended[client] = rest
        return answer

    def as_holder(self, position: int, message: bytes) -> bytes:
        """Ask a holder as a server does that keeps to nothing."""
        with self.holdings(self.setup.clients[position]).open(self.world.record, self.setup.subject.task) as holder:
            assert holder is not None
            return holder.respond(message)

    def open(self) -> ServerSession:
        helpers = {"keys": self.keys, "coins": SystemCoins()}
        return self.world.session(None, self.publish, setup=self.setup, helpers=helpers, capacity=self.setup.capacity)

    def publish(self, keys: tuple[bytes, ...]) -> None:
        self.keys = keys

    def carry(self, session: ServerSession, gone: Mapping[str, set[int]] | None = None) -> Released:
        while (stage := session.stage) is not None:
            for index in (gone or {}).get(stage.name, set()):
                session.drop(self.setup.clients[index])
            for client in self.setup.clients:
                if (message := session.message_to(client)) is not None:
                    session.receive(client, self.answer(client, message))
                    self.said.append((client, message))
            assert session.turnout is Turnout.COMPLETE
            session.close_stage()
        return session.release()


@pytest.fixture
def committee(tmp_path: Path, request: pytest.FixtureRequest) -> Committee:
    return Committee(tmp_path, getattr(request, "param", None))


@pytest.mark.parametrize("committee", RULES, indirect=True)
def test_rounds_of_one_epoch_whose_keys_are_asked_for_once(committee: Committee) -> None:
    stages = list[str]()
    for number in (1, 5):
        committee.begin_round(number)
        session = committee.open()
        stages.append(session.stage.name if session.stage else "")
        # Client 5 holds nothing and never uploads; client 3 uploads and then is an absent holder.
        released = committee.carry(session, {"upload": {5}, "deliver": {3}})
        assert released.aggregate.encode() == committee.world.ideal(committee.setup.clients[:5]).encode()
        # A journal of a round has its own few records, however many rounds there were.
        sizes = [path.stat().st_size for path in committee.folder.glob("0/*/records")]
        assert len(sizes) == 1
    assert stages == ["keys", "upload"]


def test_a_holder_without_its_journal_is_an_absent_one_and_still_a_client(committee: Committee) -> None:
    committee.carry(committee.open())
    for path in committee.folder.glob("0/*/head"):
        path.write_bytes(bytes(48))
    committee.begin_round(2)
    released = committee.carry(committee.open(), {"deliver": {0}})
    assert released.counted == frozenset(committee.setup.clients)
    assert committee.setup.clients[0] not in committee.suspended


def test_a_holder_of_other_keys_than_were_published_says_why_to_its_own_log(committee: Committee) -> None:
    committee.carry(committee.open())
    client = committee.setup.clients[0]
    for path in committee.folder.glob("0/*/*"):
        path.unlink()
    committee.begin_round(2)
    joined = committee.member(client).join(committee.setup.subject, committee.world.update(client))
    session = committee.open()
    session.receive(client, joined.answer(session.invitation))
    assert "other keys of this holder" in str(joined.faults[0])
    assert joined.suspend() is None


# --- The stage of the keys --------------------------------------------------------------------------------------------


def test_a_holder_that_publishes_no_keys_is_named_before_anybody_uploads(committee: Committee) -> None:
    session = committee.open()
    with pytest.raises(ThresholdNotMet, match=rf"missing: holder/3 \({committee.setup.clients[3]}\); start them"):
        committee.carry(session, {"keys": {3}})
    assert session.stage is None
    assert not committee.keys


def test_keys_of_another_holder_are_not_taken(committee: Committee) -> None:
    session, record = committee.open(), committee.world.record
    first, second, last = committee.setup.clients[0], committee.setup.clients[1], committee.setup.clients[5]
    keys = committee.answer(first, session.invitation)
    said = committee.answer(last, session.invitation)
    nothing = replace(NoHolder.decode(said), client=first).encode()
    other = replace(HolderKeys.decode(keys), position=1).encode()
    for sender, message in (
        (second, keys),
        (last, keys),
        (first, nothing),
        (first, said),
        (second, other),
        (first, record.encode()),
    ):
        with pytest.raises(PeerError) as caught:
            session.receive(sender, message)
        # Of what is not the sender's beyond doubt nobody else is named but who carried it.
        assert sender in caught.value.culprits <= {sender, ServerId()}
    with pytest.raises(PeerMisbehaved, match="answers for another epoch"):
        session.receive(last, replace(NoHolder.decode(said), record=bytes(32)).encode())
    session.receive(first, keys)
    session.receive(first, keys)
    again = replace(HolderKeys.decode(keys), nonce=bytes(32))
    signature = record.sign(committee.world.holder_keys[0], Label.ONE_MESSAGE_HOLDER_KEYS, *again.parts)
    with pytest.raises(PeerMisbehaved, match="sent a second answer"):
        session.receive(first, replace(again, signature=signature).encode())
    assert len(session.faults) == 6, "one for each name and reason"


def test_nobody_says_in_another_clients_name_that_it_holds_nothing(committee: Committee) -> None:
    """A platform that takes a client's word for who it is would hear the client itself no more."""
    committee.setup = committee.world.setup = replace(committee.setup, population=POPULATION + 1)
    session, (*_, liar, victim) = committee.open(), committee.setup.clients
    own = committee.answer(liar, session.invitation)
    key, certificate = committee.world.certified(liar)
    claimed = replace(NoHolder.decode(own), client=victim)
    signed = replace(claimed, signature=committee.world.record.sign(key, Label.ONE_MESSAGE_NO_HOLDER, *claimed.parts))
    assert claimed.identity.startswith(certificate.public_key)
    unsigned = replace(claimed, identity=b"", signature=b"")
    for message in (own, claimed.encode(), signed.encode(), unsigned.encode()):
        with pytest.raises(PeerError):
            session.receive(victim, message)
    assert session.awaited is not None
    assert victim in session.awaited
    session.receive(victim, committee.answer(victim, session.invitation))
    assert victim not in session.awaited


def test_an_epoch_has_so_many_uploads_over_all_rounds(committee: Committee, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder forgets a round, but not how much of the epoch's public polynomials is used."""
    monkeypatch.setattr("secagg.protocols.one_message.holder.MOST_UPLOADS", POPULATION)
    committee.carry(committee.open())
    committee.begin_round(2)
    with pytest.raises(PeerMisbehaved, match="an epoch has at most"):
        committee.carry(committee.open())


def test_as_many_answers_as_holders_are_not_the_keys_of_all(committee: Committee) -> None:
    session, (*others, missing, last) = committee.open(), committee.setup.clients
    for client in (*others, last):
        session.receive(client, committee.answer(client, session.invitation))
    assert session.turnout is Turnout.TOO_FEW
    with pytest.raises(ThresholdNotMet, match=rf"missing: holder/{HOLDERS - 1} \({missing}\)"):
        session.close_stage()


def test_the_turnout_of_the_keys_waits_for_all_holders(committee: Committee) -> None:
    session = committee.open()
    for number, client in enumerate(committee.setup.clients, start=1):
        assert session.turnout is (Turnout.TOO_FEW if number <= HOLDERS else Turnout.ENOUGH)
        assert session.message_to(client) == session.invitation
        session.receive(client, committee.answer(client, session.invitation))
    assert session.turnout is Turnout.COMPLETE
    assert session.awaited == frozenset()
    with pytest.raises(Misuse, match="close the last stage first"):
        session.release()
    session.abort()
    with pytest.raises(UnexpectedMessage):
        session.receive(committee.setup.clients[0], session.invitation)
    with pytest.raises(Misuse, match="no stage"):
        session.close_stage()


def test_records_of_another_authority_or_of_an_epoch_that_is_over_leave_no_files(committee: Committee) -> None:
    """A server makes as many of them as it likes, and each would draw keys and keep them."""
    client, genuine = committee.setup.clients[0], committee.world.record
    stranger = committee.setup.key_of("another authority")
    strange = replace(genuine, authority=stranger.public_key)
    records = [replace(strange, number=number).signed(stranger) for number in range(20)]
    records.append(replace(genuine, expiry=committee.world.now).signed(committee.world.authority))
    for record in records:
        assert record.position_of(committee.world.holder_keys[0].public_key) == 0
        with (
            pytest.raises(InvalidParameters, match=r"another authority|is over"),
            committee.holdings(client).open(record, b"a task"),
        ):
            pass
    assert not list(committee.folder.glob("**/*"))


def test_folders_that_no_holder_made_are_left_alone(committee: Committee) -> None:
    """Whatever they are called, and whatever else is in those that one made."""
    committee.carry(committee.open())
    ours = committee.folder / "0"
    (made,) = ours.iterdir()
    name = f"1-{64 * 'a'}"
    kept = [ours / "2019-photos" / "beach.jpg", ours / name / "letter", ours / f"1-{64 * 'b'}" / "head"]
    kept += [ours / f"2-{64 * 'c'}" / "secret", ours / f"3-{64 * 'd'}" / "notes", ours / f"\u0661-{64 * 'e'}" / "head"]
    for path in kept:
        path.parent.mkdir()
        path.write_bytes(b"mine")
    # With the files of a journal, and one of the user's.
    for name in ("secret", "head"):
        (ours / f"3-{64 * 'd'}" / name).write_bytes((made / name).read_bytes())
    elsewhere = committee.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_bytes((made / "secret").read_bytes())
    (ours / f"4-{64 * 'f'}").symlink_to(elsewhere)
    committee.world.now = committee.world.record.expiry
    with suppress(InvalidParameters), committee.holdings(committee.setup.clients[0]).open(committee.world.record, b"t"):
        pass
    assert not made.exists()
    assert all(path.read_bytes() == b"mine" for path in kept)
    assert (elsewhere / "secret").exists()


def test_a_holder_does_not_say_that_it_holds_nothing(committee: Committee) -> None:
    session, client = committee.open(), committee.setup.clients[0]
    with pytest.raises(PeerMisbehaved, match="publishes no keys") as caught:
        session.receive(
            client, committee.world.member(client).join(committee.setup.subject).answer(committee.world.record.encode())
        )
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, frozenset({client}))


def test_the_stages_after_the_keys_begin_anew_without_those_who_left(committee: Committee) -> None:
    committee.setup = committee.world.setup = replace(committee.setup, minimum_cohort=HOLDERS)
    session, (*holders, last) = committee.open(), committee.setup.clients
    for client in holders:
        assert session.turnout is Turnout.TOO_FEW
        session.receive(client, committee.answer(client, session.invitation))
    turnouts = [session.turnout]
    session.drop(last)
    turnouts.append(session.turnout)
    session.close_stage()
    turnouts.append(session.turnout)
    assert turnouts == [Turnout.ENOUGH, Turnout.COMPLETE, Turnout.TOO_FEW], "as many as the least cohort are enough"
    assert session.awaited == frozenset(holders)
    session.abort()
    assert session.stage is None, "the stage of uploads ends too"


def test_a_client_answers_no_more_once_it_left_and_uploads_nothing_that_it_does_not_have(committee: Committee) -> None:
    session = committee.open()
    for client in committee.setup.clients:
        session.receive(client, committee.answer(client, session.invitation))
    session.close_stage()
    client = committee.setup.clients[5]
    with pytest.raises(InvalidParameters, match="there is no update to upload"):
        committee.member(client).join(committee.setup.subject).answer(session.invitation)
    assert client not in committee.world.stored, "nothing was charged"
    left = committee.member(client).join(committee.setup.subject, committee.world.update(client))
    left.abort()
    with pytest.raises(Misuse, match="has left this session"):
        left.answer(session.invitation)
    assert client not in committee.world.stored


# --- What is held -----------------------------------------------------------------------------------------------------


def test_what_is_over_is_overwritten_before_it_is_removed_and_over_when_its_time_comes(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    committee.carry(committee.open())
    committee.world.now = committee.world.record.expiry
    erased = list[str]()

    def erase(path: Path) -> None:
        erased.append(path.name)
        path.unlink()

    monkeypatch.setattr("secagg.session.durable.erase", erase)
    other = InsecureSum(replace(committee.setup, seed=b"another authority"))
    with (
        pytest.raises(InvalidParameters, match="another authority"),
        committee.holdings(committee.setup.clients[0]).open(other.record, b"t"),
    ):
        pytest.fail("whatever the node is asked for next")
    assert {"secret", "records", "head"} <= set(erased)
    assert not list(committee.folder.glob("0/*"))
