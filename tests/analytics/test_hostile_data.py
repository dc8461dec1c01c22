"""A server sees the same from every site, whatever its data, and however often it asks."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.analytics import Plan, Site, read_site
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.quick.model_session import planned
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.registry import find, names
from tests.harness.town_of_sites import declared, functions, people, write_people

CLIENTS = [ClientId(number) for number in range(1, 5)]
ROUNDS = 3
Seen = list[tuple[str, object]]


class Unreadable:
    """A value that raises on every operation."""

    def __float__(self) -> float:
        raise RuntimeError("a value of a patient")

    def __str__(self) -> str:
        raise RuntimeError("a value of a patient")


def raising() -> Iterable[Any]:
    raise RuntimeError("a value of a patient")


def halfway() -> Iterable[Any]:
    yield 1
    raise RuntimeError("a value of a patient")


def alike(function: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    return dict.fromkeys(declared().variables, function)


HOSTILE: dict[str, dict[str, Callable[[], Any]]] = {
    "usual": functions(people(1, 40)),
    "nobody": alike(list),
    "raises": alike(raising),
    "raises halfway": alike(halfway),
    "endless": alike(lambda: itertools.repeat(7)),
    "none at all": alike(lambda: None),
    "NaN": alike(lambda: np.full(40, np.nan)),
    "infinities": alike(lambda: [np.inf, -np.inf] * 20),
    "huge": alike(lambda: [10**400, -(10**400), 1e308, 2**70] * 10),
    "unreadable": alike(lambda: [Unreadable(), object(), [1], {}, 1j, b"\xff", "\ud800", True]),
    "one value for all": alike(lambda: ["f"] * 40),
    "of two dimensions": alike(lambda: np.ones((5, 5))),
    "of other lengths": {name: partial(range, place) for place, name in enumerate(declared().variables)},
}


def asked(protocol: Any, own: dict[str, Callable[[], Any]]) -> Seen:
    """Run three sessions, and return the server's view of one site: stages, lengths of answers, or silence."""
    declaration = declared(most_people=1000)
    plan, entry, coins, seen = Plan(declaration), find(protocol), SystemCoins(), Seen()
    settings = planned(entry, len(CLIENTS), dropped=0, settings={})
    for number in range(ROUNDS):
        subject = plan.subject(task=b"statistics", round_number=number)
        with closing(entry.simulate(settings, coins=coins, clock=lambda: datetime.now(UTC))) as world:
            session = world.open(subject, frozenset(CLIENTS))
            joined = dict[ClientId, Any]()
            for client in CLIENTS:
                found = own if client == CLIENTS[0] else functions(people(client.value, 30))
                late = plan.late(Site(declaration=declaration, functions=found), coins)
                joined[client] = world.member(client).join(subject, late)
            while session.stage is not None:
                for client, member in joined.items():
                    if (message := session.message_to(client)) is None:
                        continue
                    answer = member.answer(message)
                    session.receive(client, answer)
                    if client == CLIENTS[0]:
                        seen.append((session.stage.name, len(answer)))
                session.close_stage()
            seen.append(("sum", session.release().aggregate.contributors))
    return seen


@pytest.mark.parametrize("protocol", names())
def test_a_server_sees_the_same_of_every_data(protocol: Any) -> None:
    usual = asked(protocol, HOSTILE["usual"])
    assert len(usual) > ROUNDS
    for name, own in HOSTILE.items():
        assert asked(protocol, own) == usual, name


