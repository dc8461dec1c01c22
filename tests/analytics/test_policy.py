"""Policy and noise: results hidden from readers, and valid declarations and sessions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.analytics import Declaration, Plan, Site, Statistic, Variable, summed
from secagg.analytics.kinds import KINDS, audited, suppressed
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.privacy.accounting import Adjacency, PrivacyBudget
from secagg.session.ledger import PrivacyLedger
from tests.harness.town_of_sites import TABLE, declared, functions, people

FLOOR = 5


def of_one(kind: str, cells: list[list[int]], least: int = FLOOR) -> dict[str, Any]:
    """Return one statistic of the declaration, from sums of cells."""
    name = next(name for name, each in TABLE["statistics"].items() if each["kind"] == kind and name != "sexes")
    declaration = declared(least_count=least, statistics={name: TABLE["statistics"][name]})
    statistic = declaration.statistics[name]
    return KINDS[kind](statistic, declaration).result([np.array(each) for each in cells])


def test_a_count_below_the_floor_is_not_shown() -> None:
    assert of_one("count", [[4]]) == {"count": None}
    assert of_one("count", [[5]]) == {"count": 5}


@pytest.mark.parametrize("kind", ["sum", "mean", "variance", "correlation"])
def test_a_mean_of_fewer_people_than_the_floor_is_not_shown(kind: str) -> None:
    cells = [[4, 0, 0], [1, 2, 3][: 3 if kind == "correlation" else 1], [9] * (6 if kind == "correlation" else 1)]
    assert of_one(kind, cells) == {"count": None, "clamped": None, kind: None}
    found = of_one(kind, [[5, 4, 0], *cells[1:]])
    assert (found["count"], found["clamped"]) == (5, None)
    assert found[kind] is not None
    # All except the clamped ones are in range, and also fewer than five.
    assert [of_one(kind, [[10, clamped, 9], *cells[1:]])["clamped"] for clamped in (5, 6, 10)] == [5, None, None]


@pytest.mark.parametrize("kind", ["sum", "mean", "variance", "correlation"])
@pytest.mark.parametrize(("missing", "is_told"), [(0, True), (1, False), (4, False), (5, True)])
def test_totals_do_not_tell_the_one_without_a_value(kind: str, missing: int, *, is_told: bool) -> None:
    """The number of all people is known: a count of those with a value, or an exact mean, reveals the others."""
    cells = [
        [100, 50, missing],
        [301, 2, 3][: 3 if kind == "correlation" else 1],
        [990] * (6 if kind == "correlation" else 1),
    ]
    found = of_one(kind, cells)
    assert (found["count"] == 100) == is_told
    assert (found["clamped"] == 50) == is_told
    if kind != "mean" or is_told:
        assert (found[kind] is not None) == is_told
    else:
        # In whole steps of 0.25 around the middle, 50; any number of people can have such a mean.
        assert found["mean"] == 50.75
    assert "sum" not in found or (found["sum"] is not None) == is_told


@pytest.mark.parametrize(("missing", "count"), [(0, 9), (1, None), (4, None), (5, 9)])
def test_a_count_of_a_variable_does_not_tell_the_one_without_a_value(missing: int, count: int | None) -> None:
    statistics = {"aged": {"kind": "count", "of": ["age"]}}
    declaration = declared(least_count=FLOOR, statistics=statistics)
    kind = KINDS["count"](declaration.statistics["aged"], declaration)
    assert kind.result([np.array([9, missing])]) == {"count": count}


def test_a_curve_does_not_tell_the_one_without_a_value() -> None:
    cells = [9, 9, 9, 9, 0, 0, 0, 0, 9]
    assert [len(of_one("survival", [[*cells, missing]])["curve"]) for missing in (0, 1, 4, 5)] == [4, 0, 0, 4]


def shown_alike(size: int, people: int, least: int, lines: list[list[int]]) -> Iterator[tuple[list[int | None], Any]]:
    """Yield each publication of this number of counts, with all counts of this many people that lead to it."""
    found = dict[tuple[int, str], tuple[list[int | None], list[tuple[int, ...]]]]()
    for counts in product(range(people + 1), repeat=size):
        if least <= sum(counts) <= people:
            shown = audited(np.array(counts), lines, least)
            found.setdefault((sum(counts), str(shown)), (shown, []))[1].append(counts)
    for shown, alike in found.values():
        yield shown, np.array(alike)


@pytest.mark.parametrize(
    ("size", "people", "lines"),
    [
        (4, 14, []),
        pytest.param(5, 14, [], marks=pytest.mark.long),
        pytest.param(5, 14, [[0, 1], [2, 3], [0, 2], [1, 3]], marks=pytest.mark.long),
    ],
)
def test_no_reader_who_runs_the_rule_knows_a_hidden_count(size: int, people: int, lines: list[list[int]]) -> None:
    """All counts, grouped by publication: in no group is a count below the minimum always the same."""
    known = 0
    for shown, alike in shown_alike(size, people, 3, lines):
        for place, each in enumerate(shown):
            known += each is None and alike[0, place] < 3 and bool((alike[:, place] == alike[0, place]).all())
    assert not known


def test_a_bin_below_the_floor_is_not_shown_nor_what_would_tell_it() -> None:
    """The number of people is known from another statistic: a single hidden bin would be the difference."""
    found = of_one("histogram", [[9, 4, 8, 20, 7, 30, 40]])
    assert (found["counts"], found["below"], found["above"]) == ([None, 8, 20, None], 9, 30)
    assert of_one("histogram", [[9, 6, 8, 20, 7, 30, 40]])["counts"] == [6, 8, 20, 7]
    assert of_one("histogram", [[9, 2, 3, 20, 7, 30, 40]])["counts"] == [None, None, 20, 7]
    # Zero people are also fewer than five.
    assert of_one("histogram", [[0, 6, 8, 20, 7, 30, 0]])["counts"] == [None, 8, 20, 7]
    assert of_one("histogram", [[9, 6, 8, 20, 7, 30, 1]])["missing"] is None
    assert of_one("histogram", [[9, 6, 8, 20, 7, 30, 1]])["counts"] == [None, 8, 20, None]
    # It is not secret that nobody lacks a value.
    assert of_one("histogram", [[9, 6, 8, 20, 7, 30, 0]])["missing"] == 0


def test_a_quantile_is_of_the_bins_that_are_shown() -> None:
    cells = [[0, 4, 10, 20, 4, 0, 0]]
    assert of_one("histogram", cells)["quantiles"]["0.5"] == 20 + 20 + 20 * 5 / 20
    assert of_one("histogram", cells, 0)["quantiles"]["0.5"] == 40 + 20 * 5 / 20


def test_no_line_of_a_table_tells_a_hidden_cell() -> None:
    found = of_one("table", [[20, 3, 30, 40, 50, 60, 70]])
    # If 40 were shown, the sum of its column would reveal 20, and that of the row 3.
    assert found["counts"] == [[None, None, 30], [None, None, 60]]


@given(st.integers(0, 1 << 32))
def test_hidden_cells_of_a_line_are_never_below_the_floor_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, columns = (int(each) for each in draw.integers(2, 6, 2))
    counts = draw.integers(0, 12, rows * columns + 1)
    places = np.arange(rows * columns).reshape(rows, columns)
    lines = [*map(list, places), *map(list, places.T), list(range(counts.size))]
    shown = suppressed(counts, lines, FLOOR)
    for line in lines:
        hidden = [int(counts[place]) for place in line if shown[place] is None]
        assert not hidden or (len(hidden) > 1 and sum(hidden) >= FLOOR) or len(hidden) == len(line)
    assert all(each is None or each == int(count) >= FLOOR for each, count in zip(shown, counts, strict=True))


@given(st.integers(0, 1 << 32))
def test_a_curve_tells_no_count_below_the_floor(seed: int) -> None:
    """People at risk in two successive rows reveal how many left between them, and the last row how many stayed."""
    draw = np.random.default_rng(seed)
    cells = draw.poisson(draw.uniform(0.5, 8, 10)).tolist()
    rows, least = of_one("survival", [cells])["curve"], FLOOR
    at_risk = sum(cells[:9])
    for row in rows:
        assert row["at_risk"] == at_risk
        assert row["events"] >= least
        assert row["left"] == 0 or row["left"] >= least
        at_risk -= row["events"] + row["left"]
    assert not rows or at_risk == 0 or at_risk >= least
    plain = of_one("survival", [cells], 0)["curve"]
    assert len(plain) == 4
    if rows and [row["end"] for row in rows] == [row["end"] for row in plain]:
        assert [row["survival"] for row in rows] == [row["survival"] for row in plain]


def test_fewer_sites_than_the_floor_have_no_sum() -> None:
    sites = [functions(people(place, 20)) for place in range(5)]
    with pytest.raises(InvalidParameters, match="needs 4 to 100 sites, but 3 take part"):
        summed(declared(least_clients=4), sites, drop=2)
    assert summed(declared(least_clients=4), sites, drop=1).sites == 4
    with pytest.raises(InvalidParameters, match="needs 3 to 4 sites, but 5 take part"):
        summed(declared(least_clients=3, most_clients=4), sites)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_noise_costs_no_more_than_the_declared_epsilon(epsilon: float, delta: float) -> None:
    plan = Plan(declared(epsilon=epsilon, delta=delta, most_people=10_000))
    assert plan.noise is not None
    assert epsilon / 4 < plan.noise.epsilon(delta) <= epsilon
    assert Plan(declared()).noise is None


def test_each_site_adds_its_share_and_the_honest_of_the_least_sum_have_all_of_it() -> None:
    counts = {name: {"kind": "count"} for name in ("people", "again")}
    plan = Plan(declared(epsilon=1.0, least_clients=4, corrupted=1, statistics=counts))
    nobody = Site(declaration=plan.declaration, functions=functions(people(0, 0)))
    sent = [plan.late(nobody, SystemCoins()).take(plan.update.layout).payload.values[0] for _ in range(1000)]
    ring = plan.update.layout.require_rings()[0].ring
    first = np.array([int(ring.lift(each)[0]) for each in sent], dtype=np.float64)
    assert plan.multiplier is not None
    # Two groups of cells; one person changes each by at most one; three honest sites.
    due = float(plan.multiplier) ** 2 * 2 / 3
    assert abs(first.mean()) < 5 * math.sqrt(due / 1000)
    assert 0.8 < first.var() / due < 1.2


def test_a_budget_pays_for_so_many_sums_and_no_more() -> None:
    plan = Plan(declared(epsilon=1.0))
    ledger = PrivacyLedger(PrivacyBudget(epsilon=2.0, delta=1e-6))
    assert plan.noise is not None
    for _ in range(3):
        ledger.charge(plan.noise)
    assert 1.0 < ledger.spent <= 2.0
    while plan.noise.loss(Adjacency.REPLACE).times(ledger.uploads + 1).epsilon(1e-6) <= 2.0:
        ledger.charge(plan.noise)
    with pytest.raises(InvalidParameters, match="its budget is 2"):
        ledger.charge(plan.noise)
    with pytest.raises(InvalidParameters, match="never uploads without noise"):
        ledger.charge(Plan(declared()).noise)


AGE = {"low": 0, "high": 100, "step": 1}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": ""}, "needs a name"),
        ({"statistics": {}}, "at least one statistic"),
        ({"colour": "red"}, "colour is not a field of Declaration"),
        ({"least_clients": 1}, "least_clients must be an integer"),
        ({"least_clients": 200}, "most_clients must be an integer"),
        ({"least_count": -1}, "least_count must be an integer"),
        ({"most_people": 1.5}, "most_people must be an integer"),
        ({"least_people": True}, "least_people must be an integer"),
        ({"corrupted": 3}, "corrupted must be an integer in 0..2"),
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"epsilon": math.nan}, "epsilon must be above 0"),
        ({"epsilon": 1, "delta": 0}, "epsilon must be above 0"),
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"variables": {"age": {"low": 1, "high": 1, "step": 1}}}, "low below high"),
        ({"variables": {"age": {"low": 0, "high": math.inf, "step": 1}}}, "low below high"),
        ({"variables": {"age": {"low": 0, "high": 1, "step": 1e-9}}}, "use a coarser step"),
        ({"variables": {"age": {**AGE, "classes": ["a", "b"]}}}, "needs either distinct classes, or low"),
        ({"variables": {"age": {"classes": ["a", "a"]}}}, "either distinct classes"),
        ({"variables": {"age": {"classes": [1, 2]}}}, "classes must be strings"),
        ({"variables": {"age": 3}}, "not a declaration of statistics"),
        ({"statistics": {"x": {"kind": "median"}}}, "known: count, sum"),
        ({"statistics": {"x": {"kind": 3}}}, "kind must be a string"),
        ({"statistics": {"x": {"kind": "mean"}}}, "needs 1 to 1 distinct variables"),
        ({"statistics": {"x": {"kind": "correlation", "of": ["age", "age"]}}}, "distinct variables"),
        ({"statistics": {"x": {"kind": "mean", "of": ["height"]}}}, "uses 'height'"),
        ({"statistics": {"x": {"kind": "mean", "of": ["sex"]}}}, "needs 1 numeric variables"),
        ({"statistics": {"x": {"kind": "table", "of": ["age"]}}}, "needs 0 numeric variables"),
        ({"statistics": {"x": {"kind": "survival", "of": ["months", "stage"], "edges": [0, 1]}}}, "two classes"),
        ({"statistics": {"x": {"kind": "histogram", "of": ["age"]}}}, "at least two edges"),
        ({"statistics": {"x": {"kind": "histogram", "of": ["age"], "edges": [1, 1]}}}, "at least two edges"),
        ({"statistics": {"x": {"kind": "mean", "of": ["age"], "edges": [1, 2]}}}, "cannot have edges"),
        ({"statistics": {"x": {"kind": "mean", "of": ["age"], "quantiles": [0.5]}}}, "only as a histogram"),
        ({"statistics": {"x": {"kind": "histogram", "of": ["age"], "edges": [1, 2], "quantiles": [1]}}}, "below 1"),
        ({"statistics": {"x": {"kind": "histogram", "of": ["age"], "edges": [*range(70_000)]}}}, "the limit is 65,536"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameters, match=re.escape(said)):
        Declaration.of({**TABLE, **changed})


def test_sums_that_no_ring_holds_are_refused() -> None:
    fine = {"age": {"low": 0, "high": 1, "step": 1e-6}}
    spread = {"x": {"kind": "variance", "of": ["age"]}}
    with pytest.raises(InvalidParameters, match="sums of 'x' need 79 bits; the limit is 64: use a coarser step"):
        Plan(declared(variables=fine, statistics=spread, most_people=1 << 30, most_clients=1 << 10))


def test_noise_that_cannot_be_drawn_is_refused_with_the_declaration() -> None:
    fine = {"age": {"low": 0, "high": 1, "step": 2.0**-21}}
    spread = {"x": {"kind": "variance", "of": ["age"]}}
    with pytest.raises(InvalidParameters, match=r"sites cannot draw the noise for epsilon 1 .*use coarser steps"):
        Plan(declared(variables=fine, statistics=spread, most_people=100, epsilon=1))


def test_a_function_that_is_missing_is_refused_before_any_server_is_asked() -> None:
    with pytest.raises(InvalidParameters, match="the declaration uses 'age'"):
        Site(declaration=declared(), functions={})


def test_a_declaration_is_the_same_however_its_file_is_ordered(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    age, mean = "variables.age = {low = 0, high = 9.0, step = 1}\n", 'statistics.m = {kind = "mean", of = "age"}\n'
    first.write_text('name = "x"\n' + age + mean)
    second.write_text('statistics.m = {of = ["age"], kind = "mean"}\n' + age.replace("9.0", "9") + 'name = "x"\n')
    assert Declaration.read(first).digest == Declaration.read(second).digest
    assert Declaration.read(first).digest != declared().digest
    variable, statistic = Variable(low=0, high=9, step=1), Statistic(kind="mean", of=("age",))
    made = Declaration(name="x", variables={"age": variable}, statistics={"m": statistic})
    assert made.digest == Declaration.read(first).digest
    first.write_text("name = ")
    with pytest.raises(InvalidParameters, match="as TOML"):
        Declaration.read(first)


@pytest.mark.parametrize("part", ["name", "least_clients", "least_count", "least_people", "most_people", "corrupted"])
def test_each_part_of_a_declaration_changes_its_digest(part: str) -> None:
    changed: Any = {"name": "others", "least_clients": 4, "corrupted": 0}.get(part, 7)
    plain = {"statistics": {"people": {"kind": "count"}}}
    assert declared(**plain, **{part: changed}).digest != declared(**plain).digest


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        (
            {"a": {"kind": "mean", "of": ["age"]}, "b": {"kind": "histogram", "of": ["age"], "edges": [0, 1]}},
            "'a', 'b'",
        ),
        ({"a": {"kind": "table", "of": ["sex"]}, "b": {"kind": "table", "of": ["sex", "stage"]}}, "'a', 'b' of 'sex'"),
        (
            {
                "a": {"kind": "survival", "of": ["months", "state"], "edges": [0, 1]},
                "b": {"kind": "sum", "of": ["months"]},
            },
            "'a'",
        ),
        ({"a": {"kind": "count", "of": ["sex"]}, "b": {"kind": "table", "of": ["sex", "stage"]}}, "how many people"),
        ({"a": {"kind": "histogram", "of": ["age"], "edges": [*range(2000)]}}, "more than 1,024 cells"),
    ],
)
def test_a_declaration_whose_statistics_may_tell_what_each_hides_is_refused(statistics: Any, said: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{said}.*leave one out, set least_count = 0, or set an epsilon"):
        declared(least_count=5, statistics=statistics)
    for allowed in ({"least_count": 0}, {"least_count": 5, "epsilon": 1.0}):
        assert not declared(statistics=statistics, **allowed).has_hidden_cells
