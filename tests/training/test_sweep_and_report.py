"""Sweeps repeat nothing; reports show all columns; the command reports errors before it trains."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.training import driver
from secagg.training.configuration import CompressionSettings, Configuration, Scheme, SumSettings
from secagg.training.driver import read_grid, sweep, train
from secagg.training.records import Accuracy, RoundRecord
from secagg.training.reports import Cell, FinishedRun, cells_of, conclusion, figures_of, read_runs, table
from secagg.training.rounds import Pieces

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
GRID = """
preset = "fashion-none"
seeds = [0, 1]
set = ["rounds=1", "clients_per_round=5", "evaluation.every=1", "local.batch=4"]
[[cell]]
name = "none"
[[cell]]
name = "sq"
set = {compression.scheme = "sq", compression.wrap = true}
[axes]
"server.rate" = [0.5, 1.0]
"""


@pytest.fixture
def grid(tmp_path: Path, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a grid of the toy task."""

    def trained(run: Configuration, out: Path, *, resume: bool) -> object:
        return train(run, out, resume=resume, pieces=toy_pieces(run))

    monkeypatch.setattr(driver, "train", trained)
    file = tmp_path / "grid.toml"
    file.write_text(
        GRID.replace("set = {compression.scheme", 'set = {"compression.scheme"').replace(
            ", compression.wrap", ', "compression.wrap"'
        )
    )
    return file


def test_a_sweep_trains_every_cell_with_every_seed_and_nothing_twice(grid: Path, tmp_path: Path) -> None:
    lines = list[str]()
    results = sweep(read_grid(grid), tmp_path / "runs", told=lines.append)
    assert len(results) == 2 * 2 * 2
    assert lines[0] == "8 runs, 0 of them finished"
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("metrics.jsonl")}
    lines.clear()
    assert sweep(read_grid(grid), tmp_path / "runs", told=lines.append) == results
    assert lines == ["8 runs, 8 of them finished"]
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("metrics.jsonl")}
    _, _, first, *others = table(cells_of(read_runs([tmp_path / "runs"])))
    assert len(others) == 3
    assert first.startswith("| none, rate 0.5 | 2 | 1 |")


