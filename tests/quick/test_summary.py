"""Results in a terminal, in a few lines, and in a notebook, as a table; and warnings that are given once."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import secagg
from secagg.analytics.plan import Results
from secagg.quick.in_process import Summary


class Cells(HTMLParser):
    """Collects the text of cells, and the names of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.cells = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_a_sum_is_a_few_lines_without_its_values() -> None:
    updates = {f"hospital {n}": {"a": np.full(5000, n / 10), "b": np.zeros(7)} for n in range(10)}
    result = secagg.aggregate(updates, clip=0.5, drop=2, examples=dict.fromkeys(updates, 8))
    lines = repr(result).splitlines()
    assert lines[:2] == ["PrivateSum", "  clients: 8 of 10"]
    assert lines[2].startswith("  left out: hospital 0 (")
    assert lines[3:5] == ["  examples: 64, of 8 clients that trained", "  mean: 5,007 values in 2 tensors"]
    assert lines[5].startswith("  clipped: 20,000 values; all others within 1.53e-05")
    assert lines[6] == f"  bytes of a client: {result.bytes_sent:,} sent, {result.bytes_received:,} received"
    assert len(lines) == 7
    cells = Cells(result._repr_html_())  # pyright: ignore[reportPrivateUsage]
    assert set(cells.tags) == {"table", "tr", "th", "td"}
    assert cells.cells[:2] == ["clients", "8 of 10"]


def test_many_that_left_are_counted_and_one_array_is_no_tensors() -> None:
    result = secagg.aggregate([np.zeros(3)] * 20, clip=1.0, drop=6)
    assert ", 2 more\n" in repr(result)
    assert "mean: 3 values\n" in repr(result)


def test_names_are_text_in_a_notebook() -> None:
    name = "<script>alert('1')</script>&amp;"
    result = secagg.aggregate({name: np.ones(2), **dict.fromkeys("abcd", np.ones(2))}, clip=1.0, drop=[name])
    text = result._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "<script" not in text
    assert f"{name} (left)" in "".join(Cells(text).cells)


def test_statistics_are_a_line_each() -> None:
    found: dict[str, dict[str, Any]] = {"people": {"count": 90}, "<b>ages</b>": {"counts": list(range(1000))}}
    results = Results(name="outcomes", sites=3, least_count=5, epsilon=None, statistics=found)
    assert isinstance(results, Summary)
    assert "  statistics of: outcomes, 3 sites\n" in repr(results)
    assert "  people: {'count': 90}\n" in repr(results)
    assert max(map(len, repr(results).splitlines())) <= 120
    assert "<b>" not in results._repr_html_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("value", "clip", "said"), [(2.0, 1.0, "beyond the clip"), (1e-9, 1.0, "reaches one step")])
def test_a_bad_clip_is_said_once_for_all_clients(
    caplog: pytest.LogCaptureFixture, value: float, clip: float, said: str
) -> None:
    result = secagg.aggregate([np.full(100, value)] * 10, clip=clip)
    (record,) = (each for each in caplog.records if said in each.getMessage())
    assert record.getMessage().endswith("Other updates of this session are not reported")
    assert result.clipped == (1000 if value > clip else 0)
    secagg.aggregate([np.full(100, value)] * 10, clip=clip)
    assert len([each for each in caplog.records if said in each.getMessage()]) == 2, "each sum says it"
