"""A benchmark's verdict on a figure: met, missed, or a limit that its floor explains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from figures import Figure


@pytest.mark.parametrize(
    ("value", "at_least", "at_most", "limit", "verdict"),
    [
        (1.0, None, 1.5, None, "met"),
        (1.5, None, 1.5, 3.0, "met"),
        (1.6, None, 1.5, None, "MISSED"),
        (2.9, None, 1.5, 3.0, "limit 3.00"),
        (3.1, None, 1.5, 3.0, "MISSED"),
        (9.0, 8.0, None, None, "met"),
        (7.0, 8.0, None, None, "MISSED"),
        (7.0, 8.0, None, 6.0, "limit 6.00"),
        (5.0, 8.0, None, 6.0, "MISSED"),
        (5.0, None, None, 6.0, ""),
    ],
)
def test_a_missed_target_is_a_limit_only_where_its_parts_explain_it(
    value: float, at_least: float | None, at_most: float | None, limit: float | None, verdict: str
) -> None:
    figure = Figure(
        name="client", value=value, unit="x", at_least=at_least, at_most=at_most, limit=limit, why="masks 1.1"
    )
    assert figure.verdict == verdict
    assert ("masks 1.1" in figure.line()) is verdict.startswith("limit")
