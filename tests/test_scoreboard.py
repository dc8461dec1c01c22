"""Tables of results show what their records hold, and every attack was run on every library."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path


def test_the_table_is_that_of_the_record(repository: Path, tmp_path: Path) -> None:
    results = repository / "benchmarks" / "results"
    record = json.loads((results / "scoreboard.json").read_text(encoding="utf-8"))
    reports = list[str]()
    for number, library in enumerate(record["libraries"]):
        assert library["attacks"].keys() == record["attacks"].keys()
        report = tmp_path / f"{number}.json"
        report.write_text(json.dumps(library), encoding="utf-8")
        reports.append(str(report))
    made, again = tmp_path / "table.md", tmp_path / "record.json"
    script = repository / "benchmarks" / "scoreboard" / "table.py"
    command = [sys.executable, str(script), str(made), str(again), *reports]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- a script of this repository
    assert made.read_text(encoding="utf-8") == (results / "scoreboard.md").read_text(encoding="utf-8")
    assert json.loads(again.read_text(encoding="utf-8")) == record


def test_the_table_of_processors_is_that_of_their_figures(repository: Path) -> None:
    results = repository / "benchmarks" / "results"
    made = runpy.run_path(str(repository / "benchmarks" / "processors.py"))["table"]
    files = sorted((results / "processors").glob("*.json"))
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    kept = repository / "docs" / "history" / "processors.md"
    assert made(runs) == kept.read_text(encoding="utf-8")
