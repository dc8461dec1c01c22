"""What the operator of a standing server 1 insists on, and that no round is begun twice, whoever is started again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.journal import Event, FileJournal, Record
from secagg.protocols.two_servers.less_protected import NoJournal
from secagg.protocols.two_servers.operators import standing_rules
from secagg.protocols.two_servers.operators.standing_rules import StandingFloors, StandingRounds, lanes_of
from tests.harness.indexing_rounds import NOW, IndexingSetup

SETUP = IndexingSetup(minimum_cohort=5, maximum_cohort=20, task=b"flower run 7")
OFFERED = SETUP.configuration
FLOORS = StandingFloors(
    task_prefix=b"flower run ",
    authority=OFFERED.authority,
    server_keys=OFFERED.server_keys,
    suites=frozenset({Suite.CLASSIC}),
    minimum_cohort=5,
    maximum_cohort=20,
    maximum_lanes=lanes_of(OFFERED),
    maximum_lifetime=timedelta(days=1),
)
OTHER_KEY = bytes(range(32))


class ListJournal:
    """Keeps records in memory, as a file that outlives the server does."""

    def __init__(self, records: list[Record] | None = None) -> None:
        self.kept = list(records or [])

    def append(self, event: Event, *fields: bytes) -> None:
        self.kept.append((event, fields))

    def records(self) -> Iterator[Record]:
        return iter(list(self.kept))


def accept(rounds: StandingRounds, offered: IndexingConfiguration, number: int, now: datetime) -> None:
    if rounds.admit(offered, number, now):
        rounds.begin(offered, number)


def changed(**changes: Any) -> IndexingConfiguration:
    return replace(OFFERED, **changes)


def test_what_just_meets_the_floors_is_accepted() -> None:
    FLOORS.admit(OFFERED, NOW)


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (changed(task=b"another run 7"), "the task b'another run 7' does not begin with b'flower run '"),
        (changed(authority=OTHER_KEY), "clients are certified by another authority"),
        (changed(server_keys=(OTHER_KEY, OFFERED.server_keys[1])), "server 0 has another key than its operator knows"),
        (changed(server_keys=(OFFERED.server_keys[0], OTHER_KEY)), "it names another key than its own for server 1"),
        (changed(suite=Suite.HYBRID), "suite mlkem768x25519-aes256 is not accepted"),
        (changed(mode=SharingMode.UNCHECKED_POINT_FUNCTIONS), "mode unchecked_point_functions is not accepted"),
        (changed(minimum_cohort=4), "a cohort of 4 is below 5"),
        (changed(maximum_cohort=21), "a cohort of 21 is above 20"),
        (changed(weights=(1, 2)), "a client may weigh 2, above 1"),
        (changed(layout=Layout((RingSegment(20, 6), IndexSegment(200, 5)))), "counters and ring elements are more"),
        (changed(expiry=int(NOW.timestamp())), "it has expired"),
        (changed(expiry=int(NOW.timestamp()) + 86401), "it expires later than 1 day, 0:00:00 from now"),
    ],
)
def test_a_configuration_beyond_the_floors_is_refused_with_what_is_wrong(
    offered: IndexingConfiguration, said: str
) -> None:
    journal = ListJournal()
    with pytest.raises(InvalidParameters) as refused:
        accept(StandingRounds(FLOORS, journal), offered, 1, NOW)
    assert said in str(refused.value)
    assert "offer another configuration, or ask its operator" in str(refused.value)
    assert refused.value.reason is Reason.BELOW_FLOOR
    assert journal.kept == []


def test_an_index_segment_counts_with_all_its_counters() -> None:
    assert lanes_of(changed(layout=Layout((RingSegment(20, 6), IndexSegment(8, 5))))) == 46


@pytest.mark.parametrize("number", [2, 1, 0])
def test_rounds_of_a_task_go_up(number: int) -> None:
    rounds = StandingRounds(FLOORS, NoJournal())
    accept(rounds, OFFERED, 3, NOW)
    with pytest.raises(PeerMisbehaved, match="under this configuration; rounds go up") as refused:
        accept(rounds, OFFERED, number, NOW)
    assert refused.value.reason is Reason.ALREADY_ANSWERED
    assert refused.value.culprits == {ServerId(0)}
    accept(rounds, OFFERED, 4, NOW)


def test_a_round_has_one_configuration() -> None:
    rounds = StandingRounds(FLOORS, NoJournal())
    accept(rounds, OFFERED, 3, NOW)
    with pytest.raises(PeerMisbehaved, match="under another configuration"):
        accept(rounds, changed(minimum_cohort=6), 3, NOW)


def test_each_task_counts_its_own_rounds() -> None:
    rounds = StandingRounds(FLOORS, NoJournal())
    accept(rounds, OFFERED, 3, NOW)
    accept(rounds, changed(task=b"flower run 8"), 1, NOW)


def test_a_server_that_is_started_again_knows_which_rounds_it_began(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    accept(StandingRounds(FLOORS, journal), OFFERED, 3, NOW)
    journal.close()
    again = FileJournal(tmp_path / "journal")
    rounds = StandingRounds(FLOORS, again)
    assert not rounds.admit(OFFERED, 3, NOW), "it goes on"
    with pytest.raises(PeerMisbehaved, match="was begun before"):
        accept(rounds, OFFERED, 2, NOW)
    accept(rounds, OFFERED, 4, NOW)
    with pytest.raises(PeerMisbehaved, match="was begun before"):
        rounds.admit(OFFERED, 3, NOW)
    again.close()


@pytest.mark.parametrize("number", [(1 << 32) + 4, (1 << 63), (1 << 64) - 1])
def test_no_round_number_ends_a_task(number: int) -> None:
    """After round 2^64 - 1 there would be no later one."""
    rounds = StandingRounds(FLOORS, NoJournal())
    accept(rounds, OFFERED, 3, NOW)
    with pytest.raises(InvalidParameters, match="count rounds one by one"):
        accept(rounds, OFFERED, number, NOW)
    accept(rounds, OFFERED, (1 << 32) + 3, NOW)


def test_of_two_tasks_only_the_round_that_was_begun_last_goes_on() -> None:
    rounds, other = StandingRounds(FLOORS, NoJournal()), changed(task=b"flower run 8")
    accept(rounds, OFFERED, 3, NOW)
    accept(rounds, other, 3, NOW)
    assert not rounds.admit(other, 3, NOW)
    with pytest.raises(PeerMisbehaved, match="was begun before, under this configuration"):
        rounds.admit(OFFERED, 3, NOW)


def test_a_round_that_cannot_be_written_down_is_not_begun() -> None:
    class Full(ListJournal):
        def append(self, event: Event, *fields: bytes) -> None:  # noqa: ARG002 -- of the protocol
            raise OSError("no space left")

    rounds = StandingRounds(FLOORS, Full())
    with pytest.raises(OSError, match="no space"):
        accept(rounds, OFFERED, 3, NOW)
    assert repr(rounds) == "<StandingRounds of 0 tasks>"


def test_tasks_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_rules, "MAXIMUM_TASKS", 1)
    rounds = StandingRounds(FLOORS, NoJournal())
    accept(rounds, OFFERED, 0, NOW)
    accept(rounds, OFFERED, 1, NOW)
    with pytest.raises(InvalidParameters, match="1 tasks were begun with this journal"):
        accept(rounds, changed(task=b"flower run 8"), 1, NOW)


@pytest.mark.parametrize(
    "record",
    [
        (Event.TAKEN, (b"a task", bytes(8), bytes(32))),
        (Event.BEGUN, (b"a task", bytes(8))),
        (Event.BEGUN, (bytes(32), bytes(8), bytes(1), bytes(32))),
        (Event.BEGUN, ()),
    ],
)
def test_the_journal_of_something_else_is_refused(record: Record) -> None:
    with pytest.raises(MalformedMessage, match="this is no journal of a standing server"):
        StandingRounds(FLOORS, ListJournal([record]))


NOBODY: dict[str, Any] = {
    "authority": b"short",
    "server_keys": (OTHER_KEY, b"short"),
    "minimum_cohort": 1,
    "maximum_cohort": 4,
    "maximum_lanes": 0,
    "maximum_weight": 0,
    "suites": frozenset(),
    "modes": frozenset(),
    "maximum_lifetime": timedelta(0),
}


@pytest.mark.parametrize("name", NOBODY)
def test_floors_that_protect_nobody_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameters):
        replace(FLOORS, **{name: NOBODY[name]})


def test_floors_name_two_servers() -> None:
    with pytest.raises(Misuse):
        replace(FLOORS, server_keys=(OTHER_KEY,))  # type: ignore[arg-type]
