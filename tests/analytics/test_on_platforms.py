"""A site under its policy and ledgers, and servers that offer less than it declares."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secagg.analytics import Plan, Site
from secagg.analytics.on_platforms import Answering, round_of, settings_of
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.platforms.client_node import DIRECTORY_VARIABLE, ClientNode, state_folder
from secagg.platforms.client_round import Node
from secagg.platforms.round_task import Rounds, RoundTask
from secagg.platforms.settings import SecAggSettings
from secagg.session.ledger import SpentUpdates
from secagg.session.sealed_state import StateDirectory
from tests.harness.town_of_sites import declared

CLIENTS = [ClientId(number) for number in range(5)]
IDENTITY: Any = SimpleNamespace(client=ClientId(3), authority=SimpleNamespace(public_key=bytes(32)))
RUN = "a run"


class Watched:
    """A site that counts the reads of its data."""

    def __init__(self, **changed: Any) -> None:
        self.read = 0
        declaration = declared(**changed)
        self.site = Site(declaration=declaration, functions=dict.fromkeys(declaration.variables, self._values))

    def _values(self) -> list[int]:
        self.read += 1
        return [1, 2, 3]


@pytest.fixture
def charges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpentUpdates:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    return SpentUpdates(state_folder(), attempts=1)


def offered(plan: Plan, **settings: Any) -> RoundTask:
    """Return the task of a server that ignores the declaration's minimum."""
    given: dict[str, Any] = {"weighting": "uniform", **settings}
    rounds = Rounds(SecAggSettings(**given))
    return rounds.asked(plan.update, plan.asked, clients=len(CLIENTS), task=RUN, number=1)


def joined(answering: Answering, task: RoundTask, folder: Path) -> bytes:
    """Return a site's first answer to a server."""
    node = Node(
        settings=answering.settings,
        config={},
        client=CLIENTS[0],
        run=RUN,
        states=StateDirectory(folder, coins=SystemCoins()),
        custom={},
    )
    with ExitStack() as resources:
        session = task.opened(len(CLIENTS), frozenset(CLIENTS), SystemCoins(), resources)
        resources.callback(session.abort)
        begun = answering.begun(node, task.terms)
        late = answering.late_in(begun, is_new=True)
        subject = task.terms.subject(begun.update, answering.plan.model_digest)
        return begun.member(session.invitation).join(subject, late).answer(session.invitation)


def test_a_site_is_in_no_sum_of_fewer_sites_than_it_declares(tmp_path: Path) -> None:
    watched = Watched(least_clients=4)
    answering = Answering(watched.site)
    assert joined(answering, offered(answering.plan, minimum_cohort=4), tmp_path)
    with pytest.raises(InvalidParameters, match="a cohort of 3 is below 4"):
        joined(answering, offered(answering.plan, minimum_cohort=3), tmp_path)
    assert settings_of(SecAggSettings(), watched.site.declaration).minimum_cohort == 4
    assert watched.read == 0


@pytest.mark.parametrize("changed", [{"name": "others"}, {"least_clients": 4}, {"most_people": 7}, {"epsilon": 1}])
def test_a_site_answers_no_other_declaration(tmp_path: Path, changed: dict[str, Any]) -> None:
    watched = Watched()
    with pytest.raises(InvalidParameters, match=r"declaration differs from this site's|model_digest differs"):
        joined(Answering(watched.site), offered(Plan(declared(**changed)), minimum_cohort=3), tmp_path)
    assert watched.read == 0


def test_a_server_that_names_the_declaration_and_sends_other_parameters_is_refused(tmp_path: Path) -> None:
    """Cells would not fit its layout, and zeros without noise would be sent instead."""
    watched = Watched()
    rounds, answering = Rounds(SecAggSettings(weighting="uniform", minimum_cohort=3)), Answering(watched.site)
    others = Plan(declared(most_people=7)).update
    task = rounds.asked(others, answering.plan.asked, clients=len(CLIENTS), task=RUN, number=1)
    with pytest.raises(InvalidParameters, match="declaration differs from this site's") as raised:
        joined(answering, task, tmp_path)
    assert raised.value.reason is Reason.BELOW_FLOOR
    assert watched.read == 0


def test_more_sites_than_rings_are_made_for_are_refused() -> None:
    rounds = Rounds(settings_of(SecAggSettings(), declared()))
    with pytest.raises(InvalidParameters, match="5 sites are above most_clients = 4"):
        round_of(rounds, Plan(declared(most_clients=4)), clients=5, task=RUN, number=1)