def test_a_data_set_that_is_refused_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is effective: a function that abstains depending on its values changes the messages."""
    made = Plan.late

    def refusing(self: Plan, site: Site, coins: Any, charge: Callable[[], None] = lambda: None) -> Any:
        if site.columns()[1] == 0:
            raise Misuse("nobody is here")
        return made(self, site, coins, charge)

    monkeypatch.setattr(Plan, "late", refusing)
    asked("lightsecagg", HOSTILE["usual"])
    with pytest.raises(Misuse):
        asked("lightsecagg", HOSTILE["nobody"])


@pytest.mark.parametrize("name", HOSTILE)
def test_every_data_have_cells_of_the_same_shape(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """If measuring raised, zeros without noise would be sent instead."""
    plan = Plan(declared(most_people=1000))
    columns, count = Site(declaration=plan.declaration, functions=HOSTILE[name]).columns()
    for kind in plan.kinds.values():
        cells = kind.measure(columns, count)
        assert [each.shape for each in cells] == [(group.length,) for group in kind.groups]
        for each, group in zip(cells, kind.groups, strict=True):
            assert np.abs(each).max() <= group.largest * count
    assert not [record for record in caplog.records if "a value of a patient" in record.getMessage()]


def test_another_person_changes_cells_by_what_the_noise_is_made_for_and_at_most_by_that() -> None:
    """The squared distance of any two people; it is 2 for tables and histograms, where each has one cell."""
    plan = Plan(declared())
    persons = [people(seed, 1) for seed in range(30)]
    persons += [
        {name: [one] for name, one in zip(persons[0], row, strict=True)}
        for row in ((0, 30, "f", "I", 0, "alive"), (101, 151, "m", "II", 121, "dead"), (None, None, "", "", None, ""))
    ]
    sites = [Site(declaration=plan.declaration, functions=functions(own)).columns() for own in persons]
    for kind in plan.kinds.values():
        measured = [kind.measure(*site) for site in sites]
        for place, group in enumerate(kind.groups):
            cells = [each[place] for each in measured]
            found = max(int((one - other) @ (one - other)) for one in cells for other in cells)
            assert found <= group.squared
            if group.largest == 1 and group.length > 1:
                assert found == group.squared == (3 if len(kind.groups) > 1 else 2)


def test_the_log_of_a_site_quotes_no_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    Site(declaration=declared(), functions=HOSTILE["unreadable"]).columns()
    assert "have no readable value of 'age'" in caplog.text
    assert "patient" not in caplog.text


def test_the_ledger_remembers_the_declaration_and_the_version_and_no_values(tmp_path: Path) -> None:
    """One that knew values would reveal to a server whether they have changed."""
    usual, other = (Site(declaration=declared(), functions=HOSTILE[name]) for name in ("usual", "NaN"))
    assert usual.spent == other.spent
    assert usual.spent != replace(usual, version="2").spent
    assert usual.spent != replace(usual, declaration=declared(least_count=1)).spent
    charges = SpentUpdates(tmp_path / "state", attempts=1)
    charges.charge(Spent(b"a task", 1, usual.spent))
    for site, number in ((usual, 2), (other, 3)):
        with pytest.raises(PeerMisbehaved) as raised:
            charges.charge(Spent(b"another task", number, site.spent))
        assert raised.value.reason is Reason.ALREADY_ANSWERED
    charges.charge(Spent(b"a task", 2, replace(usual, version="2").spent))


def test_a_file_gives_what_functions_give(tmp_path: Path) -> None:
    found = people(3, 50)
    write_people(tmp_path / "visits.csv", found)
    site = read_site(declared(), str(tmp_path / "visits.csv"), "1")
    plan = Plan(declared())
    read, own = site.columns(), Site(declaration=declared(), functions=functions(found)).columns()
    for kind in plan.kinds.values():
        for one, other in zip(kind.measure(*read), kind.measure(*own), strict=True):
            assert one.tolist() == other.tolist()


def test_a_file_of_functions_is_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text(
        "def functions():\n    return dict.fromkeys(('age', 'weight', 'months'), lambda: [1, 2]) | "
        "dict.fromkeys(('sex', 'stage', 'state'), lambda: ['f', 'm'])\n"
    )
    assert read_site(declared(), f"{tmp_path / 'site.py'}:functions", "1").columns()[1] == 2
