"""The command: its output, pictures, files and refusals."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from secagg import cli
from secagg.cli import main
from secagg.cli.figures import Bar, Column, against_float32, table, writable, write_json
from secagg.errors import InvalidParameters
from tests.harness.commands import refusal


def test_the_demo_recovers_the_exact_sum_and_says_where_its_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--clients", "9", "--drop", "2", "--out", str(tmp_path / "new")]) == 0
    report = json.loads((tmp_path / "new" / "report.json").read_text())
    assert report["sum equals the survivors' sum exactly"] is True
    assert report["dropped before upload"] == ["client/1", "client/5"]
    assert (tmp_path / "new" / "who_sees_what.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert str(tmp_path / "new" / "report.json") in printed
    assert str(tmp_path / "new" / "who_sees_what.png") in printed


def test_the_demo_runs_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["demo", "--clients", "3", "--out", str(tmp_path)]) == 0
    assert "plot" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clients", "2"], "--clients must be between 3 and 100"),
        (["--clients", "101"], "--clients must be between 3 and 100"),
        (["--clients", "12", "--drop", "5"], "at most 4 dropouts"),
        (["--clients", "12", "--drop", "-1"], "--drop is -1"),
    ],
)
def test_an_impossible_demo_is_refused_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert sentence in refusal(capsys, "demo", "--out", str(tmp_path / "unused"), *options)
    assert not (tmp_path / "unused").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "use another path" in refusal(capsys, "demo", "--out", str(tmp_path / "file"))


def test_who_is_lost_is_no_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def lost(_: object) -> int:
        raise ConnectionError("the storage lost an opened range; nothing is released")

    monkeypatch.setattr("secagg.cli.demo.run_demo", lost)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "secagg: the storage lost an opened range; nothing is released\n"


def test_the_bare_command_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name}" in printed for name in ("round", "plan", "server", "holder", "train"))


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


def commands_in(text: str) -> list[str]:
    """Return the commands that a help text lists below the name of their group."""
    listed = re.search(r"\n  (COMMAND|HARDWARE)\b.*\n((    .*\n)+)", text)
    return [] if listed is None else re.findall(r"^    (\S+)", listed[2], re.MULTILINE)


def test_there_are_twelve_commands_whose_first_options_fit_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    waiting: list[tuple[str, ...]] = [(name,) for name in commands_in(help_of(capsys))]
    assert len(waiting) == 12
    seen = list[tuple[str, ...]]()
    while waiting:
        command = waiting.pop()
        seen.append(command)
        text = help_of(capsys, *command)
        waiting += [(*command, name) for name in commands_in(text)]
        before, _, options = text.partition("\noptions:\n")
        lines = f"{before}\noptions:\n{options.partition(chr(10) * 2)[0]}".splitlines()
        assert len(lines) <= 24, f"secagg {' '.join(command)} --help: its first options end at line {len(lines)}"
    assert {("holder", "serve"), ("server", "keys"), ("train", "data", "prepare"), ("node", "trust")} <= set(seen)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rund", "argument COMMAND: unknown value 'rund'; did you mean round? (`secagg --help`)"),
        ("plan --model femnst", "femnst is neither .npz nor .safetensors; name a file of named tensors"),
        ("plan --blocks 99 --codewrds 64", "there is no --codewrds; did you mean --codewords? (`secagg plan --help`)"),
        ("plan --blocks 99 --absent 3", "there is no --absent; did you mean --dropped? (`secagg plan --help`)"),
        ("plan --blocks 99 --dropouts=3", "there is no --dropouts; did you mean --dropped? (`secagg plan --help`)"),
        (
            "plan --blocks 99 --suite=x",
            "argument --suite: unknown value 'x'; there are classic, hybrid (`secagg plan --help`)",
        ),
        ("demo --clents=3", "there is no --clents; did you mean --clients? (`secagg demo --help`)"),
        ("demo spare", "unrecognized arguments: spare (`secagg demo --help`)"),
        ("server kees", "argument COMMAND: unknown value 'kees'; did you mean keys? (`secagg server --help`)"),
        (
            "round --protocol secagg+",
            "argument --protocol: there is no protocol 'secagg+'; did you mean pairwise? (`secagg round --help`)",
        ),
        ("round --clients x", "argument --clients: invalid int value: 'x' (`secagg round --help`)"),
    ],
)
def test_a_misspelt_argument_is_one_sentence_with_what_may_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    assert refusal(capsys, *arguments.split()) == f"secagg: {said}\n"


def test_a_setting_has_the_name_that_the_command_gives_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Platforms share settings with `secagg serve`; a file may have a name like theirs."""

    def refused(_: object) -> int:
        raise InvalidParameters(
            "/etc/secagg-roster and secagg-x.json: name them with secagg-data-name by secagg-protocol"
        )

    monkeypatch.setattr("secagg.cli.serve.run_serve", refused)
    said = refusal(capsys, "serve", "--values", "4")
    assert said == "secagg: /etc/secagg-roster and secagg-x.json: name them with --set data-name by --protocol\n"


def test_commands_that_are_imported_when_they_run_are_there() -> None:
    """They are named in strings, which type checkers do not check."""
    sources = "".join(file.read_text(encoding="utf-8") for file in Path(str(cli.__file__)).parent.rglob("*.py"))
    named = re.findall(r'when_run\("([\w.]+)", "(\w+)"\)', sources)
    assert len(named) > 10
    assert all(callable(getattr(import_module(module), name)) for module, name in named)


def test_nothing_that_a_command_makes_is_for_others_to_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert main(["keys", "--clients", "1", "--out", str(tmp_path / "keys")]) == 0
        assert main(["demo", "--clients", "3", "--out", str(tmp_path / "demo")]) == 0
    finally:
        os.umask(before)
    made = [tmp_path / "keys", tmp_path / "demo", *tmp_path.glob("*/*")]
    assert len(made) > 5
    assert not [path for path in made if path.stat().st_mode & 0o022]


def test_an_interrupted_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secagg.simulation.rehearsal.run", interrupt)
    assert main(["round", "--clients", "3", "--dimension", "10"]) == 130
    assert capsys.readouterr().err == "\nsecagg: interrupted; nothing was released\n"


COLUMNS = (Column("kept", lambda row: str(row["n"])), Column("first to go", lambda row: str(row["n"]), rank=2))


def test_the_bar_is_drawn_where_somebody_sees_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar()
    bar.update("2 masked input", 1, 4)
    bar.update("2 masked input", 2, 4)  # Too soon after the previous one to be drawn.
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
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    for place in (tmp_path / "device", tmp_path, tmp_path / "pipe"):
        # Root would replace a device, and a pipe would never be opened.
        with pytest.raises(InvalidParameters, match="name a regular or new file"):
            writable(place)
        with pytest.raises(InvalidParameters, match="name a regular"):
            write_json(place, {})
    assert (tmp_path / "old").read_text() == "kept"
