"""Attacks on coordinators of pairwise sums in pieces: whatever fails or is put back, no client is shown two sessions.

| attack | what stands against it |
|---|---|
| a disk is full when a message has counted and is written down | the session is over, in this life and the next |
| a coordinator gives up before anything was added, and another one goes on | that it is over is written down |
| a stage cannot be closed, and the next life closes it | likewise |
| a later version of the library refuses what an earlier one took | it does not go on |
| workers or their storage fail while uploads come | the session has ended, and leaves nothing in the storage |
| an older copy of the journal is put back, to ask clients again | the session's record knows a later stage |
| a client bars its folder, so that its vector cannot be stored | it is left out, and the others are summed |
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Any, Self

import pytest

from secagg.cli.wire.journaled import JournaledSession
from secagg.contract.pieces import Adder, Cut
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.protocols.pairwise_mask.session import PairwiseServerSession
from secagg.protocols.pairwise_mask.settled import certain, suspects
from secagg.scale.journal import Event, Journal
from secagg.scale.resumed import ResumableSession
from secagg.scale.spread import SpreadSum
from secagg.scale.store import piece_name
from secagg.scale.work import Order, Outcome
from secagg.scale.workers import InProcess
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.transport.card import Card
from secagg.transport.keeping import ServerRecord, ServerStore
from tests.harness.pairwise_sessions import InsecurePairwiseSession, same_sum
from tests.scale.test_pairwise import Town


class Life:
    """A coordinator that ends without a word, unless the test says one."""

    def __init__(self, town: Town) -> None:
        self.town, self.journal = town, Journal(town.journal)
        try:
            self.session = ResumableSession(self.journal, InsecureSeededCoins(b"coordinator"), town.open_session)
        except BaseException:
            self.journal.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def answers(self, *without: ClientId) -> Iterator[tuple[ClientId, bytes]]:
        """Return what clients answer to the open stage; a client that is shown another stage than before fails."""
        for client in self.town.world.client_ids:
            message = self.session.message_to(client)
            if client in without or message is None:
                continue
            if (client, message) not in self.town.answers:
                self.town.answers[client, message] = self.town.world.clients[client].receive(message)
            for answer in self.town.answers[client, message]:
                yield client, answer

    def play(self, stages: int) -> None:
        for _ in range(stages):
            for client, answer in self.answers():
                self.session.receive(client, answer)
            self.session.close_stage()


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


def is_over(town: Town) -> bool:
    """Say whether no life goes on, and nothing is left of the session."""
    with pytest.raises(Misuse, match="is over"):
        Life(town)
    return not town.farm.folder.exists() or not list(town.farm.folder.iterdir())


def full(*_: Any, **__: Any) -> Any:
    raise OSError(ENOSPC, "no space left")


@pytest.mark.parametrize("stages", range(5))
def test_a_message_that_counts_and_cannot_be_written_down_ends_the_session(
    town: Town, monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    """In this life its client would be on a list, and in the next it would not; the disk has room again by then."""
    with Life(town) as life:
        life.play(stages)
        client, answer = next(life.answers())
        append = Journal.append

        def failing(journal: Journal, event: Event, *parts: bytes) -> None:
            if event is Event.RECEIVED:
                full()
            append(journal, event, *parts)

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", failing)
            with pytest.raises(OSError, match="no space"):
                life.session.receive(client, answer)
        assert life.session.stage is None
        with pytest.raises(Misuse):
            life.session.close_stage()
    assert is_over(town)


def test_a_session_that_cannot_even_write_its_end_is_over_in_this_life_and_goes_on_in_the_next(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Life(town) as life:
        life.play(1)
        client, answer = next(life.answers())
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", full)
            with pytest.raises(OSError, match="no space"):
                life.session.receive(client, answer)
        assert life.session.stage is None
        assert life.session.message_to(client) is None
    town.live()
    assert len(town.released) == 1


@pytest.mark.parametrize("stages", range(5))
def test_a_session_that_was_given_up_goes_on_in_no_life(town: Town, stages: int) -> None:
    """Before the third stage nobody adds, so nobody but the session could write it down."""
    with Life(town) as life:
        life.play(stages)
        life.session.abort()
        life.session.abort()
    assert is_over(town)
    journal = Journal(town.journal)
    journal.close()
    assert [record.event for record in journal.past].count(Event.OVER) == 1


@pytest.mark.parametrize("stages", range(4))
def test_a_stage_that_could_not_be_closed_is_closed_in_no_life(town: Town, stages: int) -> None:
    with Life(town) as life:
        life.play(stages)
        with pytest.raises(ThresholdNotMet):
            life.session.close_stage()
    assert is_over(town)


class Failing(InProcess):
    """Every job fails."""

    def start(self, worker: int, order: Order) -> None:
        del worker
        raise ConnectionError(f"nobody does {order.kind}")


@pytest.mark.parametrize("moment", ["while uploads come", "at their end"])
def test_workers_that_fail_end_the_session(town: Town, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """As platforms are told; what clients stored is removed."""
    town.farm.batch = 2 if moment == "while uploads come" else 100
    monkeypatch.setattr("tests.scale.test_pairwise.InProcess", Failing)
    with Life(town) as life:
        life.play(2)
        with pytest.raises(ConnectionError, match="nobody does add"):
            life.play(1)
        assert town.server.state == "aborted"
        assert life.session.session.stage is None
    assert is_over(town)


@pytest.mark.parametrize("moment", ["while uploads come", "at their end"])
def test_workers_that_are_ended_with_their_process_end_no_session(
    town: Town, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    town.farm.batch = 2 if moment == "while uploads come" else 100
    with Life(town) as life, monkeypatch.context() as patched:
        patched.setattr("tests.scale.test_pairwise.InProcess", Failing)
        life.play(2)
        life.session.leave()
        with pytest.raises(ConnectionError, match="nobody does add"):
            life.play(1)
    town.live()
    (released,) = town.released
    assert same_sum(released.aggregate, town.world.sum_of(released.counted))


@pytest.mark.parametrize("moment", ["while uploads come", "at their end"])
def test_workers_that_fail_end_a_session_without_a_journal_too(town: Town, moment: str) -> None:
    town.farm.batch = 2 if moment == "while uploads come" else 100

    def adding(cut: Cut) -> Adder:
        return SpreadSum(cut, Failing(), town.farm.settings, coins=InsecureSeededCoins(b"audits"))

    world = InsecurePairwiseSession(town.world.setup, adding=adding)
    session = PairwiseServerSession(world.server, None)
    for _ in range(2):
        world.deliver(world.pending)
        session.close_stage()
        world.pending = list(world.server.outgoing())
    with pytest.raises(ConnectionError, match="nobody does add"):  # noqa: PT012 -- in the one or in the other
        for outgoing in world.pending:
            for answer in world.clients[outgoing.receiver].receive(outgoing.message):
                session.receive(outgoing.receiver, answer)
        session.close_stage()
    assert session.stage is None
    assert not list(town.farm.folder.iterdir())


def test_a_client_that_bars_its_folder_is_left_and_the_others_are_summed(town: Town) -> None:
    """It sends its vector whole, and a folder stands where a piece is to be stored."""
    bad, others = town.world.client_ids[3], [one for one in town.world.client_ids if one != town.world.client_ids[3]]
    with Life(town) as life:
        life.play(2)
        cut = town.server.roster.cut
        for client, answer in life.answers():
            if client == bad:
                digests = MaskedInput.decode(answer, town.server.roster).pieces(cut, client)
                (town.farm.folder / piece_name(cut.context, client, digests[0])).mkdir(parents=True)
                with pytest.raises(PeerMisbehaved) as caught:
                    life.session.receive(client, answer)
                assert caught.value.culprits == suspects(client)
                continue
            life.session.receive(client, answer)
        life.session.close_stage()
        life.play(2)
        released = life.session.release()
    assert released.counted == frozenset(others)


def test_a_client_that_was_dropped_is_told_and_heard_no_more_in_any_life(town: Town) -> None:
    with Life(town) as life:
        client, answer = next(life.answers())
        life.session.drop(client)
    with Life(town) as life:
        assert life.session.message_to(client) is None
        with pytest.raises(PeerMisbehaved, match="no longer"):
            life.session.receive(client, answer)


def test_a_message_that_comes_again_fills_no_disk(town: Town) -> None:
    with Life(town) as life:
        client, answer = next(life.answers())
        life.session.receive(client, answer)
        size = town.journal.stat().st_size
        life.session.receive(client, answer)
        assert town.journal.stat().st_size == size
    with Life(town) as life:
        life.session.receive(client, answer)
    assert town.journal.stat().st_size == size


def test_a_message_that_was_taken_before_and_is_refused_now_ends_the_next_life(town: Town) -> None:
    """Without it the roster is another one, and clients have seen the first."""
    with Life(town) as life:
        client, answer = next(life.answers())
        life.journal.append(Event.RECEIVED, client.encode(), answer[:-1])
    with pytest.raises(InvalidParameters, match="was taken before and is refused now"):
        Life(town)


# --- An older journal -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> ServerStore:
    made = ServerStore(tmp_path / "state")
    card = Card(session="0" * 32, protocol="pairwise", task="t", round_number=1, answer_bytes=1, terms={})
    made.put(ServerRecord(card=card.encode(), stage=0, claims=(), snapshot=b""))
    return made


def put_stage(store: ServerStore, stage: int) -> None:
    record = store.get()
    assert record is not None
    store.put(ServerRecord(card=record.card, stage=stage, claims=(), snapshot=b""))


def test_an_older_copy_of_a_journal_is_refused(town: Town, store: ServerStore, tmp_path: Path) -> None:
    """Its uploads may be others by then: semi-honest clients would be asked for the shares of two lists."""
    copy, states = tmp_path / "copy", {"past": 2, "now": 4}
    with Life(town) as life:
        life.play(states["past"])
        shutil.copy(town.journal, copy)
        life.play(states["now"] - states["past"])
    put_stage(store, states["now"])
    JournaledSession(town.journal, store, town.open_session).abort()
    shutil.copy(copy, town.journal)
    with pytest.raises(InvalidParameters, match="is an older copy"):
        JournaledSession(town.journal, store, town.open_session)
    put_stage(store, states["past"])
    JournaledSession(town.journal, store, town.open_session).abort()


def test_a_copy_of_a_journal_from_while_a_stage_was_closed_is_refused(
    town: Town, store: ServerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may take hours over it; that the stage is closed is written down before, and the list after."""
    copy, remember = tmp_path / "copy", Journal.remember
    town.farm.batch = 100

    def copying(journal: Journal, outcome: Outcome) -> None:
        if not copy.exists():
            shutil.copy(town.journal, copy)
        remember(journal, outcome)

    with Life(town) as life:
        life.play(2)
    put_stage(store, 2)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remember", copying)
        session = JournaledSession(town.journal, store, town.open_session)
        for client in town.world.client_ids:
            for answer in town.world.clients[client].receive(certain(session.message_to(client))):
                session.receive(client, answer)
        session.close_stage()
        put_stage(store, 3)
        session.abort()
    shutil.copy(copy, town.journal)
    with pytest.raises(InvalidParameters, match="is an older copy"):
        JournaledSession(town.journal, store, town.open_session)
    put_stage(store, 2)  # killed there, it goes on, and is as new as what clients see then
    JournaledSession(town.journal, store, town.open_session).abort()
    put_stage(store, 3)
    JournaledSession(town.journal, store, town.open_session).abort()


def test_a_new_journal_is_not_compared_with_the_record_of_the_session_before(town: Town, store: ServerStore) -> None:
    put_stage(store, 4)
    session = JournaledSession(town.journal, store, town.open_session)
    assert session.stage is not None
    session.abort()
