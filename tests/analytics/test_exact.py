"""Sites' statistics equal those of all their people, computed by plain code, to the last bit."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.analytics import summed
from secagg.session.registry import names
from tests.harness.town_of_sites import EDGES, TIMES, People, declared, functions, people, together

SIZES = (40, 0, 71, 13)


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def rounded(value: float, low: float, high: float, step: float) -> Fraction:
    """Clamp a number, and round it to steps from the middle of its range, half to even."""
    middle = Fraction(low + high) / 2
    return middle + Fraction(step) * round((min(max(value, low), high) - float(middle)) / step)


def kaplan_meier(everybody: People) -> list[tuple[float, int, int, float]]:
    """Follow people interval by interval: at risk, events, and the product of the surviving shares."""
    lives = [
        (max(number(time), 0.0), state)
        for time, state in zip(everybody["months"], everybody["state"], strict=True)
        if state in {"alive", "dead"} and not math.isnan(number(time))
    ]
    # A lifetime counts to the end of its interval; one beyond the last end spans all intervals.
    ends = [(next((end for end in TIMES[1:] if time <= end), math.inf), state) for time, state in lives]
    rows, survival = list[tuple[float, int, int, float]](), 1.0
    for moment in TIMES[1:]:
        at_risk = sum(end >= moment for end, _ in ends)
        events = sum(end == moment and state == "dead" for end, state in ends)
        survival *= 1 - events / at_risk
        rows.append((moment, at_risk, events, survival))
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("protocol", names())
def test_statistics_are_those_of_all_people_together(protocol: Any, seed: int) -> None:
    sites = [people(10 * seed + place, count) for place, count in enumerate(SIZES)]
    everybody = together(sites)
    results = summed(declared(), [functions(site) for site in sites], protocol=protocol)
    found: Any = results.statistics
    assert results.sites == len(SIZES)
    ages = [age for age in map(number, everybody["age"]) if not math.isnan(age)]
    assert found["people"]["count"] == sum(SIZES)
    assert found["aged"]["count"] == found["age"]["count"] == len(ages)
    assert found["age"]["clamped"] == sum(not 0 <= age <= 100 for age in ages)
    steps = [rounded(age, 0, 100, 0.25) for age in ages]
    assert found["years"]["sum"] == found["age"]["sum"] == float(sum(steps))
    assert found["age"]["mean"] == float(sum(steps) / len(ages))
    weights = [rounded(weight, 30, 150, 0.5) for weight in everybody["weight"]]
    mean = sum(weights) / len(weights)
    assert found["weight"]["variance"] == float(sum((each - mean) ** 2 for each in weights) / (len(weights) - 1))
    assert found["weight"]["variance"] == pytest.approx(np.var([float(each) for each in weights], ddof=1))
    assert found["ages"]["counts"] == np.histogram(ages, EDGES)[0].tolist()
    assert found["ages"]["below"] == sum(age < 0 for age in ages)
    assert found["ages"]["above"] == sum(age > 80 for age in ages)
    assert found["ages"]["missing"] == sum(SIZES) - len(ages)
    both = Counter(zip(everybody["sex"], everybody["stage"], strict=True))
    table = [[both[sex, stage] for stage in ("I", "II", "III")] for sex in ("f", "m")]
    assert found["stages"]["counts"] == table
    assert found["stages"]["missing"] == sum(SIZES) - sum(map(sum, table))
    assert found["sexes"]["counts"] == [everybody["sex"].count("f"), everybody["sex"].count("m")]
    rows = [(row["end"], row["at_risk"], row["events"], row["survival"]) for row in found["survival"]["curve"]]
    assert rows == kaplan_meier(everybody)
    limits = {"age": (0, 100, 0.25), "weight": (30, 150, 0.5), "months": (0, 120, 0.1)}
    complete = [
        [float(rounded(each, *limit)) for each, limit in zip(row, limits.values(), strict=True)]
        for row in zip(*(map(number, everybody[name]) for name in limits), strict=True)
        if not any(map(math.isnan, row))
    ]
    assert found["related"]["count"] == len(complete)
    assert np.allclose(found["related"]["correlation"], np.corrcoef(np.array(complete).T), atol=1e-12)


def test_a_quantile_is_where_its_share_of_the_bins_ends() -> None:
    """Forty people, ten in each bin, evenly: a tenth of them is at 8, half at 40."""
    site = people(0, 0) | {"age": [2 * n for n in range(40)]}
    results = summed(declared(), [functions(site), *[functions(people(0, 0))] * 2])
    found: Any = results.statistics["ages"]["quantiles"]
    assert found == {"0.1": 8.0, "0.5": 40.0, "0.9": 72.0}


def test_a_greenwood_error_is_that_of_the_textbook() -> None:
    """Ten at risk, two events, one who left; then seven at risk, one event."""
    site = people(0, 0) | {
        "months": [3, 3, 4, *[7] * 1, *[100] * 6],
        "state": ["dead", "dead", "alive", "dead", *["alive"] * 6],
    }
    results = summed(declared(), [functions(site), *[functions(people(0, 0))] * 2])
    first, second, *_ = results.statistics["survival"]["curve"]
    assert (first["at_risk"], first["events"], first["left"], second["at_risk"]) == (10, 2, 1, 7)
    assert second["survival"] == pytest.approx(0.8 * 6 / 7)
    greenwood = 2 / (10 * 8) + 1 / (7 * 6)
    assert second["standard_error"] == pytest.approx(0.8 * 6 / 7 * math.sqrt(greenwood))


def test_sites_that_are_all_empty_have_statistics_too() -> None:
    results = summed(declared(), [functions(people(0, 0))] * 3)
    found: Any = results.statistics
    assert found["people"]["count"] == 0
    assert found["age"]["mean"] is None
    assert found["weight"]["variance"] is None
    assert found["ages"]["counts"] == [0] * 4
    assert found["ages"]["quantiles"] == {"0.1": None, "0.5": None, "0.9": None}
    assert [row["survival"] for row in found["survival"]["curve"]] == [1.0] * 4
    assert found["related"]["correlation"] is None


def test_a_site_with_fewer_people_than_the_declaration_says_counts_as_empty() -> None:
    sites = [functions(people(place, count)) for place, count in enumerate((40, 9, 10))]
    found: Any = summed(declared(least_people=10), sites).statistics
    assert found["people"]["count"] == 50


def test_people_beyond_the_most_of_a_site_are_not_counted() -> None:
    sites = [functions(people(place, count)) for place, count in enumerate((40, 9, 10))]
    found: Any = summed(declared(most_people=20), sites).statistics
    assert found["people"]["count"] == 39