def test_data_are_read_after_both_ledgers_were_charged(charges: SpentUpdates) -> None:
    watched = Watched(epsilon=1)
    answering = Answering(watched.site, ClientNode(epsilon=3.0, attempts=1))
    late = answering.late(charges, RUN, 1, IDENTITY, is_new=True)
    assert watched.read == 0
    late.take(answering.plan.update.layout)
    assert watched.read == len(declared().variables)
    # Whether it is refused before a session or when its update is requested, nothing is read.
    with pytest.raises(PeerMisbehaved, match="has uploaded once for"):
        answering.late(charges, RUN, 2, IDENTITY, is_new=True)
    again = answering.late(charges, RUN, 2, IDENTITY, is_new=False)
    with pytest.raises(PeerMisbehaved, match="has uploaded once for"):
        again.take(answering.plan.update.layout)
    assert watched.read == len(declared().variables)


def test_a_budget_that_is_spent_refuses_before_data_are_read(charges: SpentUpdates) -> None:
    del charges
    watched, many = Watched(epsilon=1), SpentUpdates(state_folder(), attempts=100)
    answering = Answering(watched.site, ClientNode(epsilon=1.5, attempts=100))
    for number in range(2):
        answering.late(many, RUN, number, IDENTITY, is_new=True).take(answering.plan.update.layout)
    assert watched.read == 2 * len(declared().variables)
    with pytest.raises(InvalidParameters, match=r"its budget is 1\.5") as raised:
        answering.late(many, RUN, 2, IDENTITY, is_new=True)
    assert raised.value.reason is Reason.BUDGET_SPENT
    late = answering.late(many, RUN, 2, IDENTITY, is_new=False)
    with pytest.raises(InvalidParameters, match=r"its budget is 1\.5"):
        late.take(answering.plan.update.layout)
    assert watched.read == 2 * len(declared().variables)


def test_a_site_with_a_budget_or_a_floor_of_noise_answers_nothing_without(charges: SpentUpdates) -> None:
    watched = Watched()
    budgeted = Answering(watched.site, ClientNode(epsilon=3.0, attempts=1))
    with pytest.raises(InvalidParameters, match="never uploads without noise"):
        budgeted.late(charges, RUN, 1, IDENTITY, is_new=True)
    with pytest.raises(InvalidParameters, match="requires noise of 2, but the declaration has none"):
        Answering(watched.site, ClientNode(noise=2.0, norm=1.0))
    noised = Watched(epsilon=8)
    with pytest.raises(InvalidParameters, match=r"requires noise of 9, but the declaration has noise of 0\.7"):
        Answering(noised.site, ClientNode(noise=9.0, norm=1.0))
    assert Answering(noised.site, ClientNode(noise=0.5, norm=1.0)).node.noise == 0
    assert watched.read == 0


@pytest.mark.usefixtures("charges")
def test_a_site_answers_one_declaration_about_each_variable_of_its_data() -> None:
    """The counts of two may reveal what each hides; it is refused before data is read, never after."""
    ages = {"ages": {"kind": "histogram", "of": ["age"], "edges": [0, 50, 100]}}
    finer = {"ages": {"kind": "histogram", "of": ["age"], "edges": [0, 25, 50, 100]}}
    sexes = {"sexes": {"kind": "table", "of": ["sex"]}}

    def asked(watched: Watched, number: int) -> None:
        many = SpentUpdates(state_folder(), attempts=100)
        Answering(watched.site).late(many, RUN, number, IDENTITY, is_new=True).take(
            Plan(watched.site.declaration).update.layout
        )

    for number, statistics in enumerate((ages, sexes, ages)):
        asked(Watched(statistics=statistics, least_count=5), number)
    for changed in ({"statistics": finer, "least_count": 5}, {"statistics": finer}):
        watched = Watched(**changed)
        with pytest.raises(
            InvalidParameters, match=r"the declaration that shows 'age' is .* may together reveal a count"
        ) as refused:
            asked(watched, 9)
        assert refused.value.reason is Reason.BELOW_FLOOR
        assert watched.read == 0
    asked(Watched(statistics=finer, least_count=5, epsilon=1.0), 9)
    other = Watched(statistics=finer, least_count=5)
    other.site = replace(other.site, version="2")
    asked(other, 10)


@pytest.mark.usefixtures("charges")
def test_a_session_in_which_nothing_was_uploaded_leaves_the_other_declaration_possible() -> None:
    """A server can begin any number of sessions; only charged results were revealed."""
    ages = Watched(statistics={"ages": {"kind": "histogram", "of": ["age"], "edges": [0, 50, 100]}}, least_count=5)
    finer = Watched(statistics={"ages": {"kind": "histogram", "of": ["age"], "edges": [0, 25, 100]}}, least_count=5)
    many = SpentUpdates(state_folder(), attempts=100)
    begun = Answering(finer.site).late(many, RUN, 1, IDENTITY, is_new=True)
    late = Answering(ages.site).late(many, RUN, 2, IDENTITY, is_new=True)
    late.take(Plan(ages.site.declaration).update.layout)
    with pytest.raises(InvalidParameters, match="may together reveal a count"):
        begun.take(Plan(finer.site.declaration).update.layout)
    assert finer.read == 0
