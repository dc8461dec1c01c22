"""`secagg round --protocol enclave`: a real buffer, what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.cli import main
from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate
from secagg.simulation.synthetic_updates import Compression, SyntheticUpdates, UpdateSetting

SMALL = ("round", "--protocol", "enclave", "--clients", "12", "--dimension", "3000")
Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    def run(*options: str) -> dict[str, Any]:
        assert main([*SMALL, "--json", str(tmp_path / "new" / "report.json"), *options]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "new" / "report.json").read_text())
        return report

    return run


@pytest.mark.parametrize("compression", ["none", "sq", "pruning", "pq"])
@pytest.mark.parametrize("suite", ["classic", "hybrid"])
def test_every_compression_gives_the_exact_sum(report_of: Report, compression: str, suite: str) -> None:
    report = report_of("--compression", compression, "--suite", suite, "--drop", "2")
    assert report["sum is exact"] is True
    assert report["contributors"] == report["minimum cohort"] == 10
    assert report["rounds"][0]["dropped"] == [1, 7]
    overhead = report["bytes sent by a client"] - report["bytes by the count of the paper"]
    assert 0 < overhead < 2000


@pytest.mark.parametrize("release", ["decoded-sum", "histogram"])
@pytest.mark.parametrize("accumulation", ["direct", "oblivious"])
def test_both_releases_and_both_accumulations_are_exact(report_of: Report, release: str, accumulation: str) -> None:
    report = report_of("--release", release, "--accumulation", accumulation, "--codewords", "8", "--block-size", "4")
    assert (report["sum is exact"], report["release"]) == (True, release.replace("-", "_"))
    assert report["accumulation"] == accumulation
    assert report["segments"][0] == "720 indices into 8 codewords"


def test_product_quantization_sends_less_than_a_bit_for_each_value(report_of: Report) -> None:
    report = report_of("--compression", "pq", "--dimension", "100000")
    assert report["bytes sent by a client"] < report["bytes of the same as float32"] / 40


def test_what_is_printed_says_what_is_simulated_and_what_was_released(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--drop", "1"]) == 0
    printed = capsys.readouterr().out
    assert "simulated: it protects nobody from this machine" in printed
    assert "the enclave counts in oblivious form and releases the decoded sum" in printed
    assert "dropped out before uploading: client 1\n" in printed
    assert "released: 1 sum, over 11 clients; the enclave's receipt verifies" in printed
    assert "the decoded sum is exactly the plain sum of their updates" in printed


def test_a_wrong_sum_is_said_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = ModelUpdate.decode_summed

    def off_by_a_little(codec: ModelUpdate, aggregate: Aggregate) -> Any:
        return {name: np.nextafter(values, 1) for name, values in right(codec, aggregate).items()}

    monkeypatch.setattr(ModelUpdate, "decode_summed", off_by_a_little)
    assert main([*SMALL]) == 1
    assert "the decoded sum is NOT the plain sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clients", "1"], "--clients is in 2..20000; got 1"),
        (["--dimension", "100"], "a model of 100 values is too small"),
        (["--drop", "11"], "--drop is in 0..10; got 11"),
        (["--codewords", "1"], "a codebook has 2 codewords or more"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main([*SMALL, *options]) == 2
    assert sentence in capsys.readouterr().err


def test_the_sum_in_the_clear_is_that_of_those_clients_alone() -> None:
    inputs = SyntheticUpdates(UpdateSetting(clients=4, dimension=1000, compression=Compression.NONE))
    one, two = inputs.payload_of(1), inputs.payload_of(2)
    assert any((left != right).any() for left, right in zip(one.values, two.values, strict=True))
    assert inputs.update_of(1)["matrix"].shape[1] == 144
