"""`secagg plan`: tables, advice, both output forms, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from secagg.cli import main
from secagg.contract import IndexSegment
from secagg.platforms.model_files import write_model
from secagg.session.registry import find, names
from tests.harness.commands import refusal
from tests.harness.paper_models import CELEBA, FEMNIST_3_CHANNEL

BLOCKS = ("--blocks", "100000", "--codewords", "32", "--block-size", "4", "--bits", "4")
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan_of(tmp_path: Path) -> Plan:
    def run(*options: str) -> dict[str, Any]:
        assert main(["plan", "--json", str(tmp_path / "new" / "plan.json"), *options]) == 0
        plan: dict[str, Any] = json.loads((tmp_path / "new" / "plan.json").read_text())
        return plan

    return run


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the paper's models as files here."""
    for name, shapes in {"celeba": CELEBA, "femnist": FEMNIST_3_CHANNEL}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({tensor: list(shape) for tensor, shape in shapes.items()}))
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *options: str, width: int = 1000) -> str:
    with patch.dict("os.environ", {"COLUMNS": str(width)}):
        assert main(["plan", *options]) == 0
    return capsys.readouterr().out


def table_of(text: str) -> list[list[str]]:
    """Return the cells of the table, starting with its head."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("scheme"))
    return [re.split(" {2,}", line) for line in lines[start : lines.index("", start)]]


def test_every_column_stands_in_one_line_for_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = table_of(printed(capsys, *BLOCKS))
    assert head == [
        *("scheme", "protocol", "form", "learned", "bits/weight", "up", "down", "between", "in total", "exchanges"),
        *("a client", "server", "round"),
    ]
    (rounded,) = (row for row in rows if row[:2] == ["scalar quantization, 4 bits", "pairwise"])
    assert rounded[2:4] == ["sum", "11.13"]
    assert (rounded[6], rounded[8]) == ("0 B", "5")
    assert all(re.fullmatch(r"[\d.]+ m?s", cell) for cell in rounded[9:])
    assert [row[2] for row in rows if row[:2] == ["product quantization, 32 x 4", "two-servers"]] == [
        *("depth 0", "depth 0, checked")
    ]
    assert rows[0][:2] == ["peak code, 1 of 645", "enclave"]
    # Sixteen rows of two that take indices, four schemes by others, and rounded values by those that round.
    protocols = [find(name) for name in names()]
    others, rounding = sum(IndexSegment not in one.segments for one in protocols), sum(one.rounds for one in protocols)
    assert len(rows) == 16 + 4 * others + rounding


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("options", [BLOCKS, ("--model", "femnist.json", "--clients", "8191")])
def test_no_line_is_wider_than_the_terminal(
    width: int, options: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = printed(capsys, *options, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "\033" not in text
    head, *rows = table_of(text)
    assert {"protocol", "up"} <= set(head)
    assert ("round" in head) == (width >= 80)
    assert all(len(row) in {len(head), len(head) - 1} for row in rows)


def test_a_pipe_gets_a_hundred_columns_in_which_no_two_rows_look_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["plan", "--model", "femnist.json"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    head, *rows = table_of(text)
    assert head == ["scheme", "protocol", "form", "up", "round"]
    assert len({tuple(row[: len(row) - 2]) for row in rows}) == len(rows)


def test_advice_follows_the_table_in_plain_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *BLOCKS, width=100)
    after = text.partition("\n\n")[2].partition("\n\n")[2].splitlines()
    assert len(after) <= 12
    assert any(line.startswith("  two-servers: ") and 'secagg-compression = "' in line for line in after)
    assert "Warning" not in text
    for words in ("nu =", "ring element", "fine bits", "trusts", "Cheapest"):
        assert words not in text


def test_explanations_are_printed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *BLOCKS, "--explain")
    assert "The mean of the peak code, 1 of 645, has noise of 0.58 times the energy of one client's update" in text
    assert "small sessions were run on this machine, in " in text
    assert "--explain" not in text


def test_each_protocol_of_the_table_says_whom_it_trusts(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *BLOCKS, "--explain")
    for name in names():
        assert f"{name} trusts {find(name).trust}. For the " in text
    few = printed(capsys, "--model", "celeba.json", "--clients", "2")
    assert "pairwise trusts" not in few
    assert "Left out: pairwise, fixed point, " in few


def test_json_holds_all_figures_of_the_table(plan_of: Plan) -> None:
    plan = plan_of(*BLOCKS)
    assert plan["weights"] == 400_000
    assert (plan["clients"], plan["codewords"], plan["block size"], plan["bits"]) == (100, 32, 4, 4)
    (checked,) = (
        row
        for row in plan["options"]
        if (row["protocol"], row["form"]) == ("two-servers", "depth 0, checked") and row["scheme"].startswith("product")
    )
    assert checked == {
        "scheme": "product quantization, 32 x 4",
        "protocol": "two-servers",
        "form": "depth 0, checked",
        "plan": "between counts batches of 16 uploads; the shares of the sum, exchanged once per round, are extra",
        "learned": "histogram",
        "bits per weight": pytest.approx(54.30, abs=0.005),
        "bytes of the packed values": 2_712_500,
        # A seed and two proofs, in two envelopes with the header and both sealed seeds.
        "bytes up": 15 + 2_712_500 + 16 + 1735 + 2 * (128 + 48 + 2 * 80 + 64 + 16),
        # The codebook; two offers of 144 with their frame, and the configuration with standing and the round's number.
        "bytes down": 32 * 4 * 4 + 2 * 144 + 16 + 108 + 221,
        # Three times an id and a length, and a share of seven heads; and server 1's half.
        "bytes between servers": 2 * 31_676 + 122 + 2_712_500 + 2_079,
        "bytes between servers in total": 100 * (2 * 31_676 + 122 + 2_712_500 + 2_079),
        "exchanges": 1,
        "client seconds": checked["client seconds"],
        "server seconds": checked["server seconds"],
        "round seconds": checked["round seconds"],
        "AES blocks": 100 * 100_000 * 31 // 16,
        "word operations": 100 * 100_000 * 32 * (1 + 2 * 18),
        "trust": find("two-servers").trust,
    }
    assert [sentence.split(":")[0] for sentence in plan["left out"]] == [
        *("two-servers, dithered quantization", "lightsecagg, dithered quantization")
    ]
    assert plan["advice"][1].startswith("  pairwise: ")


@pytest.mark.parametrize("clients", [126, 127, 8190, 8191])
def test_a_cohort_just_above_a_field_is_warned_about(clients: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *BLOCKS[:-2], "--clients", str(clients))
    assert ("clients need longer lanes than" in text) == (clients in {127, 8191})
    if clients in {127, 8191}:
        assert f"a round of at most {clients - 1:,} clients has shorter uploads" in text


def test_too_few_bits_for_a_cohort_are_warned_about(plan_of: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    for bits, is_noisy in (("0.8", True), ("1.6", False)):
        plan = plan_of("--model", "celeba.json", "--clients", "20", "--cohort-bits", bits)
        assert (plan["noise"]["peak code"] > 1) == is_noisy
        assert ("noise of the peak code is " in capsys.readouterr().out) == is_noisy


def test_a_file_of_weights_has_the_shapes_of_its_floats(tmp_path: Path, plan_of: Plan) -> None:
    tensors = {name: np.zeros(shape, np.float16) for name, shape in CELEBA.items()}
    for suffix in ("npz", "safetensors"):
        write_model(tmp_path / f"celeba.{suffix}", {**tensors, "batches": np.array(3), "none": np.empty(0)})
        assert plan_of("--model", f"celeba.{suffix}") == plan_of("--model", "celeba.json")


def test_a_change_is_read_and_a_clip_proposed_that_it_fits_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = np.random.default_rng(0)
    before = {name: drawn.normal(0, 1, shape).astype(np.float32) for name, shape in CELEBA.items()}
    trained = {name: each + drawn.normal(0, 0.01, each.shape).astype(np.float32) for name, each in before.items()}
    write_model(tmp_path / "base.npz", before)
    write_model(tmp_path / "trained.safetensors", trained)
    text = printed(capsys, "--model", "trained.safetensors", "--base", "base.npz")
    found = {int(bits): float(clip) for bits, clip in re.findall(r"With (\d+) bits per value, --clip ([\d.]+) ", text)}
    largest = max(float(np.abs(trained[name] - before[name]).max()) for name in before)
    assert found.keys() == {8, 16}
    assert 0.03 < found[8] < found[16]
    assert found[16] == pytest.approx(1.5 * largest, rel=0.05)
    for base, said in (("celeba.json", "neither .npz"), ("trained.safetensors", "no finite value")):
        assert said in refusal(capsys, "plan", "--model", "trained.safetensors", "--base", base)
    write_model(tmp_path / "other.npz", {"other": np.zeros((64, 9))})
    said = refusal(capsys, "plan", "--model", "trained.safetensors", "--base", "other.npz")
    assert "different tensor names or shapes" in said
    assert "pass the trained model with --model" in refusal(capsys, "plan", *BLOCKS, "--base", "base.npz")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON; write"),
        ("[" * 100_000, "is not JSON; write"),
        ('"\udcff"', "is not JSON; write"),
        ("[[64, 32]]", "needs a list of sizes for each tensor"),
        ("{}", "needs a list of sizes for each tensor"),
        ('{"matrix": 5}', "needs a list of sizes for each tensor"),
        ('{"matrix": [64, 32], "bias": "64"}', "needs a list of sizes for each tensor"),
        ('{"matrix": [64, 0]}', "every tensor needs a shape"),
        ('{"matrix": [64, 32.0]}', "every tensor needs a shape"),
        ('{"matrix": [64, [32]]}', "every tensor needs a shape"),
        ('{"matrix": [64, NaN]}', "every tensor needs a shape"),
        ('{"bias": [64]}', "lower --block-size or use a larger model"),
    ],
    ids=range(12),
)
def test_a_file_that_describes_no_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    file = tmp_path / "shapes.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    assert sentence in refusal(capsys, "plan", "--model", str(file))


def test_a_file_of_weights_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "weights.json"
    with file.open("wb") as opened:
        opened.truncate((1 << 24) + 1)
    assert "must only have names and shapes" in refusal(capsys, "plan", "--model", str(file))


def test_a_file_that_is_not_there_is_not_called_unwritable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", str(tmp_path / "none.json")]) == 2
    refusal = capsys.readouterr().err
    assert "cannot read" in refusal
    assert "pass a JSON file with --model" in refusal


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--blocks", "0"], "--blocks must be between 1 and 4294967296; got 0"),
        (["--blocks", "7"], "no tensor can be cut into eight blocks"),
        (["--blocks", "4294967297"], "--blocks must be between"),
        (["--blocks", "4294967296", "--block-size", "1000"], "exceeds 2^40"),
        (["--model", "celeba.json", "--clients", "1"], "--clients must be between 2 and 1048576; got 1"),
        (["--model", "celeba.json", "--codewords", "1"], "--codewords must be between 2 and 65536; got 1"),
        (["--model", "celeba.json", "--block-size", "0"], "--block-size must be between 1 and 65536; got 0"),
        (["--blocks", "100", "--block-size", "-1"], "--block-size must be between 1 and 65536; got -1"),
        (["--model", "celeba.json", "--megabits", "0"], "--megabits must be above 0"),
        (["--model", "celeba.json", "--bits", "33"], "--bits must be between 2 and 16; got 33"),
        (["--model", "celeba.json", "--delta", "1e-3"], "only apply with --noise"),
        (["--model", "celeba.json", "--releases", "5"], "only apply with --noise"),
        (["--model", "celeba.json", "--sparsity", "1"], "a sparsity must be in [0, 1)"),
        (["--model", "celeba.json", "--sparsity", "most"], "is not a number"),
    ],
)
def test_impossible_options_are_refused_with_what_to_change(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main(["plan", *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert not captured.out


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "use another path" in refusal(capsys, "plan", *BLOCKS, "--json", str(tmp_path / "file" / "plan.json"))
