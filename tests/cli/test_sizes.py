"""`secagg sizes`: both forms of its output, its exit status, and its choices."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from secagg.cli import main
from secagg.planning.paper import PRINTED, Table


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["sizes", "--json", *arguments]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_the_cells_are_counted_and_the_two_differing_ones_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sizes"]) == 0
    printed = capsys.readouterr().out
    assert "184 of 184 size cells and 182 of 184 factor or percent cells match." in printed
    assert printed.count("factor differs") == 2
    assert printed.count("the rounded size of the model") == 2


def test_a_row_holds_the_computed_number_beside_the_printed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sizes", "--table", "pq"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["dataset", "k", "d", "KB", "printed", "factor", "printed", "wire", "bytes"]
    (femnist,) = [line.split() for line in lines if line.split()[:3] == ["FEMNIST", "64", "18"]]
    assert femnist == ["FEMNIST", "64", "18", "495.1", "495.1", "88.4", "88.4", "506975"]


def test_json_has_an_object_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys)
    assert len(rows) == 368
    assert sum(row["match"] for row in rows) == 366
    assert all(row["match"] == (row["printed"] == row["computed"]) for row in rows)
    assert [row["parameters"] for row in rows if "explanation" in row] == [{"p": 1}, {"p": 9}]
    assert {row["accounting"] for row in rows} == {"paper"}


def test_json_names_what_a_cell_is(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = rows_of(capsys, "--table", "pruning")
    assert first == {
        "table": "pruning",
        "dataset": "CelebA",
        "parameters": {"sparsity": 0.1},
        "quantity": "uplink_kb",
        "accounting": "paper",
        "printed": 103.0,
        "computed": 103.0,
        "exact": 105492 / 1024,
        "match": True,
        "wire_bytes": 105492 + 39,
    }
    assert (second["quantity"], second["computed"]) == ("factor", 1.1)


@pytest.mark.parametrize("table", Table)
def test_every_table_can_be_asked_for_by_its_name(capsys: pytest.CaptureFixture[str], table: Table) -> None:
    rows = rows_of(capsys, "--table", table)
    assert {row["table"] for row in rows} == {table}
    assert len(rows) == 2 * len(PRINTED[table])


def test_an_unknown_table_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sizes", "--table", "accuracy"])
    refusal = capsys.readouterr().err
    assert all(table in refusal for table in Table)


def test_a_difference_that_nothing_explains_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = PRINTED[Table.PRUNING]
    monkeypatch.setitem(PRINTED, Table.PRUNING, (replace(first, size="103.1"), *others))
    assert main(["sizes", "--table", "pruning"]) == 1
    printed = capsys.readouterr().out
    assert "uplink_kb differs" in printed
    assert "53 of 54 size cells" in printed
    assert main(["sizes", "--table", "pruning", "--json"]) == 1
