"""Coordinators that are killed: the sum is exact or nothing is released, and nothing is released twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.protocols.one_message import OneMessageServerSession
from secagg.scale.journal import Event, Journal
from secagg.scale.resumed import RecordedCoins, ResumableSession
from secagg.scale.work import Harm, Outcome, Wrong
from secagg.session.roles import Released
from tests.harness.killed_sums import SETUP, Place


@pytest.mark.parametrize("seed", [1])
def test_a_coordinator_that_is_killed_at_any_of_twenty_moments_releases_once_or_never(
    tmp_path: Path, repository: Path, seed: int
) -> None:
    """Each moment is one more place to die at; the next life dies earlier, and those after that may live."""
    harness = subprocess.run(  # noqa: S603 - our own harness
        [sys.executable, "-m", "tests.harness.killed_sums", str(tmp_path / "sums"), str(seed)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    reports: list[dict[str, Any]] = [json.loads(line) for line in harness.stdout.splitlines()]
    assert len(reports) == 1 + 20
    assert reports[0]["lives"][0]["exact"]
    released = 0
    for report in reports:
        lives, ends = report["lives"], [life for life in report["lives"] if "exact" in life]
        assert all(life["exact"] and life["counted"] == len(SETUP.clients) for life in ends)
        assert len(ends) <= 1
        released += len(ends)
        assert report["at"] == 0 or lives[0]["killed"]
        # Who was killed after the end was written down is over, and says so.
        assert ends or "is over" in lives[-1]["refused"]
        assert report["left"] == []
    assert released >= 15


# --- One place, lives in this process ---------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "sum")


class Life:
    """A coordinator in this process, which ends without a word."""

    def __init__(self, place: Place) -> None:
        self.journal, self.asked = Journal(place.journal), 0

        def ask(requests: Any) -> Iterator[tuple[int, bytes]]:
            self.asked += 1
            return place.ask(requests)

        try:
            self.session = ResumableSession(
                self.journal,
                SystemCoins(),
                lambda memory, coins: place.open_session(memory, coins, memory.ask_all),
                ask,
            )
        except BaseException:
            self.journal.close()
            raise

    def __enter__(self) -> ResumableSession:
        return self.session

    def __exit__(self, *_: object) -> None:
        self.journal.close()


def uploads_for(place: Place, session: ResumableSession) -> dict[ClientId, bytes]:
    inner = session.session
    assert isinstance(inner, OneMessageServerSession)
    return {client: place.world.client(client).upload(*place.terms(inner, client)) for client in SETUP.clients}


def is_exact(place: Place, released: Released) -> bool:
    due = place.world.ideal(SETUP.clients)
    return bool((released.aggregate.values[0] == due.values[0]).all()) and released.counted == frozenset(SETUP.clients)


def test_a_session_goes_on_with_the_coins_and_uploads_of_its_first_life(place: Place) -> None:
    with Life(place) as session:
        invitation, uploads = session.invitation, uploads_for(place, session)
        for client in SETUP.clients[:3]:
            session.receive(client, uploads[client])
            session.receive(client, uploads[client])
    size = place.journal.stat().st_size
    assert size < len(uploads[SETUP.clients[0]])  # no vector is in it
    with Life(place) as session:
        assert session.invitation == invitation
        assert session.awaited == frozenset(SETUP.clients[3:])
        for client in SETUP.clients:
            session.receive(client, uploads[client])
        session.close_stage()
    with Life(place) as session:
        assert session.stage is None
        assert is_exact(place, session.release())
    with pytest.raises(Misuse, match="is over"):
        Life(place)


def test_helpers_are_not_asked_again_what_they_answered(place: Place) -> None:
    with Life(place) as session:
        for client, upload in uploads_for(place, session).items():
            session.receive(client, upload)
        session.close_stage()
    life = Life(place)
    assert life.asked == 0
    with life as session:
        assert is_exact(place, session.release())
    assert life.asked == 1


def test_a_client_that_was_dropped_stays_dropped(place: Place) -> None:
    gone = SETUP.clients[0]
    with Life(place) as session:
        session.drop(gone)
    with Life(place) as session:
        assert gone not in (session.awaited or ())


def test_what_is_refused_is_not_written_down(place: Place) -> None:
    with Life(place) as session:
        uploads, before = uploads_for(place, session), place.journal.stat().st_size
        one, other = SETUP.clients[:2]
        for sender, message in ((one, uploads[other]), (one, uploads[one][:-1]), (ClientId(5), uploads[one])):
            with pytest.raises(Exception, match=r"."):
                session.receive(sender, message)
        assert place.journal.stat().st_size == before


def test_a_journal_of_another_session_is_refused(place: Place, tmp_path: Path) -> None:
    with Life(place) as session:
        session.receive(SETUP.clients[0], uploads_for(place, session)[SETUP.clients[0]])
    other = Place(tmp_path / "other", replace(SETUP, minimum_cohort=4))
    other.journal = place.journal
    with pytest.raises(InvalidParameters, match="the journal is of another session"):
        Life(other)
    with Life(place) as session:
        assert SETUP.clients[0] not in (session.awaited or ())


def test_a_storage_that_lost_uploads_after_the_list_was_made_releases_nothing(place: Place) -> None:
    with Life(place) as session:
        for client, upload in uploads_for(place, session).items():
            session.receive(client, upload)
        session.close_stage()
    for path in Path(place.storage).glob("*/*/*/*"):
        path.unlink()
    for path in Path(place.storage).glob("*/sums/*"):
        path.unlink()
    with Life(place) as session, pytest.raises(ConnectionError):
        session.release()


def test_an_aborted_session_is_over(place: Place) -> None:
    with Life(place) as session:
        session.abort()
    with pytest.raises(Misuse, match="is over"):
        Life(place)


# --- The journal ------------------------------------------------------------------------------------------------------


def written(path: Path, *events: Event) -> None:
    journal = Journal(path)
    for event in events:
        journal.append(event, b"part", event.name.encode())
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "records"


def events_of(path: Path) -> list[Event]:
    journal = Journal(path)
    journal.close()
    return [record.event for record in journal.past]


def test_a_record_that_was_not_finished_is_cut_off_wherever_that_was(path: Path) -> None:
    written(path, Event.OPENED)
    first = path.stat().st_size
    written(path, Event.CLOSED)
    whole = path.read_bytes()
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert events_of(path) == [Event.OPENED]
        assert path.stat().st_size == first
    written(path, Event.DROPPED)
    assert events_of(path) == [Event.OPENED, Event.DROPPED]


def test_a_journal_that_is_altered_before_its_end_is_refused(path: Path) -> None:
    written(path, Event.OPENED, Event.CLOSED)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InvalidParameters, match="is damaged"):
            events_of(path)


def test_records_of_another_session_do_not_join_a_journal(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "records"
    written(path, Event.OPENED)
    journal = Journal(other)
    journal.append(Event.OPENED, b"another")
    first = other.stat().st_size
    journal.append(Event.CLOSED)
    journal.close()
    path.write_bytes(path.read_bytes() + other.read_bytes()[first:])
    with pytest.raises(InvalidParameters, match="put together of journals of several sessions"):
        Journal(path)


def test_one_coordinator_at_a_time_has_a_journal(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(InvalidParameters, match="is in use"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_outcomes_and_who_is_wrong_are_read_back(path: Path) -> None:
    journal = Journal(path)
    gone = Wrong(client=ClientId(3), piece=1, harm=Harm.MISSING)
    outcome = Outcome(key="a job", wrong=(gone, Wrong(client=ClientId(7), piece=0, harm=Harm.MALFORMED)))
    journal.remember(outcome)
    assert journal.settled(None) is None
    journal.settled([gone])
    journal.close()
    again = Journal(path)
    assert again.outcome("a job") == outcome
    assert again.outcome("another") is None
    assert again.settled(None) == (gone,)
    again.close()


def test_recorded_coins_come_first_and_fresh_ones_after_them() -> None:
    coins = RecordedCoins(SystemCoins(), b"abc")
    assert (bytes(coins.draw(2)), bytes(coins.draw(1))) == (b"ab", b"c")
    fresh = coins.draw(4)
    assert coins.drawn == b"abc" + bytes(fresh)
