"""Figures for people: the bar, tables that fit a terminal, and files that can be written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from secagg.cli.figures import Bar, Column, against_float32, table, writable

COLUMNS = (Column("kept", lambda row: str(row["n"])), Column("first to go", lambda row: str(row["n"]), rank=2))


def test_the_bar_is_drawn_where_somebody_sees_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar()
    bar.update("2 masked input", 1, 4)
    bar.update("2 masked input", 2, 4)  # Too soon after the other to be drawn.
    bar.update("2 masked input", 4, 4)
    bar.clear()
    drawn = capsys.readouterr().err
    assert "2 masked input       [#######.......................] 1 of 4" in drawn
    assert "2 of 4" not in drawn
    assert f"[{'#' * 30}] 4 of 4" in drawn


def test_a_dumb_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    bar = Bar()
    bar.update("2 masked input", 4, 4)
    bar.clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("width", "shown"), [(200, True), (16, False)])
def test_a_narrow_terminal_is_shown_fewer_columns(monkeypatch: pytest.MonkeyPatch, width: int, *, shown: bool) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    def size(*_: object, **__: object) -> os.terminal_size:
        return os.terminal_size((width, 24))

    monkeypatch.setattr("shutil.get_terminal_size", size)
    lines = [*table("name", [("a", {"n": 1}), ("b", {"n": 22})], COLUMNS)]
    assert ("first to go" in lines[0]) is shown
    assert all(len(line) <= width for line in lines)
    assert "kept" in lines[0]


@pytest.mark.parametrize(("sent", "said"), [(50, "2.0 times less"), (100, "1.0 times less"), (120, "1.2 times more")])
def test_an_upload_is_compared_with_float32(sent: int, said: str) -> None:
    assert against_float32(100, sent) == f"{said} than float32"


def test_a_file_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    writable(tmp_path / "new" / "report.json")
    assert not (tmp_path / "new" / "report.json").exists()
    (tmp_path / "old").write_text("kept")
    writable(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "kept"