def test_a_cell_that_fails_says_why_and_the_others_go_on(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_seed = grid.read_text().replace("seeds = [0, 1]", "seeds = [0]")
    grid.write_text(one_seed.replace('"compression.wrap" = true', '"compression.wrap" = false'))
    results = sweep(read_grid(grid), tmp_path / "runs")
    failed = [result for result in results if "error" in result]
    assert len(failed) == 2
    assert all("capacity" in result["error"] for result in failed)
    assert main(["train", "sweep", str(grid), "--out", str(tmp_path / "runs")]) == 1
    shown = capsys.readouterr().out
    assert shown.count(" failed: the capacity") == 2
    assert shown.count("| none, rate") == 2


def test_a_folder_of_another_sweep_is_refused(grid: Path, tmp_path: Path) -> None:
    grid.write_text(grid.read_text().replace("seeds = [0, 1]", "seeds = [0]"))
    sweep(read_grid(grid), tmp_path / "runs")
    grid.write_text(grid.read_text().replace("rounds=1", "rounds=3"))
    with pytest.raises(InvalidParameters, match="a different configuration"):
        sweep(read_grid(grid), tmp_path / "runs")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds", "seed", "also has seed"),
        ('preset = "fashion-none"', "", "either a preset or a config"),
        ("server.rate", "server.rat", "nearest"),
        ("rounds=1", "rounds", "key=value"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid: Path, old: str, new: str, message: str) -> None:
    grid.write_text(grid.read_text().replace(old, new))
    with pytest.raises(InvalidParameters, match=message):
        list(read_grid(grid).runs())


@pytest.fixture
def runs(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> Path:
    """Train runs that appear in every figure."""
    cells = {
        "none": ("secagg.mode=real", 'secagg.settings=["topology=full"]'),
        "sq 6/8": ("compression.scheme=sq", "compression.wrap=true"),
        "sq 8/8": ("compression.scheme=sq", "compression.wrap=true", "compression.bits=8"),
        "<pq> & others": ("compression.scheme=pq", "secagg.protocol=enclave", "secagg.mode=real"),
        "pruning": ("compression.scheme=pruning",),
        "pruning, every 2": ("compression.scheme=pruning", "compression.refresh=2"),
    }
    for number, (name, changes) in enumerate(cells.items()):
        for seed in range(1 if number else 2):
            run = toy_run("rounds=2", "evaluation.every=1", f'name="{name}"', f"seed={seed}", *changes)
            train(run, tmp_path / "runs" / f"{number}-{seed}", pieces=toy_pieces(run))
    return tmp_path / "runs"


def test_a_report_has_every_column_that_says_something_and_every_figure(runs: Path, tmp_path: Path) -> None:
    """The command writes it without torch."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from secagg.cli import main\n"
        f"sys.exit(main(['train', 'plot', {str(runs)!r}, '--out', {str(tmp_path / 'figures')!r}]))"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert child.returncode == 0, child.stderr
    assert [len(cell.runs) for cell in cells_of(read_runs([runs]))] == [2, 1, 1, 1, 1, 1], "seeds make one cell"
    text = (tmp_path / "figures" / "report.md").read_text(encoding="utf-8")
    header = next(line for line in text.splitlines() if line.startswith("| run"))
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "run",
        "seeds",
        "rounds",
        "final, %",
        "by validation, %",
        "best, %",
        "payload, KB",
        "wire up, KB",
        "wire down, KB",
        "model down, KB",
        "by the paper's count, KB",
        "times smaller",
        "overflow, %",
        "overflow_flsim, %",
        "protocol, s a round",
        "lost",
        "failed rounds",
    ]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    names = {"accuracy-both-ways", "accuracy-uplink", "convergence"}
    assert set(re.findall(r"\]\((\S+)\.svg\)", text)) == names
    for kind in ("png", "svg"):
        assert {file.stem for file in (tmp_path / "figures").glob(f"*.{kind}")} == names


def test_pictures_of_a_report_say_what_the_runs_were_and_draw_bars_of_several_seeds_alone(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = {name: figure for name, _, figure in figures_of(cells_of(read_runs([runs])))}
    for figure in drawn.values():
        lines = figure.get_suptitle().splitlines()
        assert lines[1].endswith("of them in each of 2 rounds, 2 or 1 seeds")
        assert lines[2] == "pairwise or enclave, run for real or summed in the clear"
    (axes,) = drawn["accuracy-uplink"].axes
    assert [bar.has_yerr for bar in axes.containers] == [True, False, False, False, False, False]
    legend = [text.get_text() for text in drawn["convergence"].axes[0].get_legend().get_texts()]
    assert {
        "uncompressed",
        "product quantization, 64 codewords of 4",
        "scalar quantization, 6 bits in a ring of 8",
    } <= {*legend}
    assert "random pruning, 1 value in 10 (pruning, every 2)" in legend, "words alone would name two runs"


def cell_of(name: str, accuracy: float, kilobytes: float, scheme: Scheme) -> Cell:
    test = Accuracy(accuracy=accuracy, loss=0.0)
    record = RoundRecord(round=1, epoch=0, parameters=1, clients=1, contributors=1, test=test)
    record = replace(record, payload_bytes=round(1024 * kilobytes))
    run = Configuration(
        name=name, compression=CompressionSettings(scheme=scheme), secagg=SumSettings(protocol="enclave")
    )
    return Cell(name, (FinishedRun(Path(), run, (record,), 1),))


def test_a_report_concludes_which_update_is_the_smallest_that_costs_no_accuracy() -> None:
    plain, coarse = cell_of("plain", 0.80, 60, Scheme.NONE), cell_of("coarse", 0.70, 1, Scheme.PRODUCT)
    fine, fair = cell_of("fine", 0.80, 20, Scheme.SCALAR), cell_of("fair", 0.795, 6, Scheme.PRODUCT)
    found = conclusion([plain, coarse, fine, fair])
    assert "**fair** sends the least: 10.0 times less" in found
    assert "A single seed" in found
    assert conclusion([plain, coarse]) == "No other run comes within 1 point of the uncompressed one (80.0 %)."
    assert "None of these runs is uncompressed" in conclusion([fair])


def test_half_a_point_does_not_fill_a_picture() -> None:
    pytest.importorskip("matplotlib")
    cells = [cell_of("plain", 0.80, 60, Scheme.NONE), cell_of("fair", 0.795, 6, Scheme.PRODUCT)]
    (axes,) = next(figure for _, _, figure in figures_of(cells)).axes
    low, high = axes.get_ylim()
    assert high - low >= 6
    assert low < 79.5
    assert high > 80


def test_two_copies_of_a_run_are_one_seed(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    run, one = toy_run("rounds=2"), tmp_path / "one"
    train(run, one, pieces=toy_pieces(run))
    for name in ("copy", "another"):
        shutil.copytree(one, tmp_path / name)
    lines = (tmp_path / "copy" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "copy" / "metrics.jsonl").write_text(lines[0])
    (cell,) = cells_of(read_runs([tmp_path]))
    assert [len(run.records) for run in cell.runs] == [len(lines)], "the longest counts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "fashon-pq"], "the nearest is 'fashion-pq'"),
        (["train", "--preset", "fashion-sq", "--set", "compression.wrap=false"], "capacity"),
        (["train", "--preset", "celeba-sq"], "secagg train data prepare celeba"),
        (["train", "--preset", "fashion-none", "--set", "device=cuda:63"], "device"),
        (["train", "--preset", "fashion-none", "--set", "engine=steam"], "unknown engine"),
        (["train", "--preset", "fashion-none", "--set", "model=transformer"], "unknown model"),
        (["train", "--preset", "fashion-pq", "--set", 'compression.layers=["head.bias=8/2"]'], "head.bias"),
        (["train", "--preset", "fashion-none", "--set", "clients_per_round=2000"], "lower clients_per_round"),
        (["train", "--preset", "fashion-none", "--set", "privacy.noise_multiplier=1"], "set local.clip"),
        (["train", "--preset", "femnist-none", "--set", "data.root=damaged"], "damaged/data/train/all.json"),
        (["plan", "--seconds", "fashion-pq", "--set", "rounds=0"], "rounds must be an integer between 1 and"),
        (["train", "plot", "."], "has no run"),
    ],
)
def test_the_command_says_what_is_wrong_before_it_trains(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for half in ("train", "test"):
        file = tmp_path / "damaged" / "data" / half / "all.json"
        file.parent.mkdir(parents=True)
        file.write_text('{"users": ["a"], "num_samples": [1], "user_data": {')
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_the_command_trains_goes_on_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [f"--set={change}" for change in ("rounds=2", "clients_per_round=3", "data.clients=100", "workers=1")]
    assert main(["train", "--preset", "fashion-pq", *small, "--out", "run"]) == 0
    printed = capsys.readouterr()
    assert "36.7 times less than float32" in printed.out
    assert "round 2 of 2" in printed.err
    assert main(["train", "--config", "run/configuration.toml", "--set=rounds=3", "--out", "run", "--resume"]) == 0
    assert len(read_runs([Path("run")])[0].records) == 3
    before = Path("run/metrics.jsonl").read_bytes()
    assert main(["train", "--preset", "fashion-pq", *small, "--set=seed=5", "--out", "run", "--resume"]) == 2
    assert "seed" in capsys.readouterr().err
    assert Path("run/metrics.jsonl").read_bytes() == before
    assert main(["train", "plot", "run"]) == 0
    assert Path("run/figures/report.md").exists()
    assert main(["train", "data", "info", "fashion"]) == 0
    assert "2,000 test examples" in capsys.readouterr().out


def test_a_configuration_can_be_shown_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "fashion-pq", "--set", "rounds=7", "--show"]) == 0
    assert "rounds = 7" in capsys.readouterr().out
