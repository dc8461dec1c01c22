"""The README, the examples and the tables of results show what the program does today."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.parameters import SecurityMode
from secagg.platforms.settings import SecAggSettings
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.session.client_policy import usual_corrupted
from tests.harness.documents import blocks_of, run_python

INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s][^)\s]*)\)")
ROOMS = ("compression", "interop", "protocols", "proofs", "tests", "benchmarks", "examples", "training")
MAKE_COMMAND = re.compile(r"\bmake ([a-z][a-z-]*)")
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
SECTION = re.compile(r"^## Two commands\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "document", ["README.md", "protocols/enclave/README.md", "secagg/session/README.md", "training/README.md"]
)
def test_every_python_block_runs(
    repository: Path, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (repository / document).read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(text) if block.language == "python"]
    assert blocks, f"{document} shows no example: add a fenced block marked `python`"
    run_python(blocks, document)


def test_the_two_commands_are_make_targets(readme: str, repository: Path) -> None:
    section = SECTION.search(readme)
    assert section, "README.md has no section `## Two commands`"
    code = [block.body for block in blocks_of(section[1])] + INLINE_CODE.findall(section[1])
    commands = {command for text in code for command in MAKE_COMMAND.findall(text)}
    targets = set(MAKE_TARGET.findall((repository / "Makefile").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= commands, "the section `Two commands` must name `make demo` and `make test`"
    assert commands <= targets, f"README.md names targets that are not in the Makefile: {sorted(commands - targets)}"


def test_the_demo_table_equals_the_output_of_make_demo(readme: str, repository: Path) -> None:
    found = json.loads((repository / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))
    demo = runpy.run_path(str(repository / "benchmarks" / "training_demo.py"))
    assert tuple(found["changes"]) == demo["CHANGES"], "`make demo` has changed: write its result again"
    assert "\n".join(demo["table"](found)) in readme
    assert demo["conditions"](found) in " ".join(readme.split())


def test_statements_on_accuracy_and_size_match_committed_results(readme: str, repository: Path) -> None:
    results, text = repository / "benchmarks" / "results", " ".join(readme.split())
    plain, coded = json.loads((results / "demo.json").read_text(encoding="utf-8"))["runs"]
    times = round(plain["payload bytes"] / coded["payload bytes"], -2)
    sent = round(plain["bytes"] / coded["bytes"], -1)
    assert f"updates are {times:.0f} times smaller, and a client's whole upload {sent:.0f} times" in text
    cells = json.loads((results / "iso_accuracy.json").read_text(encoding="utf-8"))["cells"]
    cell = next(cell for cell in cells if cell["name"] == "peak 128")
    low, high = cell["loss, interval"]
    lost = f"it loses [{cell['loss']} points](benchmarks/results/iso_accuracy.json) (95 % interval: {low} to {high})"
    assert len(cell["seeds"]) == 5
    assert lost in text
    tasks = json.loads((results / "transfer.json").read_text(encoding="utf-8"))["cpu"]["cells"]
    found = [cell["points lost"] for cell in tasks if cell["cell"] == "auto 0.001"]
    assert (sum(points <= 1 for points in found), len(found)) == (5, 6)
    assert "[five of six tasks](benchmarks/README.md#training) within a point" in text


def test_the_table_of_dropouts_is_what_sessions_tolerate(readme: str) -> None:
    rows = [line.strip("| ").split(" | ") for line in readme.splitlines() if line.startswith("|")]
    (clients,) = (list(map(int, row[1:])) for row in rows if row[0] == "clients")
    assert clients == [3, 5, 10, 20]
    told = {row[0]: list(map(int, row[1:])) for row in rows if row[-1].isdecimal() and row[0] != "clients"}
    planned = [SecAggSettings().tolerated_dropouts(count) for count in clients]
    for mode, name in ((SecurityMode.ACTIVE, "with keys"), (SecurityMode.SEMI_HONEST, "without")):
        sessions = (PairwiseOptions(mode=mode, corrupted=usual_corrupted(count)) for count in clients)
        most = [one.most_dropped(count) for one, count in zip(sessions, clients, strict=True)]
        assert told.pop(f"`pairwise` {name}, at most") == most
        for count, gone in zip(clients, most, strict=True):
            # With the setting that the README names, a run tolerates this number.
            share, roster = (count - (gone or 0)) / count, "keys/roster.txt" if name == "with keys" else ""
            assert SecAggSettings(threshold=share, roster=roster).tolerated_dropouts(count) == gone
    assert told.pop("by default") == planned
    assert not told


def test_no_document_says_to_install_from_a_package_index(repository: Path) -> None:
    """The name in a package index could belong to somebody else."""
    folders = ("examples", "docs", "secagg", "compression", "protocols", "training")
    files = [*repository.glob("*.md"), *(file for folder in folders for file in (repository / folder).rglob("*"))]
    saying = [
        file.relative_to(repository).as_posix()
        for file in files
        if file.suffix in {".md", ".py", ".ipynb"}
        if re.search(r"pip install [\"']*secagg", file.read_text(encoding="utf-8"))
    ]
    assert not saying, f"write `pip install .` in a checkout; found {saying}"


def test_an_enclave_and_holders_release_a_sum_of_few_clients() -> None:
    few: dict[str, Any] = {"minimum_cohort": 3, "roster": "keys/roster.txt"}
    assert SecAggSettings(protocol="enclave", **few).least_cohort(20) == 3
    assert SecAggSettings(protocol="one-message", epoch="record", holders="0.sock", **few).least_cohort(20) == 3


def test_the_table_of_protocols_equals_the_bytes_of_a_session(repository: Path, tmp_path: Path) -> None:
    text = (repository / "protocols" / "README.md").read_text(encoding="utf-8")
    command = re.search(r"`secagg (round [^`]+)`", text)
    assert command
    rows = re.findall(r"^\| \[.*\| ([\d.]+) kB, ([\d.]+)[^|]*\| ([\d.]+) kB \|$", text, re.MULTILINE)
    protocols = ("pairwise", "one-message", "enclave", "two-servers", "lightsecagg")
    for protocol, row in zip(protocols, rows, strict=True):
        options = command[1] if protocol not in {"enclave", "two-servers"} else command[1].replace("--corrupted 5 ", "")
        assert main([*options.split(), "--protocol", protocol, "--json", str(tmp_path / "round.json")]) == 0
        found = json.loads((tmp_path / "round.json").read_text(encoding="utf-8"))
        sent, received = found["bytes sent by a client"], found["bytes received by a client"]
        told = tuple(map(float, row))
        # Dropouts are random, and a client receives a message for each neighbour that drops out.
        assert told[::2] == pytest.approx((sent / 1000, received / 1000), abs=0.1), protocol
        assert told[1] == pytest.approx(sent / found["bytes of the packed vector"], abs=0.001), protocol


def test_every_link_to_a_file_resolves(repository: Path) -> None:
    documents = [*repository.glob("*.md"), *(file for room in ROOMS for file in (repository / room).rglob("*.md"))]
    broken = [
        f"{document.relative_to(repository)}: {target}"
        for document in documents
        for target in LINK.findall(document.read_text(encoding="utf-8"))
        if "://" not in target and not (document.parent / target.partition("#")[0]).exists()
    ]
    assert not broken, "create these files or fix the links:\n" + "\n".join(broken)


PATIENCE_SECONDS = 600


@pytest.mark.parametrize("script", ["analytics.py", "adapters/attack.py", "statistics/three_sites.py"])
def test_a_script_runs(repository: Path, tmp_path: Path, script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-W", "error", str(repository / "examples" / script)]
    child = subprocess.run(  # noqa: S603 -- a script of this repository
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout


def test_a_notebook_shows_its_current_output(repository: Path) -> None:
    notebook = json.loads((repository / "examples" / "first_sum.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    cells: list[dict[str, Any]] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        printed = io.StringIO()
        program = compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)  # noqa: S102 -- the notebook of this repository is what is tested
        shown = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed.getvalue() == shown, f"run cell {number} again, and save the notebook with its outputs"
        assert cell["execution_count"] == number
    assert len(cells) > 1


def test_every_example_is_described_in_the_readme(repository: Path) -> None:
    folder = repository / "examples"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    missing = [
        entry.name for entry in folder.iterdir() if entry.name != "README.md" and f"]({entry.name}" not in listed
    ]
    assert not missing, f"describe these in examples/README.md: {missing}"


def test_the_table_equals_the_record(repository: Path, tmp_path: Path) -> None:
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


def test_the_table_of_processors_equals_their_measurements(repository: Path) -> None:
    results = repository / "benchmarks" / "results"
    made = runpy.run_path(str(repository / "benchmarks" / "processors.py"))["table"]
    files = sorted((results / "processors").glob("*.json"))
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    kept = results / "processors.md"
    assert made(runs) == kept.read_text(encoding="utf-8")
